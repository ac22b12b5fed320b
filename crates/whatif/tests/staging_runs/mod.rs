//! Staging pools beside closed forms and a naive oracle; the runs that planted bugs must not survive.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::units::MIB;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_planner::provision::{Candidate, Mode, NODES_MAX, Nodes, Prices, Problem, Rates, Redundancy, Target};
use surgetank_whatif::staging::{Burst, Job, Jobs, Kind, Outcome, Pool, Written};

/// Of a time, for floating point and nanoseconds.
const NEARLY: f64 = 1e-6;

/// Rates from 1 to 16 MiB/s; `is_fast`: memory takes in no slower than agents move.
fn rates(random: &mut Random, is_fast: bool) -> Rates {
    let mut rate = || Bandwidth::new(MIB * (1 + random.below(16)));
    let (ingest, ssd_write, drain) = (rate(), rate(), rate());
    let ingest = if is_fast { ingest.max(ssd_write).max(drain) } else { ingest };
    Rates { ingest, ssd_write: Some(ssd_write), drain }
}

fn size(random: &mut Random, most_mib: u64) -> Bytes {
    // Nothing, too.
    Bytes::from_mib(random.below(most_mib + 1))
}

/// A checkpoint of which every benefactor has as much.
fn even(random: &mut Random, is_fast: bool) -> Burst {
    let (count, rates) = (1 + random.below(7), rates(random, is_fast));
    let kind = Kind { count, memory: size(random, 20), ssd: size(random, 30), rates };
    let processes = count * (1 + random.below(4));
    Burst { kinds: vec![kind], processes, each: Bytes::from_mib(1 + random.below(20)), chunk: Bytes::from_mib(1) }
}

/// T_H of the planner, as the time of a checkpoint.
fn planned_s(burst: &Burst) -> f64 {
    let kind = burst.kinds[0];
    let candidate = Candidate { memory: kind.memory, ssd: kind.ssd, throughput: None };
    let dataset = Bytes::new(burst.each.get() * burst.processes);
    let target = Target {
        throughput: Bandwidth::new(1),
        dataset: Some(dataset),
        mode: Mode::CentreWide,
        link: None,
        redundancy: Redundancy::Copies(1),
        nodes_max: NODES_MAX,
    };
    let problem = Problem { target, rates: Some(kind.rates), prices: Prices::default(), candidates: vec![candidate] };
    let nodes = Nodes::of(&problem, &candidate).expect("it has rates and a dataset");
    dataset.get() as f64 / nodes.delivered_bytes_s(kind.count)
}

fn run(burst: &Burst) -> Result<Written, String> {
    burst.run().map_err(|error| error.to_string())
}

fn same(what: &str, found_s: f64, expected_s: f64, within: f64) -> Result<(), String> {
    match (found_s - expected_s).abs() <= within * (1.0 + expected_s) {
        true => Ok(()),
        false => Err(format!("{what}: {found_s}, expected {expected_s}")),
    }
}

/// The planner's closed form, where memory takes in no slower than agents move; else it is a bound.
pub fn closed_form(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let is_fast = random.chance(0.5);
    let burst = even(random, is_fast);
    let (written, planned_s) = (run(&burst)?, planned_s(&burst));
    let took_s = written.took.as_secs_f64();
    if is_fast {
        same("time of a checkpoint", took_s, planned_s, NEARLY)?;
    }
    match took_s >= planned_s * (1.0 - NEARLY) {
        true => conserved(&burst, &written),
        false => Err(format!("it took {took_s} s, and no less than {planned_s} s is possible")),
    }
}

/// What was written is at the target in the end, and memory has held no more than it holds.
fn conserved(burst: &Burst, written: &Written) -> Result<(), String> {
    let most = burst.kinds.iter().map(|kind| kind.memory).max().unwrap_or_default();
    match () {
        () if written.bytes.get() != burst.each.get() * burst.processes => {
            Err(format!("not all is written: {written:?}"))
        }
        () if written.at_target.get().abs_diff(written.bytes.get()) > 1 + written.bytes.get() / 1_000_000 => {
            Err(format!("not all is at the target: {written:?}"))
        }
        () if written.memory_most > most => Err(format!("memory holds more than {most}: {written:?}")),
        () if written.first > written.mean || written.mean > written.took || written.took > written.drained => {
            Err(format!("times are out of order: {written:?}"))
        }
        () => Ok(()),
    }
}

/// More benefactors, or more memory of each, never are slower. More SSD is not, where it is as fast as the target.
pub fn more_is_not_slower(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let is_fast = random.chance(0.5);
    let mut burst = even(random, is_fast);
    let before = run(&burst)?;
    let kind = &mut burst.kinds[0];
    let rate = kind.rates.ssd_write.filter(|rate| *rate >= kind.rates.drain);
    match random.below(3) {
        0 => kind.memory = Bytes::new(kind.memory.get() + size(random, 20).get()),
        // As much of the dataset is left for each, whatever the chunks.
        1 => (kind.count, burst.chunk) = (kind.count + 1, Bytes::new(1 << 14)),
        _ if rate.is_some() => kind.ssd = Bytes::new(kind.ssd.get() + size(random, 20).get()),
        _ => (),
    }
    let after = run(&burst)?;
    // A chunk more or less.
    let slack_s = burst.chunk.get() as f64 / MIB as f64 * f64::from(u8::from(burst.chunk.get() < MIB));
    match after.took.as_secs_f64() <= before.took.as_secs_f64() * (1.0 + NEARLY) + slack_s {
        true => conserved(&burst, &after),
        false => Err(format!("{:?} after {:?}: {burst:?}", after.took, before.took)),
    }
}

/// Benefactors of several kinds: each does what it would do alone with its load, and chunks are as even as they can be.
pub fn kinds(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut burst = even(random, false);
    let other = Kind { count: 1 + random.below(4), rates: rates(random, false), ..burst.kinds[0] };
    burst.kinds.push(Kind { memory: size(random, 20), ..other });
    let count: u64 = burst.kinds.iter().map(|kind| kind.count).sum();
    // So many processes that each benefactor has as many chunks.
    burst.processes = count;
    let written = run(&burst)?;
    conserved(&burst, &written)?;
    let alone =
        burst.kinds.iter().map(|kind| run(&Burst { kinds: vec![*kind], processes: kind.count, ..burst.clone() }));
    let alone: Vec<Written> = alone.collect::<Result<_, _>>()?;
    let slowest_s = alone.iter().map(|one| one.took.as_secs_f64()).fold(0.0, f64::max);
    same("the slowest kind", written.took.as_secs_f64(), slowest_s, NEARLY)
}

/// A benefactor that moves in steps of a millisecond, as the module says it does.
#[derive(Clone, Debug)]
struct Stepped {
    pool: Pool,
    memory: f64,
    ssd: f64,
    is_full: bool,
}

const STEP_S: f64 = 1e-3;

impl Stepped {
    fn new(pool: Pool) -> Self {
        Self { pool, memory: 0.0, ssd: 0.0, is_full: false }
    }

    /// Takes of what is offered, in bytes; how much.
    fn step(&mut self, offered: f64) -> f64 {
        let nodes = self.pool.nodes as f64;
        let rate = |rate: Bandwidth| nodes * rate.get() as f64 * STEP_S;
        let rates = self.pool.rates;
        let (holds, ssd_holds) = (nodes * self.pool.memory.get() as f64, nodes * self.pool.ssd.get() as f64);
        let write = rates.ssd_write.map_or(0.0, rate);
        let mut taken = 0.0;
        // In bits, so that agents turn in the middle of a step.
        let bits = 16.0;
        for _ in 0..16 {
            let offer = (offered / bits).min(rate(rates.ingest) / bits);
            let to_ssd = !self.is_full && ssd_holds > 0.0;
            let agent = if to_ssd { write } else { rate(rates.drain) } / bits;
            let moved = agent.min(self.memory + offer);
            let room = (holds - self.memory + moved).max(0.0);
            let in_now = offer.min(room);
            let moved = moved.min(self.memory + in_now);
            self.memory += in_now - moved;
            taken += in_now;
            let idle = if agent > 0.0 { 1.0 - moved / agent } else { 0.0 };
            if to_ssd {
                self.ssd += moved;
            }
            self.ssd = (self.ssd - rate(rates.drain) / bits * idle).max(0.0);
            if self.ssd >= ssd_holds {
                self.is_full = true;
            } else if self.ssd <= ssd_holds * 15.0 / 16.0 {
                self.is_full = false;
            }
        }
        taken
    }
}

/// Jobs over a pool, step by step; when each of its checkpoints ended.
fn stepped(jobs: &Jobs<'_>) -> Vec<Vec<f64>> {
    struct State {
        computed_s: f64,
        left: f64,
    }
    let mut pool = Stepped::new(jobs.pool);
    let mut states: Vec<State> = jobs.jobs.iter().map(|_| State { computed_s: 0.0, left: 0.0 }).collect();
    let mut ends = vec![Vec::new(); jobs.jobs.len()];
    let every_s = jobs.every.as_secs_f64();
    for step in 0..4_000_000_u32 {
        let now_s = f64::from(step) * STEP_S;
        let is_done =
            |(job, state): (&Job, &State)| state.computed_s >= job.computes.as_secs_f64() && state.left <= 0.0;
        if jobs.jobs.iter().zip(&states).all(is_done) {
            break;
        }
        let writing: f64 = jobs
            .jobs
            .iter()
            .zip(&states)
            .filter(|(_, state)| state.left > 0.0)
            .map(|(job, _)| job.processes as f64)
            .sum();
        let offered = jobs.jobs.iter().zip(&states).map(|(_, state)| state.left.max(0.0)).sum::<f64>();
        let taken = pool.step(if writing > 0.0 { offered.max(1e12) } else { 0.0 });
        for ((job, state), ends) in jobs.jobs.iter().zip(&mut states).zip(&mut ends) {
            let computes_s = job.computes.as_secs_f64();
            if state.left > 0.0 {
                state.left -= taken * job.processes as f64 / writing;
                if state.left <= 0.0 {
                    ends.push(now_s + STEP_S);
                }
            } else if now_s >= job.start.as_seconds() && state.computed_s < computes_s {
                let before = (state.computed_s / every_s + 1e-9).floor();
                state.computed_s += STEP_S;
                let is_end = state.computed_s >= computes_s - STEP_S / 2.0;
                if is_end {
                    state.computed_s = computes_s;
                }
                if is_end || (state.computed_s / every_s + 1e-9).floor() > before {
                    state.left = job.dataset.get() as f64;
                }
            }
        }
    }
    ends
}

fn any_jobs(random: &mut Random) -> Vec<Job> {
    let job = |random: &mut Random| Job {
        start: Instant::from_nanoseconds(random.below(8_000) * 1_000_000),
        computes: Duration::from_millis(1 + random.below(12_000)),
        processes: 1 + random.below(5),
        dataset: Bytes::from_mib(1 + random.below(60)),
    };
    (0..1 + random.below(5)).map(|_| job(random)).collect()
}

fn any_pool(random: &mut Random) -> Pool {
    let rates = rates(random, false);
    Pool { nodes: 1 + random.below(3), memory: size(random, 20), ssd: size(random, 30), rates }
}

fn outcome(jobs: &Jobs<'_>) -> Result<Outcome, String> {
    jobs.run().map_err(|error| error.to_string())
}

/// Every checkpoint of every job ends when the naive pool has it end, and all bytes arrive.
pub fn jobs_over_a_pool(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let all = any_jobs(random);
    let jobs = Jobs { jobs: &all, every: Duration::from_millis(500 + random.below(5_000)), pool: any_pool(random) };
    let found = outcome(&jobs)?;
    let bytes = all.iter().map(|job| {
        let number = (job.computes.as_nanos() - 1) / jobs.every.as_nanos() + 1;
        number * u128::from(job.dataset.get())
    });
    let bytes = bytes.sum::<u128>() as f64;
    for (what, arrived) in
        [("written", found.bytes as f64), ("taken in", found.absorbed), ("at the target", found.drained)]
    {
        same(&format!("bytes {what}"), arrived, bytes, NEARLY)?;
    }
    let holds = jobs.pool.nodes as f64 * jobs.pool.memory.get() as f64;
    if found.memory_most > holds {
        return Err(format!("{} bytes in a memory of {holds}", found.memory_most));
    }
    let mut ends = vec![Vec::new(); all.len()];
    for one in &found.checkpoints {
        ends[one.job as usize].push((one.began + one.took).as_seconds());
    }
    for (index, (ends, expected)) in ends.iter().zip(stepped(&jobs)).enumerate() {
        if ends.len() != expected.len() {
            return Err(format!("job {index} has {} checkpoints, expected {}", ends.len(), expected.len()));
        }
        for (end, expected) in ends.iter().zip(expected) {
            // Each checkpoint before adds a step or two.
            same(&format!("job {index}"), *end, expected, 0.01)?;
        }
    }
    Ok(())
}

/// One job with one checkpoint is a burst.
pub fn one_job_is_a_burst(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let burst = even(random, false);
    let kind = burst.kinds[0];
    let job = Job {
        start: Instant::ZERO,
        computes: Duration::from_secs(1),
        processes: burst.processes,
        dataset: Bytes::new(burst.each.get() * burst.processes),
    };
    let pool = Pool { nodes: kind.count, memory: kind.memory, ssd: kind.ssd, rates: kind.rates };
    let written = run(&burst)?;
    let found = outcome(&Jobs { jobs: &[job], every: Duration::from_secs(9), pool })?;
    let Some(one) = found.checkpoints.first() else { return Err("nothing was written".to_owned()) };
    same("its checkpoint", one.took.as_secs_f64(), written.took.as_secs_f64(), NEARLY)?;
    same("its drain", found.ended.as_seconds() - 1.0, written.drained.as_secs_f64(), NEARLY)
}

/// A run of a seed, and how many seeds the tests have.
pub type Run = (&'static str, fn(u64) -> Result<(), String>, u64);

/// All of them.
pub const RUNS: &[Run] = &[
    ("the closed form", closed_form, 400),
    ("more is not slower", more_is_not_slower, 300),
    ("kinds", kinds, 200),
    ("one job", one_job_is_a_burst, 200),
    ("jobs over a pool", jobs_over_a_pool, 60),
];
