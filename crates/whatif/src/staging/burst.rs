//! One checkpoint of many processes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_planner::provision::Rates;

use super::planted::{Bug, planted};
use super::tiers::{Pool, Tiers};

/// More processes than any machine has: ten times as many as are simulated in seconds.
pub const PROCESSES_MAX: u64 = 10_000_000;
/// Chunks that a computer can go through one by one in minutes.
const CHUNKS_MAX: u64 = 20_000_000_000;

/// Benefactors that lend the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// How many.
    pub count: u64,
    /// Memory of each.
    pub memory: Bytes,
    /// SSD of each.
    pub ssd: Bytes,
    /// What each does.
    pub rates: Rates,
}

/// All processes write at once, each its part, in chunks that go to one benefactor after the other: those of a process behind those of the
/// one before. A benefactor serves its chunks in turns: the first of all processes, then the second.
#[derive(Clone, Debug)]
pub struct Burst {
    /// Benefactors, the chunks' order.
    pub kinds: Vec<Kind>,
    /// How many processes.
    pub processes: u64,
    /// What each writes.
    pub each: Bytes,
    /// Unit of striping.
    pub chunk: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BurstError {
    /// Nothing to simulate.
    #[error("a checkpoint needs a benefactor, a process, something to write and chunks: none of these is 0")]
    Empty,
    /// It would take hours.
    #[error(
        "the checkpoint has too many processes, benefactors or chunks for a simulation of each: take larger chunks, or fewer processes"
    )]
    TooLarge,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Until the last process had written everything: the application's checkpoint.
    pub took: Duration,
    /// The same of the first process, and the mean of all.
    pub first: Duration,
    /// See `first`.
    pub mean: Duration,
    /// Until the target had everything.
    pub drained: Duration,
    /// What was written, and what the target had in the end.
    pub bytes: Bytes,
    /// See `bytes`; rounded.
    pub at_target: Bytes,
    /// The most in the memory of one benefactor; rounded.
    pub memory_most: Bytes,
    /// Chunks that were placed.
    pub chunks: u64,
}

impl Written {
    /// What the application sees, in bytes a second.
    #[must_use]
    pub fn bytes_s(&self) -> f64 {
        self.bytes.get() as f64 / self.took.as_secs_f64()
    }
}

/// What a benefactor has taken in by when: points of a line, of bytes and seconds, and what became of them.
struct Absorbed {
    points: Vec<(f64, f64)>,
    memory_most: f64,
    drained_s: f64,
    drained: f64,
}

impl Burst {
    /// Simulates it.
    ///
    /// # Errors
    /// If there is nothing to simulate, or too much.
    pub fn run(&self) -> Result<Written, BurstError> {
        let count = self.kinds.iter().try_fold(0_u64, |sum, kind| sum.checked_add(kind.count));
        let chunks = self.each.get().div_ceil(self.chunk.get().max(1));
        if count == Some(0) || [self.processes, self.each.get(), self.chunk.get()].contains(&0) {
            return Err(BurstError::Empty);
        }
        let all = self.processes.checked_mul(chunks).filter(|all| *all <= CHUNKS_MAX);
        let count = count.filter(|count| *count.max(&self.processes) <= PROCESSES_MAX);
        let (Some(count), Some(all), Some(bytes)) = (count, all, self.each.get().checked_mul(self.processes)) else {
            return Err(BurstError::TooLarge);
        };
        let place = |process: u64, chunk: u64| match planted(Bug::NotStriped) {
            true => (process * chunks) % count,
            false => (process * chunks + chunk) % count,
        };
        let size = |chunk: u64| (self.each.get() - chunk * self.chunk.get()).min(self.chunk.get());
        let mut loads = vec![0_u64; count as usize];
        self.each_chunk(chunks, |process, chunk| loads[place(process, chunk) as usize] += size(chunk));
        let absorbed = self.absorb(&loads);
        let last = if planted(Bug::LastChunkForgotten) { chunks.saturating_sub(2) } else { chunks - 1 };
        let mut queued = vec![Queue::default(); count as usize];
        let mut ends = vec![0.0_f64; self.processes as usize];
        self.each_chunk(chunks, |process, chunk| {
            let at = place(process, chunk) as usize;
            let end = queued[at].push(size(chunk), &absorbed[at].points);
            if chunk <= last {
                let of_process = &mut ends[process as usize];
                *of_process = of_process.max(end);
            }
        });
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let most = |of: fn(&Absorbed) -> f64| absorbed.iter().map(|one| of(one)).fold(0.0, f64::max);
        Ok(Written {
            took: seconds(ends.iter().copied().fold(0.0, f64::max)),
            first: seconds(ends.iter().copied().fold(f64::INFINITY, f64::min)),
            mean: seconds(ends.iter().sum::<f64>() / ends.len() as f64),
            drained: seconds(most(|one| one.drained_s)),
            bytes: Bytes::new(bytes),
            at_target: Bytes::new(absorbed.iter().map(|one| one.drained).sum::<f64>().round() as u64),
            memory_most: Bytes::new(most(|one| one.memory_most).round() as u64),
            chunks: all,
        })
    }

    /// In the order in which benefactors serve them.
    fn each_chunk(&self, chunks: u64, mut take: impl FnMut(u64, u64)) {
        for chunk in 0..chunks {
            for process in 0..self.processes {
                take(process, chunk);
            }
        }
    }

    /// What each benefactor does with its load. Equal ones with equal loads do the same, so each such pair is simulated once.
    fn absorb(&self, loads: &[u64]) -> Vec<Rc<Absorbed>> {
        let mut known: BTreeMap<(usize, u64), Rc<Absorbed>> = BTreeMap::new();
        let kinds = self.kinds.iter().enumerate().flat_map(|(index, kind)| (0..kind.count).map(move |_| (index, kind)));
        kinds
            .zip(loads)
            .map(|((index, kind), load)| {
                let one = known.entry((index, *load)).or_insert_with(|| Rc::new(absorb(kind, *load)));
                Rc::clone(one)
            })
            .collect()
    }
}

fn absorb(kind: &Kind, load: u64) -> Absorbed {
    let pool = Pool { nodes: 1, memory: kind.memory, ssd: kind.ssd, rates: kind.rates };
    let (mut tiers, load, mut now) = (Tiers::of(1, &pool), load as f64, 0.0_f64);
    let mut absorbed = Absorbed { points: vec![(0.0, 0.0)], memory_most: 0.0, drained_s: 0.0, drained: 0.0 };
    while tiers.absorbed < load || !tiers.is_empty() {
        let is_offered = tiers.absorbed < load;
        let flow = tiers.flow(is_offered);
        let rest = if is_offered { (load - tiers.absorbed) / flow.taken } else { f64::INFINITY };
        let seconds = tiers.horizon(&flow).min(rest);
        tiers.advance(&flow, seconds);
        now += seconds;
        if is_offered {
            if seconds >= rest {
                tiers.absorbed = load;
            }
            absorbed.points.push((tiers.absorbed, now));
        }
        absorbed.memory_most = absorbed.memory_most.max(tiers.memory);
    }
    Absorbed { drained_s: now, drained: tiers.drained, ..absorbed }
}

/// What a benefactor has served of its chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    bytes: u64,
    /// The point of the line that was passed last.
    point: usize,
}

impl Queue {
    /// When a chunk at the end is taken in.
    fn push(&mut self, bytes: u64, points: &[(f64, f64)]) -> f64 {
        self.bytes += bytes;
        let bytes = self.bytes as f64;
        while self.point + 2 < points.len() && points[self.point + 1].0 < bytes {
            self.point += 1;
        }
        let [(from, from_s), (until, until_s)] =
            [self.point, self.point + 1].map(|point| points[point.min(points.len() - 1)]);
        let share = if until > from { ((bytes - from) / (until - from)).clamp(0.0, 1.0) } else { 1.0 };
        from_s + share * (until_s - from_s)
    }
}
