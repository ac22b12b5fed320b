//! The loads: four of a kind, each at three capacities.

use std::time::Duration;

use surgetank_model::{Bytes, Iops};
use surgetank_planner::economy::Load;

/// A load at a capacity.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is.
    pub name: &'static str,
    /// What volume it runs on.
    pub size: &'static str,
    /// In figures.
    pub load: Load,
}

const SIZES: [(&str, u64); 3] = [("200 GiB", 200), ("2 TiB", 2048), ("16 TiB", 16_384)];
const HOUR: u64 = 3600;

/// A kind of load; arrays have one value for each capacity.
struct Kind {
    name: &'static str,
    burst_gib: [u64; 3],
    within_ms: [u64; 3],
    request_kib: u64,
    every_s: u64,
    bursts_month: u32,
    between: [u64; 3],
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "hourly checkpoints",
        burst_gib: [2, 10, 40],
        within_ms: [8_000, 10_240, 20_000],
        request_kib: 1024,
        every_s: HOUR,
        bursts_month: 730,
        between: [0; 3],
    },
    Kind {
        name: "nightly dump",
        burst_gib: [40, 400, 3000],
        within_ms: [300_000, 1_200_000, 3_600_000],
        request_kib: 1024,
        every_s: 24 * HOUR,
        bursts_month: 30,
        between: [0; 3],
    },
    // Six builds an hour, ten hours a day, 22 days a month.
    Kind {
        name: "CI builds",
        burst_gib: [2, 8, 30],
        within_ms: [10_000, 15_000, 20_000],
        request_kib: 256,
        every_s: 600,
        bursts_month: 1320,
        between: [20, 50, 100],
    },
    Kind {
        name: "database bulk loads",
        burst_gib: [10, 60, 300],
        within_ms: [60_000, 120_000, 300_000],
        request_kib: 256,
        every_s: 6 * HOUR,
        bursts_month: 121,
        between: [500, 2000, 6000],
    },
];

/// All of them, by kind and capacity.
pub fn all() -> Vec<Case> {
    let case = |kind: &Kind, index: usize| Case {
        name: kind.name,
        size: SIZES[index].0,
        load: Load {
            capacity: Bytes::from_gib(SIZES[index].1),
            burst: Bytes::from_gib(kind.burst_gib[index]),
            request: Bytes::new(kind.request_kib << 10),
            within: Duration::from_millis(kind.within_ms[index]),
            every: Duration::from_secs(kind.every_s),
            bursts_month: kind.bursts_month,
            between: (kind.between[index] > 0).then(|| Iops::new(kind.between[index])),
        },
    };
    KINDS.iter().flat_map(|kind| (0..SIZES.len()).map(move |index| case(kind, index))).collect()
}
