//! A caching volume that fails, vanishes or counts as lost: it is kept, looked for, put back and tried again.
//!
//! ```text
//! in use → failing ⇄ gone
//!             ↓        ↓          the engine has lost its patience
//!            lost ⇄ restoring     until everything is back, overwritten, or given up
//! ```

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use surgetank_cache::Event;
use surgetank_model::units::Span;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::Refusal;
use surgetank_provider::{VolumeDescription, VolumeId, VolumeState};

use super::{Lifecycle, POLL};
use crate::crash::crash_point;
use crate::journal::Stage;
use crate::opening::{self, Identity, Opened, Place};
use crate::shard::Command;

/// How often the disk of the volume in use is looked for: the kernel tells when it goes, but not on every machine.
const LOOK: Duration = Duration::from_secs(5);
/// First and longest pause between two looks at a volume that fails or has gone: it is waited for.
const WAITING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// First and longest pause between two tries of a volume that counts as lost.
const LOST: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// How long one waits for what is in flight on a volume that has gone, before it is opened anew all the same.
const STUCK: Duration = Duration::from_secs(30);

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Trouble {
    /// It is in use, or there is none.
    #[default]
    None,
    /// The engine drains what can be read of it and waits for the rest.
    Failing,
    /// It is not on this machine; the engine was told.
    Gone,
    /// The engine has let go of it, with data on it.
    Lost,
    /// The engine reads back what was lost.
    Restoring,
}

/// What is known of the volume that the engine uses or has lost.
#[derive(Default)]
pub(super) struct Outage {
    trouble: Trouble,
    /// When the trouble began.
    since: Instant,
    /// What is wrong, as far as is known: the end of a sentence.
    why: Option<String>,
    /// When to look again, and the pause after that.
    next: Instant,
    pause: Duration,
    /// Where the volume is or was, and what was there when last looked at.
    place: Option<Place>,
    seen: Option<Identity>,
    /// The shard has it.
    in_use: bool,
    /// It is in use under no name: its file was removed.
    nameless: bool,
    /// Opened on a thread of its own, since a volume in trouble may not answer for long.
    opening: Option<Receiver<Result<Option<Opened>, String>>>,
    /// The shard closes it; so long one waits for that.
    closing: Option<(Receiver<()>, Instant)>,
}

impl Outage {
    /// The shard has closed the volume.
    pub fn unused(&mut self) {
        self.in_use = false;
        self.nameless = false;
        self.closing = None;
    }

    /// The volume matters no more.
    pub fn over(&mut self) {
        *self = Self { in_use: self.in_use, nameless: self.nameless, ..Self::default() };
    }

    /// The volume was lost before this daemon started.
    pub fn lost_before(&mut self, now: Instant) {
        *self = Self { trouble: Trouble::Lost, since: now, next: now, pause: LOST.0, ..Self::default() };
    }

    fn enter(&mut self, now: Instant, trouble: Trouble) {
        if matches!(self.trouble, Trouble::None) {
            self.since = now;
        }
        self.trouble = trouble;
        self.opening = None;
        self.pause = Duration::ZERO;
        self.next = now;
    }

    /// Not now: again after a pause, which grows.
    fn later(&mut self, now: Instant, why: Option<String>, most: Duration) {
        let (first, longest) = if self.trouble == Trouble::Lost { LOST } else { WAITING };
        let longest = longest.min(most);
        self.pause = if self.pause.is_zero() { first.min(longest) } else { (self.pause * 2).min(longest) };
        self.next = now + self.pause;
        if why.is_some() {
            self.why = why;
        }
    }
}

impl Lifecycle {
    /// The shard has taken this volume.
    pub(super) fn used(&mut self, place: Place, identity: Identity) {
        self.outage.place = Some(place);
        self.outage.seen = Some(identity);
        self.outage.in_use = true;
        self.outage.nameless = false;
        self.outage.closing = None;
        self.outage.next = self.tools.clock.now() + LOOK.min(self.tools.longest_pause);
    }

    /// When [`Lifecycle::look`] should be called.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let watched = self.outage.in_use || self.outage.trouble != Trouble::None;
        watched.then_some(self.outage.next)
    }

    /// Follows what the engine says of the volume.
    pub(super) fn follow(&mut self, now: Instant, event: &Event) {
        match event {
            Event::CacheFailing if matches!(self.outage.trouble, Trouble::None | Trouble::Restoring) => {
                self.outage.enter(now, Trouble::Failing);
            }
            Event::CacheLost { lost_bytes } => {
                crash_point("lost", "before");
                let less = self.lost_bytes.is_some_and(|before| *lost_bytes < before);
                let pause = self.outage.pause;
                let tried = self.outage.trouble == Trouble::Restoring;
                self.lost(now);
                if tried && !less {
                    self.outage.pause = pause;
                }
                self.outage.later(
                    now,
                    tried.then(|| "a part of it cannot be read".to_owned()),
                    self.tools.longest_pause,
                );
                crash_point("lost", "after");
            }
            Event::RestoreFailed { reason } => {
                let pause = self.outage.pause;
                self.lost(now);
                self.outage.pause = pause;
                self.outage.later(now, Some((*reason).to_owned()), self.tools.longest_pause);
            }
            Event::CacheDropped => {
                crash_point("dropped", "before");
                self.outage.over();
            }
            Event::Released | Event::AdoptFailed | Event::RecoverFailed { .. } => self.outage.over(),
            Event::CacheFailing
            | Event::Adopted
            | Event::Recovered { .. }
            | Event::ReleaseCancelled
            | Event::Stopped => {}
        }
    }

    /// The engine has let go of the volume: close it, and keep it.
    fn lost(&mut self, now: Instant) {
        self.outage.enter(now, Trouble::Lost);
        if std::mem::take(&mut self.outage.in_use) {
            let (answer, closed) = crossbeam_channel::bounded(1);
            // A shard that has ended has closed it.
            let _ = self.tools.shard.send(Command::CloseCache { answer });
            self.outage.closing = Some((closed, now + STUCK));
        }
    }

    /// Looks at the volume in use, or for the one that has gone, when it is time to.
    pub(super) fn look(&mut self, now: Instant) {
        if self.next_look().is_none_or(|next| next > now) {
            return;
        }
        match self.outage.trouble {
            Trouble::None | Trouble::Restoring => {
                self.outage.next = now + LOOK.min(self.tools.longest_pause);
                if self.disk_has_gone() {
                    self.gone(now, "its disk has left this machine".to_owned());
                } else if self.file_was_removed() != self.outage.nameless {
                    self.outage.nameless = !self.outage.nameless;
                    if self.outage.nameless {
                        let device = &self.tools.device;
                        tracing::error!(device, "somebody removed the caching volume's file while it is in use");
                    }
                }
            }
            Trouble::Failing => match self.whereabouts() {
                Some(why) => self.gone(now, why),
                None => self.outage.later(now, None, self.tools.longest_pause),
            },
            Trouble::Gone => {
                if let Some(opened) = self.open_again(now) {
                    self.put_back(now, opened);
                }
            }
            Trouble::Lost => {
                if let Some(opened) = self.open_again(now) {
                    self.restore(now, opened);
                }
            }
        }
    }

    /// The kernel told of disks: looks for ours at once if there is news of it.
    pub(super) fn look_again(&mut self) {
        let now = self.tools.clock.now();
        match self.outage.trouble {
            Trouble::None | Trouble::Failing | Trouble::Restoring => self.outage.next = now,
            Trouble::Gone | Trouble::Lost => {
                // Closing a disk makes the kernel tell of it as well: that is no news.
                let there = self.outage.place.as_ref().map(|place| place.look(&self.tools.disks));
                let Some(Ok(there)) = there else { return };
                if there.is_some() && there != self.outage.seen && self.outage.opening.is_none() {
                    self.outage.next = now;
                }
                self.outage.seen = there;
            }
        }
    }

    /// A user wants the volume tried now. False: there is none in trouble.
    pub fn try_now(&mut self, now: Instant) -> bool {
        if self.outage.trouble == Trouble::None {
            return false;
        }
        if self.outage.opening.is_none() && self.outage.trouble != Trouble::Restoring {
            self.outage.pause = Duration::ZERO;
            self.outage.next = now;
        }
        true
    }

    /// What is where the volume in use was found is another one, or nothing.
    fn is_elsewhere(&self) -> bool {
        let there = self.outage.place.as_ref().map(|place| place.look(&self.tools.disks));
        self.outage.in_use && matches!(there, Some(Ok(there)) if there != self.outage.seen)
    }

    fn disk_has_gone(&self) -> bool {
        !self.outage.seen.is_some_and(Identity::is_file) && self.is_elsewhere()
    }

    /// A file without a name is there as long as it is open, and nobody else can open it.
    fn file_was_removed(&self) -> bool {
        self.outage.seen.is_some_and(Identity::is_file) && self.is_elsewhere()
    }

    /// Looks whether the volume in use is one that nobody could open again: what is on it has to be drained before it is
    /// closed.
    pub fn must_not_close(&mut self, now: Instant) -> bool {
        if matches!(self.outage.trouble, Trouble::None | Trouble::Restoring) {
            self.outage.next = now;
            self.look(now);
        }
        self.outage.nameless
    }

    /// As last looked at.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        self.outage.nameless
    }

    /// Why a failing volume is not on this machine; `None`: it is, as far as can be told.
    fn whereabouts(&mut self) -> Option<String> {
        if self.disk_has_gone() {
            return Some("its disk has left this machine".to_owned());
        }
        if self.sample().is_ok_and(|sample| sample.cache_gone) {
            return Some("its disk answers that it was unplugged".to_owned());
        }
        if self.file_was_removed() {
            // It is read through what is open, as far as it can be.
            return None;
        }
        let id = self.volume()?;
        match self.describe(&id) {
            Ok(None) => Some("the provider knows no such volume".to_owned()),
            Ok(Some(VolumeDescription { state: VolumeState::Attached, .. })) | Err(_) => None,
            Ok(Some(_)) => Some("the provider says that it is not attached".to_owned()),
        }
    }

    /// Tells the engine that the volume is not here, so that it waits.
    fn gone(&mut self, now: Instant, why: String) {
        tracing::warn!(device = self.tools.device, why, "the caching volume has gone");
        crash_point("gone", "before");
        let (answer, closed) = crossbeam_channel::bounded(1);
        // A shard that has ended has closed it.
        let _ = self.tools.shard.send(Command::CacheGone { answer });
        // One that comes and goes is asked more and more rarely.
        let pause = self.outage.pause;
        self.outage.enter(now, Trouble::Gone);
        self.outage.pause = pause;
        self.outage.why = Some(why);
        self.outage.in_use = false;
        self.outage.nameless = false;
        self.outage.seen = None;
        self.outage.closing = Some((closed, now + STUCK));
        crash_point("gone", "after");
    }

    /// Attaches the volume if it is not, and opens it anew. `None`: not yet.
    fn open_again(&mut self, now: Instant) -> Option<Opened> {
        let soon = now + POLL.0;
        if let Some(opening) = &self.outage.opening {
            let why = match opening.try_recv() {
                Ok(Ok(Some(opened))) => {
                    self.outage.opening = None;
                    return Some(opened);
                }
                Ok(Ok(None)) => "its disk has not appeared on this machine".to_owned(),
                Ok(Err(why)) => why,
                Err(TryRecvError::Empty) => {
                    self.outage.next = soon;
                    return None;
                }
                Err(TryRecvError::Disconnected) => "it could not be opened".to_owned(),
            };
            self.outage.opening = None;
            self.outage.later(now, Some(why), self.tools.longest_pause);
            return None;
        }
        if let Some((closed, give_up)) = &self.outage.closing
            && closed.try_recv() == Err(TryRecvError::Empty)
            && now < *give_up
        {
            self.outage.next = soon;
            return None;
        }
        self.outage.closing = None;
        match self.bring_in(Stage::Adopted) {
            Ok(Some((description, size))) => {
                let place = match Place::of(&description, self.files().as_deref()) {
                    Ok(place) => place,
                    Err(why) => {
                        self.outage.later(now, Some(why), self.tools.longest_pause);
                        return None;
                    }
                };
                if self.outage.place.as_ref().is_some_and(|before| *before != place) {
                    let why = "the provider says that it is another disk or file than it was".to_owned();
                    self.outage.later(now, Some(why), self.tools.longest_pause);
                    return None;
                }
                self.outage.seen = place.look(&self.tools.disks).ok().flatten();
                self.outage.opening = self.open_aside(place.clone(), description.id, size);
                self.outage.place = Some(place);
                self.outage.next = soon;
            }
            Ok(None) => {
                let why = "the provider is bringing it back".to_owned();
                self.outage.later(now, Some(why), WAITING.0.min(self.tools.longest_pause));
            }
            Err(refusal) => self.outage.later(now, Some(text(refusal)), self.tools.longest_pause),
        }
        None
    }

    /// Opens the volume on a thread of its own, and reads of it.
    fn open_aside(&self, place: Place, id: VolumeId, size: Bytes) -> Option<Receiver<Result<Option<Opened>, String>>> {
        let epoch = self.epoch()?;
        let (disks, decorator, clock) = (self.tools.disks.clone(), self.tools.decorator.clone(), self.tools.clock);
        let (tell, told) = crossbeam_channel::bounded(1);
        let open = move || {
            let opened = opening::caching_again(&place, &id, size, epoch, &disks, decorator.as_ref(), clock);
            // Nobody waits for it any more if the loss was accepted.
            let _ = tell.send(opened);
        };
        std::thread::Builder::new().name("opening".into()).spawn(open).ok()?;
        Some(told)
    }

    /// Puts the volume that is here again under the engine.
    fn put_back(&mut self, now: Instant, opened: Opened) {
        let Opened { volume, place, identity } = self.throttled(opened);
        crash_point("returned", "before");
        match self.tools.shard.ask(|answer| Command::CacheReturned { volume, answer }) {
            Ok(true) => {
                tracing::info!(device = self.tools.device, "the caching volume is here again");
                let pause = self.outage.pause;
                self.outage.enter(now, Trouble::Failing);
                self.outage.pause = pause;
                self.outage.why = None;
                self.used(place, identity);
                self.outage.later(now, None, self.tools.longest_pause);
                crash_point("returned", "after");
            }
            // The engine's event says why.
            Ok(false) | Err(_) => self.outage.later(now, None, self.tools.longest_pause),
        }
    }

    /// Has the engine read back what was lost.
    fn restore(&mut self, now: Instant, opened: Opened) {
        let Some(epoch) = self.epoch() else { return };
        let Opened { volume, place, identity } = self.throttled(opened);
        let attach = self.engine_attach(epoch, &*volume);
        self.tools.keeper.set_volume(self.volume());
        crash_point("restore", "before");
        match self.tools.shard.ask(|answer| Command::Restore { volume, attach, answer }) {
            Ok(Ok(())) => {
                let pause = self.outage.pause;
                self.outage.trouble = Trouble::Restoring;
                self.used(place, identity);
                self.outage.pause = pause;
                crash_point("restore", "after");
            }
            Ok(Err(rejected)) => self.outage.later(now, Some(rejected.to_string()), self.tools.longest_pause),
            Err(gone) => self.outage.later(now, Some(gone.to_string()), self.tools.longest_pause),
        }
    }

    /// What people are told of the volume's trouble; `bytes` are on it alone.
    #[must_use]
    pub fn trouble(&self, now: Instant, bytes: u64) -> Option<String> {
        let Outage { trouble, since, why, next, nameless, .. } = &self.outage;
        let device = &self.tools.device;
        let volume = self.volume().map_or_else(String::new, |VolumeId(id)| id);
        let whole = |time: Duration| Span(Duration::from_secs(time.as_secs().max(1)));
        let (lasted, patience) = (whole(now.since(*since)), Span(self.tools.caching.outage_patience));
        let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        match trouble {
            Trouble::None => nameless.then(|| {
                format!(
                    "somebody removed the file of the caching volume {volume}: what is on it alone, {bytes} bytes, is being \
                     drained from what is still open, and lost if the daemon is killed before that"
                )
            }),
            Trouble::Failing => Some(format!(
                "the caching volume {volume} has failed {lasted} ago{why}: what is on it alone, {bytes} bytes, is being \
                 drained; while nothing of it can be read, requests wait for up to {patience}, and after that they fail"
            )),
            Trouble::Gone => Some(format!(
                "the caching volume {volume} has been gone for {lasted}{why}: requests for what is on it alone, {bytes} \
                 bytes, wait for it, and fail when {patience} are over; attach it again if the provider does not"
            )),
            Trouble::Restoring => Some(format!(
                "the caching volume {volume} is read back: {bytes} bytes of {device} that are on it alone answer EIO until \
                 then"
            )),
            Trouble::Lost => Some(format!(
                "{bytes} bytes of {device} are on the caching volume {volume} alone, which has failed {lasted} ago{why}, \
                 and answer EIO until it can be read or they are overwritten: it is kept and tried again in {}, or at once \
                 with `surgetank drain {device}`; `surgetank detach {device} --accept-loss` gives them up",
                whole(next.since(now))
            )),
        }
    }

    /// How long requests wait for a volume that cannot be read.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.tools.caching.outage_patience
    }

    /// How long it is until a volume that counts as lost is tried again, by itself.
    #[must_use]
    pub fn tried_in(&self, now: Instant) -> Option<Duration> {
        let waits = self.outage.trouble == Trouble::Lost && self.outage.opening.is_none();
        waits.then(|| self.outage.next.since(now)).filter(|left| !left.is_zero())
    }

    /// Whether the volume is waited for, and nothing is lost so far.
    #[must_use]
    pub fn waits_for_volume(&self) -> bool {
        matches!(self.outage.trouble, Trouble::Failing | Trouble::Gone)
    }

    /// Whether the volume is not on this machine.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.outage.trouble == Trouble::Gone
    }

    /// Whether the engine reads back what was lost.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        self.outage.trouble == Trouble::Restoring
    }
}

/// What a refusal says.
fn text(refusal: Refusal) -> String {
    match refusal {
        Refusal::Transient(text) | Refusal::Permanent(text) => text,
        Refusal::Quota => "the provider's quota is used up".to_owned(),
        Refusal::Capacity => "the provider has no capacity".to_owned(),
        Refusal::AttachLimit => "this machine has no free attachment slot".to_owned(),
        Refusal::Timeout => "the provider took too long".to_owned(),
    }
}
