//! Volumes that are members of an array: from when on what is on them counts, and until when. And those of a read cache, on which
//! nothing ever counts.
//!
//! The record is durable before the tag is set, and the tag before anything is written: whatever may count has both, and a copy
//! of the state directory that does not know of it finds the tag. The record says first that nothing counts any more.

use surgetank_model::Instant;
use surgetank_model::volume::{Tags, tag};
use surgetank_policy::{Refusal, StepId, StepOutcome};

use super::{Pause, Rental, Task, Walked, mixed_up, refused};
use crate::ask::{Answer, Ask, Call};
use crate::planted::{Bug, planted};
use crate::record::RentalStage;

impl Rental {
    /// Begins to write down that what is on the volume counts from now on, or does not any more.
    pub(crate) fn begin_counting(&mut self, now: Instant, id: StepId, counts: bool) {
        self.now = self.now.max(now);
        self.run(Task::Count(id, counts), None);
        self.advance();
    }

    /// Begins to write down that something is on the volume from now on, and never counts.
    pub(crate) fn begin_use(&mut self, now: Instant, id: StepId) {
        self.now = self.now.max(now);
        self.run(Task::Use(id), None);
        self.advance();
    }

    /// The open volume was given to somebody, who closes it.
    pub(crate) fn give(&mut self) {
        self.open = false;
    }

    /// Tags of the volume that is created next.
    pub(crate) fn set_tags(&mut self, tags: Tags) {
        self.tags = tags;
    }

    pub(super) fn note_use(&mut self) -> Walked<StepOutcome> {
        self.note(|record| {
            record.stage = RentalStage::Adopted;
            record.epoch = Some(record.token.clone());
            record.disposable = true;
        })?;
        Ok(StepOutcome::Done)
    }

    /// The name of the member is the token that its volume was created with.
    pub(super) fn count(&mut self) -> Walked<StepOutcome> {
        let (Some(id), Some(record)) = (self.volume(), self.record()) else {
            return Err(Pause::Refused(Refusal::Transient("the volume vanished".to_owned())));
        };
        let token = record.token.clone();
        if !planted(Bug::MemberNotPersisted) {
            self.note(|record| {
                record.stage = RentalStage::Adopting;
                record.epoch = Some(record.token.clone());
                record.disposable = false;
                record.discarded = None;
            })?;
        }
        let (key, value) = (tag::DIRTY_EPOCH.to_owned(), token);
        match self.ask(Ask::Provider(Call::SetTag { id, key, value }))? {
            Answer::Changed(Ok(_)) => {}
            Answer::Changed(Err(error)) => return Err(refused(error)),
            answer => return Err(mixed_up(&answer)),
        }
        self.note(|record| record.stage = RentalStage::Adopted)?;
        Ok(StepOutcome::Done)
    }

    /// Nothing on it counts: its array has another member in its place, or is no more, or never had it.
    pub(super) fn retire(&mut self) -> Walked<StepOutcome> {
        self.note(|record| {
            record.stage = RentalStage::Released;
            record.disposable = true;
            record.discarded.clone_from(&record.epoch);
        })?;
        Ok(StepOutcome::Done)
    }
}
