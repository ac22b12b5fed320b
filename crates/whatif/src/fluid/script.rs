//! A plan in place of a controller: which caching volume is used when.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};
use surgetank_policy::Prediction;

use super::{Fluid, FluidStage};
use crate::report::Boost;

/// A caching volume that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scripted {
    /// Its size.
    pub size: Bytes,
    /// It absorbs from then on.
    pub from: Instant,
    /// It drains with priority from then on, and is released when it is clean; `None`: not known yet.
    pub until: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Script {
    planned: VecDeque<Scripted>,
    used: Option<(Scripted, Instant)>,
    /// From the call until a volume absorbs, and from its release until its bill ends.
    latencies: (Duration, Duration),
    /// No volume comes before.
    free_from: Instant,
    boosts: Vec<Boost>,
}

impl Script {
    /// A plan without volumes, of a provider with these latencies.
    #[must_use]
    pub fn new(before: Duration, after: Duration) -> Self {
        Self { latencies: (before, after), free_from: Instant::ZERO + before, ..Self::default() }
    }

    /// Plans another volume, after those planned before.
    pub fn plan(&mut self, next: Scripted) {
        self.planned.push_back(next);
    }

    /// The first volume whose end is not known is released from now on.
    pub fn end(&mut self, now: Instant) {
        let used = self.used.as_mut().map(|(used, _)| used);
        if let Some(first) = used.into_iter().chain(&mut self.planned).find(|planned| planned.until.is_none()) {
            first.until = Some(now);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.planned.is_empty() && self.used.is_none()
    }

    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        match (&self.used, self.planned.front()) {
            (Some((used, _)), _) => used.until.filter(|until| *until > now),
            (None, Some(next)) => Some(next.from.max(self.free_from)),
            (None, None) => None,
        }
    }

    pub(super) fn into_boosts(self) -> Vec<Boost> {
        self.boosts
    }

    fn come(&mut self, now: Instant) -> Option<Bytes> {
        self.planned.front().filter(|next| next.from.max(self.free_from) <= now)?;
        let next = self.planned.pop_front()?;
        self.used = Some((next, now));
        Some(next.size)
    }

    fn is_unwanted(&self, now: Instant) -> bool {
        self.used.as_ref().is_some_and(|(used, _)| used.until.is_some_and(|until| until <= now))
    }

    fn go(&mut self, now: Instant, high_water: Bytes) {
        let Some((used, from)) = self.used.take() else { return };
        let (before, after) = self.latencies;
        let started = Instant::from_nanoseconds(from.since(Instant::ZERO + before).as_nanos() as u64);
        self.free_from = now + after + before;
        self.boosts.push(Boost {
            size: used.size,
            sizes: vec![(used.size, started)],
            started,
            ended: now + after,
            attach: Some(before),
            absorb: Some(now.since(from)),
            drain: Some(Duration::ZERO),
            high_water,
            evicted: Bytes::ZERO,
            predicted: None,
            observed: Prediction::default(),
        });
    }
}

impl Fluid<'_> {
    /// The same under a plan.
    #[must_use]
    pub fn scripted(self, script: Script) -> Self {
        Self { controller: None, script, ..self }
    }

    /// The plan, to add to.
    pub fn script(&mut self) -> &mut Script {
        &mut self.script
    }

    pub(super) fn follow_script(&mut self) {
        let now = self.now;
        if self.script.used.is_none()
            && let Some(size) = self.script.come(now)
        {
            self.end_stretch();
            self.adopt(size);
        }
        if self.script.is_unwanted(now) {
            self.end_stretch();
            self.stage = FluidStage::Finish;
            if self.levels.dirty <= 0.0 {
                self.stage = FluidStage::PassThrough;
                self.levels.capacity = 0.0;
                self.script.go(now, Bytes::new(self.levels.high_water as u64));
            }
        }
    }
}
