//! Power cuts replayed: one guest logs every write of a load in the order in which it became durable, and then finds out
//! at many points of that log what a machine whose power failed there would have kept.

pub mod log;
pub mod points;
pub mod renames;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use surgetank_model::{Bandwidth, Bytes};

use crate::campaign::{Campaign, Ready};
use crate::cuts::planted;
use crate::flags::name;
use crate::host::Lab;
use crate::inside::{GuestJob, Replay};
use crate::interrupt::Interrupt;
use crate::output;
use crate::plan::{Disk, Plan};
use crate::samples;

use report::Report;

/// The disk whose writes are logged: the backing volume and all that the daemon keeps.
const DATA: Bytes = Bytes::from_mib(192);
/// Slow enough that a drain takes a while.
const DATA_MIB_S: u64 = 16;
/// Room for everything that a disk of that rate takes in the longest load; the file is sparse.
const LOG: Bytes = Bytes::from_gib(16);
/// How long one boost and one point may take on a busy machine, and everything else.
const BOOST_MAX: Duration = Duration::from_secs(300);
const POINT_MAX: Duration = Duration::from_secs(30);
const REST_MAX: Duration = Duration::from_secs(300);

/// Flags of the replay.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// At how many points of the log the power is cut
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    points: u32,
    /// Through how many boosts the load goes on
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    boosts: u32,
    /// The controller: paper writes everything of a burst to the caching volume, adaptive to both volumes
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "paper"])]
    policy: String,
    #[command(flatten)]
    campaign: Campaign,
}

impl Arguments {
    /// Replays and reports; whether nothing was lost.
    pub fn run(&self) -> anyhow::Result<bool> {
        let Ready { interrupt, lab, surgetank, out } = self.campaign.prepare("replay")?;
        let results = lab.directory()?;
        samples::begin(results.path())?;
        let guest = self.guest(&lab, &interrupt, surgetank, results.path());
        // What was found before a failure or Ctrl-C stands in the report all the same.
        let report = Report::read(self.campaign.seed, results.path())?;
        if report.logged.is_some() {
            output::write(&out, "replay", &report.markdown(), &report)?;
        }
        guest?;
        Ok(report.is_whole())
    }

    fn guest(&self, lab: &Lab, interrupt: &Interrupt, surgetank: PathBuf, results: &Path) -> anyhow::Result<()> {
        let order = Replay {
            surgetank,
            seed: self.campaign.seed,
            policy: self.policy.clone(),
            boosts: self.boosts,
            points: self.points as usize,
        };
        let script = GuestJob::Replay.script(&order, results)?;
        let data = Disk::new("data", DATA).throttled(Bandwidth::from_mib_s(DATA_MIB_S));
        let plan = Plan {
            // One core gives each disk one queue. Flushes of two queues may overtake each other, and the log would hold
            // a write after a FLUSH that has made it durable.
            cores: 1,
            disks: vec![data, Disk::new("log", LOG), Disk::new("base", DATA), Disk::new("changes", DATA)],
            results: Some(results.to_owned()),
            echo: true,
            timeout: BOOST_MAX * self.boosts + POINT_MAX * self.points + REST_MAX,
            ..Plan::new(&name(GuestJob::Replay), planted(&script))
        };
        let outcome = plan.boot(lab, interrupt)?.wait(interrupt)?;
        if !outcome.passed() {
            bail!("the guest failed: {}", outcome.describe());
        }
        Ok(())
    }
}
