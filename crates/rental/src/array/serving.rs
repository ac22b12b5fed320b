//! Members are attached and opened, and replaced while the array is served.

use surgetank_model::Instant;
use surgetank_model::volume::VolumeId;
use surgetank_policy::Refusal;

use super::{Array, Ask, Doing, Ended, Event, Found, Goal, Place, refusal_text};
use crate::array::record::{Held, Stage, Wanted};
use crate::planted::{Bug, planted};
use crate::record::Slot;
use crate::rental::Notice;

impl Array {
    /// Begins to open it: attaches what may count, and has it assembled and served.
    ///
    /// # Errors
    /// There is none, or it is in use or on its way.
    pub fn open(&mut self, now: Instant) -> Result<(), String> {
        self.now = self.now.max(now);
        let name = &self.config.name;
        match (self.writes.facts.as_ref().map(|facts| facts.stage), &self.goal) {
            (Some(Stage::Made), Goal::Idle) => {}
            (None, Goal::Idle) => {
                return Err(format!(
                    "there is no array {name} yet: `surgetank array create {name}` makes it, and `surgetank array assemble {name}` \
                     finds its volumes if it was made elsewhere"
                ));
            }
            (Some(Stage::Made), Goal::Opening(_) | Goal::Serving) => return Err(format!("the array {name} is in use")),
            _ => return Err(format!("the array {name} is being created or deleted: try again when that is done")),
        }
        self.trouble = None;
        self.goal = Goal::Opening(self.now);
        let waits = |place: &&Place| matches!(place.doing, Doing::Known | Doing::Attached);
        let places: Vec<Slot> = self.places.iter().filter(|(_, place)| waits(place)).map(|(place, _)| *place).collect();
        places.into_iter().for_each(|place| self.attach(place));
        self.advance();
        Ok(())
    }

    pub(super) fn go_on_opening(&mut self, since: Instant) -> bool {
        let late = since + self.config.patience() <= self.now;
        let under_way: Vec<(Slot, Doing)> = self
            .places
            .iter()
            .filter(|(_, place)| matches!(place.doing, Doing::Attaching | Doing::AttachLater(_)))
            .map(|(place, what)| (*place, what.doing))
            .collect();
        if let Some((place, _)) =
            under_way.iter().find(|(_, doing)| matches!(doing, Doing::AttachLater(at) if *at <= self.now && !late))
        {
            self.attach(*place);
            return true;
        }
        if !late && !under_way.is_empty() || self.awaited.is_some() || !self.writes.is_settled() {
            return false;
        }
        let attached: Vec<Slot> =
            self.places.iter().filter(|(_, place)| place.doing == Doing::Attached).map(|(place, _)| *place).collect();
        let members = self.writes.facts.as_ref().map(|facts| facts.members.clone()).unwrap_or_default();
        // One that was replaced, and is the only one to be reached, would take itself for a member. Of an array of one no other
        // member knows better, so all that may count must be there.
        let all: Vec<Slot> = if members.len() == 1 { self.may_count() } else { members.clone() };
        let missing = all.iter().find(|place| !attached.contains(place)).filter(|_| !planted(Bug::OldestServes));
        if let Some(place) = missing {
            let volume = self.rentals.rental(*place).and_then(|rental| rental.record()?.volume.clone());
            let volume = volume.map_or_else(|| "without a name".to_owned(), |id| id.0);
            let why = self.trouble.clone().unwrap_or_else(|| "the provider took too long".to_owned());
            let slot = members.iter().position(|member| member == place).unwrap_or_default();
            self.not_opened(format!(
                "the member of slot {slot} of array {} is missing (volume {volume}): {why}; have it attached, and start the device again",
                self.config.name
            ));
            return true;
        }
        self.ask(Ask::Serve(attached));
        false
    }

    /// Volumes of which the record does not say that nothing on them counts.
    fn may_count(&self) -> Vec<Slot> {
        self.rentals.records().filter(|record| !record.disposable).map(|record| record.slot).collect()
    }

    fn not_opened(&mut self, why: String) {
        self.goal = Goal::Idle;
        for place in self.places.values_mut() {
            if matches!(place.doing, Doing::Attaching | Doing::AttachLater(_) | Doing::Attached) {
                place.doing = Doing::Known;
            }
        }
        self.trouble = Some(why.clone());
        self.ended.push_back(Ended::Opened(Err(why)));
    }

    pub(super) fn served(&mut self, result: Result<Found, String>) {
        let found = match result {
            Ok(found) => found,
            Err(why) => return self.not_opened(why),
        };
        self.goal = Goal::Serving;
        self.trouble = None;
        for (slot, place) in (0..).zip(&found.active) {
            self.places.insert(*place, Place { slot: Some(slot), doing: Doing::Active });
        }
        for (slot, place) in &found.joining {
            self.places.insert(*place, Place { slot: Some(*slot), doing: Doing::Joining });
        }
        found.superseded.iter().for_each(|place| self.set(*place, Doing::Leaving));
        let others: Vec<(Slot, Doing)> = self.places.iter().map(|(place, what)| (*place, what.doing)).collect();
        for (place, doing) in others {
            match doing {
                // It was seen, or not, and counts no more: a member of the present list would be missing, and every change of the
                // list is known to one of the recorded members, which are all here.
                Doing::Attached | Doing::Attaching | Doing::AttachLater(_) => {
                    self.set(place, Doing::Retire(self.now));
                }
                _ => {}
            }
        }
        let joining: Vec<Wanted> =
            found.joining.iter().filter_map(|(slot, _)| self.wanted(*slot, &found.active)).collect();
        let volumes: Vec<Option<VolumeId>> = found.active.iter().map(|place| self.volume(*place)).collect();
        if let Some(facts) = &mut self.writes.facts {
            facts.members = found.active;
            // A slot that has another member by now was replaced; the record did not learn of it.
            let is_there = |wanted: &Wanted| {
                volumes.get(wanted.slot as usize).is_some_and(|id| id.as_ref() == Some(&wanted.instead_of))
            };
            facts.wanted.retain(is_there);
            for wanted in joining {
                if !facts.wanted.iter().any(|other| other.slot == wanted.slot) {
                    facts.wanted.push(wanted);
                }
            }
        }
        self.ended.push_back(Ended::Opened(Ok(())));
    }

    fn wanted(&self, slot: u32, members: &[Slot]) -> Option<Wanted> {
        let instead_of = self.volume(*members.get(slot as usize)?)?;
        Some(Wanted { slot, instead_of })
    }

    /// The members of these slots are to be replaced, one after the other or as many at once as the configuration says; also after
    /// a crash, until it is done. Those that are being replaced already are not replaced twice.
    ///
    /// # Errors
    /// The array is not served, or has no such slot.
    pub fn replace(&mut self, now: Instant, slots: &[u32]) -> Result<(), String> {
        self.now = self.now.max(now);
        let name = &self.config.name;
        if self.goal != Goal::Serving {
            return Err(format!(
                "no device serves the array {name}, and members are replaced while one does: start the device over it first"
            ));
        }
        let members = self.writes.facts.as_ref().map(|facts| facts.members.clone()).unwrap_or_default();
        if let Some(slot) = slots.iter().find(|slot| **slot as usize >= members.len()) {
            return Err(format!(
                "the array {name} has no slot {slot}: its slots are 0 to {}",
                members.len().saturating_sub(1)
            ));
        }
        let wanted: Vec<Wanted> = slots.iter().filter_map(|slot| self.wanted(*slot, &members)).collect();
        if let Some(facts) = &mut self.writes.facts {
            for wanted in wanted {
                if !facts.wanted.iter().any(|other| other.slot == wanted.slot) {
                    facts.wanted.push(wanted);
                }
            }
        }
        // Somebody asked: what was refused before is tried now.
        for slot in slots {
            self.attempts.remove(slot);
        }
        self.advance();
        Ok(())
    }

    /// So many members are replaced at the same time from now on, at most; at least one.
    pub fn set_replaced_at_once(&mut self, count: u32) {
        self.config.replaced_at_once = count.max(1);
    }

    /// What was wanted of a slot is wanted no more, until somebody asks again. A replacement that has a volume goes on.
    pub fn forget(&mut self, now: Instant, slot: u32) {
        self.now = self.now.max(now);
        if let Some(facts) = &mut self.writes.facts {
            facts.wanted.retain(|wanted| wanted.slot != slot);
            if facts.wanted.is_empty() {
                self.trouble = None;
            }
        }
        self.attempts.remove(&slot);
        self.advance();
    }

    pub(super) fn go_on_serving(&mut self) -> bool {
        let counted: Vec<(Slot, u32)> = self
            .places
            .iter()
            .filter(|(_, place)| place.doing == Doing::Counted)
            .filter_map(|(place, what)| Some((*place, what.slot?)))
            .collect();
        for (place, slot) in &counted {
            self.set(*place, Doing::Asked);
            let id = self.new_ask();
            self.joining.insert(id, *place);
            self.asks.push_back((id, Ask::Join { place: *place, slot: *slot }));
        }
        !counted.is_empty() || self.begin_replacement()
    }

    /// Rents the next volume, if there may be another one beside the members.
    fn begin_replacement(&mut self) -> bool {
        let beside = self.places.values().filter(|place| !matches!(place.doing, Doing::Active | Doing::Held)).count();
        let (Some(facts), true) = (&self.writes.facts, self.writes.is_settled()) else { return false };
        if beside >= self.config.replaced_at_once as usize {
            return false;
        }
        let is_busy = |slot| {
            let of_slot =
                |place: &&Place| place.slot == Some(slot) && place.doing != Doing::Active && place.doing != Doing::Held;
            self.places.values().find(of_slot).is_some()
        };
        let is_due = |slot: &u32| self.attempts.get(slot).is_none_or(|attempts| attempts.next <= self.now);
        let next = facts.wanted.iter().map(|wanted| wanted.slot).find(|slot| is_due(slot) && !is_busy(*slot));
        let free =
            (1..=u8::MAX).map(Slot).find(|place| !self.places.contains_key(place) && self.rentals.is_free(*place));
        let (Some(slot), Some(place)) = (next, free) else { return false };
        self.rent(place, slot);
        true
    }

    pub(super) fn joined(&mut self, place: Slot, result: Result<(), String>) {
        match result {
            Ok(()) => {
                // The array may have said more of it by now.
                if self.places.get(&place).is_some_and(|place| place.doing == Doing::Asked) {
                    self.set(place, Doing::Joining);
                }
            }
            Err(why) => self.replacement_failed(place, Doing::Asked, Refusal::Transient(why)),
        }
    }

    /// The new volume of a slot is not to be had, or not to be used: it is deleted, and another one rented later.
    pub(super) fn replacement_failed(&mut self, place: Slot, doing: Doing, refusal: Refusal) {
        let slot = self.places.get(&place).and_then(|place| place.slot);
        if matches!(doing, Doing::Creating | Doing::Attaching) {
            self.discard(place);
        } else {
            self.set(place, Doing::Retire(self.now));
        }
        if let Some(slot) = slot {
            self.try_later(slot, refusal);
        }
    }

    fn try_later(&mut self, slot: u32, refusal: Refusal) {
        let why = refusal_text(&refusal);
        let attempts = self.attempts.entry(slot).or_default();
        attempts.failed += 1;
        attempts.next = self.now + self.config.backoff.wait_until_done(&refusal, attempts.failed, &mut self.random);
        let name = &self.config.name;
        let notice = format!(
            "the member of slot {slot} of array {name} is not replaced yet: {why}; it serves on, and another try follows"
        );
        self.notices.push_back(Notice::Warning(notice));
        self.trouble = Some(why);
        self.ended.push_back(Ended::NotReplaced { slot, refusal });
    }

    /// Takes what the array says that is served.
    pub fn event(&mut self, now: Instant, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Replaced { slot, place } => self.replaced(slot, place),
            Event::Dropped { slot } => {
                let of_slot = |place: &&mut Place| {
                    place.slot == Some(slot) && matches!(place.doing, Doing::Joining | Doing::Asked)
                };
                if let Some(place) = self.places.values_mut().find(of_slot) {
                    place.doing = Doing::Leaving;
                }
                self.try_later(slot, Refusal::Transient("the new volume failed".to_owned()));
            }
            Event::Released(place) => match self.places.get(&place).map(|place| place.doing) {
                Some(Doing::Active) => {
                    let notice = format!("the array has released its member in {place:?}, which counts");
                    self.notices.push_back(Notice::Error(notice));
                }
                Some(_) => self.set(place, Doing::Retire(self.now)),
                None => {}
            },
        }
        self.advance();
    }

    fn replaced(&mut self, slot: u32, place: Slot) {
        let until_unix_ms =
            self.unix_ms().saturating_add(u64::try_from(self.config.hold.as_millis()).unwrap_or(u64::MAX));
        let holds = !self.config.hold.is_zero();
        let Some(facts) = &mut self.writes.facts else { return };
        let Some(member) = facts.members.get_mut(slot as usize) else { return };
        let old = std::mem::replace(member, place);
        facts.wanted.retain(|wanted| wanted.slot != slot);
        if holds {
            facts.held.push(Held { place: old, until_unix_ms });
        }
        self.attempts.remove(&slot);
        self.set(place, Doing::Active);
        self.set(old, Doing::Leaving);
        self.trouble = None;
        self.ended.push_back(Ended::Replaced(slot));
    }

    /// The device over it has ended: nothing is asked of its volumes any more, which stay attached.
    pub fn closed(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if matches!(self.goal, Goal::Serving | Goal::Opening(_)) {
            self.goal = Goal::Idle;
            for place in self.places.values_mut() {
                if matches!(place.doing, Doing::Active | Doing::Joining | Doing::Leaving | Doing::Asked) {
                    place.doing = Doing::Known;
                }
            }
        }
        self.advance();
    }
}
