//! Members are opened: what they say is made durable, and the generation of this start is put on them, before anything is
//! served.

use super::member::{Member, Record, Role, Stage};
use super::{Engine, Pending, RETRY_AFTER, SESSION, Transition};
use crate::bitmap::Bitmap;
use crate::effect::{Effect, IoFailure, Target};
use crate::format::{Kind, Pages};

/// The sequences of pages that a start writes begin at a multiple of this.
const PAGES_OF_START: u64 = 1 << 40;

impl Engine {
    /// Begins to open a member.
    pub(super) fn open(&mut self, target: Target) {
        let (offset, length) = (self.geometry.bitmap_offset(), self.geometry.bitmap_length());
        let Some(member) = self.member(target) else { return };
        member.retry_at = None;
        if member.role == Role::Superseded {
            member.stage = Stage::Record(1);
            member.record_wanted = true;
            return;
        }
        member.stage = Stage::Load;
        member.port.started(length);
        self.emit(Pending::Bitmap(target), |id| Effect::LoadBitmap { id, target, offset, length });
    }

    /// A bitmap that cannot be read says nothing: every region counts as written, or as not copied.
    pub(super) fn bitmap_loaded(&mut self, target: Target, read: Result<Pages, IoFailure>) {
        let (array, pages, length) = (self.array, self.geometry.bitmap_pages, self.geometry.bitmap_length());
        let floor = self.session / SESSION * PAGES_OF_START;
        let Some(member) = self.member(target) else { return };
        member.port.ended(length);
        if member.role == Role::Leaving {
            return;
        }
        let read = match read {
            Ok(read) => read,
            Err(IoFailure::Io | IoFailure::Corrupt) => Pages::default(),
            Err(IoFailure::Gone | IoFailure::NoSpace | IoFailure::Unsupported) => return self.opening_failed(target),
        };
        let kind = if member.role == Role::Joining { Kind::Copied } else { Kind::Written };
        // Above all that earlier starts wrote, and earlier attempts of this one.
        let floor = member.bitmap.as_ref().map_or(0, Bitmap::last_sequence).max(floor);
        member.bitmap = Some(Bitmap::read(array, member.id, kind, pages, (&read, floor)));
        member.stage = Stage::Pages;
    }

    /// A page was written again.
    pub(super) fn opening_page(&mut self, target: Target, durable: bool) {
        if !durable {
            return self.opening_failed(target);
        }
        let Some(member) = self.member(target) else { return };
        if member.bitmap.as_ref().is_some_and(Bitmap::is_written) {
            // A blank volume gets both superblocks: whatever was there counts no more.
            member.stage = Stage::Record(if member.sequence == 0 || member.confirms.is_some() { 2 } else { 1 });
            member.record_wanted = true;
        }
    }

    pub(super) fn opening_recorded(&mut self, target: Target, success: bool) {
        if !success {
            return self.opening_failed(target);
        }
        let Some(member) = self.member(target) else { return };
        match member.stage {
            Stage::Record(left) if left > 1 => {
                member.stage = Stage::Record(left - 1);
                member.record_wanted = true;
            }
            _ => {
                member.stage = Stage::Ready;
                self.opening_ended(target);
            }
        }
    }

    fn opening_failed(&mut self, target: Target) {
        let retry_at = self.now + RETRY_AFTER;
        let Some(member) = self.member(target) else { return };
        member.stage = Stage::Failed;
        member.record_wanted = false;
        if member.role == Role::Active {
            member.retry_at = Some(retry_at);
        }
        self.opening_ended(target);
    }

    fn opening_ended(&mut self, target: Target) {
        let member = &self.members[&target];
        let (role, slot, ready) = (member.role, member.slot, member.is_ready());
        match role {
            Role::Joining if !ready => self.drop_join(slot),
            Role::Joining => self.begin_copy(slot),
            // One that is being replaced leaves when that has ended.
            Role::Superseded if self.slots[slot as usize].active != target => self.leave(target),
            Role::Active | Role::Superseded | Role::Leaving => {}
        }
        self.opened |= self.members.values().all(|member| self.has_stopped(member));
        self.update_serving();
    }

    /// Whether the opening of a member has ended, or waits for one that has failed.
    fn has_stopped(&self, member: &Member) -> bool {
        match member.stage {
            Stage::Ready | Stage::Failed => true,
            Stage::Record(_) => member.record == Record::Idle && !self.may_be_told(member.target),
            Stage::Load | Stage::Pages => false,
        }
    }

    /// A slot is served once its member is open and another one names the generation of this start: should the member
    /// vanish, one that it replaced no longer counts.
    pub(super) fn update_serving(&mut self) {
        self.retry_waiting = true;
        for slot in &mut self.slots {
            let witness = |member: &Member| member.target != slot.active && member.recorded >= self.session;
            let witnessed = self.list.len() == 1 || slot.witnessed || self.members.values().any(witness);
            slot.witnessed = witnessed;
            slot.serves = witnessed && self.members.get(&slot.active).is_some_and(Member::is_ready);
        }
    }

    /// Members that could not be opened are tried again.
    pub(super) fn retry_opening(&mut self) {
        let now = self.now;
        let due = |member: &&Member| {
            let quiet = member.port.effects_in_flight == 0
                && !member.port.flushes.is_flushing()
                && member.record == Record::Idle;
            member.retry_at.is_some_and(|at| at <= now) && member.stage == Stage::Failed && quiet
        };
        let targets: Vec<Target> = self.members.values().filter(due).map(|member| member.target).collect();
        for target in targets {
            // While a change of the membership tells members, nobody else is told anything.
            if self.transition.as_ref().is_none_or(Transition::is_paused) {
                self.open(target);
            } else if let Some(member) = self.member(target) {
                member.retry_at = Some(now + RETRY_AFTER);
            }
        }
        // Whoever is not quiet yet is looked at again.
        for member in self.members.values_mut().filter(|member| member.retry_at.is_some_and(|at| at <= now)) {
            member.retry_at = Some(now + RETRY_AFTER);
        }
    }

    /// Nothing new is asked of a member.
    pub(super) fn leave(&mut self, target: Target) {
        if let Some(member) = self.member(target) {
            member.role = Role::Leaving;
            member.record_wanted = false;
            member.retry_at = None;
        }
    }
}
