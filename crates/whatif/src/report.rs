//! What a simulated run came to.

use std::time::Duration;

use surgetank_model::cost::Cost;
use surgetank_model::{Bytes, Instant};
use surgetank_planner::Mode;
use surgetank_policy::{BoostRecord, Prediction, sizes_held};

use crate::bursts::Burst;
use crate::setup::AppPhase;
use crate::volume::Traffic;

/// A finished boost of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boost {
    /// Size of the caching volume.
    pub size: Bytes,
    /// What it was billed as, in order, and from when: several sizes if it grew.
    pub sizes: Vec<(Bytes, Instant)>,
    /// The bill began.
    pub started: Instant,
    /// The bill ended.
    pub ended: Instant,
    /// From `Create` to the first absorbed write; `None` if it never came to that.
    pub attach: Option<Duration>,
    /// From there to the last drain.
    pub absorb: Option<Duration>,
    /// From there to the release.
    pub drain: Option<Duration>,
    /// Most bytes of the cache in use.
    pub high_water: Bytes,
    /// Bytes that a larger cache would have taken.
    pub evicted: Bytes,
    /// What it was expected to come to, if the policy asks.
    pub predicted: Option<Prediction>,
    /// What it came to, as the controller saw it; nothing where none did.
    pub observed: Prediction,
}

impl Boost {
    /// The sizes that it was billed as until then, and for how long each.
    pub fn held(&self, until: Instant) -> impl Iterator<Item = (Bytes, Duration)> {
        let until = until.min(self.ended);
        sizes_held(&self.sizes, self.ended)
            .zip(&self.sizes)
            .map(move |((size, held), (_, from))| (size, held.min(until.since(*from))))
    }
}

/// When a phase took place; it ends when the last machine is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseTime {
    /// Which.
    pub phase: AppPhase,
    /// Its start.
    pub from: Instant,
    /// Its end.
    pub until: Instant,
}

impl PhaseTime {
    /// How long it took.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.until.since(self.from)
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it was run.
    pub mode: Mode,
    /// The end of the initial dump.
    pub counted_from: Instant,
    /// The application's end. What drains afterwards costs, but nobody waits for it.
    pub end: Instant,
    /// When each phase took place.
    pub phases: Vec<PhaseTime>,
    /// For how long arrivals of a trace were late, on average over the machines.
    pub late: Duration,
    /// Cost of one machine, on average.
    pub cost: Cost,
    /// Cost of all machines.
    pub cost_total: Cost,
    /// The first machine's boosts.
    pub boosts: Vec<Boost>,
    /// When the bursts of a replayed load were served.
    pub bursts: Vec<Burst>,
    /// The first machine's I/O.
    pub traffic: Traffic,
    /// Time in which the first machine's application had I/O outstanding.
    pub busy: Duration,
    /// Machines that were simulated; one stands for all if all are alike.
    pub simulated_vms: u32,
    /// Events handled.
    pub events: u64,
}

impl RunReport {
    /// From the end of the initial dump to the application's end.
    #[must_use]
    pub fn completion(&self) -> Duration {
        self.end.since(self.counted_from)
    }

    /// The application's time with the initial dump.
    #[must_use]
    pub fn wall(&self) -> Duration {
        self.end.since(Instant::ZERO)
    }

    /// Time lost against a backing volume that is infinitely fast: what an application waited for its I/O, the initial dump's
    /// included, or for how long a trace's device was late.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let waited = self.phases.iter().filter(|phase| matches!(phase.phase, AppPhase::Write(_) | AppPhase::Read(_)));
        waited.map(PhaseTime::time).sum::<Duration>() + self.late
    }

    /// MiB/s that a machine wrote in its write phases, as the application saw it; `None` if it wrote nothing.
    #[must_use]
    pub fn write_mib_s(&self) -> Option<f64> {
        let (mut bytes, mut time) = (0.0, 0.0);
        for phase in &self.phases {
            if let AppPhase::Write(written) = phase.phase {
                bytes += written.as_mib();
                time += phase.time().as_secs_f64();
            }
        }
        (time > 0.0).then(|| bytes / time)
    }
}

/// A boost, from the controller's record of it.
pub(crate) fn boost(record: BoostRecord) -> Boost {
    Boost {
        size: record.size,
        started: record.started,
        ended: record.ended,
        attach: record.attach_time(),
        absorb: record.absorb_time(),
        drain: record.drain_time(),
        sizes: record.sizes,
        high_water: record.high_water,
        evicted: record.evicted,
        predicted: record.predicted,
        observed: record.observed,
    }
}
