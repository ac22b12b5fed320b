//! Healing: a device with a million lost ranges is overwritten, and each overwriting is on record before its reply.

use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit};
use crate::product::number;

/// What a request may take, its share of the record included.
const REQUEST_US: f64 = 1000.0;
/// What a lost range may take in memory.
const RANGE_BYTES: f64 = 64.0;

/// Adds the rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let rounds = format!("--rounds={}", if bench.quick { 50 } else { 500 });
    let found = bench.cargo(Cores::One, "surgetank-daemon", "healing", &[rounds])?;
    for (name, unit, place, scale, most) in [
        (
            "overwrite of a lost block, 64 at a time: the shard's thread",
            "µs",
            "/engine_ms_per_request",
            1e3,
            REQUEST_US,
        ),
        ("overwrite of a lost block, 64 at a time: with its record", "µs", "/ms_per_request", 1e3, REQUEST_US),
        ("a lost range of a million, in memory", "bytes", "/resident_bytes_per_range", 1.0, RANGE_BYTES),
        ("a lost range of a million, most in memory", "bytes", "/peak_bytes_per_range", 1.0, RANGE_BYTES),
        ("the same while the record is written anew", "bytes", "/anew_peak_bytes_per_range", 1.0, RANGE_BYTES),
    ] {
        let bar = Bar::new(name, unit, scale * number(&found, place)?, (most, "the bar"));
        report.add(bar.must_be(Limit::AtMost(1.0)));
    }
    Ok(())
}
