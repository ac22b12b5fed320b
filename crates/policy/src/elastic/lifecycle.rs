//! The life cycle of one boost: which stage follows which, and what a refusal leads to.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use super::rental::Rental;
use super::status::{BoostRecord, Cause, Prediction};
use super::{Controller, RECORDS_MAX};
use crate::forecast::Expected;
use crate::planted::{Bug, planted};
use crate::sizing;
use crate::step::{Refusal, Step, StepId, StepOutcome};

/// What the controller is at. All but `Idle` and `Boost` have a step of the same name; that of `Drain` may be `Finish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Create,
    Attach,
    Adopt,
    /// Absorbing.
    Boost,
    /// The same, while the volume grows.
    Grow,
    /// Back from `Drain` or `Release` to `Boost`.
    Absorb,
    Drain,
    Release,
    Detach,
    Delete,
}

/// How far the present stage's step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Answered, or the stage has no step.
    Settled,
    /// To be issued when the overtaking `Absorb` is answered.
    Due,
    /// Issued and not answered.
    Outstanding(StepId),
    /// Refused; to be issued again.
    Retry(Instant),
}

/// What is seen to once the outstanding step is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    None,
    /// A user asks for this boost: a calm device does not stop it before it is adopted.
    Boost,
    /// A user ends this boost, or the burst that it was started for has not come.
    End,
}

impl Controller {
    /// Starts whatever time or the last observation call for.
    pub(super) fn decide(&mut self) {
        self.follow_cache();
        self.follow_forecast();
        self.follow_announcement();
        match (self.stage, self.work) {
            (Stage::Idle, _) => self.decide_idle(),
            (Stage::Boost, Work::Settled) => self.decide_boost(),
            (Stage::Drain, Work::Settled | Work::Retry(_)) if self.hot_again() => self.absorb_again(),
            (Stage::Drain, Work::Settled) if self.observation.dirty_bytes == 0 => self.enter(Stage::Release),
            (Stage::Release, Work::Outstanding(_) | Work::Retry(_)) if self.hot_again() => self.absorb_again(),
            (Stage::Drain, _) | (Stage::Release, Work::Outstanding(_)) => self.decide_finish(),
            (Stage::Attach, Work::Retry(_)) if !self.wanted() || self.affordable(0).is_err() => {
                self.enter(Stage::Detach)
            }
            _ => {}
        }
        if let Work::Retry(at) = self.work
            && at <= self.now
        {
            self.issue();
        }
    }

    /// The caching volume failed, or the engine released it: release it as well.
    fn follow_cache(&mut self) {
        let adopted = matches!(self.stage, Stage::Boost | Stage::Grow | Stage::Absorb | Stage::Drain | Stage::Release);
        let dropped = self.rental.as_ref().is_some_and(|rental| rental.dropped);
        if !adopted || !(self.observation.cache_failed || dropped) {
            return;
        }
        if !self.degraded && self.stage != Stage::Release {
            self.degraded = true;
            self.back_off(
                &Refusal::Transient(String::new()),
                "the caching volume failed and is being released".to_owned(),
            );
        }
        self.degraded |= self.observation.cache_failed;
        if self.stage != Stage::Release && !matches!(self.work, Work::Outstanding(_) | Work::Due) {
            self.enter(Stage::Release);
        }
    }

    /// The burst that a volume was rented for has come, or it is too late for it.
    fn follow_forecast(&mut self) {
        let Some(until) = self.rental.as_ref().and_then(|rental| rental.expects_until) else { return };
        let in_vain = !self.meter.hot && until <= self.now;
        if self.meter.hot || in_vain {
            if let Some(rental) = &mut self.rental {
                rental.expects_until = None;
            }
            self.meter.restart_calm(self.now);
        }
        if in_vain {
            if matches!(self.cause(), Some(Cause::Forecast { .. })) {
                self.forecast.missed();
            }
            if self.stage == Stage::Boost {
                self.enter_drain();
            } else if matches!(self.stage, Stage::Create | Stage::Attach | Stage::Adopt) && self.wish == Wish::None {
                self.wish = Wish::End;
            }
        }
    }

    fn expects_burst(&self) -> bool {
        self.rental.as_ref().is_some_and(|rental| rental.expects_until.is_some())
    }

    /// A boost that is worth starting before the burst, unless it is too late for it.
    pub(super) fn expected(&self) -> Option<Expected> {
        let config = &self.config;
        if !config.forecast {
            return None;
        }
        let expected = self.forecast.expected(&self.stakes())?;
        let start = self.earliest_start().map_or(expected.start, |earliest| earliest.max(expected.start));
        let start = if !config.preset.when.worth || config.fixed_size.is_some() {
            start
        } else if self.next.gain > 0.0 {
            start.max(self.debt.paid_off(config, self.next.gain))
        } else {
            return None;
        };
        (self.now < expected.until && start < expected.until).then_some(Expected { start, ..expected })
    }

    fn decide_early(&mut self) {
        let Some(expected) = self.expected() else { return };
        if expected.start <= self.now && !self.held && self.affordable(0).is_ok() {
            let predicted = self.config.preset.when.worth.then(|| self.next.prediction(&self.config));
            self.begin(Cause::Forecast { until: expected.until }, predicted);
            if let Some(rental) = &mut self.rental {
                rental.await_burst(expected.until);
            }
        }
    }

    fn decide_idle(&mut self) {
        if !self.meter.hot {
            if self.backoff_until.is_none_or(|until| until <= self.now) {
                self.reason = None;
            }
            self.decide_early();
            if self.stage == Stage::Idle && !self.held {
                self.begin_to_try();
            }
            return;
        }
        if self.held {
            self.reason = Some(
                "a boost was ended on request, or since it did not help: the next starts after I/O has calmed"
                    .to_owned(),
            );
            return;
        }
        if let Some(start) = self.earliest_start().filter(|start| *start > self.now) {
            if self.backoff_until.is_none_or(|until| until < start) {
                let interval = self.config.boost_interval_min.as_secs_f64();
                self.reason =
                    Some(format!("the last boost began less than {interval} s ago, the least time between two"));
            }
            return;
        }
        let begun = if self.config.preset.when.worth { self.begin_if_worth_it() } else { self.begin_above_threshold() };
        self.reason = begun.err().or(self.reason.take());
    }

    /// The papers' rule.
    fn begin_above_threshold(&mut self) -> Result<(), String> {
        self.affordable(0)?;
        self.begin(Cause::Utilization(self.meter.utilization), None);
        Ok(())
    }

    fn decide_boost(&mut self) {
        if let Err(reason) = self.affordable(self.dirty_soon())
            && !planted(Bug::BoostIsNotEnded)
        {
            self.reason = Some(reason);
            self.held = self.meter.hot;
            self.enter_drain();
        } else if self.take_up_growth() || self.grow_if_worth_it() {
            // Whether it is full in vain, the larger one shows.
        } else if self.is_full_in_vain() {
            self.reason = Some("the caching volume is full, and the burst does not end".to_owned());
            self.held = true;
            self.enter_drain();
        } else if !self.expects_burst() && self.absorbs_until().is_some_and(|until| until <= self.now) {
            self.enter_drain();
        }
    }

    /// When the back-off and the least time between boosts are over, if there is one to wait for.
    pub(super) fn earliest_start(&self) -> Option<Instant> {
        let interval = self.last_boost.map(|last| last + self.config.boost_interval_min);
        self.backoff_until.max(interval)
    }

    /// A new burst came while the volume was being drained or released, and it may be absorbed.
    pub(super) fn hot_again(&self) -> bool {
        self.meter.hot
            && !self.held
            && !self.degraded
            && self.may_absorb()
            && self.affordable(self.dirty_soon()).is_ok()
    }

    /// The engine holds the volume, as far as is known.
    pub(super) fn may_absorb(&self) -> bool {
        self.overtaking.is_none()
            && self.rental.as_ref().is_some_and(|rental| rental.adopted.is_some() && !rental.dropped)
    }

    /// The burst that this boost was started for goes on.
    pub(super) fn wanted(&self) -> bool {
        match self.wish {
            Wish::Boost => true,
            Wish::End => false,
            Wish::None => self.expects_burst() || self.absorbs_until().is_none_or(|until| until > self.now),
        }
    }

    pub(super) fn begin(&mut self, cause: Cause, predicted: Option<Prediction>) {
        let size = self.size_with_room(self.next_size);
        self.asked = self.asked.filter(|_| self.tries_again()).or(Some(self.now));
        (self.reason, self.refused) = (None, None);
        self.ledger.open(self.now, size);
        let why = cause.sentence(self.now, &self.config, predicted.as_ref());
        self.rental = Some(Rental { cause: Some(cause), why, predicted, ..Rental::new(self.now, size) });
        self.enter(Stage::Create);
    }

    /// A user ends the boost.
    pub(super) fn end_requested(&mut self) {
        match (self.stage, self.work) {
            (Stage::Boost, _) => self.enter_drain(),
            (Stage::Attach, Work::Retry(_)) => self.enter(Stage::Detach),
            // Seen when the outstanding step is answered.
            (Stage::Create | Stage::Attach | Stage::Adopt | Stage::Grow | Stage::Absorb | Stage::Release, _) => {
                self.wish = Wish::End
            }
            _ => {}
        }
    }

    fn enter_drain(&mut self) {
        if let Some(rental) = &mut self.rental {
            rental.drain_started = Some(self.now);
        }
        self.finishes();
        self.enter(Stage::Drain);
    }

    /// Back to absorbing: from a drain as the next step, from a release by overtaking it.
    pub(super) fn absorb_again(&mut self) {
        self.wish = Wish::None;
        if self.stage == Stage::Release && matches!(self.work, Work::Outstanding(_)) {
            self.overtaken = true;
            self.overtaking = Some(self.push(Step::Absorb));
        } else if self.stage == Stage::Drain && matches!(self.work, Work::Outstanding(_)) {
            // Asked for by a user; the drain is answered at once, then this is seen to.
            self.wish = Wish::Boost;
        } else {
            self.enter(Stage::Absorb);
        }
    }

    /// Goes to a stage and issues its step.
    pub(super) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.attempts = 0;
        self.overtaken = false;
        match stage {
            Stage::Idle | Stage::Boost => self.work = Work::Settled,
            _ => {
                self.work = Work::Due;
                self.issue_if_due();
            }
        }
    }

    pub(super) fn issue_if_due(&mut self) {
        if self.work == Work::Due && self.overtaking.is_none() {
            self.issue();
        }
    }

    fn issue(&mut self) {
        let step = match self.stage {
            Stage::Idle | Stage::Boost => return,
            Stage::Create => Step::Create { size: self.rental.as_ref().map_or(self.next_size, |rental| rental.size) },
            Stage::Attach => Step::Attach,
            Stage::Adopt => Step::Adopt,
            Stage::Grow => Step::Grow { size: self.rental.as_ref().map_or(self.next_size, |rental| rental.size) },
            Stage::Absorb => Step::Absorb,
            Stage::Drain if self.rental.as_ref().is_some_and(|rental| rental.finishing) => Step::Finish,
            Stage::Drain => Step::Drain,
            Stage::Release => Step::Release,
            Stage::Detach => Step::Detach,
            Stage::Delete => Step::Delete,
        };
        self.work = Work::Outstanding(self.push(step));
    }

    pub(super) fn push(&mut self, step: Step) -> StepId {
        self.last_step = StepId(self.last_step.0 + 1);
        self.queue.push_back((self.last_step, step));
        self.last_step
    }

    /// The present stage's step was answered.
    pub(super) fn settle(&mut self, outcome: StepOutcome) {
        match outcome {
            StepOutcome::Done => self.done(),
            StepOutcome::Cancelled if self.overtaken => self.boost(),
            StepOutcome::Cancelled => self.refused(&Refusal::Transient("it was cancelled".to_owned())),
            StepOutcome::Refused(refusal) => self.refused(&refusal),
        }
        // A failure that was seen meanwhile takes effect now that nothing is outstanding.
        self.follow_cache();
    }

    fn done(&mut self) {
        if self.attempts > 0 && self.backoff_until.is_none() {
            self.reason = None;
        }
        match self.stage {
            Stage::Idle | Stage::Boost => {}
            Stage::Create => {
                self.rental.iter_mut().for_each(|rental| rental.was_there = true);
                self.last_boost = self.rental.as_ref().map(|rental| rental.started);
                self.room.had(self.rental.as_ref().map_or(Bytes::ZERO, |rental| rental.size));
                if !self.wanted() {
                    self.note_lead_above();
                }
                self.enter(if self.wanted() { Stage::Attach } else { Stage::Delete });
            }
            Stage::Attach => {
                if !self.wanted() && self.attempts == 0 {
                    self.note_lead();
                }
                let paid = self.affordable(self.dirty_soon());
                self.enter(if self.wanted() && paid.is_ok() { Stage::Adopt } else { Stage::Detach });
                self.reason = paid.err().or(self.reason.take());
            }
            Stage::Adopt => self.adopted(),
            Stage::Grow => self.grown(),
            Stage::Absorb => self.boost(),
            // Dirty bytes are read from the next observation.
            Stage::Drain if self.wish == Wish::Boost => {
                self.wish = Wish::None;
                self.enter(Stage::Absorb);
            }
            Stage::Drain => self.work = Work::Settled,
            Stage::Release => {
                self.learn();
                self.enter(Stage::Detach);
            }
            Stage::Detach => self.enter(Stage::Delete),
            Stage::Delete => self.ended(),
        }
    }

    /// The volume is in use, or would be if the burst had not ended.
    fn note_lead(&mut self) {
        if let Some(rental) = self.rental.as_ref().filter(|rental| !rental.resumed) {
            self.forecast.attached(self.now.since(self.asked.unwrap_or(rental.started)));
            self.plan_next();
        }
    }

    /// It takes at least so long.
    fn note_lead_above(&mut self) {
        let took = self.rental.as_ref().map_or(Duration::ZERO, |rental| self.now.since(rental.started));
        if self.forecast.lead().is_none_or(|lead| lead < took) {
            self.note_lead();
        }
    }

    fn adopted(&mut self) {
        if let Some(rental) = &mut self.rental {
            rental.adopted = Some(self.now);
        }
        self.note_lead();
        self.boosts += 1;
        self.failures = 0;
        self.backoff_until = None;
        self.reason = None;
        self.refused = None;
        if self.wish == Wish::Boost {
            self.wish = Wish::None;
            self.meter.restart_calm(self.now);
        }
        self.boost();
    }

    /// The engine absorbs.
    pub(super) fn boost(&mut self) {
        if let Some(rental) = self.rental.as_mut().filter(|rental| rental.finishing) {
            rental.finishing = false;
            self.reason = None;
        }
        self.enter(Stage::Boost);
        if self.wish == Wish::End {
            self.wish = Wish::None;
            self.enter_drain();
        }
    }

    /// The engine has released the volume: choose the next size.
    fn learn(&mut self) {
        let Some(rental) = &mut self.rental else { return };
        rental.released = Some(self.now);
        let unboosted = std::mem::take(&mut self.unboosted);
        if rental.adopted.is_none() || rental.resumed || self.degraded {
            return;
        }
        let (mut usage, config) = (rental.usage(), &self.config);
        if config.forecast && self.forecast.is_regular() {
            usage.missed = Bytes::new(unboosted);
        }
        if rental.usable > 0 && !rental.growth_is_open {
            self.usable = rental.usable as f64 / rental.size.get().max(1) as f64;
        }
        if config.preset.when.worth {
            return self.plan_next();
        }
        let next = if let Some(size) = config.fixed_size {
            size
        } else if config.split {
            sizing::split_next_size(&usage, config.grain, config.backing_bandwidth, config.caching_bandwidth)
        } else {
            sizing::paper_next_size(&usage, config.grain)
        };
        self.next_size = config.bounds().clamp(next);
    }

    fn ended(&mut self) {
        if !planted(Bug::BillStaysOpen) {
            self.ledger.close(self.now, self.rental.as_ref().is_none_or(|rental| rental.was_there));
        }
        if let Some(rental) = self.rental.take() {
            if self.records.len() == RECORDS_MAX {
                self.records.pop_front();
            }
            let mean_size = rental.mean_size(self.now);
            let cost = self.config.rent_agbs_per_s(mean_size) * self.now.since(rental.started).as_secs_f64();
            let rate = self.meter.backing_rate(self.config.backing_bandwidth);
            let observed = Prediction::of(rental.saved(), self.config.in_agbs(cost));
            self.account.rented(self.now, &self.config, cost);
            self.learn_effect(&rental, rate);
            rental.released.into_iter().for_each(|released| self.forecast.ended(self.now.since(released)));
            // What the last run began, or a person, or what the provider refused, tells nothing of the rule.
            let ours = rental.cause.is_some_and(|cause| cause != Cause::Request) && !rental.resumed;
            if ours && (rental.adopted.is_some() || self.backoff_until.is_none()) {
                self.settle_debt(observed.saved.0, cost);
            }
            self.records.push_back(BoostRecord {
                was_there: rental.was_there,
                size: rental.size,
                mean_size,
                sizes: rental.sizes,
                started: rental.started,
                adopted: rental.adopted,
                drain_started: rental.drain_started,
                released: rental.released,
                ended: self.now,
                high_water: Bytes::new(rental.high_water),
                evicted: Bytes::new(rental.evicted),
                refused: self.refused.clone().filter(|_| rental.adopted.is_none()),
                predicted: rental.predicted,
                observed,
            });
        }
        if !planted(Bug::WishOutlivesBoost) {
            self.wish = Wish::None;
        }
        self.degraded = false;
        if self.backoff_until.is_none() {
            self.reason = None;
        }
        self.enter(Stage::Idle);
    }

    fn refused(&mut self, refusal: &Refusal) {
        self.attempts += 1;
        let text = refusal_text(self.stage, refusal);
        if matches!(self.stage, Stage::Create | Stage::Attach | Stage::Adopt) {
            self.refused = Some(text.clone());
        }
        let passes = matches!(refusal, Refusal::Timeout | Refusal::Transient(_));
        // Waiting for a quota is no attach, and neither is the provider's time.
        self.asked = self.asked.filter(|_| passes);
        let passes = passes || matches!(refusal, Refusal::Throttled { .. } | Refusal::NoRoom(_));
        match self.stage {
            Stage::Idle | Stage::Boost => {}
            // Whatever the answer was, a volume may be there or come late: delete it.
            Stage::Create => {
                let is_made = matches!(refusal, Refusal::Timeout | Refusal::Transient(_) | Refusal::Failed(_));
                self.rental.iter_mut().for_each(|rental| rental.was_there = is_made);
                if matches!(refusal, Refusal::Quota | Refusal::Capacity | Refusal::Failed(_)) {
                    let size = self.rental.as_ref().map_or(self.next_size, |rental| rental.size);
                    self.room.lacked(self.now, size, self.config.backoff.permanent);
                }
                self.back_off(refusal, text);
                self.enter(Stage::Delete);
            }
            Stage::Attach if passes && self.attempts < self.config.attach_attempts && self.wanted() => {
                self.retry(refusal, text);
            }
            Stage::Attach => {
                self.back_off(refusal, text);
                self.enter(Stage::Detach);
            }
            // The engine may hold the volume in spite of a time-out: nothing but a release is safe then.
            Stage::Adopt => {
                self.back_off(refusal, text);
                self.enter(if *refusal == Refusal::Timeout { Stage::Release } else { Stage::Detach });
            }
            Stage::Grow => self.growth_refused(refusal, text),
            // Still draining; the next observation asks again if the burst goes on.
            Stage::Absorb => {
                self.wish = Wish::None;
                self.enter(Stage::Drain);
            }
            Stage::Release if self.overtaken && !self.degraded => self.boost(),
            Stage::Drain | Stage::Release | Stage::Detach | Stage::Delete => self.retry(refusal, text),
        }
    }

    /// No new boost for a while.
    fn back_off(&mut self, refusal: &Refusal, text: String) {
        self.failures = self.failures.saturating_add(1);
        let wait = self.config.backoff.wait(refusal, self.failures, &mut self.random);
        self.backoff_until = Some(self.now + wait);
        self.reason = Some(text);
    }

    /// The same step again after a while.
    fn retry(&mut self, refusal: &Refusal, text: String) {
        let attempts = self.attempts;
        let delay = match self.stage {
            // These cost money for as long as they are not done: never wait as long as for a person.
            Stage::Detach | Stage::Delete => self.config.backoff.wait_until_done(refusal, attempts, &mut self.random),
            _ => self.config.backoff.wait(refusal, attempts, &mut self.random),
        };
        self.work = Work::Retry(self.now + delay);
        self.reason = Some(text);
    }
}

fn refusal_text(stage: Stage, refusal: &Refusal) -> String {
    let what = match stage {
        Stage::Idle | Stage::Boost => "step",
        Stage::Create => "creating a caching volume",
        Stage::Attach => "attaching the caching volume",
        Stage::Adopt => "taking the caching volume into use",
        Stage::Grow => "growing the caching volume",
        Stage::Absorb => "absorbing again",
        Stage::Drain => "draining",
        Stage::Release => "releasing the caching volume",
        Stage::Detach => "detaching the caching volume",
        Stage::Delete => "deleting the caching volume",
    };
    match refusal {
        Refusal::Quota => format!("{what} was refused: the provider's quota is used up"),
        Refusal::Capacity => format!("{what} was refused: the provider has no capacity of this type now"),
        Refusal::AttachLimit => format!("{what} was refused: this machine has no free attachment slot"),
        Refusal::Timeout => format!("{what} took too long"),
        Refusal::Failed(text) => format!("{what} failed: {text}"),
        Refusal::Throttled { text, .. } => {
            format!("{what} was refused: the provider has had too many requests ({text})")
        }
        Refusal::Transient(text) | Refusal::NoRoom(text) => format!("{what} failed: {text}"),
        Refusal::Permanent(text) => format!("{what} failed and will not pass by itself: {text}"),
    }
}
