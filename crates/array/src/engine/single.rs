//! Requests that are one I/O of one member: reads and writes in one chunk, which no copy and no change of the membership
//! concerns, and which need not wait.
//!
//! Most small requests are. They are kept in a table of their own: the general path prepares for copies, for several members
//! and for waiting, which takes several times as long as a copy of 4 KiB in memory. Whatever begins while one is in flight
//! sees it: changes that overlap it, the copy of its region, the end of a copy, the release of its member.

use slab::Slab;
use surgetank_model::{Instant, Operation, Request, RequestId};

use super::Engine;
use super::change::Hold;
use super::member::Role;
use super::requests::{error_of, is_locked, overlap};
use crate::effect::{BufferId, Effect, EffectId, IoFailure, ReplyError, Slice, Target};
use crate::planted::{Bug, planted};

/// Numbers of effects from here on are of this table: their last 32 bits are the place, the others tell its users apart.
const FIRST: u64 = 1 << 63;
const PLACE_BITS: u32 = 32;
/// Counters of writes in flight, by chunk: so many that two chunks seldom share one.
const COUNTERS: usize = 256;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: EffectId,
    request: Request,
    /// No other request may have its name.
    named: bool,
    slot: u32,
    region: u64,
    target: Target,
    /// Failed flushes of the member when it began.
    failures: u64,
}

/// What is in flight on this path.
#[derive(Debug)]
pub(super) struct Singles {
    entries: Slab<Entry>,
    /// Writes in flight, by the last bits of their chunk's number.
    writes: [u32; COUNTERS],
    next: u64,
}

/// The I/O of a request: all of it, with the whole of the request's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// What [`Engine::complete_single`] is told.
    pub id: EffectId,
    /// Which volume.
    pub target: Target,
    /// First byte on the volume.
    pub offset: u64,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Which.
    pub request: Request,
    /// Whether it succeeded.
    pub result: Result<(), ReplyError>,
}

/// Whether the effect is the I/O of such a request.
#[must_use]
pub const fn is_single(effect: EffectId) -> bool {
    effect.0 >= FIRST
}

const fn is_write(operation: Operation) -> bool {
    matches!(operation, Operation::Write { .. })
}

impl Singles {
    pub fn new() -> Self {
        Self { entries: Slab::new(), writes: [0; COUNTERS], next: 0 }
    }

    fn add(&mut self, chunk: u64, entry: impl FnOnce(EffectId) -> Entry) -> EffectId {
        let vacant = self.entries.vacant_entry();
        let id = EffectId(FIRST | self.next << PLACE_BITS | vacant.key() as u64);
        self.next = (self.next + 1) & (u64::MAX >> (PLACE_BITS + 1));
        let entry = *vacant.insert(entry(id));
        self.writes[chunk as usize % COUNTERS] += u32::from(is_write(entry.request.operation));
        id
    }

    fn remove(&mut self, id: EffectId, chunk_bits: u32) -> Option<Entry> {
        let place = id.0 as u32 as usize;
        self.entries.get(place).filter(|entry| entry.id == id)?;
        let entry = self.entries.remove(place);
        let chunk = entry.request.offset >> chunk_bits;
        self.writes[chunk as usize % COUNTERS] -= u32::from(is_write(entry.request.operation));
        Some(entry)
    }

    fn changes(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(_, entry)| entry).filter(|entry| is_write(entry.request.operation))
    }

    /// Whether a write in flight overlaps this range of the array.
    pub fn is_locked(&self, request: &Request) -> bool {
        self.changes().any(|entry| overlap(&entry.request, request))
    }

    /// Whether a request of this name is in flight.
    pub fn is_known(&self, request: RequestId) -> bool {
        self.entries.iter().any(|(_, entry)| entry.named && entry.request.id == request)
    }

    /// What is in flight: requests, their slots and members.
    #[cfg(debug_assertions)]
    pub fn all(&self) -> impl Iterator<Item = (&Request, u32, Target)> {
        self.entries.iter().map(|(_, entry)| (&entry.request, entry.slot, entry.target))
    }
}

impl Engine {
    /// Takes a request that is one I/O of one member and need not wait. The driver does that I/O and tells
    /// [`Engine::complete_single`]; there is no effect and no reply. `None`: the request goes to [`Engine::submit`].
    ///
    /// The request's name is the driver's own: it comes back as it is, and may be that of another request.
    pub fn submit_single(&mut self, now: Instant, request: &Request) -> Option<Single> {
        self.begin_single(now, request, false)
    }

    /// The same; a request that is `named` has a name that no other one may have.
    pub(super) fn begin_single(&mut self, now: Instant, request: &Request, named: bool) -> Option<Single> {
        let (chunk_bits, block) = (self.geometry.chunk.trailing_zeros(), u64::from(self.geometry.logical_block));
        let (offset, length) = (request.offset, request.length);
        let write = match request.operation {
            Operation::Read => false,
            Operation::Write { .. } => true,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => return None,
        };
        let end = offset.checked_add(length).filter(|end| *end <= self.size && length > 0)?;
        let chunk = offset >> chunk_bits;
        if (offset | length) & (block - 1) != 0 || (end - 1) >> chunk_bits != chunk || !self.waiting.is_empty() {
            return None;
        }
        let members = u64::from(self.geometry.members);
        let (row, slot) = (chunk / members, (chunk % members) as u32);
        let place = &mut self.slots[slot as usize];
        if !self.opened || !place.serves || place.hold != Hold::No || place.join.is_some() {
            return None;
        }
        let target = place.active;
        let member = self.members.get_mut(&target)?;
        let on_member = row << chunk_bits | offset & ((1 << chunk_bits) - 1);
        let region = on_member >> self.geometry.region.trailing_zeros();
        if write {
            let settled = member.bitmap.as_ref().is_some_and(|bitmap| bitmap.is_settled(region));
            let alone = self.singles.writes[chunk as usize % COUNTERS] == 0 || !self.singles.is_locked(request);
            let free = alone && !is_locked(&self.locks, request) || planted(Bug::NoRangeLock);
            if !settled || !free || member.discarded.contains_key(&region) || member.ahead.contains(&region) {
                return None;
            }
            place.changes += 1;
        }
        member.port.started(length);
        let failures = member.port.failures;
        self.pass_to(now);
        let entry = |id| Entry { id, request: *request, named, slot, region, target, failures };
        let id = self.singles.add(chunk, entry);
        Some(Single { id, target, offset: self.geometry.data_offset() + on_member })
    }

    /// The I/O of such a request has ended; `None` if none is in flight under that number.
    pub fn complete_single(&mut self, now: Instant, id: EffectId, result: Result<(), IoFailure>) -> Option<Ended> {
        let Entry { request, slot, target, failures, .. } =
            self.singles.remove(id, self.geometry.chunk.trailing_zeros())?;
        self.pass_to(now);
        let mut leaves = false;
        if let Some(member) = self.members.get_mut(&target) {
            member.port.ended(request.length);
            if is_write(request.operation) && result.is_ok() {
                let durable = is_durable(request.operation);
                member.port.flushes.wrote(durable);
                // A flush that failed meanwhile may have forgotten it.
                member.owed |= !durable && member.port.failures != failures;
            }
            leaves = member.role == Role::Leaving;
        }
        let place = &mut self.slots[slot as usize];
        place.changes -= u32::from(is_write(request.operation));
        if leaves || place.join.is_some() || !self.waiting.is_empty() {
            self.retry_waiting = true;
            self.pump();
        }
        Some(Ended { request, result: result.map_err(error_of) })
    }

    /// Whether something changes this region of a slot.
    pub(super) fn is_changing(&self, slot: u32, region: u64) -> bool {
        self.slots[slot as usize].regions.contains_key(&region)
            || !planted(Bug::CopyOverSingle)
                && self.singles.changes().any(|entry| (entry.slot, entry.region) == (slot, region))
    }
}

/// Whether a write counts as durable when it has ended.
fn is_durable(operation: Operation) -> bool {
    operation == (Operation::Write { fua: true }) && !planted(Bug::FuaIgnored)
}

/// The effect of a request that was submitted in the usual way.
pub(super) fn effect(request: &Request, single: Single) -> Effect {
    let Single { id, target, offset } = single;
    let buffer = BufferId::Request(request.id);
    let memory = smallvec::smallvec![Slice { buffer, offset: 0, length: request.length as u32 }];
    match request.operation {
        Operation::Write { .. } => {
            Effect::Write { id, target, offset, from: memory, fua: is_durable(request.operation) }
        }
        _ => Effect::Read { id, target, offset, into: memory },
    }
}
