//! From the intent to create a volume to its adoption, and its recovery after a crash.

use surgetank_cache::Epoch;
use surgetank_model::Bytes;
use surgetank_model::volume::{
    CreateVolume, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState, tag,
};
use surgetank_policy::{Refusal, Step, StepOutcome};

use super::{Notice, Pause, Rental, Walked, mixed_up};
use crate::ask::{Answer, Ask, Call, Command, Opened, Opening, VolumeAsk};
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, RentalStage};

/// What a provider's error means to the controller.
pub(super) fn refused(error: ProviderError) -> Pause {
    Pause::Refused(match error {
        ProviderError::Quota(_) => Refusal::Quota,
        ProviderError::Capacity(_) => Refusal::Capacity,
        ProviderError::AttachLimit(_) => Refusal::AttachLimit,
        ProviderError::Invalid(text) => Refusal::Permanent(text),
        ProviderError::Throttled { after, text } => Refusal::Throttled { after, text },
        error @ (ProviderError::NotFound(_) | ProviderError::Conflict { .. } | ProviderError::Transient(_)) => {
            Refusal::Transient(error.to_string())
        }
    })
}

/// The provider says that a volume has failed.
pub(super) fn failed(id: &VolumeId) -> Pause {
    Pause::Refused(Refusal::Failed(format!("the provider says that the volume {} has failed", id.0)))
}

fn transient(text: &str) -> Pause {
    Pause::Refused(Refusal::Transient(text.to_owned()))
}

impl Rental {
    /// Whether the requests of the device are to come to the engine: from the wish for a boost, so that this is so before the
    /// volume is there to be adopted, until the engine has released it, or it is detached without that. What else needs the
    /// engine, it says itself: see [`Engine::is_transparent`](surgetank_cache::Engine::is_transparent).
    #[must_use]
    pub fn wants_service(&self) -> bool {
        self.service && (self.running.is_some() || self.record.is_some())
    }

    pub(super) fn note_service(&mut self, step: &Step) {
        match step {
            Step::Create { .. } | Step::Attach | Step::Adopt => self.service = true,
            Step::Detach | Step::Delete => self.service = false,
            Step::Grow { .. } | Step::Absorb | Step::Drain | Step::Finish | Step::Release => {}
        }
    }

    pub(super) fn create(&mut self, size: Bytes) -> Walked<StepOutcome> {
        if self.record.is_none() {
            let (random, started_unix_ms) = self.draw()?;
            let token = if planted(Bug::TokenReused) { Epoch::default() } else { Epoch(random) };
            let record = RentalRecord {
                slot: self.slot,
                token: token.to_string(),
                volume_type: self.config.volume_type.clone(),
                size,
                growing_to: None,
                started_unix_ms,
                stage: RentalStage::Creating,
                volume: None,
                epoch: None,
                disposable: true,
                discarded: None,
                missing: None,
            };
            self.released = None;
            self.proved = None;
            if planted(Bug::IntentNotPersisted) {
                self.record = Some(record);
            } else {
                self.persist(Some(record))?;
            }
        }
        let Some(id) = self.volume() else { return self.call_create(size) };
        match self.describe(&id)? {
            Some(description) if description.state == VolumeState::Creating => Err(Pause::Wait),
            Some(description) if description.state == VolumeState::Failed && !planted(Bug::FailedIsCreated) => {
                Err(failed(&id))
            }
            Some(_) => self.note(|record| record.stage = RentalStage::Created).map(|()| StepOutcome::Done),
            None => Err(transient("the volume vanished while it was created")),
        }
    }

    pub(super) fn draw(&mut self) -> Walked<([u8; 16], u64)> {
        match self.ask(Ask::Draw)? {
            Answer::Drawn { random, unix_ms } => Ok((random, unix_ms)),
            answer => Err(mixed_up(&answer)),
        }
    }

    fn call_create(&mut self, size: Bytes) -> Walked<StepOutcome> {
        let Some(record) = &self.record else { return Err(Pause::Wait) };
        let (token, volume_type) = (record.token.clone(), record.volume_type.clone());
        let own = [
            (tag::OWNER.to_owned(), self.config.owner_id.clone()),
            (tag::DEVICE.to_owned(), self.config.device.clone()),
            (tag::TOKEN.to_owned(), token.clone()),
        ];
        let tags: Tags = self.tags.clone().into_iter().chain(own).collect();
        match self.ask(Ask::Provider(Call::Create(CreateVolume { token, volume_type, size, tags })))? {
            Answer::Described(Ok(description)) => {
                self.names.made = Some(description.id.clone());
                self.note(|record| record.volume = Some(description.id.clone()))?;
                Err(Pause::WaitBriefly)
            }
            Answer::Described(Err(error)) => Err(refused(error)),
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn attach(&mut self) -> Walked<StepOutcome> {
        let (description, size) = self.bring_in(RentalStage::Attaching)?;
        if !self.open {
            // Once it has an epoch it was blank, and we may have begun to format it.
            let formatted = self.record.as_ref().is_some_and(|record| record.epoch.is_some());
            let before = self.disks_before.as_ref().filter(|(id, _)| *id == description.id);
            let opening = match before {
                _ if formatted => Opening::Used { epoch: self.epoch() },
                before => Opening::Fresh { before: before.and_then(|(_, disks)| disks.clone()) },
            };
            self.open_volume(&description, size, opening)?;
        }
        self.note(|record| record.stage = RentalStage::Attached)?;
        Ok(StepOutcome::Done)
    }

    /// Attaches the volume and waits until it is there; `intent` is what the record says meanwhile.
    pub(super) fn bring_in(&mut self, intent: RentalStage) -> Walked<(VolumeDescription, Bytes)> {
        let vanished = || transient("the volume vanished");
        let id = self.volume().ok_or_else(vanished)?;
        self.note(|record| record.stage = intent)?;
        let description = self.describe(&id)?.ok_or_else(vanished)?;
        match description.state {
            VolumeState::Attached => {
                // A rental that was put together from the owner record knows no size, and of one that was growing nobody knows
                // whether it has grown.
                let rented = self.record.as_ref().filter(|record| record.growing_to.is_none());
                let rented = rented.map(|record| record.size).filter(|size| *size != Bytes::ZERO);
                let size = rented.unwrap_or(description.size);
                Ok((description, size))
            }
            // What has failed may be needed, and is deleted only by whoever knows that it is not.
            VolumeState::Failed if !planted(Bug::FailedIsCreated) => Err(failed(&id)),
            VolumeState::Available | VolumeState::Failed => {
                self.remember_disks(&id)?;
                let asked = self.change_state(id, Transition::Attach);
                if let Err(Pause::Refused(refusal)) = &asked
                    && !matches!(refusal, Refusal::Transient(_) | Refusal::Timeout)
                {
                    // It was not carried out, and the next try may be much later.
                    self.disks_before = None;
                }
                asked?;
                Err(Pause::WaitBriefly)
            }
            VolumeState::Creating | VolumeState::Attaching | VolumeState::Detaching => Err(Pause::Wait),
            VolumeState::Deleting => Err(vanished()),
        }
    }

    /// Before a volume is attached for the first time: which disks are not it.
    fn remember_disks(&mut self, id: &VolumeId) -> Walked {
        if self.disks_before.as_ref().is_none_or(|(before, _)| before != id) {
            match self.ask(Ask::Volume(VolumeAsk::Identities))? {
                Answer::Identities(disks) => self.disks_before = Some((id.clone(), disks)),
                answer => return Err(mixed_up(&answer)),
            }
        }
        Ok(())
    }

    /// Opens the attached volume for the engine's next command.
    fn open_volume(&mut self, description: &VolumeDescription, size: Bytes, opening: Opening) -> Walked {
        let ask = VolumeAsk::Open { description: description.clone(), size, opening };
        let opened = match self.ask(Ask::Volume(ask))? {
            Answer::Opened(opened) => self.reached(opened),
            answer => return Err(mixed_up(&answer)),
        };
        self.missing_disk = matches!(opened, Ok(Opened::Absent)).then(|| description.id.clone());
        match opened {
            Ok(Opened::Open) => {
                self.open = true;
                Ok(())
            }
            Ok(Opened::Absent) => Err(Pause::Wait),
            Ok(Opened::Refused(why)) => Err(Pause::Refused(Refusal::Permanent(why))),
            Err(why) => Err(Pause::Refused(Refusal::Transient(why))),
        }
    }

    pub(super) fn adopt(&mut self) -> Walked<StepOutcome> {
        if self.is_told() {
            return Err(Pause::EngineWorks);
        }
        let (random, _) = self.draw()?;
        let epoch = Epoch(random);
        if self.epoch() != Some(epoch) && !self.open {
            return Err(transient("the caching volume was closed meanwhile"));
        }
        if !planted(Bug::AdoptedUnserved) {
            self.serve()?;
        }
        self.note(|record| {
            record.stage = RentalStage::Adopting;
            record.epoch = Some(epoch.to_string());
            record.disposable = false;
            record.discarded = None;
        })?;
        self.released = None;
        self.open = false;
        match self.tell(Command::Adopt(epoch))? {
            Ok(()) => {
                self.told(true);
                self.in_use();
                Err(Pause::EngineWorks)
            }
            Err(rejected) => {
                self.unused()?;
                Err(Pause::Refused(Refusal::Permanent(rejected)))
            }
        }
    }

    /// Has the requests of the device come to the engine: what it does not see would miss what the caching volume holds.
    fn serve(&mut self) -> Walked {
        match self.ask(Ask::Serve)? {
            Answer::Served(Ok(())) => Ok(()),
            Answer::Served(Err(why)) => Err(transient(&why)),
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn adopted(&mut self) -> Walked<StepOutcome> {
        // The engine uses it whatever the record of the rental says; the owner record is what counts after a crash.
        match self.note(|record| record.stage = RentalStage::Adopted) {
            Err(Pause::Refused(refusal)) => self.notices.push_back(Notice::Warning(format!("{refusal:?}"))),
            noted => noted?,
        }
        Ok(StepOutcome::Done)
    }

    pub(super) fn adopt_failed(&mut self) -> Walked<StepOutcome> {
        self.close()?;
        self.unused()?;
        Err(transient("the caching volume could not be formatted"))
    }

    /// The engine does not use the volume after all.
    fn unused(&mut self) -> Walked {
        self.owner_is_backing()?;
        self.note(|record| {
            record.stage = RentalStage::Attached;
            record.disposable = true;
        })
    }

    pub(super) fn recover(&mut self, epoch: Epoch) -> Walked<StepOutcome> {
        if self.is_told() {
            return Err(Pause::EngineWorks);
        }
        let (description, size) = self.bring_in(RentalStage::Adopted)?;
        self.open_volume(&description, size, Opening::Used { epoch: Some(epoch) })?;
        self.open = false;
        match self.tell(Command::Recover(epoch))? {
            Ok(()) => {
                self.told(true);
                self.in_use();
                Err(Pause::EngineWorks)
            }
            Err(rejected) => Err(transient(&rejected)),
        }
    }

    pub(super) fn recover_failed(&mut self, reason: &str) -> Walked<StepOutcome> {
        self.close()?;
        Err(transient(reason))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Instant;
    use surgetank_policy::StepId;

    use super::*;
    use crate::ask::AskId;
    use crate::rental::Ended;
    use crate::rented::{answers, described, rented};

    const NOW: Instant = Instant::ZERO;

    /// A volume that is attached and open.
    fn attached() -> Rental {
        Rental { open: true, ..rented(RentalStage::Attached, true) }
    }

    /// Begins to adopt it; answers the ask after the one for random bits.
    fn adopting(rental: &mut Rental) -> (AskId, Ask) {
        rental.begin(NOW, StepId(1), Step::Adopt, None);
        let (id, ask) = rental.next_ask().expect("it asks");
        assert_eq!(ask, Ask::Draw);
        rental.complete(NOW, id, Answer::Drawn { random: [7; 16], unix_ms: 0 });
        rental.next_ask().expect("it asks on")
    }

    #[test]
    fn nothing_is_adopted_before_the_requests_come() {
        let mut rental = attached();
        assert!(!rental.wants_service(), "what a daemon before had attached is deleted");
        let (id, ask) = adopting(&mut rental);
        assert!(ask == Ask::Serve && rental.wants_service());
        assert_eq!(rental.next_ask(), None, "it waits");
        rental.complete(NOW, id, Answer::Served(Ok(())));
        let (id, ask) = rental.next_ask().expect("it goes on");
        let Ask::Persist(Some(record)) = ask else { panic!("{ask:?}") };
        assert_eq!((record.stage, record.disposable), (RentalStage::Adopting, false));
        rental.complete(NOW, id, Answer::Persisted(Ok(())));
        assert_eq!(rental.next_ask().map(|(_, ask)| ask), Some(Ask::Engine(Command::Adopt(Epoch([7; 16])))));
        rental.event(NOW, &surgetank_cache::Event::Released);
        assert!(!rental.wants_service());
    }

    #[test]
    fn requests_that_do_not_come_refuse_the_step() {
        let mut rental = attached();
        let (id, _) = adopting(&mut rental);
        rental.complete(NOW, id, Answer::Served(Err("the table was refused".to_owned())));
        let refused = StepOutcome::Refused(Refusal::Transient("the table was refused".to_owned()));
        assert_eq!(rental.next_ended(), Some(Ended::Step(StepId(1), refused)));
        assert!(rental.next_ask().is_none() && rental.record().is_some_and(|record| record.disposable));
        assert!(rental.wants_service(), "until the controller has decided");
        rental.begin(NOW, StepId(2), Step::Detach, None);
        assert!(!rental.wants_service());
    }

    #[test]
    fn a_volume_that_could_not_be_made_is_refused_and_never_attached() {
        for (stage, step) in
            [(RentalStage::Creating, Step::Create { size: Bytes::from_gib(1) }), (RentalStage::Attaching, Step::Attach)]
        {
            let mut rental = rented(stage, true);
            rental.begin(NOW, StepId(1), step, None);
            let asked = answers(&mut rental, Answer::Described(Ok(described(VolumeState::Failed, Tags::new()))));
            assert_eq!(asked, Ask::Provider(Call::Describe(VolumeId("a".to_owned()))));
            let ended = rental.next_ended();
            let Some(Ended::Step(_, StepOutcome::Refused(Refusal::Failed(why)))) = ended else { panic!("{ended:?}") };
            assert!(why.contains("the volume a has failed"), "{why}");
            assert!(rental.next_ask().is_none() && rental.record().is_some(), "it is deleted yet");
        }
    }

    #[test]
    fn a_call_that_was_throttled_is_refused_with_the_time() {
        let mut rental = rented(RentalStage::Creating, true);
        rental.begin(NOW, StepId(1), Step::Create { size: Bytes::from_gib(1) }, None);
        let (after, text) = (Some(std::time::Duration::from_secs(9)), "slower".to_owned());
        answers(&mut rental, Answer::Described(Err(ProviderError::Throttled { after, text: text.clone() })));
        let refused = StepOutcome::Refused(Refusal::Throttled { after, text });
        assert_eq!(rental.next_ended(), Some(Ended::Step(StepId(1), refused)));
    }
}
