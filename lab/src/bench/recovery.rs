//! Recovery: how long a device is away after its daemon was killed in a boost, and what memory that takes.

use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit, median};
use crate::product::number;

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

/// Adds the rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    // Seconds, bytes read, most bytes of memory.
    let measure = |gib: u64, flags: &[&str]| -> anyhow::Result<[f64; 3]> {
        let size = [format!("--gib={gib}"), format!("--mib-s={MIB_S}")];
        let flags: Vec<String> = size.into_iter().chain(flags.iter().map(|&flag| flag.to_owned())).collect();
        let mut turns = Vec::new();
        for _ in 0..if bench.quick { 1 } else { 3 } {
            let found = bench.cargo(Cores::All, "surgetank-daemon", "recovery", &flags)?;
            let [seconds, read, peak] = ["/seconds", "/read_bytes", "/peak_bytes"].map(|place| number(&found, place));
            turns.push([seconds?, read?, peak?]);
        }
        Ok([0, 1, 2].map(|at| median(turns.iter().map(|turn| turn[at]).collect())))
    };
    let [plain_s, ..] = measure(10, &["--plain", "--whole"])?;
    for gib in if bench.quick { vec![10] } else { vec![10, 100] } {
        let [seconds, read_bytes, peak_bytes] = measure(gib, &[])?;
        let size = (gib << 30) as f64;
        let bound = SECONDS + read_bytes / (MIB_S << 20) as f64;
        let log = LOG_BYTES + INDEX_BYTES * size / 4096.0;
        let bar = |name: &str, unit, ours, reference: (f64, &str)| {
            Bar::new(format!("{gib} GiB of synced 4 KiB: {name}"), unit, ours, reference)
        };
        for bar in [
            bar("away after kill -9", "s", seconds, (bound, "2 s and what is read at 128 MiB/s")),
            bar("read", "bytes", read_bytes, (log, "16 bytes a block and 192 MiB of log")),
            bar("memory, at most", "bytes", peak_bytes, (MEMORY * size, "0.6 % of the cache")),
        ] {
            report.add(bar.must_be(Limit::AtMost(1.0)));
        }
        if gib == 10 {
            report.add(bar("away after kill -9", "s", seconds, (plain_s, "a log without indexes")));
        }
    }
    Ok(())
}
