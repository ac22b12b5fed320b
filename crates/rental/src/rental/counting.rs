//! Volumes that are members of an array: from when on what is on them counts, and until when.
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

    /// Tags of the volume that is created next.
    pub(crate) fn set_tags(&mut self, tags: Tags) {
        self.tags = tags;
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
            Answer::Changed(Ok(())) => {}
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
