//! Recovery: how long a device is away after its daemon was killed in a boost, and what memory that takes.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::report::{Bar, Report, Row, median};
use super::{Bench, Interrupt};
use crate::product;

/// What the caching volume gives.
const MIB_S: u64 = 128;
/// What a recovery may take beyond reading what it reads.
const SECONDS: f64 = 2.0;
/// What it may take in memory, of the cache.
const MEMORY: f64 = 0.006;
/// Bytes of indexes for each block of the cache.
const INDEX_BYTES: f64 = 16.0;
/// Not indexed yet, at most, and the table: the part of the log that is read.
const LOG_BYTES: f64 = (192_u64 << 20) as f64;

/// What one recovery took.
struct Took {
    seconds: f64,
    read_bytes: f64,
    peak_bytes: f64,
}

/// Adds the rows.
///
/// # Errors
/// If a program fails.
pub fn run(bench: &Bench, root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let recovery = ["bench", "--quiet", "--package", "surgetank-daemon", "--bench", "recovery"];
    product::done(Command::new(&cargo).current_dir(root).args(recovery).arg("--no-run"))?;
    let measure = |gib: u64, flags: &[&str], interrupt: &Interrupt| {
        let mut took = Vec::new();
        for _ in 0..if bench.quick { 1 } else { 3 } {
            interrupt.check()?;
            let size = [format!("--gib={gib}"), format!("--mib-s={MIB_S}")];
            let found = product::answer(
                Command::new(&cargo).current_dir(root).args(recovery).arg("--").args(&size).args(flags),
            )?;
            let number = |field: &str| found[field].as_f64().with_context(|| format!("no {field}"));
            took.push([number("seconds")?, number("read_bytes")?, number("peak_bytes")?]);
        }
        let of = |at: usize| median(took.iter().map(|turn| turn[at]).collect());
        anyhow::Ok(Took { seconds: of(0), read_bytes: of(1), peak_bytes: of(2) })
    };
    let plain = measure(10, &["--plain", "--whole"], &bench.interrupt)?;
    for gib in if bench.quick { vec![10] } else { vec![10, 100] } {
        let Took { seconds, read_bytes, peak_bytes } = measure(gib, &[], &bench.interrupt)?;
        let size = (gib << 30) as f64;
        let bound = SECONDS + read_bytes / (MIB_S << 20) as f64;
        let row = |name: &str, unit, ours, reference, against: &str| {
            Row::new(format!("{gib} GiB of synced 4 KiB: {name}"), unit, ours, reference, against)
        };
        let bars = [
            row("away after kill -9", "s", seconds, bound, "2 s and what is read at 128 MiB/s"),
            row(
                "read",
                "bytes",
                read_bytes,
                LOG_BYTES + INDEX_BYTES * size / 4096.0,
                "16 bytes a block and 192 MiB of log",
            ),
            row("memory, at most", "bytes", peak_bytes, MEMORY * size, "0.6 % of the cache"),
        ];
        report.rows.extend(bars.map(|row| row.bar(Bar::AtMost(1.0))));
        if gib == 10 {
            report.rows.push(row("away after kill -9", "s", seconds, plain.seconds, "a log without indexes"));
        }
    }
    Ok(())
}
