//! A disk by itself, and the same disk under a calm device that the kernel maps, in turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::fio::{Amount, Load, Target};
use crate::interrupt::Interrupt;
use crate::machine::{self, STAT, busy_s, process_s};
use crate::samples;
use crate::surgetank::{Elastic, Places, Surgetank};

/// What is asked of both.
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

/// One turn, or what the daemon was found to do all the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalmSample {
    /// Both under one load.
    Turn {
        /// Which of [`SHAPES`].
        load: usize,
        raw: Side,
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

/// One of the two under a load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Side {
    /// Requests per second, or MiB/s.
    pub rate: f64,
    /// Processor time of the whole machine a request, in µs.
    pub busy_us: f64,
}

/// Measures.
pub fn calm(order: &CalmOrder) -> anyhow::Result<()> {
    let raw = machine::disk("plain")?;
    let kinds = ["dm", "ublk", "fuse"];
    let export = kinds.into_iter().find(|kind| *kind == order.export).unwrap_or("dm");
    // No load is a burst of such a disk.
    let elastic = Elastic { export, ..Elastic::steered("adaptive", &raw, 64, (100_000, 100_000)) };
    let surgetank = Surgetank::start(&order.surgetank, &elastic, &Places::local("/run/calm", "/run/calm"))?;
    let device = surgetank.device()?;
    let (process, began) = (surgetank.process(), Instant::now());
    let (busy_before, moved_before) = (process_s(process)?, moved_bytes(process));
    for round in 0..order.rounds {
        for (index, (_, shape)) in SHAPES.iter().enumerate() {
            let load = Load { shape, amount: Amount::Time(Duration::from_secs_f64(order.time_s)) };
            // Who begins changes from round to round.
            let turn = if round % 2 == 0 {
                let raw = side(load, &raw)?;
                (raw, side(load, &device)?)
            } else {
                let mapped = side(load, &device)?;
                (side(load, &raw)?, mapped)
            };
            samples::add(&CalmSample::Turn { load: index, raw: turn.0, mapped: turn.1 })?;
        }
    }
    let daemon = CalmSample::Daemon {
        busy_s: process_s(process)? - busy_before,
        of_s: began.elapsed().as_secs_f64(),
        moved_bytes: moved_bytes(process) - moved_before,
    };
    samples::add(&daemon)?;
    surgetank.stop()
}

fn side(load: Load, device: &Path) -> anyhow::Result<Side> {
    let before = busy_s(STAT)?;
    let measured = load.run(&Interrupt::default(), Command::new("fio"), &Target::Device(device.to_owned()))?;
    let requests = measured.iops * measured.run_s;
    Ok(Side { rate: load.rate(&measured), busy_us: (busy_s(STAT)? - before) * 1e6 / requests.max(1.0) })
}

/// Bytes that a process has had read from and written to disks.
fn moved_bytes(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("read_bytes:").unwrap_or(0) + field("write_bytes:").unwrap_or(0)
}
