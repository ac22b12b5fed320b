//! A simulated volume with real bytes, a volatile write cache and faults.

use std::time::Duration;

use surgetank_cache::IoFailure;
use surgetank_model::Instant;
use surgetank_model::random::Random;

mod faults;

pub use self::faults::Faults;
use crate::pages::Pages;

/// The unit that a volume writes atomically, in bytes.
pub const SECTOR: u64 = 512;

/// What a volume is asked.
#[derive(Debug)]
pub enum Io {
    /// Fill a buffer of `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Store bytes.
    Write {
        /// First byte.
        offset: u64,
        /// What to store.
        data: Vec<u8>,
        /// Durable before it is done.
        fua: bool,
    },
    /// Zero a range (write-zeroes and discard).
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Durable before it is done.
        fua: bool,
    },
    /// Make what was done before it durable.
    Flush,
}

/// Names an I/O in flight on one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoId(pub u32);

/// When an I/O happens: its effect becomes visible at `effect_at`, its submitter hears of it at `done_at`.
/// `None` while it is stuck.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Which I/O.
    pub io: IoId,
    /// When [`Disk::take_effect`] is due.
    pub effect_at: Instant,
    /// When [`Disk::finish`] is due, not before `effect_at`.
    pub done_at: Instant,
}

/// I/Os that take a hundred times as long as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// One in this many; 0: none.
    pub one_in: u64,
    /// They take effect as soon as they are submitted; else, as half of all I/Os, at any time before they are done.
    pub at_once: bool,
}

impl Default for Outliers {
    fn default() -> Self {
        Self { one_in: 50, at_once: false }
    }
}

/// How fast a volume answers: uniformly between the bounds, outliers apart.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Shortest.
    pub min: Duration,
    /// Longest, outliers apart.
    pub max: Duration,
    /// Those that take longer.
    pub outliers: Outliers,
}

impl Default for Latency {
    fn default() -> Self {
        Self { min: Duration::from_micros(20), max: Duration::from_micros(400), outliers: Outliers::default() }
    }
}

/// A write that took effect but is not durable. `data` is `None` for zeroes.
#[derive(Debug)]
struct Unflushed {
    offset: u64,
    length: u64,
    data: Option<Vec<u8>>,
    /// Ranges (offset, length) that a durable write has overwritten since.
    overwritten: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct InFlight {
    tag: u32,
    io: Io,
    fate: Result<(), IoFailure>,
    took_effect: bool,
    /// For a flush: writes that took effect before it was submitted (count since creation).
    covers: u64,
    read: Vec<u8>,
}

/// An I/O that no volume would take. The text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(pub String);

/// How an I/O ended.
#[derive(Debug)]
pub struct Finished {
    /// The submitter's tag.
    pub tag: u32,
    /// Whether it succeeded.
    pub result: Result<(), IoFailure>,
    /// Whether it was a flush.
    pub flush: bool,
    /// What a read delivered. Return it with [`Disk::recycle`].
    pub data: Vec<u8>,
}

/// A simulated volume.
///
/// Fault model:
/// - *Order.* Every I/O takes effect at one moment between its submission and its completion; the moments and the
///   completions are seeded, so I/Os in flight together finish in any order, and of two overlapping writes in flight
///   together either may win, whichever completes first. A read sees the newest data at its moment.
/// - *Volatile write cache.* A write is durable when a flush submitted after its completion is done, or when it was
///   FUA and is done. Flush covers what took effect before the flush was submitted; nothing else.
/// - *Power cut.* Of the writes that are not durable, also those in flight, any subset survives, in any order, each
///   whole or torn at 512-byte sectors. A sector itself is atomic. What is durable stays.
/// - *Crash of the submitter.* Everything that took effect stays visible. An I/O in flight happens, happens partly
///   (torn at sectors), or not at all; all of them are settled before the volume is opened again (the kernel keeps the
///   volume open, and thus locked, until then).
/// - *Discard* behaves as write-zeroes without FUA.
/// - *EIO* ([`Faults`]): a failed write has stored any subset of its sectors; a failed flush has made nothing durable,
///   and either loses nothing, so that a later flush that succeeds covers the same writes, or, if `forgetful`, has
///   dropped any of them from the cache: they stay visible until the power fails, and no later flush saves them.
/// - *Stuck* I/Os have no effect until they are released; an *outage* fails everything; *damage* ([`Disk::damage`], latent
///   sector errors) fails reads of its range until a write covers it; *bit rot* ([`Disk::rot`]) changes stored bytes
///   silently.
#[derive(Debug)]
pub struct Disk {
    size: u64,
    /// What reads see.
    view: Pages,
    /// What a power cut leaves for sure.
    media: Pages,
    unflushed: Vec<Unflushed>,
    /// Visible until a power cut, but dropped from the write cache by a flush that failed.
    forgotten: Vec<Unflushed>,
    /// Entries ever removed from the front of `unflushed`.
    flushed_count: u64,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    random: Random,
    latency: Latency,
    faults: Faults,
    /// Ranges (offset, length) that cannot be read until they are written.
    damaged: Vec<(u64, u64)>,
    /// Bits (byte, bit) that have flipped and were not written since.
    rotten: Vec<(u64, u8)>,
    submitted_count: u64,
    pool: Vec<Vec<u8>>,
}

impl Disk {
    /// A volume of `size` bytes, all zeroes.
    #[must_use]
    pub fn new(size: u64, latency: Latency, seed: u64) -> Self {
        Self {
            size,
            view: Pages::new(size),
            media: Pages::new(size),
            unflushed: Vec::new(),
            forgotten: Vec::new(),
            flushed_count: 0,
            in_flight: Vec::new(),
            free: Vec::new(),
            random: Random::from_seed(seed),
            latency,
            faults: Faults::default(),
            damaged: Vec::new(),
            rotten: Vec::new(),
            submitted_count: 0,
            pool: Vec::new(),
        }
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The volume has become larger.
    pub fn grow(&mut self, size: u64) {
        self.size = size;
        self.view.grow(size);
        self.media.grow(size);
    }

    /// Replaces the faults.
    pub fn set_faults(&mut self, faults: Faults) {
        if let Some(failure) = faults.outage {
            // What is in flight does not arrive any more.
            for entry in self.in_flight.iter_mut().flatten().filter(|entry| !entry.took_effect) {
                entry.fate = Err(failure);
            }
        }
        self.faults = faults;
    }

    /// Stores bytes durably, at once: for preparing a volume.
    pub fn prefill(&mut self, offset: u64, data: &[u8]) {
        self.view.write(offset, data);
        self.media.write(offset, data);
    }

    /// What a read would see now.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.view.read(offset, out);
    }

    /// What a power cut leaves for sure.
    pub fn peek_durable(&self, offset: u64, out: &mut [u8]) {
        self.media.read(offset, out);
    }

    /// The end of what is stored in a range, in bytes on the volume: beyond it the range reads as zeroes.
    #[must_use]
    pub fn used_end(&self, offset: u64, length: u64) -> u64 {
        self.view.used_end(offset, length)
    }

    /// Flips a stored bit, durably.
    pub fn rot(&mut self, offset: u64, bit: u8) {
        self.view.flip(offset, bit);
        self.media.flip(offset, bit);
        self.rotten.push((offset, bit));
    }

    /// An empty buffer, reused.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    /// Returns a buffer.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.pool.len() < 64 {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// I/Os submitted and not finished.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Starts an I/O. `None`: it is stuck.
    ///
    /// # Errors
    /// If the I/O is not sector-aligned or lies beyond the end: the submitter is wrong.
    pub fn submit(&mut self, now: Instant, tag: u32, io: Io) -> Result<Option<Ticket>, Misfit> {
        if let Some((offset, length)) = io.range() {
            let aligned = offset % SECTOR == 0 && length % SECTOR == 0;
            if length == 0 || !aligned || offset + length > self.size {
                let size = self.size;
                return Err(Misfit(format!("I/O at {offset} of {length} bytes does not fit a volume of {size} bytes")));
            }
        }
        self.submitted_count += 1;
        let fate = self.fate(&io);
        let covers = self.flushed_count + self.unflushed.len() as u64;
        let entry = InFlight { tag, io, fate, took_effect: false, covers, read: Vec::new() };
        let id = match self.free.pop() {
            Some(id) => {
                self.in_flight[id as usize] = Some(entry);
                id
            }
            None => {
                self.in_flight.push(Some(entry));
                self.in_flight.len() as u32 - 1
            }
        };
        Ok((!self.faults.stuck).then(|| self.ticket(now, IoId(id))))
    }

    /// Whether a flush has failed and forgotten something since the power last failed.
    #[must_use]
    pub fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Sectors (offset) that a flush which failed has forgotten, and no later flush would save.
    pub fn forgotten_sectors(&self) -> impl Iterator<Item = u64> + '_ {
        let sectors = |write: &Unflushed| (write.offset..write.offset + write.length).step_by(SECTOR as usize);
        let (mut seen, mut stored) = ([0; SECTOR as usize], [0; SECTOR as usize]);
        self.forgotten.iter().flat_map(sectors).filter(move |&at| {
            self.view.read(at, &mut seen);
            self.media.read(at, &mut stored);
            let covers = |write: &Unflushed| (write.offset..write.offset + write.length).contains(&at);
            seen != stored && !self.unflushed.iter().any(covers)
        })
    }

    /// From now on I/Os get stuck.
    pub fn set_stuck(&mut self) {
        self.faults.stuck = true;
    }

    /// Lets stuck I/Os go on; the ones that already had a ticket keep it.
    pub fn unstick(&mut self, now: Instant, had_ticket: impl Fn(IoId) -> bool) -> Vec<Ticket> {
        self.faults.stuck = false;
        let stuck = (0..self.in_flight.len() as u32).map(IoId).filter(|&io| !had_ticket(io));
        let stuck: Vec<_> = stuck.filter(|io| self.in_flight[io.0 as usize].is_some()).collect();
        stuck.into_iter().map(|io| self.ticket(now, io)).collect()
    }

    fn ticket(&mut self, now: Instant, io: IoId) -> Ticket {
        let Latency { min, max, outliers } = self.latency;
        let spread = u64::try_from((max - min).as_nanos()).unwrap_or(u64::MAX);
        let mut delay = min + Duration::from_nanos(self.random.below(spread + 1));
        let slow = outliers.one_in > 0 && self.random.below(outliers.one_in) == 0;
        if slow {
            delay *= 100;
        }
        let done_at = now + delay;
        // Half of the I/Os take effect well before their completion is heard of.
        let early = if self.random.below(2) == 0 { self.random.below(delay.as_nanos() as u64 + 1) } else { 0 };
        let early = if slow && outliers.at_once { delay.as_nanos() as u64 } else { early };
        let effect_at = Instant::from_nanoseconds(done_at.as_nanoseconds() - early);
        Ticket { io, effect_at, done_at }
    }

    /// The moment at which an I/O becomes visible.
    pub fn take_effect(&mut self, io: IoId) {
        let Some(mut entry) = self.in_flight[io.0 as usize].take() else { return };
        if !entry.took_effect {
            entry.took_effect = true;
            self.apply(&mut entry);
        }
        self.in_flight[io.0 as usize] = Some(entry);
    }

    fn apply(&mut self, entry: &mut InFlight) {
        match &mut entry.io {
            Io::Read { offset, length } => {
                let mut data = self.pool.pop().unwrap_or_default();
                data.resize(*length as usize, 0);
                self.view.read(*offset, &mut data);
                entry.read = data;
            }
            Io::Write { offset, data, fua } => {
                let (offset, data) = (*offset, std::mem::take(data));
                let length = data.len() as u64;
                let write = Unflushed { offset, length, data: Some(data), overwritten: Vec::new() };
                self.apply_write(write, *fua, entry.fate.is_err());
            }
            Io::Zero { offset, length, fua } => {
                let write = Unflushed { offset: *offset, length: *length, data: None, overwritten: Vec::new() };
                self.apply_write(write, *fua, entry.fate.is_err());
            }
            Io::Flush => {
                let count = entry.covers.saturating_sub(self.flushed_count) as usize;
                match entry.fate {
                    Ok(()) => self.make_durable(count),
                    Err(_) if self.faults.forgetful => self.forget(count),
                    Err(_) => {}
                }
            }
        }
    }

    fn apply_write(&mut self, mut write: Unflushed, fua: bool, failed: bool) {
        if failed {
            // Now and then it is there all the same.
            if self.random.below(4) > 0 {
                self.tear(&mut write);
            }
        } else {
            let written = write.offset..write.offset + write.length;
            self.rotten.retain(|(byte, _)| !written.contains(byte));
            self.repair_range(&written);
        }
        write.put(&mut self.view);
        if fua && !failed {
            for earlier in &mut self.unflushed {
                if earlier.offset < write.offset + write.length && write.offset < earlier.offset + earlier.length {
                    earlier.overwritten.push((write.offset, write.length));
                }
            }
            write.put(&mut self.media);
            self.reclaim(write);
        } else {
            self.unflushed.push(write);
        }
    }

    fn make_durable(&mut self, count: usize) {
        self.flushed_count += count as u64;
        let mut flushed = std::mem::take(&mut self.unflushed);
        for write in flushed.drain(..count) {
            write.put(&mut self.media);
            self.reclaim(write);
        }
        self.unflushed = flushed;
    }

    /// A flush has failed: of what it covered, some was stored all the same, and the rest has left the write cache.
    fn forget(&mut self, count: usize) {
        self.flushed_count += count as u64;
        let rest = self.unflushed.split_off(count);
        for write in std::mem::replace(&mut self.unflushed, rest) {
            if self.random.below(2) == 0 {
                write.put(&mut self.media);
            }
            self.forgotten.push(write);
        }
    }

    fn reclaim(&mut self, write: Unflushed) {
        if let Some(data) = write.data {
            self.recycle(data);
        }
    }

    /// Leaves out a random subset of the sectors of a write: often a tail, else each with its own chance.
    fn tear(&mut self, write: &mut Unflushed) {
        let sectors = write.length / SECTOR;
        if self.random.below(2) == 0 {
            let kept = self.random.below(sectors + 1);
            write.overwritten.push((write.offset + kept * SECTOR, (sectors - kept) * SECTOR));
            return;
        }
        for sector in 0..sectors {
            if self.random.below(2) == 0 {
                let at = write.offset + sector * SECTOR;
                match write.overwritten.last_mut() {
                    Some((offset, length)) if *offset + *length == at => *length += SECTOR,
                    _ => write.overwritten.push((at, SECTOR)),
                }
            }
        }
    }

    /// The answer to an I/O.
    ///
    /// # Panics
    /// If there is no such I/O in flight.
    pub fn finish(&mut self, io: IoId) -> Finished {
        self.take_effect(io);
        let entry = self.in_flight[io.0 as usize].take().expect("finished I/Os are in flight");
        self.free.push(io.0);
        let flush = matches!(entry.io, Io::Flush);
        if let Io::Write { data, .. } = entry.io {
            self.recycle(data);
        }
        Finished { tag: entry.tag, result: entry.fate, flush, data: entry.read }
    }

    /// The submitter crashed; see the fault model.
    pub fn submitter_crash(&mut self) {
        let in_flight = std::mem::take(&mut self.in_flight);
        in_flight.into_iter().flatten().for_each(|entry| self.interrupt(entry));
        self.free.clear();
    }

    fn interrupt(&mut self, mut entry: InFlight) {
        if entry.took_effect {
            return;
        }
        match self.random.below(3) {
            0 => {}
            1 => self.apply(&mut entry),
            _ => {
                entry.fate = Err(IoFailure::Io);
                self.apply(&mut entry);
            }
        }
    }

    /// The same of one submitter of several: whose I/Os have tags that it accepts.
    pub fn crash_of(&mut self, is_of: impl Fn(u32) -> bool) {
        for id in 0..self.in_flight.len() {
            if let Some(entry) = self.in_flight[id].take_if(|entry| is_of(entry.tag)) {
                self.free.push(id as u32);
                self.interrupt(entry);
            }
        }
    }

    /// The tag of an I/O, while it is in flight.
    #[must_use]
    pub fn tag(&self, io: IoId) -> Option<u32> {
        self.in_flight.get(io.0 as usize)?.as_ref().map(|entry| entry.tag)
    }

    /// The power failed; see the fault model.
    pub fn power_cut(&mut self) {
        self.submitter_crash();
        let mut writes = std::mem::take(&mut self.unflushed);
        self.flushed_count = 0;
        let style = self.random.below(8);
        if style >= 4 {
            for index in (1..writes.len()).rev() {
                writes.swap(index, self.random.below(index as u64 + 1) as usize);
            }
        }
        // Styles: 0 nothing survives, 1 everything, 2 a prefix, 3 a subset in order, else any subset, order and tearing.
        let prefix = self.random.below(writes.len() as u64 + 1) as usize;
        for (index, write) in writes.iter_mut().enumerate() {
            let kept = match style {
                0 => false,
                1 => true,
                2 => index < prefix,
                _ => self.random.below(2) == 0,
            };
            if !kept {
                continue;
            }
            if style >= 4 && self.random.below(3) == 0 {
                self.tear(write);
            }
            write.put(&mut self.media);
        }
        writes.append(&mut self.forgotten);
        for write in writes {
            self.view.copy_from(&self.media, write.offset, write.length);
            self.reclaim(write);
        }
    }
}

impl Io {
    fn range(&self) -> Option<(u64, u64)> {
        match self {
            Io::Read { offset, length } | Io::Zero { offset, length, .. } => Some((*offset, *length)),
            Io::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
            Io::Flush => None,
        }
    }
}

impl Unflushed {
    /// Stores the write except what is overwritten.
    fn put(&self, pages: &mut Pages) {
        let put = |pages: &mut Pages, offset: u64, length: u64| match &self.data {
            Some(data) => {
                let start = (offset - self.offset) as usize;
                pages.write(offset, &data[start..start + length as usize]);
            }
            None => pages.zero(offset, length),
        };
        if self.overwritten.is_empty() {
            put(pages, self.offset, self.length);
            return;
        }
        let covered =
            |at: u64| self.overwritten.iter().any(|&(offset, length)| (offset..offset + length).contains(&at));
        let mut at = self.offset;
        while at < self.offset + self.length {
            if !covered(at) {
                put(pages, at, SECTOR);
            }
            at += SECTOR;
        }
    }
}

#[cfg(test)]
mod tests;
