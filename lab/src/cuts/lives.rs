//! Life after life of one guest over the same disks, each but the last ended by a power cut.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes};

use super::acks;
use super::lossy::{self, Lost};
use super::oracle::{BLOCK, Stretch, UNIT};
use super::phase::BoostPhase;
use super::report::{Cut, Report};
use crate::campaign::{Ready, keep};
use crate::flags::name;
use crate::guest::Guest;
use crate::inside::{GuestJob, Life, PHASE, TROUBLE, VERDICT, Verdict};
use crate::messages;
use crate::nbd::Server;
use crate::output::say;
use crate::plan::{Disk, Media, Plan};

/// Names the bug of a daemon that was built with them.
const PLANT: &str = "SURGETANK_PLANT";

/// A guest's script, told of that bug.
pub fn planted(script: &str) -> String {
    std::env::var(PLANT).map_or_else(|_| script.to_owned(), |bug| format!("export {PLANT}={bug}\n{script}"))
}

const WRITERS: u64 = 4;
const STRETCH_BLOCKS: u64 = 2048 * UNIT;
const SLOW: Bytes = Bytes::from_mib(64);
const FAST: Bytes = Bytes::from_mib(256);
const STATE: Bytes = Bytes::from_mib(64);
/// How long a guest may take to boot, recover, read everything and reach its phase on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(400);
/// Operations of one life are numbered from a multiple of this: no life begins so many.
const LIFE: u64 = 1 << 24;

/// A machine's disks, and what must be on them.
struct Machine<'a> {
    ready: &'a Ready,
    bcache: bool,
    disks: Vec<(&'static str, Bytes, Option<u64>, Server<lossy::Disk>)>,
    /// The directory that the guest shares. Dropped after the disks, which end over their sockets in it.
    share: tempfile::TempDir,
    stretches: Vec<Stretch>,
    lives: u64,
}

impl<'a> Machine<'a> {
    fn new(ready: &'a Ready, bcache: bool, seed: u64) -> anyhow::Result<Self> {
        let share = ready.lab.directory()?;
        let disk = |name, size, mib_s| Ok((name, size, mib_s, lossy::Disk::serve(share.path(), name, size)?));
        let disks = [("slow", SLOW, Some(33)), ("fast", FAST, Some(128)), ("state", STATE, None)];
        let disks =
            disks.into_iter().map(|(name, size, mib_s)| disk(name, size, mib_s)).collect::<anyhow::Result<_>>()?;
        let stretch = |index| Stretch::new(seed.wrapping_mul(WRITERS) + index, index * STRETCH_BLOCKS, STRETCH_BLOCKS);
        let stretches = (0..WRITERS).map(stretch).collect();
        Ok(Self { ready, bcache, share, disks, stretches, lives: 0 })
    }

    fn results(&self) -> PathBuf {
        self.share.path().join("share")
    }

    fn boot(&mut self, cut: Option<BoostPhase>) -> anyhow::Result<Guest> {
        let results = self.results();
        fs::create_dir_all(&results)?;
        for old in [PHASE, TROUBLE, VERDICT] {
            let _ = fs::remove_file(results.join(old));
        }
        let life = Life {
            surgetank: self.ready.surgetank.clone(),
            first: self.lives == 0,
            cut,
            bcache: self.bcache,
            stretches: self.stretches.clone(),
            ends: self.ends(),
        };
        let script = GuestJob::Cut.script(&life, &results)?;
        let disks = self.disks.iter().map(|(name, size, mib_s, server)| Disk {
            bandwidth: mib_s.map(Bandwidth::from_mib_s),
            media: Media::Nbd(server.socket().to_owned()),
            ..Disk::new(name, *size)
        });
        let plan = Plan {
            disks: disks.collect(),
            results: Some(results),
            timeout: TIMEOUT,
            ..Plan::new(&name(GuestJob::Cut), planted(&script))
        };
        plan.boot(&self.ready.lab, &self.ready.interrupt)
    }

    /// The first operation that no life has begun.
    fn ends(&self) -> u64 {
        self.lives * LIFE + 1
    }

    /// What goes wrong in the guest is told, whatever the power does.
    fn check_trouble(&self) -> anyhow::Result<()> {
        messages::heard(&self.results(), TROUBLE)?.map_or(Ok(()), |trouble: String| bail!("{trouble}"))
    }

    fn keep(&self) -> anyhow::Result<()> {
        keep(&self.ready.out, &[self.results(), self.share.path().to_owned()])
    }

    /// Waits for a message of the guest's.
    fn wait<T: DeserializeOwned>(&self, guest: &mut Guest, message: &str) -> anyhow::Result<T> {
        messages::wait(&self.ready.interrupt, guest, message, TIMEOUT, || self.check_trouble())
    }

    /// Boots, takes the verdict on what the last cut left, and cuts again.
    fn live(&mut self, cut: Option<BoostPhase>, chance: &mut Random) -> anyhow::Result<(Verdict, Lost)> {
        let mut guest = self.boot(cut)?;
        let verdict: Verdict = self.wait(&mut guest, VERDICT)?;
        self.stretches.clone_from(&verdict.stretches);
        if cut.is_none() {
            guest.wait(&self.ready.interrupt)?;
            return Ok((verdict, Lost::default()));
        }
        let phase: BoostPhase = self.wait(&mut guest, PHASE)?;
        std::thread::sleep(phase.longest().mul_f64(chance.unit()));
        if guest.has_ended() {
            bail!("the guest ended in {}: {}", name(phase), guest.wait(&self.ready.interrupt)?.describe());
        }
        guest.cut_power();
        drop(guest);
        self.check_trouble()?;
        self.lives += 1;
        acks::take(&self.results(), &mut self.stretches);
        // From "all of it is gone" to "none of it": disks differ.
        let kept = [0.0, 0.1, 0.5, 0.9, 1.0][chance.below(5) as usize];
        let mut lost = Lost::default();
        for (_, _, _, disk) in &self.disks {
            let of_disk = disk.medium().cut(chance, kept)?;
            lost.pending_bytes += of_disk.pending_bytes;
            lost.lost_bytes += of_disk.lost_bytes;
        }
        Ok((verdict, lost))
    }
}

/// Cuts surgetank's power so many times.
pub fn surgetank(ready: &Ready, seed: u64, cuts: u32, report: &mut Report) -> anyhow::Result<()> {
    let mut machine = Machine::new(ready, false, seed)?;
    let mut chance = Random::from_seed(seed);
    let mut before: Option<Cut> = None;
    for index in 0..=cuts {
        let phase = (index < cuts).then(|| BoostPhase::ALL[index as usize % 4]);
        let life = machine.live(phase, &mut chance).with_context(|| format!("life {index}, seed {seed}"));
        let (verdict, lost) = match life {
            Ok(life) => life,
            Err(error) => {
                ready.interrupt.check()?;
                machine.keep()?;
                return Err(error);
            }
        };
        // A life judges what the cut before it left.
        if let Some(mut cut) = before.take() {
            cut.judged(&verdict);
            say(&cut.describe());
            // The first is told by what came before it; those that follow may be its echo.
            if cut.faults > 0 && report.lost() == 0 {
                machine.keep()?;
            }
            report.surgetank.push(cut);
        }
        before = phase.map(|phase| Cut::new(index, phase, lost, flushed_bytes(&machine.stretches)));
    }
    Ok(())
}

/// The same with bcache: its power is cut after a drain and a detach, which is when a rented cache is deleted.
pub fn bcache(ready: &Ready, seed: u64, cuts: u32, report: &mut Report) -> anyhow::Result<()> {
    for index in 0..cuts {
        let mut machine = Machine::new(ready, true, seed + u64::from(index))?;
        let mut chance = Random::from_seed(seed + u64::from(index));
        let (_, lost) = machine.live(Some(BoostPhase::Detach), &mut chance).context("bcache")?;
        let mut cut = Cut::new(index, BoostPhase::Detach, lost, flushed_bytes(&machine.stretches));
        let (verdict, _) = machine.live(None, &mut chance).context("bcache")?;
        cut.judged(&verdict);
        say(&format!("bcache: {}", cut.describe()));
        report.bcache.push(cut);
    }
    Ok(())
}

/// How much must be found.
fn flushed_bytes(stretches: &[Stretch]) -> u64 {
    let blocks = stretches.iter().flat_map(|stretch| &stretch.least).filter(|least| **least > 0).count();
    (blocks * BLOCK) as u64
}
