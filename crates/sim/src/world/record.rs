//! The owner record, as the daemon keeps it for the engine: replaced whole, or told what was healed.

use std::time::Duration;

use surgetank_cache::{EffectId, Epoch, IoFailure, Outcome, Owner};

use crate::world::renting::Renting;
use crate::world::{SimEvent, Step, World};

/// What the engine wants to have on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Owner(Owner),
    Healed { epoch: Epoch, ranges: Vec<(u64, u64)> },
}

impl World<'_> {
    pub(super) fn record(&mut self, id: EffectId, entry: Entry) -> Step {
        // They may end in any order, so two that differ would race.
        if self.recording.iter().any(|(_, other)| *other != entry || matches!(entry, Entry::Healed { .. })) {
            return Err("the engine has two different records written at once".into());
        }
        match &entry {
            Entry::Owner(owner) => self.judge_owner(owner)?,
            Entry::Healed { epoch, ranges } => {
                // A record that accepts the loss may have been written though it failed.
                let accepted = self.accepting && self.owner == Owner::Backing;
                if !accepted && !matches!(&self.owner, Owner::Lost { epoch: of, .. } if of == epoch) {
                    return Err(format!("ranges are healed of {epoch:?}, but the owner is {:?}", self.owner));
                }
                self.report.healings += ranges.len() as u64;
            }
        }
        self.recording.push_back((id, entry));
        let after = Duration::from_micros(self.random.below(3_000));
        self.schedule(after, SimEvent::Recorded);
        Ok(())
    }

    /// The record has been written, or not; either may be told as a failure.
    pub(super) fn recorded(&mut self) -> Step {
        let (id, entry) = self.recording.pop_front().ok_or("a record was written twice")?;
        let is_owner = matches!(entry, Entry::Owner(_));
        let errors = self.scenario.trouble.filter(|_| self.faulty).map_or(0.0, |trouble| trouble.owner_errors);
        let outcome = if errors > 0.0 && self.random.chance(errors) {
            self.report.owner_failures += 1;
            self.record_in_part(entry);
            Outcome::Failed(IoFailure::Io)
        } else {
            match entry {
                Entry::Owner(owner) => self.replace_owner(owner),
                Entry::Healed { ranges, .. } => ranges.into_iter().for_each(|range| self.heal_owner(range)),
            }
            Outcome::Done
        };
        if is_owner && self.rents() {
            let failed = matches!(outcome, Outcome::Failed(_));
            return self.owner_recorded(if failed { Err("no space".to_owned()) } else { Ok(()) });
        }
        let touched = self.books.end(self.now, id, &outcome, None, None);
        self.touch(&touched);
        self.engine.complete(self.now, id, outcome);
        Ok(())
    }

    /// The daemon is gone: what it was writing is on record, or not.
    pub(super) fn interrupt_records(&mut self) {
        for (_, entry) in std::mem::take(&mut self.recording) {
            self.record_in_part(entry);
        }
    }

    fn replace_owner(&mut self, owner: Owner) {
        self.owner = owner;
        self.renting.iter_mut().for_each(Renting::recorded);
    }

    fn heal_owner(&mut self, range: (u64, u64)) {
        heal(&mut self.owner, range);
        if let Some(renting) = &mut self.renting {
            renting.healed(&self.owner);
        }
    }

    /// A record is replaced atomically, and each range that was healed is on record or not.
    fn record_in_part(&mut self, entry: Entry) {
        match entry {
            Entry::Owner(owner) => {
                if self.random.below(2) == 0 {
                    self.replace_owner(owner);
                }
            }
            Entry::Healed { ranges, .. } => {
                for range in ranges {
                    if self.random.below(2) == 0 {
                        self.heal_owner(range);
                    }
                }
            }
        }
    }
}

/// Takes a range out of those that are lost.
fn heal(owner: &mut Owner, (offset, length): (u64, u64)) {
    let Owner::Lost { ranges, .. } = owner else { return };
    let end = offset + length;
    *ranges = std::mem::take(ranges)
        .into_iter()
        .flat_map(|(from, bytes)| [(from, (from + bytes).min(offset)), (from.max(end), from + bytes)])
        .filter(|(from, to)| from < to)
        .map(|(from, to)| (from, to - from))
        .collect();
}
