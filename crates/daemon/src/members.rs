//! What whoever manages several rented volumes has carried out on threads of their own, since it may take long: calls of the provider,
//! and volumes that are opened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Sender;
use surgetank_model::Bytes;
use surgetank_provider::{Home, Provider, ProviderError, VolumeDescription};
use surgetank_rental::{Answer, AskId, Call, Obstacle, Opening, ask};

use crate::lifecycle::{Lifecycle, calls};
use crate::opening::{self, Opened, Opener, Place};

/// What a thread of its own has done.
pub(crate) enum Done {
    /// What the life cycle is answered.
    Answer(AskId, Answer),
    /// A volume was opened.
    Opened(AskId, Result<Option<Opened>, Result<ask::Opened, Obstacle>>),
}

/// Calls the provider. The answer, unless it comes later.
pub(crate) fn call(provider: &Arc<dyn Provider>, done: &Sender<Done>, id: AskId, call: Call) -> Option<Answer> {
    let (provider, done, asked) = (provider.clone(), done.clone(), call.clone());
    let calling = move || {
        let answer = catch_unwind(AssertUnwindSafe(|| calls::make(&*provider, &call)));
        let died = || ProviderError::Transient("the provider's call ended without an answer".to_owned());
        // The daemon may have ended.
        let _ = done.send(Done::Answer(id, answer.unwrap_or_else(|_| call.failed(died()))));
    };
    let spawned = std::thread::Builder::new().name("provider".into()).spawn(calling);
    let refused = |error| ProviderError::Transient(format!("a thread cannot be started: {error}"));
    spawned.err().map(|error| asked.failed(refused(error)))
}

/// By what a volume is known that was used before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// What is on it, which is read before anything is written.
    ByHead,
    /// The disk's serial alone: nothing on it tells.
    BySerial,
}

/// Opens an attached volume. The answer, unless it comes later.
pub(crate) fn open(
    (opener, home): (Opener, Home),
    done: &Sender<Done>,
    id: AskId,
    (description, size, opening): (VolumeDescription, Bytes, Opening),
    known: Known,
) -> Option<Answer> {
    let place = match Place::of(&description, &home) {
        Ok(place) => place,
        Err(why) => return Some(Answer::Opened(Ok(ask::Opened::Refused(why)))),
    };
    if let Some(disk) = place.without_a_serial().filter(|_| known == Known::BySerial) {
        return Some(Answer::Opened(Ok(ask::Opened::Refused(format!(
            "the volume {} is the disk with {disk}, which another disk may have one day, and a read cache could not tell them apart: \
             nothing was written to it; name a provider whose disks have serials",
            description.id.0
        )))));
    }
    let (sizes, done) = (opening::sizes(&description, size), done.clone());
    let open = move || {
        let opened = match opening {
            Opening::Fresh { before } => {
                Lifecycle::open_fresh(&opener, &description, &place, &sizes, before.as_deref())
            }
            // Who asks knows its members by what is on them, or their serials.
            Opening::Used { .. } | Opening::Again(_) => opener.caching(&place, &sizes).map_err(Err),
        };
        // The daemon may have ended.
        let _ = done.send(Done::Opened(id, opened));
    };
    let spawned = std::thread::Builder::new().name("opening".into()).spawn(open);
    let why = spawned.err().map(|error| format!("a thread cannot be started: {error}"))?;
    Some(Answer::Opened(Err(why.into())))
}
