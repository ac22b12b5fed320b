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
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::rig::{DiskLimit, Loop, Throttle};
use super::{Bench, Report};
use crate::bar::{Bar, Limit, median};
use crate::fio::{Amount, Load, Target};

const BACKING_MIB: u64 = 2048;
const MIB_S: u64 = 33;
const IOPS: u64 = 3000;
/// What a loop device takes as one request wherever its pages lie.
const UNSPLIT_KIB: &str = "512";

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    if !Throttle::available() {
        report
            .skipped
            .push("pass-through: no blkio controller (control groups version 1) to throttle a disk".to_owned());
        return Ok(());
    }
    let file = bench.directory.join("backing.disk");
    File::create(&file)?.set_len(BACKING_MIB << 20)?;
    let disk = Loop::attach(&file)?;
    let throttle = Throttle::new(&disk.number()?)?;
    // Blocks are allocated before anything is measured: a sparse file's first writes cost more.
    let fill = Load { shape: "--rw=write --bs=512k --iodepth=8", amount: Amount::Bytes(BACKING_MIB << 20) };
    fill.run(&bench.interrupt, Command::new("fio"), &Target::Device(disk.path.clone()))?;
    let sequential = DiskLimit { bytes: Some(MIB_S << 20), requests: None };
    let random = DiskLimit { bytes: None, requests: Some(IOPS) };
    let (writes, reads) = ("--rw=randwrite --bs=4k --iodepth=32", "--rw=randread --bs=4k --iodepth=32");
    for (name, limit, shapes) in [
        ("1 MiB sequential write", sequential, ["--rw=write --bs=1m --iodepth=8", "--rw=write --bs=512k --iodepth=16"]),
        ("1 MiB sequential read", sequential, ["--rw=read --bs=1m --iodepth=8", "--rw=read --bs=512k --iodepth=16"]),
        ("4 KiB random write", random, [writes; 2]),
        ("4 KiB random read", random, [reads; 2]),
    ] {
        throttle.set(limit)?;
        report.add(compare(bench, &disk, &throttle, name, shapes)?);
    }
    Ok(())
}

/// Ours and the raw volume's. The daemon holds its backing volume exclusively, so the two sides take turns with it.
fn compare(
    bench: &Bench,
    disk: &Loop,
    throttle: &Throttle,
    name: &str,
    shapes: [&'static str; 2],
) -> anyhow::Result<Bar> {
    let [ours, raw] = shapes.map(|shape| Load { shape, amount: Amount::Time(bench.time()) });
    let run = |load: Load, device: &Path| -> anyhow::Result<f64> {
        let fio = throttle.command(Path::new("fio"));
        Ok(load.rate(&load.run(&bench.interrupt, fio, &Target::Device(device.to_owned()))?))
    };
    let mut sides: [Vec<f64>; 2] = Default::default();
    for _ in 0..bench.rounds() {
        sides[1].push(run(raw, &disk.path)?);
        let surgetank = bench.pass("passthrough", throttle.command(&bench.surgetank), &disk.path, "fuse")?;
        let device = surgetank.device()?;
        let name = device.file_name().context("a loop device has a name")?.to_string_lossy().into_owned();
        fs::write(format!("/sys/block/{name}/queue/max_sectors_kb"), UNSPLIT_KIB)
            .context("cannot limit the elastic device's requests")?;
        sides[0].push(run(ours, &device)?);
    }
    let [ours, theirs] = sides.map(median);
    let bar = Bar::new(format!("pass-through, {name}"), raw.unit(), ours, (theirs, "raw backing volume"));
    Ok(bar.must_be(Limit::AtLeast(0.95)))
}
