//! Healing: a device with a million lost ranges is overwritten, and each overwriting is on record before its reply.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::Bench;
use super::report::{Bar, Report, Row};
use crate::product;

/// What a request may take, its share of the record included.
const REQUEST_US: f64 = 1000.0;
/// What a lost range may take in memory.
const RANGE_BYTES: f64 = 64.0;

/// Adds the rows.
///
/// # Errors
/// If a program fails.
pub fn run(bench: &Bench, root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let healing = ["bench", "--quiet", "--package", "surgetank-daemon", "--bench", "healing"];
    product::done(Command::new(&cargo).current_dir(root).args(healing).arg("--no-run"))?;
    let rounds = format!("--rounds={}", if bench.quick { 50 } else { 500 });
    let found =
        product::answer(product::one_core(cargo.as_ref()).current_dir(root).args(healing).args(["--", &rounds]))?;
    for (name, unit, field, scale, most) in [
        ("overwrite of a lost block, 64 at a time: the shard's thread", "µs", "engine_ms_per_request", 1e3, REQUEST_US),
        ("overwrite of a lost block, 64 at a time: with its record", "µs", "ms_per_request", 1e3, REQUEST_US),
        ("a lost range of a million, in memory", "bytes", "resident_bytes_per_range", 1.0, RANGE_BYTES),
        ("a lost range of a million, most in memory", "bytes", "peak_bytes_per_range", 1.0, RANGE_BYTES),
        ("the same while the record is written anew", "bytes", "anew_peak_bytes_per_range", 1.0, RANGE_BYTES),
    ] {
        let ours = scale * found[field].as_f64().with_context(|| format!("no {field}"))?;
        report.rows.push(Row::new(name, unit, ours, most, "the bar").bar(Bar::AtMost(1.0)));
    }
    Ok(())
}
