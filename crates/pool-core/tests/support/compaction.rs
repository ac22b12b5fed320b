//! The SSD's log with compaction on a disk that loses what was not flushed, against what was flushed.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::Instant;
use surgetank_model::random::Random;
use surgetank_pool_core::benefactor::compaction::{Compaction, Next};
use surgetank_pool_core::benefactor::recovery::{Latest, Sum};
use surgetank_pool_core::benefactor::segments::{At, BLOCK, Former, Kind, Segments};

/// What a record has: of which name, and which content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Content {
    name: u64,
    version: u32,
}

#[derive(Clone, Copy)]
struct Record {
    at: At,
    content: Content,
    is_torn: bool,
}

/// A segment of the disk: the filling of its header, its records, and whether it has its mark.
#[derive(Clone, Default)]
struct OnDisk {
    filling: u64,
    records: BTreeMap<u64, Record>,
    is_marked: bool,
}

impl OnDisk {
    fn write(&mut self, record: Record) {
        let range = record.at.offset..record.at.offset + record.at.length;
        self.records.retain(|offset, other| !(*offset < range.end && offset + other.at.length > range.start));
        self.records.insert(record.at.offset, record);
    }
}

/// A name that counts.
#[derive(Clone, Copy, Debug)]
struct Counted {
    is_table: bool,
    /// Where its latest flushed record is, and which version that has.
    flushed: Option<(At, u32)>,
    /// The same of one that is not flushed.
    pending: Option<(At, u32)>,
}

impl Counted {
    fn places(&self) -> impl Iterator<Item = At> {
        [self.flushed, self.pending].into_iter().flatten().map(|(at, _)| at)
    }
}

struct World {
    random: Random,
    size: u64,
    segments: Segments,
    compaction: Compaction,
    now: Instant,
    durable: Vec<OnDisk>,
    unflushed: Vec<Record>,
    /// Marks that are written at the next flush.
    marks: Vec<At>,
    names: BTreeMap<u64, Counted>,
    last_name: u64,
    /// Bytes that this life has copied, and otherwise appended.
    copied: u64,
    written: u64,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let (count, blocks) = (4 + random.below(4), 8 + random.below(40));
    let size = blocks * BLOCK;
    let mut world = World {
        random,
        size,
        segments: Segments::new(size, vec![Former::default(); count as usize]),
        compaction: Compaction::default(),
        now: Instant::ZERO,
        durable: vec![OnDisk::default(); count as usize],
        unflushed: Vec::new(),
        marks: Vec::new(),
        names: BTreeMap::new(),
        last_name: 0,
        copied: 0,
        written: 0,
    };
    for step in 0..400 {
        world.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    Ok(())
}

impl World {
    fn step(&mut self) -> Result<(), String> {
        self.now += std::time::Duration::from_millis(1);
        match self.random.below(100) {
            0..45 => self.put_or_make_room()?,
            45..55 => drop(self.table()?),
            55..65 => self.flush(),
            65..88 => self.over(),
            88..97 => drop(self.compact(false)?),
            _ => return self.cut(),
        }
        Ok(())
    }

    /// Appends a record of a name; `false`: there is no room.
    fn append(&mut self, name: u64, version: u32, length: u64, kind: Kind) -> Result<Option<At>, String> {
        let Some(append) = self.segments.append(length, kind) else { return Ok(None) };
        let at = append.at;
        let segment = at.segment as usize;
        self.marks.extend(append.closed);
        let counts = |names: &BTreeMap<u64, Counted>, hit: &dyn Fn(At) -> bool| {
            names.values().flat_map(Counted::places).any(hit)
        };
        if append.begins {
            if counts(&self.names, &|other| other.segment == at.segment) {
                return Err(format!("{at:?} begins a segment in which records count"));
            }
            // The header is flushed before anything else, and with it what was written before.
            self.flush_segment(segment);
            self.durable[segment] = OnDisk { filling: at.filling, ..self.durable[segment].clone() };
            self.durable[segment].is_marked = false;
            self.marks.retain(|mark| mark.segment != at.segment);
        }
        if at.offset < BLOCK || at.offset + at.length + BLOCK > self.size || at.length < length {
            return Err(format!("{at:?} is beyond its segment"));
        }
        let overlaps = |other: At| {
            other.segment == at.segment
                && other.offset < at.offset + at.length
                && at.offset < other.offset + other.length
        };
        if counts(&self.names, &overlaps) {
            return Err(format!("{at:?} overwrites what counts"));
        }
        self.unflushed.push(Record { at, content: Content { name, version }, is_torn: false });
        match kind {
            Kind::Copy => self.copied += at.length,
            Kind::Chunk | Kind::Table => self.written += at.length,
        }
        Ok(Some(at))
    }

    /// Room comes from compaction if it can; else there must be none to win.
    fn put_or_make_room(&mut self) -> Result<(), String> {
        let length = (1 + self.random.below(3)) * BLOCK;
        let mut steps = 0;
        while !self.put(length)? {
            self.flush();
            if !self.compact(true)? {
                return self.is_full(length);
            }
            steps += 1;
            if steps > 4 * self.durable.len() as u64 * self.size / BLOCK {
                return Err("compaction never ends".to_owned());
            }
        }
        let bound = 15 * self.written + self.durable.len() as u64 * self.size;
        match self.copied > bound {
            true => Err(format!("{} bytes were copied, and {} written", self.copied, self.written)),
            false => Ok(()),
        }
    }

    fn put(&mut self, length: u64) -> Result<bool, String> {
        let (room, name) = (self.segments.room(), self.last_name + 1);
        match self.append(name, 1, length, Kind::Chunk)? {
            Some(at) => {
                self.last_name = name;
                self.names.insert(name, Counted { is_table: false, flushed: None, pending: Some((at, 1)) });
                Ok(true)
            }
            None if room >= 4 * BLOCK => Err(format!("{room} bytes of room, and none for {length}")),
            None => Ok(false),
        }
    }

    /// Nothing is left that compaction could win.
    fn is_full(&self, length: u64) -> Result<(), String> {
        let live: u64 = self.names.values().flat_map(Counted::places).map(|at| at.length).sum();
        let room = self.size - 2 * BLOCK;
        // What is over and not worth it, a record that did not fit, and a record's length.
        let used = room.saturating_sub(room / 16 + 4 * BLOCK);
        let segments = self.durable.len() as u64;
        if live < (segments - 3) * used {
            return Err(format!(
                "no room for {length}, though only {live} bytes count in {segments} segments of {room}"
            ));
        }
        Ok(())
    }

    /// A table, which often takes the place of its former version.
    fn table(&mut self) -> Result<bool, String> {
        let of: Vec<u64> = self.names.iter().filter(|(_, of)| of.is_table).map(|(name, _)| *name).collect();
        let name = match of.len() {
            3.. => of[self.random.below(of.len() as u64) as usize],
            _ => self.last_name + 1,
        };
        let known = self.names.get(&name).copied();
        // Nobody appends a table of which a record waits for its flush.
        if known.is_some_and(|known| known.pending.is_some()) {
            return Ok(false);
        }
        let version = known.and_then(|known| known.flushed).map_or(1, |(_, version)| version + 1);
        let Some(at) = self.append(name, version, BLOCK, Kind::Table)? else { return Ok(false) };
        self.last_name = self.last_name.max(name);
        let flushed = known.and_then(|known| known.flushed);
        self.names.insert(name, Counted { is_table: true, flushed, pending: Some((at, version)) });
        Ok(true)
    }

    fn flush_segment(&mut self, segment: usize) {
        let (now, later) = self.unflushed.iter().partition(|record| record.at.segment as usize == segment);
        self.unflushed = later;
        let now: Vec<Record> = now;
        now.into_iter().for_each(|record| self.durable[segment].write(record));
    }

    fn flush(&mut self) {
        (0..self.durable.len()).for_each(|segment| self.flush_segment(segment));
        for mark in std::mem::take(&mut self.marks) {
            self.durable[mark.segment as usize].is_marked = true;
        }
        self.segments.flushed();
        for counted in self.names.values_mut() {
            if let Some(pending) = counted.pending.take()
                && let Some((former, version)) = counted.flushed.replace(pending)
                && version != pending.1
            {
                self.segments.over(former);
            }
        }
    }

    fn over(&mut self) {
        let names: Vec<u64> = self.names.iter().filter(|(_, of)| of.pending.is_none()).map(|(name, _)| *name).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.random.below(names.len() as u64) as usize];
        if let Some(counted) = self.names.remove(&name) {
            counted.places().for_each(|at| self.segments.over(at));
        }
    }

    /// A step of compaction; `false`: it has none.
    fn compact(&mut self, wanted: bool) -> Result<bool, String> {
        self.flush();
        let Next::Copy(records) = self.compaction.next(self.now, &self.segments, wanted) else { return Ok(false) };
        let began = self.now;
        for from in records {
            let found = self.names.iter().find(|(_, counted)| counted.flushed.is_some_and(|(at, _)| at == from));
            let Some((name, counted)) = found.map(|(name, counted)| (*name, *counted)) else {
                return Err(format!("{from:?} is over, and is copied"));
            };
            let version = counted.flushed.map_or(0, |(_, version)| version);
            let Some(to) = self.append(name, version, from.length, Kind::Copy)? else {
                return Err(format!("a copy of {from:?} has no room"));
            };
            self.segments.copied(from, to);
            self.names.insert(name, Counted { pending: Some((to, version)), ..counted });
        }
        self.now += std::time::Duration::from_millis(1);
        self.compaction.stepped(began, self.now);
        // Others may append before all is flushed, and the power may go.
        for _ in 0..self.random.below(6) {
            let length = (1 + self.random.below(3)) * BLOCK;
            self.put(length)?;
        }
        if self.random.chance(0.05) {
            self.cut()?;
        } else {
            self.flush();
        }
        Ok(true)
    }

    /// The power is cut, and the next process begins.
    fn cut(&mut self) -> Result<(), String> {
        for record in std::mem::take(&mut self.unflushed) {
            let of = &mut self.durable[record.at.segment as usize];
            match self.random.below(3) {
                0 => {}
                1 => of.write(record),
                _ => of.write(Record { is_torn: true, ..record }),
            }
        }
        self.marks.clear();
        let mut latest = Latest::default();
        for of in &self.durable {
            for record in of.records.values().filter(|record| record.at.filling == of.filling) {
                let Content { name, version } = record.content;
                let sum = (record.at, Sum(version, version));
                match record.is_torn {
                    false => latest.whole(name, sum, true, version),
                    // The log does so with tables alone: a chunk's records are all equal.
                    true if self.names.get(&name).is_some_and(|counted| counted.is_table) => latest.torn(name, sum),
                    true => {}
                }
            }
        }
        let found: BTreeMap<u64, (At, u32)> =
            latest.into_records().map(|(name, at, version)| (name, (at, version))).collect();
        for (name, counted) in &self.names {
            let (Some((_, version)), pending) = (counted.flushed, counted.pending) else { continue };
            // One that is replaced by another version may be hidden by that.
            let is_replaced = pending.is_some_and(|(_, pending)| pending != version);
            match found.get(name) {
                None if !is_replaced => return Err(format!("{name} was flushed, and is gone: {counted:?}")),
                Some((_, other)) if *other < version => {
                    return Err(format!("{name} is version {other} again: {counted:?}"));
                }
                _ => {}
            }
        }
        self.restart(&found);
        Ok(())
    }

    fn restart(&mut self, found: &BTreeMap<u64, (At, u32)>) {
        let places: BTreeSet<At> = found.values().map(|(at, _)| *at).collect();
        let former = |of: &OnDisk| {
            let whole = of.records.values().filter(|record| record.at.filling == of.filling && !record.is_torn);
            let used = whole.map(|record| record.at.offset + record.at.length).max().unwrap_or(BLOCK);
            let torn = of.records.values().any(|record| record.at.filling == of.filling && record.is_torn);
            let live = of.records.values().map(|record| record.at).filter(|at| places.contains(at)).collect();
            Former { filling: of.filling, used, live, goes_on: !of.is_marked, is_whole: !torn }
        };
        self.segments = Segments::new(self.size, self.durable.iter().map(former));
        (self.compaction, self.now, self.copied, self.written) = (Compaction::default(), Instant::ZERO, 0, 0);
        let former = std::mem::take(&mut self.names);
        for (name, (at, version)) in found {
            match former.get(name) {
                Some(counted) => {
                    let counted = Counted { flushed: Some((*at, *version)), pending: None, ..*counted };
                    self.names.insert(*name, counted);
                }
                // It was over: the process learns that from others.
                None => self.segments.over(*at),
            }
        }
    }
}
