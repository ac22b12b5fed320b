//! All jobs of a log over one pool.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use surgetank_model::{Bytes, EventQueue, Instant};

use super::burst::PROCESSES_MAX;
use super::planted::{Bug, planted};
use super::tiers::{Pool, Tiers};

/// More checkpoints than any log comes to at a sensible interval.
const CHECKPOINTS_MAX: u128 = 100_000_000;

/// A job that writes checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it starts, whatever others take.
    pub start: Instant,
    /// How long it computes in all.
    pub computes: Duration,
    /// Processes, by which jobs share the pool: each takes an equal part.
    pub processes: u64,
    /// What it writes each time.
    pub dataset: Bytes,
}

/// Jobs over a pool. Each computes, writes, waits until the pool has taken that in, and computes on; it writes once more when it ends.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'a> {
    /// The jobs.
    pub jobs: &'a [Job],
    /// Computing between checkpoints, above zero.
    pub every: Duration,
    /// What they write into.
    pub pool: Pool,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobsError {
    /// They would take hours.
    #[error(
        "the jobs would write more than {CHECKPOINTS_MAX} checkpoints, the most that are simulated: take fewer or shorter jobs, or a longer interval"
    )]
    TooMany,
}

/// One that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    /// Whose, of the jobs.
    pub job: u32,
    /// When it began.
    pub began: Instant,
    /// How long the job waited.
    pub took: Duration,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order in which they ended.
    pub checkpoints: Vec<Checkpoint>,
    /// What was written, by the jobs.
    pub bytes: u128,
    /// What the pool took in, and what the target had in the end.
    pub absorbed: f64,
    /// See `absorbed`.
    pub drained: f64,
    /// The most in memory and on SSD at once, in bytes.
    pub memory_most: f64,
    /// See `memory_most`.
    pub ssd_most: f64,
    /// The most processes that wrote at once.
    pub processes_most: u64,
    /// When the last job had written, and when the target had everything.
    pub written: Instant,
    /// See `written`.
    pub ended: Instant,
    /// Changes of a flow that were gone through.
    pub events: u64,
}

/// A job that writes: it ends when each process has its part of the dataset.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Writing {
    /// Bytes of a process, on the scale of all that write, at which it ends.
    until: f64,
    job: u32,
    began: f64,
}

impl Eq for Writing {}

impl Ord for Writing {
    fn cmp(&self, other: &Self) -> Ordering {
        self.until.total_cmp(&other.until).then(self.job.cmp(&other.job))
    }
}

impl PartialOrd for Writing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The jobs and what they do.
struct Run<'a> {
    jobs: &'a [Job],
    every: Duration,
    tiers: Tiers,
    now_s: f64,
    /// Jobs that have computed for so long in all when they write next.
    computing: EventQueue<(u32, Duration)>,
    writing: BinaryHeap<Reverse<Writing>>,
    /// For how long each job that writes has computed.
    computed: Vec<Duration>,
    processes: u64,
    /// Bytes that a process would have written which wrote since the pool was idle last.
    part: f64,
    outcome: Outcome,
}

impl Jobs<'_> {
    /// Simulates until the target has everything.
    ///
    /// # Errors
    /// If there are absurdly many checkpoints.
    pub fn run(&self) -> Result<Outcome, JobsError> {
        let every = self.every.max(Duration::from_millis(1));
        let number = |job: &Job| job.computes.as_nanos() / every.as_nanos() + 1;
        if self.jobs.iter().map(number).sum::<u128>() > CHECKPOINTS_MAX {
            return Err(JobsError::TooMany);
        }
        let mut run = Run {
            jobs: self.jobs,
            every,
            tiers: Tiers::of(self.pool.nodes, &self.pool),
            now_s: 0.0,
            computing: EventQueue::default(),
            writing: BinaryHeap::new(),
            computed: vec![Duration::ZERO; self.jobs.len()],
            processes: 0,
            part: 0.0,
            outcome: Outcome::default(),
        };
        for (index, job) in self.jobs.iter().enumerate() {
            run.compute(index as u32, job.start);
        }
        while run.step() {}
        Ok(run.outcome)
    }
}

impl Run<'_> {
    /// A job computes from then on, until it writes next; unless it has ended.
    fn compute(&mut self, index: u32, from: Instant) {
        let (job, computed) = (self.jobs[index as usize], self.computed[index as usize]);
        let until = computed.saturating_add(self.every).min(job.computes);
        let is_last = until >= job.computes;
        if computed < job.computes && !(is_last && planted(Bug::EndForgotten)) {
            self.computing.push(from + (until - computed), (index, until));
        }
    }

    /// What of all processes one counts as.
    fn weight(job: &Job) -> u64 {
        if planted(Bug::JobsShareEqually) { 1 } else { job.processes.clamp(1, PROCESSES_MAX) }
    }

    /// Whether there was anything left to do.
    fn step(&mut self) -> bool {
        let flow = self.tiers.flow(!self.writing.is_empty());
        let next_s = self.computing.next_at().map(Instant::as_seconds);
        let ends_s = self.writing.peek().map_or(f64::INFINITY, |Reverse(first)| {
            (first.until - self.part).max(0.0) * self.processes as f64 / flow.taken
        });
        let arrives_s = next_s.map_or(f64::INFINITY, |next_s| (next_s - self.now_s).max(0.0));
        let seconds = self.tiers.horizon(&flow).min(ends_s).min(arrives_s);
        if seconds == f64::INFINITY {
            return false;
        }
        self.tiers.advance(&flow, seconds);
        self.now_s += seconds;
        if self.processes > 0 {
            self.part += flow.taken * seconds / self.processes as f64;
        }
        if seconds >= ends_s {
            self.end();
        }
        if seconds >= arrives_s {
            self.begin();
        }
        self.count();
        true
    }

    /// The first of those that write has written.
    fn end(&mut self) {
        let Some(Reverse(Writing { job: index, began, until })) = self.writing.pop() else { return };
        self.part = until;
        let job = &self.jobs[index as usize];
        self.processes -= Self::weight(job);
        if self.writing.is_empty() {
            self.part = 0.0;
        }
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let now = Instant::ZERO + seconds(self.now_s);
        let began = Instant::ZERO + seconds(began);
        self.outcome.checkpoints.push(Checkpoint { job: index, began, took: now.since(began) });
        self.outcome.written = now;
        self.compute(index, if planted(Bug::NotBlocked) { began } else { now });
    }

    /// The next job begins to write.
    fn begin(&mut self) {
        let Some((at, (index, computed))) = self.computing.pop() else { return };
        self.now_s = self.now_s.max(at.as_seconds());
        self.computed[index as usize] = computed;
        let job = &self.jobs[index as usize];
        let weight = Self::weight(job);
        let until = self.part + job.dataset.get() as f64 / weight as f64;
        self.writing.push(Reverse(Writing { until, job: index, began: self.now_s }));
        self.processes += weight;
        self.outcome.bytes += u128::from(job.dataset.get());
        self.outcome.processes_most = self.outcome.processes_most.max(self.processes);
    }

    fn count(&mut self) {
        let outcome = &mut self.outcome;
        outcome.memory_most = outcome.memory_most.max(self.tiers.memory);
        outcome.ssd_most = outcome.ssd_most.max(self.tiers.ssd);
        (outcome.absorbed, outcome.drained) = (self.tiers.absorbed, self.tiers.drained);
        outcome.ended = Instant::ZERO + Duration::try_from_secs_f64(self.now_s).unwrap_or(Duration::MAX);
        outcome.events += 1;
    }
}
