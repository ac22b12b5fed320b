//! The scenarios of the regret bench, one a row. Rows are added, never changed or moved from one set to the other: what
//! held-out rows show would mean nothing if controllers were made for them.

use super::loads::{
    Load, application, bursts, dumped, exponential, pulse, random_bursts, random_series, read_back, series, then,
};

/// What a row may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Set {
    /// To make controllers better.
    Training,
    /// To judge them.
    HeldOut,
}

use Set::{HeldOut, Training};

/// A scenario.
pub struct Scenario {
    pub name: &'static str,
    pub set: Set,
    pub load: fn() -> Load,
    /// What differs from [`PLATFORM`], as keys of a scenario file.
    pub platform: &'static str,
}

/// The papers' volumes (journal, IV-A), the latencies that their tables imply.
pub const PLATFORM: &str = r#"
backing = { size = "50 GiB", bandwidth = "33 MiB/s" }
caching = { bandwidth = "128 MiB/s" }
provider = { create_s = 4, attach_s = 4, detach_s = 2, delete_s = 1 }
"#;

/// Half an hour is the least that anybody is billed for; costs are money.
const HALF_HOURS: &str = r#"
backing = { volume_type = "aws/gp3" }
caching = { volume_type = "aws/gp3" }
minimum = "30 min"
"#;
/// gp2 of 50 GiB: 150 operations a second, 3,000 while 5.4 million credits last.
const CREDITS: &str = r#"
backing = { size = "50 GiB", bandwidth = "100 MiB/s" }
caching = { bandwidth = "250 MiB/s" }
credits = { baseline = 20, burst = 100, bucket = 20000 }
"#;
const ATTACH_60: &str = "provider = { attach_s = 60 }";

/// The provider grows volumes in place.
const GROWS: &str = "provider = { grow_s = 5 }";

const GIB: f64 = 1024.0;

const fn row(name: &'static str, set: Set, load: fn() -> Load, platform: &'static str) -> Scenario {
    Scenario { name, set, load, platform }
}

pub const SCENARIOS: &[Scenario] = &[
    // Applications: they wait for what they write.
    row("cm1", Training, || dumped(5.0 * GIB, [(1100.0 / 3.0, 4.0 * GIB); 3]), ""),
    row("lammps", HeldOut, || dumped(4.0 * GIB, [(460.0, 3.0 * GIB); 3]), ""),
    row("regular", Training, || bursts(20, |_| (180.0, 2.0 * GIB)), ""),
    row("regular, attach of 60 s", Training, || bursts(20, |_| (180.0, 1.0 * GIB)), ATTACH_60),
    row("regular and rare", HeldOut, || bursts(12, |_| (1200.0, 5.0 * GIB)), ""),
    row("drifting apart", Training, || bursts(25, |number| (60.0 + 12.0 * number, 2.0 * GIB)), ""),
    row("drifting together", HeldOut, || bursts(25, |number| (400.0 - 14.0 * number, 2.0 * GIB)), ""),
    row(
        "bimodal sizes",
        Training,
        || bursts(24, |number| (240.0, if number % 2.0 == 0.0 { 1.0 } else { 6.0 } * GIB)),
        "",
    ),
    row(
        "bimodal intervals",
        HeldOut,
        || bursts(24, |number| (if number % 3.0 == 2.0 { 700.0 } else { 90.0 }, 2.0 * GIB)),
        "",
    ),
    row("growing", Training, || bursts(14, |number| (300.0, (1.0 + number) * GIB)), ""),
    row("shrinking", HeldOut, || bursts(14, |number| (300.0, (10.0 - 0.7 * number) * GIB)), ""),
    row("single", Training, || application([(120.0, 6.0 * GIB), (900.0, 0.0)]), ""),
    row("single and large", HeldOut, || then(application([(60.0, 30.0 * GIB)]), 1800.0), ""),
    row("tiny", Training, || bursts(120, |_| (20.0, 48.0)), ""),
    row("small and frequent", HeldOut, || bursts(80, |_| (45.0, 300.0)), ""),
    row("larger than any cache", Training, || bursts(6, |_| (900.0, 20.0 * GIB)), "size_max = \"4 GiB\""),
    row("above what pays", HeldOut, || bursts(6, |_| (1500.0, 16.0 * GIB)), ""),
    row("back to back", Training, || bursts(12, |_| (15.0, 4.0 * GIB)), ""),
    row(
        "back to back in groups",
        HeldOut,
        || bursts(20, |number| (if number % 4.0 == 0.0 { 900.0 } else { 20.0 }, 2.5 * GIB)),
        "",
    ),
    row("back to back, volumes that grow", Training, || bursts(12, |_| (15.0, 4.0 * GIB)), GROWS),
    row("growing, volumes that grow", Training, || bursts(14, |number| (300.0, (1.0 + number) * GIB)), GROWS),
    row(
        "small, then large, volumes that grow",
        Training,
        || bursts(12, |number| (300.0, if number < 8.0 { 1.0 } else { 8.0 } * GIB)),
        GROWS,
    ),
    row("written and read back", Training, || read_back(bursts(10, |_| (300.0, 3.0 * GIB)), 3.0 * GIB), ""),
    row(
        "faulty provider",
        Training,
        || bursts(16, |_| (300.0, 3.0 * GIB)),
        "provider = { faults = 0.3, jitter = 0.5 }",
    ),
    row(
        "slow and faulty provider",
        HeldOut,
        || bursts(16, |_| (400.0, 3.0 * GIB)),
        "provider = { create_s = 20, attach_s = 30, faults = 0.2, jitter = 1.0 }",
    ),
    row("minimum billing", Training, || bursts(20, |_| (300.0, 3.0 * GIB)), HALF_HOURS),
    row("minimum billing, rare", HeldOut, || bursts(8, |_| (2400.0, 6.0 * GIB)), HALF_HOURS),
    row("credits", Training, || bursts(16, |_| (240.0, 4.0 * GIB)), CREDITS),
    row(
        "irregular",
        Training,
        || random_bursts(1, 30, |random| (exponential(random, 300.0), exponential(random, 3.0 * GIB))),
        "",
    ),
    row(
        "irregular, again",
        HeldOut,
        || random_bursts(2, 30, |random| (exponential(random, 200.0), exponential(random, 2.0 * GIB))),
        "",
    ),
    row("an ended application", Training, || then(bursts(8, |_| (150.0, 3.0 * GIB)), 10_800.0), ""),
    row(
        "fast volumes",
        HeldOut,
        || bursts(20, |_| (120.0, 12.0 * GIB)),
        "backing = { size = \"500 GiB\", bandwidth = \"120 MiB/s\" }\ncaching = { bandwidth = \"500 MiB/s\" }",
    ),
    row(
        "a change of pace",
        Training,
        || bursts(30, |number| (if number < 15.0 { 120.0 } else { 420.0 }, 2.0 * GIB)),
        "",
    ),
    // Loads that do not wait.
    row("steady below the threshold of use", Training, || series(7200, |_| (0.0, 8.0)), ""),
    row("steady at half", Training, || series(7200, |_| (0.0, 16.5)), ""),
    row("steady at nine tenths", HeldOut, || series(7200, |_| (0.0, 29.7)), ""),
    row("reads only", Training, || series(7200, |second| (pulse(second, (600.0, 60.0, 30.0), 128.0), 0.0)), ""),
    row("cold reads", Training, || series(7200, |second| (25.0 + pulse(second, (900.0, 60.0, 20.0), 60.0), 0.2)), ""),
    row(
        "reads with a few writes",
        HeldOut,
        || series(7200, |second| (18.0, pulse(second, (1200.0, 100.0, 4.0), 200.0))),
        "",
    ),
    row(
        "split by the page cache",
        Training,
        || {
            series(7200, |second| {
                (0.0, pulse(second % 600.0, (35.0, 0.0, 3.0), 230.0) * f64::from(u8::from(second % 600.0 < 120.0)))
            })
        },
        "",
    ),
    row(
        "merged by the page cache",
        HeldOut,
        || {
            series(7200, |second| {
                (0.0, pulse(second, (450.0, 30.0, 8.0), 450.0) + pulse(second, (900.0, 35.0, 8.0), 400.0))
            })
        },
        "",
    ),
    row("open and regular", Training, || series(10_800, |second| (0.0, pulse(second, (300.0, 20.0, 10.0), 250.0))), ""),
    row(
        "open and regular, attach of 60 s",
        HeldOut,
        || series(10_800, |second| (0.0, pulse(second, (300.0, 20.0, 10.0), 250.0))),
        ATTACH_60,
    ),
    row(
        "overloaded for half an hour",
        Training,
        || series(7200, |second| (0.0, pulse(second, (7200.0, 600.0, 1800.0), 45.0))),
        "",
    ),
    row(
        "overloaded for half an hour, volumes that grow",
        Training,
        || series(7200, |second| (0.0, pulse(second, (7200.0, 600.0, 1800.0), 45.0))),
        GROWS,
    ),
    row(
        "overloaded for twenty minutes, volumes that grow",
        HeldOut,
        || series(5400, |second| (0.0, pulse(second, (5400.0, 900.0, 1200.0), 52.0))),
        "provider = { grow_s = 20 }",
    ),
    row("waves", HeldOut, || series(14_400, |second| (0.0, 24.0 + 22.0 * (second / 573.0).sin())), ""),
    row(
        "two seasons",
        Training,
        || {
            series(14_400, |second| {
                (0.0, pulse(second, (120.0, 10.0, 3.0), 250.0) + pulse(second, (1800.0, 900.0, 20.0), 300.0))
            })
        },
        "",
    ),
    row(
        "rare and large",
        Training,
        || series(43_200, |second| (0.0, pulse(second, (21_600.0, 3000.0, 40.0), 200.0))),
        "",
    ),
    row(
        "long pulses below the backing volume",
        Training,
        || series(7200, |second| (0.0, pulse(second, (300.0, 60.0, 90.0), 22.0))),
        "",
    ),
    row("noise", Training, || random_series(3, 7200, |random, _| (0.0, exponential(random, 14.0))), ""),
    row(
        "noise with spikes",
        HeldOut,
        || {
            random_series(4, 7200, |random, _| {
                (exponential(random, 5.0), exponential(random, 8.0) + if random.chance(0.002) { 2500.0 } else { 0.0 })
            })
        },
        "",
    ),
];
