//! What a run of an array did, or how it failed.

use std::ops::AddAssign;

use surgetank_model::Instant;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, event {event}, {at}: {what}\n  scenario: {scenario}\n  status: {status}")]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Event at which it showed.
    pub event: u64,
    /// Virtual time.
    pub at: Instant,
    /// What is wrong.
    pub what: String,
    /// The scenario's values.
    pub scenario: String,
    /// The engine's own view.
    pub status: String,
}

/// What runs did, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events handled.
    pub events: u64,
    /// Requests answered.
    pub requests: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Crashes of the process.
    pub process_crashes: u64,
    /// Crashes before all members were open.
    pub crashes_in_opening: u64,
    /// Crashes while a member was joining.
    pub crashes_in_copies: u64,
    /// I/Os that failed.
    pub faults: u64,
    /// Members replaced.
    pub replaced: u64,
    /// Joining members dropped.
    pub dropped: u64,
    /// Copies that a start went on with.
    pub resumed: u64,
    /// Replaced members that a start found, and that did not know.
    pub superseded: u64,
    /// Starts that found something to tell.
    pub degraded: u64,
    /// Starts that were refused, with a volume missing.
    pub refused: u64,
    /// Starts with a volume missing.
    pub withheld_starts: u64,
    /// Arrays that grew.
    pub grown: u64,
    /// Bytes copied to joining members, as far as they were counted at crashes.
    pub copied_bytes: u64,
}

impl Report {
    /// Crashes.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.power_cuts + self.process_crashes
    }
}

impl AddAssign<&Self> for Report {
    fn add_assign(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.errors += other.errors;
        self.power_cuts += other.power_cuts;
        self.process_crashes += other.process_crashes;
        self.crashes_in_opening += other.crashes_in_opening;
        self.crashes_in_copies += other.crashes_in_copies;
        self.faults += other.faults;
        self.replaced += other.replaced;
        self.dropped += other.dropped;
        self.resumed += other.resumed;
        self.superseded += other.superseded;
        self.degraded += other.degraded;
        self.refused += other.refused;
        self.withheld_starts += other.withheld_starts;
        self.grown += other.grown;
        self.copied_bytes += other.copied_bytes;
    }
}
