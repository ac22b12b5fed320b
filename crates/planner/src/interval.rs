//! How often to write checkpoints (Young's first-order rule, Young74, with elastic bandwidth).
//!
//! W = √(2·t·MTBF) wastes the least time, t being what a checkpoint takes. It wastes the least money if t is what a
//! checkpoint costs in time of the backing volume: t + Bc·M·D/(Bb·N). The drain must end before the next checkpoint, so
//! W is at least S/Bb.

use std::time::Duration;

use serde::Serialize;
use surgetank_model::{Bandwidth, Bytes};

use crate::fluid::{Absorb, Pipes};

/// A checkpoint and how often machines fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpointing {
    /// S, of one VM.
    pub checkpoint: Bytes,
    /// At which a checkpoint is written.
    pub throughput: Bandwidth,
    /// Mean time between failures.
    pub mtbf: Duration,
    /// The elastic device, if there is one.
    pub elastic: Option<ElasticDevice>,
}

/// An elastic device that checkpoints are written to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElasticDevice {
    /// Its bandwidths.
    pub pipes: Pipes,
    /// N.
    pub backing_size: Bytes,
    /// M.
    pub cache: Bytes,
    /// How it absorbs.
    pub absorb: Absorb,
}

/// How often to write checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Compute between checkpoints that wastes the least time.
    pub interval_s: f64,
    /// What a checkpoint takes.
    pub checkpoint_s: f64,
    /// Compute between checkpoints that costs the least; `None`: no elastic device.
    pub cost_interval_s: Option<f64>,
    /// The drain takes so long; no interval is shorter. `None`: no elastic device.
    pub drain_s: Option<f64>,
}

/// Young's interval.
#[must_use]
pub fn interval(of: &Checkpointing) -> Interval {
    let checkpoint_s = of.checkpoint.as_mib() / of.throughput.as_mib_s();
    let young = |seconds: f64| (2.0 * seconds * of.mtbf.as_secs_f64()).sqrt();
    let Some(device) = &of.elastic else {
        return Interval { interval_s: young(checkpoint_s), checkpoint_s, cost_interval_s: None, drain_s: None };
    };
    let drain_s = of.checkpoint.as_mib() / device.pipes.backing.as_mib_s();
    let burst = device.pipes.burst(of.checkpoint, device.cache, device.absorb);
    let cached = device.pipes.caching.as_mib_s() * device.cache.as_gib() * burst.occupied_s;
    let costs_s = checkpoint_s + cached / (device.pipes.backing.as_mib_s() * device.backing_size.as_gib());
    Interval {
        interval_s: young(checkpoint_s).max(drain_s),
        checkpoint_s,
        cost_interval_s: Some(young(costs_s).max(drain_s)),
        drain_s: Some(drain_s),
    }
}
