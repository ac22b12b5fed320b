//! The simulator's speed: events, checkpoints in flows, a large sweep.

use std::process::Command;
use std::time::Instant;

use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit, median};
use crate::product::{number, tree};

/// What one core must do in a second.
const EVENTS_S: f64 = 5e6;
const CHECKPOINTS_S: f64 = 1e5;
/// Seconds on two cores for a sweep of 10,000 scenarios.
const SWEEP_S: f64 = 10.0;
/// 100 sizes of the cache times 100 lengths of the delay.
const SWEEP: [&str; 4] =
    ["--sweep", "caching.checkpoint_cache=2000..11900MiB/100", "--sweep", "policy.inactivity_delay=1..100s"];

/// Adds the rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let found = bench.cargo(Cores::One, "surgetank-whatif", "speed", &[])?;
    for (name, place, least) in [
        ("events of the queue, one core", "/events_per_s", EVENTS_S),
        ("fluid checkpoints (CM1, elastic), one core", "/fluid_checkpoints_per_s", CHECKPOINTS_S),
    ] {
        let bar = Bar::new(name, "/s", number(&found, place)?, (least, "the bar"));
        report.add(bar.must_be(Limit::AtLeast(1.0)));
    }
    let mut times = Vec::new();
    for _ in 0..bench.rounds() {
        let mut sweep = Command::new(&bench.surgetank);
        sweep.current_dir(tree()).args(["simulate", "scenarios/cm1.toml"]).args(SWEEP).arg("--csv");
        let begun = Instant::now();
        bench.interrupt.run(sweep.arg(bench.directory.join("sweep.csv")))?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let bar = Bar::new("sweep of 10,000 scenarios", "s", median(times), (SWEEP_S, "the bar"));
    report.add(bar.must_be(Limit::AtMost(1.0)));
    Ok(())
}
