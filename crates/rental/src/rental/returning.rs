//! From the release of a volume to its deletion, with the proof that nothing on it counts.

use surgetank_cache::EngineStage;
use surgetank_model::volume::{Change, Transition, VolumeDescription, VolumeId, VolumeState, tag};
use surgetank_policy::{Refusal, StepOutcome};

use super::sighting::{Names, Sighting};
use super::{Kept, Notice, Pause, Release, Rental, Walked, mixed_up, refused};
use crate::ask::{Answer, Ask, Call, Command};
use crate::owner::parse_epoch;
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, RentalStage};

impl Rental {
    /// The user discards whatever is on the volume that is kept for want of a proof: the record to make durable before
    /// [`Rental::proof_discarded`], so that it stays discarded over a crash. `None`: nothing is kept, or another record is
    /// being written.
    #[must_use]
    pub fn without_proof(&self) -> Option<RentalRecord> {
        let (kept, record) = (self.kept.as_ref()?, self.record.clone().filter(|_| self.writing.is_none())?);
        let discarded = kept.tag.clone().filter(|_| !planted(Bug::DiscardForgotten));
        Some(RentalRecord { disposable: true, discarded, ..record })
    }

    /// That record is durable.
    pub fn proof_discarded(&mut self, record: RentalRecord) {
        self.record = Some(record);
        self.kept = None;
    }

    pub(super) fn release(&mut self) -> Walked<StepOutcome> {
        if self.lost_bytes.is_some() {
            // Nothing is detached before the user accepts the loss, or overwrites what was lost.
            return Err(Pause::Wait);
        }
        if self.released.is_some() {
            return self.finish_release();
        }
        if self.is_told() {
            return Err(Pause::EngineWorks);
        }
        match self.tell(Command::Release)? {
            Ok(()) => {
                self.told(true);
                if planted(Bug::ReleaseNotAwaited) { Ok(StepOutcome::Done) } else { Err(Pause::EngineWorks) }
            }
            Err(rejected) => {
                if self.sample()?.0 != EngineStage::PassThrough {
                    return Err(Pause::Refused(Refusal::Transient(rejected)));
                }
                // It has released the volume by itself, and the event came before this step or before a restart.
                self.released = Some(Release::Dropped);
                self.finish_release()
            }
        }
    }

    /// The engine has released the volume: close it, prove that nothing on it counts, and write that down.
    fn finish_release(&mut self) -> Walked<StepOutcome> {
        self.close()?;
        self.owner_is_backing()?;
        if self.released == Some(Release::Clean) {
            self.look_for_clean()?;
        }
        self.note(|record| {
            record.stage = RentalStage::Released;
            record.disposable = true;
        })?;
        Ok(StepOutcome::Done)
    }

    /// Reads CLEAN from the medium. A volume that has failed meanwhile need not be read: the owner record decides.
    fn look_for_clean(&mut self) -> Walked {
        let Some(id) = self.volume() else { return Ok(()) };
        let Some(description) = self.describe(&id)? else { return Ok(()) };
        let why = match self.superblock(&description)? {
            Ok(Some(label)) if label.clean && Some(label.epoch) == self.epoch() => return Ok(()),
            Ok(_) => format!("the caching volume {} does not read as clean after its release", id.0),
            Err(why) => why,
        };
        if !self.record_names_its_end()? {
            return Err(Pause::Refused(Refusal::Transient(why)));
        }
        self.notices.push_back(Notice::Warning(format!(
            "{why}; it is deleted all the same: the owner record says that nothing on it counts"
        )));
        Ok(())
    }

    /// Whether the owner record says that this very attachment has ended. It says so only after everything on the volume
    /// was durable on the backing volume, or was discarded.
    fn record_names_its_end(&mut self) -> Walked<bool> {
        let (Some(volume), Some(epoch)) = (self.volume(), self.epoch()) else { return Ok(false) };
        Ok(self.owner_record()?.has_ended(&volume, epoch))
    }

    /// After a restart: proves that nothing on the volume counts, before it is detached.
    fn prove_disposable(&mut self) -> Walked {
        let Some(record) = &self.record else { return Ok(()) };
        if record.disposable {
            return Ok(());
        }
        let formatting = record.stage == RentalStage::Adopting;
        // The owner record is durable before anything is acknowledged from a cache, and cleared after CLEAN is durable.
        self.owner_is_backing()?;
        let Some(id) = self.volume() else { return Ok(()) };
        if !formatting
            && !self.record_names_its_end()?
            && let Some(description) = self.describe(&id)?
        {
            if description.state == VolumeState::Failed {
                let why = format!(
                    "the provider says that the volume {} has failed, and whether it holds data that is needed cannot be told",
                    id.0
                );
                return Err(self.keep(why, &description, Refusal::Permanent));
            }
            // Attached without forgetting how far the rental is.
            let stage = self.stage().unwrap_or(RentalStage::Adopted);
            let (description, _) = self.bring_in(stage)?;
            if let Err(why) = self.unproved(&description)? {
                return Err(self.keep(why, &description, Refusal::Permanent));
            }
        }
        self.kept = None;
        self.note(|record| record.disposable = true)
    }

    /// Looks at a volume of which the owner record does not speak: it is from before a build that writes that down, or
    /// was restored. The error says why the volume may be needed.
    fn unproved(&mut self, description: &VolumeDescription) -> Walked<Result<(), String>> {
        let tagged = description.tags.contains_key(tag::DIRTY_EPOCH);
        Ok(match self.superblock(description)? {
            Err(why) => Err(format!("whether it holds data that is needed cannot be told ({why})")),
            Ok(Some(label)) if label.clean => Ok(()),
            Ok(Some(_)) if tagged => {
                Err("it reads as in use, although the owner record says that nothing is on it".to_owned())
            }
            // The tag is set after the superblock is durable.
            Ok(None) if tagged => Err("its superblocks are damaged, and its tag says that it is in use".to_owned()),
            Ok(_) => Ok(()),
        })
    }

    /// Refuses to delete a volume whose tag names an attachment of which the owner record does not say that it has ended,
    /// unless the volume itself proves that nothing of it counts: a daemon with a copy of this state directory, or an earlier
    /// one of it, may have taken the volume into use.
    fn holds_nothing(&mut self, description: &VolumeDescription) -> Walked {
        let Some(tagged) = description.tags.get(tag::DIRTY_EPOCH) else { return Ok(()) };
        if self.record.as_ref().is_some_and(|record| record.discarded.as_ref() == Some(tagged)) {
            return Ok(());
        }
        let tagged_epoch = parse_epoch(tagged);
        let owner = self.owner_record()?;
        let has_ended = |epoch| owner.has_ended(&description.id, epoch);
        let is_proved = tagged_epoch.is_some_and(has_ended) || self.proved.as_ref() == Some(tagged);
        if planted(Bug::CopiesIgnored) || is_proved {
            return Ok(());
        }
        let (why, refusal): (_, fn(String) -> Refusal) = match description.state {
            VolumeState::Attached => match self.superblock(description)? {
                Ok(Some(label)) if label.clean && Some(label.epoch) == tagged_epoch => return self.prove(tagged),
                // Our own adoption was broken off before anything was acknowledged from it.
                Ok(Some(label))
                    if !label.written && Some(label.epoch) == self.epoch() && Some(label.epoch) == tagged_epoch =>
                {
                    return self.prove(tagged);
                }
                Ok(Some(_)) => ("it reads as in use".to_owned(), Refusal::Permanent),
                Ok(None) => ("its superblocks are damaged".to_owned(), Refusal::Permanent),
                Err(why) => (why, Refusal::Transient),
            },
            VolumeState::Attaching => return Err(Pause::Wait),
            VolumeState::Available if tagged_epoch.is_some() && tagged_epoch == self.epoch() => {
                let stage = self.stage().unwrap_or(RentalStage::Detaching);
                return self.bring_in(stage).and(Err(Pause::WaitBriefly));
            }
            VolumeState::Available => {
                ("no record of this daemon speaks of that attachment".to_owned(), Refusal::Permanent)
            }
            VolumeState::Failed => {
                ("the provider says that it has failed, so it cannot be read".to_owned(), Refusal::Permanent)
            }
            VolumeState::Creating | VolumeState::Detaching | VolumeState::Deleting => return Ok(()),
        };
        let why = format!(
            "the tag of the volume {} says that the attachment {tagged} uses it, and {why}: a daemon with a copy of this state \
             directory may have its newest data there",
            description.id.0
        );
        Err(self.keep(why, description, refusal))
    }

    /// The volume stays until the proof can be had, or the user discards what its tag names.
    fn keep(&mut self, why: String, description: &VolumeDescription, refusal: fn(String) -> Refusal) -> Pause {
        let tag = description.tags.get(tag::DIRTY_EPOCH).cloned();
        self.kept = Some(Kept { why: why.clone(), tag });
        Pause::Refused(refusal(why))
    }

    /// Nothing on the volume counts of the attachment that its tag names.
    fn prove(&mut self, tagged: &str) -> Walked {
        self.proved = Some(tagged.to_owned());
        Ok(())
    }

    pub(super) fn detach(&mut self) -> Walked<StepOutcome> {
        if self.open && !planted(Bug::OpenNotClosed) {
            self.close()?;
        }
        self.prove_disposable()?;
        let Some(id) = self.volume() else { return Ok(StepOutcome::Done) };
        self.note(|record| record.stage = RentalStage::Detaching)?;
        let Some(description) = self.describe(&id)? else { return Ok(StepOutcome::Done) };
        self.holds_nothing(&description)?;
        self.kept = None;
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => {
                self.change_state(id, Transition::Detach)?;
                Err(Pause::WaitBriefly)
            }
            VolumeState::Detaching => Err(Pause::Wait),
            VolumeState::Creating | VolumeState::Available | VolumeState::Deleting | VolumeState::Failed => {
                Ok(StepOutcome::Done)
            }
        }
    }

    pub(super) fn delete(&mut self) -> Walked<StepOutcome> {
        if self.record.is_none() {
            return Ok(StepOutcome::Done);
        }
        if self.volume().is_none() && (planted(Bug::TokenNotLookedFor) || !self.find_by_token()?) {
            return self.forget();
        }
        self.prove_disposable()?;
        self.owner_is_backing()?;
        let Some(id) = self.volume() else { return self.forget() };
        let Some(description) = self.describe(&id)? else { return self.gone_or_twin() };
        self.holds_nothing(&description)?;
        self.kept = None;
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => {
                self.detach()?;
                Err(Pause::Wait)
            }
            VolumeState::Deleting if planted(Bug::DeletingIsDeleted) => self.gone_or_twin(),
            // It may fail yet.
            VolumeState::Detaching | VolumeState::Deleting => Err(Pause::Wait),
            VolumeState::Failed if planted(Bug::FailedForgotten) => self.forget(),
            VolumeState::Creating | VolumeState::Available | VolumeState::Failed => {
                self.note(|record| record.stage = RentalStage::Deleting)?;
                let deleted = self.change_state(id, Transition::Delete);
                if deleted == Err(Pause::Asked) {
                    return Err(Pause::Asked);
                }
                let throttled = matches!(deleted, Err(Pause::Refused(Refusal::Throttled { .. })));
                if planted(Bug::AskedIsDeleted)
                    || deleted.is_err() && planted(Bug::FailedDeleteIsDone)
                    || throttled && planted(Bug::ThrottledIsDone)
                {
                    return self.forget();
                }
                // `Identity` says no more than that the provider does not know it at the moment.
                if deleted? == Change::Changed || planted(Bug::IdentityIsDeleted) {
                    Sighting::of(&mut self.sighting, &description.id).is_deleted();
                }
                Err(Pause::WaitBriefly)
            }
        }
    }

    /// Learns the name of a volume that was created while nobody was there to be told. `false`: none is listed, which does not
    /// prove that there is none: one that shows later is an orphan, and the sweep's.
    fn find_by_token(&mut self) -> Walked<bool> {
        let token = self.record.as_ref().map(|record| record.token.clone()).filter(|token| !token.is_empty());
        let Some(token) = token else { return Ok(false) };
        let on_record = self.volume();
        let is_another = |made: &VolumeId| on_record.as_ref() != Some(made) && self.names.may_be_there(made);
        if let Some(made) = self.names.made.clone().filter(is_another) {
            self.note(|record| (record.volume, record.missing) = (Some(made), None))?;
            return Ok(true);
        }
        let list = Call::List { key: tag::TOKEN.to_owned(), value: token.clone() };
        let listed = match self.ask(Ask::Provider(list))? {
            Answer::Listed(Ok(listed)) => listed,
            Answer::Listed(Err(error)) => return Err(refused(error)),
            answer => return Err(mixed_up(&answer)),
        };
        // What is found here is going to be deleted: that it bears the token is not left to the provider's filter.
        let is_ours = |volume: &VolumeDescription| volume.tags.get(tag::TOKEN) == Some(&token);
        // Listings lag behind, and may show what is gone already.
        let is_left = |volume: &VolumeDescription| self.names.may_be_there(&volume.id);
        let found = listed.into_iter().find(|volume| is_ours(volume) && is_left(volume));
        let Some(found) = found else { return Ok(false) };
        // The next listing may not show it, and a record that could not be written may be durable all the same.
        self.names.made = Some(found.id.clone());
        self.note(|record| (record.volume, record.missing) = (Some(found.id), None))?;
        Ok(true)
    }

    /// The volume is gone. A create that was repeated on the way may have left another of the same token.
    fn gone_or_twin(&mut self) -> Walked<StepOutcome> {
        if let Some(id) = self.volume() {
            self.names.is_gone(&id);
        }
        if self.find_by_token()? { Err(Pause::Wait) } else { self.forget() }
    }

    /// A record is durable. Without one there are no volumes of which anything is known.
    pub(super) fn recorded(&mut self, record: Option<RentalRecord>) {
        if record.is_none() {
            (self.names, self.sighting) = (Names::default(), None);
        }
        self.record = record;
    }

    fn forget(&mut self) -> Walked<StepOutcome> {
        self.kept = None;
        self.held = None;
        if self.record.is_some() {
            self.persist(None)?;
        }
        Ok(StepOutcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Instant;
    use surgetank_model::volume::{ProviderError, Tags};
    use surgetank_policy::{Step, StepId};

    use super::*;
    use crate::owner::OwnerRecord;
    use crate::rental::Ended;
    use crate::rented::{answers, described, rented};

    const NOW: Instant = Instant::ZERO;

    fn deletes(rental: &mut Rental) -> Option<Ask> {
        rental.begin(NOW, StepId(1), Step::Delete, None);
        assert_eq!(answers(rental, Answer::Owner(Ok(OwnerRecord::default()))), Ask::Owner);
        let dirty = Tags::from([(tag::DIRTY_EPOCH.to_owned(), "e1".to_owned())]);
        answers(rental, Answer::Described(Ok(described(VolumeState::Failed, dirty))));
        let (id, ask) = rental.next_ask()?;
        assert!(matches!(ask, Ask::Persist(Some(_))), "{ask:?}");
        rental.complete(NOW, id, Answer::Persisted(Ok(())));
        rental.next_ask().map(|(_, ask)| ask)
    }

    #[test]
    fn a_failed_volume_that_may_hold_data_is_kept_until_that_is_discarded() {
        let mut rental = rented(RentalStage::Released, true);
        assert_eq!(deletes(&mut rental), None);
        let ended = rental.next_ended();
        assert!(matches!(ended, Some(Ended::Step(_, StepOutcome::Refused(Refusal::Permanent(_))))), "{ended:?}");
        let (_, why) = rental.kept().expect("it is kept");
        assert!(why.contains("has failed"), "{why}");
        let discarded = rental.without_proof().expect("it may be discarded");
        rental.proof_discarded(discarded);
        let delete = Call::ChangeState(VolumeId("a".to_owned()), Transition::Delete);
        assert_eq!(deletes(&mut rental), Some(Ask::Provider(delete)));
    }

    #[test]
    fn another_volume_of_the_token_that_a_listing_has_shown_is_not_forgotten_though_it_could_not_be_recorded() {
        let mut rental = rented(RentalStage::Deleting, true);
        let twin = VolumeDescription {
            id: VolumeId("b".to_owned()),
            ..described(VolumeState::Deleting, Tags::from([(tag::TOKEN.to_owned(), "t".to_owned())]))
        };
        let a_is_gone = |rental: &mut Rental| {
            rental.begin(NOW, StepId(1), Step::Delete, None);
            assert_eq!(answers(rental, Answer::Owner(Ok(OwnerRecord::default()))), Ask::Owner);
            answers(rental, Answer::Described(Err(ProviderError::NotFound(VolumeId("a".to_owned())))));
        };
        a_is_gone(&mut rental);
        let asked = answers(&mut rental, Answer::Listed(Ok(vec![twin])));
        assert!(matches!(asked, Ask::Provider(Call::List { .. })), "{asked:?}");
        answers(&mut rental, Answer::Persisted(Err("no room".to_owned())));
        assert!(matches!(rental.next_ended(), Some(Ended::Step(_, StepOutcome::Refused(_)))));
        a_is_gone(&mut rental);
        let asked = rental.next_ask().map(|(_, ask)| ask);
        let Some(Ask::Persist(Some(record))) = asked else { panic!("{asked:?}") };
        assert_eq!(record.volume, Some(VolumeId("b".to_owned())));
    }
}
