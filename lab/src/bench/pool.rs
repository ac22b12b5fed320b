//! The staging pool's decisions: how long a manager takes to place a file.

use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit};
use crate::product::number;

/// Microseconds in which a file is placed on some of 3,000 benefactors.
const PLACED_US: f64 = 1000.0;

/// Adds the row.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let found = bench.cargo(Cores::One, "surgetank-pool-core", "placement", &[])?;
    let name = "a file placed among 3,000 benefactors, mean";
    let bar = Bar::new(name, "µs", number(&found, "/mean_us")?, (PLACED_US, "the bar"));
    report.add(bar.must_be(Limit::AtMost(1.0)));
    Ok(())
}
