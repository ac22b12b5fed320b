//! What is written down: the record of the rental, and the owner with its tag.

use surgetank_cache::{EffectId, IoFailure, Outcome, Owner};
use surgetank_model::volume::{Change, ProviderError, VolumeId, VolumeState, tag};
use surgetank_rental::stripe;
use surgetank_rental::{Answer, AskId, OwnerWrite, RentalRecord, Slot};

use super::{ANSWER_MAX, Renting};
use crate::world::record::Entry;
use crate::world::{SimEvent, Step, World};

impl World<'_> {
    pub(super) fn persist_rental(&mut self, slot: Slot, record: Option<RentalRecord>) -> Step<Answer> {
        let fails = self.random.below(4) == 0 && self.fault();
        let written = !fails || self.random.below(2) == 0;
        let ended = record.is_none();
        self.check_tokens(slot, record.as_ref())?;
        if let Some(renting) = self.renting.as_mut().filter(|_| written) {
            self.report.rentals += u32::from(ended && renting.journal.contains_key(&slot));
            match record {
                Some(record) => drop(renting.journal.insert(slot, record)),
                None => drop(renting.journal.remove(&slot)),
            }
            self.copy_machine();
        }
        Ok(Answer::Persisted(if fails { Err("no space".to_owned()) } else { Ok(()) }))
    }

    /// Somebody discards what is on a volume that is kept for want of a proof.
    pub(super) fn discard_kept(&mut self) {
        let kept = |renting: &Renting| renting.process.rentals.cache().without_proof().is_some();
        if !self.faulty || !self.renting.as_ref().is_some_and(kept) || self.random.below(4) > 0 {
            return;
        }
        let fails = self.random.below(4) == 0 && self.fault();
        let written = !fails || self.random.below(2) == 0;
        let Some(renting) = &mut self.renting else { return };
        let rental = renting.process.rentals.cache_mut();
        let Some(record) = rental.without_proof() else { return };
        if written {
            renting.journal.insert(Slot::CACHE, record.clone());
        }
        if !fails {
            let tagged = record.volume.clone().and_then(|id| Some((renting.cloud.dirty_epoch(&id)?, id)));
            renting.discarded = tagged.map(|(epoch, id)| (id, epoch));
            rental.proof_discarded(record);
        }
    }

    /// What was discarded stays so, over any crash.
    pub(super) fn check_discarded(&self) -> Step {
        let Some(Renting { process, cloud, discarded: Some((id, epoch)), .. }) = &self.renting else { return Ok(()) };
        let kept = process
            .rentals
            .cache()
            .kept()
            .filter(|(kept, _)| kept == id && cloud.dirty_epoch(id).as_ref() == Some(epoch));
        match kept {
            Some((_, why)) => Err(format!("the volume {} is kept although its data was discarded: {why}", id.0)),
            None => Ok(()),
        }
    }

    /// A token names one volume for ever, and a volume that is listed is not forgotten.
    pub(super) fn check_tokens(&mut self, slot: Slot, record: Option<&RentalRecord>) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let begins = !renting.process.rentals.records().any(|record| record.slot == slot);
        let before = renting.journal.get(&slot).map(|record| record.token.clone());
        match (record, before) {
            (Some(record), _) if begins && !renting.tokens.insert(record.token.clone()) => {
                return Err(format!("the token {} was used before", record.token));
            }
            (None, Some(token)) if !token.is_empty() => {
                // The cloud itself knows what is there, whatever it tells.
                let named = renting.journal.get(&slot).and_then(|record| record.volume.as_ref());
                named.map_or(Ok(()), |id| renting.cloud.check_gone(id))?;
                let listed = renting.cloud.listed(now, tag::TOKEN, &token, true);
                let left = listed.iter().find(|volume| volume.state != VolumeState::Deleting);
                // One without a name that a listing from before did not show is the sweep's.
                if let Some(volume) = left.filter(|_| self.scenario.lags == 0.0) {
                    return Err(format!("the volume {} is forgotten, which is {:?}", volume.id.0, volume.state));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The owner record, once what is being written is durable.
    pub(super) fn owner_record(&mut self, id: AskId) -> Option<Answer> {
        let fails = self.random.below(4) == 0 && self.fault();
        let renting = self.renting.as_mut()?;
        if renting.is_busy_with_owner() {
            renting.process.waiting.push(id);
            return None;
        }
        let believed = renting.process.believed.clone();
        if renting.owner != believed {
            // A write that failed half-way is made good first.
            if fails {
                return Some(Answer::Owner(Err("no space".to_owned())));
            }
            renting.owner = believed.clone();
            self.owner = believed.owner.clone();
        }
        Some(Answer::Owner(Ok(believed.in_short())))
    }

    /// The engine has an owner written down.
    pub(in crate::world) fn write_owner(&mut self, id: EffectId, owner: Owner) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.writing = Some((id, None));
        let write = renting.process.writer.begin(owner);
        self.go_on_writing(write)
    }

    pub(super) fn go_on_writing(&mut self, write: OwnerWrite) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        match write {
            OwnerWrite::Tag { volume, epoch } => {
                renting.tagging = Some((volume, epoch));
                let after = self.soon(ANSWER_MAX);
                self.schedule(after, SimEvent::Tag);
                Ok(())
            }
            OwnerWrite::Record(record) => {
                let Some((id, writing)) = &mut renting.process.writing else { return Ok(()) };
                let (id, owner) = (*id, record.owner.clone());
                *writing = Some(record);
                self.record(id, Entry::Owner(owner))
            }
            OwnerWrite::Done(result) => {
                let Some((id, _)) = renting.process.writing.take() else { return Ok(()) };
                let waiting = std::mem::take(&mut renting.process.waiting);
                let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed(IoFailure::Io) };
                let touched = self.books.end(self.now, id, &outcome, None, None);
                self.touch(&touched);
                self.engine.complete(self.now, id, outcome);
                for id in waiting {
                    if let Some(answer) = self.owner_record(id) {
                        self.complete(id, answer);
                    }
                }
                self.drive()
            }
        }
    }

    /// The tag of the caching volume is set or removed.
    pub(in crate::world) fn tag(&mut self) -> Step {
        let tagging = self.renting.as_mut().and_then(|renting| renting.tagging.take());
        let Some((volume, epoch)) = tagging else { return Ok(()) };
        let text = epoch.map(|epoch| epoch.to_string());
        let members = stripe::members(&volume);
        let results = members.iter().map(|member| self.tag_member(member, text.as_deref())).collect();
        let result = stripe::tagged(&volume, text.is_some(), results);
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let write = renting.process.writer.written(result.map(drop).map_err(|error| error.to_string()));
        self.go_on_writing(write)
    }

    /// The process is gone: what it was tagging is tagged or not, each member for itself.
    pub(super) fn stop_tagging(&mut self) {
        let tagging = self.renting.as_mut().and_then(|renting| renting.tagging.take());
        let members = tagging.as_ref().map_or_else(Vec::new, |(volume, _)| stripe::members(volume));
        for member in members {
            let tagged = self.random.below(2) == 0;
            if let (true, Some(renting), Some((_, epoch))) = (tagged, &mut self.renting, &tagging) {
                let text = epoch.map(|epoch| epoch.to_string());
                // A volume that is gone needs no tag.
                let _ = renting.cloud.set_tag(self.now, &member, tag::DIRTY_EPOCH, text.as_deref());
            }
        }
    }

    fn tag_member(&mut self, id: &VolumeId, text: Option<&str>) -> Result<Change, ProviderError> {
        let fails = self.fault();
        let carried = !fails || self.random.below(2) == 0;
        let now = self.now;
        let absent = || ProviderError::NotFound(id.clone());
        let renting = self.renting.as_mut().filter(|_| carried);
        let set = renting.map_or(Ok(()), |renting| renting.cloud.set_tag(now, id, tag::DIRTY_EPOCH, text));
        match set {
            _ if fails => Err(ProviderError::Transient("a fault".to_owned())),
            set => set.map(|()| Change::Changed).map_err(|()| absent()),
        }
    }

    /// The write of the owner record has ended.
    pub(in crate::world) fn owner_recorded(&mut self, result: Result<(), String>) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if result.is_ok() {
            renting.process.believed = renting.owner.clone();
        }
        let write = renting.process.writer.written(result);
        self.go_on_writing(write)
    }
}
