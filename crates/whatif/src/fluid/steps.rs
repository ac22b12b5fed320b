//! The production controller, whose steps end after the time that the provider takes for them.
//!
//! What the production rental code does within a step is left out, as the engine is: it takes milliseconds.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant, Observation};
use surgetank_planner::scenario::Latencies;
use surgetank_policy::{Controller, Learned, Phase, Refusal, Steady, Step, StepId, StepOutcome};

use crate::report::{Boost, boost};
use crate::setup::Setup;

/// The controller of one machine's elastic device, and its provider.
#[derive(Debug)]
pub struct Steps {
    controller: Controller,
    provider: Latencies,
    random: Random,
    outstanding: Vec<(StepId, Step)>,
    /// The step that the provider does not carry out within its timeout.
    too_late: Option<StepId>,
    /// As of the controller's last call: it is asked for more often than it changes.
    deadline: Option<Instant>,
    size: Bytes,
    boosts: Vec<Boost>,
}

/// What a step changes of the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Take a caching volume of this size into use, and tell [`Steps::adopted`].
    Adopt(Bytes),
    /// The caching volume in use is so large now.
    Grow(Bytes),
    /// Absorb.
    Absorb,
    /// Drain with priority.
    Drain,
    /// The same, and changes over what is dirty wait.
    Finish,
    /// Release the caching volume, and tell [`Steps::released`].
    Release,
}

impl Steps {
    /// The controller of machine `vm`.
    #[must_use]
    pub fn new(setup: &Setup, vm: u32) -> Self {
        let seed = setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(vm));
        let billed_time = setup.caching.tariff.billed_time();
        let grows = setup.provider.grow.is_some();
        let config = surgetank_policy::Config { seed, billed_time, grows, ..setup.policy.clone() };
        Self {
            controller: Controller::new(Instant::ZERO, config, Learned::default()),
            provider: setup.provider,
            random: Random::from_seed(seed),
            outstanding: Vec::new(),
            too_late: None,
            deadline: None,
            size: Bytes::ZERO,
            boosts: Vec::new(),
        }
    }

    /// Nothing is rented, and without traffic nothing ever will be: also no volume for a burst that is only expected.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.controller.phase() == Phase::Idle && self.outstanding.is_empty() && self.next_deadline().is_none()
    }

    /// For how long samples of the same traffic decide nothing.
    #[must_use]
    pub fn steady(&self) -> Option<Steady> {
        self.controller.steady()
    }

    /// A sample.
    pub fn observe(&mut self, now: Instant, observation: Observation) {
        self.controller.observe(now, observation);
        self.record();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.tick(now);
        }
    }

    /// When the controller must be called besides the samples.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.controller.tick(now);
        self.record();
    }

    /// The next step that the controller wants, and how long it takes.
    pub fn next_step(&mut self) -> Option<(StepId, Duration)> {
        let (id, step) = self.controller.next_step()?;
        if let Step::Create { size } = step {
            self.size = size;
        }
        let nominal = match step {
            Step::Create { .. } => self.provider.create,
            Step::Attach => self.provider.attach,
            Step::Detach => self.provider.detach,
            Step::Delete => self.provider.delete,
            Step::Grow { .. } => self.provider.grow.unwrap_or_default(),
            Step::Adopt | Step::Absorb | Step::Drain | Step::Finish | Step::Release => Duration::ZERO,
        };
        let jitter = self.provider.jitter;
        let takes = if jitter > 0.0 { nominal.mul_f64(1.0 + jitter * self.random.unit()) } else { nominal };
        let timeout = self.controller.config().timeout(&step).unwrap_or(Duration::MAX);
        self.too_late = if takes > timeout { Some(id) } else { self.too_late };
        self.outstanding.push((id, step));
        Some((id, takes.min(timeout)))
    }

    /// A step's time has come: what it asks of the device, unless the provider has done it.
    pub fn due(&mut self, now: Instant, id: StepId) -> Option<Change> {
        let step = self.outstanding.iter().find(|(outstanding, _)| *outstanding == id).map(|(_, step)| step.clone())?;
        match step {
            Step::Adopt => Some(Change::Adopt(self.size)),
            Step::Release => Some(Change::Release),
            Step::Absorb => {
                self.end(now, id, StepOutcome::Done);
                Some(Change::Absorb)
            }
            Step::Drain => {
                self.end(now, id, StepOutcome::Done);
                Some(Change::Drain)
            }
            Step::Finish => {
                self.end(now, id, StepOutcome::Done);
                Some(Change::Finish)
            }
            Step::Create { .. } | Step::Grow { .. } | Step::Attach | Step::Detach | Step::Delete => {
                let fails = self.provider.faults > 0.0 && self.random.chance(self.provider.faults);
                let outcome = if self.too_late.take_if(|late| *late == id).is_some() {
                    StepOutcome::Refused(Refusal::Timeout)
                } else if fails {
                    StepOutcome::Refused(Refusal::Transient("a simulated fault".to_owned()))
                } else {
                    StepOutcome::Done
                };
                let grown = match step {
                    Step::Grow { size } if outcome == StepOutcome::Done => Some(Change::Grow(size)),
                    _ => None,
                };
                self.end(now, id, outcome);
                grown
            }
        }
    }

    /// The caching volume is in use, or could not be taken.
    pub fn adopted(&mut self, now: Instant, success: bool) {
        let failed = || StepOutcome::Refused(Refusal::Transient("the caching volume is too small".to_owned()));
        self.end_of(now, &Step::Adopt, if success { StepOutcome::Done } else { failed() });
    }

    /// The caching volume is released, or the release was overtaken.
    pub fn released(&mut self, now: Instant, cancelled: bool) {
        self.end_of(now, &Step::Release, if cancelled { StepOutcome::Cancelled } else { StepOutcome::Done });
    }

    /// The boosts that have ended.
    #[must_use]
    pub fn into_boosts(mut self) -> Vec<Boost> {
        self.record();
        self.boosts
    }

    fn end_of(&mut self, now: Instant, step: &Step, outcome: StepOutcome) {
        if let Some(&(id, _)) = self.outstanding.iter().find(|(_, outstanding)| outstanding == step) {
            self.end(now, id, outcome);
        }
    }

    fn end(&mut self, now: Instant, id: StepId, outcome: StepOutcome) {
        self.outstanding.retain(|(outstanding, _)| *outstanding != id);
        self.controller.complete(now, id, outcome);
        self.record();
    }

    /// After every call of the controller.
    fn record(&mut self) {
        self.deadline = self.controller.next_deadline();
        while let Some(record) = self.controller.next_record() {
            self.boosts.push(boost(record));
        }
    }
}
