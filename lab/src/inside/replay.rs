//! A load whose every write is logged in the order in which it became durable; then power cuts at many points of that
//! log, each recovered, mounted, read and checked.
//!
//! Backing volume, caching volume and the daemon's own state lie on parts of one disk, so that one log holds the writes to
//! all of them: what stands before a point is the machine's disks as a power cut there leaves them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;

use super::mapper::Mapped;
use super::peer::Peer;
use super::stretch;
use crate::cuts::oracle::{BLOCK, Stretch};
use crate::cuts::phase::BoostPhase;
use crate::machine::{Mounted, disk, make_ext4, run, sectors};
use crate::messages::tell_host;
use crate::output::say;
use crate::replay::log::{self, Entry, EntryKind};
use crate::replay::points::{self, CutMoment, Note, Point};
use crate::replay::renames;
use crate::samples;
use crate::surgetank::{Elastic, Places, Surgetank};

/// What the guest is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replay {
    pub surgetank: PathBuf,
    /// What chance follows from.
    pub seed: u64,
    pub policy: String,
    /// How many boosts the load lives through.
    pub boosts: u32,
    /// At how many points of the log the power is cut.
    pub points: usize,
}

/// What is in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    pub entries: usize,
    /// Those that are FLUSHes.
    pub flushes: usize,
    /// Those that are writes with FUA.
    pub forced: usize,
    /// What was written, in bytes.
    pub written_bytes: u64,
    /// Plain writes beside forced ones of the same place: which was first the log does not tell.
    pub untold_orders: usize,
    /// How many points there are in each phase, of each moment.
    pub points: Vec<(Option<BoostPhase>, CutMoment, usize)>,
}

/// What was found after a power cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub moment: CutMoment,
    pub phase: Option<BoostPhase>,
    /// Entries of the log before it.
    pub entry: usize,
    /// What recovery found to be on the caching volume alone.
    pub dirty_mib: f64,
    /// What e2fsck complains of after the file system replayed its journal.
    pub fsck: Option<String>,
    /// Why there was nothing to be read at all.
    pub unusable: Option<String>,
    /// What of the files was lost: the first few.
    pub lost: Vec<String>,
    /// How many blocks or files were.
    pub lost_count: usize,
    pub took_s: f64,
}

impl Judged {
    /// Whether all was there.
    pub fn is_whole(&self) -> bool {
        self.fsck.is_none() && self.unusable.is_none() && self.lost_count == 0
    }
}

/// The message of what is in the log.
pub const LOGGED: &str = "logged";

/// Where the daemon's own files and its caching volumes lie.
const STATE: &str = "/run/lab-state";
/// Where the elastic device's file system is mounted.
const FILES: &str = "/run/lab-files";
/// The backing volume's part of the disk; the rest is for the state and the caching volumes.
const BACKING_SECTORS: u64 = 64 << 11;
const CACHE_MIB: u64 = 32;
/// What the controller is told of the rates: it has to believe that a caching volume is worth renting.
const RATES_MIB_S: (u64, u64) = (33, 128);
/// Writers that overwrite a file in place, each of so many blocks; as many again replace files.
const WRITERS: u64 = 2;
const STRETCH_BLOCKS: u64 = 4096;

/// Runs the load, reads its log, cuts. Losses are told in a file, and are no errors.
pub fn replay(order: &Replay) -> anyhow::Result<()> {
    let stretch = |index| Stretch::new(order.seed.wrapping_mul(2 * WRITERS) + index, 0, STRETCH_BLOCKS);
    let writers: Vec<Stretch> = (0..2 * WRITERS).map(stretch).collect();
    let ends = load(order, &writers)?;
    let (data, log) = (disk("data")?, disk("log")?);
    let log = File::open(log)?;
    let size = sectors(&data)? * 512;
    let entries = log::read(&mut std::io::BufReader::new(&log), size).context("what the load left")?;
    let all = points::all(&entries, writers.len());
    tell_host(LOGGED, &logged(&entries, &all))?;
    let mut chance = Random::from_seed(order.seed);
    let chosen = points::chosen(all, order.points, &mut chance);
    say(&format!("{} entries are logged; cutting the power at {} points", entries.len(), chosen.len()));
    let mut replayed = Replayed { base: File::options().write(true).open(disk("base")?)?, log, next: 0 };
    for (index, point) in chosen.iter().enumerate() {
        let judged = cut(order, &entries, point, &mut replayed, &mut chance, &writers, &ends)?;
        if !judged.is_whole() || (index + 1) % 10 == 0 {
            say(&format!("{} of {}: {}", index + 1, chosen.len(), judged.describe()));
        }
        samples::add(&judged)?;
    }
    Ok(())
}

/// A machine that is up: the daemon over the parts of a disk. Dropped in the order in which a machine goes down.
struct Machine {
    surgetank: Surgetank,
    _state: Mounted,
    _parts: [Mapped; 2],
}

impl Machine {
    /// Replays the journal of the state's file system and recovers.
    fn boot(order: &Replay, whole: &Path) -> anyhow::Result<Self> {
        let parts = parts(whole)?;
        let state = Mounted::at(&parts[1].node, STATE, &[])?;
        let places = Places::local(STATE, STATE);
        let elastic = Elastic::steered(&order.policy, &parts[0].node, CACHE_MIB, RATES_MIB_S);
        let surgetank = Surgetank::start(&order.surgetank, &elastic, &places)?;
        Ok(Self { surgetank, _state: state, _parts: parts })
    }
}

/// The backing volume, and what the state's file system is on.
fn parts(whole: &Path) -> anyhow::Result<[Mapped; 2]> {
    let backing = Mapped::part("backing", whole, 0..BACKING_SECTORS)?;
    Ok([backing, Mapped::part("state", whole, BACKING_SECTORS..sectors(whole)?)?])
}

/// An ext4 that discards nothing: a log of writes shall say what was written.
fn make_file_system(node: &Path) -> anyhow::Result<()> {
    make_ext4(node, &["-E", "nodiscard,lazy_itable_init=0"])
}

/// What e2fsck does not like, without changing anything.
pub(super) fn complaint(device: &Path) -> anyhow::Result<Option<String>> {
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(device).output().context("cannot run e2fsck")?;
    if output.status.success() {
        return Ok(None);
    }
    // It says on stdout what it finds, between the titles of its passes.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Vec<&str> =
        said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Pass ")).take(3).collect();
    Ok(Some(format!("{} ({})", found.join(" "), output.status)))
}

/// The load with its log, to the end of both. For each writer the first operation that it has not begun.
fn load(order: &Replay, writers: &[Stretch]) -> anyhow::Result<Vec<u64>> {
    let (data, log) = (disk("data")?, disk("log")?);
    let table = format!("0 {} log-writes {} {}", sectors(&data)?, data.display(), log.display());
    let record = Mapped::new("record", &table)?;
    let note = |note: Note| record.tell(&["mark", &serde_json::to_string(&note)?]);
    make_file_system(&parts(&record.node)?[1].node)?;
    let mut machine = Machine::boot(order, &record.node)?;
    let device = machine.surgetank.device()?;
    make_file_system(&device)?;
    let files = Mounted::at(&device, FILES, &[])?;
    for index in 0..WRITERS {
        File::create(stretch_file(index))?.set_len(STRETCH_BLOCKS * BLOCK as u64)?;
        fs::create_dir(rename_directory(WRITERS + index))?;
    }
    run("sync", &[])?;
    let over = AtomicBool::new(false);
    let ends = std::thread::scope(|scope| {
        let threads = (0..).zip(writers).map(|(index, stretch)| {
            let (note, over) = (&note, &over);
            let durable = move |number| note(Note::Durable(index as usize, number));
            scope.spawn(move || {
                let mut next = 1;
                let written = match index {
                    0..WRITERS => stretch::write(&stretch_file(index), stretch, &mut next, over, durable),
                    _ => renames::write(&rename_directory(index), stretch, &mut next, over, durable),
                };
                written.map(|()| next)
            })
        });
        let threads: Vec<_> = threads.collect();
        let result = phases(&mut machine.surgetank, order.boosts, &note);
        over.store(true, Ordering::Relaxed);
        let died = |_| Err(anyhow::anyhow!("a writer died"));
        let ends: anyhow::Result<Vec<u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect();
        // What ends a writer ends the phases, too.
        let ends = ends.context("a writer failed")?;
        result.map(|()| ends)
    })?;
    drop(files);
    drop(machine);
    // Its end completes the log.
    record.remove()?;
    Ok(ends)
}

/// Boost after boost, each through all its phases, while the writers go on.
fn phases(surgetank: &mut Surgetank, boosts: u32, note: &impl Fn(Note) -> anyhow::Result<()>) -> anyhow::Result<()> {
    for _ in 0..boosts {
        note(Note::Phase(None))?;
        std::thread::sleep(Duration::from_secs(3));
        note(Note::Phase(Some(BoostPhase::Attach)))?;
        surgetank.attach()?;
        note(Note::Phase(Some(BoostPhase::Absorb)))?;
        std::thread::sleep(Duration::from_secs(8));
        burst()?;
        note(Note::Phase(Some(BoostPhase::Drain)))?;
        surgetank.drain()?;
        note(Note::Phase(Some(BoostPhase::Detach)))?;
        surgetank.detach()?;
    }
    note(Note::Phase(None))
}

/// More at once than what is drained beside it, so that there is something left to drain: what the writers write by
/// themselves is not. Its own content is not judged, for it is not synced.
fn burst() -> anyhow::Result<()> {
    let of = format!("of={FILES}/burst");
    let how = ["bs=1M", "count=16", "oflag=direct", "conv=notrunc", "status=none"];
    run("dd", &[&["if=/dev/zero", of.as_str()], how.as_slice()].concat()).map(|_| ())
}

fn stretch_file(index: u64) -> PathBuf {
    Path::new(FILES).join(format!("stretch-{index}"))
}

fn rename_directory(index: u64) -> PathBuf {
    Path::new(FILES).join(format!("renames-{index}"))
}

fn logged(entries: &[Entry], all: &[Point]) -> Logged {
    let mut points = BTreeMap::new();
    for point in all {
        *points.entry((point.phase, point.moment)).or_insert(0) += 1;
    }
    let count = |kind: &EntryKind| entries.iter().filter(|entry| entry.kind == *kind).count();
    Logged {
        entries: entries.len(),
        flushes: count(&EntryKind::Flush),
        forced: count(&EntryKind::Forced),
        written_bytes: entries.iter().map(|entry| entry.bytes.end - entry.bytes.start).sum(),
        untold_orders: points::untold_orders(entries),
        points: points.into_iter().map(|((phase, moment), count)| (phase, moment, count)).collect(),
    }
}

/// A disk that the log is replayed to, never back.
struct Replayed {
    base: File,
    log: File,
    next: usize,
}

impl Replayed {
    fn to(&mut self, entries: &[Entry], end: usize) -> anyhow::Result<()> {
        for entry in entries.iter().take(end).skip(self.next) {
            self.base.write_all_at(&entry.content(&self.log)?, entry.bytes.start).context("cannot replay the log")?;
        }
        self.next = self.next.max(end);
        self.base.sync_all().context("cannot replay the log")
    }

    /// What chance keeps of the entries in doubt, sector by sector; what was forced stays.
    fn tear(&self, entries: &[Entry], disk: &Path, chance: &mut Random) -> anyhow::Result<()> {
        let disk = File::options().write(true).open(disk)?;
        let kept = [0.1, 0.5, 0.9][chance.below(3) as usize];
        for entry in entries {
            let content = entry.content(&self.log)?;
            for (sector, offset) in content.chunks(BLOCK).zip((entry.bytes.start..).step_by(BLOCK)) {
                if !entry.waits_for_a_flush() || chance.chance(kept) {
                    disk.write_all_at(sector, offset)?;
                }
            }
        }
        disk.sync_all().context("cannot tear what was not flushed")
    }
}

/// Cuts the power at a point, boots what it left on a copy, and judges.
fn cut(
    order: &Replay,
    entries: &[Entry],
    point: &Point,
    replayed: &mut Replayed,
    chance: &mut Random,
    writers: &[Stretch],
    ends: &[u64],
) -> anyhow::Result<Judged> {
    let began = Instant::now();
    replayed.to(entries, point.entry)?;
    let (base, changes) = (disk("base")?, disk("changes")?);
    let table = format!("0 {} snapshot {} {} N 8", sectors(&base)?, base.display(), changes.display());
    let copy = Mapped::new("copy", &table)?;
    replayed.tear(&entries[point.torn.clone()], &copy.node, chance)?;
    let mut judged = Judged {
        moment: point.moment,
        phase: point.phase,
        entry: point.entry.max(point.torn.end),
        dirty_mib: 0.0,
        fsck: None,
        unusable: None,
        lost: Vec::new(),
        lost_count: 0,
        took_s: 0.0,
    };
    if let Err(error) = judged.look(order, &copy.node, point, writers, ends) {
        judged.unusable = Some(format!("{error:#}"));
    }
    judged.took_s = began.elapsed().as_secs_f64();
    copy.remove().context("something still uses the copy")?;
    Ok(judged)
}

impl Judged {
    fn look(
        &mut self,
        order: &Replay,
        whole: &Path,
        point: &Point,
        writers: &[Stretch],
        ends: &[u64],
    ) -> anyhow::Result<()> {
        let machine = Machine::boot(order, whole)?;
        self.dirty_mib = machine.surgetank.status()?.dirty_mib();
        let device = machine.surgetank.device()?;
        let files = Mounted::at(&device, FILES, &[])?;
        for (index, ((stretch, durable), ends)) in (0..).zip(writers.iter().zip(&point.durable).zip(ends)) {
            let lost = if index < WRITERS {
                let mut stretch = stretch.clone();
                stretch.flushed(*durable);
                stretch::judge_file(&stretch_file(index), &mut stretch, *ends)
            } else {
                renames::judge(&rename_directory(index), stretch, *durable, *ends)
            };
            self.lost_count += lost.len();
            let some = 5_usize.saturating_sub(self.lost.len());
            self.lost.extend(lost.into_iter().take(some).map(|what| format!("writer {index}: {what}")));
        }
        drop(files);
        self.fsck = complaint(&device)?;
        Ok(())
    }

    /// One line.
    pub fn describe(&self) -> String {
        let Self { moment, phase, entry, dirty_mib, took_s, .. } = self;
        let mut text = format!(
            "entry {entry}, {}, {}: {dirty_mib:.1} MiB dirty, {took_s:.1} s",
            moment.name(),
            points::name(*phase)
        );
        let complaints = [("cannot be used", &self.unusable), ("e2fsck", &self.fsck)];
        for (who, complaint) in complaints {
            if let Some(complaint) = complaint {
                text.push_str(&format!("; {who}: {complaint}"));
            }
        }
        if self.lost_count > 0 {
            text.push_str(&format!("; {} lost: {}", self.lost_count, self.lost.join("; ")));
        }
        text
    }
}
