//! Modes: what a workload's file system lies on, a slow disk, a fast one, or a device whose caching volumes come and go;
//! and a workload on it, watched.

mod prototype;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use surgetank_model::cost::agbs;
use surgetank_model::{Bandwidth, Bytes};

use crate::machine::{Mounted, disk, forget, make_ext4, wait_for};
use crate::surgetank::{Elastic, Places, Rented, Surgetank, Triggers};
use prototype::Prototype;

pub use watch::{Tick, sizes_mib};

/// Where the file system is mounted.
pub const MOUNT: &str = "/run/lab-files";
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

/// How a mode is set.
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

/// What all modes of a guest have in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Site {
    pub surgetank: PathBuf,
    /// Where volumes are rented.
    pub service: String,
    /// What QEMU throttles slow and fast disks to, in MiB/s.
    pub rates_mib_s: (u64, u64),
}

/// One workload in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeSample<L, W> {
    pub mode: Mode,
    pub load: L,
    pub setting: Setting,
    /// MiB/s of the slow and of the fast disk.
    pub rates_mib_s: (u64, u64),
    /// What was found, or what went wrong.
    pub outcome: Result<Found<W>, String>,
}

/// What a sample found. Times count from the workload's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found<W> {
    /// Until the workload had ended.
    pub completion_s: f64,
    /// Until nothing was rented any more.
    pub settled_s: f64,
    /// What the workload says of itself.
    #[serde(flatten)]
    pub work: W,
    pub boosts: u64,
    /// The size that the next caching volume would have.
    pub next_mib: f64,
    pub ticks: Vec<Tick>,
}

impl<L, W> ModeSample<L, W> {
    /// The papers' adjusted storage accumulation: the backing disk until the workload's end, caching volumes until they
    /// were deleted.
    pub fn agbs(&self, found: &Found<W>) -> f64 {
        let (slow, fast) = self.rates_mib_s;
        let rate = Bandwidth::from_mib_s(if self.mode == Mode::StaticFast { fast } else { slow });
        let time = Duration::from_secs_f64(found.completion_s.max(0.0));
        agbs(Bytes::from_mib(self.setting.backing_mib), rate, time) + watch::cache_agbs(&found.ticks, fast)
    }

    /// One line, for whoever watches.
    pub fn describe(&self, workload: &str) -> String {
        let name = self.mode.name();
        match &self.outcome {
            Err(error) => format!("{workload}, {name}: FAILED: {error}"),
            Ok(found) => format!(
                "{workload}, {name}: {:.1} s, settled after {:.1} s, caches {:?} MiB",
                found.completion_s,
                found.settled_s,
                sizes_mib(&found.ticks)
            ),
        }
    }
}

impl Site {
    /// Runs a workload in a mode, over the slow or the fast one of two disks; it is told when it began, in seconds since
    /// 1970.
    pub fn sample<L, W>(
        &self,
        mode: Mode,
        (load, setting): (L, Setting),
        disks: [&str; 2],
        work: impl FnOnce(&Device, f64) -> anyhow::Result<W>,
    ) -> ModeSample<L, W> {
        let outcome = self.measure(mode, &setting, disks, work).map_err(|error| format!("{error:#}"));
        ModeSample { mode, load, setting, rates_mib_s: self.rates_mib_s, outcome }
    }

    fn measure<W>(
        &self,
        mode: Mode,
        setting: &Setting,
        [slow, fast]: [&str; 2],
        work: impl FnOnce(&Device, f64) -> anyhow::Result<W>,
    ) -> anyhow::Result<Found<W>> {
        let (slow, fast) = (disk(slow)?, disk(fast)?);
        let device = Device::open(self, mode, setting, &slow, &fast)?;
        let node = device.node()?;
        let mounted = Mounted::at(&node, MOUNT, &["-o", "noatime"])?;
        let backing = if mode == Mode::StaticFast { fast } else { slow };
        let rented = || device.rented().unwrap_or_default();
        let watched = watch::Watched { device: node, backing: backing.clone(), rented: &rented };
        let began_unix_s = unix_s();
        let (done, ticks) = watch::watching(&watched, || {
            let work = work(&device, began_unix_s)?;
            let completion_s = unix_s() - began_unix_s;
            device.settle()?;
            anyhow::Ok((work, completion_s))
        })?;
        let (work, completion_s) = done.map_err(|error| device.explain(error))?;
        let Rented { boosts, next_mib, .. } = device.rented()?;
        drop(mounted);
        drop(device);
        forget(&backing)?;
        let settled_s = ticks.last().map_or(completion_s, |tick| tick.at_s);
        Ok(Found { completion_s, settled_s, work, boosts, next_mib, ticks })
    }
}

/// Seconds since 1970.
pub fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Makes a file system: before anything watches the device, so that it is not taken for a burst. Its blocks are those of a
/// disk of the papers' size: mkfs would take 1 KiB for a small one, which files of the host that are opened with O_DIRECT
/// do not take.
fn make_files(node: &Path) -> anyhow::Result<()> {
    make_ext4(node, &["-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
}

/// What the file system lies on, and what moves it.
pub enum Device {
    Static(PathBuf),
    Prototype(Prototype),
    Surgetank(Surgetank),
}

impl Device {
    fn open(site: &Site, mode: Mode, setting: &Setting, slow: &Path, fast: &Path) -> anyhow::Result<Self> {
        let elastic = |policy: &str| Elastic {
            cache_mib: (setting.initial_mib, setting.grain_mib, setting.initial_mib.max(setting.backing_mib)),
            grain_mib: setting.grain_mib,
            triggers: Triggers {
                threshold: THRESHOLD,
                inactivity: Duration::from_secs_f64(setting.inactivity_s),
                sampling: Duration::from_secs_f64(setting.sampling_s),
                interval: None,
            },
            ..Elastic::steered(policy, slow, 0, site.rates_mib_s)
        };
        let daemon = |policy| {
            make_files(slow)?;
            let places = Places::plugged(site.service.clone());
            // What was learned on another device or workload.
            let _ = fs::remove_dir_all(&places.files);
            Surgetank::start(&site.surgetank, &elastic(policy), &places)
        };
        Ok(match mode {
            Mode::StaticSlow | Mode::StaticFast => {
                let disk = if mode == Mode::StaticSlow { slow } else { fast };
                make_files(disk)?;
                Self::Static(disk.to_owned())
            }
            Mode::BcachePaper => {
                let delay = Duration::from_secs_f64(setting.writeback_delay_s);
                Self::Prototype(Prototype::start(&elastic("paper"), &site.service, delay)?)
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
    pub fn settle(&self) -> anyhow::Result<()> {
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
