//! All volumes that one device rents at once, each in a slot of its own.
//!
//! The engine uses the volume in [`Slot::CACHE`]. Volumes in other slots are attached, and used by whoever asked for them;
//! after a restart nobody does, so they are detached and deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_cache::Event;
use surgetank_model::Instant;
use surgetank_model::volume::{Tags, VolumeId};
use surgetank_policy::backoff::throttled;
use surgetank_policy::{Step, StepId, StepOutcome};

use crate::ask::{Answer, Ask, AskId};
use crate::record::{RentalRecord, Slot};
use crate::rental::{Config, Ended, Notice, Rental};

/// First pause before a volume that could not be deleted is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub struct Rentals {
    config: Config,
    now: Instant,
    cache: Rental,
    others: BTreeMap<Slot, Other>,
}

#[derive(Clone, Debug)]
struct Other {
    rental: Rental,
    discarding: Option<Discarding>,
}

/// A volume that is detached and deleted, however often that fails.
#[derive(Clone, Copy, Debug)]
struct Discarding {
    /// `None`: after a pause.
    deletes: Option<bool>,
    pause: Duration,
    next: Instant,
}

impl Rentals {
    /// Goes on from the records that are durable. Volumes that are not in [`Slot::CACHE`] are discarded.
    #[must_use]
    pub fn new(config: Config, records: impl IntoIterator<Item = RentalRecord>) -> Self {
        let mut cache = Rental::new(config.clone(), Slot::CACHE, None);
        let mut others = BTreeMap::new();
        for record in records {
            let slot = record.slot;
            let rental = Rental::new(config.clone(), slot, Some(record));
            if slot == Slot::CACHE {
                cache = rental;
            } else {
                others.insert(slot, Other { rental, discarding: Some(Discarding::new(Instant::ZERO)) });
            }
        }
        Self { config, now: Instant::ZERO, cache, others }
    }

    /// The same for volumes that are members of an array, of which whoever asks decides what becomes.
    #[must_use]
    pub fn keeping(config: Config, records: impl IntoIterator<Item = RentalRecord>) -> Self {
        let kept = |record: RentalRecord| {
            let rental = Rental::new(config.clone(), record.slot, Some(record));
            (rental.slot(), Other { rental, discarding: None })
        };
        let others = records.into_iter().map(kept).collect();
        Self { cache: Rental::new(config.clone(), Slot::CACHE, None), config, now: Instant::ZERO, others }
    }

    /// The rental of the volume that the engine uses.
    #[must_use]
    pub fn cache(&self) -> &Rental {
        &self.cache
    }

    /// The same, to change it.
    pub fn cache_mut(&mut self) -> &mut Rental {
        &mut self.cache
    }

    /// What is rented, as far as that is durable.
    pub fn records(&self) -> impl Iterator<Item = &RentalRecord> {
        self.all().filter_map(Rental::record)
    }

    /// The volumes whose names are known, and whether there may be others.
    #[must_use]
    pub fn volumes(&self) -> (Vec<VolumeId>, bool) {
        let nameless = self.records().any(|record| record.volume.is_none());
        (self.records().filter_map(|record| record.volume.clone()).collect(), nameless)
    }

    fn all(&self) -> impl Iterator<Item = &Rental> {
        std::iter::once(&self.cache).chain(self.others.values().map(|other| &other.rental))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Rental> {
        std::iter::once(&mut self.cache).chain(self.others.values_mut().map(|other| &mut other.rental))
    }

    fn slot_mut(&mut self, slot: Slot) -> Option<&mut Rental> {
        match slot {
            Slot::CACHE => Some(&mut self.cache),
            slot => self.others.get_mut(&slot).map(|other| &mut other.rental),
        }
    }

    /// Whether nothing is rented in a slot, and nothing under way.
    #[must_use]
    pub fn is_free(&self, slot: Slot) -> bool {
        match slot {
            Slot::CACHE => self.cache.is_free(),
            slot => self.others.get(&slot).is_none_or(|other| other.rental.is_free()),
        }
    }

    /// Begins a step in a slot; `timeout` is how long it may take.
    pub fn begin(&mut self, now: Instant, slot: Slot, id: StepId, step: Step, timeout: Option<Duration>) {
        self.now = self.now.max(now);
        self.rental_mut(slot).begin(now, id, step, timeout);
        self.advance();
    }

    /// What is on the volume in a slot counts from now on, or does not any more; ends as a step does.
    pub fn begin_counting(&mut self, now: Instant, slot: Slot, id: StepId, counts: bool) {
        self.now = self.now.max(now);
        self.rental_mut(slot).begin_counting(now, id, counts);
        self.advance();
    }

    /// Something is on the volume in a slot from now on, and never counts; ends as a step does.
    pub fn begin_use(&mut self, now: Instant, slot: Slot, id: StepId) {
        self.now = self.now.max(now);
        self.rental_mut(slot).begin_use(now, id);
        self.advance();
    }

    /// The open volume in a slot was given to somebody, who closes it.
    pub fn give(&mut self, slot: Slot) {
        self.rental_mut(slot).give();
    }

    /// Tags of the volume that is created next in a slot, beside those of every rental.
    pub fn set_tags(&mut self, slot: Slot, tags: Tags) {
        self.rental_mut(slot).set_tags(tags);
    }

    fn rental_mut(&mut self, slot: Slot) -> &mut Rental {
        match slot {
            Slot::CACHE => &mut self.cache,
            slot => {
                let empty = || Other { rental: Rental::new(self.config.clone(), slot, None), discarding: None };
                &mut self.others.entry(slot).or_insert_with(empty).rental
            }
        }
    }

    /// The rental in a slot.
    #[must_use]
    pub fn rental(&self, slot: Slot) -> Option<&Rental> {
        match slot {
            Slot::CACHE => Some(&self.cache),
            slot => self.others.get(&slot).map(|other| &other.rental),
        }
    }

    /// The volume in a slot, which is not [`Slot::CACHE`], is not used any more: detaches and deletes it.
    pub fn discard(&mut self, now: Instant, slot: Slot) {
        self.now = self.now.max(now);
        if let Some(other) = self.others.get_mut(&slot) {
            other.discarding.get_or_insert(Discarding::new(now));
        }
        self.advance();
    }

    /// Takes an event of the engine.
    pub fn event(&mut self, now: Instant, event: &Event) {
        self.cache.event(now, event);
    }

    /// A disk came or went. `news`: what is where the volume of the engine was, has changed.
    pub fn disk_changed(&mut self, now: Instant, news: bool) {
        self.all_mut().for_each(|rental| rental.disk_changed(now, news));
    }

    /// Takes the answer to an ask.
    pub fn complete(&mut self, now: Instant, id: AskId, answer: Answer) {
        self.now = self.now.max(now);
        if let Some(rental) = self.slot_mut(id.slot) {
            rental.complete(now, id, answer);
        }
        self.advance();
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.all_mut().for_each(|rental| rental.tick(now));
        self.advance();
    }

    /// When [`Rentals::tick`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let discarding = self.others.values().filter_map(|other| other.discarding.as_ref());
        let retries = discarding.filter(|discarding| discarding.deletes.is_none()).map(|discarding| discarding.next);
        self.all().filter_map(Rental::next_deadline).chain(retries).min()
    }

    /// What is to be done next.
    pub fn next_ask(&mut self) -> Option<(AskId, Ask)> {
        self.all_mut().find_map(Rental::next_ask)
    }

    /// What has ended, and where.
    pub fn next_ended(&mut self) -> Option<(Slot, Ended)> {
        if let Some(ended) = self.cache.next_ended() {
            return Some((Slot::CACHE, ended));
        }
        let mut used = self.others.iter_mut().filter(|(_, other)| other.discarding.is_none());
        used.find_map(|(slot, other)| Some((*slot, other.rental.next_ended()?)))
    }

    /// What operators should know.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.all_mut().find_map(Rental::next_notice)
    }

    /// Goes on with what is discarded.
    fn advance(&mut self) {
        let (now, longest) = (self.now, self.config.longest_pause);
        // A slot stays when it is free: answers that come late are not taken for those of its next volume.
        for other in self.others.values_mut() {
            while other.go_on(now, longest) {}
            other.discarding.take_if(|_| other.rental.is_free());
        }
    }

    /// What must hold between any two calls.
    ///
    /// # Panics
    /// If it does not.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        self.all().for_each(Rental::check);
        for (slot, other) in &self.others {
            assert!(*slot != Slot::CACHE, "the volume of the engine is in a slot of its own");
            assert!(!other.rental.is_used_by_engine(), "the engine uses the volume in {slot:?}");
        }
        let tokens = || self.records().map(|record| &record.token).filter(|token| !token.is_empty());
        let distinct: std::collections::BTreeSet<_> = tokens().collect();
        assert_eq!(distinct.len(), tokens().count(), "two slots name one volume");
    }
}

impl Discarding {
    const fn new(now: Instant) -> Self {
        Self { deletes: None, pause: RETRY, next: now }
    }
}

impl Other {
    /// False: nothing more can be done now.
    fn go_on(&mut self, now: Instant, longest: Duration) -> bool {
        let Some(discarding) = &mut self.discarding else { return false };
        let mut step = None;
        match (discarding.deletes, self.rental.next_ended()) {
            (Some(false), Some(Ended::Step(_, StepOutcome::Done))) => step = Some(Step::Delete),
            // Not done, or a call is still under way.
            (_, Some(ended)) => {
                discarding.deletes = None;
                let pause = discarding.pause.min(longest);
                let pause = match ended {
                    Ended::Step(_, StepOutcome::Refused(refusal)) => throttled(pause, &refusal, longest),
                    _ => pause,
                };
                discarding.next = now + pause;
                discarding.pause = (discarding.pause * 2).min(longest);
            }
            (None, None) if discarding.next <= now && !self.rental.is_free() => step = Some(Step::Detach),
            (_, None) => return false,
        }
        if let Some(step) = step {
            discarding.deletes = Some(step == Step::Delete);
            self.rental.begin(now, StepId(0), step, None);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::volume::{ProviderError, Transition};

    use super::*;
    use crate::ask::Call;
    use crate::owner::OwnerRecord;
    use crate::record::RentalStage;
    use crate::rented::{described, rented};

    #[test]
    fn what_is_discarded_is_deleted_when_a_provider_that_throttles_says() {
        let record = rented(RentalStage::Released, true).record().cloned();
        let record = record.map(|record| RentalRecord { slot: Slot(1), ..record });
        let longest = Duration::from_secs(300);
        let config = Config { longest_pause: longest, ..crate::rented::config() };
        let mut rentals = Rentals::new(config, record);
        for (after, waits) in [(Duration::from_secs(70), Duration::from_secs(70)), (Duration::MAX, longest)] {
            let now = rentals.next_deadline().unwrap_or(Instant::ZERO);
            rentals.tick(now);
            while let Some((id, ask)) = rentals.next_ask() {
                let answer = match ask {
                    Ask::Persist(_) => Answer::Persisted(Ok(())),
                    Ask::Owner => Answer::Owner(Ok(OwnerRecord::default())),
                    Ask::Provider(call @ Call::ChangeState(_, Transition::Delete)) => {
                        call.failed(ProviderError::Throttled { after: Some(after), text: "slower".to_owned() })
                    }
                    Ask::Provider(Call::Describe(_)) => {
                        Answer::Described(Ok(described(surgetank_model::volume::VolumeState::Available, Tags::new())))
                    }
                    ask => panic!("{ask:?}"),
                };
                rentals.complete(now, id, answer);
            }
            assert_eq!(rentals.next_deadline(), Some(now + waits), "{after:?}");
        }
    }
}
