//! The papers' experiments: bonnie++ and LAMMPS on a file system over each device, in turns.

mod bonnie;
mod checkpoints;
mod melt;
mod prototype;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::machine::{Mounted, disk, forget, run, wait_for};
use crate::surgetank::{Elastic, Places, Rented, Surgetank, Triggers};
use prototype::Prototype;

pub use bonnie::{Bonnie, Rates};
pub use checkpoints::Checkpoints;
pub use melt::{BYTES_PER_ATOM, Melt, Phase};
pub use watch::{Tick, cache_agbs, sizes_mib};

/// Where file systems are mounted, and where programs have their small files.
const MOUNT: &str = "/run/lab-files";
const WORK: &str = "/run/lab-work";
/// How long a device may take to delete everything.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// What is under the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The slow disk by itself.
    StaticSlow,
    /// The fast disk by itself.
    StaticFast,
    /// bcache under the papers' controller: their prototype.
    BcachePaper,
    /// surgetank with the papers' controller.
    Paper,
    /// surgetank with its own.
    Adaptive,
}

impl Mode {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 5] = [Self::StaticSlow, Self::StaticFast, Self::BcachePaper, Self::Paper, Self::Adaptive];

    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaticSlow => "static-slow",
            Self::StaticFast => "static-fast",
            Self::BcachePaper => "bcache, papers' controller",
            Self::Paper => "surgetank paper",
            Self::Adaptive => "surgetank adaptive",
        }
    }

    /// Whether caching volumes come and go.
    pub fn is_elastic(self) -> bool {
        !matches!(self, Self::StaticSlow | Self::StaticFast)
    }
}

/// What runs on the file system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Several runs of bonnie++, with a pause after each.
    Bonnie {
        /// Each run.
        bonnie: Bonnie,
        /// How many.
        runs: u32,
        /// The least time between two, in seconds.
        pause_s: f64,
    },
    /// LAMMPS.
    Melt(Melt),
    /// An application that does nothing but sleep and write.
    Checkpoints(Checkpoints),
}

impl Load {
    /// Which kind it is.
    pub fn workload(&self) -> Workload {
        match self {
            Self::Bonnie { .. } => Workload::Bonnie,
            Self::Melt(_) => Workload::Lammps,
            Self::Checkpoints(_) => Workload::Checkpoints,
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
    /// Sleeping and writing, for `cargo lab validate --lab`: only if it is named
    Checkpoints,
}

impl Workload {
    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bonnie => "bonnie++",
            Self::Lammps => "LAMMPS",
            Self::Checkpoints => "checkpoints",
        }
    }

    /// The serial of its slow or its fast disk.
    pub fn serial(self, fast: bool) -> &'static str {
        match (self, fast) {
            (Self::Bonnie, false) => "bonnie-slow",
            (Self::Bonnie, true) => "bonnie-fast",
            (Self::Lammps, false) => "melt-slow",
            (Self::Lammps, true) => "melt-fast",
            (Self::Checkpoints, false) => "plain-slow",
            (Self::Checkpoints, true) => "plain-fast",
        }
    }
}

/// The papers' setting, scaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Size of the backing disk (N).
    pub backing_mib: u64,
    /// First caching volume.
    pub initial_mib: u64,
    /// Sizes are multiples of this.
    pub grain_mib: u64,
    /// Inactivity delay (ID), in seconds.
    pub inactivity_s: f64,
    /// How often controllers look, in seconds.
    pub sampling_s: f64,
    /// How long bcache's writer-back waits, in seconds.
    pub writeback_delay_s: f64,
}

/// The utilization threshold (UT) of the papers.
pub const THRESHOLD: f64 = 0.30;

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The daemon's binary.
    pub surgetank: PathBuf,
    /// Where volumes are rented.
    pub service: String,
    /// What QEMU throttles slow disks to.
    pub slow_mib_s: u64,
    /// What QEMU throttles fast disks to.
    pub fast_mib_s: u64,
    /// On what.
    pub modes: Vec<Mode>,
    /// What runs.
    pub loads: Vec<(Load, Setting)>,
}

/// One workload on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// On what.
    pub mode: Mode,
    /// What ran.
    pub load: Load,
    /// How things were set.
    pub setting: Setting,
    /// MiB/s of the slow and of the fast disk.
    pub rates_mib_s: (u64, u64),
    /// What was found, or what went wrong.
    pub outcome: Result<Found, String>,
}

/// What a sample found. Times count from the workload's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Until the workload had ended.
    pub completion_s: f64,
    /// Until nothing was rented any more.
    pub settled_s: f64,
    /// bonnie++'s runs.
    pub runs: Vec<Run>,
    /// Phases of the other workloads.
    pub phases: Vec<Phase>,
    /// Boosts.
    pub boosts: u64,
    /// The size that the next caching volume would have.
    pub next_mib: f64,
    /// What moved.
    pub ticks: Vec<Tick>,
}

/// One run of bonnie++.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// When it began.
    pub began_s: f64,
    /// When it had ended.
    pub ended_s: f64,
    /// What it measured.
    pub rates: Rates,
}

/// Does what the order says; samples are kept as they are taken. A mode that fails is a sample that says so.
pub fn reproduce(order: &Order) -> anyhow::Result<()> {
    for (load, setting) in &order.loads {
        for mode in &order.modes {
            let outcome = measure(order, *mode, load, setting).map_err(|error| format!("{error:#}"));
            let rates_mib_s = (order.slow_mib_s, order.fast_mib_s);
            let sample = Sample { mode: *mode, load: *load, setting: *setting, rates_mib_s, outcome };
            super::keep(&sample)?;
            say(&sample);
        }
    }
    Ok(())
}

fn measure(order: &Order, mode: Mode, load: &Load, setting: &Setting) -> anyhow::Result<Found> {
    let workload = load.workload();
    let (slow, fast) = (disk(workload.serial(false))?, disk(workload.serial(true))?);
    let device = Device::open(order, mode, setting, &slow, &fast)?;
    let node = device.node()?;
    let mounted = Mounted::at(&node, MOUNT, &["-o", "noatime"])?;
    let backing = if mode == Mode::StaticFast { fast } else { slow };
    let rented = || device.rented().unwrap_or_default();
    let watched = watch::Watched { device: node, backing: backing.clone(), rented: &rented };
    let (found, began_unix_s, ticks) = watch::watching(&watched, || {
        let found = work(load, &device)?;
        let ended_unix_s = unix_s();
        device.settle()?;
        Ok::<_, anyhow::Error>((found, ended_unix_s))
    })?;
    let (mut found, ended_unix_s) = found.map_err(|error| device.explain(error))?;
    let last = device.rented()?;
    // What was seen of the clock of the wall becomes what was seen since the start.
    for run in &mut found.runs {
        run.began_s -= began_unix_s;
        run.ended_s -= began_unix_s;
    }
    for phase in &mut found.phases {
        phase.began_s -= began_unix_s;
    }
    found.completion_s = ended_unix_s - began_unix_s;
    found.settled_s = ticks.last().map_or(found.completion_s, |tick| tick.at_s);
    (found.boosts, found.next_mib, found.ticks) = (last.boosts, last.next_mib, ticks);
    drop(mounted);
    drop(device);
    forget(&backing)?;
    Ok(found)
}

/// Runs the workload.
fn work(load: &Load, device: &Device) -> anyhow::Result<Found> {
    let mut found = Found::default();
    match load {
        Load::Bonnie { bonnie, runs, pause_s } => {
            for turn in 0..*runs {
                if turn > 0 {
                    let began = Instant::now();
                    device.settle()?;
                    std::thread::sleep(Duration::from_secs_f64(*pause_s).saturating_sub(began.elapsed()));
                }
                let began_s = unix_s();
                let rates = bonnie.run(Path::new(MOUNT))?;
                found.runs.push(Run { began_s, ended_s: unix_s(), rates });
            }
        }
        Load::Melt(melt) => {
            fs::create_dir_all(WORK)?;
            found.phases = melt.run(Path::new(MOUNT), Path::new(WORK))?;
        }
        Load::Checkpoints(checkpoints) => found.phases = checkpoints.run(Path::new(MOUNT))?,
    }
    Ok(found)
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Makes a file system: before anything watches the device, so that it is not taken for a burst. Its blocks are those of a
/// disk of the papers' size: mkfs would take 1 KiB for a small one, which files of the host that are opened with O_DIRECT
/// do not take.
fn make_files(node: &Path) -> anyhow::Result<()> {
    let node = node.display().to_string();
    let words = ["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", &node];
    run("mkfs.ext4", &words).map(|_| ())
}

/// What the file system lies on, and what moves it.
enum Device {
    Static(PathBuf),
    Prototype(Prototype),
    Surgetank(Surgetank),
}

impl Device {
    fn open(order: &Order, mode: Mode, setting: &Setting, slow: &Path, fast: &Path) -> anyhow::Result<Self> {
        let elastic = |policy: &str| Elastic {
            cache_mib: (setting.initial_mib, setting.grain_mib, setting.initial_mib.max(setting.backing_mib)),
            grain_mib: setting.grain_mib,
            triggers: Triggers {
                threshold: THRESHOLD,
                inactivity: Duration::from_secs_f64(setting.inactivity_s),
                sampling: Duration::from_secs_f64(setting.sampling_s),
                interval: None,
            },
            ..Elastic::steered(policy, slow, 0, (order.slow_mib_s, order.fast_mib_s))
        };
        let daemon = |policy| {
            make_files(slow)?;
            let places = Places::plugged(order.service.clone());
            // What was learned on another device or workload.
            let _ = fs::remove_dir_all(&places.files);
            Surgetank::start(&order.surgetank, &elastic(policy), &places)
        };
        Ok(match mode {
            Mode::StaticSlow | Mode::StaticFast => {
                let disk = if mode == Mode::StaticSlow { slow } else { fast };
                make_files(disk)?;
                Self::Static(disk.to_owned())
            }
            Mode::BcachePaper => {
                let delay = Duration::from_secs_f64(setting.writeback_delay_s);
                Self::Prototype(Prototype::start(&elastic("paper"), &order.service, delay)?)
            }
            Mode::Paper => Self::Surgetank(daemon("paper")?),
            Mode::Adaptive => Self::Surgetank(daemon("adaptive")?),
        })
    }

    fn node(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Static(disk) => Ok(disk.clone()),
            Self::Prototype(prototype) => Ok(prototype.device.clone()),
            Self::Surgetank(daemon) => daemon.device(),
        }
    }

    fn rented(&self) -> anyhow::Result<Rented> {
        match self {
            Self::Static(_) => Ok(Rented { idle: true, ..Rented::default() }),
            Self::Prototype(prototype) => Ok(prototype.rented()),
            Self::Surgetank(daemon) => daemon.rented(),
        }
    }

    /// Waits until nothing is rented.
    fn settle(&self) -> anyhow::Result<()> {
        let idle = || {
            // A daemon that has ended does not come to rest.
            let rented = self.rented()?;
            Ok((rented.idle && rented.cache_mib == 0.0).then_some(()))
        };
        wait_for("the end of the boost", TIMEOUT, idle).map_err(|error| self.explain(error))
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Self::Prototype(prototype) if prototype.trouble().is_some() => {
                error.context(format!("the prototype had trouble: {}", prototype.trouble().unwrap_or_default()))
            }
            _ => error,
        }
    }
}

/// Progress, for whoever watches.
#[allow(clippy::print_stdout)] // this program's output in the guest
fn say(sample: &Sample) {
    let what = sample.load.workload().name();
    let name = sample.mode.name();
    match &sample.outcome {
        Err(error) => println!("{what}, {name}: FAILED: {error}"),
        Ok(found) => {
            let sizes = sizes_mib(&found.ticks);
            println!(
                "{what}, {name}: {:.1} s, settled after {:.1} s, caches {sizes:?} MiB",
                found.completion_s, found.settled_s
            );
            for Run { rates, .. } in &found.runs {
                println!(
                    "    write {:.1}, rewrite {:.1}, read {:.1} MiB/s",
                    rates.write_mib_s, rates.rewrite_mib_s, rates.read_mib_s
                );
            }
            for phase in &found.phases {
                println!(
                    "    compute {:.1} s, write {:.1} s, sync {:.1} s",
                    phase.compute_s, phase.write_s, phase.sync_s
                );
            }
        }
    }
}
