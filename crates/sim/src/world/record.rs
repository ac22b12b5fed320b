//! The owner record, as the daemon keeps it for the engine: replaced whole, or told what was healed.

use std::time::Duration;

use surgetank_cache::{EffectId, Epoch, IoFailure, Outcome, Owner};

use crate::world::{Happening, Step, World};

/// What the engine wants to have on record.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Owner(Owner),
    Healed { epoch: Epoch, ranges: Vec<(u64, u64)> },
}

impl World<'_> {
    pub(super) fn record(&mut self, id: EffectId, entry: Entry) -> Step {
        // They may end in any order, so two would race.
        let same = |other: &Entry| matches!((other, &entry), (Entry::Owner(one), Entry::Owner(two)) if one == two);
        if !self.recording.iter().all(|(_, other)| same(other)) {
            return Err("the engine has two different records written at once".into());
        }
        if let Entry::Healed { epoch, ranges } = &entry {
            // A record that accepts the loss may have been written though it failed.
            let accepted = self.accepting && self.owner == Owner::Backing;
            if !accepted && !matches!(&self.owner, Owner::Lost { epoch: of, .. } if of == epoch) {
                return Err(format!("ranges are healed of {epoch:?}, but the owner is {:?}", self.owner));
            }
            self.report.healings += ranges.len() as u64;
        }
        self.recording.push_back((id, entry));
        let after = Duration::from_micros(self.random.below(3_000));
        self.schedule(after, Happening::Recorded);
        Ok(())
    }

    pub(super) fn recorded(&mut self) -> Step {
        let (id, entry) = self.recording.pop_front().ok_or("a record was written twice")?;
        let errors = self.scenario.trouble.filter(|_| self.faulty).map_or(0.0, |trouble| trouble.record_errors);
        if errors > 0.0 && matches!(self.owner, Owner::Lost { .. }) && self.random.chance(errors) {
            self.report.record_errors += 1;
            self.faults_until = self.next_request;
            self.record_in_part(entry);
            self.engine.complete(self.now, id, Outcome::Failed(IoFailure::Io));
            return Ok(());
        }
        match entry {
            Entry::Owner(owner) => self.owner = owner,
            Entry::Healed { ranges, .. } => ranges.into_iter().for_each(|range| heal(&mut self.owner, range)),
        }
        self.engine.complete(self.now, id, Outcome::Done);
        Ok(())
    }

    /// The daemon is gone: what it was writing is on record, or not.
    pub(super) fn interrupt_records(&mut self) {
        for (_, entry) in std::mem::take(&mut self.recording) {
            self.record_in_part(entry);
        }
    }

    /// A record is replaced atomically, and each range that was healed is on record or not.
    fn record_in_part(&mut self, entry: Entry) {
        match entry {
            Entry::Owner(owner) => {
                if self.random.below(2) == 0 {
                    self.owner = owner;
                }
            }
            Entry::Healed { ranges, .. } => {
                for range in ranges {
                    if self.random.below(2) == 0 {
                        heal(&mut self.owner, range);
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
