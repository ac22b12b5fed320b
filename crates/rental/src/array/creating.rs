//! From nothing to an array: all members are rented, attached and formatted at the same time.

use surgetank_cache::Epoch;
use surgetank_model::volume::{Tags, tag};
use surgetank_policy::{Refusal, Step};

use super::{Array, Ask, Doing, Ended, Goal, Place, refusal_text};
use crate::array::record::{Facts, Stage};
use crate::record::Slot;
use crate::rental::Notice;

/// How often the provider may fail to make a volume for one slot, or have too many requests, until the array is not created.
const ATTEMPTS_MAX: u32 = 4;

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
            self.trouble = None;
            self.attempts.clear();
            self.ended.push_back(Ended::Created(Ok(())));
            return true;
        }
        if self.begin_due() {
            return true;
        }
        let all = |is: fn(Doing) -> bool| self.places.values().all(|place| is(place.doing));
        let places: Vec<Slot> = self.places.keys().copied().collect();
        if places.len() < self.config.members as usize
            || !all(|doing| matches!(doing, Doing::Attached | Doing::Counting | Doing::Counted))
        {
            return false;
        }
        if all(|doing| doing == Doing::Counted) {
            self.ask(Ask::Format(places));
            return false;
        }
        let is_attached = |place: &Slot| self.places[place].doing == Doing::Attached;
        let attached: Vec<Slot> = places.into_iter().filter(is_attached).collect();
        attached.iter().for_each(|place| self.count(*place, true));
        !attached.is_empty()
    }

    /// Rents the volumes that are missing, and attaches those for which the provider had too many requests, when it is time to.
    fn begin_due(&mut self) -> bool {
        let is_due = |slot: &u32| self.attempts.get(slot).is_none_or(|attempts| attempts.next <= self.now);
        let is_missing = |slot: &u32| {
            let place = place_of(*slot);
            !self.places.contains_key(&place) && self.rentals.is_free(place)
        };
        let missing: Vec<u32> = (0..self.config.members).filter(|slot| is_missing(slot) && is_due(slot)).collect();
        let waits = |place: &Place| matches!(place.doing, Doing::AttachLater(at) if at <= self.now);
        let later: Vec<Slot> = self.places.iter().filter(|(_, place)| waits(place)).map(|(place, _)| *place).collect();
        missing.iter().for_each(|slot| self.rent(place_of(*slot), *slot));
        later.iter().for_each(|place| self.attach(*place));
        !missing.is_empty() || !later.is_empty()
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

    /// A volume that the provider could not make is deleted, and another one rented after a pause; what it had too many requests for
    /// is asked again. If that is in vain, or anything else is refused, the array is not created.
    pub(super) fn creation_refused(&mut self, place: Slot, doing: Doing, refusal: &Refusal) {
        let why = refusal_text(refusal);
        let slot = self.places.get(&place).and_then(|place| place.slot);
        let (Refusal::Failed(_) | Refusal::Throttled { .. }, Some(slot)) = (refusal, slot) else {
            return self.creation_failed(why);
        };
        let attempts = self.attempts.entry(slot).or_default();
        attempts.failed += 1;
        if attempts.failed >= ATTEMPTS_MAX {
            return self.creation_failed(format!("{why}, the last of {ATTEMPTS_MAX} times for slot {slot}"));
        }
        attempts.next = self.now + self.config.backoff.wait(refusal, attempts.failed, &mut self.random);
        let next = attempts.next;
        let name = &self.config.name;
        let notice = format!("the array {name} is not created yet: {why}; another try for slot {slot} follows");
        self.notices.push_back(Notice::Warning(notice));
        self.trouble = Some(why);
        match (doing, refusal) {
            (Doing::Attaching | Doing::Counting, Refusal::Throttled { .. }) => {
                self.set(place, Doing::AttachLater(next))
            }
            _ => self.discard(place),
        }
    }

    pub(super) fn creation_failed(&mut self, why: String) {
        self.ended.push_back(Ended::Created(Err(why.clone())));
        self.trouble = Some(why);
        self.attempts.clear();
        self.delete_all();
    }
}

/// Where the first member of a slot is among the volumes.
fn place_of(slot: u32) -> Slot {
    Slot(u8::try_from(slot + 1).unwrap_or(u8::MAX))
}
