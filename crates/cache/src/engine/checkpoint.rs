//! Indexes of full segments, and the superblock's list of the others: what a recovery reads in the place of data.
//!
//! A segment is full → all of it is durable → its index is written → the segment table says so (see `reclaim`) → the next
//! superblock names it no more. A superblock names free segments ahead, and is durable before records go to them.

use std::collections::VecDeque;

use super::{Boost, Engine, EngineStage, FlushRequest, Pending, Waiter};
use crate::effect::{Effect, IoFailure, Target};
use crate::format::{Place, Records, Summary, encode_index};
use crate::planted::{Bug, planted};
use crate::space::{Indexed, Use};

/// Indexes in flight.
const INDEXES_MAX: u32 = 2;

/// What the records of a segment are, until its index is written.
#[derive(Debug, Default)]
struct Unindexed {
    generation: u32,
    records: Records,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    Idle,
    /// A superblock with this list is being written.
    Writing(Option<Vec<u32>>),
    /// It is made durable.
    Settling(Option<Vec<u32>>),
}

/// Which segments have no index yet, and why.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    /// Records up to this sequence are durable, whatever is wrong with older ones.
    pub flushed: u64,
    open: Unindexed,
    /// Full segments, oldest first.
    sealed: VecDeque<Unindexed>,
    indexes_in_flight: u32,
    listing: Listing,
    /// Something has changed since the list was found long enough.
    pub list_worth_a_look: bool,
    /// An index was written since the last look at those that the table does not speak of.
    pub marks_worth_a_look: bool,
}

impl Checkpoint {
    /// Records are about to go to a segment; the newest record lies elsewhere.
    pub(super) fn begin(&mut self, segment: u32, previous: Option<Place>) {
        self.open.records = Records::with_capacity(segment, 0, 0, 0);
        self.open.records.previous = previous;
        self.list_worth_a_look = true;
    }

    /// A record goes to the open segment.
    pub(super) fn appended(&mut self, summary: &Summary, data_blocks: u32) {
        let Place { sequence, generation, position, .. } = summary.place;
        self.open.generation = generation;
        self.open.records.push_unsealed(sequence, position, &summary.entries, data_blocks);
    }

    /// Whether a superblock is being written or made durable.
    pub(super) fn is_listing(&self) -> bool {
        self.listing != Listing::Idle
    }
}

impl Boost {
    /// Closes the open segment.
    pub(super) fn seal(&mut self) {
        let was_open = self.space.open.is_some();
        self.space.seal();
        let unindexed = std::mem::take(&mut self.checkpoint.open);
        if was_open && self.superblock.indexed {
            self.checkpoint.sealed.push_back(unindexed);
        }
    }

    /// The next segment to be indexed, in order; `None` if it must wait. Those that will be freed need no index.
    fn next_to_index(&mut self) -> Option<Unindexed> {
        while let Some(next) = self.checkpoint.sealed.front() {
            let segment = &self.space.segments[next.records.segment as usize];
            let current = segment.usage == Use::Sealed && segment.generation == next.generation;
            if current && !self.reclaim.holds(next.records.segment) {
                let durable = next.records.sequence_max <= self.checkpoint.flushed || planted(Bug::IndexBeforeFlush);
                return if durable && segment.appends == 0 { self.checkpoint.sealed.pop_front() } else { None };
            }
            self.checkpoint.sealed.pop_front();
        }
        None
    }
}

impl Engine {
    pub(super) fn is_listing(&self) -> bool {
        self.boost.as_ref().is_some_and(|boost| boost.checkpoint.is_listing())
    }

    pub(super) fn pump_checkpoint(&mut self) {
        if matches!(self.stage, EngineStage::Absorb | EngineStage::Drain) && !self.stopping {
            self.write_indexes();
            self.write_list();
        }
    }

    fn write_indexes(&mut self) {
        while let Some(boost) = self.boost.as_mut().filter(|boost| boost.checkpoint.indexes_in_flight < INDEXES_MAX) {
            let Some(Unindexed { generation, mut records }) = boost.next_to_index() else { break };
            let number = records.segment;
            let segment = &mut boost.space.segments[number as usize];
            records.seal(&segment.checksums);
            records.durable = boost.durable;
            let geometry = boost.space.geometry;
            let room = geometry.index_length() as usize;
            // One of tombstones alone may be too long: it stays without.
            let Some(bytes) = encode_index(boost.attach.epoch, generation, &records, room) else { continue };
            segment.appends += 1;
            boost.checkpoint.indexes_in_flight += 1;
            let id = self.pending.insert(Pending::Index(number));
            self.cache.started(self.now, 0);
            let offset = geometry.index_offset(number);
            self.effects.push_back(Effect::WriteIndex { id, offset, bytes: bytes.into() });
        }
        let Some(boost) = self.boost.as_ref() else { return };
        // Who does not flush must not keep the log from being indexed.
        let many = boost.checkpoint.sealed.len() > boost.space.marks_due();
        let behind = boost.checkpoint.sealed.front().is_some_and(|next| {
            next.records.sequence_max > boost.checkpoint.flushed && next.records.sequence_max <= boost.settled()
        });
        if many && behind && !self.cache.flushes.is_awaited_by(Waiter::Checkpoint) {
            let request = self.flush_target(Target::Cache, Waiter::Checkpoint);
            if let Some(boost) = self.boost.as_mut().filter(|_| request == FlushRequest::Ready) {
                boost.checkpoint.flushed = boost.settled();
                self.needs_pump = true;
            }
        }
    }

    pub(super) fn index_written(&mut self, number: u32, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, 0);
        self.cache.wrote(false);
        let Some(boost) = self.boost.as_mut() else { return };
        let segment = &mut boost.space.segments[number as usize];
        segment.appends -= 1;
        boost.checkpoint.indexes_in_flight -= 1;
        boost.reclaim.worth_a_look = true;
        match result {
            Ok(()) => {
                segment.indexed = Indexed::Written;
                boost.checkpoint.marks_worth_a_look = true;
            }
            Err(_) => self.cache_failing(),
        }
    }

    /// Has a superblock name more segments for records, before those that it names are used up, or the part by which the volume
    /// has grown.
    fn write_list(&mut self) {
        let Some(boost) = self.boost.as_mut().filter(|boost| !boost.checkpoint.is_listing()) else { return };
        let grows = boost.growth.marks();
        if grows.is_none() && (!std::mem::take(&mut boost.checkpoint.list_worth_a_look) || !boost.space.wants_list()) {
            return;
        }
        if let Some(geometry) = grows {
            boost.superblock.grow(geometry);
        }
        let list = boost.space.list();
        boost.space.unlist(list.as_deref());
        boost.superblock.unindexed.clone_from(&list);
        boost.checkpoint.listing = Listing::Writing(list);
        self.emit_superblock(Pending::List);
    }

    pub(super) fn list_written(&mut self, result: Result<(), IoFailure>) {
        self.superblock_written(result);
        let Some(boost) = self.boost.as_mut() else { return };
        let Listing::Writing(list) = std::mem::take(&mut boost.checkpoint.listing) else { return };
        self.needs_pump = true;
        if result.is_err() {
            self.cache_failing();
            return;
        }
        boost.checkpoint.listing = Listing::Settling(list);
        // It was just written, so it is never durable already.
        self.flush_target(Target::Cache, Waiter::List);
    }

    pub(super) fn list_flushed(&mut self, result: Result<(), IoFailure>) {
        let Some(boost) = self.boost.as_mut() else { return };
        let Listing::Settling(list) = std::mem::take(&mut boost.checkpoint.listing) else { return };
        boost.checkpoint.list_worth_a_look = list.is_some();
        self.needs_pump = true;
        if result.is_ok() {
            boost.space.listed(list.as_deref());
            self.growth_marked();
        }
        self.resume_stop();
    }
}

#[cfg(debug_assertions)]
mod check {
    use super::super::check::equal;
    use super::super::port::{Port, Waiter};
    use super::{Checkpoint, Listing};

    impl Checkpoint {
        /// Whether it waits for what is in flight.
        pub fn check(&self, lists: u32, indexes: u32, cache: &Port) -> Result<(), String> {
            equal("indexes in flight", self.indexes_in_flight, indexes)?;
            let (writes, flushes) = match self.listing {
                Listing::Idle => (0, false),
                Listing::Writing(_) => (1, false),
                Listing::Settling(_) => (0, true),
            };
            equal(
                "whether a list is being written or made durable",
                (writes, flushes),
                (lists, cache.flushes.is_awaited_by(Waiter::List)),
            )
        }
    }
}
