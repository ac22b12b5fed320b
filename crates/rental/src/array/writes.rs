//! One record for all volumes of an array: what they and the array want to be durable is written together, one write at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Instant;

use super::record::{ArrayRecord, Facts};
use crate::ask::AskId;
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, Slot};

/// The pause after a write that failed.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct InFlight {
    id: AskId,
    record: Option<ArrayRecord>,
    /// Volumes that wait for it.
    answers: Vec<AskId>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes {
    durable: Option<ArrayRecord>,
    /// What is to be durable of the array; `None`: there is none.
    pub facts: Option<Facts>,
    /// What is to be durable of volumes.
    pending: BTreeMap<Slot, (AskId, Option<RentalRecord>)>,
    in_flight: Option<InFlight>,
    failed: Option<(Instant, String)>,
}

impl Writes {
    pub fn new(durable: Option<ArrayRecord>) -> Self {
        Self { facts: durable.as_ref().map(|record| record.facts.clone()), durable, ..Self::default() }
    }

    pub fn durable(&self) -> Option<&ArrayRecord> {
        self.durable.as_ref()
    }

    /// Whether what is to be durable of the array is.
    pub fn is_settled(&self) -> bool {
        self.durable.as_ref().map(|record| &record.facts) == self.facts.as_ref()
    }

    /// Why the last write failed.
    pub fn trouble(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, why)| &**why)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = !self.is_settled() && self.in_flight.is_none();
        self.failed.as_ref().filter(|_| waits).map(|(at, _)| *at)
    }

    /// A volume wants this to be durable.
    pub fn add(&mut self, id: AskId, record: Option<RentalRecord>) {
        self.pending.insert(id.slot, (id, record));
    }

    /// What is to be written now, under this name.
    pub fn next(&mut self, now: Instant, id: AskId) -> Option<Option<ArrayRecord>> {
        let pauses = self.failed.as_ref().is_some_and(|(at, _)| *at > now);
        if self.in_flight.is_some() || self.pending.is_empty() && (self.is_settled() || pauses) {
            return None;
        }
        let mut volumes: BTreeMap<Slot, RentalRecord> = BTreeMap::new();
        let durable = self.durable.iter().flat_map(|record| &record.volumes);
        volumes.extend(durable.map(|record| (record.slot, record.clone())));
        let mut answers = Vec::new();
        for (place, (id, record)) in std::mem::take(&mut self.pending) {
            answers.push(id);
            match record {
                Some(record) => _ = volumes.insert(place, record),
                None => _ = volumes.remove(&place),
            }
        }
        // With what the volumes say: one that counts no more is never on record without its successor.
        let durable = self.durable.as_ref().map(|record| record.facts.clone());
        let facts = if planted(Bug::RetiredBeforeRecorded) && !answers.is_empty() && durable.is_some() {
            durable
        } else {
            self.facts.clone()
        };
        let record = facts.map(|facts| ArrayRecord { facts, volumes: volumes.into_values().collect() });
        self.in_flight = Some(InFlight { id, record: record.clone(), answers });
        Some(record)
    }

    /// A write has ended. Answers which volumes waited for it; `None`: it was none of ours.
    pub fn complete(&mut self, now: Instant, id: AskId, result: &Result<(), String>) -> Option<Vec<AskId>> {
        let InFlight { record, answers, .. } = self.in_flight.take_if(|write| write.id == id)?;
        match result {
            Ok(()) => {
                self.durable = record;
                self.failed = None;
            }
            Err(why) => self.failed = Some((now + RETRY, why.clone())),
        }
        Some(answers)
    }
}
