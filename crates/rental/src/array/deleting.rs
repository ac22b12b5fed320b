//! The ends of volumes: one that counts no more, after its record says so; all of them.

use surgetank_policy::Step;

use super::{Array, Doing, Ended, Goal};
use crate::array::record::{Held, Stage};
use crate::planted::{Bug, planted};
use crate::record::{RentalStage, Slot};

impl Array {
    /// Begins to delete it, with all its data. One that is being created ends being created.
    ///
    /// # Errors
    /// There is none, or it is in use.
    pub fn delete(&mut self, now: surgetank_model::Instant) -> Result<(), String> {
        self.now = self.now.max(now);
        let name = &self.config.name;
        match self.goal {
            Goal::Creating => {
                self.creation_failed("its deletion was asked for meanwhile".to_owned());
                self.advance();
                return Ok(());
            }
            Goal::Idle if self.writes.facts.is_none() => return Err(format!("there is no array {name}")),
            Goal::Idle | Goal::Deleting => {}
            Goal::Opening(_) | Goal::Serving => {
                return Err(format!("a device uses the array {name}: stop that device first"));
            }
        }
        self.delete_all();
        self.advance();
        Ok(())
    }

    /// From now on no volume of the array counts, as soon as the record says that it is being deleted.
    pub(super) fn delete_all(&mut self) {
        self.goal = Goal::Deleting;
        if let Some(facts) = &mut self.writes.facts {
            facts.stage = Stage::Deleting;
            facts.members.clear();
            facts.wanted.clear();
            facts.held.clear();
        }
        for place in self.places.values_mut().filter(|place| place.doing != Doing::Discarding) {
            place.doing = Doing::Retire(self.now);
        }
    }

    pub(super) fn go_on_deleting(&mut self) -> bool {
        if !self.places.is_empty() {
            return false;
        }
        let moved = self.writes.facts.take().is_some();
        if !moved && self.writes.is_settled() {
            self.goal = Goal::Idle;
            self.ended.push_back(Ended::Deleted);
            return true;
        }
        moved
    }

    /// What counts no more goes on to its end.
    pub(super) fn go_on_retiring(&mut self) -> bool {
        let before = self.places.len();
        let rentals = &self.rentals;
        self.places.retain(|place, what| what.doing != Doing::Discarding || !rentals.is_free(*place));
        let mut moved = before > self.places.len();
        // Who else counts is durable first.
        let settled = self.writes.is_settled() || planted(Bug::RetiredBeforeRecorded);
        let places: Vec<Slot> = self.places.keys().copied().collect();
        for place in places {
            let Some(doing) = self.places.get(&place).map(|place| place.doing) else { continue };
            match doing {
                Doing::Retire(at) if at <= self.now && settled => self.retire(place),
                Doing::Held
                    if self.is_held_until().is_none_or(|until| !until.iter().any(|held| held.place == place)) =>
                {
                    self.discard(place);
                }
                _ => continue,
            }
            moved = true;
        }
        let now_ms = self.unix_ms();
        if let Some(facts) =
            self.writes.facts.as_mut().filter(|facts| facts.held.iter().any(|held| held.until_unix_ms <= now_ms))
        {
            facts.held.retain(|held| held.until_unix_ms > now_ms);
            moved = true;
        }
        moved
    }

    fn is_held_until(&self) -> Option<&[Held]> {
        self.writes.facts.as_ref().map(|facts| &*facts.held)
    }

    fn retire(&mut self, place: Slot) {
        let rental = self.rentals.rental(place);
        match rental.and_then(crate::Rental::record) {
            // A write that failed may be durable nevertheless, so that of one that was about to count is written again.
            Some(record) if record.stage != RentalStage::Released || !record.disposable => self.count(place, false),
            Some(_) => self.retired(place),
            None => self.discard(place),
        }
    }

    /// That it counts no more is durable.
    pub(super) fn retired(&mut self, place: Slot) {
        let held = self.is_held_until().is_some_and(|held| held.iter().any(|held| held.place == place));
        if held {
            self.set(place, Doing::Detaching);
            self.begin(place, Step::Detach, Some(self.config.timeouts.1));
        } else {
            self.discard(place);
        }
    }
}
