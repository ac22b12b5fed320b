//! Pass-through: an elastic device that is not boosted, against its backing volume.
//!
//! The backing volume is a loop device that the *kernel* throttles (control groups version 1, `blkio`), for fio and
//! for the daemon alike, so that neither side's throttle is ours.
//!
//! That controller counts a request twice if the block layer must split it, and a loop device takes at most 128
//! segments a request: 1 MiB requests would see half the limit, or less of it where pages happen to lie side by side.
//! So the raw side is measured with 512 KiB at twice the depth, which it does best with, and the elastic device, a
//! loop device too, is told to hand the daemon no more than 512 KiB at once.

use std::fs::{self, File};

use anyhow::Context;

use super::Bench;
use super::fio::{Amount, Load, Measured, Target};
use super::report::{Bar, Report, Row, median};
use super::rig::{DiskLimit, Loop, Throttle};
use super::surgetank::{Setting, Surgetank};
use crate::say;

const BACKING_MIB: u64 = 2048;
const MIB_S: u64 = 33;
const IOPS: u64 = 3000;
/// What a loop device takes as one request wherever its pages lie.
const UNSPLIT_KIB: &str = "512";

/// Measures and adds its rows.
///
/// # Errors
/// If something fails.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    if !Throttle::available() {
        report
            .skipped
            .push("pass-through: no blkio controller (control groups version 1) to throttle a disk".to_owned());
        return Ok(());
    }
    let file = bench.directory.join("backing.disk");
    File::create(&file)?.set_len(BACKING_MIB << 20)?;
    let disk = Loop::attach(&bench.interrupt, &file)?;
    let throttle = Throttle::new(&disk.number()?)?;
    // Blocks are allocated before anything is measured: a sparse file's first writes cost more.
    let target = Target::Device(disk.path.clone());
    let fill = Load { pattern: "write", block: "512k", depth: 8, amount: Amount::Bytes(BACKING_MIB << 20) };
    fill.run(&bench.interrupt, None, &target)?;
    let sequential = DiskLimit { bytes: Some(MIB_S << 20), requests: None };
    let random = DiskLimit { bytes: None, requests: Some(IOPS) };
    for (name, limit, raw, ours) in [
        ("1 MiB sequential write", sequential, ("write", "512k", 16), ("write", "1m", 8)),
        ("1 MiB sequential read", sequential, ("read", "512k", 16), ("read", "1m", 8)),
        ("4 KiB random write", random, ("randwrite", "4k", 32), ("randwrite", "4k", 32)),
        ("4 KiB random read", random, ("randread", "4k", 32), ("randread", "4k", 32)),
    ] {
        throttle.set(limit)?;
        let row = compare(bench, &disk, &throttle, name, [raw, ours])?;
        say(&format!("pass-through, {name}: {:.3}", row.ratio));
        report.rows.push(row);
    }
    Ok(())
}

type Shape = (&'static str, &'static str, u32);

/// The daemon holds its backing volume exclusively, so the two sides take turns with it.
fn compare(bench: &Bench, disk: &Loop, throttle: &Throttle, name: &str, shapes: [Shape; 2]) -> anyhow::Result<Row> {
    let [raw, ours] =
        shapes.map(|(pattern, block, depth)| Load { pattern, block, depth, amount: Amount::Time(bench.time()) });
    let mut sides: [Vec<Measured>; 2] = Default::default();
    for _ in 0..bench.rounds() {
        sides[0].push(raw.run(&bench.interrupt, Some(throttle), &Target::Device(disk.path.clone()))?);
        let setting = Setting::passing("passthrough", disk.path.display().to_string(), "fuse");
        let surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, Some(throttle), &setting)?;
        let name = surgetank.export().rsplit('/').next().unwrap_or_default();
        fs::write(format!("/sys/block/{name}/queue/max_sectors_kb"), UNSPLIT_KIB)
            .context("cannot limit the elastic device's requests")?;
        sides[1].push(ours.run(&bench.interrupt, Some(throttle), &Target::Device(surgetank.export().into()))?);
    }
    let is_random = shapes[0].0.starts_with("rand");
    let [theirs, ours] =
        sides.map(|side| median(side.iter().map(|one| if is_random { one.iops } else { one.mib_s }).collect()));
    let unit = if is_random { "IOPS" } else { "MiB/s" };
    Ok(Row::new(format!("pass-through, {name}"), unit, ours, theirs, "raw backing volume").bar(Bar::AtLeast(0.95)))
}
