//! The chunk log of a benefactor's SSD: segments of equal size that are filled one after the other.
//!
//! A segment is *empty*, *open* (records are appended), *closed*, and empty again once every record in it is over or has been copied
//! elsewhere by [compaction](super::compaction); nothing is overwritten before. Each filling has a number that no other one has, which its
//! records repeat: what a former filling left behind them is never taken for theirs.
//!
//! Who may take which room: chunks leave one empty segment, in which the live records of any other have room, and beside it a sixteenth of a
//! segment to tables; tables go further as long as the live records of some closed segment still have room afterwards; copies take what
//! there is. So compaction can always begin, and what it has begun it can end.

use std::collections::{BTreeMap, BTreeSet};

use crate::planted::{Bug, planted};

/// What positions and lengths are multiples of, in bytes: no write touches a block that has a record already.
pub const BLOCK: u64 = 4096;
/// What a segment must win to be compacted is a part of it in so many: so no byte is won by more than one less copied ones.
pub const WORTH: u64 = 16;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// Which filling: a later one has a larger number.
    pub filling: u64,
    /// Which segment.
    pub segment: u32,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Bytes, whole blocks.
    pub length: u64,
}

/// A record's place, and what is to be done about segments first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Where it goes.
    pub at: At,
    /// Another segment is full: its mark goes there, which says that all before it was flushed.
    pub closed: Option<At>,
    /// The record is the first of a filling, whose header goes to the segment's first block.
    pub begins: bool,
}

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A chunk, which can stay in memory.
    Chunk,
    /// A table, which cannot wait.
    Table,
    /// A record that compaction takes from another segment.
    Copy,
}

/// What a former process left in a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    /// Its latest filling.
    pub filling: u64,
    /// Bytes up to the end of its last whole record.
    pub used: u64,
    /// The records that count.
    pub live: Vec<At>,
    /// Records can be added: what is there was flushed, and the segment was not full.
    pub goes_on: bool,
    /// All records are whole, so that it can get a mark when it is full.
    pub is_whole: bool,
}

/// How the log is, in bytes of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Of what is over, in segments that are not empty.
    pub garbage: u64,
    /// That compaction copied in this life.
    pub copied: u64,
    /// That were appended otherwise in this life.
    pub written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Empty,
    Open,
    Closed,
    /// It could not be written: what is in it stays, and nothing is added.
    Failed,
}

#[derive(Clone, Debug)]
struct Segment {
    phase: Phase,
    filling: u64,
    used: u64,
    /// Records that are not over: their lengths by their offsets.
    live: BTreeMap<u64, u64>,
    /// Bytes of these.
    live_bytes: u64,
    /// Those of these that cannot be copied: the segment stays as long as they count.
    kept: BTreeSet<u64>,
    /// It may get a mark.
    is_whole: bool,
}

impl Segment {
    const fn new(phase: Phase, filling: u64, used: u64) -> Self {
        Self { phase, filling, used, live: BTreeMap::new(), live_bytes: 0, kept: BTreeSet::new(), is_whole: true }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Segments {
    size: u64,
    fillings: u64,
    /// Bytes of the largest record so far.
    largest: u64,
    segments: Vec<Segment>,
    open: Option<usize>,
    /// Copies that are not flushed: from where, and where they are.
    copies: Vec<(At, At)>,
    report: Report,
}

impl Segments {
    /// Segments of so many bytes each, with what a former process left in each. It goes on in the latest that was not full.
    #[must_use]
    pub fn new(size: u64, found: impl IntoIterator<Item = Former>) -> Self {
        let found: Vec<Former> = found.into_iter().collect();
        let fillings = found.iter().map(|former| former.filling).max().unwrap_or(0);
        let largest = found.iter().flat_map(|former| &former.live).map(|at| at.length).max().unwrap_or(0);
        let mut segments = Self {
            size,
            fillings,
            largest,
            segments: Vec::new(),
            open: None,
            copies: Vec::new(),
            report: Report::default(),
        };
        for (at, former) in found.into_iter().enumerate() {
            let is_open = former.goes_on && former.filling == fillings && !former.live.is_empty();
            let phase = match former.live.is_empty() {
                true => Phase::Empty,
                false if is_open => Phase::Open,
                false => Phase::Closed,
            };
            let mut segment = Segment::new(phase, former.filling, former.used.clamp(BLOCK, size - BLOCK));
            segment.live_bytes = former.live.iter().map(|at| at.length).sum();
            segment.live = former.live.into_iter().map(|at| (at.offset, at.length)).collect();
            segment.is_whole = former.is_whole;
            segments.segments.push(segment);
            segments.open = segments.open.or(is_open.then_some(at));
        }
        segments
    }

    /// Bytes of records that a segment has room for: its first block is the header, and its last the mark that it is closed.
    #[must_use]
    pub const fn room_of(&self) -> u64 {
        self.size - 2 * BLOCK
    }

    /// Bytes that chunks leave to tables beside the segment that they leave empty.
    fn of_tables(&self) -> u64 {
        (self.room_of() / WORTH / BLOCK * BLOCK).max(BLOCK)
    }

    /// Room behind the records of a segment.
    const fn tail(&self, segment: &Segment) -> u64 {
        self.size - BLOCK - segment.used
    }

    fn empty(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.phase == Phase::Empty).count() as u64
    }

    /// Empty segments, and the room of the open one; one in which all is over is as good as empty.
    fn raw_room(&self) -> (u64, u64) {
        match self.open.map(|at| &self.segments[at]) {
            Some(open) if open.live.is_empty() => (self.empty() + 1, 0),
            Some(open) => (self.empty(), self.tail(open)),
            None => (self.empty(), 0),
        }
    }

    /// What chunks leave to others.
    fn reserve(&self) -> u64 {
        self.room_of() + self.of_tables()
    }

    /// Bytes that chunks can take for sure.
    #[must_use]
    pub fn room(&self) -> u64 {
        let (empty, open) = self.raw_room();
        (open + empty * self.room_of()).saturating_sub(self.reserve())
    }

    /// Bytes of the chunks' records that can be appended now, if each is as long as that: what is left of a segment is less than one.
    #[must_use]
    pub fn room_for(&self, record: u64) -> u64 {
        let record = record.next_multiple_of(BLOCK);
        let (empty, open) = self.raw_room();
        let leaves_tables = |room: u64| room.saturating_sub(self.of_tables()) / record;
        let records = match empty {
            0 => 0,
            1 => leaves_tables(open),
            _ => open / record + (empty - 2) * (self.room_of() / record) + leaves_tables(self.room_of()),
        };
        records * record
    }

    /// Bytes that chunks can take now or once all that is worth it is compacted.
    #[must_use]
    pub fn free(&self) -> u64 {
        let (empty, open) = self.raw_room();
        let won: u64 = match self.cheapest() {
            Some(_) => self.candidates().map(|(_, segment)| self.won(segment)).sum(),
            None => 0,
        };
        (open + empty * self.room_of() + won).saturating_sub(self.reserve()).min(self.of())
    }

    /// Bytes that chunks can take when nothing is there.
    #[must_use]
    pub fn of(&self) -> u64 {
        let well = self.segments.iter().filter(|segment| segment.phase != Phase::Failed).count() as u64;
        (well * self.room_of()).saturating_sub(self.reserve())
    }

    /// How it is.
    #[must_use]
    pub fn report(&self) -> Report {
        let used = self.segments.iter().filter(|segment| segment.phase != Phase::Empty);
        Report { garbage: used.map(|segment| segment.used - BLOCK - segment.live_bytes).sum(), ..self.report }
    }

    /// A place for a record of so many bytes; `None`: there is no room until others are over, or copied.
    pub fn append(&mut self, length: u64, kind: Kind) -> Option<Append> {
        let length = length.next_multiple_of(BLOCK);
        if length > self.room_of() {
            return None;
        }
        if let Some(open) = self.open.filter(|open| self.segments[*open].live.is_empty())
            && (self.empty() <= 1 || self.tail(&self.segments[open]) < length)
        {
            // Nothing in it counts: it begins anew as others do.
            (self.segments[open].phase, self.open) = (Phase::Empty, None);
        }
        let open = self.open.filter(|open| self.tail(&self.segments[*open]) >= length);
        let (empty, room) = match open {
            Some(open) => (self.empty(), self.tail(&self.segments[open]) - length),
            None => (self.empty().checked_sub(1)?, self.room_of() - length),
        };
        let may = match kind {
            Kind::Chunk if planted(Bug::ReserveTaken) => true,
            Kind::Chunk => empty > 1 || (empty == 1 && room >= self.of_tables()),
            Kind::Table => empty > 0 || room >= self.least_live(),
            Kind::Copy => true,
        };
        if !may {
            return None;
        }
        let (closed, begins) = match open {
            Some(_) => (None, false),
            None => (self.begin(), true),
        };
        let at = self.take(self.open?, length);
        self.largest = self.largest.max(length);
        match kind {
            Kind::Copy => self.report.copied += length,
            Kind::Chunk | Kind::Table => self.report.written += length,
        }
        Some(Append { at, closed, begins })
    }

    /// Closes the open segment, and opens an empty one; the mark of the former.
    fn begin(&mut self) -> Option<At> {
        let next = self.segments.iter().position(|segment| segment.phase == Phase::Empty)?;
        let former = self.open.map(|at| (at, &self.segments[at]));
        let closed = former.filter(|(_, segment)| segment.is_whole).map(|(at, segment)| {
            let Segment { filling, used, .. } = *segment;
            At { filling, segment: number(at), offset: used, length: BLOCK }
        });
        if let Some(at) = self.open {
            self.segments[at].phase = Phase::Closed;
        }
        self.fillings += 1;
        self.segments[next] = Segment::new(Phase::Open, self.fillings, BLOCK);
        self.open = Some(next);
        closed
    }

    fn take(&mut self, at: usize, length: u64) -> At {
        let segment = &mut self.segments[at];
        let offset = segment.used;
        segment.used += length;
        segment.live.insert(offset, length);
        segment.live_bytes += length;
        At { filling: segment.filling, segment: number(at), offset, length }
    }

    /// A record is over.
    pub fn over(&mut self, record: At) {
        let at = record.segment as usize;
        let Some(segment) = self.segments.get_mut(at).filter(|segment| segment.filling == record.filling) else {
            return;
        };
        if planted(Bug::OverCopied) && segment.live.len() > 1 {
            return;
        }
        segment.live_bytes -= segment.live.remove(&record.offset).unwrap_or(0);
        segment.kept.remove(&record.offset);
        if planted(Bug::SegmentReused) {
            segment.live.clear();
        }
        if segment.live.is_empty() && segment.phase == Phase::Closed {
            segment.phase = Phase::Empty;
        }
    }

    /// A record has a copy that is not flushed yet.
    pub fn copied(&mut self, from: At, to: At) {
        self.copies.push((from, to));
        if planted(Bug::CopyNotFlushed) {
            self.over(from);
        }
    }

    /// All that was appended is flushed, but for what is in segments that have [failed](Self::failed). The records whose copies count from now
    /// on are over; other copies are.
    pub fn flushed(&mut self) {
        for (from, to) in std::mem::take(&mut self.copies) {
            self.over(if self.has_failed(to.segment) { to } else { from });
        }
    }

    /// Whether nothing is added to a segment any more. Copies in it do not count.
    #[must_use]
    pub fn has_failed(&self, segment: u32) -> bool {
        self.segments.get(segment as usize).is_none_or(|segment| segment.phase == Phase::Failed)
    }

    /// A record cannot be copied: its segment stays as long as it counts.
    pub fn keep(&mut self, record: At) {
        let segment = self.segments.get_mut(record.segment as usize);
        let segment = segment.filter(|segment| segment.filling == record.filling);
        if let Some(segment) = segment.filter(|segment| segment.live.contains_key(&record.offset)) {
            segment.kept.insert(record.offset);
        }
    }

    /// A segment could not be written or flushed: nothing is added to it any more.
    pub fn failed(&mut self, segment: u32) {
        let at = segment as usize;
        if let Some(segment) = self.segments.get_mut(at) {
            segment.phase = Phase::Failed;
        }
        self.open = self.open.filter(|open| *open != at);
    }

    /// What compacting a segment would win: what is over in it, and what was never filled, unless no record had room there.
    fn won(&self, segment: &Segment) -> u64 {
        let tail = self.tail(segment);
        let unused = if tail < self.largest { 0 } else { tail };
        segment.used - BLOCK - segment.live_bytes + unused
    }

    /// Segments that are worth it: enough of each can be won, and a record has room in what is won.
    fn candidates(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let least = (self.room_of() / WORTH).max(BLOCK);
        let is_worth = move |segment: &Segment| {
            let wins = self.won(segment) >= least && self.room_of() - segment.live_bytes >= self.largest;
            segment.phase == Phase::Closed && segment.kept.is_empty() && (wins || planted(Bug::CompactedInVain))
        };
        self.segments.iter().enumerate().filter(move |(_, segment)| is_worth(segment))
    }

    /// Bytes of the live records of the closed segment that has least.
    fn least_live(&self) -> u64 {
        let closed = self.segments.iter().filter(|segment| segment.phase == Phase::Closed && segment.kept.is_empty());
        closed.map(|segment| segment.live_bytes).min().unwrap_or(0)
    }

    /// The segment that is compacted at least cost, if one is worth it and what counts in it has room elsewhere.
    fn cheapest(&self) -> Option<(usize, &Segment)> {
        let (at, segment) = self.candidates().min_by_key(|(_, segment)| segment.live_bytes)?;
        let open = self.open.map_or(0, |open| self.tail(&self.segments[open]));
        (self.raw_room().0 > 0 || open >= segment.live_bytes).then_some((at, segment))
    }

    /// What is compacted next: bytes that are won, and the live records.
    #[must_use]
    pub fn victim(&self) -> Option<(u64, Vec<At>)> {
        let (at, segment) = self.cheapest()?;
        let (filling, number) = (segment.filling, number(at));
        let record = |(offset, length): (&u64, &u64)| At { filling, segment: number, offset: *offset, length: *length };
        Some((self.won(segment), segment.live.iter().map(record).collect()))
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).expect("a log has fewer segments than four billion")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(count: usize) -> Segments {
        Segments::new(5 * BLOCK, vec![Former::default(); count])
    }

    #[test]
    fn a_segment_is_filled_again_when_all_of_its_records_are_over() {
        // Three blocks of records in each of four segments; one segment and a block are left to others.
        let mut segments = segments(4);
        assert_eq!((segments.room(), segments.of()), (8 * BLOCK, 8 * BLOCK));
        let append = |segments: &mut Segments, kind| segments.append(BLOCK, kind).map(|append| append.at);
        let chunks: Vec<At> = std::iter::from_fn(|| append(&mut segments, Kind::Chunk)).collect();
        assert_eq!((chunks.len(), segments.room()), (8, 0));
        let table = append(&mut segments, Kind::Table).expect("tables have room");
        assert_eq!(append(&mut segments, Kind::Table), None, "the empty segment is left to compaction");
        segments.over(chunks[4]);
        assert!(append(&mut segments, Kind::Table).is_some(), "what is compacted has room beside it");
        assert_eq!(append(&mut segments, Kind::Table), None);
        chunks[..3].iter().for_each(|at| segments.over(*at));
        assert_eq!(segments.room(), BLOCK);
        segments.over(table);
        chunks[6..].iter().for_each(|at| segments.over(*at));
        assert_eq!(segments.room(), 4 * BLOCK);
        let more: Vec<At> = std::iter::from_fn(|| append(&mut segments, Kind::Chunk)).collect();
        assert_eq!(more.len(), 4);
        assert!(more[2].filling > chunks[7].filling);
        segments.failed(more[2].segment);
        assert_eq!(segments.of(), 5 * BLOCK);
    }

    #[test]
    fn a_process_goes_on_in_the_segment_that_was_not_full() {
        let at = |filling, segment, offset| At { filling, segment, offset: offset * BLOCK, length: BLOCK };
        let former = |filling, used: u64, live: &[At]| Former {
            filling,
            used: used * BLOCK,
            live: live.to_vec(),
            goes_on: true,
            is_whole: false,
        };
        let found = [
            former(7, 2, &[at(7, 0, 1)]),
            former(3, 4, &[]),
            former(5, 4, &[at(5, 2, 1)]),
            former(4, 2, &[at(4, 3, 1)]),
        ];
        let mut segments = Segments::new(5 * BLOCK, found);
        let append = segments.append(BLOCK, Kind::Table).expect("tables have room");
        assert_eq!((append.at, append.begins), (at(7, 0, 2), false));
        // Two blocks that were never filled are as good as two that are over.
        assert_eq!(segments.victim().map(|(won, live)| (won, live.len())), Some((2 * BLOCK, 1)));
        let append = segments.append(3 * BLOCK, Kind::Copy).expect("one is empty");
        assert_eq!((append.at.segment, append.at.filling, append.begins), (1, 8, true));
        assert_eq!(append.closed, None, "not all that is before the mark is whole");
        assert_eq!(segments.append(BLOCK, Kind::Copy), None);
        segments.over(at(5, 2, 1));
        assert_eq!(segments.append(BLOCK, Kind::Table).map(|append| append.at.segment), Some(2));
    }

    #[test]
    fn a_segment_with_a_record_that_cannot_be_copied_stays() {
        let mut segments = segments(4);
        let chunks: Vec<At> =
            (0..4).filter_map(|_| segments.append(BLOCK, Kind::Chunk)).map(|append| append.at).collect();
        segments.over(chunks[0]);
        assert_eq!(segments.victim(), Some((BLOCK, chunks[1..3].to_vec())));
        assert_eq!(segments.report(), Report { garbage: BLOCK, copied: 0, written: 4 * BLOCK });
        segments.keep(chunks[1]);
        assert_eq!(segments.victim(), None);
        segments.over(chunks[1]);
        assert_eq!(segments.victim(), Some((2 * BLOCK, chunks[2..3].to_vec())));
        let copy = segments.append(BLOCK, Kind::Copy).expect("there is room").at;
        segments.copied(chunks[2], copy);
        assert_eq!(segments.empty(), 2);
        segments.flushed();
        assert_eq!((segments.empty(), segments.report().garbage, segments.report().copied), (3, 0, BLOCK));
    }

    #[test]
    fn a_copy_in_a_segment_that_fails_is_over_and_what_it_was_made_of_counts() {
        let mut segments = segments(4);
        let chunks: Vec<At> =
            (0..4).filter_map(|_| segments.append(BLOCK, Kind::Chunk)).map(|append| append.at).collect();
        segments.over(chunks[0]);
        let copy = segments.append(BLOCK, Kind::Copy).expect("there is room").at;
        segments.copied(chunks[1], copy);
        segments.failed(copy.segment);
        segments.flushed();
        assert!(segments.has_failed(copy.segment) && !segments.has_failed(chunks[1].segment));
        assert_eq!(segments.victim(), Some((BLOCK, chunks[1..3].to_vec())), "it is copied again");
    }
}
