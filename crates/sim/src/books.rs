//! What the world itself knows of the log, from the effects alone: where the newest version of each block lies, whether
//! the backing volume has it, and which blocks of the caching volume could not be read. The engine's index has no say.
//!
//! A block of the device may be discarded only if its newest version is
//! - *possibly dirty*: in the log, and not drained since; after a restart, or a failed flush of the backing volume, whatever
//!   is in the log counts as not drained;
//! - *unreadable*: its block on the caching volume failed when it was read, again and again ([`TRIES_MIN`]), and did not
//!   succeed since, or nothing of the volume could be read for as long as the engine must wait.

mod record;
mod rules;
mod unknown;

use std::collections::BTreeMap;

use surgetank_cache::effect::Slices;
use surgetank_cache::format::{BLOCK, Epoch, Geometry, Summary, checksum};
use surgetank_cache::{BufferId, Effect, EffectId, IoFailure, Outcome, ScratchId, Slice, Target};
use surgetank_model::{Instant, RequestId};

use self::record::{Freed, Record};
use self::rules::Rules;
use crate::disk::Disk;

const BLOCK64: u64 = BLOCK as u64;

/// Failed reads for one request: each of its blocks a few times, and whenever the volume seems to be back.
const FAILED_READS_MAX: u32 = 200;

/// Failed reads of a block, without a success since, before it may be discarded.
pub const TRIES_MIN: u32 = 3;

#[derive(Clone, Debug)]
struct Place {
    sequence: u64,
    /// Byte of its summary.
    summary: u64,
    /// Byte of its data; `None`: zeroes.
    at: Option<u64>,
    /// The engine knows that the backing volume has it, too.
    clean: bool,
    /// When it was complete.
    completed: Instant,
    /// Since when an application's flush promises it.
    promised: Option<Instant>,
    /// After a restart: blocks (summary, data) of newer records that were torn, or of this one. Whoever cannot read one cannot
    /// know that.
    torn: Vec<(u64, u64)>,
}

/// Failed reads of a block of the caching volume since it was last read or written.
#[derive(Clone, Copy, Debug)]
struct Tries {
    count: u32,
    first: Instant,
}

/// A time in which nothing of the caching volume can be read.
#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Instant,
    until: Option<Instant>,
    /// When the engine had its first sign of it.
    noticed: Option<Instant>,
}

/// An effect in flight.
#[derive(Debug)]
enum Io {
    Read {
        target: Target,
        offset: u64,
        into: Slice,
        outages: u64,
        out: bool,
    },
    Append(Record),
    /// A write of the backing volume; blocks (of the device, byte on the caching volume, sequence) that it copies.
    Drain {
        offset: u64,
        length: u64,
        copies: Vec<(u64, u64, u64)>,
        failures: u64,
    },
    /// A superblock: its slot, and the segments of its log.
    Superblock(usize, u32),
    /// A page of the segment table; sequences of the records that it voids.
    Table(Vec<u64>),
    /// A flush; of the caching volume: sequences of the records that are void once it is done, and of those that are durable.
    Flush(Target, Vec<u64>, Vec<u64>),
    Owner,
}

/// What an effect that failed touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Nothing that a request could ask for.
    Nothing,
    /// Bytes of the device, on the backing volume.
    Backing(std::ops::Range<u64>),
    /// A flush of this volume.
    Flush(Target),
    /// Blocks of the device that could not be read from the log.
    Log(Vec<u64>),
    /// The owner record.
    Owner,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Books {
    epoch: Epoch,
    /// How the newest superblock divides the caching volume.
    geometry: Option<Geometry>,
    /// Segments of the log, as the superblock of each slot has them.
    segments: [u32; 2],
    records: Vec<Record>,
    /// For each block of the device.
    newest: BTreeMap<u64, Place>,
    effects: BTreeMap<EffectId, Io>,
    /// What scratch buffers were read from: first byte in the buffer, byte on the caching volume, bytes.
    origins: BTreeMap<ScratchId, Vec<(u64, u64, u64)>>,
    /// Flushes of the backing volume that failed.
    failures: u64,
    tries: BTreeMap<u64, Tries>,
    /// Reads of the caching volume for a request that failed.
    failed_reads: BTreeMap<RequestId, u32>,
    /// I/Os on the caching volume that failed since it was attached or the process started.
    pub cache_failures: u64,
    /// The same of any volume and of the owner record.
    pub all_failures: u64,
    outage: Option<Outage>,
    outages: u64,
    /// The present engine has read the log back.
    recovered: bool,
    /// When a read failed last while nobody could tell what lies in the log, and up to which record.
    unknown_at: Option<(Instant, u64)>,
    rules: Rules,
}

fn place(completed: Instant, record: &Record, at: Option<u64>) -> Place {
    let (sequence, summary) = (record.sequence, record.offset);
    Place { sequence, summary, at, clean: false, completed, promised: None, torn: Vec::new() }
}

fn length_of(from: &Slices) -> u64 {
    from.iter().map(|slice| u64::from(slice.length)).sum()
}

impl Books {
    /// A volume is adopted under this name: nothing is on it.
    pub fn adopt(&mut self, epoch: Epoch) {
        *self = Self {
            epoch,
            effects: std::mem::take(&mut self.effects),
            origins: std::mem::take(&mut self.origins),
            failures: self.failures,
            outage: self.outage,
            outages: self.outages,
            ..Self::default()
        };
    }

    /// How the newest superblock divides the caching volume.
    #[must_use]
    pub const fn geometry(&self) -> Option<Geometry> {
        self.geometry
    }

    /// Nothing on the caching volume counts any more.
    pub fn release_cache(&mut self) {
        self.records.clear();
        self.newest.clear();
        self.tries.clear();
        self.rules = Rules::default();
        self.recovered = false;
    }

    /// The engine asks for this.
    ///
    /// # Errors
    /// If a recovery could not make sense of the log then.
    pub fn begin(&mut self, effect: &Effect) -> Result<(), String> {
        self.check_rules(effect)?;
        let (id, io) = match effect {
            Effect::Read { id, target, offset, into, .. } => {
                let out = self.outage.is_some_and(|outage| outage.until.is_none());
                (*id, Io::Read { target: *target, offset: *offset, into: *into, outages: self.outages, out })
            }
            Effect::Append { id, offset, summary, fua, .. } => (*id, Io::Append(self.record(*offset, summary, *fua))),
            Effect::Write { id, target: Target::Backing, offset, from, .. } => {
                let copies = self.copies(*offset, from);
                (*id, Io::Drain { offset: *offset, length: length_of(from), copies, failures: self.failures })
            }
            Effect::Discard { id, offset, length } | Effect::WriteZeroes { id, offset, length, .. } => {
                (*id, Io::Drain { offset: *offset, length: *length, copies: Vec::new(), failures: self.failures })
            }
            Effect::WriteSuperblock { id, offset, superblock } => {
                self.geometry = Some(superblock.geometry());
                (*id, Io::Superblock(usize::from(*offset > 0), superblock.segments))
            }
            Effect::WriteTable { id, page, .. } => {
                let first = self.geometry.map_or(0, |geometry| geometry.segments_of_page(page.page).start);
                let mut freed = Vec::new();
                for record in self.records.iter_mut().filter(|record| record.freed == Freed::No) {
                    let now = record.segment.checked_sub(first).and_then(|at| page.generations.get(at as usize));
                    if page.epoch == self.epoch && now.is_some_and(|&now| now > record.generation) {
                        record.freed = Freed::Begun;
                        freed.push(record.sequence);
                    }
                }
                (*id, Io::Table(freed))
            }
            Effect::Flush { id, target } => {
                let freed = self.records.iter().filter(|record| record.freed == Freed::Written);
                let freed = freed.filter(|_| *target == Target::Cache).map(|record| record.sequence).collect();
                (*id, Io::Flush(*target, freed, self.rules.complete()))
            }
            Effect::PersistOwner { id, .. } | Effect::RecordHealed { id, .. } => (*id, Io::Owner),
            Effect::Release { scratch } => {
                self.origins.remove(scratch);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.effects.insert(id, io);
        Ok(())
    }

    /// Takes note of a record that is about to be written; what it overwrites is gone.
    fn record(&mut self, offset: u64, summary: &Summary, forced: bool) -> Record {
        let record = Record {
            sequence: summary.place.sequence,
            segment: summary.place.segment,
            generation: summary.place.generation,
            position: summary.place.position,
            offset,
            entries: summary.entries.clone(),
            forced,
            freed: Freed::No,
            failed: false,
        };
        let end = record.end();
        self.records.retain(|other| other.end() <= offset || end <= other.offset);
        if record.holds_changes() {
            self.records.push(record.clone());
            self.rules.begin(record.sequence);
        }
        record
    }

    /// What a write of the backing volume copies from the log.
    fn copies(&self, offset: u64, from: &Slices) -> Vec<(u64, u64, u64)> {
        let mut copies = Vec::new();
        let mut device = offset;
        for slice in from {
            if let BufferId::Scratch(scratch) = slice.buffer {
                for &(start, at, length) in self.origins.get(&scratch).into_iter().flatten() {
                    for number in 0..length / BLOCK64 {
                        let in_buffer = start + number * BLOCK64;
                        let Some(skip) = in_buffer.checked_sub(u64::from(slice.offset)) else { continue };
                        let block = (device + skip) / BLOCK64;
                        let whole =
                            skip + BLOCK64 <= u64::from(slice.length) && (device + skip).is_multiple_of(BLOCK64);
                        let place = self.newest.get(&block).filter(|place| place.at == Some(at + number * BLOCK64));
                        copies.extend(
                            place.filter(|_| whole).map(|place| (block, at + number * BLOCK64, place.sequence)),
                        );
                    }
                }
            }
            device += u64::from(slice.length);
        }
        copies
    }

    /// An effect on a volume (`None`: the owner record) has ended. Says what it touched if it failed.
    pub fn end(
        &mut self,
        now: Instant,
        id: EffectId,
        outcome: &Outcome,
        target: Option<Target>,
        cache: Option<&Disk>,
    ) -> Touched {
        let failed = matches!(outcome, Outcome::Failed(_));
        self.all_failures += u64::from(failed);
        if failed && target == Some(Target::Cache) {
            self.cache_failures += 1;
            self.notice_outage(now);
        }
        let Some(io) = self.effects.remove(&id) else { return Touched::Nothing };
        match io {
            Io::Read { target: Target::Backing, offset, into, .. } if failed => {
                Touched::Backing(offset..offset + u64::from(into.length))
            }
            Io::Read { target: Target::Backing, .. } => Touched::Nothing,
            Io::Read { target: Target::Cache, offset, into, outages, out } => {
                let length = u64::from(into.length);
                if failed {
                    if let BufferId::Request(request) = into.buffer {
                        *self.failed_reads.entry(request).or_default() += 1;
                    }
                    let blames_nothing = out || outages != self.outages;
                    let blocks = if blames_nothing { Vec::new() } else { self.read_failed(now, offset, length, cache) };
                    return Touched::Log(blocks);
                }
                let blocks = offset / BLOCK64..(offset + length).div_ceil(BLOCK64);
                blocks.for_each(|block| _ = self.tries.remove(&block));
                if let BufferId::Scratch(scratch) = into.buffer {
                    self.origins.entry(scratch).or_default().push((u64::from(into.offset), offset, length));
                }
                Touched::Nothing
            }
            Io::Superblock(..) if failed => Touched::Nothing,
            Io::Superblock(slot, segments) => {
                self.segments[slot] = segments;
                Touched::Nothing
            }
            Io::Append(record) if failed => {
                let mut written = self.records.iter_mut();
                written
                    .find(|other| other.sequence == record.sequence)
                    .into_iter()
                    .for_each(|other| other.failed = true);
                self.rules.durable(&[record.sequence]);
                Touched::Nothing
            }
            Io::Append(record) => {
                self.appended(now, &record);
                self.rules.written(record.sequence, record.forced);
                Touched::Nothing
            }
            Io::Drain { offset, length, .. } if failed => Touched::Backing(offset..offset + length),
            Io::Drain { copies, failures, .. } => {
                for (block, at, sequence) in copies {
                    if let Some(place) = self.newest.get_mut(&block)
                        && (place.at, place.sequence) == (Some(at), sequence)
                    {
                        place.clean |= failures == self.failures;
                    }
                }
                Touched::Nothing
            }
            Io::Table(_) if failed => Touched::Nothing,
            Io::Table(freed) => {
                for record in self.records.iter_mut().filter(|record| freed.contains(&record.sequence)) {
                    record.freed = Freed::Written;
                }
                Touched::Nothing
            }
            Io::Flush(target, ..) if failed => {
                if target == Target::Cache && !matches!(outcome, Outcome::Failed(IoFailure::Gone)) {
                    self.rules.flush_failed();
                }
                if target == Target::Backing {
                    self.failures += 1;
                    self.newest.values_mut().for_each(|place| place.clean = false);
                }
                Touched::Flush(target)
            }
            Io::Owner if failed => Touched::Owner,
            Io::Flush(_, freed, durable) => {
                self.free(&freed);
                self.rules.durable(&durable);
                Touched::Nothing
            }
            Io::Owner => Touched::Nothing,
        }
    }

    /// A request has been answered.
    pub fn answered(&mut self, request: RequestId) {
        self.failed_reads.remove(&request);
    }

    /// A request for which the caching volume is read over and over although that fails.
    #[must_use]
    pub fn read_in_vain(&self) -> Option<RequestId> {
        self.failed_reads.iter().find(|(_, count)| **count > FAILED_READS_MAX).map(|(&request, _)| request)
    }

    /// These records are void for good.
    fn free(&mut self, sequences: &[u64]) {
        if !sequences.is_empty() {
            self.newest.retain(|_, place| !sequences.contains(&place.sequence));
            self.records.retain(|record| !sequences.contains(&record.sequence));
        }
    }

    fn appended(&mut self, now: Instant, record: &Record) {
        for block in record.offset / BLOCK64..record.end() / BLOCK64 {
            self.tries.remove(&block);
        }
        for (block, at) in record.blocks() {
            if self.newest.get(&block).is_some_and(|place| place.sequence > record.sequence) {
                continue;
            }
            let (sequence, summary) = (record.sequence, record.offset);
            let place = Place { sequence, summary, at, clean: false, completed: now, promised: None, torn: Vec::new() };
            self.newest.insert(block, place);
        }
    }

    /// Counts the blocks that may have failed the read: those that are bad; all if none is. Answers the blocks of the device whose newest version lies there
    /// alone.
    fn read_failed(&mut self, now: Instant, offset: u64, length: u64, cache: Option<&Disk>) -> Vec<u64> {
        let all = offset / BLOCK64..(offset + length).div_ceil(BLOCK64);
        let bad = |block: &u64| cache.is_some_and(|disk| disk.is_bad(block * BLOCK64, BLOCK64));
        let any_bad = all.clone().any(|block| bad(&block));
        let failed: Vec<u64> = all.filter(|block| !any_bad || bad(block)).collect();
        for &block in &failed {
            self.tries.entry(block).or_insert(Tries { count: 0, first: now }).count += 1;
        }
        let place = |place: &Place| !place.clean && place.at.is_some_and(|at| failed.contains(&(at / BLOCK64)));
        let blocks = self.newest.iter().filter(|(_, newest)| place(newest)).map(|(&block, _)| block).collect();
        if let Some(unknown) = cache.and_then(|disk| self.unknown(disk)) {
            let before = self.was_unknown(now).unwrap_or(0);
            self.unknown_at = Some((now, unknown.max(before)));
        }
        blocks
    }

    /// Up to which record nobody could tell what lies in the log when it was read lately.
    #[must_use]
    pub fn was_unknown(&self, now: Instant) -> Option<u64> {
        self.unknown_at.filter(|(at, _)| now.since(*at) <= LATE).map(|(_, unknown)| unknown)
    }

    /// An application's flush that was submitted at this time has succeeded.
    pub fn promise(&mut self, submitted: Instant) {
        for place in self.newest.values_mut().filter(|place| place.promised.is_none() && place.completed < submitted) {
            place.promised = Some(submitted);
        }
    }

    /// Nothing of the caching volume can be read from now on.
    pub fn begin_outage(&mut self, now: Instant) {
        self.outages += 1;
        // The engine may not have noticed a short pause.
        self.outage = match self.outage {
            Some(Outage { since, until: Some(until), noticed }) if now.since(until) <= PAUSE => {
                Some(Outage { since, until: None, noticed })
            }
            _ => Some(Outage { since: now, until: None, noticed: None }),
        };
    }

    /// It can be read again.
    pub fn end_outage(&mut self, now: Instant) {
        if let Some(outage) = &mut self.outage {
            outage.until = Some(now);
        }
    }

    /// The engine has a sign of an outage.
    pub fn notice_outage(&mut self, now: Instant) {
        if let Some(outage) = self.outage.as_mut().filter(|outage| outage.until.is_none()) {
            outage.noticed.get_or_insert(now);
        }
    }

    /// Another volume is attached.
    pub fn forget_outage(&mut self) {
        self.outage = None;
    }

    /// Whether nothing could be read for so long that everything may be discarded. That it can be read again may be `unseen`
    /// for so long.
    #[must_use]
    pub fn is_out_of_patience(&self, now: Instant, patience: std::time::Duration, unseen: std::time::Duration) -> bool {
        self.outage.is_some_and(|Outage { since, until, .. }| {
            let seen = until.map_or(now, |until| (until + unseen).min(now));
            seen.since(since) >= patience && until.is_none_or(|until| now.since(until) <= LATE)
        })
    }

    fn tried(&self, at: u64) -> bool {
        self.tries.get(&(at / BLOCK64)).is_some_and(|tries| tries.count >= TRIES_MIN)
    }

    /// Whether a block of the device that the log alone has failed to be read, if only once.
    #[must_use]
    pub fn is_doubtful(&self, block: u64) -> bool {
        let failed = |at: u64| self.tries.contains_key(&(at / BLOCK64));
        self.newest.get(&block).is_some_and(|place| !place.clean && place.at.is_some_and(failed))
    }

    /// Why this block of the device may not be discarded, if it may not.
    ///
    /// # Errors
    /// One sentence.
    pub fn may_be_lost(&self, now: Instant, block: u64, out_of_patience: bool) -> Result<(), String> {
        let Some(place) = self.newest.get(&block) else {
            return Err(format!("block {block} is discarded, but the log holds nothing of it"));
        };
        if place.clean {
            return Err(format!("block {block} is discarded, but has been drained"));
        }
        if out_of_patience {
            return match place.at {
                None if !self.recovered => {
                    Err(format!("block {block} is discarded, but it is only zeroes, and the engine knew that"))
                }
                _ => self.promise_is_kept(block, place, self.outage.and_then(|outage| outage.noticed)),
            };
        }
        let summary = self.recovered && self.tried(place.summary);
        let torn = place.torn.iter().any(|&(summary, data)| self.tried(summary) || self.tried(data));
        if !(summary || torn || place.at.is_some_and(|at| self.tried(at))) {
            let tries = place.at.and_then(|at| self.tries.get(&(at / BLOCK64)));
            return Err(format!(
                "block {block} is discarded at {now}, but it can be read, or was hardly tried: {place:?}, {tries:?}"
            ));
        }
        let first = place.at.and_then(|at| self.tries.get(&(at / BLOCK64))).map(|tries| tries.first);
        self.promise_is_kept(block, place, first)
    }

    /// A flush that came after the engine could not read a version must not have promised it.
    fn promise_is_kept(&self, block: u64, place: &Place, failed: Option<Instant>) -> Result<(), String> {
        match (place.promised, failed) {
            (Some(promised), Some(failed)) if promised > failed && !self.recovered => Err(format!(
                "block {block} is discarded, but a flush promised it at {promised}, after it had failed at {failed}"
            )),
            _ => Ok(()),
        }
    }

    /// Blocks whose newest version may be in the log alone.
    pub fn possibly_dirty(&self) -> impl Iterator<Item = u64> + '_ {
        self.newest.iter().filter(|(_, place)| !place.clean).map(|(&block, _)| block)
    }

    /// Whether the newest version of a block can be read from this volume.
    #[must_use]
    pub fn is_readable(&self, block: u64, disk: &Disk) -> bool {
        self.newest.get(&block).is_some_and(|place| {
            let sound = |at: u64| !disk.is_bad(at, BLOCK64);
            // Once it could not be read, a torn block is not told from a damaged one.
            sound(place.summary) && place.at.is_none_or(sound) && place.torn.is_empty()
        })
    }

    /// The process that wrote the log is gone: what counts from now on is what the volume holds.
    pub fn restart(&mut self, now: Instant, cache: Option<&Disk>) {
        self.effects.clear();
        self.origins.clear();
        self.failed_reads.clear();
        self.cache_failures = 0;
        self.all_failures = 0;
        self.recovered = true;
        let Some(disk) = cache else { return self.release_cache() };
        self.read_superblocks(disk);
        let void = self.void(disk);
        // What it repeats of others counts all the same.
        let counts = |record: &Record| !(record.failed && void.contains(&record.sequence));
        let mut records: Vec<(Record, Vec<u32>)> = Vec::new();
        let summaries: Vec<Summary> = self.records.iter().filter_map(|record| self.stored(record, disk)).collect();
        for record in std::mem::take(&mut self.records) {
            let own = summaries.iter().find(|summary| summary.place.sequence == record.sequence);
            let repeats = summaries.iter().filter_map(|summary| summary.repeat.as_ref());
            let repeated = repeats.into_iter().find(|repeat| repeat.place.sequence == record.sequence);
            let checksums = own.map(|own| own.checksums.clone()).or(repeated.map(|repeat| repeat.checksums.clone()));
            records.extend(checksums.map(|checksums| (Record { freed: Freed::No, ..record }, checksums)));
        }
        records.sort_unstable_by_key(|(record, _)| record.sequence);
        let mut newest: BTreeMap<u64, Place> = BTreeMap::new();
        for (record, checksums) in records.iter().filter(|(record, _)| counts(record)) {
            for (block, at) in record.blocks() {
                let intact = at.is_none_or(|at| {
                    let mut bytes = [0; BLOCK as usize];
                    disk.peek_sound(at, &mut bytes);
                    checksums.get(((at - record.offset) / BLOCK64) as usize - 1) == Some(&checksum(&bytes))
                });
                match (intact, newest.get_mut(&block)) {
                    (true, _) => {
                        newest.insert(block, place(now, record, at));
                    }
                    (false, Some(older)) => older.torn.extend(at.map(|at| (record.offset, at))),
                    // Nothing older is in the log, but whoever cannot read this cannot know that it is torn.
                    (false, None) => {
                        let torn = at.map(|at| (record.offset, at)).into_iter().collect();
                        newest.insert(block, Place { torn, ..place(now, record, at) });
                    }
                }
            }
        }
        self.newest = newest;
        self.records = records.into_iter().map(|(record, _)| record).collect();
        self.rules.restart(&self.records);
    }
}

/// A pause in an outage that the engine may not notice: its probes are up to 5 s apart.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(6);
/// How long after an outage the engine may still write down what it decided then.
const LATE: std::time::Duration = std::time::Duration::from_secs(120);
