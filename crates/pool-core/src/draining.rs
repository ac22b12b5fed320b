//! Which file goes to which target next, and which may leave the pool.
//!
//! Each target has slots of its own and a rate of its own, so one that does not answer holds up nobody who drains to another. Within a
//! target the files go in the order in which the target is to see them, but for those that somebody waits for, and those that have
//! waited for longer than the limit, which come first of all. A target that fails is tried again after a pause that doubles. While applications
//! write and there is room, the drain leaves them a share; when room is short it goes at the target's full rate.
//!
//! What is at the target, verified and flushed, may leave the pool: when room is short the file that was read longest ago goes first. What
//! the target does not have never leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};

use crate::id::{Inode, MountId, Version};
use crate::planted::{Bug, planted};

/// How files are drained.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Files on their way to a target at the same time, at most.
    pub at_once: usize,
    /// How long a file may wait before it goes first.
    pub age_max: Duration,
    /// The pause after a target's first failure; it doubles with each further one.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Bytes per second to each target while applications write and there is room; `None`: as fast as it takes them.
    pub beside: Option<Bandwidth>,
    /// Evict down to this share of the pool, in percent, once [`Config::evict_above`] is passed.
    pub evict_to: u8,
    /// Evict when more than this share is used, in percent.
    pub evict_above: u8,
}

/// A file to bring to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// To whose target.
    pub mount: MountId,
    /// Which file.
    pub inode: Inode,
    /// As which version.
    pub version: Version,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its turn, in the order of the journal.
    turn: u64,
    since: Instant,
    bytes: Bytes,
    awaited: bool,
    under_way: bool,
}

#[derive(Debug, Default)]
struct Target {
    failures: u32,
    not_before: Option<Instant>,
    /// When the next file may begin, by the rate.
    free_at: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Draining {
    config: Config,
    targets: BTreeMap<MountId, Target>,
    waiting: BTreeMap<Job, Waiting>,
    turns: u64,
    /// Which target was served last.
    last: Option<MountId>,
    /// An application writes, and room is short.
    pressure: (bool, bool),
}

impl Draining {
    /// Nothing is to be drained yet.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            targets: BTreeMap::new(),
            waiting: BTreeMap::new(),
            turns: 0,
            last: None,
            pressure: (false, false),
        }
    }

    /// A version is wanted at its target; these come in the order in which the target is to see them. `since`: when it was committed.
    pub fn wanted(&mut self, job: Job, bytes: Bytes, since: Instant) {
        self.turns += 1;
        let turn = self.turns;
        self.targets.entry(job.mount).or_default();
        self.waiting.entry(job).or_insert(Waiting { turn, since, bytes, awaited: false, under_way: false });
    }

    /// It is no longer wanted: the file was unlinked, or its bytes are lost.
    pub fn unwanted(&mut self, job: &Job) {
        self.waiting.remove(job);
    }

    /// Somebody waits for it.
    pub fn awaited(&mut self, inode: Inode) {
        self.waiting.iter_mut().filter(|(job, _)| job.inode == inode).for_each(|(_, waiting)| waiting.awaited = true);
    }

    /// Whether applications write, and whether room is short.
    pub const fn pressure(&mut self, foreground: bool, short_of_room: bool) {
        self.pressure = (foreground, short_of_room);
    }

    /// What to bring next.
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        let under_way = |mount: MountId| {
            self.waiting.iter().filter(|(job, waiting)| job.mount == mount && waiting.under_way).count()
        };
        let stalled = planted(Bug::StuckTargetStalls)
            && self.waiting.keys().any(|job| under_way(job.mount) >= self.config.at_once);
        let may = |(mount, target): &(&MountId, &Target)| {
            let waits = |at: Option<Instant>| at.is_some_and(|at| now < at);
            !waits(target.not_before) && !waits(target.free_at) && under_way(**mount) < self.config.at_once && !stalled
        };
        let ready: BTreeSet<MountId> = self.targets.iter().filter(may).map(|(mount, _)| *mount).collect();
        // Round the targets, so that none waits for another one's files.
        let order = ready.iter().filter(|mount| Some(**mount) > self.last).chain(&ready).copied();
        let next = order.into_iter().find_map(|mount| self.first_of(now, mount))?;
        let waiting = self.waiting.get_mut(&next)?;
        waiting.under_way = true;
        self.last = Some(next.mount);
        let bytes = waiting.bytes;
        if let (Some(rate), (true, false)) = (self.config.beside, self.pressure)
            && let Some(target) = self.targets.get_mut(&next.mount)
        {
            target.free_at = Some(target.free_at.map_or(now, |at| at.max(now)) + rate.time_for(bytes.get()));
        }
        Some(next)
    }

    /// All bytes are at the target under a temporary name, verified and flushed.
    pub fn drained(&mut self, job: &Job) {
        self.waiting.remove(job);
        if let Some(target) = self.targets.get_mut(&job.mount) {
            (target.failures, target.not_before) = (0, None);
        }
    }

    /// The target failed, is full, or does not answer: the file keeps its turn.
    pub fn failed(&mut self, now: Instant, job: &Job) {
        let Some(waiting) = self.waiting.get_mut(job) else { return };
        waiting.under_way = false;
        let Config { pause, pause_max, .. } = self.config;
        if let Some(target) = self.targets.get_mut(&job.mount) {
            let pause = pause.saturating_mul(1 << target.failures.min(16)).min(pause_max);
            (target.failures, target.not_before) = (target.failures + 1, Some(now + pause));
        }
    }

    /// A benefactor failed while it was read, not the target: the file is tried again at once.
    pub fn interrupted(&mut self, job: &Job) {
        if let Some(waiting) = self.waiting.get_mut(job) {
            waiting.under_way = false;
        }
    }

    /// How often a target has failed since it last took something: it is told.
    #[must_use]
    pub fn failures(&self, mount: MountId) -> u32 {
        self.targets.get(&mount).map_or(0, |target| target.failures)
    }

    /// How long the oldest file has waited.
    #[must_use]
    pub fn oldest(&self, now: Instant) -> Option<Duration> {
        self.waiting.values().map(|waiting| now.since(waiting.since)).max()
    }

    /// Files that are to be drained, and their bytes.
    #[must_use]
    pub fn backlog(&self) -> (usize, Bytes) {
        (self.waiting.len(), Bytes::new(self.waiting.values().map(|waiting| waiting.bytes.get()).sum()))
    }

    /// When [`Draining::next_job`] may have something, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = |job: &Job| self.targets.get(&job.mount);
        let idle = self.waiting.iter().filter(|(_, waiting)| !waiting.under_way);
        idle.filter_map(|(job, _)| waits(job)).filter_map(|target| target.not_before.max(target.free_at)).min()
    }

    fn first_of(&self, now: Instant, mount: MountId) -> Option<Job> {
        let of = self.waiting.iter().filter(|(job, waiting)| job.mount == mount && !waiting.under_way);
        let rank = |waiting: &Waiting| {
            let old = now.since(waiting.since) >= self.config.age_max && !planted(Bug::AgeIgnored);
            (!old, if old { waiting.since } else { Instant::ZERO }, !waiting.awaited, waiting.turn)
        };
        of.min_by_key(|(_, waiting)| rank(waiting)).map(|(job, _)| *job)
    }

    /// What may leave the pool, the first first: of files that the target has with their newest version, those that were read longest ago,
    /// until the used share is as low as configured. `drained`: the files, their bytes, and when each was used last.
    #[must_use]
    pub fn evictions(&self, used: Bytes, of: Bytes, drained: &[(Inode, Bytes, Instant)]) -> Vec<Inode> {
        let share = |percent: u8| u64::try_from(u128::from(of.get()) * u128::from(percent) / 100).unwrap_or(u64::MAX);
        if used.get() <= share(self.config.evict_above) {
            return Vec::new();
        }
        let mut to_free = used.get() - share(self.config.evict_to).min(used.get());
        let mut files = drained.to_vec();
        files.sort_unstable_by_key(|(inode, _, used)| (*used, *inode));
        let mut chosen = Vec::new();
        for (inode, bytes, _) in files {
            if to_free == 0 {
                break;
            }
            to_free = to_free.saturating_sub(bytes.get());
            chosen.push(inode);
        }
        chosen
    }
}
