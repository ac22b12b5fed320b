//! From nothing to an array: all members are rented, attached and formatted at the same time.

use surgetank_cache::Epoch;
use surgetank_model::volume::{Tags, tag};
use surgetank_policy::Step;

use super::{Array, Ask, Doing, Ended, Goal, Place};
use crate::array::record::{Facts, Stage};
use crate::record::Slot;

impl Array {
    /// Begins to create it.
    ///
    /// # Errors
    /// There is one, or there was and its volumes are being deleted.
    pub fn create(&mut self, now: surgetank_model::Instant) -> Result<(), String> {
        self.now = self.now.max(now);
        let name = &self.config.name;
        match self.writes.facts.as_ref().map(|facts| facts.stage) {
            None if self.goal == Goal::Idle && self.writes.is_settled() => {}
            Some(Stage::Made) => {
                return Err(format!(
                    "there is an array {name} already: `surgetank array status {name}` shows it, and `surgetank array delete {name}` \
                     deletes it with its data"
                ));
            }
            _ => return Err(format!("the array {name} is being created or deleted: try again when that is done")),
        }
        self.trouble = None;
        self.goal = Goal::Creating;
        self.advance();
        Ok(())
    }

    pub(super) fn drawn(&mut self, random: [u8; 16]) {
        if self.goal == Goal::Creating && self.writes.facts.is_none() {
            let (array, stage) = (Epoch(random).to_string(), Stage::Creating);
            self.writes.facts = Some(Facts { array, stage, ..Facts::default() });
        }
    }

    pub(super) fn go_on_creating(&mut self) -> bool {
        if self.writes.facts.is_none() {
            self.ask(Ask::Draw);
            return false;
        }
        if !self.writes.is_settled() {
            if let Some(why) = self.writes.trouble() {
                let why = format!("the state directory cannot be written ({why}): make room there");
                self.creation_failed(why);
                return true;
            }
            return false;
        }
        if self.writes.facts.as_ref().is_some_and(|facts| facts.stage == Stage::Made) {
            self.goal = Goal::Idle;
            self.ended.push_back(Ended::Created(Ok(())));
            return true;
        }
        if self.places.is_empty() {
            (0..self.config.members).for_each(|slot| self.rent(place_of(slot), slot));
            return true;
        }
        let all = |doing| self.places.values().all(|place| place.doing == doing);
        let places: Vec<Slot> = self.places.keys().copied().collect();
        if all(Doing::Attached) {
            places.into_iter().for_each(|place| self.count(place, true));
            return true;
        }
        if all(Doing::Counted) {
            self.ask(Ask::Format(places));
        }
        false
    }

    /// Begins to rent a volume for a slot of the stripe.
    pub(super) fn rent(&mut self, place: Slot, slot: u32) {
        self.places.insert(place, Place { slot: Some(slot), doing: Doing::Creating });
        let array = self.writes.facts.as_ref().map(|facts| facts.array.clone()).unwrap_or_default();
        let tags = [(tag::ARRAY.to_owned(), array), (tag::SLOT.to_owned(), slot.to_string())];
        self.rentals.set_tags(place, Tags::from(tags));
        self.begin(place, Step::Create { size: self.config.member_size }, Some(self.config.timeouts.0));
    }

    pub(super) fn formatted(&mut self, places: &[Slot], result: Result<(), String>) {
        if self.goal != Goal::Creating {
            return;
        }
        match result {
            Ok(()) => {
                if let Some(facts) = &mut self.writes.facts {
                    facts.stage = Stage::Made;
                    facts.members = places.to_vec();
                }
                places.iter().for_each(|place| self.set(*place, Doing::Attached));
            }
            Err(why) => self.creation_failed(why),
        }
    }

    pub(super) fn creation_failed(&mut self, why: String) {
        self.ended.push_back(Ended::Created(Err(why.clone())));
        self.trouble = Some(why);
        self.delete_all();
    }
}

/// Where the first member of a slot is among the volumes.
fn place_of(slot: u32) -> Slot {
    Slot(u8::try_from(slot + 1).unwrap_or(u8::MAX))
}
