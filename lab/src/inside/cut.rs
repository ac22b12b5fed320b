//! One life of a guest whose power will be cut: recover, read everything, and go on until the lights go out.
//!
//! The host learns how far it came from its messages and from the flushes that were answered, both of which outlive the guest.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bcache;
use super::peer::Peer;
use super::stretch::{judge, write};
use crate::cuts::acks::Acks;
use crate::cuts::oracle::{Fault, Stretch};
use crate::cuts::phase::BoostPhase;
use crate::machine::{Mounted, disk, make_ext4, repair_ext4};
use crate::messages::tell_host;
use crate::surgetank::{Elastic, Places, Surgetank};

/// What the guest is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    pub surgetank: PathBuf,
    /// Whether the disks are new.
    pub first: bool,
    /// Where the power will be cut; `None`: nowhere, this life only reads.
    pub cut: Option<BoostPhase>,
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

/// The message of what was found.
pub const VERDICT: &str = "verdict";
/// That of the phase in which the power is to be cut, once it has begun.
pub const PHASE: &str = "phase";
/// That of what went wrong otherwise.
pub const TROUBLE: &str = "trouble";

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
    let _mounted = [mount("state", STATE, life.first)?, mount("fast", VOLUMES, life.first)?];
    let slow = disk("slow")?;
    let places = Places::local(STATE, VOLUMES);
    let elastic = Elastic::steered("adaptive", &slow, CACHE_MIB, (33, 128));
    let mut surgetank = Surgetank::start(&life.surgetank, &elastic, &places)?;
    let mut verdict = Verdict { stretches: life.stretches, ..Verdict::default() };
    verdict.device = judge(&surgetank.device()?, 0, &mut verdict.stretches, life.ends)?;
    surgetank.idle()?;
    // All of it is on the backing volume now; what a user finds there who takes it away.
    drop(surgetank);
    verdict.backing = judge(&slow, 0, &mut verdict.stretches, life.ends)?;
    tell_host(VERDICT, &verdict)?;
    let Some(cut) = life.cut else { return Ok(()) };

    let mut surgetank = Surgetank::start(&life.surgetank, &elastic, &places)?;
    let device = surgetank.device()?;
    while_writing(&device, &verdict.stretches, life.ends, || phases(&mut surgetank, cut))
}

/// Goes to the phase in which the power will be cut, says so, and stays there as long as it can.
fn phases(surgetank: &mut Surgetank, cut: BoostPhase) -> anyhow::Result<()> {
    let enter = |phase| if phase == cut { tell_host(PHASE, &phase) } else { Ok(()) };
    // The writers go on through all of it; so do we, until the lights go out.
    for _ in 0..100 {
        enter(BoostPhase::Attach)?;
        surgetank.attach()?;
        enter(BoostPhase::Absorb)?;
        std::thread::sleep(Duration::from_secs(if cut == BoostPhase::Absorb { 8 } else { 2 }));
        enter(BoostPhase::Drain)?;
        surgetank.drain()?;
        enter(BoostPhase::Detach)?;
        surgetank.detach()?;
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
    tell_host(VERDICT, &verdict)?;
    if life.cut.is_none() {
        return Ok(());
    }
    let mut peer = bcache::Bcache::new(slow, disk("fast")?);
    let device = peer.attach()?;
    // What is measured is what a drain leaves behind, and not how soon it begins.
    while_writing(&device, &verdict.stretches, life.ends, || {
        std::thread::sleep(Duration::from_secs(4));
        Ok(())
    })?;
    peer.drain()?;
    tell_host(PHASE, &BoostPhase::Detach)?;
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Writes all stretches until `work` has come to its end. A writer that fails tells the host.
fn while_writing(
    device: &Path,
    stretches: &[Stretch],
    from: u64,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (index, stretch) in stretches.iter().enumerate() {
            let over = &over;
            scope.spawn(move || {
                if let Err(error) = write_and_tell(device, index, stretch, from, over) {
                    let _ = tell_host(TROUBLE, &format!("a writer failed: {error:#}"));
                }
            });
        }
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// A file system on a lossy disk. One that has lost its power is repaired first, as a boot does it: ext4's superblock is two
/// sectors, of which a cut may keep one.
fn mount(serial: &str, place: &'static str, first: bool) -> anyhow::Result<Mounted> {
    let node = disk(serial)?;
    if first {
        make_ext4(&node, &[])?;
    } else {
        repair_ext4(&node, "-y")?;
    }
    Mounted::at(&node, place, &[])
}

/// Writes one stretch; the host is told of every flush.
fn write_and_tell(
    device: &Path,
    index: usize,
    stretch: &Stretch,
    mut from: u64,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    let mut acks = Acks::in_guest()?;
    write(device, stretch, &mut from, over, |number| acks.flushed(index, number))
}
