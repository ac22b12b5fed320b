//! The chunk log of a benefactor's SSD: segments of equal size that are filled one after the other.
//!
//! A segment is *empty*, *open* (records are appended), *closed*, and empty again once every record in it is over; nothing is moved and
//! nothing is overwritten before. Each filling has a number that no other one has, which its records repeat: what a former filling
//! left behind them is never taken for theirs. Chunks leave one empty segment to tables, which must find room in any case.

use crate::planted::{Bug, planted};

/// What positions and lengths are multiples of, in bytes: no write touches a block that has a record already.
pub const BLOCK: u64 = 4096;

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Empty,
    Open,
    Closed,
    /// It could not be written: what is in it stays, and nothing is added.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    phase: Phase,
    filling: u64,
    used: u64,
    /// Records that are not over.
    live: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Segments {
    size: u64,
    fillings: u64,
    segments: Vec<Segment>,
    open: Option<usize>,
}

impl Segments {
    /// Segments of so many bytes each, of which some have records: for each its latest filling, and how many records of it count. What
    /// a former process did not fill stays so.
    #[must_use]
    pub fn new(size: u64, found: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let segments: Vec<Segment> = found
            .into_iter()
            .map(|(filling, live)| {
                let phase = if live == 0 { Phase::Empty } else { Phase::Closed };
                Segment { phase, filling, used: size, live }
            })
            .collect();
        let fillings = segments.iter().map(|segment| segment.filling).max().unwrap_or(0);
        Self { size, fillings, segments, open: None }
    }

    /// Bytes of records that a segment has room for: its first block is the header, and its last the mark that it is closed.
    const fn room_of(&self) -> u64 {
        self.size - 2 * BLOCK
    }

    /// Bytes that chunks can take for sure.
    #[must_use]
    pub fn room(&self) -> u64 {
        let open = self.open.map_or(0, |at| self.size - BLOCK - self.segments[at].used);
        let empty = self.segments.iter().filter(|segment| segment.phase == Phase::Empty).count() as u64;
        open + empty.saturating_sub(1) * self.room_of()
    }

    /// Bytes that chunks can take when nothing is there.
    #[must_use]
    pub fn of(&self) -> u64 {
        let well = self.segments.iter().filter(|segment| segment.phase != Phase::Failed).count() as u64;
        well.saturating_sub(1) * self.room_of()
    }

    /// A place for a record of so many bytes; `None`: there is no room until others are over.
    pub fn append(&mut self, length: u64, kind: Kind) -> Option<Append> {
        let length = length.next_multiple_of(BLOCK);
        if length > self.room_of() {
            return None;
        }
        let fits = |segment: &Segment| segment.used + length + BLOCK <= self.size;
        if let Some(at) = self.open.filter(|at| fits(&self.segments[*at])) {
            let at = self.take(at, length);
            return Some(Append { at, closed: None, begins: false });
        }
        let mut empty = (0..).zip(&self.segments).filter(|(_, segment)| segment.phase == Phase::Empty);
        let (next, _): (usize, _) = empty.next()?;
        if kind == Kind::Chunk && empty.next().is_none() {
            return None;
        }
        let closed = self.open.map(|at| {
            let Segment { filling, used, .. } = self.segments[at];
            At { filling, segment: number(at), offset: used, length: BLOCK }
        });
        if let Some(at) = self.open.take() {
            self.segments[at].phase = Phase::Closed;
            self.look_at(at);
        }
        self.fillings += 1;
        self.segments[next] = Segment { phase: Phase::Open, filling: self.fillings, used: BLOCK, live: 0 };
        self.open = Some(next);
        let at = self.take(next, length);
        Some(Append { at, closed, begins: true })
    }

    fn take(&mut self, at: usize, length: u64) -> At {
        let segment = &mut self.segments[at];
        let offset = segment.used;
        segment.used += length;
        segment.live += 1;
        At { filling: segment.filling, segment: number(at), offset, length }
    }

    /// A record is over. The caller says it once.
    pub fn over(&mut self, record: At) {
        let at = record.segment as usize;
        let Some(segment) = self.segments.get_mut(at).filter(|segment| segment.filling == record.filling) else {
            return;
        };
        segment.live = segment.live.saturating_sub(1);
        if planted(Bug::SegmentReused) {
            segment.live = 0;
        }
        self.look_at(at);
    }

    /// A segment could not be written or flushed: nothing is added to it any more.
    pub fn failed(&mut self, segment: u32) {
        let at = segment as usize;
        if let Some(segment) = self.segments.get_mut(at) {
            segment.phase = Phase::Failed;
        }
        self.open = self.open.filter(|open| *open != at);
    }

    fn look_at(&mut self, at: usize) {
        let segment = &mut self.segments[at];
        if segment.live == 0 && segment.phase == Phase::Closed {
            segment.phase = Phase::Empty;
        }
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).expect("a log has fewer segments than four billion")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_filled_again_when_all_of_its_records_are_over() {
        // Three blocks of records in each of four segments.
        let mut segments = Segments::new(5 * BLOCK, [(0, 0); 4]);
        assert_eq!((segments.room(), segments.of()), (9 * BLOCK, 9 * BLOCK));
        let append = |segments: &mut Segments, kind| segments.append(BLOCK, kind).map(|append| append.at);
        let chunks: Vec<At> = std::iter::from_fn(|| append(&mut segments, Kind::Chunk)).collect();
        assert_eq!(chunks.len(), 9, "one segment is left to tables");
        assert_eq!(segments.room(), 0);
        let table = append(&mut segments, Kind::Table).expect("tables have room");
        assert_eq!(segments.room(), 2 * BLOCK, "beside it there is room for chunks");
        chunks[3..5].iter().for_each(|at| segments.over(*at));
        assert_eq!(segments.room(), 2 * BLOCK, "one of its records counts");
        segments.over(chunks[5]);
        assert_eq!(segments.room(), 2 * BLOCK, "it is the one that is left to tables");
        segments.over(table);
        chunks[..3].iter().for_each(|at| segments.over(*at));
        assert_eq!(segments.room(), 5 * BLOCK);
        let more: Vec<At> = std::iter::from_fn(|| append(&mut segments, Kind::Chunk)).collect();
        assert_eq!(more.len(), 5);
        assert!(more[2].filling > chunks[8].filling && more[2].segment == chunks[0].segment);
        segments.over(chunks[0]);
        segments.failed(more[2].segment);
        assert_eq!(segments.of(), 6 * BLOCK);
    }

    #[test]
    fn what_a_former_process_left_is_kept_and_never_added_to() {
        let mut segments = Segments::new(5 * BLOCK, [(7, 2), (3, 0), (5, 1)]);
        assert_eq!(segments.append(BLOCK, Kind::Chunk), None);
        let append = segments.append(3 * BLOCK, Kind::Table).expect("tables have room");
        assert_eq!((append.at.segment, append.at.filling, append.begins), (1, 8, true));
        assert_eq!(segments.append(4 * BLOCK, Kind::Table), None, "a segment has no room for it");
        segments.over(At { filling: 5, segment: 2, offset: BLOCK, length: BLOCK });
        assert_eq!(segments.append(BLOCK, Kind::Table).map(|append| append.at.segment), Some(2));
    }
}
