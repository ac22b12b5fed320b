//! The simulator's speed: events, checkpoints in flows, a large sweep.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use super::Bench;
use super::report::{Bar, Report, Row, median};
use crate::product;

/// What one core must do in a second.
const EVENTS_S: f64 = 5e6;
const CHECKPOINTS_S: f64 = 1e5;
/// Seconds on two cores for a sweep of 10,000 scenarios.
const SWEEP_S: f64 = 10.0;
/// 100 sizes of the cache times 100 lengths of the delay.
const SWEEP: [&str; 4] =
    ["--sweep", "caching.checkpoint_cache=2000..11900MiB/100", "--sweep", "policy.inactivity_delay=1..100s"];

/// Adds the rows.
///
/// # Errors
/// If a program fails.
pub fn run(bench: &Bench, root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let speed = ["bench", "--quiet", "--package", "surgetank-whatif", "--bench", "speed"];
    // Built on all cores, run on one.
    product::done(Command::new(&cargo).current_dir(root).args(speed).arg("--no-run"))?;
    let found = product::answer(product::one_core(cargo.as_ref()).current_dir(root).args(speed))?;
    for (name, field, least) in [
        ("events of the queue, one core", "events_per_s", EVENTS_S),
        ("fluid checkpoints (CM1, elastic), one core", "fluid_checkpoints_per_s", CHECKPOINTS_S),
    ] {
        let ours = found[field].as_f64().with_context(|| format!("no {field}"))?;
        report.rows.push(Row::new(name, "/s", ours, least, "the bar").bar(Bar::AtLeast(1.0)));
    }
    let mut times = Vec::new();
    for _ in 0..bench.rounds() {
        bench.interrupt.check()?;
        let begun = Instant::now();
        let mut sweep = Command::new(product::binary()?);
        sweep.current_dir(root).args(["simulate", "scenarios/cm1.toml"]).args(SWEEP).arg("--csv");
        product::done(sweep.arg(bench.directory.join("sweep.csv")))?;
        times.push(begun.elapsed().as_secs_f64());
    }
    report
        .rows
        .push(Row::new("sweep of 10,000 scenarios", "s", median(times), SWEEP_S, "the bar").bar(Bar::AtMost(1.0)));
    Ok(())
}
