//! What a segment holds, as a recovery finds it.

use std::ops::Range;

use super::{BLOCK, Entry, Epoch, Layout, Place, Repeat, Summary, checksum};
use crate::planted::{Bug, planted};

/// One record of [`Records`]: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    sequence: u64,
    position: u32,
    entries: u16,
    data_blocks: u16,
}

/// Twelve bytes of an entry; aligned to four, where `(u64, u32)` would take sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed([u32; 3]);

impl Packed {
    fn pack(entry: &Entry) -> Self {
        let (packed, blocks) = entry.pack();
        Self([packed as u32, (packed >> 32) as u32, blocks])
    }

    fn unpack(self) -> Option<Entry> {
        Entry::unpack(u64::from(self.0[0]) | u64::from(self.0[1]) << 32, self.0[2])
    }
}

/// A record that another one names as the one before it, and that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The record.
    pub place: Place,
    /// Its summary could not be read. Else what lies in its place is no summary: it never arrived whole, or was damaged.
    pub unreadable: bool,
}

/// The records of one segment that a recovery may replay, in their order. 32 bytes for each record of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Which segment.
    pub segment: u32,
    heads: Vec<Head>,
    entries: Vec<Packed>,
    checksums: Vec<u32>,
    /// Data blocks (by their position in the segment) that could not be read, or whose checksums do not match: in order.
    flaws: Vec<(u32, Flaw)>,
    /// Highest sequence in the segment, copies of the backing volume included; 0: none.
    pub sequence_max: u64,
    /// Records up to this sequence are durable, as far as this segment says.
    pub durable: u64,
    /// The record before the first one here.
    pub previous: Option<Place>,
    /// What is repeated here of that record, if it lies in another segment.
    pub repeat: Option<Box<Repeat>>,
    /// Records of this segment that are missing.
    pub gaps: Vec<Gap>,
    /// The block after the last record, where the next one would begin.
    pub end: u32,
    /// That block could not be read.
    pub end_unreadable: bool,
    /// Extents without data that the records make in the index.
    pub tombstones: u64,
    /// The index says all this: the data blocks were durable, and have not been looked at.
    pub indexed: bool,
}

/// What is wrong with a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It could not be read.
    Unreadable,
    /// Its checksum does not match.
    Mismatch,
}

/// A record of [`Records`].
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Order of the record in the log.
    pub sequence: u64,
    /// 4 KiB block in the segment at which the summary lies; its data follow.
    pub position: u32,
    entries: &'a [Packed],
    /// crc32c of each data block, in order.
    pub checksums: &'a [u32],
    flaws: &'a [(u32, Flaw)],
}

impl View<'_> {
    /// Its ranges, in the order of their data.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().filter_map(|entry| entry.unpack())
    }

    /// Runs of its data blocks (counted from the first) and what is wrong with them.
    pub fn runs(&self, data: Range<u32>) -> impl Iterator<Item = (Range<u32>, Option<Flaw>)> + '_ {
        let flaw = |block: u32| {
            let at = self.flaws.binary_search_by_key(&(self.position + 1 + block), |(position, _)| *position);
            at.ok().map(|at| self.flaws[at].1)
        };
        let mut at = data.start;
        std::iter::from_fn(move || {
            if at >= data.end {
                return None;
            }
            let (start, first) = (at, flaw(at));
            at = (start + 1..data.end).find(|&block| flaw(block) != first).unwrap_or(data.end);
            Some((start..at, first))
        })
    }

    /// Data blocks that do not match their checksums or could not be read.
    #[must_use]
    pub fn flawed(&self) -> usize {
        self.flaws.len()
    }
}

impl Records {
    /// No records of this segment, with room for so many.
    pub(crate) fn with_capacity(segment: u32, records: usize, entries: usize, blocks: usize) -> Self {
        Self {
            segment,
            heads: Vec::with_capacity(records),
            entries: Vec::with_capacity(entries),
            checksums: Vec::with_capacity(blocks),
            ..Self::default()
        }
    }

    /// The records, in the order of their positions.
    pub fn iter(&self) -> impl Iterator<Item = View<'_>> {
        let (mut entry, mut block, mut flaw) = (0, 0, 0);
        self.heads.iter().map(move |head| {
            let entries = &self.entries[entry..entry + usize::from(head.entries)];
            let checksums = &self.checksums[block..block + usize::from(head.data_blocks)];
            entry += entries.len();
            block += checksums.len();
            let end = head.position + 1 + u32::from(head.data_blocks);
            let count = self.flaws[flaw..].partition_point(|(position, _)| *position < end);
            let flaws = &self.flaws[flaw..flaw + count];
            flaw += count;
            View { sequence: head.sequence, position: head.position, entries, checksums, flaws }
        })
    }

    /// Whether nothing in the segment would be replayed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Sequence of the first record.
    #[must_use]
    pub fn order(&self) -> u64 {
        self.heads.first().map_or(0, |head| head.sequence)
    }

    /// The highest sequence that a record may have which stands unread behind those of this segment, if there can be one.
    /// It is from before `silent`, which names nothing: its segment is freed, or it is `void`, or a crash cut it short.
    pub(crate) fn hidden_before<'a>(
        &self,
        silent: u64,
        void: impl Fn(u64) -> bool,
        all: impl Iterator<Item = &'a Self>,
    ) -> Option<u64> {
        // One segment after the other is written to.
        let next = all.map(Self::order).filter(|order| !self.is_empty() && *order > self.order()).min();
        let end = next.unwrap_or(u64::MAX).min(silent);
        let begin = self.last().map_or(0, |(sequence, _)| sequence);
        (begin + 1..end).rev().find(|sequence| !void(*sequence))
    }

    /// The same of one that begins in this block, which is no known record's.
    pub(crate) fn hidden_at(&self, block: u32, silent: u64, void: impl Fn(u64) -> bool) -> Option<u64> {
        let behind = self.heads.partition_point(|head| head.position < block);
        let begin = self.heads[..behind].last().map_or(0, |head| head.sequence);
        let end = self.heads[behind..].first().map_or(u64::MAX, |head| head.sequence).min(silent);
        (begin + 1..end).rev().find(|sequence| !void(*sequence))
    }

    /// Sequence and position of the last record.
    #[must_use]
    pub fn last(&self) -> Option<(u64, u32)> {
        self.heads.last().map(|head| (head.sequence, head.position))
    }

    /// Whether a block of the segment belongs to a record.
    #[must_use]
    pub fn covers(&self, block: u32) -> bool {
        let end = |head: &Head| head.position + 1 + u32::from(head.data_blocks);
        self.heads.iter().any(|head| (head.position..end(head)).contains(&block))
    }

    /// Whether the record of this sequence is here.
    #[must_use]
    pub fn contains(&self, sequence: u64) -> bool {
        self.heads.iter().any(|head| head.sequence == sequence)
    }

    /// Adds a record behind the others.
    pub(crate) fn push(&mut self, sequence: u64, position: u32, entries: &[Entry], checksums: &[u32]) {
        self.push_unsealed(sequence, position, entries, checksums.len() as u32);
        self.checksums.extend_from_slice(checksums);
    }

    /// Adds a record whose checksums are not known yet behind the others.
    pub(crate) fn push_unsealed(&mut self, sequence: u64, position: u32, entries: &[Entry], data_blocks: u32) {
        self.heads.push(Head { sequence, position, entries: entries.len() as u16, data_blocks: data_blocks as u16 });
        self.entries.extend(entries.iter().map(Packed::pack));
        self.tombstones += entries.iter().map(Entry::tombstones).sum::<u64>();
        self.end = position + 1 + data_blocks;
        self.sequence_max = self.sequence_max.max(sequence);
    }

    /// Adds the checksums of all records, which are those of the blocks of the segment.
    pub(crate) fn seal(&mut self, of_blocks: &[u32]) {
        for head in &self.heads {
            let first = head.position as usize + 1;
            self.checksums.extend_from_slice(&of_blocks[first..first + usize::from(head.data_blocks)]);
        }
    }
}

/// A record before it is known which of its data blocks are sound.
struct Found {
    place: Place,
    previous: Option<Place>,
    entries: Vec<Entry>,
    checksums: Vec<u32>,
}

impl Found {
    fn end(&self) -> u32 {
        self.place.position + 1 + self.checksums.len() as u32
    }
}

/// Finds the records of a segment that a recovery may replay. A hole (a record that never arrived, or only in part, or
/// cannot be read) does not end the scan: what follows it counts. A summary that is missing is made up for by what the record
/// after it repeats, or, from other segments, by `repeats`.
#[must_use]
pub fn scan_segment(
    bytes: &[u8],
    epoch: Epoch,
    segment: u32,
    generation: u32,
    unreadable: &[u32],
    repeats: &[Repeat],
) -> Records {
    let blocks: Vec<&[u8]> = bytes.chunks_exact(BLOCK as usize).collect();
    let is_unreadable = |position: u32| unreadable.binary_search(&position).is_ok();
    let is_here = |place: &Place| place.segment == segment && place.generation == generation;
    let mut records = Records { segment, ..Records::default() };
    let mut found: Vec<Found> = Vec::new();
    let mut repeats: Vec<Repeat> = repeats.iter().filter(|repeat| is_here(&repeat.place)).cloned().collect();
    let mut position = 0;
    while position < blocks.len() {
        let readable = !is_unreadable(position as u32);
        let summary = Summary::decode(blocks[position]).filter(|summary| {
            let place = &summary.place;
            let fits = position + summary.checksums.len() < blocks.len();
            readable && summary.epoch == epoch && is_here(place) && place.position as usize == position && fits
        });
        if summary.is_none() && planted(Bug::StopAtFirstHole) {
            break;
        }
        position += 1;
        let Some(summary) = summary else { continue };
        let is_copies = summary.is_copies();
        // Of layout two copies say nothing: a recovery may have passed over them, and their sequences been used again.
        if !is_copies || summary.layout == Layout::One {
            records.sequence_max = records.sequence_max.max(summary.place.sequence);
            records.durable = records.durable.max(summary.durable);
        }
        // Copies may be left from before the segment was used for records, which may lie among them.
        if is_copies {
            continue;
        }
        position += summary.checksums.len();
        match summary.repeat {
            Some(repeat) if is_here(&repeat.place) && planted(Bug::RepeatIgnored) => {}
            Some(repeat) if is_here(&repeat.place) => repeats.push(*repeat),
            repeat if found.is_empty() => records.repeat = repeat,
            _ => {}
        }
        let Summary { place, previous, entries, checksums, .. } = summary;
        found.push(Found { place, previous, entries, checksums });
    }
    for Repeat { place, previous, entries, checksums } in repeats {
        let repeated = Found { place, previous, entries, checksums };
        let (start, end) = (place.position, repeated.end());
        let at = found.partition_point(|other| other.place.position < start);
        let clear = at.checked_sub(1).is_none_or(|before| found[before].end() <= start)
            && found.get(at).is_none_or(|after| end <= after.place.position)
            && end as usize <= blocks.len();
        if clear {
            found.insert(at, repeated);
        }
    }
    for (at, record) in found.iter().enumerate() {
        let Found { place, previous, entries, checksums } = record;
        match previous.filter(|previous| is_here(previous)) {
            None if at == 0 => records.previous = *previous,
            Some(previous) if at == 0 || found[at - 1].place.sequence != previous.sequence => {
                records.gaps.push(Gap { place: previous, unreadable: is_unreadable(previous.position) });
            }
            _ => {}
        }
        for (position, crc) in (place.position + 1..).zip(checksums) {
            let flaw = if is_unreadable(position) {
                Flaw::Unreadable
            } else if checksum(blocks[position as usize]) == *crc || planted(Bug::DataChecksumIgnored) {
                continue;
            } else {
                Flaw::Mismatch
            };
            records.flaws.push((position, flaw));
        }
        records.push(place.sequence, place.position, entries, checksums);
    }
    records.end_unreadable = is_unreadable(records.end);
    records
}
