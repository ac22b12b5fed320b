//! What the controller says of itself, and what it keeps over a restart.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::units::Span;
use surgetank_model::{Bytes, Instant};

use super::Config;
use crate::budget::{BudgetUse, PastRental};

/// Where an elastic device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Pass-through; nothing is rented.
    Idle,
    /// A caching volume is being created, attached or adopted; requests pass through.
    Attaching,
    /// A burst is absorbed.
    Boost,
    /// Dirty data go back to the backing volume, with priority.
    Drain,
    /// The caching volume is being released, detached or deleted.
    Detaching,
    /// The caching volume failed and is being released.
    Degraded,
}

/// What a boost is expected to come to, or came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The time that the application waits less.
    pub saved: Span,
    /// The caching volume's cost in AGBs.
    pub cost_agbs: u64,
}

impl Prediction {
    /// Of so many seconds and AGBs.
    #[must_use]
    pub fn of(saved_s: f64, cost_agbs: f64) -> Self {
        let saved = Duration::try_from_secs_f64(saved_s.max(0.0)).unwrap_or(Duration::MAX);
        Self { saved: Span(saved), cost_agbs: cost_agbs.max(0.0).round() as u64 }
    }
}

/// Why a boost was begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Utilization was this, which is above the threshold.
    Utilization(f64),
    /// The backing volume has not kept up while so much was written, and the rest of the burst is expected to pay.
    Saturation {
        /// Bytes that the burst has written.
        written: Bytes,
    },
    /// A burst is expected, at the latest then.
    Forecast {
        /// Later than that the forecast was wrong.
        until: Instant,
    },
    /// A user asked for it.
    Request,
}

impl Cause {
    pub(super) fn sentence(&self, now: Instant, config: &Config, predicted: Option<&Prediction>) -> String {
        let backing = config.backing_bandwidth.as_mib_s();
        let cause = match self {
            Self::Utilization(utilization) => format!(
                "utilization is {:.0} % of {backing:.0} MiB/s, above the threshold of {:.0} %",
                utilization * 100.0,
                config.utilization_threshold * 100.0
            ),
            Self::Saturation { written } => {
                format!("the backing volume is saturated, and a burst has written {:.0} MiB", written.as_mib())
            }
            Self::Forecast { until } => {
                format!("a burst is expected within {:.0} s, as the last ones came", until.since(now).as_secs_f64())
            }
            Self::Request => "somebody asked for it".to_owned(),
        };
        match predicted {
            Some(predicted @ Prediction { saved, cost_agbs }) => {
                let (saved, compared) = (saved.0.as_secs_f64(), config.compared(predicted));
                format!("{cause}; it is expected to save {saved:.0} s of waiting for {cost_agbs} AGBs{compared}")
            }
            None => cause,
        }
    }
}

/// A snapshot for people and reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Where the device is.
    pub phase: Phase,
    /// Application throughput over the last sampling interval ÷ the backing volume's bandwidth.
    pub utilization: f64,
    /// Size of the caching volume that is rented (or being rented) now.
    pub cache_size: Option<Bytes>,
    /// Size of the next one.
    pub next_size: Bytes,
    /// Boosts since the device was made (counts adopted caching volumes).
    pub boosts: u64,
    /// Why it does not boost now, what it is trying again, or why the last boost did not begin; one sentence for people.
    pub backing_off: Option<String>,
    /// When it tries again.
    pub retry_in: Option<Span>,
    /// When the boost for a burst that was announced is to begin.
    pub announced_in: Option<Span>,
    /// Use of the budget: hour, day.
    pub budget: [BudgetUse; 2],
}

/// One finished boost. Instants that were not reached are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoostRecord {
    /// Size of its caching volume, as large as it became.
    pub size: Bytes,
    /// The same, on average over the time that it was rented.
    pub mean_size: Bytes,
    /// What it was billed as, in order, and from when: several sizes if it grew.
    pub sizes: Vec<(Bytes, Instant)>,
    /// `Create` was asked for (the bill starts).
    pub started: Instant,
    /// The engine began to absorb.
    pub adopted: Option<Instant>,
    /// The last drain began.
    pub drain_started: Option<Instant>,
    /// The engine released the volume.
    pub released: Option<Instant>,
    /// `Delete` was done (the bill ends).
    pub ended: Instant,
    /// Most bytes of the cache in use.
    pub high_water: Bytes,
    /// Bytes that a larger cache would have taken.
    pub evicted: Bytes,
    /// Its caching volume was there, or may have been.
    pub was_there: bool,
    /// Why its caching volume never came into use; for people. `None`: it did, or nobody refused it.
    pub refused: Option<String>,
    /// What it was expected to come to; `None`: nobody asked, as for the papers' controller or a boost on request.
    pub predicted: Option<Prediction>,
    /// What it came to: what it moved beyond what the backing volume can tells what it saved.
    pub observed: Prediction,
}

impl BoostRecord {
    /// The sizes that it was billed as, and for how long each.
    pub fn held(&self) -> impl Iterator<Item = (Bytes, Duration)> {
        sizes_held(&self.sizes, self.ended)
    }

    /// From `Create` to the first absorbed write.
    #[must_use]
    pub fn attach_time(&self) -> Option<Duration> {
        self.adopted.map(|adopted| adopted.since(self.started))
    }

    /// From the first absorbed write to the last drain.
    #[must_use]
    pub fn absorb_time(&self) -> Option<Duration> {
        Some(self.drain_started.or(self.released)?.since(self.adopted?))
    }

    /// From the last drain to the release.
    #[must_use]
    pub fn drain_time(&self) -> Option<Duration> {
        Some(self.released?.since(self.drain_started?))
    }
}

/// For how long a volume had each of its sizes that was deleted then.
pub fn sizes_held(sizes: &[(Bytes, Instant)], ended: Instant) -> impl Iterator<Item = (Bytes, Duration)> {
    let until = sizes.iter().skip(1).map(|(_, from)| *from).chain([ended]);
    sizes.iter().zip(until).map(|((size, from), until)| (*size, until.since(*from)))
}

/// What a controller has learned; the driver persists it and passes it at the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// Size of the next caching volume; `None`: nothing learned yet.
    pub next_size: Option<Bytes>,
    /// Boosts so far.
    pub boosts: u64,
    /// Bytes written in the last bursts, oldest first.
    pub bursts: Vec<Bytes>,
    /// Times from the end of a burst to the onset of the next, oldest first.
    pub pauses: Vec<Span>,
    /// Times from onset to onset, oldest first.
    pub periods: Vec<Span>,
    /// Time from asking for a volume to using it.
    pub lead: Option<Span>,
    /// What boosts have saved, in AGBs, without what they cost.
    pub saved_agbs: u64,
    /// What boosts in vain have cost, as far as it is not paid off, in AGBs.
    pub debt_agbs: u64,
    /// Rentals of the last day, for the budget, relative to the moment of the snapshot.
    pub rentals: Vec<PastRental>,
}

impl Learned {
    /// The same after `downtime`. A driver that does not know the downtime may leave this out: the budget is then
    /// only stricter than it need be.
    #[must_use]
    pub fn aged(mut self, downtime: Duration) -> Self {
        for rental in &mut self.rentals {
            rental.started_ago = Span(rental.started_ago.0.saturating_add(downtime));
        }
        self
    }
}

/// Where a controller starts after a restart in the middle of a boost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeAt {
    /// `Create` may have been carried out; the volume is not attached. It is deleted.
    Created {
        /// Size of the volume.
        size: Bytes,
    },
    /// The volume may be attached, and the engine holds nothing on it. It is detached and deleted.
    Attached {
        /// Size of the volume.
        size: Bytes,
    },
    /// The engine has recovered the volume and may hold dirty data on it. It is drained and released.
    Adopted {
        /// Size of the volume.
        size: Bytes,
    },
}

/// Why a hint was not followed; one sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HintRefused(pub String);
