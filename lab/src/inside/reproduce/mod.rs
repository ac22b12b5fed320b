//! The papers' experiments: bonnie++ and LAMMPS on a file system over each device, in turns.

mod bonnie;
mod melt;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::modes::{self, Device, MOUNT, Mode, ModeSample, Setting, Site, unix_s};

use crate::samples;

pub use bonnie::{Bonnie, Rates};
pub use melt::{ApplicationPhase, BYTES_PER_ATOM, Melt};

/// Where programs have their small files.
const FILES: &str = "/run/lab-work";

/// What runs on the file system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Several runs of bonnie++, with a pause after each.
    Bonnie {
        bonnie: Bonnie,
        runs: u32,
        /// The least time between two, in seconds.
        pause_s: f64,
    },
    Melt(Melt),
}

impl Load {
    pub fn workload(&self) -> Workload {
        match self {
            Self::Bonnie { .. } => Workload::Bonnie,
            Self::Melt(_) => Workload::Lammps,
        }
    }
}

/// The kinds of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// The microbenchmark
    Bonnie,
    /// The melt
    Lammps,
}

impl Workload {
    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bonnie => "bonnie++",
            Self::Lammps => "LAMMPS",
        }
    }

    /// The serial of its slow or its fast disk.
    pub fn serial(self, fast: bool) -> &'static str {
        match (self, fast) {
            (Self::Bonnie, false) => "bonnie-slow",
            (Self::Bonnie, true) => "bonnie-fast",
            (Self::Lammps, false) => "melt-slow",
            (Self::Lammps, true) => "melt-fast",
        }
    }
}

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub site: Site,
    pub modes: Vec<Mode>,
    pub loads: Vec<(Load, Setting)>,
}

/// One workload on one device.
pub type Sample = ModeSample<Load, Work>;
/// What it found.
pub type Found = modes::Found<Work>;

/// What the workloads say of themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub runs: Vec<Run>,
    pub phases: Vec<ApplicationPhase>,
}

/// One run of bonnie++.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub began_s: f64,
    pub ended_s: f64,
    pub rates: Rates,
}

/// Does what the order says; samples are kept as they are taken. A mode that fails is a sample that says so.
pub fn reproduce(order: &Order) -> anyhow::Result<()> {
    for (load, setting) in &order.loads {
        let workload = load.workload();
        for mode in &order.modes {
            let disks = [workload.serial(false), workload.serial(true)];
            let work = |device: &Device, began_unix_s| work(load, device, began_unix_s);
            let sample = order.site.sample(*mode, (*load, *setting), disks, work);
            samples::add(&sample)?;
            say(&sample);
        }
    }
    Ok(())
}

fn work(load: &Load, device: &Device, began_unix_s: f64) -> anyhow::Result<Work> {
    let mut done = Work::default();
    match load {
        Load::Bonnie { bonnie, runs, pause_s } => {
            for turn in 0..*runs {
                if turn > 0 {
                    let began = Instant::now();
                    device.settle()?;
                    std::thread::sleep(Duration::from_secs_f64(*pause_s).saturating_sub(began.elapsed()));
                }
                let began_s = unix_s() - began_unix_s;
                let rates = bonnie.run(Path::new(MOUNT))?;
                done.runs.push(Run { began_s, ended_s: unix_s() - began_unix_s, rates });
            }
        }
        Load::Melt(melt) => {
            fs::create_dir_all(FILES)?;
            done.phases = melt.run(Path::new(MOUNT), Path::new(FILES))?;
            for phase in &mut done.phases {
                phase.began_s -= began_unix_s;
            }
        }
    }
    Ok(done)
}

/// Progress, for whoever watches.
#[allow(clippy::print_stdout)] // this program's output in the guest
fn say(sample: &Sample) {
    println!("{}", sample.describe(sample.load.workload().name()));
    let Ok(Found { work, .. }) = &sample.outcome else { return };
    for Run { rates: Rates { write_mib_s, rewrite_mib_s, read_mib_s }, .. } in &work.runs {
        println!("    write {write_mib_s:.1}, rewrite {rewrite_mib_s:.1}, read {read_mib_s:.1} MiB/s");
    }
    for ApplicationPhase { compute_s, write_s, sync_s, .. } in &work.phases {
        println!("    compute {compute_s:.1} s, write {write_s:.1} s, sync {sync_s:.1} s");
    }
}
