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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use surgetank_model::volume::{Change, ProviderError, Transition, VolumeDescription, VolumeId, VolumeState};
    use surgetank_model::{Bytes, Instant};
    use surgetank_policy::backoff::Backoff;

    use super::*;
    use crate::array::{Answer, Config};
    use crate::ask::{self as of_rental, Call, Opened, VolumeAsk};

    /// A provider that cannot make the first volumes, and throttles the first calls to attach one.
    #[derive(Default)]
    struct Fake {
        cannot_make: u64,
        throttles: u64,
        made: u64,
        drawn: u8,
        volumes: BTreeMap<VolumeId, VolumeState>,
    }

    impl Fake {
        fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
            let state = *self.volumes.get(id).ok_or_else(|| ProviderError::NotFound(id.clone()))?;
            Ok(VolumeDescription { id: id.clone(), ..crate::rented::described(state, Tags::new()) })
        }

        fn call(&mut self, call: Call) -> of_rental::Answer {
            match call {
                Call::Create(_) => {
                    self.made += 1;
                    let id = VolumeId(format!("vol-{}", self.made));
                    let state =
                        if self.made <= self.cannot_make { VolumeState::Failed } else { VolumeState::Available };
                    self.volumes.insert(id.clone(), state);
                    of_rental::Answer::Described(self.describe(&id))
                }
                Call::Describe(id) => of_rental::Answer::Described(self.describe(&id)),
                Call::ChangeState(_, Transition::Attach) if self.throttles > 0 => {
                    self.throttles -= 1;
                    let after = Some(Duration::from_secs(30));
                    call.failed(ProviderError::Throttled { after, text: "slower".to_owned() })
                }
                Call::ChangeState(id, transition) => {
                    let changed = transition.decide(&id, self.volumes.get(&id).copied());
                    match (transition, &changed) {
                        (Transition::Attach, Ok(Change::Changed)) => _ = self.volumes.insert(id, VolumeState::Attached),
                        (Transition::Detach, Ok(Change::Changed)) => {
                            _ = self.volumes.insert(id, VolumeState::Available)
                        }
                        (Transition::Delete, Ok(Change::Changed)) => _ = self.volumes.remove(&id),
                        _ => {}
                    }
                    of_rental::Answer::Changed(changed)
                }
                Call::SetTag { .. } => of_rental::Answer::Changed(Ok(Change::Changed)),
                Call::List { .. } => of_rental::Answer::Listed(Ok(Vec::new())),
                Call::Grow(..) => panic!("a member grows"),
            }
        }

        fn answer(&mut self, ask: Ask) -> Answer {
            use of_rental::{Answer as Answered, Ask as Asked};

            match ask {
                Ask::Persist(_) => Answer::Persisted(Ok(())),
                Ask::Draw => Answer::Drawn([1; 16]),
                Ask::Format(_) => Answer::Formatted(Ok(())),
                Ask::Rental(Asked::Draw) => {
                    self.drawn += 1;
                    Answer::Rental(Answered::Drawn { random: [self.drawn; 16], unix_ms: 1 })
                }
                Ask::Rental(Asked::Provider(call)) => Answer::Rental(self.call(call)),
                Ask::Rental(Asked::Volume(VolumeAsk::Identities)) => {
                    Answer::Rental(Answered::Identities(Some(Vec::new())))
                }
                Ask::Rental(Asked::Volume(VolumeAsk::Open { .. })) => {
                    Answer::Rental(Answered::Opened(Ok(Opened::Open)))
                }
                Ask::Rental(Asked::Engine(_)) => Answer::Rental(Answered::Began(Ok(()))),
                ask => panic!("{ask:?}"),
            }
        }
    }

    /// Creates an array of three until that has ended and nothing is left to do: the answer, when it came, and what is rented.
    fn create(fake: &mut Fake) -> (Result<(), String>, Duration, Vec<VolumeState>) {
        let config = Config {
            name: "scratch".to_owned(),
            owner_id: "us".to_owned(),
            volume_type: "fast".to_owned(),
            members: 3,
            member_size: Bytes::from_gib(1),
            hold: Duration::ZERO,
            replaced_at_once: 1,
            timeouts: (Duration::from_secs(60), Duration::from_secs(60)),
            open_patience: Duration::from_secs(60),
            backoff: Backoff::default(),
            unix_ms_at_zero: 0,
            lag: surgetank_model::Lag::NONE,
            seed: 1,
        };
        let (mut array, mut now, mut created) = (Array::new(config, Instant::ZERO, None), Instant::ZERO, None);
        array.create(now).expect("there is none");
        loop {
            while let Some((id, ask)) = array.next_ask() {
                let answer = fake.answer(ask);
                array.complete(now, id, answer);
            }
            while let Some(ended) = array.next_ended() {
                if let Ended::Created(result) = ended {
                    created = Some((result, now.since(Instant::ZERO)));
                }
            }
            match array.next_deadline() {
                Some(at) => now = now.max(at),
                None => break,
            }
            array.tick(now);
        }
        let (result, after) = created.expect("it ends");
        (result, after, fake.volumes.values().copied().collect())
    }

    #[test]
    fn another_member_is_rented_for_one_that_could_not_be_made() {
        let mut fake = Fake { cannot_make: 2, ..Fake::default() };
        let (result, _, rented) = create(&mut fake);
        assert_eq!((result, rented), (Ok(()), vec![VolumeState::Attached; 3]));
        assert_eq!(fake.made, 5);
    }

    #[test]
    fn an_array_of_which_no_member_can_be_made_is_not_created_and_nothing_is_left() {
        let mut fake = Fake { cannot_make: u64::MAX, ..Fake::default() };
        let (result, _, rented) = create(&mut fake);
        assert!(result.is_err_and(|why| why.contains("has failed") && why.contains("the last of 4 times")));
        assert_eq!(rented, []);
        assert!(fake.made <= 3 * 4, "{} volumes", fake.made);
    }

    #[test]
    fn members_for_which_there_were_too_many_requests_are_attached_later() {
        let mut fake = Fake { throttles: 3, ..Fake::default() };
        let (result, after, rented) = create(&mut fake);
        assert_eq!((result, rented), (Ok(()), vec![VolumeState::Attached; 3]));
        assert!(fake.made == 3 && after >= Duration::from_secs(30), "{} volumes, {after:?}", fake.made);
    }
}
