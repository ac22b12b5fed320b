//! Changes: writes, discards, write-zeroes.
//!
//! A change goes to the active member of each slot that it touches, and to the joining member too where both hold the same.
//! It waits for the copy of a region that it touches, and a region's copy waits for it, so nothing is missed between the two.
//! Before a byte is written, the region's bit is durable on the active member, and gone on the joining one.

use std::collections::BTreeMap;

use surgetank_model::{Operation, Request, RequestId};

use super::requests::error_of;
use super::{Engine, Pending};
use crate::bitmap::Bitmap;
use crate::effect::{BufferId, Effect, EffectId, IoFailure, ReplyError, Slices, Target};
use crate::geometry::Run;
use crate::planted::{Bug, planted};

use super::copy::Join;

/// Whether changes of a slot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// They do not.
    No,
    /// Until the membership has changed.
    Wait,
    /// The membership cannot be changed now: they fail.
    Fail,
}

/// A slot of the stripe.
#[derive(Debug)]
pub(super) struct Slot {
    /// The member that counts.
    pub active: Target,
    /// The member that is being copied to.
    pub join: Option<Join>,
    /// The joining member is to be dropped.
    pub dropping: bool,
    /// The copy must not wait behind everything else that its member is asked for.
    pub hurried: bool,
    pub hold: Hold,
    /// It may be served.
    pub serves: bool,
    /// Another member names the generation of this start.
    pub witnessed: bool,
    /// Changes in flight that are not parked.
    pub changes: u32,
    /// Changes in flight by region.
    pub regions: BTreeMap<u64, u32>,
    /// Changes that only the joining member has.
    pub parked: Vec<RequestId>,
}

impl Slot {
    pub fn new(active: Target) -> Self {
        Self {
            active,
            join: None,
            dropping: false,
            hurried: false,
            hold: Hold::No,
            serves: false,
            witnessed: false,
            changes: 0,
            regions: BTreeMap::new(),
            parked: Vec::new(),
        }
    }
}

/// An I/O of a change.
#[derive(Debug)]
pub(super) struct Part {
    pub request: RequestId,
    pub target: Target,
    pub run: Run,
    /// It is on the joining member.
    double: bool,
    fua: bool,
    discard: bool,
    /// Failed flushes of the member when it began.
    failures: u64,
}

const fn needs_bit(operation: Operation) -> bool {
    matches!(operation, Operation::Write { .. } | Operation::WriteZeroes { .. })
}

impl Engine {
    /// Starts a change, unless it must wait.
    pub(super) fn start_change(&mut self, request: Request) -> bool {
        if self.is_locked(&request) && !planted(Bug::NoRangeLock) {
            return false;
        }
        let runs = self.geometry.runs(request.offset, request.length);
        let range = (request.offset, request.offset + request.length);
        for run in &runs {
            let slot = &self.slots[run.slot as usize];
            let copied = |join: &Join| self.geometry.regions_of(run).any(|region| join.jobs.contains_key(&region));
            let copied = slot.join.as_ref().is_some_and(copied) && !planted(Bug::WriteInCopiedWindow);
            let read = |join: &Join| join.is_read(range) && !planted(Bug::ReadWhileWritten);
            if slot.hold == Hold::Wait || copied || slot.join.as_ref().is_some_and(read) {
                return false;
            }
        }
        self.locks.insert(range.0, range.1);
        let written = needs_bit(request.operation) && !planted(Bug::ClearOverWrite);
        for run in &runs {
            let regions = self.geometry.regions_of(run);
            let slot = &mut self.slots[run.slot as usize];
            slot.changes += 1;
            let active = slot.active;
            for region in regions {
                *slot.regions.entry(region).or_insert(0) += 1;
                if let Some(member) = self.members.get_mut(&active).filter(|_| written) {
                    member.discarded.remove(&region);
                }
            }
        }
        self.begin(request, runs);
        self.bit_waiters.push(request.id);
        true
    }

    /// Issues the changes whose bits are durable.
    pub(super) fn advance_bits(&mut self) {
        for id in std::mem::take(&mut self.bit_waiters) {
            let Some(active) = self.requests.get(&id) else { continue };
            let (operation, runs) = (active.request.operation, active.runs.clone());
            let fails = |run: &Run| {
                let slot = &self.slots[run.slot as usize];
                !slot.serves || slot.hold == Hold::Fail
            };
            if runs.iter().any(fails) {
                self.fail_request(id, ReplyError::Io);
                self.end_change(id);
                continue;
            }
            let mut waits = false;
            for run in &runs {
                waits |= !self.settle_bits(operation, run);
            }
            if waits {
                self.bit_waiters.push(id);
            } else {
                self.issue(id);
            }
        }
    }

    /// Whether the bits of a run are as a change needs them; else they will be.
    fn settle_bits(&mut self, operation: Operation, run: &Run) -> bool {
        let regions = self.geometry.regions_of(run);
        let Slot { active, join, dropping, .. } = &mut self.slots[run.slot as usize];
        // What is not copied to a member that is dropped must wait until that cannot be resumed.
        if *dropping {
            return false;
        }
        let mut settled = true;
        if let Some(member) = self.members.get_mut(active).filter(|_| needs_bit(operation)) {
            for region in regions.clone() {
                settled &= member.prepare_write(region, &self.geometry) || planted(Bug::WrittenBeforeBit);
            }
        }
        let Some(join) = join.as_mut().filter(|join| join.begun) else { return settled };
        let Some(bitmap) = self.members.get_mut(&join.target).and_then(|member| member.bitmap.as_mut()) else {
            return settled;
        };
        // Also where the members differ by now: the mark that they do not may still be durable.
        for region in regions.filter(|_| !planted(Bug::TouchNotRecorded)) {
            if join.synced.get(region) {
                join.touched.set(region, true);
            }
            settled &= bitmap.ensure(region, false);
        }
        settled
    }

    /// A page of the active member's bitmap could not be written: the changes that wait for it fail, without effect.
    pub(super) fn fail_bit_waiters(&mut self, target: Target, page: u32) {
        let hit = |id: &RequestId| {
            let Some(active) = self.requests.get(id) else { return false };
            let bitmap = self.members.get(&target).and_then(|member| member.bitmap.as_ref());
            let of_page = |region: u64| {
                Bitmap::page_of(region) == page && bitmap.is_some_and(|bitmap| !bitmap.is_durably(region, true))
            };
            let hit = |run: &Run| {
                self.slots[run.slot as usize].active == target && self.geometry.regions_of(run).any(of_page)
            };
            needs_bit(active.request.operation) && active.runs.iter().any(hit)
        };
        let (failed, rest) = self.bit_waiters.iter().partition(|id| hit(id));
        self.bit_waiters = rest;
        let failed: Vec<RequestId> = failed;
        for id in failed {
            self.fail_request(id, ReplyError::Io);
            self.end_change(id);
        }
    }

    /// Sends a change to the members.
    fn issue(&mut self, id: RequestId) {
        let Some(active) = self.requests.get(&id) else { return };
        let (request, runs) = (active.request, active.runs.clone());
        for run in &runs {
            self.issue_part(&request, self.slots[run.slot as usize].active, *run, false);
            let discards = request.operation == Operation::Discard;
            if planted(Bug::WriteBehindCursor) || discards && planted(Bug::DiscardNotMirrored) {
                continue;
            }
            for double in self.doubled(run) {
                let Some(join) = self.slots[run.slot as usize].join.as_mut() else { break };
                let target = join.target;
                for region in self.geometry.regions_of(&double) {
                    join.pristine.set(region, false);
                }
                self.issue_part(&request, target, double, true);
            }
        }
        if self.end_part(id) {
            self.end_change(id);
        }
    }

    /// The parts of a run that go to the joining member as well.
    fn doubled(&self, run: &Run) -> Vec<Run> {
        let mut parts: Vec<Run> = Vec::new();
        let Some(join) = &self.slots[run.slot as usize].join else { return parts };
        for region in self.geometry.regions_of(run).filter(|region| join.synced.get(*region)) {
            let bytes = self.geometry.region_bytes(region);
            let (start, end) = (bytes.start.max(run.offset), bytes.end.min(run.end()));
            match parts.last_mut() {
                Some(last) if last.end() == start => last.length = end - last.offset,
                _ => parts.push(Run { slot: run.slot, offset: start, length: end - start }),
            }
        }
        parts
    }

    fn issue_part(&mut self, request: &Request, target: Target, run: Run, double: bool) {
        let Some(member) = self.members.get_mut(&target) else { return };
        let failures = member.port.failures;
        let discard = request.operation == Operation::Discard;
        let fua = match request.operation {
            Operation::Write { fua } | Operation::WriteZeroes { fua } => fua && !double && !planted(Bug::FuaIgnored),
            Operation::Read | Operation::Flush | Operation::Discard => false,
        };
        member.port.started(run.length);
        self.add_part(request.id);
        let (offset, length) = (self.geometry.data_offset() + run.offset, run.length);
        let from = match request.operation {
            Operation::Write { .. } => self.geometry.slices(&run, request.offset, BufferId::Request(request.id)),
            _ => Slices::new(),
        };
        let effect = |id: EffectId| match request.operation {
            Operation::Discard => Effect::Discard { id, target, offset, length },
            Operation::WriteZeroes { .. } => Effect::WriteZeroes { id, target, offset, length, fua },
            Operation::Write { .. } | Operation::Read | Operation::Flush => {
                Effect::Write { id, target, offset, from, fua }
            }
        };
        let part = Part { request: request.id, target, run, double, fua, discard, failures };
        self.emit(Pending::Part(part), effect);
    }

    /// An I/O of a change has ended.
    pub(super) fn part_ended(&mut self, part: Part, result: Result<(), IoFailure>) {
        let Part { request, target, run, double, fua, discard, failures } = part;
        let geometry = self.geometry;
        let mut forgotten = false;
        if let Some(member) = self.members.get_mut(&target) {
            member.port.ended(run.length);
            if result.is_ok() {
                member.port.flushes.wrote(fua);
                forgotten = member.port.failures != failures && !fua;
            }
            if !double && forgotten {
                member.owed = true;
            }
            if !double && !forgotten && result.is_ok() && discard {
                for region in geometry.regions_of(&run) {
                    let is_whole = member.note_discarded(region, run.offset..run.end(), &geometry);
                    if let Some(bitmap) = member.bitmap.as_mut().filter(|_| is_whole && planted(Bug::BitClearedEarly)) {
                        bitmap.set(region, false);
                    }
                }
            }
        }
        if let Some(active) = self.requests.get_mut(&request) {
            match (result, double) {
                (Ok(()), false) => {}
                (Err(failure), false) => {
                    active.failed.push(run);
                    // A slot whose copy is complete can do without it; that is seen when all parts have ended.
                    active.error.get_or_insert(error_of(failure));
                }
                (Ok(()), true) if forgotten => active.failed_doubles.push(run),
                (Ok(()), true) => {}
                (Err(_), true) => active.failed_doubles.push(run),
            }
        }
        if self.end_part(request) {
            self.end_change(request);
        }
    }

    /// All of a change has ended.
    fn end_change(&mut self, id: RequestId) {
        let Some(active) = self.requests.get_mut(&id) else { return };
        let (failed, doubles) = (std::mem::take(&mut active.failed), std::mem::take(&mut active.failed_doubles));
        for run in &doubles {
            self.double_failed(run);
        }
        let slots: Vec<u32> = failed.iter().map(|run| run.slot).collect();
        if let [slot] = slots[..]
            && self.is_copied(slot)
            && doubles.iter().all(|run| run.slot != slot)
        {
            return self.park(id, slot);
        }
        for run in &failed {
            // The members differ there.
            self.unsync(run);
        }
        let Some(active) = self.requests.get(&id) else { return };
        for run in active.runs.clone() {
            self.slots[run.slot as usize].changes -= 1;
        }
        self.unlock(id);
    }

    /// The joining member alone has this change, and all else: it takes over.
    fn park(&mut self, id: RequestId, slot: u32) {
        let Some(active) = self.requests.get_mut(&id) else { return };
        active.parked = true;
        for run in active.runs.clone() {
            self.slots[run.slot as usize].changes -= 1;
        }
        self.slots[slot as usize].parked.push(id);
    }

    /// Changes that are parked while the copy is no longer complete fail: it may wait for them.
    pub(super) fn unpark_stranded(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            if !self.slots[slot as usize].parked.is_empty() && !self.is_copied(slot) {
                self.unpark(slot, false);
            }
        }
    }

    /// The parked changes of a slot succeed, or fail as they would have without the joining member.
    pub(super) fn unpark(&mut self, slot: u32, success: bool) {
        for id in std::mem::take(&mut self.slots[slot as usize].parked) {
            let Some(active) = self.requests.get_mut(&id) else { continue };
            let runs = active.runs.clone();
            if success {
                active.error = None;
            } else {
                runs.iter().filter(|run| run.slot == slot).for_each(|run| self.unsync(run));
            }
            self.unlock(id);
        }
    }

    /// The active member of a slot failed a flush: of changes that are not answered yet, it may have forgotten parts that it
    /// had done.
    pub(super) fn note_forgotten(&mut self, slot: u32) {
        for active in self.requests.values_mut() {
            let forced = matches!(
                active.request.operation,
                Operation::Write { fua: true } | Operation::WriteZeroes { fua: true }
            );
            if !forced && active.runs.iter().any(|run| run.slot == slot) {
                active.forgotten.push(slot);
            }
        }
    }

    /// A change counts no more, and is answered.
    fn unlock(&mut self, id: RequestId) {
        let Some(active) = self.requests.get(&id) else { return };
        let (offset, runs, forgotten) = (active.request.offset, active.runs.clone(), active.forgotten.clone());
        // From its reply on, the application counts on the next flush for it.
        for slot in forgotten {
            let target = self.slots[slot as usize].active;
            if let Some(member) = self.member(target) {
                member.owed = true;
            }
        }
        self.locks.remove(&offset);
        self.unlocked = true;
        for run in &runs {
            let regions = &mut self.slots[run.slot as usize].regions;
            for region in self.geometry.regions_of(run) {
                if let Some(count) = regions.get_mut(&region) {
                    *count -= 1;
                    if *count == 0 {
                        regions.remove(&region);
                    }
                }
            }
        }
        self.reply(id);
    }
}
