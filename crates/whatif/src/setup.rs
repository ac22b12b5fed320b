//! What is simulated.

use std::time::Duration;

use surgetank_cache::ReadFill;
use surgetank_model::volume_type::Credits;
use surgetank_model::{Bytes, Limits};
use surgetank_planner::Mode;
use surgetank_planner::cost::Tariff;
use surgetank_planner::scenario::Latencies;
use surgetank_policy::{Prices, ValueOfTime};

use crate::scenario::per_gib_hour;

/// A run: an application, what it runs on, and how its volumes are steered.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Virtual machines that the application runs on, each with an elastic device of its own.
    pub vms: u32,
    /// What each of them does.
    pub application: Application,
    /// The backing volume of each.
    pub backing: Volume,
    /// What caching volumes are.
    pub caching: Caching,
    /// The controller's settings.
    pub policy: surgetank_policy::Config,
    /// How often the controller looks at its device, above zero.
    pub sampling: Duration,
    /// How fast and how well the provider works.
    pub provider: Latencies,
    /// What is drawn at random follows from this.
    pub seed: u64,
}

/// What a machine does, phase by phase; all machines meet after each.
#[derive(Clone, Debug, Default)]
pub struct Application {
    /// The phases, in order.
    pub phases: Vec<AppPhase>,
    /// So many of the first phases belong to the initial dump: completion is counted after them (journal, III-C).
    pub initial_phases: usize,
    /// Bytes of a request, above zero.
    pub request: Bytes,
    /// Requests in flight, above zero.
    pub depth: u32,
}

/// A phase of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppPhase {
    /// No I/O.
    Compute(Duration),
    /// Writes so many bytes and flushes.
    Write(Bytes),
    /// Reads so many bytes: those written last.
    Read(Bytes),
    /// From a trace: waits until this time after the start of the run, if it is not past, and begins to transfer so many
    /// bytes without waiting for them.
    Arrive {
        /// Time after the start of the run.
        at: Duration,
        /// Bytes read.
        read: Bytes,
        /// Bytes written.
        written: Bytes,
    },
    /// Waits until everything that has arrived is done.
    Finish,
}

/// A volume as rented for the whole run.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its size.
    pub size: Bytes,
    /// Its limits; the bandwidth is what AGBs count.
    pub limits: Limits,
    /// Its burst credits.
    pub credits: Option<Credits>,
    /// What it costs.
    pub tariff: Tariff,
}

/// What caching volumes are.
#[derive(Clone, Debug)]
pub struct Caching {
    /// Their limits: of a stripe, those of all its volumes together, beside the backing volume.
    pub limits: Limits,
    /// The same without a backing volume beside them, on a machine that limits what all its volumes move. Static-fast's volume has
    /// these.
    pub alone: Limits,
    /// What they cost. Static-fast's volume costs the same.
    pub tariff: Tariff,
    /// What read misses install.
    pub read_fill: ReadFill,
}

/// How exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fidelity {
    /// Request by request, through the production engine.
    #[default]
    Block,
    /// In flows.
    Fluid,
}

/// Why a simulation does not come to an end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stuck(pub String);

impl Setup {
    /// What both volumes cost in money, where that is known: a caching volume what one of the first size costs.
    #[must_use]
    pub fn prices(&self) -> Option<Prices> {
        Prices::known(
            self.backing.tariff.usd_per_hour(self.backing.size),
            per_gib_hour(&self.caching.tariff, self.policy.initial_size),
        )
    }

    /// Lets the controller judge boosts by bills, where all prices are known.
    pub fn judge_by_bills(&mut self) {
        if let Some(prices) = self.prices() {
            self.policy.judge_by_bills(&prices);
        }
    }

    /// Tells the controller what a second of delay is worth besides what the volumes cost in it: an application that waits
    /// keeps its backing volume for longer, and a trace does not wait. `false`: nothing has changed, for that needs a price that
    /// is not known, or it is infinite.
    pub fn value_delay(&mut self, value: ValueOfTime) -> bool {
        let waits = !self.application.phases.iter().any(|phase| matches!(phase, AppPhase::Arrive { .. }));
        let prices = self.prices();
        if !value.number().is_finite() || !self.policy.set_value_of_time(value, prices.as_ref()) {
            return false;
        }
        if waits {
            self.policy.value_of_time += self.backing.tariff.per_second(self.backing.size).agbs;
        }
        true
    }

    /// Machines that must be simulated: one stands for all that are alike.
    #[must_use]
    pub fn machines(&self) -> u32 {
        let alike = self.provider.jitter == 0.0 && self.provider.faults == 0.0;
        if alike { self.vms.min(1) } else { self.vms }
    }

    /// The volume that holds the data in this mode.
    #[must_use]
    pub fn disk(&self, mode: Mode) -> Volume {
        match mode {
            Mode::StaticSlow | Mode::Elastic => self.backing.clone(),
            Mode::StaticFast => Volume {
                size: self.backing.size,
                limits: self.caching.alone,
                credits: None,
                tariff: self.caching.tariff.clone(),
            },
        }
    }

    /// Bytes that the application moves in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of_phase = |phase: &AppPhase| match phase {
            AppPhase::Write(bytes) | AppPhase::Read(bytes) => bytes.get(),
            AppPhase::Arrive { read, written, .. } => read.get().saturating_add(written.get()),
            AppPhase::Compute(_) | AppPhase::Finish => 0,
        };
        self.application.phases.iter().map(of_phase).fold(0, u64::saturating_add)
    }
}
