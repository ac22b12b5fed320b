//! A volume with faults on demand: scripted, or by chance from a seed.
//!
//! # Fault model
//!
//! - [`Effect::Fail`]: the I/O fails and the volume is untouched.
//! - [`Effect::FailAfter`]: the I/O is done, but its completion says that it failed (an error on the way back).
//! - [`Effect::Short`]: the first half of a read or write, in logical blocks, is done; then the I/O fails with
//!   [`Failure::Io`]. This is how a torn write looks to whoever issued it.
//! - [`Effect::Delay`]: the I/O starts late; I/Os behind it may overtake it.
//! - [`Effect::Stuck`]: the I/O does not start until [`Faults::release`], or fails as gone on [`Faults::vanish`].
//! - [`Faults::vanish`]: the volume was unplugged. I/Os that wait here and all later ones fail with
//!   [`Failure::Gone`] until [`Faults::restore`]; I/Os that the volume inside has taken end as they end.
//!
//! Faults hit I/Os when they are submitted. The volume never lies: no flush is dropped, no data is changed, and what
//! was reported as success was done. (Crashes that lose unflushed writes are the simulated disk's part.)

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_model::random::Random;

use super::{Completion, Failure, Operation, Volume, VolumeIo};
use crate::poller::{Poller, Waker};

/// What happens to an I/O that a rule hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Fails, not done.
    Fail(Failure),
    /// Done, and reported as failed.
    FailAfter(Failure),
    /// The first half is done, then it fails with [`Failure::Io`]. I/Os of one block and those without data fail
    /// undone.
    Short,
    /// Starts this much later.
    Delay(Duration),
    /// Starts when released.
    Stuck,
}

/// Which operations a rule hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// All.
    Any,
    /// Reads.
    Reads,
    /// Everything that changes data: writes, write-zeroes, discards.
    Changes,
    /// Writes.
    Writes,
    /// Flushes.
    Flushes,
    /// Discards and write-zeroes.
    Zeroing,
}

impl Kinds {
    fn contains(self, operation: Operation) -> bool {
        match (self, operation) {
            (Self::Any, _)
            | (Self::Reads, Operation::Read)
            | (Self::Writes | Self::Changes, Operation::Write { .. })
            | (Self::Flushes, Operation::Flush)
            | (Self::Zeroing | Self::Changes, Operation::Discard | Operation::WriteZeroes { .. }) => true,
            (Self::Reads | Self::Writes | Self::Changes | Self::Flushes | Self::Zeroing, _) => false,
        }
    }
}

/// One fault. The first rule that hits an I/O decides; the others do not see it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The operations it hits.
    pub kinds: Kinds,
    /// Bytes of the volume: an I/O is hit if it touches one of them (flushes always are). `None`: anywhere.
    pub range: Option<Range<u64>>,
    /// How likely a matching I/O is hit: 0 to 1.
    pub chance: f64,
    /// Matching I/Os that pass first.
    pub after: u64,
    /// I/Os it hits before it is spent; `None`: no end.
    pub times: Option<u64>,
    /// What happens.
    pub effect: Effect,
}

impl Rule {
    /// Every I/O of these kinds, without end.
    #[must_use]
    pub fn always(kinds: Kinds, effect: Effect) -> Self {
        Self { kinds, range: None, chance: 1.0, after: 0, times: None, effect }
    }

    /// The next I/O of these kinds.
    #[must_use]
    pub fn once(kinds: Kinds, effect: Effect) -> Self {
        Self { times: Some(1), ..Self::always(kinds, effect) }
    }

    fn hits(&mut self, io: &VolumeIo, random: &mut Random) -> bool {
        let inside = self.range.as_ref().is_none_or(|range| {
            io.operation == Operation::Flush || (io.offset < range.end && range.start < io.offset + io.length)
        });
        if !inside || !self.kinds.contains(io.operation) || self.times == Some(0) {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        if self.chance < 1.0 && !random.chance(self.chance) {
            return false;
        }
        self.times = self.times.map(|times| times - 1);
        true
    }
}

/// The remote control of a [`Fault`] volume, for any thread. Cloning gives another handle on the same faults.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    waker: Waker,
}

#[derive(Debug)]
struct Script {
    random: Random,
    rules: Vec<(u64, Rule)>,
    rule_next: u64,
    gone: bool,
    /// Counts the releases: an I/O that got stuck before the latest may go on.
    releases: u64,
    stuck: usize,
    hits: u64,
}

impl Faults {
    /// No faults yet; chance follows from `seed`.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new(seed: u64) -> io::Result<Self> {
        let script = Script {
            random: Random::from_seed(seed),
            rules: Vec::new(),
            rule_next: 0,
            gone: false,
            releases: 0,
            stuck: 0,
            hits: 0,
        };
        Ok(Self(Arc::new(Shared { script: Mutex::new(script), waker: Waker::new()? })))
    }

    /// A panicking test thread must not hide its own message behind a poisoned lock.
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule behind those there are; the number names it for [`Faults::remove`].
    pub fn add(&self, rule: Rule) -> u64 {
        let mut script = self.script();
        let name = script.rule_next;
        script.rule_next += 1;
        script.rules.push((name, rule));
        name
    }

    /// Removes a rule. What it has hit already stays hit.
    pub fn remove(&self, name: u64) {
        self.script().rules.retain(|(other, _)| *other != name);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.script().rules.clear();
    }

    /// Lets every I/O go on that is stuck now. Rules that make I/Os stuck stay.
    pub fn release(&self) {
        self.script().releases += 1;
        self.0.waker.signal();
    }

    /// Unplugs the volume.
    pub fn vanish(&self) {
        self.script().gone = true;
        self.0.waker.signal();
    }

    /// Plugs the volume in again.
    pub fn restore(&self) {
        self.script().gone = false;
    }

    /// I/Os that are stuck now.
    #[must_use]
    pub fn stuck(&self) -> usize {
        self.script().stuck
    }

    /// I/Os that rules have hit so far.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.script().hits
    }
}

/// A volume that suffers the faults of a [`Faults`] handle. The fault model stands on the module.
#[derive(Debug)]
pub struct Fault<V> {
    volume: V,
    faults: Faults,
    /// Watches the inner volume's descriptor and the handle's waker.
    poller: Poller,
    ended: Vec<Completion>,
    delayed: BTreeMap<(Instant, u64), VolumeIo>,
    delayed_next: u64,
    stuck: Vec<(u64, VolumeIo)>,
    /// Tokens of I/Os that the inner volume does and that fail all the same, with their failures.
    doomed: Vec<(u64, Failure)>,
}

impl<V: Volume> Fault<V> {
    /// `volume` with the faults of `faults`.
    ///
    /// # Errors
    /// Those of `epoll_create1(2)` and `epoll_ctl(2)`.
    pub fn new(volume: V, faults: Faults) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(faults.0.waker.as_fd(), 0)?;
        if let Some(descriptor) = volume.descriptor() {
            poller.add(descriptor, 1)?;
        }
        Ok(Self {
            volume,
            faults,
            poller,
            ended: Vec::new(),
            delayed: BTreeMap::new(),
            delayed_next: 0,
            stuck: Vec::new(),
            doomed: Vec::new(),
        })
    }

    /// The volume inside.
    pub fn inner_mut(&mut self) -> &mut V {
        &mut self.volume
    }

    fn end(&mut self, token: u64, failure: Failure) {
        self.ended.push(Completion { token, result: Err(failure) });
    }

    /// Cuts the I/O to its first half, if that has a block.
    fn halve(&self, io: &mut VolumeIo) -> bool {
        let block = u64::from(self.volume.logical_block());
        let half = io.length / 2 / block * block;
        if half == 0 || io.memory.is_empty() {
            return false;
        }
        let mut left = half as usize;
        io.memory.retain_mut(|slice| {
            let take = slice.len().min(left);
            left -= take;
            *slice = slice.slice(0, take);
            take > 0
        });
        io.length = half;
        true
    }

    fn apply(&mut self, now: Instant, effect: Effect, releases: u64, mut io: VolumeIo) {
        match effect {
            Effect::Fail(failure) => self.end(io.token, failure),
            Effect::FailAfter(failure) => {
                self.doomed.push((io.token, failure));
                self.volume.submit(now, io);
            }
            Effect::Short => {
                if self.halve(&mut io) {
                    self.doomed.push((io.token, Failure::Io));
                    self.volume.submit(now, io);
                } else {
                    self.end(io.token, Failure::Io);
                }
            }
            Effect::Delay(delay) => {
                self.delayed.insert((now + delay, self.delayed_next), io);
                self.delayed_next += 1;
            }
            Effect::Stuck => self.stuck.push((releases, io)),
        }
    }

    /// Starts or fails what waited here.
    fn go_on(&mut self, now: Instant) {
        let (gone, releases) = {
            let script = self.faults.script();
            (script.gone, script.releases)
        };
        let mut ready = Vec::new();
        while let Some(entry) = self.delayed.first_entry() {
            if !gone && entry.key().0 > now {
                break;
            }
            ready.push(entry.remove());
        }
        let stuck = std::mem::take(&mut self.stuck);
        let (free, stuck) = stuck.into_iter().partition(|(since, _)| gone || *since < releases);
        self.stuck = stuck;
        ready.extend(free.into_iter().map(|(_, io): (u64, VolumeIo)| io));
        self.faults.script().stuck = self.stuck.len();
        for io in ready {
            if gone {
                self.end(io.token, Failure::Gone);
            } else {
                self.volume.submit(now, io);
            }
        }
    }
}

impl<V: Volume> Volume for Fault<V> {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn logical_block(&self) -> u32 {
        self.volume.logical_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        let (gone, effect, releases) = {
            let mut script = self.faults.script();
            let Script { random, rules, gone, releases, hits, stuck, .. } = &mut *script;
            let mut hit = |(_, rule): &mut (u64, Rule)| rule.hits(&io, random).then_some(rule.effect);
            let effect = if *gone { None } else { rules.iter_mut().find_map(&mut hit) };
            *hits += u64::from(effect.is_some());
            *stuck += usize::from(effect == Some(Effect::Stuck));
            (*gone, effect, *releases)
        };
        match effect {
            _ if gone => self.end(io.token, Failure::Gone),
            Some(effect) => self.apply(now, effect, releases, io),
            None => self.volume.submit(now, io),
        }
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        self.faults.0.waker.drain();
        self.go_on(now);
        completions.append(&mut self.ended);
        let first = completions.len();
        self.volume.poll(now, completions);
        for completion in &mut completions[first..] {
            if let Some(index) = self.doomed.iter().position(|(token, _)| *token == completion.token) {
                completion.result = Err(self.doomed.swap_remove(index).1);
            }
        }
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        if self.faults.script().gone {
            return Err(Failure::Gone);
        }
        self.volume.resize_check()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        [delayed, self.volume.next_deadline()].into_iter().flatten().min()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.as_fd())
    }
}
