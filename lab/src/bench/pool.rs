//! The staging pool: how long a manager takes to place a file; one client against what its parts cost; writers and drains over
//! benefactors and a target that the kernel throttles.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::rig::Loop;
use super::{Bench, Cores, Report};
use crate::bar::{Bar, Limit};
use crate::interrupt::output;
use crate::product::number;

/// Microseconds in which a file is placed on some of 3,000 benefactors.
const PLACED_US: f64 = 1000.0;
/// What a slow file system takes in, in MiB a second; and the sizes of one that is a target and of one in place of an SSD.
const SLOW_MIB_S: u64 = 64;
const TARGET_SIZE: u64 = 3 << 30;
const SSD_SIZE: u64 = 3 << 29;
/// Benefactors with SSDs.
const SSDS: usize = 3;

/// Adds the rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let found = bench.cargo(Cores::One, "surgetank-pool-core", "placement", &[])?;
    let name = "a file placed among 3,000 benefactors, mean";
    let bar = Bar::new(name, "µs", number(&found, "/mean_us")?, (PLACED_US, "the bar"));
    report.add(bar.must_be(Limit::AtMost(1.0)));
    throughput(bench, report)?;
    throttled(bench, report)
}

fn rounds(bench: &Bench) -> [String; 2] {
    ["--rounds".to_owned(), bench.rounds().min(3).to_string()]
}

/// The rounds of an answer.
fn list<'a>(found: &'a Value, place: &str) -> anyhow::Result<&'a Vec<Value>> {
    found.pointer(place).and_then(Value::as_array).with_context(|| format!("the answer has no list {place}"))
}

/// A pair of numbers from each round.
fn turns(rounds: &[Value], pair: impl Fn(&dyn Fn(&str) -> f64) -> [f64; 2]) -> Vec<[f64; 2]> {
    let of = |round: &Value| pair(&|name| round.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN));
    rounds.iter().map(of).collect()
}

fn throughput(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mib = if bench.quick { "512" } else { "1024" };
    let flags = [&rounds(bench)[..], &["--mib".to_owned(), mib.to_owned()]].concat();
    let found = bench.cargo(Cores::All, "surgetank-mount", "throughput", &flags)?;
    let rounds = list(&found, "/rounds")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    // In MiB: the parts' costs are seconds for 10⁹ bytes.
    let bound = |of: &dyn Fn(&str) -> f64| {
        let cost = of("fuse_cores") + of("wire_cores") + 2.0 * of("crc_cores");
        cores / cost * 1e9 / f64::from(1 << 20)
    };
    let mut add = |name: &str, pair: Vec<[f64; 2]>, peer: &str, least: Option<f64>| {
        let bar = Bar::paired(name, "MiB/s", &pair, peer);
        report.add(match least {
            Some(least) => bar.must_be(Limit::AtLeast(least)),
            None => bar,
        });
    };
    let pair = |one: &'static str, other: &'static str| turns(rounds, move |of| [of(one), of(other)]);
    let parts = "cores ÷ (FUSE + wire + CRC32C twice)";
    add("pool: mount, one copy, 1 MiB writes", turns(rounds, |of| [of("mount"), bound(of)]), parts, Some(0.75));
    add("pool: library, one copy", pair("library", "checked"), "as many tonic streams with checksums", Some(0.75));
    add("pool: mount, two copies", pair("two", "mount"), "one copy", Some(0.55));
    add("pool: mount, read back", pair("read", "mount"), "written", Some(1.0));
    add("pool: mount, read back, two copies", pair("two_read", "two"), "written", None);
    add("pool: FUSE alone", turns(rounds, |of| [of("fuse"), bound(of)]), parts, None);
    add("pool: wire alone", turns(rounds, |of| [of("wire"), bound(of)]), parts, None);
    Ok(())
}

/// A file system that the kernel throttles: ext4 on a loop device over memory. The limit is one of the kernel's first control group, since
/// what is written back belongs to no process.
struct Slow {
    point: PathBuf,
    device: Loop,
    file: PathBuf,
}

impl Slow {
    const LIMIT: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

    fn available() -> bool {
        Path::new(Self::LIMIT).exists() && Path::new("/dev/shm").is_dir()
    }

    fn mount(directory: &Path, name: &str, size: u64) -> anyhow::Result<Self> {
        let file = Path::new("/dev/shm").join(format!("surgetank-bench-{}-{name}.disk", std::process::id()));
        File::create(&file)?.set_len(size)?;
        let device = Loop::attach(&file)?;
        output(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
                .arg(&device.path),
        )?;
        let point = directory.join(name);
        fs::create_dir_all(&point)?;
        output(Command::new("mount").arg(&device.path).arg(&point))?;
        let slow = Self { point, device, file };
        slow.limit(SLOW_MIB_S << 20)?;
        Ok(slow)
    }

    fn limit(&self, bytes_s: u64) -> anyhow::Result<()> {
        fs::write(Self::LIMIT, format!("{} {bytes_s}", self.device.number()?)).context("cannot throttle a loop device")
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.limit(0);
        let _ = output(Command::new("umount").arg(&self.point));
        let _ = fs::remove_file(&self.file);
    }
}

fn throttled(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mut flags = rounds(bench).to_vec();
    let mut slow = Vec::new();
    if Slow::available() {
        slow.push(Slow::mount(&bench.directory, "target", TARGET_SIZE)?);
        for number in 0..SSDS {
            slow.push(Slow::mount(&bench.directory, &format!("ssd{number}"), SSD_SIZE)?);
        }
        let points: Vec<String> = slow.iter().map(|slow| slow.point.display().to_string()).collect();
        flags.extend(["--target".to_owned(), points[0].clone(), "--ssds".to_owned(), points[1..].join(",")]);
        flags.extend(["--ssd-mib-s".to_owned(), SLOW_MIB_S.to_string()]);
    } else {
        report.skipped.push("pool: drains, SSDs: this kernel has no control groups of version 1 (blkio)".to_owned());
    }
    let found = bench.cargo(Cores::All, "surgetank-mount", "throttled", &flags)?;
    let rate = number(&found, "/rate_mib_s")?;
    let writers = list(&found, "/writers")?;
    for count in 1..=6_usize {
        let each =
            |round: &Value| [round.get(count - 1).and_then(Value::as_f64).unwrap_or(f64::NAN), rate * count as f64];
        let turns: Vec<[f64; 2]> = writers.iter().map(each).collect();
        let name = format!("pool: {count} writers, {count} benefactors of {rate} MiB/s");
        report.add(Bar::paired(name, "MiB/s", &turns, "their sum").must_be(Limit::AtLeast(0.95)));
    }
    let (checkpoints, tiers) = (list(&found, "/checkpoints")?, list(&found, "/tiers")?);
    if checkpoints.is_empty() {
        return Ok(());
    }
    let name = "pool: a checkpoint into little memory and SSDs";
    let tiers = turns(tiers, |of| [of("rate"), of("bound")]);
    let bound = "the model: what memory does not take ÷ the SSDs' rates";
    report.add(Bar::paired(name, "MiB/s", &tiers, bound).must_be(Limit::AtLeast(0.95)));
    let pair = |one: &'static str, other: &'static str| turns(checkpoints, move |of| [of(one), of(other)]);
    let bar =
        |name: &str, unit, pair: Vec<[f64; 2]>, peer: &str, limit| Bar::paired(name, unit, &pair, peer).must_be(limit);
    report.add(bar(
        "pool: drain",
        "MiB/s",
        pair("drain", "target"),
        "written straight to the target",
        Limit::AtLeast(0.95),
    ));
    report.add(bar(
        "pool: a checkpoint during a drain",
        "MiB/s",
        pair("beside", "first"),
        "before it",
        Limit::AtLeast(0.9),
    ));
    let model = "the model: its size ÷ the benefactors' rates";
    report.add(bar("pool: a checkpoint", "s", pair("pool_s", "model_s"), model, Limit::Within(0.05)));
    report.add(Bar::paired("pool: a checkpoint", "s", &pair("pool_s", "direct_s"), "straight to the target"));
    Ok(())
}
