//! What a sample costs a controller, and how much it keeps for a device.

use anyhow::Context;
use serde_json::Value;

use crate::bar::{Bar, Limit};
use crate::bench::{Bench, Cores, Report};
use crate::product::number;

/// Microseconds of one core.
const SAMPLE_US: f64 = 20.0;
const STATE_KIB: f64 = 64.0;

/// Adds the rows: the worst of all loads.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let found = bench.cargo(Cores::One, "surgetank-policy", "sample", &[])?;
    let loads = found.get("loads").and_then(Value::as_array).context("the benchmark has measured no load")?;
    let worst = |place: &str| -> anyhow::Result<f64> {
        loads.iter().try_fold(0.0, |worst: f64, load| Ok(worst.max(number(load, place)?)))
    };
    let sample =
        Bar::new("a sample of adaptive, the slowest thousand", "µs", worst("/slowest_us")?, (SAMPLE_US, "the bar"));
    let state = Bar::new("what adaptive keeps for a device", "KiB", worst("/bytes")? / 1024.0, (STATE_KIB, "the bar"));
    report.add(sample.must_be(Limit::AtMost(1.0)));
    report.add(state.must_be(Limit::AtMost(1.0)));
    Ok(())
}
