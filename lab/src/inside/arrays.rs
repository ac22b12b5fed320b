//! An array of ours and one of mdadm's under the same loads, at rest and while a member is replaced; then read caches.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::load::{counted_s, counting};
use super::raid::Raid;
use super::read_caches;
use crate::fio::{self, Measured};
use crate::machine::{ask, disk, run, sectors, wait_for};
use crate::output::say;
use crate::samples;
use crate::surgetank::{Places, Surgetank};

const NAME: &str = "members";
/// How long a replacement may take, from the request to the end.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Chunks of our arrays, so that mdadm's have the same.
const CHUNK_KIB: u64 = 256;
/// How much of the arrays has data when it is measured what a replacement copies, in percent.
pub const FILLED: u64 = 20;

/// Whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// mdadm's RAID-0 over pairs of RAID-1; of read caches dm-cache.
    Kernel,
    Surgetank,
}

impl Side {
    /// Whose array.
    pub fn array(self) -> &'static str {
        match self {
            Self::Kernel => "mdadm",
            Self::Surgetank => "surgetank",
        }
    }

    /// Whose read cache.
    pub fn read_cache(self) -> &'static str {
        match self {
            Self::Kernel => "lvmcache",
            Self::Surgetank => "surgetank",
        }
    }
}

/// What is done to an array. Random requests of 4 KiB are as many as limits of requests can tell; a replacement is measured
/// under 16 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayLoad {
    SequentialReads,
    SequentialWrites,
    RandomReads,
    RandomWrites,
    /// As many reads as writes, as fast as they go.
    Mixed,
    /// As many reads as writes, at a part of what the members serve.
    Paced,
}

impl ArrayLoad {
    /// Those of an array at rest alone.
    pub const OF_STRIPES: [Self; 4] =
        [Self::SequentialReads, Self::SequentialWrites, Self::RandomReads, Self::RandomWrites];
    /// Those of a replacement.
    pub const OF_COPIES: [Self; 2] = [Self::Mixed, Self::Paced];

    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::SequentialReads => "1 MiB sequential reads, 32 in flight",
            Self::SequentialWrites => "1 MiB sequential writes, 32 in flight",
            Self::RandomReads => "4 KiB random reads, 120 in flight",
            Self::RandomWrites => "4 KiB random writes, 120 in flight",
            Self::Mixed => "16 KiB reads and writes, 120 in flight",
            Self::Paced => "16 KiB reads and writes at 40 % of the members' IOPS",
        }
    }

    fn shape(self) -> &'static str {
        match self {
            Self::SequentialReads => "--rw=read --bs=1m --iodepth=32",
            Self::SequentialWrites => "--rw=write --bs=1m --iodepth=32",
            Self::RandomReads => "--rw=randread --bs=4k --iodepth=120",
            Self::RandomWrites => "--rw=randwrite --bs=4k --iodepth=120",
            Self::Mixed => "--rw=randrw --rwmixread=50 --bs=16k --iodepth=120",
            Self::Paced => "--rw=randrw --rwmixread=50 --bs=16k --iodepth=120 --rate_process=poisson",
        }
    }
}

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArraysOrder {
    pub surgetank: PathBuf,
    pub service: String,
    pub members: u32,
    pub member_mib: u64,
    /// What loads use of each member.
    pub used_mib: u64,
    /// What QEMU throttles each member to.
    pub member_mib_s: u64,
    pub member_iops: u64,
    /// How fast a new member is copied to.
    pub copy_kib_s: u64,
    pub rounds: u32,
    /// Turns of the stripe's loads in a round.
    pub turns: u32,
    /// How long each load of the stripe runs.
    pub stripe_s: u64,
    /// How long a load runs at rest, and during a copy.
    pub copy_s: u64,
    pub cache: CacheOrder,
}

/// The read caches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheOrder {
    /// Volumes of the cache; they have a member's limits.
    pub members: u32,
    pub member_mib: u64,
    /// What QEMU throttles the volume below to.
    pub slow_mib_s: u64,
    /// How long the load runs before anything counts, and then.
    pub warm_s: u64,
    pub time_s: u64,
}

/// What was measured, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum ArraysSample {
    /// An array while no member is replaced.
    Stripe { side: Side, load: ArrayLoad, turn: u32, measured: Measured },
    /// The replacement of a member of an array that has data in [`FILLED`] % and no load.
    Filled {
        side: Side,
        /// What was written to disks meanwhile.
        copied_mib: f64,
        /// What of the array lies on one member.
        member_mib: f64,
    },
    /// The replacement of a member of a full array under a load.
    Copy(Copying),
    /// A read cache after its warm-up.
    Cache {
        side: Side,
        turn: u32,
        measured: Measured,
        /// Share of what was read that came from the cache.
        hit_ratio: f64,
    },
}

/// A replacement under a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Copying {
    pub side: Side,
    pub load: ArrayLoad,
    pub turn: u32,
    /// While no member is replaced.
    pub at_rest: Measured,
    /// While one is, all the time.
    pub copying: Measured,
    /// How fast the new member was copied to meanwhile.
    pub copied_mib_s: f64,
    /// From the request until the old member was away.
    pub replaced_s: f64,
}

/// An array in use.
trait Array {
    fn side(&self) -> Side;
    fn device(&self) -> anyhow::Result<PathBuf>;
    /// Has it replace a member; it is being copied to when this returns.
    fn rotate(&mut self, slot: u32) -> anyhow::Result<()>;
    /// What the new member has, from 0 to 1; `None`: it is in place, and the old one away.
    fn copied_share(&mut self) -> anyhow::Result<Option<f64>>;
}

impl Array for Raid {
    fn side(&self) -> Side {
        Side::Kernel
    }

    fn device(&self) -> anyhow::Result<PathBuf> {
        Ok(Self::device(self))
    }

    fn rotate(&mut self, slot: u32) -> anyhow::Result<()> {
        Self::rotate(self, slot as usize)
    }

    fn copied_share(&mut self) -> anyhow::Result<Option<f64>> {
        Self::copied_share(self)
    }
}

impl Array for Surgetank {
    fn side(&self) -> Side {
        Side::Surgetank
    }

    fn device(&self) -> anyhow::Result<PathBuf> {
        Self::device(self)
    }

    fn rotate(&mut self, slot: u32) -> anyhow::Result<()> {
        Self::rotate(self, NAME, slot)?;
        wait_for("a copy", TIMEOUT, || Ok(Self::copied_share(self)?.filter(|share| *share > 0.0).map(drop)))
    }

    fn copied_share(&mut self) -> anyhow::Result<Option<f64>> {
        Self::copied_share(self)
    }
}

/// Runs everything. Both arrays are there all the time, and used in turns.
pub fn all(order: &ArraysOrder) -> anyhow::Result<()> {
    let ArraysOrder { members, member_mib, member_mib_s, member_iops, copy_kib_s, .. } = order;
    let disks = (0..*members).map(|slot| disk(&format!("member-{slot}"))).collect::<Result<Vec<_>, _>>()?;
    say("lab: makes both arrays");
    let raid = Raid::make(disks.clone(), disk("spare")?, CHUNK_KIB, *copy_kib_s)?;
    let limits = format!("bandwidth = \"{member_mib_s} MiB/s\"\niops = \"{member_iops} IOPS\"\n");
    let lines = format!(
        "members = {members}\nmember_size = \"{member_mib} MiB\"\ncopy_rate = \"{copy_kib_s} KiB/s\"\nrotate = \"never\"\n{limits}"
    );
    let surgetank = Surgetank::over_array(&order.surgetank, NAME, &lines, &Places::plugged(order.service.clone()))?;
    {
        let mut arrays: [Box<dyn Array>; 2] = [Box::new(raid), Box::new(surgetank)];
        for array in &mut arrays {
            filled(order, &mut **array)?;
        }
        for round in 0..order.rounds {
            stripes(order, &arrays, round)?;
            copies(order, &mut arrays, round)?;
        }
    }
    read_caches::all(order, &disks, &limits)
}

/// What a replacement writes while a part of the array has data. Then all of it gets some.
fn filled(order: &ArraysOrder, array: &mut dyn Array) -> anyhow::Result<()> {
    let (side, device) = (array.side(), array.device()?);
    let write = |percent: u64| {
        let (size, filename) = (format!("--size={percent}%"), format!("--filename={}", device.display()));
        let words = ["--rw=write", "--bs=1m", "--iodepth=16", "--ioengine=libaio", "--direct=1", "--end_fsync=1"];
        run("fio", &[&["--name=fill", &*size, &*filename], &words[..]].concat()).map(drop)
    };
    write(FILLED)?;
    let before = written_sectors()?;
    array.rotate(0)?;
    wait_for("the end of a replacement", TIMEOUT, || Ok(array.copied_share()?.is_none().then_some(())))?;
    let after = written_sectors()?;
    let copied: u64 = after.iter().map(|(disk, now)| now - before.get(disk).copied().unwrap_or(0).min(*now)).sum();
    let (copied_mib, member_mib) =
        (copied as f64 / 2048.0, sectors(&device)? as f64 / 2048.0 / f64::from(order.members));
    say(&format!(
        "lab: {}: {FILLED} % have data: a replacement writes {copied_mib:.1} MiB, of {member_mib:.1} MiB a member",
        side.array()
    ));
    samples::add(&ArraysSample::Filled { side, copied_mib, member_mib })?;
    write(100)
}

/// Sectors that were written to each of the guest's disks since it was plugged in.
fn written_sectors() -> anyhow::Result<BTreeMap<String, u64>> {
    let mut written = BTreeMap::new();
    for disk in fs::read_dir("/sys/block").context("cannot read /sys/block")? {
        let name = disk?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("vd") {
            continue;
        }
        // One that was unplugged meanwhile has none.
        let Ok(stat) = ask(format!("/sys/block/{name}/stat")) else { continue };
        // reads, merged, sectors, time, writes, merged, sectors
        let sectors = stat.split_whitespace().nth(6).and_then(|field| field.parse().ok());
        written.insert(name, sectors.with_context(|| format!("cannot read a disk's statistics: {stat}"))?);
    }
    Ok(written)
}

fn stripes(order: &ArraysOrder, arrays: &[Box<dyn Array>; 2], round: u32) -> anyhow::Result<()> {
    for turn in 0..order.turns {
        let turn = round * order.turns + turn;
        for load in ArrayLoad::OF_STRIPES {
            for array in in_turn(arrays, turn) {
                let measured = run_load(order, &*arrays[array], load, (turn, order.stripe_s))?;
                let side = arrays[array].side();
                say(&format!(
                    "lab: {}, {}: {:.1} MiB/s, {:.0} IOPS",
                    side.array(),
                    load.name(),
                    measured.mib_s(),
                    measured.iops
                ));
                samples::add(&ArraysSample::Stripe { side, load, turn, measured })?;
            }
        }
    }
    Ok(())
}

/// Who begins changes from turn to turn.
fn in_turn(arrays: &[Box<dyn Array>; 2], turn: u32) -> impl Iterator<Item = usize> + use<> {
    let count = arrays.len();
    (0..count).map(move |at| (at + turn as usize) % count)
}

fn copies(order: &ArraysOrder, arrays: &mut [Box<dyn Array>; 2], round: u32) -> anyhow::Result<()> {
    for load in ArrayLoad::OF_COPIES {
        for array in in_turn(arrays, round) {
            let sample = copy(order, &mut *arrays[array], load, round)?;
            let Copying { side, at_rest, copying, copied_mib_s, replaced_s, .. } = &sample;
            say(&format!(
                "lab: {}, {}: at rest {:.0} IOPS, p99 {:.0} ms; while {copied_mib_s:.2} MiB/s are copied {:.0} IOPS, \
                 p99 {:.0} ms; replaced in {replaced_s:.1} s",
                side.array(),
                load.name(),
                at_rest.iops,
                at_rest.p99_us / 1000.0,
                copying.iops,
                copying.p99_us / 1000.0,
            ));
            samples::add(&ArraysSample::Copy(sample))?;
        }
    }
    Ok(())
}

fn copy(order: &ArraysOrder, array: &mut dyn Array, load: ArrayLoad, turn: u32) -> anyhow::Result<Copying> {
    let at_rest = run_load(order, array, load, (turn, order.copy_s))?;
    let asked = Instant::now();
    // Not the first, which has been replaced before.
    array.rotate((turn + 1) % order.members)?;
    let (began, first) = (Instant::now(), array.copied_share()?);
    let copying = run_load(order, array, load, (turn, order.copy_s))?;
    let (Some(first), Some(last)) = (first, array.copied_share()?) else {
        bail!("a copy ended before its load: this machine is too slow for loads of this length");
    };
    let member_mib = sectors(&array.device()?)? as f64 / 2048.0 / f64::from(order.members);
    let copied_mib_s = (last - first) * member_mib / began.elapsed().as_secs_f64();
    wait_for("the end of a replacement", TIMEOUT, || Ok(array.copied_share()?.is_none().then_some(())))?;
    let replaced_s = asked.elapsed().as_secs_f64();
    Ok(Copying { side: array.side(), load, turn, at_rest, copying, copied_mib_s, replaced_s })
}

/// In each turn other places, the same for both sides.
fn run_load(
    order: &ArraysOrder,
    array: &dyn Array,
    load: ArrayLoad,
    (turn, time_s): (u32, u64),
) -> anyhow::Result<Measured> {
    let mut words: Vec<String> = fio::words(load.shape()).map(str::to_owned).collect();
    words.extend(["--direct=1", "--ioengine=libaio", "--time_based"].map(str::to_owned));
    words.push(format!("--filename={}", array.device()?.display()));
    words.push(format!("--runtime={time_s}"));
    // Both arrays have that much, so that a request meets the same member in both.
    words.push(format!("--size={}m", u64::from(order.members) * order.used_mib));
    words.push(format!("--randseed={}", turn + 1));
    words.extend(counting());
    if load == ArrayLoad::Paced {
        // A fifth of what the members serve together for reads, and as much for writes.
        let each = u64::from(order.members) * order.member_iops / 5;
        words.push(format!("--rate_iops={each},{each}"));
    }
    let measured = fio::parse(&run("fio", &words.iter().map(String::as_str).collect::<Vec<_>>())?)?;
    Ok(Measured { busy_s: counted_s()?, ..measured })
}
