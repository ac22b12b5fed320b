//! The optimum for an application, which computes, waits for its I/O, and goes on.
//!
//! Dynamic programming over its I/O phases. The state at the start of one is: nothing rented, or a size and how much of it
//! is dirty. A phase of S bytes from d dirty bytes to e takes at least max((S + d − e)/Bb, S/(Bb + Bc)), whatever happens
//! in it: every byte has reached the backing volume or is dirty, and no volume is faster than its rate. The compute time
//! after it drains at most Bb times its length. A volume that is first used in a phase is held at least e/Bc of it, and one
//! that is released has drained what was dirty, at Bb. To wait longer between phases saves no more than the wait costs: the
//! first bound holds for the phase and the wait together.
//!
//! Dirty bytes are kept in steps, each with the most that the phase before may leave and the least that the next one
//! starts with. Two rentals may overlap, which only costs more than to keep the first.

use super::problem::{Problem, Size};

/// Steps of what is dirty.
const STEPS_MAX: usize = 64;
const STEPS_MIN: usize = 8;
/// Transitions that one optimum may take, about.
const WORK: usize = 30_000_000;

/// An I/O phase and the compute time after it.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its index among the application's phases.
    pub phase: usize,
    /// It reads what was written last; else it writes.
    pub reads: bool,
    /// Bytes.
    pub bytes: f64,
    /// Seconds until the next one; after the last one nobody waits.
    pub gap: f64,
}

/// A caching volume that is rented for some phases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// Which size.
    pub size: usize,
    /// The first I/O phase that uses it.
    pub first: usize,
    /// Seconds from that phase's start until it absorbs.
    pub offset: f64,
    /// The last one.
    pub last: usize,
}

/// Where a state came from.
#[derive(Clone, Copy, Debug)]
struct Arc {
    from: usize,
    /// A volume is first used in the phase: which, and after how many seconds of it.
    started: Option<(usize, f64)>,
}

/// The least costs of all states at one moment.
struct States {
    costs: Vec<f64>,
    arcs: Vec<Arc>,
}

impl States {
    fn new(count: usize) -> Self {
        Self { costs: vec![f64::INFINITY; count], arcs: vec![Arc { from: 0, started: None }; count] }
    }

    fn relax(&mut self, to: usize, cost: f64, arc: Arc) {
        if cost < self.costs[to] {
            self.costs[to] = cost;
            self.arcs[to] = arc;
        }
    }
}

/// See the module.
pub struct Phases<'a> {
    problem: &'a Problem,
    works: &'a [Work],
    /// Cost of a second in which the application waits.
    waiting: f64,
    /// Each size has so many for what is dirty in it.
    steps: usize,
}

/// What a volume may be first used from.
struct Source {
    state: usize,
    cost: f64,
    dirty: f64,
    offset: f64,
}

impl<'a> Phases<'a> {
    /// The phases of an application.
    pub fn new(problem: &'a Problem, works: &'a [Work]) -> Self {
        let states = problem.sizes.len().max(1) * works.len().max(1);
        let steps = ((WORK / states) as f64).sqrt() as usize;
        let steps = steps.clamp(STEPS_MIN, STEPS_MAX);
        Self { problem, works, waiting: problem.per_s + problem.value, steps }
    }

    fn state(&self, size: usize, step: usize) -> usize {
        1 + size * (self.steps + 1) + step
    }

    fn size_of(&self, state: usize) -> Option<usize> {
        state.checked_sub(1).map(|held| held / (self.steps + 1))
    }

    /// Bytes of a step.
    fn step(&self, size: &Size) -> f64 {
        size.capacity / self.steps as f64
    }

    /// The least that is dirty in a step.
    fn least(&self, size: &Size, step: usize) -> f64 {
        step.saturating_sub(1) as f64 * self.step(size)
    }

    /// The least cost of the phases and what is between them, from `started` seconds of compute on, and how.
    pub fn optimum(&self, started: f64) -> (f64, Vec<Planned>) {
        let count = 1 + self.problem.sizes.len() * (self.steps + 1);
        let mut now = States::new(count);
        now.costs[0] = self.problem.per_s * started;
        let mut arcs = Vec::with_capacity(self.works.len());
        // Nothing was rented before, so the backing volume alone has served what came before.
        let mut latest = started;
        for (index, work) in self.works.iter().enumerate() {
            let mut next = States::new(count);
            let drained =
                if index + 1 == self.works.len() { f64::INFINITY } else { self.problem.backing.moved(work.gap) };
            let stage = Stage { phases: self, work, drained, is_last: drained.is_infinite() };
            if work.reads {
                stage.read(&now.costs, &mut next);
            } else {
                stage.keep(&now.costs, &mut next);
                for source in stage.sources(&now.costs, (self.problem.before - latest).max(0.0)) {
                    stage.start(&source, &mut next);
                }
            }
            for cost in &mut next.costs {
                *cost += self.problem.per_s * work.gap;
            }
            latest += self.problem.backing.time(work.bytes) + work.gap;
            arcs.push(next.arcs);
            now.costs = next.costs;
        }
        (now.costs[0], self.rentals(&arcs))
    }

    fn rentals(&self, arcs: &[Vec<Arc>]) -> Vec<Planned> {
        let mut state = 0;
        let mut planned = Vec::new();
        // The phase in which the volume that is held at its end is released, if it is.
        let mut last = None;
        for (index, arcs) in arcs.iter().enumerate().rev() {
            let arc = arcs[state];
            if let Some((size, offset)) = arc.started {
                planned.push(Planned { size, first: index, offset, last: last.take().unwrap_or(index) });
            }
            let is_kept = self.size_of(arc.from).is_some() && arc.started.is_none() && state != 0;
            if self.size_of(arc.from).is_some() && !is_kept {
                last = Some(index);
            }
            state = arc.from;
        }
        planned.reverse();
        planned
    }
}

/// One I/O phase and the time after it.
struct Stage<'a> {
    phases: &'a Phases<'a>,
    work: &'a Work,
    /// The most that drains in the time after it.
    drained: f64,
    is_last: bool,
}

impl Stage<'_> {
    /// The least seconds of the phase from `dirty` to `left` dirty bytes.
    fn time(&self, dirty: f64, left: f64, offset: f64) -> f64 {
        let problem = self.phases.problem;
        let alone = problem.backing.time(self.work.bytes + dirty - left);
        alone.max(problem.both(self.work.bytes, offset))
    }

    /// Where a cost that is linear in what is left dirty has its least: the ends, and where the phase's bound changes.
    fn candidates(&self, dirty: f64, most: f64, offset: f64) -> [f64; 4] {
        let problem = self.phases.problem;
        let both = self.work.bytes + dirty - problem.backing.moved(problem.both(self.work.bytes, offset));
        let in_credit = self.work.bytes + dirty - problem.backing.in_credit();
        [0.0, most, both.clamp(0.0, most), in_credit.clamp(0.0, most)]
    }

    /// Nothing is rented, or what is rented stays or is released.
    fn keep(&self, costs: &[f64], next: &mut States) {
        let (phases, problem) = (self.phases, self.phases.problem);
        let arc = |from| Arc { from, started: None };
        next.relax(0, costs[0] + phases.waiting * problem.backing.time(self.work.bytes), arc(0));
        for (index, size) in problem.sizes.iter().enumerate() {
            for step in 0..=phases.steps {
                let from = phases.state(index, step);
                let (cost, dirty) = (costs[from], phases.least(size, step));
                if cost.is_infinite() {
                    continue;
                }
                let ended = cost + size.per_s * problem.after;
                let alone = phases.waiting * problem.backing.time(self.work.bytes + dirty);
                next.relax(0, ended + alone + size.per_s * problem.backing.at_rate(dirty), arc(from));
                let held = phases.waiting + size.per_s;
                let most = size.capacity.min(self.drained);
                for left in self.candidates(dirty, most, 0.0) {
                    let time = self.time(dirty, left, 0.0);
                    next.relax(0, ended + held * time + size.per_s * problem.backing.at_rate(left), arc(from));
                }
                if self.is_last {
                    continue;
                }
                let cost = cost + size.per_s * self.work.gap;
                next.relax(phases.state(index, 0), cost + held * self.time(dirty, most, 0.0), arc(from));
                for to in 1..=phases.steps {
                    let Some(left) = self.left(size, to) else { break };
                    next.relax(phases.state(index, to), cost + held * self.time(dirty, left, 0.0), arc(from));
                }
            }
        }
    }

    /// The most that the phase leaves dirty if the next one starts in this step.
    fn left(&self, size: &Size, step: usize) -> Option<f64> {
        let most = step as f64 * self.phases.step(size) + self.drained;
        (self.least_left(size, step) < size.capacity).then_some(most.min(size.capacity))
    }

    /// The least that it leaves dirty then, if all drains that can.
    fn least_left(&self, size: &Size, step: usize) -> f64 {
        self.phases.least(size, step) + (self.drained - self.phases.problem.backing.ahead).max(0.0)
    }

    /// From where a volume may be first used: nothing is rented, or another was released in the phase.
    fn sources(&self, costs: &[f64], offset: f64) -> Vec<Source> {
        let (phases, problem) = (self.phases, self.phases.problem);
        let mut ended = Vec::new();
        for (index, size) in problem.sizes.iter().enumerate() {
            for step in 0..=phases.steps {
                let (state, dirty) = (phases.state(index, step), phases.least(size, step));
                let cost = costs[state] + size.per_s * (problem.backing.at_rate(dirty) + problem.after);
                ended.push(Source { state, cost, dirty, offset: 0.0 });
            }
        }
        // Less dirty and cheaper is better.
        ended.retain(|source| source.cost.is_finite());
        ended.sort_by(|one, other| one.dirty.total_cmp(&other.dirty).then(one.cost.total_cmp(&other.cost)));
        let mut least = f64::INFINITY;
        ended.retain(|source| {
            let is_better = source.cost < least;
            least = least.min(source.cost);
            is_better
        });
        ended.push(Source { state: 0, cost: costs[0], dirty: 0.0, offset });
        ended.retain(|source| source.cost.is_finite());
        ended
    }

    fn start(&self, source: &Source, next: &mut States) {
        let (phases, problem) = (self.phases, self.phases.problem);
        let filled = |bytes: f64| problem.caching.at_rate(bytes);
        for (index, size) in problem.sizes.iter().enumerate() {
            let cost = source.cost + size.fee + size.per_s * problem.before;
            let started = |left: f64| {
                let time = self.time(source.dirty, left, source.offset);
                (time, Arc { from: source.state, started: Some((index, (time - filled(left)).max(0.0))) })
            };
            let most = size.capacity.min(self.drained);
            for left in self.candidates(source.dirty, most, source.offset) {
                let (time, arc) = started(left);
                let used = cost + phases.waiting * time + size.per_s * filled(left);
                next.relax(0, used + size.per_s * (problem.backing.at_rate(left) + problem.after), arc);
                if !self.is_last {
                    next.relax(phases.state(index, 0), used + size.per_s * self.work.gap, arc);
                }
            }
            if self.is_last {
                continue;
            }
            for to in 1..=phases.steps {
                let Some(left) = self.left(size, to) else { break };
                let (time, arc) = started(left);
                let held = filled(self.least_left(size, to).min(left)) + self.work.gap;
                next.relax(phases.state(index, to), cost + phases.waiting * time + size.per_s * held, arc);
            }
        }
    }

    /// Reads are served by the backing volume or, as far as it may hold them, by a caching volume that was written to.
    fn read(&self, costs: &[f64], next: &mut States) {
        let (phases, problem) = (self.phases, self.phases.problem);
        let arc = |from| Arc { from, started: None };
        let bytes = self.work.bytes;
        next.relax(0, costs[0] + phases.waiting * problem.backing.time(bytes), arc(0));
        for (index, size) in problem.sizes.iter().enumerate() {
            let cached = bytes.min(size.capacity);
            let all = problem.backing.time(bytes - cached).max(problem.both(bytes, 0.0));
            for step in 0..=phases.steps {
                let from = phases.state(index, step);
                let cost = costs[from];
                if cost.is_infinite() {
                    continue;
                }
                for hit in self.candidates(0.0, cached, 0.0) {
                    let time = problem.backing.time(bytes - hit).max(problem.both(bytes, 0.0));
                    let held = problem.caching.at_rate(hit);
                    next.relax(0, cost + phases.waiting * time + size.per_s * (held + problem.after), arc(from));
                }
                if self.is_last {
                    continue;
                }
                let spare = problem.backing.moved(all + self.work.gap) - (bytes - cached);
                let dirty = (phases.least(size, step) - spare.max(0.0)).max(0.0);
                let to = if dirty > 0.0 { (dirty / phases.step(size)) as usize + 1 } else { 0 };
                let held = cost + (phases.waiting + size.per_s) * all + size.per_s * self.work.gap;
                next.relax(phases.state(index, to.min(phases.steps)), held, arc(from));
            }
        }
    }
}
