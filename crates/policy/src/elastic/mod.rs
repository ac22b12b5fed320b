//! The controller of one elastic device: the papers' (NRK15, III-A) and ours, which also splits.
//!
//! ```text
//! Idle → Create → Attach → Adopt → Boost ⇄ Drain → Release → Detach → Delete → Idle
//!            └───────┴────────┴─ refused: back through Detach and Delete, wait, try again ─┘
//! ```
//!
//! Every path that asked for `Create` ends in a `Delete` that was answered `Done`; `Release`, `Detach` and `Delete`
//! are repeated for ever. `docs/decisions/0002-controller.md` says what is the papers' and what is ours.

mod alternatives;
#[cfg(debug_assertions)]
mod check;
mod config;
mod drains;
mod growth;
mod hints;
mod lifecycle;
mod meter;
mod paying;
mod rental;
mod room;
mod status;
mod steady;
mod worth;

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::units::Span;
use surgetank_model::{Bytes, Instant, Observation};

pub use config::Config;
pub use hints::BurstHint;
pub use room::Headroom;
pub use status::{BoostRecord, Cause, HintRefused, Learned, Phase, Prediction, ResumeAt, Status, sizes_held};
pub use steady::Steady;

use crate::budget::Ledger;
use crate::bursts::Bursts;
use crate::forecast::{Forecast, Past};
use crate::step::{Step, StepId, StepOutcome};
use crate::worth::{Outcome, Terms};
use drains::Drains;
use growth::Growth;
use hints::Announced;
use lifecycle::{Stage, Wish, Work};
use meter::{Demand, Meter};
use rental::Rental;
use room::Room;
use worth::{Account, Debt, Effect};

/// Finished boosts that are kept until the driver takes them; older ones are dropped.
const RECORDS_MAX: usize = 256;

/// Decides when to boost, how big, when to drain and to detach. See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    random: Random,
    /// The latest time that it was told.
    now: Instant,
    meter: Meter,
    forecast: Forecast,
    bursts: Bursts,
    growth: Growth,
    drains: Drains,
    debt: Debt,
    account: Account,
    effect: Effect,
    /// What boosts have saved, in AGBs, without what they cost.
    saved_agbs: f64,
    /// Share of the last caching volume that could be used.
    usable: f64,
    /// Bytes written above the threshold since the last boost, without a cache.
    unboosted: u64,
    observation: Observation,
    ledger: Ledger,
    next_size: Bytes,
    /// What the next burst is worth a boost that is there before it.
    next: Outcome,
    boosts: u64,

    stage: Stage,
    work: Work,
    /// Refusals of the present stage's step in a row.
    attempts: u32,
    /// Steps issued and not yet taken by the driver.
    queue: VecDeque<(StepId, Step)>,
    last_step: StepId,
    /// An `Absorb` or `Finish` issued while a `Release` was outstanding.
    overtaking: Option<StepId>,
    /// The outstanding `Release` has been overtaken by an `Absorb`.
    overtaken: bool,
    rental: Option<Rental>,

    /// Neither boost nor absorb until traffic has calmed once (a user or the budget ended the boost).
    held: bool,
    /// What was asked for while a step was outstanding.
    wish: Wish,
    /// A burst that somebody announced.
    announced: Option<Announced>,
    room: Room,
    headroom: Option<Headroom>,
    /// The caching volume failed.
    degraded: bool,

    /// When the volume was first asked for that the present tries are about.
    asked: Option<Instant>,
    /// Boosts that ended in a refusal, in a row.
    failures: u32,
    /// No new boost before.
    backoff_until: Option<Instant>,
    /// Why not, for people.
    reason: Option<String>,
    /// Why the last boost was not begun.
    refused: Option<String>,
    last_boost: Option<Instant>,
    records: VecDeque<BoostRecord>,
}

impl Controller {
    /// A controller of a device that has no caching volume (else call [`Controller::resume`] next).
    #[must_use]
    pub fn new(now: Instant, config: Config, learned: Learned) -> Self {
        let next_size = learned.next_size.map_or(config.first_size(), |size| config.bounds().clamp(size));
        Self {
            random: Random::from_seed(config.seed),
            now,
            meter: Meter::new(now),
            forecast: Forecast::new(&Past {
                pauses: learned.pauses.iter().map(|pause| pause.0).collect(),
                periods: learned.periods.iter().map(|period| period.0).collect(),
                lead: learned.lead.map(|lead| lead.0),
            }),
            bursts: Bursts::new(Terms::of(&config).guess(next_size), &learned.bursts),
            debt: Debt::new(now, learned.debt_agbs as f64),
            account: Account::new(now),
            effect: Effect::default(),
            saved_agbs: learned.saved_agbs as f64,
            usable: worth::USABLE,
            growth: Growth::default(),
            drains: Drains::default(),
            unboosted: 0,
            observation: Observation::default(),
            ledger: Ledger::new(now, config.tariff(), config.budget, &learned.rentals),
            next_size,
            next: Outcome::default(),
            boosts: learned.boosts,
            config,
            stage: Stage::Idle,
            work: Work::Settled,
            attempts: 0,
            queue: VecDeque::new(),
            last_step: StepId(0),
            overtaking: None,
            overtaken: false,
            rental: None,
            held: false,
            wish: Wish::None,
            announced: None,
            room: Room::default(),
            headroom: None,
            degraded: false,
            asked: None,
            failures: 0,
            backoff_until: None,
            reason: None,
            refused: None,
            last_boost: None,
            records: VecDeque::new(),
        }
    }

    /// Starts in the middle of a boost after a restart. Call it once, right after `new`.
    pub fn resume(&mut self, now: Instant, at: ResumeAt) {
        self.now = self.now.max(now);
        let (size, stage) = match at {
            ResumeAt::Created { size } => (size, Stage::Delete),
            ResumeAt::Attached { size } => (size, Stage::Detach),
            ResumeAt::Adopted { size } => (size, Stage::Drain),
        };
        let mut rental = Rental::new(self.now, size);
        (rental.resumed, rental.was_there) = (true, true);
        // The last run may have been in the middle of one.
        rental.growth_is_open = self.grows();
        if stage == Stage::Drain {
            rental.adopted = Some(self.now);
            rental.drain_started = Some(self.now);
        }
        self.ledger.resume(self.now, size);
        self.rental = Some(rental);
        self.enter(stage);
        self.checked();
    }

    /// The settings it runs with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes a sample of the device, once a sampling interval. The interval may vary.
    pub fn observe(&mut self, now: Instant, observation: Observation) {
        self.now = self.now.max(now);
        let (config, demand) = (&self.config, self.demand());
        self.meter.observe(self.now, &observation, config.backing_bandwidth, config.utilization_threshold, demand);
        let (hot, interval) = (self.meter.hot, self.meter.interval);
        if let Some(from) = interval.from {
            self.forecast.observe(from, self.now, hot, config.inactivity_delay);
            let rate = self.meter.backing_rate(config.backing_bandwidth);
            if self.bursts.observe((from, self.now), hot, interval.written, rate, config.inactivity_delay) {
                self.plan_next();
            }
        }
        if interval.is_saturated() && demand != Demand::Absorbed {
            self.account.waits(self.now, &self.config, interval.busy);
        }
        let written = observation.written_bytes.saturating_sub(self.observation.written_bytes);
        self.observation = observation;
        // Without a budget nobody asks.
        if !self.ledger.is_unlimited() {
            let way = self.draining();
            self.drains.observe(self.now, way, &self.observation, self.config.backing_bandwidth);
        }
        if !self.meter.hot {
            self.held = false;
        } else if self.rental.as_ref().is_none_or(|rental| rental.adopted.is_none()) {
            self.unboosted += written;
        }
        if let Some(rental) = &mut self.rental {
            rental.observe(self.now, hot, &observation);
            rental.serves(
                &interval,
                hot && demand == Demand::Absorbed,
                self.meter.backing_rate(self.config.backing_bandwidth),
            );
        }
        self.decide();
        self.checked();
    }

    /// What makes the next sample hot.
    fn demand(&self) -> Demand {
        match self.stage {
            _ if !self.config.preset.when.worth => Demand::Throughput,
            Stage::Boost | Stage::Grow => Demand::Absorbed,
            Stage::Drain | Stage::Absorb | Stage::Release => Demand::Draining,
            Stage::Idle | Stage::Create | Stage::Attach | Stage::Adopt | Stage::Detach | Stage::Delete => {
                Demand::Waiting
            }
        }
    }

    /// Takes the answer to a step. Answers to steps that are not outstanding are ignored.
    pub fn complete(&mut self, now: Instant, step: StepId, outcome: StepOutcome) {
        self.now = self.now.max(now);
        if self.overtaking == Some(step) {
            self.overtaking = None;
            self.issue_if_due();
        } else if self.work == Work::Outstanding(step) {
            self.work = Work::Settled;
            self.settle(outcome);
        }
        self.checked();
    }

    /// Lets time pass; call at [`Controller::next_deadline`].
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.decide();
        self.checked();
    }

    /// The next thing to do, if any. The driver answers each with one [`Controller::complete`].
    pub fn next_step(&mut self) -> Option<(StepId, Step)> {
        self.queue.pop_front()
    }

    /// When [`Controller::tick`] must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let announced = self.announced.map(|announced| announced.boost).filter(|boost| *boost > self.now);
        [announced, self.next_decision()].into_iter().flatten().min()
    }

    fn next_decision(&self) -> Option<Instant> {
        match self.work {
            Work::Retry(at) => Some(at),
            _ if self.stage == Stage::Idle && self.meter.hot && !self.held => {
                self.earliest_start().filter(|start| *start > self.now)
            }
            _ if self.stage == Stage::Idle && !self.held => {
                self.expected().map(|expected| expected.start).filter(|start| *start > self.now)
            }
            _ => None,
        }
    }

    /// A boost that begins now is another try of the one that the provider has just failed to serve.
    fn tries_again(&self) -> bool {
        let samples = 2 * self.forecast.sampling();
        self.failures > 0 && self.backoff_until.is_some_and(|until| self.now.since(until) <= samples)
    }

    /// After every event of a debug build.
    ///
    /// # Panics
    /// At the first thing that does not hold.
    fn checked(&self) {
        #[cfg(debug_assertions)]
        if let Err(what) = self.check() {
            panic!("{what}: {self:?}");
        }
    }

    /// What the driver persists and gives to `new` at the next start.
    #[must_use]
    pub fn learned(&self) -> Learned {
        let Past { pauses, periods, lead } = self.forecast.past();
        let spans = |times: Vec<Duration>| times.into_iter().map(Span).collect();
        Learned {
            next_size: Some(self.next_size),
            boosts: self.boosts,
            bursts: self.bursts.past(),
            pauses: spans(pauses),
            periods: spans(periods),
            lead: lead.map(Span),
            saved_agbs: self.saved_agbs as u64,
            debt_agbs: self.debt.left(self.now, &self.config) as u64,
            rentals: self.ledger.past(self.now),
        }
    }

    /// Why the present boost was begun; `None`: there is none, or an earlier daemon began it.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.rental.as_ref()?.cause
    }

    /// The same in a sentence for people, with what it is expected to save.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.rental.as_ref().filter(|rental| rental.cause.is_some()).map(|rental| rental.why.as_str())
    }

    /// The next finished boost, oldest first; each is given once.
    pub fn next_record(&mut self) -> Option<BoostRecord> {
        self.records.pop_front()
    }

    /// Where the device is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.stage {
            Stage::Idle => Phase::Idle,
            _ if self.degraded => Phase::Degraded,
            Stage::Create | Stage::Attach | Stage::Adopt => Phase::Attaching,
            Stage::Boost | Stage::Grow | Stage::Absorb => Phase::Boost,
            Stage::Drain => Phase::Drain,
            Stage::Release | Stage::Detach | Stage::Delete => Phase::Detaching,
        }
    }

    /// A snapshot for people, as of the last event.
    #[must_use]
    pub fn status(&self) -> Status {
        let retry_at = match self.work {
            Work::Retry(at) => Some(at),
            _ if self.stage == Stage::Idle => self.backoff_until.filter(|until| *until > self.now),
            _ => None,
        };
        Status {
            phase: self.phase(),
            utilization: self.meter.utilization,
            cache_size: self.rental.as_ref().map(|rental| rental.size),
            next_size: self.next_size,
            boosts: self.boosts,
            backing_off: self.reason.clone().or_else(|| self.last_refusal()),
            retry_in: retry_at.map(|at| Span(at.since(self.now))),
            announced_in: self.announced.map(|announced| Span(announced.boost.since(self.now))),
            budget: self.ledger.usage(self.now),
        }
    }

    /// Why the last boost was not begun, once nothing keeps the next one from being tried: whoever asked for it may look
    /// later than that.
    fn last_refusal(&self) -> Option<String> {
        let refused = self.refused.as_ref().filter(|_| self.stage == Stage::Idle)?;
        Some(format!("the last boost did not begin: {refused}"))
    }
}
