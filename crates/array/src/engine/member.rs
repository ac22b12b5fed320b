//! A member: its flushes, its bitmap, its superblock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use surgetank_model::{FlushEnd, FlushRequest, Instant};

use super::{Engine, Pending};
use crate::bitmap::Bitmap;
use crate::effect::{Effect, Target};
use crate::format::{ArrayId, Kind, MemberId, MemberState, Superblock};
use crate::geometry::Geometry;
use crate::planted::{Bug, planted};
use crate::port::{Port, Waiter};

/// What a member is to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It has its slot's data.
    Active,
    /// It is being given its slot's data.
    Joining,
    /// It was replaced, and is told so.
    Superseded,
    /// Nothing new is asked of it; it is released when nothing is in flight.
    Leaving,
}

/// How far the opening of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its bitmap is being read.
    Load,
    /// Its bitmap is being written again: what was read may not be durable.
    Pages,
    /// This many superblocks are still to be written.
    Record(u32),
    Ready,
    /// It will be tried again.
    Failed,
}

/// The superblock of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Idle,
    Writing,
    /// Written with this generation, not durable yet.
    Flushing(u64),
}

/// A member of an array.
#[derive(Debug)]
pub(super) struct Member {
    pub target: Target,
    pub id: MemberId,
    pub slot: u32,
    pub role: Role,
    pub stage: Stage,
    pub retry_at: Option<Instant>,
    pub port: Port,
    /// Known from the stage [`Stage::Pages`] on.
    pub bitmap: Option<Bitmap>,
    /// Of the newest superblock that was begun.
    pub sequence: u64,
    pub record: Record,
    /// The superblock is to be written.
    pub record_wanted: bool,
    /// Its superblock must first be written again as it was, with this generation.
    pub confirms: Option<u64>,
    /// No other member names it: it is told of this start after one that will be there at every start to come.
    pub unknown: bool,
    /// The newest generation that its superblock names durably.
    pub recorded: u64,
    /// A flush failed and may have forgotten writes that were acknowledged; no flush of the application has been told.
    pub owed: bool,
    /// What was discarded of regions that were not written since.
    pub discarded: BTreeMap<u64, Discarded>,
    /// Regions whose bits are set although nothing was written there yet.
    pub ahead: BTreeSet<u64>,
}

/// What was discarded of a region: one range, which grows by discards that overlap it or lie beside it. Kernels discard large ranges
/// in pieces, whose ends lie within regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// First byte, among the member's data.
    pub start: u64,
    /// After the last byte.
    pub end: u64,
    /// The number of the member's write that did it; of several, of the last one.
    pub at: u64,
}

/// Regions of which a part is known to be discarded, at most: those with the highest numbers.
const DISCARDED_MAX: usize = 4096;

/// Bits are set ahead of a sequential write for so many bytes of a member at most. A page of the bitmap waits behind the writes
/// that are queued on the member: half of this, which is left when the next bits are set, must be more than they are.
const AHEAD_BYTES_MAX: u64 = 32 << 20;

impl Member {
    pub fn new(target: Target, id: MemberId, slot: u32, role: Role, sequence: u64) -> Self {
        Self {
            target,
            id,
            slot,
            role,
            stage: Stage::Load,
            retry_at: None,
            port: Port::default(),
            bitmap: None,
            sequence,
            record: Record::Idle,
            record_wanted: false,
            confirms: None,
            unknown: false,
            recorded: 0,
            owed: false,
            discarded: BTreeMap::new(),
            ahead: BTreeSet::new(),
        }
    }

    /// This range of a region was discarded by the last write. Whether the whole region is now.
    pub fn note_discarded(&mut self, region: u64, range: Range<u64>, geometry: &Geometry) -> bool {
        let bytes = geometry.region_bytes(region);
        let (start, end) = (range.start.max(bytes.start), range.end.min(bytes.end));
        let mut part = Discarded { start, end, at: self.port.flushes.written() };
        if let Some(before) = self.discarded.get(&region) {
            if before.start <= part.end && part.start <= before.end || planted(Bug::GapIsDiscarded) {
                (part.start, part.end) = (before.start.min(part.start), before.end.max(part.end));
            } else if before.end - before.start > part.end - part.start {
                part = *before;
            }
        } else if self.discarded.len() >= DISCARDED_MAX {
            self.discarded.pop_first();
        }
        self.discarded.insert(region, part);
        bytes == (part.start..part.end)
    }

    /// Whether something may have been written to a region.
    pub fn is_written(&self, region: u64) -> bool {
        self.bitmap.as_ref().is_some_and(|bitmap| bitmap.wants(region)) && !self.ahead.contains(&region)
    }

    /// A region is to be written. Whether its bit is durably in the set; else it will be.
    ///
    /// If the region is the next of a row that was written, it is followed by others as a rule: their bits are set as well, twice
    /// as many as the row is long. So a sequential write waits for its first bits alone, and a page is written seldom.
    pub fn prepare_write(&mut self, region: u64, geometry: &Geometry) -> bool {
        let Some(bitmap) = self.bitmap.as_mut() else { return true };
        let expected = self.ahead.contains(&region);
        if !planted(Bug::AheadCountsBlank) {
            self.ahead.remove(&region);
        }
        if expected || !bitmap.wants(region) {
            let most = AHEAD_BYTES_MAX / u64::from(geometry.region);
            let row = (1..=(most / 2).min(region)).take_while(|back| bitmap.wants(region - back)).count() as u64;
            let reach = (region + 1 + 2 * row).min(geometry.regions());
            let left = (region + 1..reach).take_while(|next| bitmap.wants(*next)).count() as u64;
            if left <= row {
                for next in region + 1 + left..reach {
                    if !bitmap.wants(next) {
                        bitmap.set(next, true);
                        self.ahead.insert(next);
                    }
                }
            }
        }
        bitmap.ensure(region, true)
    }

    /// It is blank: both copies of its bitmap and both superblocks are written.
    pub fn begin_blank(&mut self, array: ArrayId, pages: u32) {
        self.bitmap = Some(Bitmap::empty(array, self.id, Kind::Copied, pages));
        self.stage = Stage::Pages;
    }

    /// What its superblock says.
    fn state(&self) -> MemberState {
        match self.role {
            Role::Active => MemberState::Active,
            Role::Joining => MemberState::Joining,
            Role::Superseded | Role::Leaving => MemberState::Retired,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }
}

impl Engine {
    /// Asks for what a member has completed to become durable.
    pub(super) fn flush_member(&mut self, target: Target, waiter: Waiter) -> FlushRequest {
        let Some(member) = self.member(target) else { return FlushRequest::Ready };
        let answer = member.port.flushes.request(waiter);
        if answer == FlushRequest::Issue {
            self.emit(Pending::Flush(target), |id| Effect::Flush { id, target });
        }
        answer
    }

    /// The flush in flight of a member has ended.
    pub(super) fn flushed(&mut self, target: Target, success: bool) {
        let Some(member) = self.member(target) else { return };
        let FlushEnd { done, again } = member.port.flushed(success);
        if again {
            self.emit(Pending::Flush(target), |id| Effect::Flush { id, target });
        }
        if success {
            self.clear_discarded(target);
        } else {
            self.flush_failed(target, &done);
        }
        for waiter in done {
            match waiter {
                Waiter::Request(request) => self.finish_part(request, success),
                Waiter::Page(page) => self.page_durable(target, page, success),
                Waiter::Superblock => self.superblock_durable(target, success),
                Waiter::Checkpoint(serial) => self.checkpoint_flushed(serial, success),
            }
        }
    }

    /// What the flush covered may be forgotten, and no later flush brings it back.
    fn flush_failed(&mut self, target: Target, waiters: &[Waiter]) {
        let told = waiters.iter().any(|waiter| matches!(waiter, Waiter::Request(_)));
        let Some(member) = self.member(target) else { return };
        member.discarded.clear();
        match member.role {
            Role::Active if planted(Bug::FlushFailureUnreported) => {}
            Role::Active => {
                member.owed |= !told;
                let slot = member.slot;
                self.note_forgotten(slot);
            }
            Role::Joining => {
                let slot = member.slot;
                self.forget_copies(slot);
            }
            Role::Superseded | Role::Leaving => {}
        }
    }

    /// Regions that were discarded whole need no bit once the discard is durable.
    fn clear_discarded(&mut self, target: Target) {
        let geometry = self.geometry;
        let Some(member) = self.member(target).filter(|member| member.role == Role::Active) else { return };
        let durable = member.port.flushes.durable();
        let is_cleared = |(region, part): &(&u64, &Discarded)| {
            part.at <= durable && geometry.region_bytes(**region) == (part.start..part.end)
        };
        let cleared: Vec<u64> = member.discarded.iter().filter(is_cleared).map(|(region, _)| *region).collect();
        for region in cleared {
            member.discarded.remove(&region);
            member.ahead.remove(&region);
            if let Some(bitmap) = member.bitmap.as_mut() {
                bitmap.set(region, false);
            }
        }
    }

    /// Writes the pages that are due.
    pub(super) fn write_pages(&mut self) {
        let geometry = self.geometry;
        let is_due = |member: &&mut Member| {
            matches!(member.stage, Stage::Pages | Stage::Ready)
                && matches!(member.role, Role::Active | Role::Joining)
                && member.bitmap.as_ref().is_some_and(Bitmap::is_due)
        };
        while let Some(member) = self.members.values_mut().find(is_due) {
            let Some(version) = member.bitmap.as_mut().and_then(Bitmap::next_version) else { continue };
            let (target, page, failures) = (member.target, version.page, member.port.failures);
            let bytes = version.content.encode();
            let offset = geometry.page_offset(page, version.copy);
            member.port.started(bytes.len() as u64);
            let pending = Pending::Page { target, page, failures };
            self.emit(pending, |id| Effect::WriteStructure { id, target, offset, bytes });
        }
    }

    pub(super) fn page_written(&mut self, target: Target, page: u32, failures: u64, success: bool) {
        let Some(member) = self.member(target) else { return };
        member.port.ended(u64::from(crate::format::BLOCK));
        if !success {
            return self.page_durable(target, page, false);
        }
        member.port.flushes.wrote(false);
        // A flush that failed meanwhile may have forgotten it.
        if member.port.failures != failures {
            return self.page_durable(target, page, false);
        }
        let unflushed = match member.role {
            Role::Joining => planted(Bug::JoiningNotFlushed) && self.is_committing(target),
            Role::Active | Role::Superseded | Role::Leaving => false,
        };
        if unflushed || self.flush_member(target, Waiter::Page(page)) == FlushRequest::Ready {
            self.page_durable(target, page, true);
        }
    }

    /// A version of a page is durable, or failed.
    fn page_durable(&mut self, target: Target, page: u32, durable: bool) {
        let Some(member) = self.member(target) else { return };
        let (role, stage) = (member.role, member.stage);
        if let Some(bitmap) = member.bitmap.as_mut() {
            bitmap.written(page, durable);
        }
        if stage == Stage::Pages {
            return self.opening_page(target, durable);
        }
        match role {
            Role::Active if !durable => self.fail_bit_waiters(target, page),
            // Whatever its bits say durably no longer goes with what is on it.
            Role::Joining if !durable => {
                let slot = self.members[&target].slot;
                self.drop_join(slot);
            }
            Role::Active | Role::Joining | Role::Superseded | Role::Leaving => {}
        }
    }

    /// Writes the superblocks that are wanted.
    pub(super) fn write_superblocks(&mut self) {
        let (array, generation, geometry) = (self.array, self.generation, self.geometry);
        let wanted = |member: &&Member| member.record_wanted && member.record == Record::Idle;
        let targets: Vec<Target> = self.members.values().filter(wanted).map(|member| member.target).collect();
        for target in targets {
            let awaited = self.transition.as_ref().filter(|t| !t.is_paused()).map(|t| t.waiting.contains(&target));
            let list = self.list.clone();
            let told = self.may_be_told(target);
            let Some(member) = self.member(target).filter(|_| told) else { continue };
            // While the membership changes, only those that the change names are told.
            if awaited == Some(false) {
                continue;
            }
            member.record_wanted = false;
            member.record = Record::Writing;
            member.sequence += 1;
            let generation = member.confirms.unwrap_or(generation);
            let superblock = Superblock {
                array,
                member: member.id,
                sequence: member.sequence,
                generation,
                slot: member.slot,
                state: member.state(),
                geometry,
                members: list,
            };
            let (offset, bytes) = (superblock.offset(), superblock.encode());
            member.port.started(bytes.len() as u64);
            let failures = member.port.failures;
            let pending = Pending::Superblock { target, generation, failures };
            self.emit(pending, |id| Effect::WriteStructure { id, target, offset, bytes });
        }
    }

    /// Whether a member may be told of this start.
    ///
    /// That a member counts which no other names may not be durable: it is confirmed before any other is told of it. And it is
    /// told of this start, as a joining member is, after a member that will be there at every start to come: if that start does
    /// not see what only they know, it still is a newer one.
    pub(super) fn may_be_told(&self, target: Target) -> bool {
        let Some(member) = self.members.get(&target) else { return false };
        if !matches!(member.stage, Stage::Record(_)) || member.confirms.is_some() {
            return true;
        }
        let settled = self.members.values().all(|member| member.confirms.is_none()) || planted(Bug::UnknownToldLate);
        let others = || self.members.values().filter(|other| other.role == Role::Active && !other.unknown);
        let last = member.role == Role::Joining || member.unknown && others().next().is_some();
        settled && (!last || self.members.values().any(|other| other.role == Role::Active && self.knows(other)))
    }

    /// Whether a member knows of this start.
    fn knows(&self, member: &Member) -> bool {
        member.recorded >= self.session
    }

    pub(super) fn superblock_written(&mut self, target: Target, generation: u64, failures: u64, success: bool) {
        let Some(member) = self.member(target) else { return };
        member.port.ended(u64::from(crate::format::BLOCK));
        if success {
            member.port.flushes.wrote(false);
        }
        member.record = Record::Flushing(generation);
        if !success || member.port.failures != failures {
            return self.superblock_durable(target, false);
        }
        if self.flush_member(target, Waiter::Superblock) == FlushRequest::Ready {
            self.superblock_durable(target, true);
        }
    }

    fn superblock_durable(&mut self, target: Target, success: bool) {
        let Some(member) = self.member(target) else { return };
        let Record::Flushing(generation) = std::mem::replace(&mut member.record, Record::Idle) else { return };
        if success {
            member.recorded = member.recorded.max(generation);
            member.confirms = None;
        } else {
            // The place of this sequence may hold anything; the other one has the last that counts.
            member.sequence -= 1;
        }
        if matches!(member.stage, Stage::Record(_)) {
            self.opening_recorded(target, success);
        } else {
            self.transition_recorded(target, success);
        }
    }
}
