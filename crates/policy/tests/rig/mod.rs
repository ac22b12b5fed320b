//! A controller in a world without chance: a device that writes bursts, and a provider that takes its time.

#![allow(dead_code, reason = "every test program uses its own part")]

use std::time::Duration;

use surgetank_model::units::MIB;
use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::{BoostRecord, Config, Controller, Learned, Phase, Preset, Refusal, Step, StepId, StepOutcome};

pub const BACKING_MIB_S: u64 = 33;
pub const CACHING_MIB_S: u64 = 128;

/// A controller of the papers' volumes, its clock and its device, and a provider that takes its time to create a volume.
pub struct Rig {
    pub controller: Controller,
    pub now: Instant,
    pub observation: Observation,
    pub create_s: u64,
    pub pending: Option<(Instant, StepId)>,
    pub sizes: Vec<Bytes>,
    /// What the provider says to a growth.
    pub growth: StepOutcome,
    /// The largest volume that the provider has room for.
    pub room: Bytes,
    /// So many creations fail before one does not.
    pub failing: u32,
}

impl Rig {
    pub fn new(create_s: u64, change: impl FnOnce(&mut Config), learned: Learned) -> Self {
        let mut config = Config::new(
            Preset::ADAPTIVE,
            Bandwidth::from_mib_s(BACKING_MIB_S),
            Bytes::from_gib(50),
            Bandwidth::from_mib_s(CACHING_MIB_S),
        );
        config.initial_size = Bytes::from_gib(4);
        change(&mut config);
        config.validate().unwrap();
        let mut controller = Controller::new(Instant::ZERO, config, learned);
        let observation = Observation::default();
        controller.observe(Instant::ZERO, observation);
        Self {
            controller,
            now: Instant::ZERO,
            observation,
            create_s,
            pending: None,
            sizes: Vec::new(),
            growth: StepOutcome::Done,
            room: Bytes::new(u64::MAX),
            failing: 0,
        }
    }

    pub fn absorbs(&self) -> bool {
        self.controller.phase() == Phase::Boost
    }

    /// A second in which so much is read and written, and requests are in the device for a share of it.
    pub fn second(&mut self, read_mib: u64, written_mib: u64, busy: f64) {
        self.now += Duration::from_secs(1);
        self.observation.read_bytes += read_mib * MIB;
        self.observation.written_bytes += written_mib * MIB;
        self.observation.busy += Duration::from_secs(1).mul_f64(busy);
        let (dirty, cache) = (self.observation.dirty_bytes, self.observation.cache_bytes);
        self.observation.dirty_bytes = if self.absorbs() && written_mib > 0 {
            let absorbed = written_mib.min(CACHING_MIB_S) * MIB;
            self.observation.evicted_bytes += (dirty + absorbed).saturating_sub(cache);
            (dirty + absorbed).min(cache)
        } else {
            dirty.saturating_sub(BACKING_MIB_S * MIB)
        };
        if let Some((_, id)) = self.pending.take_if(|(at, _)| *at <= self.now) {
            self.controller.complete(self.now, id, StepOutcome::Done);
        }
        self.controller.observe(self.now, self.observation);
        while self.controller.next_deadline().is_some_and(|at| at <= self.now) {
            self.controller.tick(self.now);
        }
        self.take_steps();
    }

    pub fn take_steps(&mut self) {
        while let Some((id, step)) = self.controller.next_step() {
            match step {
                Step::Create { size } if size > self.room => {
                    self.controller.complete(self.now, id, StepOutcome::Refused(Refusal::Capacity));
                    continue;
                }
                Step::Create { .. } if self.failing > 0 => {
                    self.failing -= 1;
                    let fault = StepOutcome::Refused(Refusal::Transient("a fault".to_owned()));
                    self.controller.complete(self.now, id, fault);
                    continue;
                }
                Step::Create { size } => {
                    self.sizes.push(size);
                    self.pending = Some((self.now + Duration::from_secs(self.create_s), id));
                    continue;
                }
                Step::Adopt => {
                    self.observation.cache_bytes = self.sizes.last().unwrap().get();
                    self.observation.evicted_bytes = 0;
                }
                Step::Grow { size } => {
                    self.sizes.push(size);
                    if self.growth == StepOutcome::Done {
                        self.observation.cache_bytes = size.get();
                    }
                    self.controller.complete(self.now, id, self.growth.clone());
                    continue;
                }
                Step::Release => self.observation.cache_bytes = 0,
                _ => {}
            }
            self.controller.complete(self.now, id, StepOutcome::Done);
        }
    }

    pub fn calm(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.second(0, 0, 0.0));
    }

    /// Writes so much, as fast as the volumes take it. Answers whether the cache was there from the start.
    pub fn burst(&mut self, mib: u64) -> bool {
        let (in_time, mut left) = (self.absorbs(), mib);
        while left > 0 {
            let full = self.observation.dirty_bytes >= self.observation.cache_bytes;
            let rate = if self.absorbs() && !full { BACKING_MIB_S + CACHING_MIB_S } else { BACKING_MIB_S };
            let written = rate.min(left);
            self.second(0, written, written as f64 / rate as f64);
            left -= written;
        }
        in_time
    }

    pub fn records(&mut self) -> Vec<BoostRecord> {
        std::iter::from_fn(|| self.controller.next_record()).collect()
    }

    pub fn value_of_time(&self) -> f64 {
        self.controller.config().value_of_time
    }
}
