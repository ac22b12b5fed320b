//! A boost: how fast a burst is absorbed and drained, how much of the caching volume is of use, what small random
//! writes gain, and how much memory that takes.
//!
//! Volumes are files that the daemon holds to their nominal limits; the bars are relative to those limits.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::{Bench, Report};
use crate::bar::{Bar, Limit, median};
use crate::fio::{Amount, Load, Measured, Target};
use crate::machine::memory_mib;
use crate::output::say;
use crate::surgetank::{Elastic, Surgetank};

/// The papers' volumes.
const BACKING_MIB_S: u64 = 33;
const CACHING_MIB_S: u64 = 128;
/// A cloud's general-purpose volume: both limits at once.
const SMALL_MIB_S: u64 = 125;
const SMALL_IOPS: u64 = 3000;
const BACKING_MIB: u64 = 4096;
const BURST_MIB: u64 = 1024;
/// Resident memory allowed: this, and a share of what is cached.
const RESIDENT_MIB: f64 = 64.0;
const INDEX_SHARE: f64 = 0.005;

/// A burst, 1 MiB a request.
const WRITES: &str = "--rw=write --bs=1m --iodepth=16";

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let backing = bench.directory.join("boost.disk");
    File::create(&backing)?.set_len(BACKING_MIB << 20)?;
    let elastic = |cache_mib| Elastic {
        export: "fuse",
        throttle: true,
        split: Some(false),
        ..Elastic::steered("adaptive", &backing, cache_mib, (BACKING_MIB_S, CACHING_MIB_S))
    };
    let caching = (CACHING_MIB_S as f64, "Bc");
    let both = ((BACKING_MIB_S + CACHING_MIB_S) as f64, "Bb + Bc");
    for (name, split, reference) in [("1 GiB burst, split", true, both), ("1 GiB burst, write-back", false, caching)] {
        let elastic = Elastic { split: Some(split), ..elastic(2 * BURST_MIB) };
        let [absorbed, drained] = burst(bench, &elastic)?;
        report.add(Bar::new(name, "MiB/s", absorbed, reference).must_be(Limit::AtLeast(0.95)));
        let drain = Bar::new("drain after it", "MiB/s", drained, (BACKING_MIB_S as f64, "Bb"));
        report.add(drain.must_be(Limit::AtLeast(0.95)));
    }
    let (used, size) = usable(bench, &elastic(512))?;
    let full = Bar::new("dirty data in a full cache", "MiB", used, (size, "the caching volume"));
    report.add(full.must_be(Limit::AtLeast(0.95)));
    small_writes(bench, report, &elastic(2 * BURST_MIB))
}

fn serve(bench: &Bench, name: &str, elastic: &Elastic) -> anyhow::Result<Surgetank> {
    bench.serve(name, Command::new(&bench.surgetank), elastic)
}

fn load(bench: &Bench, surgetank: &Surgetank, shape: &'static str, amount: Amount) -> anyhow::Result<Measured> {
    Load { shape, amount }.run(&bench.interrupt, Command::new("fio"), &Target::Device(surgetank.device()?))
}

/// Medians over the rounds of: boost, 1 GiB of writes, drain. MiB/s absorbed and drained.
fn burst(bench: &Bench, elastic: &Elastic) -> anyhow::Result<[f64; 2]> {
    let mut surgetank = serve(bench, "boost", elastic)?;
    let mut rates: [Vec<f64>; 2] = Default::default();
    for _ in 0..if bench.quick { 1 } else { 3 } {
        surgetank.boost()?;
        rates[0].push(load(bench, &surgetank, WRITES, Amount::Bytes(BURST_MIB << 20))?.mib_s());
        let mut dirty: Vec<(Instant, f64)> = Vec::new();
        surgetank.drain_seen(|mib| dirty.extend((mib > 0.0).then(|| (Instant::now(), mib))))?;
        surgetank.detached()?;
        let [(start, from), .., (end, to)] = dirty[..] else {
            bail!("the drain was over before it could be measured");
        };
        rates[1].push((from - to) / end.duration_since(start).as_secs_f64());
    }
    Ok(rates.map(median))
}

/// The most dirty data that a cache held while twice its size was written, and its size, in MiB.
fn usable(bench: &Bench, elastic: &Elastic) -> anyhow::Result<(f64, f64)> {
    let mut surgetank = serve(bench, "boost", elastic)?;
    surgetank.boost()?;
    let size = surgetank.rented()?.cache_mib;
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most: f64 = 0.0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(surgetank.status().map_or(0.0, |status| status.dirty_mib()));
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let written = load(bench, &surgetank, WRITES, Amount::Bytes(elastic.cache_mib.0 << 21));
        over.store(true, Ordering::Relaxed);
        let most = watcher.join().unwrap_or(0.0);
        written.map(|_| most)
    })?;
    surgetank.drain_seen(|_| ())?;
    surgetank.detached()?;
    Ok((most, size))
}

/// 4 KiB random writes: into a boost, and straight to a volume with the caching volume's limits.
fn small_writes(bench: &Bench, report: &mut Report, elastic: &Elastic) -> anyhow::Result<()> {
    let write = |surgetank: &Surgetank| {
        load(bench, surgetank, "--rw=randwrite --bs=4k --iodepth=32", Amount::Time(bench.time()))
    };
    let raw = Elastic { rates_mib_s: (SMALL_MIB_S, CACHING_MIB_S), iops: (Some(SMALL_IOPS), None), ..elastic.clone() };
    let raw = write(&serve(bench, "raw", &raw)?)?;
    let small =
        Elastic { rates_mib_s: (BACKING_MIB_S, SMALL_MIB_S), iops: (None, Some(SMALL_IOPS)), ..elastic.clone() };
    let mut surgetank = serve(bench, "small", &small)?;
    let before = memory_mib(surgetank.process(), "VmRSS")?;
    surgetank.boost()?;
    let boosted = write(&surgetank)?;
    let (dirty, after) = (surgetank.status()?.dirty_mib(), memory_mib(surgetank.process(), "VmRSS")?);
    let highest = memory_mib(surgetank.process(), "VmHWM")?;
    say(&format!(
        "memory: {before:.1} MiB before the boost, {after:.1} MiB with {dirty:.0} MiB of 4 KiB blocks dirty, {highest:.1} MiB at most"
    ));
    let peer = format!("raw volume of {SMALL_IOPS} IOPS, {SMALL_MIB_S} MiB/s");
    let bar = Bar::new("4 KiB random writes in a boost", "IOPS", boosted.iops, (raw.iops, peer));
    report.add(bar.must_be(Limit::AtLeast(5.0)));
    let allowed = (RESIDENT_MIB + INDEX_SHARE * dirty, "64 MiB + 0.5 % of the cached data");
    report.add(Bar::new("resident memory then", "MiB", after, allowed).must_be(Limit::AtMost(1.0)));
    surgetank.drain_seen(|_| ())?;
    surgetank.detached()
}
