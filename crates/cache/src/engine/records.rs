//! What is on record outside the caching volume: one write after the other.

use super::{Engine, Pending};
use crate::effect::{Effect, Owner};
use crate::format::Epoch;

/// Who has the owner record persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorder {
    /// The step of the life cycle with this serial.
    Step(u64),
    /// What was healed of a loss.
    Loss,
}

/// What is said of the newest data outside the caching volume.
#[derive(Debug)]
pub(super) enum Note {
    Owner(Owner),
    Healed { epoch: Epoch, ranges: Vec<(u64, u64)> },
}

impl Engine {
    /// Has the owner record persisted, after those that were asked for before.
    pub(super) fn persist_owner(&mut self, recorder: Recorder, owner: Owner) {
        self.persist(recorder, Note::Owner(owner));
    }

    pub(super) fn persist(&mut self, recorder: Recorder, note: Note) {
        self.owners.push_back((recorder, note));
        self.next_owner();
    }

    pub(super) fn next_owner(&mut self) {
        while !self.owner_in_flight {
            let Some((recorder, note)) = self.owners.pop_front() else { return };
            let discarded = match recorder {
                Recorder::Step(serial) => serial != self.step_serial,
                Recorder::Loss => self.loss.is_none(),
            };
            if !discarded {
                self.owner_in_flight = true;
                let id = self.pending.insert(Pending::Owner(recorder));
                self.effects.push_back(match note {
                    Note::Owner(owner) => Effect::PersistOwner { id, owner },
                    Note::Healed { epoch, ranges } => Effect::RecordHealed { id, epoch, ranges },
                });
            }
        }
    }
}
