//! A disk by itself, the same disk under a linear map of nobody's but the kernel's, and under a calm device, in turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::fio::{Amount, Load, Target};
use crate::inside::load::{counted_s, counting};
use crate::interrupt::Interrupt;
use crate::machine::{self, process_s};
use crate::samples;
use crate::surgetank::{Elastic, Places, Surgetank};

/// What is asked of all.
pub const SHAPES: [(&str, &str); 6] = [
    ("4 KiB reads, depth 1", "--rw=randread --bs=4k --iodepth=1"),
    ("4 KiB reads, depth 32", "--rw=randread --bs=4k --iodepth=32"),
    ("4 KiB writes, depth 1", "--rw=randwrite --bs=4k --iodepth=1"),
    ("4 KiB writes, depth 32", "--rw=randwrite --bs=4k --iodepth=32"),
    ("1 MiB reads, depth 4", "--rw=read --bs=1m --iodepth=4"),
    ("1 MiB writes, depth 4", "--rw=write --bs=1m --iodepth=4"),
];

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CalmOrder {
    pub surgetank: PathBuf,
    /// How the device is exported.
    pub export: String,
    pub rounds: u32,
    /// How long each load lasts.
    pub time_s: f64,
}

/// Disks of the guest: in the host's memory, without a limit, and held to a limit by QEMU.
pub const DISKS: [&str; 2] = ["unlimited", "limited"];

/// One turn, or what the daemon was found to do all the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalmSample {
    /// All under one load.
    Turn {
        /// Which of [`DISKS`].
        disk: usize,
        /// Which of [`SHAPES`].
        load: usize,
        raw: Side,
        /// A linear map made by `dmsetup`: what the kernel's device mapper costs by itself.
        linear: Side,
        mapped: Side,
    },
    /// The daemon, from its start to the end of all loads.
    Daemon {
        /// Of one processor.
        busy_s: f64,
        of_s: f64,
        /// What it had the kernel read and write.
        moved_bytes: u64,
    },
}

/// One of them under a load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Side {
    /// Requests per second, or MiB/s.
    pub rate: f64,
    /// Processor time of the whole machine a request, in µs.
    pub busy_us: f64,
}

/// Measures.
pub fn calm(order: &CalmOrder) -> anyhow::Result<()> {
    let kinds = ["dm", "ublk", "fuse"];
    let export = kinds.into_iter().find(|kind| *kind == order.export).unwrap_or("dm");
    for (number, name) in DISKS.into_iter().enumerate() {
        let raw = machine::disk(name)?;
        // No load is a burst of such a disk.
        let elastic = Elastic { export, ..Elastic::steered("adaptive", &raw, 64, (100_000, 100_000)) };
        let files = format!("/run/calm-{name}");
        let surgetank = Surgetank::start(&order.surgetank, &elastic, &Places::local(&files, &files))?;
        // Not before: the daemon takes no disk that somebody else maps.
        let linear = Linear::over(&raw)?;
        let sides = [raw, linear.node.clone(), surgetank.device()?];
        let (process, began) = (surgetank.process(), Instant::now());
        let (busy_before, moved_before) = (process_s(process)?, moved_bytes(process));
        for round in 0..order.rounds {
            for (index, (_, shape)) in SHAPES.iter().enumerate() {
                if number > 0 && shape.ends_with("iodepth=1") {
                    // One request at a time does not reach the limit.
                    continue;
                }
                let load = Load { shape, amount: Amount::Time(Duration::from_secs_f64(order.time_s)) };
                let mut measured = [Side::default(); 3];
                // Who begins changes from round to round.
                for turn in 0..3 {
                    let at = (round as usize + turn) % 3;
                    measured[at] = side(load, &sides[at])?;
                }
                let [raw, linear, mapped] = measured;
                samples::add(&CalmSample::Turn { disk: number, load: index, raw, linear, mapped })?;
            }
        }
        let daemon = CalmSample::Daemon {
            busy_s: process_s(process)? - busy_before,
            of_s: began.elapsed().as_secs_f64(),
            moved_bytes: moved_bytes(process) - moved_before,
        };
        samples::add(&daemon)?;
        drop(linear);
        surgetank.stop()?;
    }
    Ok(())
}

/// A linear map over a whole disk, which is removed when it is dropped. The device mapper lets several maps share a disk.
struct Linear {
    name: &'static str,
    node: PathBuf,
}

impl Linear {
    fn over(disk: &Path) -> anyhow::Result<Self> {
        let name = "lab-linear";
        let table = format!("0 {} linear {} 0", machine::sectors(disk)?, disk.display());
        machine::run("dmsetup", &["create", "--noudevsync", name, "--table", &table])?;
        let minor = machine::run("dmsetup", &["info", "--columns", "--noheadings", "-o", "minor", name])?;
        Ok(Self { name, node: PathBuf::from(format!("/dev/dm-{}", minor.trim())) })
    }
}

impl Drop for Linear {
    fn drop(&mut self) {
        let _ = machine::run("dmsetup", &["remove", "--noudevsync", self.name]);
    }
}

fn side(load: Load, device: &Path) -> anyhow::Result<Side> {
    let mut fio = Command::new("fio");
    fio.args(counting());
    let measured = load.run(&Interrupt::default(), fio, &Target::Device(device.to_owned()))?;
    let requests = measured.iops * measured.run_s;
    Ok(Side { rate: load.rate(&measured), busy_us: counted_s()? * 1e6 / requests.max(1.0) })
}

/// Bytes that a process has had read from and written to disks.
fn moved_bytes(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("read_bytes:").unwrap_or(0) + field("write_bytes:").unwrap_or(0)
}
