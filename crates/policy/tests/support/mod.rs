//! A small world for a controller: random traffic, rewriting, and random answers of the provider.
//!
//! The world keeps what really exists (a volume, attached or not, adopted or not) and checks every step against it; a
//! time-out may hide that a step was done, or will be done later.

mod judge;

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::cost::{Account, Rental};
use surgetank_model::random::Random;
use surgetank_model::units::MIB;
use surgetank_model::volume_type::Billing;
use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::budget::Budget;
use surgetank_policy::{
    BoostRecord, BurstHint, Cause, Config, Controller, Learned, Phase, Preset, Refusal, Step, StepId, StepOutcome,
};

use judge::HalfDone;

const BACKING_MIB_S: u64 = 30;
const CACHING_MIB_S: u64 = 120;
const RESERVE_S: u64 = 14;

/// What happens, second by second.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Demand in MiB/s and seconds it lasts.
    pub traffic: Vec<(u64, u64)>,
    /// Bytes that the application makes dirty again while one is drained, for one stretch of the traffic after another.
    pub rewrites: Vec<f64>,
    /// Rate of the drain ÷ the backing volume's bandwidth.
    pub pace: f64,
    /// Chance that a step is not simply done.
    pub faults: f64,
    /// Only the provider's steps may fail: the machine's own are simply done.
    pub provider_faults: bool,
    /// Chance per second that a user asks for something.
    pub hints: f64,
    /// Chance per second that somebody announces a burst.
    pub announcements: f64,
    pub adaptive: bool,
    /// What a second of waiting is worth ÷ what the backing volume costs in it.
    pub value_of_time: f64,
    /// What is absorbed is so slow that it saves nothing.
    pub useless: bool,
    pub interval_s: u64,
    pub budget_agbs_hour: Option<f64>,
    pub budget_agbs_day: Option<f64>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            traffic: Vec::new(),
            rewrites: Vec::new(),
            pace: 1.0,
            faults: 0.0,
            provider_faults: false,
            hints: 0.0,
            announcements: 0.0,
            adaptive: false,
            value_of_time: 1000.0,
            useless: false,
            interval_s: 0,
            budget_agbs_hour: None,
            budget_agbs_day: None,
        }
    }
}

impl Plan {
    /// The controller alone says how long a boost lasts, and sees its cache as it is.
    fn waits_in_vain(&self) -> bool {
        self.adaptive && self.hints == 0.0 && self.announcements == 0.0 && self.faults == 0.0 && !self.useless
    }

    /// The provider can grow volumes in place.
    fn grows(&self) -> bool {
        self.adaptive && !self.seed.is_multiple_of(3)
    }

    fn forecasts(&self) -> bool {
        self.adaptive && self.seed.is_multiple_of(4)
    }
}

/// What really exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Real {
    volume: Option<u64>,
    attached: bool,
    adopted: bool,
    draining: bool,
    /// Changes over what is dirty wait.
    finishing: bool,
    failed: bool,
}

pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub now: Instant,
    pub controller: Controller,
    pub real: Real,
    pub observation: Observation,
    pub outstanding: Vec<(Instant, StepId, Step)>,
    /// A step that was answered with a time-out and is carried out later.
    pub late: Option<(Instant, Step)>,
    pub steps: Vec<(Instant, Step)>,
    pub boosts: Vec<Instant>,
    /// Created and not yet deleted, as far as the controller can know.
    pub owed: bool,
    /// AGBs billed in each second, but for what a provider that failed to detach or delete is to blame for.
    pub spent: Vec<f64>,
    /// Size in MiB of what is billed now.
    pub billed_mib: u64,
    /// A detach or a deletion of it has failed.
    pub excused: bool,
    /// What is rewritten for each byte drained.
    pub rewrites: f64,
    /// Seconds in which changes waited for the drain.
    pub waited_s: u64,
    /// What is billed: from the wish for a volume until its deletion is known.
    pub billed: Account,
    /// What the provider charges: from the making of a volume until its deletion.
    pub charged: Account,
    /// How often each step was answered how.
    pub answers: BTreeMap<(&'static str, &'static str), u64>,
    /// The boosts that have ended.
    pub records: Vec<BoostRecord>,
    /// Seconds for which the cache has been full.
    pub full_s: u64,
    /// A growth that is billed and was not answered, or with a fault.
    growth: Option<HalfDone>,
    /// Growths that were refused in a row.
    growth_refusals: u32,
    pub hot_before: bool,
    /// Boosts that were asked for or announced and have not begun, at most: one that goes on may have been meant.
    pub hinted: u32,
    /// Somebody asks for something, or has.
    has_users: bool,
    /// When boosts began that somebody had asked for: whether they pay, nobody asks.
    requested: Vec<Instant>,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let preset = if plan.adaptive { Preset::ADAPTIVE } else { Preset::PAPER };
        let mut config = Config::new(
            preset,
            Bandwidth::from_mib_s(BACKING_MIB_S),
            Bytes::from_gib(4),
            Bandwidth::from_mib_s(CACHING_MIB_S),
        );
        config.initial_size = Bytes::from_mib(1024);
        config.size_min = Bytes::from_mib(64);
        config.grain = Bytes::from_mib(64);
        config.inactivity_delay = Duration::from_secs(5);
        config.boost_interval_min = Duration::from_secs(plan.interval_s);
        config.budget =
            Budget { agbs_per_hour: plan.budget_agbs_hour, agbs_per_day: plan.budget_agbs_day, ..Budget::default() };
        // Three steps of up to three seconds delete a volume, each seen up to a second later.
        config.budget_reserve = Duration::from_secs(RESERVE_S);
        config.forecast = plan.forecasts();
        config.grows = plan.grows();
        // Bursts of chance seldom pay: what they teach is looked at elsewhere.
        config.value_of_time *= plan.value_of_time;
        config.seed = plan.seed;
        config.validate().unwrap();
        Self {
            random: Random::from_seed(plan.seed ^ 0x5eed),
            now: Instant::ZERO,
            controller: Controller::new(Instant::ZERO, config, Learned::default()),
            real: Real::default(),
            observation: Observation::default(),
            outstanding: Vec::new(),
            late: None,
            steps: Vec::new(),
            boosts: Vec::new(),
            owed: false,
            spent: Vec::new(),
            billed_mib: 0,
            excused: false,
            rewrites: 0.0,
            waited_s: 0,
            billed: Account::default(),
            charged: Account::default(),
            answers: BTreeMap::new(),
            records: Vec::new(),
            full_s: 0,
            growth: None,
            growth_refusals: 0,
            hot_before: false,
            hinted: 0,
            has_users: plan.hints > 0.0 || plan.announcements > 0.0,
            requested: Vec::new(),
            plan,
        }
    }

    /// One second of traffic of `demand` MiB/s.
    pub fn second(&mut self, demand: u64, faults: f64) {
        self.now += Duration::from_secs(1);
        let gib = if self.excused { 0.0 } else { self.billed_mib as f64 / 1024.0 };
        self.spent.push(gib * CACHING_MIB_S as f64);
        let before = self.observation.written_bytes;
        // Requests wait for what serves them: the cache while it absorbs, else the backing volume.
        let absorbs = self.real.adopted && !self.real.draining && !self.real.failed;
        let served = if absorbs { CACHING_MIB_S } else { BACKING_MIB_S };
        self.observation.busy += Duration::from_secs(1).mul_f64((demand as f64 / served as f64).min(1.0));
        self.traffic(demand, faults);
        // The drain does not count: only what the application moved.
        let moved = self.observation.written_bytes - before;
        self.answer(faults);
        self.controller.observe(self.now, self.observation);
        // What is tried begins as the papers' controller begins.
        let tries = matches!(self.controller.cause(), Some(Cause::Utilization(_)));
        let threshold = if self.plan.adaptive && !tries { 0.9 } else { 0.3 };
        self.hot_before = moved as f64 > threshold * (BACKING_MIB_S * MIB) as f64;
        while let Some(record) = self.controller.next_record() {
            self.records.push(record);
        }
        if self.plan.hints > 0.0 && self.random.chance(self.plan.hints) {
            self.ask();
        }
        if self.plan.announcements > 0.0 && self.random.chance(self.plan.announcements) {
            self.announce();
        }
        while let Some(at) = self.controller.next_deadline().filter(|at| *at <= self.now) {
            self.controller.tick(self.now);
            self.take_steps();
            assert!(self.controller.next_deadline() != Some(at), "a deadline that never passes");
        }
        self.take_steps();
        self.check_growth(demand);
    }

    /// A user asks for something.
    fn ask(&mut self) {
        // What has begun by now, nobody takes back.
        if self.plan.announcements > 0.0 {
            self.take_steps();
        }
        match self.random.below(3) {
            0 => self.hinted += u32::from(self.controller.hint_boost(self.now).is_ok()),
            1 => {
                self.controller.hint_drain(self.now);
                self.hinted = 0;
            }
            _ => {
                self.controller.hint_detach(self.now);
                self.hinted = 0;
            }
        }
    }

    fn announce(&mut self) {
        let size = self.random.chance(0.5).then(|| Bytes::from_mib(self.random.below(6000)));
        let starts_in = Duration::from_secs(self.random.below(120));
        self.hinted += u32::from(self.controller.hint_burst(self.now, BurstHint { size, starts_in }).is_ok());
    }

    fn traffic(&mut self, demand: u64, faults: f64) {
        let observation = &mut self.observation;
        let Real { volume: Some(size), adopted: true, draining, finishing, failed, .. } = self.real else {
            observation.written_bytes += demand.min(BACKING_MIB_S) * MIB;
            return;
        };
        let most = ((BACKING_MIB_S * MIB) as f64 * self.plan.pace) as u64;
        let drained = observation.dirty_bytes.min(most);
        observation.dirty_bytes -= drained;
        observation.drained_bytes += drained;
        if draining || failed {
            self.full_s = 0;
            observation.written_bytes += demand.min(BACKING_MIB_S) * MIB;
            // Near its end the engine lets changes wait by itself.
            if observation.dirty_bytes > 4 * MIB && finishing {
                self.waited_s += 1;
            } else if observation.dirty_bytes > 4 * MIB && !failed {
                let wanted = ((drained as f64 * self.rewrites) as u64).min(CACHING_MIB_S * MIB);
                let rewritten = wanted.min(size * MIB - observation.dirty_bytes);
                observation.dirty_bytes += rewritten;
                observation.written_bytes += rewritten;
                observation.high_water_bytes = observation.high_water_bytes.max(observation.dirty_bytes);
            }
        } else {
            let wanted = demand.min(if self.plan.useless { BACKING_MIB_S } else { CACHING_MIB_S }) * MIB;
            let absorbed = wanted.min(size * MIB - observation.dirty_bytes);
            observation.dirty_bytes += absorbed;
            observation.evicted_bytes += wanted - absorbed;
            observation.written_bytes += wanted;
            observation.high_water_bytes = observation.high_water_bytes.max(observation.dirty_bytes);
            let full = observation.dirty_bytes == size * MIB && demand > BACKING_MIB_S;
            self.full_s = if full { self.full_s + 1 } else { 0 };
            let wait = 4 * size / BACKING_MIB_S + if self.plan.grows() { 30 } else { 10 };
            assert!(self.full_s <= wait || !self.plan.waits_in_vain(), "a full cache waits for a burst without an end");
        }
        if self.random.chance(faults / 50.0) {
            self.real.failed = true;
            observation.cache_failed = true;
        }
    }

    pub fn take_steps(&mut self) {
        while let Some((id, step)) = self.controller.next_step() {
            self.check(&step);
            if let Step::Create { size } = step {
                self.billed.add(rental(size, self.now));
                self.billed_mib = size.get() / MIB;
                self.excused = false;
                self.growth = None;
            }
            self.bill();
            self.steps.push((self.now, step.clone()));
            // As the engine does: a release drains, until an `Absorb` overtakes it.
            self.real.draining |= step == Step::Release && self.real.adopted;
            let at_once = matches!(step, Step::Absorb | Step::Drain | Step::Finish);
            let delay = if at_once { 0 } else { self.random.below(4) };
            self.outstanding.push((self.now + Duration::from_secs(delay), id, step));
        }
    }

    /// The order of steps, and that nothing is done to what may hold data.
    fn check(&mut self, step: &Step) {
        match self.outstanding.as_slice() {
            [] => {}
            [(_, _, Step::Release)] => {
                assert!(matches!(step, Step::Absorb | Step::Finish), "{step:?} overtakes a Release");
            }
            others => panic!("{step:?} while {others:?} is outstanding"),
        }
        match step {
            Step::Create { size } => {
                assert!(!self.owed, "the last volume was not deleted");
                if self.controller.cause() == Some(Cause::Request) {
                    self.requested.push(self.now);
                }
                let wanted = self.hot_before || self.plan.forecasts() || self.hinted > 0;
                self.hinted -= u32::from(!self.hot_before && self.hinted > 0);
                assert!(wanted, "a boost below the threshold");
                let interval = Duration::from_secs(self.plan.interval_s);
                let early = self.boosts.last().is_some_and(|last| self.now.since(*last) < interval);
                assert!(!early || self.has_users, "boosts too close");
                assert!(
                    size.get().is_multiple_of(64 * MIB) && *size <= Bytes::from_gib(4) && *size >= Bytes::from_mib(64)
                );
                self.owed = true;
            }
            Step::Detach | Step::Delete => {
                assert!(!self.real.adopted, "{step:?} of a volume that the engine holds");
                assert!(self.owed);
            }
            Step::Grow { size } => {
                assert!(self.owed && self.plan.grows() && *size <= Bytes::from_gib(4), "it grows to {size}");
                let volume = self.real.volume.unwrap_or_default();
                assert!(
                    size.get().is_multiple_of(64 * MIB) && (size.get() / MIB > volume || self.growth.is_some()),
                    "it grows from {volume} MiB to {size}"
                );
            }
            Step::Attach | Step::Adopt | Step::Absorb | Step::Drain | Step::Finish | Step::Release => {
                assert!(self.owed)
            }
        }
    }

    fn answer(&mut self, faults: f64) {
        if let Some((_, step)) = self.late.take_if(|(at, _)| *at <= self.now) {
            self.carry_out(&step);
        }
        while let Some(index) = self.outstanding.iter().position(|(at, ..)| *at <= self.now) {
            let (_, id, step) = self.outstanding.remove(index);
            let outcome = self.outcome(&step, faults);
            if step == Step::Delete && outcome == StepOutcome::Done {
                self.owed = false;
                self.billed.end("caching", self.now);
                self.billed_mib = 0;
            }
            self.excused |= matches!(step, Step::Detach | Step::Delete) && outcome != StepOutcome::Done;
            if matches!(step, Step::Grow { .. }) {
                self.note_growth(&outcome);
            }
            *self.answers.entry((name(&step), answer(&outcome))).or_default() += 1;
            if matches!(step, Step::Create { .. }) && outcome == StepOutcome::Done {
                self.boosts.push(self.steps.iter().rev().find(|(_, other)| *other == step).unwrap().0);
            }
            self.controller.complete(self.now, id, outcome);
            self.bill();
            self.take_steps();
        }
    }

    /// What is billed by is what the controller takes the volume for.
    fn bill(&mut self) {
        let Some(size) = self.controller.status().cache_size.filter(|_| self.owed) else { return };
        if size.get() / MIB != self.billed_mib {
            self.billed.end("caching", self.now);
            self.billed.add(rental(size, self.now));
            self.billed_mib = size.get() / MIB;
        }
    }

    fn outcome(&mut self, step: &Step, faults: f64) -> StepOutcome {
        if *step == Step::Release && self.real.adopted && !self.real.failed {
            if !self.real.draining {
                return StepOutcome::Cancelled;
            }
            self.observation.dirty_bytes = 0;
        }
        let spared = self.plan.provider_faults && is_engines(step);
        if !self.random.chance(faults) || spared {
            self.late = None; // asked again, or made void by what follows
            self.carry_out(step);
            return StepOutcome::Done;
        }
        let engine = is_engines(step);
        match self.random.below(if engine { 2 } else { 6 }) {
            0 => StepOutcome::Refused(Refusal::Transient("a fault".to_owned())),
            1 => {
                match self.random.below(3) {
                    0 => self.carry_out(step),
                    1 if !engine => {
                        self.late = Some((self.now + Duration::from_secs(self.random.below(5)), step.clone()))
                    }
                    _ => {}
                }
                StepOutcome::Refused(Refusal::Timeout)
            }
            2 => StepOutcome::Refused(Refusal::Quota),
            3 => StepOutcome::Refused(Refusal::Capacity),
            4 => StepOutcome::Refused(Refusal::AttachLimit),
            _ => StepOutcome::Refused(Refusal::Permanent("no permission".to_owned())),
        }
    }

    /// Steps are idempotent, and void where what they need is gone.
    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Create { size } => {
                if self.real.volume.is_none() {
                    self.charged.add(rental(*size, self.now));
                }
                self.real.volume = Some(size.get() / MIB);
            }
            Step::Attach => self.real.attached = self.real.volume.is_some(),
            Step::Adopt if self.real.attached && !self.real.adopted => {
                self.real = Real { adopted: true, draining: false, finishing: false, ..self.real };
                self.observation.high_water_bytes = 0;
                self.observation.evicted_bytes = 0;
                self.observation.drained_bytes = 0;
                self.observation.cache_bytes = self.real.volume.unwrap() * MIB;
            }
            Step::Adopt => {}
            Step::Grow { size } => {
                if let Some(volume) = self.real.volume.as_mut().filter(|volume| **volume < size.get() / MIB) {
                    *volume = size.get() / MIB;
                    self.charged.end("caching", self.now);
                    self.charged.add(rental(*size, self.now));
                }
                if self.real.adopted {
                    self.observation.cache_bytes = self.real.volume.unwrap() * MIB;
                }
            }
            Step::Absorb => (self.real.draining, self.real.finishing) = (false, false),
            Step::Drain => (self.real.draining, self.real.finishing) = (true, false),
            Step::Finish => (self.real.draining, self.real.finishing) = (true, true),
            Step::Release => {
                self.real = Real { adopted: false, draining: false, finishing: false, failed: false, ..self.real };
                self.observation =
                    Observation { dirty_bytes: 0, cache_bytes: 0, cache_failed: false, ..self.observation };
            }
            Step::Detach => self.real.attached = false,
            Step::Delete => {
                self.real = Real::default();
                self.charged.end("caching", self.now);
            }
        }
    }

    pub fn run(mut self) -> Self {
        for (stretch, (demand, seconds)) in self.plan.traffic.clone().into_iter().enumerate() {
            self.rewrites = self.plan.rewrites.get(stretch).copied().unwrap_or_default();
            for _ in 0..seconds {
                self.second(demand, self.plan.faults);
            }
        }
        self
    }

    /// No more faults and no more traffic: everything ends, nothing is rented.
    pub fn settle(mut self) -> Self {
        (self.plan.hints, self.plan.announcements) = (0.0, 0.0);
        self.rewrites = 0.0;
        // Longer than the longest wait, which only a failed release has: 30 min.
        for _ in 0..4000 {
            self.second(0, 0.0);
        }
        assert_eq!(self.controller.phase(), Phase::Idle, "{:?}", self.controller.status());
        assert_eq!((self.real, self.owed, self.outstanding.len()), (Real::default(), false, 0));
        let open = |account: &Account| account.rentals().iter().any(|rental| rental.until.is_none());
        assert!(!open(&self.billed) && !open(&self.charged), "a bill that does not end");
        let (billed, charged) = (self.billed.total(self.now).agbs, self.charged.total(self.now).agbs);
        assert!(billed >= charged, "{billed} AGBs billed of {charged} charged");
        self
    }
}

fn rental(size: Bytes, from: Instant) -> Rental {
    let bandwidth = Bandwidth::from_mib_s(CACHING_MIB_S);
    let billing = Billing::default();
    Rental { volume: "caching".to_owned(), size, bandwidth, usd_per_hour: None, billing, from, until: None }
}

/// Done by the machine itself.
fn is_engines(step: &Step) -> bool {
    matches!(step, Step::Absorb | Step::Drain | Step::Finish | Step::Release)
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Create { .. } => "create",
        Step::Attach => "attach",
        Step::Adopt => "adopt",
        Step::Grow { .. } => "grow",
        Step::Absorb => "absorb",
        Step::Drain => "drain",
        Step::Finish => "finish",
        Step::Release => "release",
        Step::Detach => "detach",
        Step::Delete => "delete",
    }
}

fn answer(outcome: &StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Done => "done",
        StepOutcome::Cancelled => "cancelled",
        StepOutcome::Refused(Refusal::Transient(_)) => "failed",
        StepOutcome::Refused(Refusal::Timeout) => "timed out",
        StepOutcome::Refused(Refusal::Quota) => "quota",
        StepOutcome::Refused(Refusal::Capacity) => "capacity",
        StepOutcome::Refused(Refusal::AttachLimit) => "attach limit",
        StepOutcome::Refused(Refusal::Throttled { .. }) => "throttled",
        StepOutcome::Refused(Refusal::Failed(_)) => "failed volume",
        StepOutcome::Refused(Refusal::Permanent(_)) => "permanent",
        StepOutcome::Refused(Refusal::NoRoom(_)) => "no room",
    }
}
