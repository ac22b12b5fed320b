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

/// Opens an attached volume. The answer, unless it comes later.
pub(crate) fn open(
    (opener, home): (Opener, Home),
    done: &Sender<Done>,
    id: AskId,
    (description, size, opening): (VolumeDescription, Bytes, Opening),
) -> Option<Answer> {
    let place = match Place::of(&description, &home) {
        Ok(place) => place,
        Err(why) => return Some(Answer::Opened(Ok(ask::Opened::Refused(why)))),
    };
    let (sizes, done) = (opening::sizes(&description, size), done.clone());
    let open = move || {
        let opened = match opening {
            Opening::Fresh { before } => {
                Lifecycle::open_fresh(&opener, &description, &place, &sizes, before.as_deref())
            }
            // Arrays and read caches know their members by what is on them.
            Opening::Used { .. } | Opening::Again(_) => opener.caching(&place, &sizes).map_err(Err),
        };
        // The daemon may have ended.
        let _ = done.send(Done::Opened(id, opened));
    };
    let spawned = std::thread::Builder::new().name("opening".into()).spawn(open);
    let why = spawned.err().map(|error| format!("a thread cannot be started: {error}"))?;
    Some(Answer::Opened(Err(why.into())))
}
