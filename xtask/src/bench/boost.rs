//! A boost: how fast a burst is absorbed and drained, how much of the caching volume is of use, what small random
//! writes gain, and how much memory that takes.
//!
//! Volumes are files that the daemon holds to their nominal limits; the bars are relative to those limits.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Bench;
use super::fio::{Amount, Load, Target};
use super::report::{Bar, Report, Row, median};
use super::surgetank::{Caching, Drained, Setting, Surgetank};
use crate::say;

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

/// Measures and adds its rows.
///
/// # Errors
/// If something fails.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let backing = bench.directory.join("boost.disk");
    File::create(&backing)?.set_len(BACKING_MIB << 20)?;
    let setting = Setting {
        name: "boost",
        backing: backing.display().to_string(),
        export: "fuse",
        throttle: true,
        backing_limits: (BACKING_MIB_S, None),
        caching_limits: (CACHING_MIB_S, None),
        cache_mib: 2 * BURST_MIB,
        split: true,
    };
    let mut add = |row: Row| {
        say(&format!("{}: {:.3}", row.name, row.ratio));
        report.rows.push(row);
    };
    let both = (BACKING_MIB_S + CACHING_MIB_S) as f64;
    let split = burst(bench, &setting)?;
    add(Row::new("1 GiB burst, split", "MiB/s", split.absorbed_mib_s, both, "Bb + Bc").bar(Bar::AtLeast(0.95)));
    add(Row::new("drain after it", "MiB/s", split.drained_mib_s, BACKING_MIB_S as f64, "Bb").bar(Bar::AtLeast(0.95)));
    let write_back = burst(bench, &Setting { split: false, ..setting.clone() })?;
    let caching = CACHING_MIB_S as f64;
    add(Row::new("1 GiB burst, write-back", "MiB/s", write_back.absorbed_mib_s, caching, "Bc").bar(Bar::AtLeast(0.95)));
    add(Row::new("drain after it", "MiB/s", write_back.drained_mib_s, BACKING_MIB_S as f64, "Bb")
        .bar(Bar::AtLeast(0.95)));
    let (used, size) = usable(bench, &Setting { split: false, cache_mib: 512, ..setting.clone() })?;
    add(Row::new("dirty data in a full cache", "MiB", used, size, "the caching volume").bar(Bar::AtLeast(0.95)));
    for row in small_writes(bench, &setting)? {
        add(row);
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    absorbed_mib_s: f64,
    drained_mib_s: f64,
}

/// Medians over the rounds of: boost, 1 GiB of writes, drain.
fn burst(bench: &Bench, setting: &Setting) -> anyhow::Result<Burst> {
    let rounds = if bench.quick { 1 } else { 3 };
    let mut surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, setting)?;
    let target = Target::Device(PathBuf::from(surgetank.export()));
    let load = Load { pattern: "write", block: "1m", depth: 16, amount: Amount::Bytes(BURST_MIB << 20) };
    let (mut absorbed, mut drained) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        surgetank.boost(&bench.interrupt)?;
        let measured = load.run(&bench.interrupt, None, &target)?;
        absorbed.push(BURST_MIB as f64 / measured.seconds);
        let Drained { gib, seconds } = surgetank.drain(&bench.interrupt, Duration::from_secs(120))?;
        drained.push(gib * 1024.0 / seconds);
    }
    Ok(Burst { absorbed_mib_s: median(absorbed), drained_mib_s: median(drained) })
}

/// The most dirty data that a cache held while twice its size was written, and its size, in MiB.
fn usable(bench: &Bench, setting: &Setting) -> anyhow::Result<(f64, f64)> {
    let mut surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, setting)?;
    let Caching { size_gib, .. } = surgetank.boost(&bench.interrupt)?;
    let load = Load { pattern: "write", block: "1m", depth: 16, amount: Amount::Bytes(setting.cache_mib << 21) };
    let target = Target::Device(PathBuf::from(surgetank.export()));
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most: f64 = 0.0;
            while !over.load(Ordering::Relaxed) {
                let caching = surgetank.status(&bench.interrupt).ok().and_then(|device| device.caching);
                most = most.max(caching.map_or(0.0, |caching| caching.dirty_gib));
                std::thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let written = load.run(&bench.interrupt, None, &target);
        over.store(true, Ordering::Relaxed);
        let most = watcher.join().unwrap_or(0.0);
        written.map(|_| most)
    })?;
    surgetank.drain(&bench.interrupt, Duration::from_secs(120))?;
    Ok((most * 1024.0, size_gib * 1024.0))
}

/// 4 KiB random writes: into a boost, and straight to a volume with the caching volume's limits.
fn small_writes(bench: &Bench, setting: &Setting) -> anyhow::Result<Vec<Row>> {
    let load = Load { pattern: "randwrite", block: "4k", depth: 32, amount: Amount::Time(bench.time()) };
    let limits = (SMALL_MIB_S, Some(SMALL_IOPS));
    let raw = {
        let setting = Setting { name: "raw", backing_limits: limits, ..setting.clone() };
        let surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, &setting)?;
        load.run(&bench.interrupt, None, &Target::Device(surgetank.export().into()))?
    };
    let setting = Setting { name: "small", caching_limits: limits, split: false, ..setting.clone() };
    let mut surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, &setting)?;
    let (before, _) = surgetank.resident_mib()?;
    surgetank.boost(&bench.interrupt)?;
    let boosted = load.run(&bench.interrupt, None, &Target::Device(surgetank.export().into()))?;
    let dirty = surgetank.status(&bench.interrupt)?.caching.map_or(0.0, |caching| caching.dirty_gib * 1024.0);
    let (after, highest) = surgetank.resident_mib()?;
    let allowed = RESIDENT_MIB + INDEX_SHARE * dirty;
    say(&format!(
        "memory: {before:.1} MiB before the boost, {after:.1} MiB with {dirty:.0} MiB of 4 KiB blocks dirty, {highest:.1} MiB at most"
    ));
    let peer = format!("raw volume of {SMALL_IOPS} IOPS, {SMALL_MIB_S} MiB/s");
    let rows = vec![
        Row::new("4 KiB random writes in a boost", "IOPS", boosted.iops, raw.iops, peer).bar(Bar::AtLeast(5.0)),
        Row::new("resident memory then", "MiB", after, allowed, "64 MiB + 0.5 % of the cached data")
            .bar(Bar::AtMost(1.0)),
    ];
    surgetank.drain(&bench.interrupt, Duration::from_secs(300))?;
    Ok(rows)
}
