//! A caching volume that fails, vanishes or counts as lost: it is kept, looked for, put back and tried again.
//!
//! ```text
//! in use → failing ⇄ gone
//!             ↓        ↓          the engine has waited long enough
//!            lost ⇄ restoring     until everything is back, overwritten, or discarded
//! ```

use std::time::Duration;

use surgetank_cache::{Epoch, Event};
use surgetank_model::Instant;
use surgetank_model::units::Span;
use surgetank_model::volume::{VolumeDescription, VolumeId, VolumeState};
use surgetank_policy::Refusal;
use surgetank_policy::backoff::throttled;

use super::{Lane, Notice, Pause, Rental, Walk, Walked, mixed_up};
use crate::array::refusal_text;
use crate::ask::{Answer, Ask, AskId, Command, Opened, Opening, Presence, VolumeAsk};
use crate::record::RentalStage;

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
    /// The engine has released it, with data on it.
    Lost,
    /// The engine reads back what was lost.
    Restoring,
}

/// What is known of the volume that the engine uses or has lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Outage {
    trouble: Trouble,
    /// When the trouble began.
    since: Instant,
    /// What is wrong, as far as is known: the end of a sentence.
    why: Option<String>,
    /// When to look again, and the pause after that.
    next: Instant,
    pause: Duration,
    /// The engine has it.
    in_use: bool,
    /// It is in use under no name: its file was removed.
    nameless: bool,
    /// It is being opened again.
    opening: Option<AskId>,
    /// The engine is closing it; so long one waits for that.
    closing: Option<(AskId, Instant)>,
}

impl Outage {
    /// The engine's volume is closed.
    pub(super) fn closed(&mut self) {
        self.in_use = false;
        self.nameless = false;
        self.closing = None;
    }

    /// The volume was lost before this daemon started.
    pub(super) fn lost_before(&mut self, now: Instant) {
        *self = Self { trouble: Trouble::Lost, since: now, next: now, pause: LOST.0, ..Self::default() };
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

    #[cfg(debug_assertions)]
    pub(super) fn check(&self) {
        let away = matches!(self.trouble, Trouble::Gone | Trouble::Lost);
        assert!(!(away && self.in_use), "a volume that is away is in use: {self:?}");
        assert!(away || self.opening.is_none(), "a volume is opened again that is not away: {self:?}");
        assert!(!self.nameless || self.in_use, "only a volume in use can have lost its name: {self:?}");
    }
}

impl Rental {
    /// The engine has taken the volume.
    pub(super) fn in_use(&mut self) {
        self.outage.in_use = true;
        self.outage.nameless = false;
        self.outage.closing = None;
        self.outage.next = self.next_routine_look();
    }

    fn next_routine_look(&self) -> Instant {
        if self.config.volumes_leave { self.now + LOOK.min(self.config.longest_pause) } else { Instant::FAR }
    }

    /// When the volume should be looked at.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let Outage { trouble, next, in_use, opening, closing, .. } = &self.outage;
        let watched = *in_use || *trouble != Trouble::None;
        let next = closing.map_or(*next, |(_, until)| until.max(*next));
        (watched && opening.is_none() && next != Instant::FAR).then_some(next)
    }

    fn enter(&mut self, trouble: Trouble) {
        if self.outage.trouble == Trouble::None {
            self.outage.since = self.now;
        }
        self.outage.trouble = trouble;
        self.outage.opening = None;
        self.outage.pause = Duration::ZERO;
        self.outage.next = self.now;
        self.outage_walk = Walk::default();
    }

    /// The same, and the pause between two tries goes on growing.
    fn enter_again(&mut self, trouble: Trouble) {
        let pause = self.outage.pause;
        self.enter(trouble);
        self.outage.pause = pause;
    }

    fn look_later(&mut self, why: Option<String>) {
        self.outage.later(self.now, why, self.config.longest_pause);
    }

    /// A volume that is not known is looked at often enough to be believed gone.
    fn look_often(&mut self) {
        self.outage.next = self.outage.next.min(self.now + self.longest_poll());
    }

    /// Later, and when the provider wants to be asked again.
    fn look_when_it_may(&mut self, refusal: &Refusal) {
        self.look_later(Some(refusal_text(refusal)));
        self.outage.next = self.now + throttled(self.outage.pause, refusal, self.config.longest_pause);
    }

    /// The volume matters no more.
    pub(super) fn end_outage(&mut self) {
        let Outage { in_use, nameless, .. } = self.outage;
        self.outage = Outage { in_use, nameless, next: self.outage.next, ..Outage::default() };
        self.outage_walk = Walk::default();
    }

    /// Follows what the engine says of the volume.
    pub(super) fn follow(&mut self, event: &Event) {
        match event {
            Event::CacheFailing if matches!(self.outage.trouble, Trouble::None | Trouble::Restoring) => {
                self.enter(Trouble::Failing);
            }
            Event::CacheLost { lost_bytes } => {
                let less = self.lost_bytes.is_some_and(|before| *lost_bytes < before);
                let tried = self.outage.trouble == Trouble::Restoring;
                self.lost(tried && !less);
                self.look_later(tried.then(|| "a part of it cannot be read".to_owned()));
            }
            Event::RestoreFailed { reason } => {
                self.lost(true);
                self.look_later(Some((*reason).to_owned()));
            }
            Event::CacheDropped | Event::Released | Event::AdoptFailed | Event::RecoverFailed { .. } => {
                self.end_outage();
                // It is still open, and may go now.
                (self.outage.in_use, self.outage.nameless) = (false, false);
            }
            Event::CacheFailing
            | Event::Adopted
            | Event::Recovered { .. }
            | Event::ReleaseCancelled
            | Event::CacheGrown { .. }
            | Event::CacheGrowFailed
            | Event::Stopped => {}
        }
    }

    /// The engine has released the volume: close it, and keep it. `again`: it was tried in vain.
    fn lost(&mut self, again: bool) {
        if again {
            self.enter_again(Trouble::Lost);
        } else {
            self.enter(Trouble::Lost);
        }
        if std::mem::take(&mut self.outage.in_use) {
            self.outage.nameless = false;
            let id = self.emit(Ask::Engine(Command::Close));
            self.outage.closing = Some((id, self.now + STUCK));
        }
    }

    /// Looks at the volume in use, or for the one that has gone, when it is time to.
    pub(super) fn walk_outage(&mut self) {
        let due = self.next_look().is_some_and(|next| next <= self.now);
        if self.outage_walk.awaited.is_some() || !self.outage_walk.is_under_way() && !due {
            return;
        }
        self.lane = Lane::Outage;
        self.outage_walk.queued = false;
        let walked = match self.outage.trouble {
            Trouble::None | Trouble::Restoring => self.watch(),
            Trouble::Failing => self.find_out(),
            Trouble::Gone | Trouble::Lost => self.bring_back(),
        };
        match walked {
            Err(Pause::Asked) => return,
            Ok(()) => {}
            Err(Pause::Wait | Pause::WaitBriefly | Pause::EngineWorks) => {
                let why = "the provider is bringing it back".to_owned();
                self.outage.later(self.now, Some(why), WAITING.0.min(self.config.longest_pause));
                self.look_often();
            }
            Err(Pause::Refused(refusal)) => self.look_when_it_may(&refusal),
        }
        self.outage_walk = Walk::default();
    }

    fn presence(&mut self) -> Walked<Presence> {
        match self.ask(Ask::Volume(VolumeAsk::Look))? {
            Answer::Looked(presence) => Ok(presence),
            answer => Err(mixed_up(&answer)),
        }
    }

    /// Whether the volume in use is where it was found.
    fn watch(&mut self) -> Walked {
        let presence = self.presence()?;
        self.outage.next = self.next_routine_look();
        let nameless = presence == Presence::Nameless && self.outage.in_use;
        if presence == Presence::Gone && self.outage.in_use {
            self.gone("its disk has left this machine");
        } else if nameless != std::mem::replace(&mut self.outage.nameless, nameless) && nameless {
            let what = "somebody removed the caching volume's file while it is in use".to_owned();
            self.notices.push_back(Notice::Error(what));
        }
        Ok(())
    }

    /// Why a failing volume fails.
    fn find_out(&mut self) -> Walked {
        let presence = self.presence()?;
        if presence == Presence::Gone {
            self.gone("its disk has left this machine");
        } else if self.sample()?.1 {
            self.gone("its disk answers that it was unplugged");
        } else if presence == Presence::Nameless {
            // It is read through what is open, as far as it can be.
            self.look_later(None);
        } else {
            let described = self.volume().map_or(Ok(None), |id| self.describe(&id));
            match described {
                Err(Pause::Asked) => return Err(Pause::Asked),
                Ok(None) => self.gone("the provider knows no such volume"),
                // Of one that has failed what can be read is read, as long as its disk is here.
                Ok(Some(VolumeDescription { state: VolumeState::Attached | VolumeState::Failed, .. })) => {
                    self.look_later(None);
                }
                Err(Pause::Refused(refusal)) => self.look_when_it_may(&refusal),
                // It is not known, which is not believed yet.
                Err(_) => {
                    self.look_later(None);
                    self.look_often();
                }
                Ok(Some(_)) => self.gone("the provider says that it is not attached"),
            }
        }
        Ok(())
    }

    /// Tells the engine that the volume is not here, so that it waits.
    fn gone(&mut self, why: &str) {
        self.notices.push_back(Notice::Warning(format!("the caching volume has gone: {why}")));
        let id = self.emit(Ask::Engine(Command::Gone));
        // One that comes and goes is looked for more and more rarely.
        self.enter_again(Trouble::Gone);
        self.outage.why = Some(why.to_owned());
        self.outage.in_use = false;
        self.outage.nameless = false;
        self.outage.closing = Some((id, self.now + STUCK));
    }

    /// Attaches the volume if it is not, opens it anew, and gives it to the engine.
    fn bring_back(&mut self) -> Walked {
        if self.open {
            return match self.outage.trouble {
                Trouble::Lost => self.restore(),
                _ => self.put_back(),
            };
        }
        self.outage.closing = None;
        // What is being adopted has not been because its disk went meanwhile: until the owner record names it, nothing on it counts.
        let is_being_adopted = self.stage() == Some(RentalStage::Adopting);
        let intent = if is_being_adopted { RentalStage::Adopting } else { RentalStage::Adopted };
        let (description, size) = self.bring_in(intent)?;
        let epoch = self.lost_epoch()?;
        let opening = Opening::Again(epoch);
        self.outage.opening = Some(self.emit(Ask::Volume(VolumeAsk::Open { description, size, opening })));
        Ok(())
    }

    /// The attachment of the volume that is away.
    fn lost_epoch(&self) -> Walked<Epoch> {
        let unknown = || Pause::Refused(Refusal::Transient("the record names no attachment of it".to_owned()));
        self.epoch().ok_or_else(unknown)
    }

    /// Takes an answer that the look after the volume waits for. `false`: it is none.
    pub(super) fn outage_answered(&mut self, id: AskId, answer: &Answer) -> bool {
        if self.outage.closing.is_some_and(|(closing, _)| closing == id) {
            self.outage.closing = None;
            return true;
        }
        if self.outage.opening != Some(id) {
            return false;
        }
        self.outage.opening = None;
        let Answer::Opened(opened) = answer else {
            self.look_later(None);
            return true;
        };
        match self.reached(opened.clone()) {
            Ok(Opened::Open) => {
                self.open = true;
                self.outage.next = self.now;
            }
            Ok(Opened::Absent) => self.look_later(Some("its disk has not appeared on this machine".to_owned())),
            Ok(Opened::Refused(why)) | Err(why) => self.look_later(Some(why)),
        }
        true
    }

    /// Puts the volume that is here again under the engine.
    fn put_back(&mut self) -> Walked {
        let returned = self.tell(Command::Returned)?;
        self.open = false;
        if returned.is_ok() {
            self.notices.push_back(Notice::Passed("the caching volume is here again".to_owned()));
            self.enter_again(Trouble::Failing);
            self.outage.why = None;
            self.in_use();
        }
        // If the engine does not want it any more, its event says why.
        self.look_later(None);
        Ok(())
    }

    /// Has the engine read back what was lost.
    fn restore(&mut self) -> Walked {
        let epoch = self.lost_epoch()?;
        let restored = self.tell(Command::Restore(epoch))?;
        self.open = false;
        match restored {
            Ok(()) => {
                self.outage.trouble = Trouble::Restoring;
                self.in_use();
            }
            Err(rejected) => self.look_later(Some(rejected)),
        }
        Ok(())
    }

    /// The kernel told of disks. `news`: what is where the volume was, has changed.
    pub(super) fn look_again(&mut self, news: bool) {
        match self.outage.trouble {
            Trouble::None | Trouble::Failing | Trouble::Restoring => self.outage.next = self.now,
            // Closing a disk makes the kernel tell of it as well: that is no news.
            Trouble::Gone | Trouble::Lost if news && self.outage.opening.is_none() => self.outage.next = self.now,
            Trouble::Gone | Trouble::Lost => {}
        }
    }

    /// A user wants the volume tried now. False: there is none in trouble.
    pub fn try_now(&mut self, now: Instant) -> bool {
        self.now = self.now.max(now);
        if self.outage.trouble == Trouble::None {
            return false;
        }
        if self.outage.opening.is_none() && self.outage.trouble != Trouble::Restoring {
            self.outage.pause = Duration::ZERO;
            self.outage.next = self.now;
        }
        self.advance();
        true
    }

    /// Has it looked at now whether the volume in use is one that nobody could open again: what is on it has to be drained
    /// before it is closed.
    pub fn look_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if matches!(self.outage.trouble, Trouble::None | Trouble::Restoring) {
            self.outage.next = self.now;
            self.advance();
        }
    }

    /// Whether the volume in use has no name any more, as last looked at.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        self.outage.nameless
    }

    /// What people are told of the volume's trouble; `bytes` are on it alone.
    #[must_use]
    pub fn trouble(&self, now: Instant, bytes: u64) -> Option<String> {
        let Outage { trouble, since, why, next, nameless, .. } = &self.outage;
        let device = &self.config.device;
        let volume = self.volume().map_or_else(String::new, |VolumeId(id)| id);
        let whole = |time: Duration| Span(Duration::from_secs(time.as_secs().max(1)));
        let (lasted, patience) = (whole(now.since(*since)), Span(self.config.outage_patience));
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
            Trouble::Lost => {
                let discards = match self.held {
                    // What it holds can be read once the other program is stopped.
                    Some(_) => String::new(),
                    None => format!("; `surgetank detach {device} --accept-loss` discards them"),
                };
                Some(format!(
                    "{bytes} bytes of {device} are on the caching volume {volume} alone, which has failed {lasted} ago{why}, \
                     and answer EIO until it can be read or they are overwritten: it is kept and tried again in {}, or at once \
                     with `surgetank drain {device}`{discards}",
                    whole(next.since(now))
                ))
            }
        }
    }

    /// How long requests wait for a volume that cannot be read.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.config.outage_patience
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

#[cfg(test)]
mod tests {
    use surgetank_cache::EngineStage;
    use surgetank_model::volume::{ProviderError, Tags};

    use super::*;
    use crate::rented::{answers, described, rented};

    /// A volume in use that fails, and of which the provider says that.
    fn fails(said: Result<VolumeDescription, ProviderError>) -> Rental {
        fails_over(surgetank_model::Lag::NONE, said)
    }

    /// The same over a provider that may lag.
    fn fails_over(lag: surgetank_model::Lag, said: Result<VolumeDescription, ProviderError>) -> Rental {
        let mut rental = rented(RentalStage::Adopted, false);
        rental.config.lag = lag;
        rental.in_use();
        rental.event(Instant::ZERO, &Event::CacheFailing);
        assert_eq!(answers(&mut rental, Answer::Looked(Presence::Here)), Ask::Volume(VolumeAsk::Look));
        answers(&mut rental, Answer::Sampled { stage: EngineStage::Failing, unplugged: false });
        answers(&mut rental, Answer::Described(said));
        rental
    }

    #[test]
    fn what_can_be_read_of_a_volume_that_has_failed_in_use_is_read() {
        let mut rental = fails(Ok(described(VolumeState::Failed, Tags::new())));
        assert_eq!(rental.next_ask(), None, "the engine goes on with it");
        let mut rental = fails(Ok(described(VolumeState::Available, Tags::new())));
        assert_eq!(rental.next_ask().map(|(_, ask)| ask), Some(Ask::Engine(Command::Gone)));
    }

    #[test]
    fn a_volume_that_has_gone_while_it_is_adopted_is_not_on_record_as_adopted() {
        for stage in [RentalStage::Adopting, RentalStage::Adopted] {
            let mut rental = rented(stage, false);
            rental.in_use();
            rental.event(Instant::ZERO, &Event::CacheFailing);
            assert_eq!(answers(&mut rental, Answer::Looked(Presence::Gone)), Ask::Volume(VolumeAsk::Look));
            assert_eq!(answers(&mut rental, Answer::Began(Ok(()))), Ask::Engine(Command::Gone));
            let asked = rental.next_ask().map(|(_, ask)| ask);
            assert!(matches!(asked, Some(Ask::Provider(_))), "it is looked for: {asked:?}");
            assert_eq!(rental.stage(), Some(stage));
        }
    }

    #[test]
    fn a_volume_in_trouble_has_not_gone_because_it_is_not_known_once() {
        let absent = || Err(ProviderError::NotFound(VolumeId("a".to_owned())));
        assert_eq!(fails(absent()).next_ask().map(|(_, ask)| ask), Some(Ask::Engine(Command::Gone)));
        let mut rental = fails_over(surgetank_model::Lag::CLOUD, absent());
        assert!(rental.next_ask().is_none() && rental.next_look().is_some(), "it is looked at again");
    }

    #[test]
    fn a_volume_that_has_gone_is_looked_for_often_enough_to_be_believed_gone() {
        let second = Duration::from_secs(1);
        let lag = surgetank_model::Lag { created: second, known: second };
        let mut rental = fails_over(lag, Ok(described(VolumeState::Available, Tags::new())));
        assert_eq!(answers(&mut rental, Answer::Began(Ok(()))), Ask::Engine(Command::Gone));
        answers(&mut rental, Answer::Described(Err(ProviderError::NotFound(VolumeId("a".to_owned())))));
        assert_eq!(rental.next_look(), Some(Instant::ZERO + second / 4));
    }

    #[test]
    fn a_provider_that_throttles_is_asked_about_a_volume_in_trouble_when_it_says() {
        let after = Duration::from_secs(40);
        let rental = fails(Err(ProviderError::Throttled { after: Some(after), text: String::new() }));
        assert_eq!(rental.next_look(), Some(Instant::ZERO + after));
    }
}
