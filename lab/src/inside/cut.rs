//! One life of a guest whose power will be cut: recover, read everything, and go on until the lights go out.
//!
//! The host learns how far it came from files in the shared directory, which outlive the guest: `phase`, and `acks`, a
//! line for each flush that was answered.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::SHARE;
use super::bcache;
use super::peer::Peer;
use super::stretch::{judge, write};
use crate::cuts::oracle::{Fault, Stretch};
use crate::cuts::phase::Phase;
use crate::machine::{disk, run};
use crate::surgetank::{Elastic, Places, Rent, Surgetank};

/// What the guest is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// The daemon's binary.
    pub surgetank: PathBuf,
    /// Whether the disks are new.
    pub first: bool,
    /// Where the power will be cut; `None`: nowhere, this life only reads.
    pub cut: Option<Phase>,
    /// Whether bcache takes the daemon's place.
    pub bcache: bool,
    /// What was written and must be there.
    pub stretches: Vec<Stretch>,
    /// The first operation that no earlier life has begun.
    pub ends: u64,
}

/// What it found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Through the elastic device, after recovery.
    pub device: Vec<Fault>,
    /// On the backing volume alone, after a drain.
    pub backing: Vec<Fault>,
    /// What must be there from now on.
    pub stretches: Vec<Stretch>,
}

/// Where the daemon's own files and its caching volumes lie, on lossy disks too.
const STATE: &str = "/run/lab-state";
const VOLUMES: &str = "/run/lab-volumes";
const CACHE_MIB: u64 = 96;
/// bcache's superblock lies before the data of its backing device.
const BCACHE_OFFSET: u64 = 16 * 512;

/// Lives one life. What is lost is told to the host, and is no error.
pub fn live(life: Life) -> anyhow::Result<()> {
    if life.bcache { live_on_bcache(life) } else { live_on_surgetank(life) }
}

fn live_on_surgetank(life: Life) -> anyhow::Result<()> {
    mount("state", STATE, life.first)?;
    mount("fast", VOLUMES, life.first)?;
    let slow = disk("slow")?;
    let places = Places {
        files: STATE.into(),
        rent: Rent::Local(Path::new(VOLUMES).join("volumes")),
        log: "/lab/surgetank.log".into(),
    };
    let elastic = Elastic::steered("adaptive", &slow, CACHE_MIB, (33, 128));
    let mut surgetank = Surgetank::start(&life.surgetank, &elastic, &places)?;
    let mut verdict = Verdict { stretches: life.stretches, ..Verdict::default() };
    verdict.device = judge(&surgetank.device()?, 0, &mut verdict.stretches, life.ends)?;
    surgetank.idle()?;
    // All of it is on the backing volume now; what a user finds there who takes it away.
    drop(surgetank);
    verdict.backing = judge(&slow, 0, &mut verdict.stretches, life.ends)?;
    say("verdict.json", &serde_json::to_string(&verdict)?)?;
    let Some(cut) = life.cut else { return Ok(()) };

    let mut surgetank = Surgetank::start(&life.surgetank, &elastic, &places)?;
    let device = surgetank.device()?;
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for (index, stretch) in verdict.stretches.iter().enumerate() {
            let (device, writing) = (&device, &writing);
            scope.spawn(move || {
                if let Err(error) = write_and_tell(device, index, stretch, life.ends, writing) {
                    let _ = say("trouble", &format!("a writer failed: {error:#}"));
                }
            });
        }
        let result = phases(&mut surgetank, cut);
        // Nothing after this is reached where a cut was ordered, unless something went wrong.
        writing.store(false, Ordering::Relaxed);
        result
    })
}

/// Goes to the phase in which the power will be cut, says so, and stays there as long as it can.
fn phases(surgetank: &mut Surgetank, cut: Phase) -> anyhow::Result<()> {
    let round = |surgetank: &mut Surgetank, cut: Phase| -> anyhow::Result<()> {
        if cut == Phase::Attach {
            say("phase", "attach")?;
        }
        surgetank.attach()?;
        if cut == Phase::Absorb {
            say("phase", "absorb")?;
            std::thread::sleep(Duration::from_secs(6));
        }
        std::thread::sleep(Duration::from_secs(2));
        if cut == Phase::Drain {
            say("phase", "drain")?;
        }
        surgetank.drain()?;
        if cut == Phase::Detach {
            say("phase", "detach")?;
        }
        surgetank.detach()
    };
    // The writers go on through all of it; so do we, until the lights go out.
    for _ in 0..100 {
        round(surgetank, cut)?;
    }
    anyhow::bail!("the power was not cut")
}

fn live_on_bcache(life: Life) -> anyhow::Result<()> {
    let slow = disk("slow")?;
    let mut verdict = Verdict { stretches: life.stretches, ..Verdict::default() };
    if !life.first {
        // Its cache was detached in the life before: the backing device is all that there is.
        verdict.backing = judge(&slow, BCACHE_OFFSET, &mut verdict.stretches, life.ends)?;
    }
    say("verdict.json", &serde_json::to_string(&verdict)?)?;
    if life.cut.is_none() {
        return Ok(());
    }
    let mut peer = bcache::Bcache::new(slow, disk("fast")?);
    let device = peer.attach()?;
    // What is measured is what a drain leaves behind, and not how soon it begins.
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for (index, stretch) in verdict.stretches.iter().enumerate() {
            let (device, writing) = (&device, &writing);
            scope.spawn(move || {
                if let Err(error) = write_and_tell(device, index, stretch, life.ends, writing) {
                    let _ = say("trouble", &format!("a writer failed: {error:#}"));
                }
            });
        }
        std::thread::sleep(Duration::from_secs(4));
        writing.store(false, Ordering::Relaxed);
    });
    peer.drain()?;
    say("phase", "detach")?;
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// A file system on a lossy disk. One that has lost its power is checked first, as a boot does it.
fn mount(serial: &str, place: &str, first: bool) -> anyhow::Result<()> {
    let node = disk(serial)?.display().to_string();
    fs::create_dir_all(place)?;
    if first {
        run("mkfs.ext4", &["-q", "-F", &node])?;
    }
    run("mount", &["-t", "ext4", &node, place]).map(|_| ())
}

/// Writes one stretch; the host is told of every flush.
fn write_and_tell(
    device: &Path,
    index: usize,
    stretch: &Stretch,
    from: u64,
    writing: &AtomicBool,
) -> anyhow::Result<()> {
    let mut acks = OpenOptions::new().create(true).append(true).open(Path::new(SHARE).join("acks"))?;
    let flushed = |number| Ok(acks.write_all(format!("{index} {number}\n").as_bytes())?);
    write(device, stretch, from, writing, flushed).map(|_| ())
}

/// Tells the host: all of it or nothing.
pub(super) fn say(file: &str, text: &str) -> anyhow::Result<()> {
    let file = Path::new(SHARE).join(file);
    let new = file.with_extension("new");
    fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}
