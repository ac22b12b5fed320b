//! The volume in use becomes larger, in place.
//!
//! The record says what it may grow to before the provider is asked: whatever becomes of the answer, what is billed is known.
//! The engine is told when the provider says that it is done.

use surgetank_cache::Event;
use surgetank_model::Bytes;
use surgetank_model::volume::{ProviderError, VolumeId};
use surgetank_policy::{Refusal, StepOutcome};

use super::{Pause, Rental, Said, Walked, mixed_up, refused};
use crate::ask::{Answer, Ask, Call, Command};
use crate::planted::{Bug, planted};

impl Rental {
    pub(super) fn grow(&mut self, size: Bytes) -> Walked<StepOutcome> {
        if self.is_told() {
            return Err(Pause::EngineWorks);
        }
        let id = self.volume().ok_or_else(vanished)?;
        // What was asked for before may happen yet.
        let to = self.record.as_ref().and_then(|record| record.growing_to).map_or(size, |before| before.max(size));
        let is_grown = self.record.as_ref().is_some_and(|record| record.size >= to);
        if !is_grown && !planted(Bug::GrowthNotPersisted) {
            self.note(|record| record.growing_to = Some(to))?;
        }
        let description = self.describe(&id)?.ok_or_else(vanished)?;
        if description.size < to {
            // A provider that has begun may refuse to be asked again.
            if self.growth_begun {
                return Err(Pause::Wait);
            }
            self.call_grow(id, to)?;
            self.growth_begun = true;
            return Err(Pause::WaitBriefly);
        }
        self.note(|record| {
            record.size = description.size;
            record.growing_to = None;
        })?;
        match self.ask(Ask::Engine(Command::Grow(description.size)))? {
            Answer::Grows(Ok(true)) => {
                self.told(true);
                Err(Pause::EngineWorks)
            }
            Answer::Grows(Ok(false)) => Err(Pause::Wait),
            Answer::Grows(Err(rejected)) => Err(not_used(rejected)),
            answer => Err(mixed_up(&answer)),
        }
    }

    fn call_grow(&mut self, id: VolumeId, size: Bytes) -> Walked {
        match self.ask(Ask::Provider(Call::Grow(id, size)))? {
            Answer::Changed(Ok(_)) => Ok(()),
            Answer::Changed(Err(error)) => {
                if !matches!(error, ProviderError::Transient(_)) && !self.may_grow {
                    self.note(|record| record.growing_to = None)?;
                }
                Err(refused(error))
            }
            answer => Err(mixed_up(&answer)),
        }
    }

    /// What the engine said of it.
    pub(super) const fn said_of_growth(event: &Event) -> Said {
        match event {
            Event::CacheGrown { .. } => Said::Done,
            Event::CacheGrowFailed => Said::Failed("the log on the caching volume did not grow"),
            _ => Said::Nothing,
        }
    }
}

/// The volume has grown and is billed as that, whatever the engine makes of it: no refusal that says it has not.
pub(super) fn not_used(why: String) -> Pause {
    Pause::Refused(Refusal::Transient(why))
}

fn vanished() -> Pause {
    Pause::Refused(Refusal::Transient("the caching volume vanished".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use surgetank_model::Instant;
    use surgetank_model::volume::{Change, Tags, VolumeDescription, VolumeState};
    use surgetank_policy::{Step, StepId};

    use super::*;
    use crate::record::RentalStage;
    use crate::rental::Ended;
    use crate::rented::rented;

    const NOW: Instant = Instant::ZERO;
    const OLD: Bytes = Bytes::from_gib(1);
    const NEW: Bytes = Bytes::from_gib(3);

    /// A volume that the engine uses.
    fn adopted() -> Rental {
        rented(RentalStage::Adopted, false)
    }

    fn described(size: Bytes) -> Answer {
        let (id, state) = (VolumeId("a".to_owned()), VolumeState::Attached);
        let volume_type = "fast".to_owned();
        let (tags, device, disk, members) = (Tags::new(), None, None, Vec::new());
        Answer::Described(Ok(VolumeDescription { id, state, volume_type, size, tags, device, disk, members }))
    }

    /// Answers the next ask, which it returns, with `answer` of it.
    fn answers(rental: &mut Rental, answer: impl FnOnce(&Ask) -> Answer) -> Ask {
        let (id, ask) = rental.next_ask().expect("it asks");
        let answer = answer(&ask);
        rental.complete(NOW, id, answer);
        ask
    }

    /// What it keeps of its sizes, once that is durable.
    fn persisted(rental: &mut Rental) -> (Bytes, Option<Bytes>) {
        let Ask::Persist(Some(record)) = answers(rental, |_| Answer::Persisted(Ok(()))) else { panic!("it persists") };
        (record.size, record.growing_to)
    }

    fn grows(rental: &mut Rental) {
        rental.begin(NOW, StepId(1), Step::Grow { size: NEW }, Some(Duration::from_secs(9)));
        assert_eq!(persisted(rental), (OLD, Some(NEW)), "the intent comes first");
        answers(rental, |_| described(OLD));
    }

    fn outcome(rental: &mut Rental) -> Option<StepOutcome> {
        match rental.next_ended()? {
            Ended::Step(_, outcome) => Some(outcome),
            ended @ Ended::Recovery(_) => panic!("{ended:?}"),
        }
    }

    #[test]
    fn the_engine_is_told_when_the_provider_is_done_and_the_record_says_so() {
        let mut rental = adopted();
        grows(&mut rental);
        let call = Ask::Provider(Call::Grow(VolumeId("a".to_owned()), NEW));
        assert_eq!(answers(&mut rental, |_| Answer::Changed(Ok(Change::Changed))), call);
        for size in [OLD, NEW] {
            let now = rental.next_deadline().expect("it looks again");
            rental.tick(now);
            answers(&mut rental, |_| described(size));
            if size == OLD {
                assert_eq!(rental.next_ask(), None, "it has begun, and may refuse to be asked again");
            }
        }
        assert_eq!(persisted(&mut rental), (NEW, None));
        assert_eq!(answers(&mut rental, |_| Answer::Grows(Ok(false))), Ask::Engine(Command::Grow(NEW)));
        let now = rental.next_deadline().expect("it looks again");
        rental.tick(now);
        answers(&mut rental, |_| described(NEW));
        assert_eq!(answers(&mut rental, |_| Answer::Grows(Ok(true))), Ask::Engine(Command::Grow(NEW)));
        assert_eq!(outcome(&mut rental), None);
        rental.event(now, &Event::CacheGrown { cache_bytes: 1 });
        assert_eq!(outcome(&mut rental), Some(StepOutcome::Done));
    }

    #[test]
    fn a_clean_refusal_leaves_the_size_and_a_lost_answer_what_it_may_be() {
        let lost = ProviderError::Transient("the answer was lost".to_owned());
        for (error, kept) in [(ProviderError::Quota("full".to_owned()), None), (lost, Some(NEW))] {
            let mut rental = adopted();
            grows(&mut rental);
            answers(&mut rental, |_| Answer::Changed(Err(error.clone())));
            if kept.is_none() {
                assert_eq!(persisted(&mut rental), (OLD, None));
            }
            assert!(matches!(outcome(&mut rental), Some(StepOutcome::Refused(_))), "{error}");
            let record = rental.record().expect("it is rented");
            assert_eq!((record.size, record.growing_to), (OLD, kept));
            assert_eq!(record.size_at_most(), kept.unwrap_or(OLD));
        }
    }

    #[test]
    fn a_growth_that_was_throttled_has_not_begun() {
        let mut rental = adopted();
        grows(&mut rental);
        let throttled = ProviderError::Throttled { after: None, text: "slower".to_owned() };
        answers(&mut rental, |_| Answer::Changed(Err(throttled)));
        assert_eq!(persisted(&mut rental), (OLD, None));
        assert!(matches!(outcome(&mut rental), Some(StepOutcome::Refused(Refusal::Throttled { .. }))));
    }

    #[test]
    fn a_volume_that_has_grown_is_billed_although_the_engine_cannot_use_it() {
        for rejected in [true, false] {
            let mut rental = adopted();
            grows(&mut rental);
            answers(&mut rental, |_| Answer::Changed(Ok(Change::Changed)));
            let now = rental.next_deadline().expect("it looks again");
            rental.tick(now);
            answers(&mut rental, |_| described(NEW));
            assert_eq!(persisted(&mut rental), (NEW, None));
            if rejected {
                answers(&mut rental, |_| Answer::Grows(Err("it grew too often".to_owned())));
            } else {
                answers(&mut rental, |_| Answer::Grows(Ok(true)));
                rental.event(now, &Event::CacheGrowFailed);
            }
            let outcome = outcome(&mut rental);
            assert!(matches!(outcome, Some(StepOutcome::Refused(Refusal::Transient(_)))), "{outcome:?}");
        }
    }

    #[test]
    fn what_may_have_happened_before_is_asked_for_again() {
        let mut rental = adopted();
        grows(&mut rental);
        answers(&mut rental, |_| Answer::Changed(Err(ProviderError::Transient("lost".to_owned()))));
        outcome(&mut rental);
        rental.begin(NOW, StepId(2), Step::Grow { size: Bytes::from_gib(2) }, None);
        // The larger one was on record already, and stays there: a refusal says nothing of the call before.
        answers(&mut rental, |_| described(OLD));
        answers(&mut rental, |_| Answer::Changed(Err(ProviderError::Quota("full".to_owned()))));
        assert!(matches!(outcome(&mut rental), Some(StepOutcome::Refused(Refusal::Quota))));
        assert_eq!(rental.record().map(|record| record.growing_to), Some(Some(NEW)));
        rental.begin(NOW, StepId(3), Step::Grow { size: Bytes::from_gib(2) }, None);
        answers(&mut rental, |_| described(NEW));
        assert_eq!(persisted(&mut rental), (NEW, None));
        assert_eq!(rental.next_ask().map(|(_, ask)| ask), Some(Ask::Engine(Command::Grow(NEW))));
    }
}
