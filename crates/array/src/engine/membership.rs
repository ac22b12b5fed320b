//! Changes of the membership, one after the other.
//!
//! *Commit*: changes of the slot wait; the joining member's bitmap becomes that of an active one; everything on it is flushed;
//! its superblock says that it is active, durably; then all others name it, and the old one says that it is retired.
//! *Drop*: a new generation without the joining member is recorded, so that it cannot go on later from where it was.
//! *Grow*: a new generation with more data on each member.
//!
//! A change holds once it is durable on a member that is there at every start to come: see [`crate::assembly`]. So a commit
//! needs the joining member itself and one more that knows; if the first cannot be written, the old member gets a
//! generation that is newer still.

use std::collections::BTreeSet;

use surgetank_model::Instant;

use super::change::Hold;
use super::member::{Member, Record, Role, Stage};
use super::{Engine, Event, RETRY_AFTER};
use crate::bitmap::Bitmap;
use crate::effect::Target;
#[cfg(debug_assertions)]
use crate::format::Kind;
use crate::geometry::Geometry;
use crate::planted::{Bug, planted};

/// Why the membership changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The joining member of this slot becomes active.
    Commit(u32),
    /// The joining member of this slot is dropped.
    Drop(u32),
    /// The array has this division.
    Grow(Geometry),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Changes in flight end.
    Drain,
    /// The bitmap is written, and everything with it is flushed.
    Pages,
    /// The joining member is told that it is active.
    Activate,
    /// Everybody else is told.
    Spread,
    /// Nobody could be told: it is tried again.
    Pause,
}

/// A change of the membership.
#[derive(Debug)]
pub(super) struct Transition {
    pub purpose: Purpose,
    pub phase: Phase,
    /// Members whose superblocks are awaited.
    pub waiting: BTreeSet<Target>,
    /// Members that know, and will be there at every start to come.
    witnesses: u32,
    pub retry_at: Option<Instant>,
}

impl Transition {
    /// Whether nobody could be told, and it will be tried again.
    pub fn is_paused(&self) -> bool {
        self.phase == Phase::Pause
    }

    /// Whether members have been told that the joining member of this slot is active.
    pub fn is_told(&self, slot: u32) -> bool {
        self.purpose == Purpose::Commit(slot) && !matches!(self.phase, Phase::Drain | Phase::Pages)
    }
}

impl Purpose {
    pub const fn slot(self) -> Option<u32> {
        match self {
            Self::Commit(slot) | Self::Drop(slot) => Some(slot),
            Self::Grow(_) => None,
        }
    }
}

impl Engine {
    /// Whether this member is being made active.
    pub(super) fn is_committing(&self, target: Target) -> bool {
        let Some(Transition { purpose: Purpose::Commit(slot), .. }) = self.transition else { return false };
        self.slots[slot as usize].join.as_ref().is_some_and(|join| join.target == target)
    }

    /// Goes on with a change of the membership, and with the next one.
    pub(super) fn advance_transition(&mut self) {
        loop {
            let before = self.transition.as_ref().map(|transition| (transition.purpose, transition.phase));
            self.step_transition();
            if before == self.transition.as_ref().map(|transition| (transition.purpose, transition.phase)) {
                return;
            }
        }
    }

    fn step_transition(&mut self) {
        let Some(transition) = &self.transition else { return self.begin_transition() };
        let (purpose, phase, retry_at) = (transition.purpose, transition.phase, transition.retry_at);
        match (purpose, phase) {
            (Purpose::Commit(slot), Phase::Drain | Phase::Pages) if self.slots[slot as usize].dropping => {
                self.end_commit(slot);
            }
            // A change that is to end first may wait for what is to be dropped.
            (Purpose::Commit(slot), Phase::Drain) if !self.transitions.is_empty() => {
                self.transition = None;
                self.slots[slot as usize].hold = Hold::No;
            }
            (Purpose::Commit(slot), Phase::Drain) => self.drained(slot),
            (Purpose::Commit(slot), Phase::Pages) => self.pages_written(slot),
            (_, Phase::Pause) if retry_at.is_some_and(|at| at <= self.now) => self.spread(),
            (_, Phase::Drain | Phase::Pages | Phase::Activate | Phase::Spread | Phase::Pause) => {}
        }
    }

    fn begin_transition(&mut self) {
        let complete = (0..self.slots.len() as u32).find(|slot| self.is_copied(*slot));
        if self.transitions.is_empty() && complete.is_none() {
            return;
        }
        let opens = |member: &Member| matches!(member.stage, Stage::Load | Stage::Pages | Stage::Record(_));
        if !self.opened || self.members.values().any(|member| opens(member) || member.record != Record::Idle) {
            return;
        }
        let Some(purpose) = self.transitions.pop_front().or(complete.map(Purpose::Commit)) else { return };
        let (waiting, witnesses, retry_at) = (BTreeSet::new(), 0, None);
        self.transition = Some(Transition { purpose, phase: Phase::Drain, waiting, witnesses, retry_at });
        if let Some(slot) = purpose.slot() {
            self.slots[slot as usize].hold = Hold::Wait;
        }
        match purpose {
            Purpose::Commit(_) => {}
            Purpose::Drop(_) | Purpose::Grow(_) => self.spread(),
        }
    }

    /// Nothing of the slot is in flight: what both members hold stays as it is.
    fn drained(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let Some(join) = place.join.as_ref() else { return };
        if !join.is_complete() {
            return self.end_commit(slot);
        }
        let (active, target) = (place.active, join.target);
        let writing = self.members.get(&target).and_then(|member| member.bitmap.as_ref());
        if place.changes > 0 || join.checkpoint.is_some() || writing.is_none_or(|b| b.writes_in_flight() > 0) {
            return;
        }
        let Some(mut bitmap) = self.member(target).and_then(|member| member.bitmap.take()) else { return };
        let mut ahead = BTreeSet::new();
        if let Some(member) = self.members.get(&active) {
            member.bitmap.iter().for_each(|of| bitmap.become_written(of));
            ahead.clone_from(&member.ahead);
        }
        if let Some(member) = self.member(target) {
            (member.bitmap, member.ahead) = (Some(bitmap), ahead);
        }
        self.set_phase(Phase::Pages);
    }

    /// The bitmap is durable, and with it everything that was written before it.
    fn pages_written(&mut self, slot: u32) {
        let Some(target) = self.slots[slot as usize].join.as_ref().map(|join| join.target) else { return };
        if !self.members.get(&target).and_then(|member| member.bitmap.as_ref()).is_some_and(Bitmap::is_written) {
            return;
        }
        self.generation += 1;
        if planted(Bug::RetiredFirst) {
            return self.spread_commit(slot, target);
        }
        self.list[slot as usize] = self.members[&target].id;
        if let Some(member) = self.member(target) {
            member.role = Role::Active;
        }
        self.set_phase(Phase::Activate);
        self.await_records([target].into());
    }

    fn set_phase(&mut self, phase: Phase) {
        if let Some(transition) = self.transition.as_mut() {
            transition.phase = phase;
        }
    }

    /// The superblocks of these members are written.
    fn await_records(&mut self, targets: BTreeSet<Target>) {
        for target in &targets {
            if let Some(member) = self.member(*target) {
                member.record_wanted = true;
            }
        }
        if let Some(transition) = self.transition.as_mut() {
            transition.waiting = targets;
        }
    }

    /// A superblock is durable, or failed.
    pub(super) fn transition_recorded(&mut self, target: Target, success: bool) {
        let role = self.members[&target].role;
        let Some(transition) = self.transition.as_mut() else { return };
        if !transition.waiting.remove(&target) {
            return;
        }
        match (transition.purpose, transition.phase) {
            (Purpose::Commit(slot), Phase::Activate) if success => self.spread_commit(slot, target),
            (Purpose::Commit(slot), Phase::Activate) => self.revert(slot, target),
            (_, Phase::Spread) => {
                // A joining member that does not know has missed this generation; it does not witness it.
                transition.witnesses += u32::from(success && role != Role::Joining);
                if transition.waiting.is_empty() {
                    self.spread_ended();
                }
            }
            (_, Phase::Drain | Phase::Pages | Phase::Activate | Phase::Pause) => {}
        }
    }

    /// The new member may say that it is active, or not: the old one counts, by a generation that is newer still.
    fn revert(&mut self, slot: u32, target: Target) {
        let active = self.slots[slot as usize].active;
        self.list[slot as usize] = self.members[&active].id;
        if let Some(member) = self.member(target) {
            member.role = Role::Leaving;
        }
        self.slots[slot as usize].dropping = true;
        if let Some(transition) = self.transition.as_mut() {
            transition.purpose = Purpose::Drop(slot);
        }
        self.spread();
    }

    /// The new member is active: everybody else is told, the old one among them.
    fn spread_commit(&mut self, slot: u32, by: Target) {
        let old = self.slots[slot as usize].active;
        if let Some(member) = self.member(old) {
            member.role = Role::Superseded;
        }
        if planted(Bug::SwitchedWithoutWitness) {
            return self.finish(Purpose::Commit(slot));
        }
        self.set_phase(Phase::Spread);
        let others = self.told().filter(|target| *target != by).collect();
        self.await_records(others);
        self.end_if_nobody();
    }

    /// A new generation is recorded on everybody.
    fn spread(&mut self) {
        let Some(transition) = self.transition.as_mut() else { return };
        let purpose = transition.purpose;
        (transition.phase, transition.witnesses, transition.retry_at) = (Phase::Spread, 0, None);
        match purpose {
            Purpose::Commit(_) => {}
            Purpose::Drop(slot) => {
                self.generation += 1;
                let target = self.slots[slot as usize].join.as_ref().map(|join| join.target);
                if let Some(target) = target {
                    self.leave(target);
                }
                if planted(Bug::DroppedWithoutGeneration) {
                    return self.finish(purpose);
                }
            }
            Purpose::Grow(geometry) => {
                self.generation += 1;
                self.geometry = geometry;
            }
        }
        let by = match purpose {
            Purpose::Commit(slot) => self.slots[slot as usize].join.as_ref().map(|join| join.target),
            Purpose::Drop(_) | Purpose::Grow(_) => None,
        };
        let everybody = self.told().filter(|target| Some(*target) != by).collect();
        self.await_records(everybody);
        self.end_if_nobody();
    }

    /// The members that a change of the membership is told to.
    fn told(&self) -> impl Iterator<Item = Target> + '_ {
        let told = |member: &&Member| member.role != Role::Leaving && member.is_ready();
        self.members.values().filter(told).map(|member| member.target)
    }

    fn end_if_nobody(&mut self) {
        if self.transition.as_ref().is_some_and(|transition| transition.waiting.is_empty()) {
            self.spread_ended();
        }
    }

    /// Everybody was told who could be.
    fn spread_ended(&mut self) {
        let Some(transition) = self.transition.as_ref() else { return };
        let (purpose, witnesses) = (transition.purpose, transition.witnesses);
        // The new member of an array of one slot is the only one that is there at every start to come.
        let alone = matches!(purpose, Purpose::Commit(_)) && self.slots.len() == 1;
        if witnesses > 0 || alone {
            return self.finish(purpose);
        }
        let retry_at = Some(self.now + RETRY_AFTER);
        if let Some(transition) = self.transition.as_mut() {
            (transition.phase, transition.retry_at) = (Phase::Pause, retry_at);
        }
        if let Some(slot) = purpose.slot() {
            self.slots[slot as usize].hold = Hold::Fail;
            self.retry_waiting = true;
        }
    }

    fn finish(&mut self, purpose: Purpose) {
        self.transition = None;
        self.retry_waiting = true;
        match purpose {
            Purpose::Commit(slot) => self.switch(slot),
            Purpose::Drop(slot) => {
                let place = &mut self.slots[slot as usize];
                (place.hold, place.dropping) = (Hold::No, false);
                if let Some(join) = place.join.take() {
                    self.events.push_back(Event::Dropped { slot, joining: join.target });
                }
                self.unpark(slot, false);
            }
            Purpose::Grow(_) => {
                self.size = self.geometry.size();
                self.events.push_back(Event::Grown { size: self.size });
            }
        }
        self.update_serving();
    }

    /// The new member is the slot's.
    fn switch(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let Some(join) = place.join.take() else { return };
        let old = std::mem::replace(&mut place.active, join.target);
        (place.hold, place.witnessed) = (Hold::No, true);
        let id = self.members[&join.target].id;
        self.list[slot as usize] = id;
        if let Some(member) = self.member(join.target) {
            member.role = Role::Active;
        }
        self.leave(old);
        self.events.push_back(Event::Replaced { slot, by: join.target });
        self.unpark(slot, true);
    }

    /// The copy is not complete after all, or the joining member is to be dropped.
    fn end_commit(&mut self, slot: u32) {
        self.transition = None;
        self.slots[slot as usize].hold = Hold::No;
        self.retry_waiting = true;
        self.unpark(slot, false);
    }

    /// Members of which nothing is in flight are released.
    pub(super) fn release_members(&mut self) {
        let idle = |member: &&Member| {
            let unread = !self.slots.iter().any(|slot| slot.join.as_ref().is_some_and(|j| j.target == member.target));
            let quiet = member.port.effects_in_flight == 0
                && !member.port.flushes.is_flushing()
                && member.record == Record::Idle;
            quiet && unread
        };
        let leaving = self.members.values().filter(|member| member.role == Role::Leaving);
        let targets: Vec<Target> = leaving.filter(idle).map(|member| member.target).collect();
        for target in targets {
            self.members.remove(&target);
            self.events.push_back(Event::Released(target));
        }
    }

    /// What the bits of a slot's members say, for checks.
    #[cfg(debug_assertions)]
    pub(super) fn kinds_are_right(&self) -> bool {
        let right = |member: &Member| {
            let Some(bitmap) = &member.bitmap else { return true };
            match member.role {
                Role::Active => bitmap.is_kind(Kind::Written),
                Role::Joining => {
                    let dropping = self.slots[member.slot as usize].dropping;
                    bitmap.is_kind(Kind::Copied) || dropping || self.is_committing(member.target)
                }
                Role::Superseded | Role::Leaving => true,
            }
        };
        self.members.values().all(right)
    }
}
