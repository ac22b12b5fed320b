//! One daemon with many devices: what they cost while nobody uses them, and whether all boosts at once keep their volumes'
//! limits.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Bench, Report};
use crate::bar::{Bar, Limit, median};
use crate::fio::{Amount, Load, Measured, Target};
use crate::machine::{children_s, memory_mib, process_s};
use crate::output::say;
use crate::surgetank::{Elastic, Places, Rent, Surgetank};

/// Devices that nobody uses.
const IDLE: usize = 64;
/// What they may take together: the share of one processor, and memory.
const IDLE_SHARE: f64 = 0.005;
const IDLE_MIB: f64 = 96.0;

/// Devices that boost at once, and the limits of their volumes.
const BOOSTING: usize = 16;
const BACKING_MIB_S: u64 = 8;
const CACHING_MIB_S: u64 = 32;
const DISK_MIB: u64 = 512;
const CACHE_MIB: u64 = 256;
const WRITES: Load = Load { shape: "--rw=write --bs=1m --iodepth=8", amount: Amount::Time(Duration::from_secs(5)) };
/// Volumes are files in memory: the cores are what is measured, and not a disk that all share.
const MEMORY: &str = "/dev/shm";

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    for export in ["fuse", "nbd"] {
        idle(bench, report, export)?;
    }
    boosting(bench, report)
}

fn idle(bench: &Bench, report: &mut Report, export: &'static str) -> anyhow::Result<()> {
    let backing = bench.directory.join("idle");
    fs::create_dir_all(&backing)?;
    let elastic = |number: usize| -> anyhow::Result<Elastic> {
        let file = backing.join(format!("{number}.disk"));
        fs::File::create(&file)?.set_len(DISK_MIB << 20)?;
        Ok(Elastic { export, ..Elastic::steered("adaptive", &file, CACHE_MIB, (BACKING_MIB_S, CACHING_MIB_S)) })
    };
    let files = bench.directory.join(format!("idle-{export}"));
    let places = Places { rent: Rent::Local(files.join("volumes")), log: files.join("surgetank.log"), files };
    let surgetank = serve(bench, IDLE, elastic, &places)?;
    // What a start leaves to do is not what idling costs.
    wait(bench, Duration::from_secs(5))?;
    let (before, began) = (process_s(surgetank.process())?, Instant::now());
    wait(bench, Duration::from_secs(if bench.quick { 20 } else { 60 }))?;
    let busy = (process_s(surgetank.process())? - before) / began.elapsed().as_secs_f64();
    let name = |what: &str| format!("{IDLE} idle devices, {export}: {what}");
    let share = Bar::new(name("processor"), "%", busy * 100.0, (IDLE_SHARE * 100.0, "of one processor"));
    report.add(share.must_be(Limit::AtMost(1.0)));
    let memory = memory_mib(surgetank.process(), "VmRSS")?;
    report.add(Bar::new(name("memory"), "MiB", memory, (IDLE_MIB, "a bound")).must_be(Limit::AtMost(1.0)));
    surgetank.stop()
}

/// All keep the limits of their volumes, or as much of them as the cores can move: what one device moves in a second of the
/// processor, times the cores.
fn boosting(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let limit = (BACKING_MIB_S + CACHING_MIB_S) as f64;
    let (_, cost_s) = boost(bench, 1)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let bound = (limit * BOOSTING as f64).min(cores / cost_s);
    say(&format!(
        "one boost takes {:.2} ms of a processor a MiB: {cores} cores can move {:.0} MiB/s",
        cost_s * 1e3,
        cores / cost_s
    ));
    let mut rates = Vec::new();
    for _ in 0..if bench.quick { 1 } else { 3 } {
        rates.push(boost(bench, BOOSTING)?.0);
    }
    let all = median(rates.iter().map(|each| each.iter().sum()).collect());
    let slowest = median(rates.iter().map(|each| each.iter().copied().fold(f64::INFINITY, f64::min)).collect());
    let name = |what: &str| format!("{BOOSTING} boosts at once: {what}");
    for (what, rate, bound) in [("all", all, bound), ("the slowest", slowest, bound / BOOSTING as f64)] {
        let bar = Bar::new(name(what), "MiB/s", rate, (bound, "Bb + Bc, as far as the cores can"));
        report.add(bar.must_be(Limit::AtLeast(0.9)));
    }
    Ok(())
}

/// The rate of each of so many devices in MiB/s while all write into a boost, and the processor time of daemon and fio a MiB, in s.
fn boost(bench: &Bench, count: usize) -> anyhow::Result<(Vec<f64>, f64)> {
    let memory = tempfile::Builder::new().prefix("surgetank-lab-").tempdir_in(MEMORY);
    let memory = memory.with_context(|| format!("cannot make volumes in {MEMORY}"))?;
    let disk = format!("memory:{DISK_MIB} MiB");
    let elastic = |_| {
        let rates = (BACKING_MIB_S, CACHING_MIB_S);
        Ok(Elastic {
            export: "nbd",
            throttle: true,
            split: Some(true),
            ..Elastic::steered("adaptive", Path::new(&disk), CACHE_MIB, rates)
        })
    };
    let files = memory.path().to_owned();
    let places = Places { rent: Rent::Local(files.join("volumes")), log: files.join("surgetank.log"), files };
    let mut surgetank = serve(bench, count, elastic, &places)?;
    surgetank.boost_all()?;
    let addresses = surgetank.devices()?.into_iter().map(|device| Target::Nbd(device.address));
    let spent = || Ok::<_, anyhow::Error>(process_s(surgetank.process())? + children_s()?);
    let before = spent()?;
    let measured = WRITES.run_on_all(&bench.interrupt, &addresses.collect::<Vec<_>>())?;
    let busy = spent()? - before;
    let moved: f64 = measured.iter().map(|device| device.moved_mib).sum();
    Ok((measured.iter().map(Measured::mib_s).collect(), busy / moved))
}

/// Serves so many devices.
fn serve(
    bench: &Bench,
    count: usize,
    elastic: impl Fn(usize) -> anyhow::Result<Elastic>,
    places: &Places,
) -> anyhow::Result<Surgetank> {
    let devices = (0..count).map(|number| Ok((format!("lab{number}"), elastic(number)?)));
    let devices = devices.collect::<anyhow::Result<Vec<_>>>()?;
    Surgetank::serve_all(Command::new(&bench.surgetank), &devices, places, &bench.interrupt)
}

fn wait(bench: &Bench, time: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        bench.interrupt.check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
