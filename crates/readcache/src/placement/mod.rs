//! Which blocks are cached, where, and which go next. No I/O, no bytes: `surgetank mrc --policy read-cache` measures this
//! very code.
//!
//! Slots come in segments, which are filled, written and evicted whole. As in S3-FIFO (S3FIFO23), but by segments:
//!
//! ```text
//! first miss ──► small queue ──► evicted: used twice since it came ──► main queue ──► evicted: used since ──► main queue again
//!                     │ not                                               │ not
//!                     ▼                                                    ▼
//!                  ghosts  ── missed again, lately ──► main queue       forgotten
//! ```
//!
//! So what is used once leaves after a tenth of the cache has come after it, and the main queue, which is nine tenths, admits on the
//! second miss. A segment's member is chosen when it is opened, in turn, so that every member serves its share.

#[cfg(debug_assertions)]
mod check;
mod coverage;
mod ghosts;
mod index;
mod limit;
mod slots;

use std::collections::VecDeque;
use std::ops::Range;

use self::coverage::Coverage;
use self::ghosts::Ghosts;
use self::index::{Index, SLOTS_MAX};
use self::slots::{BLOCK_BITS, Slots};
use crate::planted::{Bug, planted};

/// Blocks that a device may have.
pub const BLOCKS_MAX: u64 = (1 << BLOCK_BITS) - 1;
/// The small queue is evicted from while it has this share of all segments that the cache may have.
const SMALL_PERCENT: u64 = 10;
/// Uses since it came that take a block from the small queue to the main queue.
const PROMOTED_USES: u8 = 1;
/// Uses that keep a block while the cache shrinks: with fewer, what is hot would be written again and again meanwhile.
const SHRINKING_USES: u8 = 2;
/// Ghosts as a share of all slots: as many as the main queue has.
const GHOSTS_PERCENT: u64 = 100 - SMALL_PERCENT;

/// A place for a block, counted over all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A segment, counted over all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment(pub u32);

/// A member, by the number that [`Placement::add_member`] gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u16);

/// The queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Of what came lately.
    Small,
    /// Of what was used again.
    Main,
}

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is in it.
    Free,
    /// Blocks are put into it.
    Open(Queue),
    /// It is full and in its queue.
    Full(Queue),
    /// It has left its queue; survivors are still found in it until they are elsewhere.
    Leaving(Queue),
    /// What was in it does not count any more. It is free when it has been swept.
    Dropped,
    /// Nothing is in it, and its member is being told so: the cache may not use all of its members.
    Parking,
    /// Nothing is in it or on its member, and nothing comes to it while the cache may not be larger.
    Parked,
}

#[derive(Clone, Copy, Debug)]
struct Details {
    state: State,
    member: Member,
    /// Its place on the member.
    place: u32,
    /// Slots that have a block.
    live: u32,
}

#[derive(Debug, Default)]
struct Space {
    present: bool,
    segments: u32,
    free: Vec<Segment>,
    parked: Vec<Segment>,
    parking: u32,
}

/// A segment that is being filled.
#[derive(Clone, Copy, Debug)]
struct Open {
    segment: Segment,
    filled: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Placement {
    segment_blocks: u32,
    index: Index,
    slots: Slots,
    segments: Vec<Details>,
    spaces: Vec<Space>,
    /// The member whose turn it is.
    turn: usize,
    open: [Option<Open>; 2],
    queues: [VecDeque<Segment>; 2],
    ghosts: Ghosts,
    coverage: Coverage,
    /// Segments that the cache may have.
    limit: u32,
    /// Segments that are to be swept.
    dropped: Vec<Segment>,
    /// Segments of members that are gone, for those to come.
    spare: Vec<Segment>,
}

impl Placement {
    /// For a device of so many blocks, at most [`BLOCKS_MAX`], without a member yet.
    #[must_use]
    pub fn new(device_blocks: u64, segment_blocks: u32) -> Self {
        Self {
            segment_blocks: segment_blocks.max(1),
            index: Index::with_slots(0),
            slots: Slots::default(),
            segments: Vec::new(),
            spaces: Vec::new(),
            turn: 0,
            open: [None; 2],
            queues: [VecDeque::new(), VecDeque::new()],
            ghosts: Ghosts::new(0),
            coverage: Coverage::new(device_blocks),
            limit: u32::MAX,
            dropped: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// For a cache of so many slots that stands for another one: fast, but not as small. Which parts of the device have blocks is not
    /// counted, and half of the index stays free.
    #[must_use]
    pub fn to_simulate(slots: u32, segment_blocks: u32) -> Self {
        let index = Index::with_slots(slots.saturating_add(slots / 5 * 3).min(SLOTS_MAX));
        Self { coverage: Coverage::none(), index, ..Self::new(0, segment_blocks) }
    }

    /// The device has so many blocks now; it does not shrink.
    pub fn grow(&mut self, device_blocks: u64) {
        self.coverage.grow(device_blocks);
    }

    /// Bytes of memory that grow with the cache.
    #[must_use]
    pub fn memory(&self) -> usize {
        let segments = self.segments.capacity() * size_of::<Details>();
        self.index.memory() + self.slots.memory() + self.ghosts.memory() + segments
    }

    /// A member comes with so many segments. It gets fewer if slots have no numbers left.
    pub fn add_member(&mut self, segments: u32) -> Member {
        let at = self.spaces.iter().position(|space| !space.present && space.segments == 0);
        let at = at.unwrap_or_else(|| {
            self.spaces.push(Space::default());
            self.spaces.len() - 1
        });
        let member = Member(at as u16);
        let segments_max = SLOTS_MAX / self.segment_blocks;
        for place in 0..segments {
            let segment = match self.spare.pop() {
                Some(segment) => segment,
                None if (self.segments.len() as u32) < segments_max => {
                    self.segments.push(Details { state: State::Free, member, place, live: 0 });
                    Segment(self.segments.len() as u32 - 1)
                }
                None => break,
            };
            self.segments[segment.0 as usize] = Details { state: State::Free, member, place, live: 0 };
            self.spaces[at].free.push(segment);
            self.spaces[at].segments += 1;
        }
        // Places in ascending order, as volumes like it.
        self.spaces[at].free.reverse();
        self.spaces[at].present = true;
        let slots = self.segments.len() as u32 * self.segment_blocks;
        self.slots.grow(slots as usize);
        self.index.reserve(slots, &self.slots);
        self.ghosts.resize(u64::from(slots) * GHOSTS_PERCENT / 100);
        self.limit_ghosts();
        member
    }

    /// A member goes: nothing that is on it is found any more.
    pub fn remove_member(&mut self, member: Member) {
        let Some(space) = self.spaces.get_mut(member.0 as usize) else { return };
        space.present = false;
        let mut gone = std::mem::take(&mut space.free);
        gone.append(&mut space.parked);
        space.segments -= gone.len() as u32;
        for segment in &gone {
            self.segments[segment.0 as usize].state = State::Free;
        }
        self.spare.extend(gone);
        self.drop_where(|details| details.member == member);
        self.take_parked();
    }

    /// What is in a segment does not count any more.
    pub fn drop_segment(&mut self, segment: Segment) {
        let state = self.details(segment).state;
        match state {
            State::Free | State::Dropped | State::Parking | State::Parked => return,
            State::Open(queue) => self.open[queue as usize] = None,
            State::Full(queue) => self.queues[queue as usize].retain(|queued| *queued != segment),
            State::Leaving(_) => {}
        }
        self.set_state(segment, State::Dropped);
        self.dropped.push(segment);
    }

    /// The same for all of them that `goes` names, without a look at the queues for each.
    fn drop_where(&mut self, goes: impl Fn(&Details) -> bool) {
        let segments = &mut self.segments;
        let mut stays = |segment: &Segment| !goes(&segments[segment.0 as usize]);
        self.queues.iter_mut().for_each(|queue| queue.retain(&mut stays));
        self.open.iter_mut().for_each(|open| *open = open.take().filter(|open| stays(&open.segment)));
        for (number, details) in segments.iter_mut().enumerate() {
            let is_used = matches!(details.state, State::Open(_) | State::Full(_) | State::Leaving(_));
            if is_used && goes(details) {
                details.state = State::Dropped;
                self.dropped.push(Segment(number as u32));
            }
        }
    }

    /// Sweeps a dropped segment that is `idle`, if there is one: a bounded piece of work. Returns it.
    pub fn sweep(&mut self, idle: impl Fn(Segment) -> bool) -> Option<Segment> {
        let at = self.dropped.iter().position(|segment| idle(*segment))?;
        let segment = self.dropped.swap_remove(at);
        self.forget_blocks(segment);
        self.set_free(segment);
        Some(segment)
    }

    /// The segment has left its queue and nothing uses it any more: it is free.
    pub fn free(&mut self, segment: Segment) {
        if matches!(self.details(segment).state, State::Leaving(_)) {
            if !planted(Bug::EvictedStillFound) {
                self.forget_blocks(segment);
            }
            self.set_free(segment);
        }
    }

    fn set_free(&mut self, segment: Segment) {
        self.set_state(segment, State::Free);
        let member = self.details(segment).member;
        let space = &mut self.spaces[member.0 as usize];
        if space.present {
            space.free.push(segment);
        } else {
            space.segments -= 1;
            self.spare.push(segment);
            // What a lost member had of the limit the others may have.
            self.take_parked();
        }
    }

    fn forget_blocks(&mut self, segment: Segment) {
        for slot in self.slots_of(segment) {
            if let Some(block) = self.slots.get(slot) {
                self.unmap(block);
            }
        }
    }

    fn details(&self, segment: Segment) -> &Details {
        &self.segments[segment.0 as usize]
    }

    fn set_state(&mut self, segment: Segment, state: State) {
        self.segments[segment.0 as usize].state = state;
    }

    fn count_live(&mut self, slot: Slot, change: i32) {
        let segment = self.segment_of(slot).0;
        let live = &mut self.segments[segment.0 as usize].live;
        *live = live.wrapping_add_signed(change);
    }

    fn slots_of(&self, segment: Segment) -> Range<u32> {
        segment.0 * self.segment_blocks..(segment.0 + 1) * self.segment_blocks
    }

    /// Segments, with those that no member has now.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Segments of a member.
    #[must_use]
    pub fn member_segments(&self, member: Member) -> u32 {
        self.spaces[member.0 as usize].segments
    }

    /// What a segment is.
    #[must_use]
    pub fn state(&self, segment: Segment) -> State {
        self.details(segment).state
    }

    /// The segment of a slot, and the block's position in it.
    #[must_use]
    pub fn segment_of(&self, slot: Slot) -> (Segment, u32) {
        (Segment(slot.0 / self.segment_blocks), slot.0 % self.segment_blocks)
    }

    /// A segment's member, and its place on that, counted in segments.
    #[must_use]
    pub fn member_of(&self, segment: Segment) -> (Member, u32) {
        (self.details(segment).member, self.details(segment).place)
    }

    /// The slot of a segment's first block.
    #[must_use]
    pub fn first_slot(&self, segment: Segment) -> Slot {
        Slot(segment.0 * self.segment_blocks)
    }

    /// Where a block is.
    #[must_use]
    pub fn find(&self, block: u64) -> Option<Slot> {
        let slot = Slot(self.index.find(block, &self.slots)?);
        (self.state(self.segment_of(slot).0) != State::Dropped).then_some(slot)
    }

    /// The block at a slot, if one is.
    #[must_use]
    pub fn block_at(&self, slot: Slot) -> Option<u64> {
        self.slots.get(slot.0)
    }

    /// A block was used.
    pub fn touch(&mut self, slot: Slot) {
        let uses = self.slots.uses(slot.0);
        self.slots.set_uses(slot.0, uses.saturating_add(1));
    }

    /// The checksum of the block at a slot.
    #[must_use]
    pub fn checksum(&self, slot: Slot) -> u32 {
        self.slots.checksum(slot.0)
    }

    /// Sets that.
    pub fn set_checksum(&mut self, slot: Slot, checksum: u32) {
        self.slots.set_checksum(slot.0, checksum);
    }

    fn unmap(&mut self, block: u64) -> Option<Slot> {
        let slot = Slot(self.index.remove(block, &self.slots)?);
        self.slots.clear(slot.0);
        self.count_live(slot, -1);
        self.coverage.remove(block);
        Some(slot)
    }

    /// Removes a block; whether it was there.
    pub fn remove(&mut self, block: u64) -> bool {
        let found = self.find(block).is_some();
        self.unmap(block);
        found
    }

    /// Removes all blocks of a range. If they are more than are cached, the whole cache goes instead: that takes less time.
    pub fn remove_range(&mut self, range: Range<u64>) {
        if range.end - range.start > self.slots.len() as u64 {
            return self.drop_where(|_| true);
        }
        let mut rest = range;
        while let Some(covered) = self.coverage.next(rest.clone()) {
            covered.clone().for_each(|block| _ = self.unmap(block));
            rest.start = covered.end;
        }
    }

    /// The queue that a block which was missed goes to. To be asked once a miss: the ghost is forgotten.
    pub fn queue_for(&mut self, block: u64) -> Queue {
        if self.ghosts.take(block) { Queue::Main } else { Queue::Small }
    }

    /// The open segment of a queue, and how many of its slots are taken.
    #[must_use]
    pub fn open(&self, queue: Queue) -> Option<(Segment, u32)> {
        self.open[queue as usize].map(|open| (open.segment, open.filled))
    }

    /// Puts a block that is not cached into the open segment of a queue; `None` if there is none.
    pub fn insert(&mut self, block: u64, queue: Queue) -> Option<Slot> {
        let slot = self.take_slot(queue)?;
        debug_assert!(block <= BLOCKS_MAX && self.find(block).is_none());
        // What a dropped segment has of it is not found, and still there.
        self.unmap(block);
        self.slots.set(slot.0, block);
        self.index.insert(block, slot.0);
        self.coverage.add(block);
        self.count_live(slot, 1);
        Some(slot)
    }

    /// The next slot of the open segment; the caller closes the segment when it is full.
    fn take_slot(&mut self, queue: Queue) -> Option<Slot> {
        let open = self.open[queue as usize].as_mut().filter(|open| open.filled < self.segment_blocks)?;
        let slot = Slot(open.segment.0 * self.segment_blocks + open.filled);
        open.filled += 1;
        Some(slot)
    }

    /// Opens a segment for a queue that has none open; `None` if none is free.
    pub fn open_segment(&mut self, queue: Queue) -> Option<Segment> {
        debug_assert!(self.open[queue as usize].is_none());
        let members = self.spaces.len();
        let at = (0..members).map(|step| (self.turn + step) % members).find(|at| !self.spaces[*at].free.is_empty())?;
        let segment = self.spaces[at].free.pop()?;
        self.turn = (at + 1) % members;
        self.set_state(segment, State::Open(queue));
        self.open[queue as usize] = Some(Open { segment, filled: 0 });
        Some(segment)
    }

    /// The open segment of a queue is full.
    pub fn close(&mut self, queue: Queue) -> Option<Segment> {
        let open = self.open[queue as usize].take()?;
        self.set_state(open.segment, State::Full(queue));
        self.queues[queue as usize].push_back(open.segment);
        Some(open.segment)
    }

    /// Free segments.
    #[must_use]
    pub fn free_segments(&self) -> usize {
        self.spaces.iter().map(|space| space.free.len()).sum()
    }

    /// Takes the next segment from its queue that may go by `ready`, and names the blocks in it that are to be written again.
    /// The others are forgotten.
    pub fn evict(&mut self, ready: impl Fn(Segment) -> bool, survivors: &mut Vec<Slot>) -> Option<Segment> {
        let total = u64::from(self.used().min(self.limit));
        let is_large = self.queues[Queue::Small as usize].len() as u64 >= (total * SMALL_PERCENT / 100).max(1);
        let order = if is_large { [Queue::Small, Queue::Main] } else { [Queue::Main, Queue::Small] };
        let oldest = |queue: Queue| self.queues[queue as usize].front().copied().filter(|segment| ready(*segment));
        let (queue, segment) = order.into_iter().find_map(|queue| Some((queue, oldest(queue)?)))?;
        self.queues[queue as usize].pop_front();
        self.set_state(segment, State::Leaving(queue));
        let needed = match queue {
            _ if self.is_too_large() => SHRINKING_USES,
            Queue::Small => PROMOTED_USES,
            Queue::Main => 1,
        };
        for slot in self.slots_of(segment) {
            let Some(block) = self.slots.get(slot) else { continue };
            if self.slots.uses(slot) >= needed {
                survivors.push(Slot(slot));
                continue;
            }
            self.unmap(block);
            if queue == Queue::Small {
                self.ghosts.add(block);
            }
        }
        Some(segment)
    }

    /// A block that is at this slot of a leaving segment goes to the open segment of the main queue; `None` if there is none,
    /// or the block is at this slot no more.
    pub fn relocate(&mut self, slot: Slot) -> Option<Slot> {
        let segment = self.segment_of(slot).0;
        let State::Leaving(queue) = self.state(segment) else { return None };
        let block = self.slots.get(slot.0)?;
        let to = self.take_slot(Queue::Main)?;
        // What comes from the small queue begins anew.
        let uses = if queue == Queue::Main { self.slots.uses(slot.0).saturating_sub(1) } else { 0 };
        self.index.replace(block, to.0, &self.slots);
        self.slots.clear(slot.0);
        self.slots.set(to.0, block);
        self.slots.set_uses(to.0, uses);
        self.count_live(slot, -1);
        self.count_live(to, 1);
        Some(to)
    }

    /// Blocks that are cached, with those of dropped segments.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.index.len()
    }
}
