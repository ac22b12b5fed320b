//! An array that caches what is read of a slower volume, write-through.
//!
//! A miss is read from the volume below and written to the cache; a write goes below, and to the cache if it has the block. Members
//! are replaced by empty ones. Blocks are spread over members at random, so that a new member misses its share of all, and what
//! is accessed most comes back first.

use surgetank_model::Bytes;
use surgetank_planner::scenario::{ArrayScenario, Backed};

use super::fleet::{Fleet, STEP};
use super::member::Work;
use super::popularity::{HitRatio, Popularity};
use super::{ArrayReport, Meter, below, machine_headroom, steps};

/// A cache that has this share of a full one's hits has warmed up.
const WARM: f64 = 0.98;

/// Runs the scenario over this volume, without a cache or with one of volumes of this size.
pub fn run(scenario: &ArrayScenario, backed: &Backed, fleet: Option<Fleet>, size: Bytes) -> ArrayReport {
    let mut run = Run::new(scenario, backed, fleet, size);
    let mut meter = Meter::new(scenario);
    let (mut hits, mut requests) = (0.0, 0.0);
    meter.warming_up = run.fleet.is_some();
    for _ in 0..steps(scenario) {
        let (rate, hit) = run.step(scenario);
        meter.warming_up &= hit < WARM * run.hits.full();
        meter.step(rate, run.fleet.as_ref());
        (hits, requests) = (hits + rate * hit, requests + rate);
    }
    let cached = run.fleet.is_some();
    ArrayReport {
        sustained_iops: run.sustained(scenario),
        hit_ratio: cached.then(|| if requests > 0.0 { hits / requests } else { 0.0 }),
        ..meter.report(scenario, run.fleet.as_ref(), size, Some(backed))
    }
}

struct Run {
    fleet: Option<Fleet>,
    hits: HitRatio,
    below: (super::Kind, super::member::Member),
}

/// What a request costs on average, given how often the cache has its block.
struct Costs {
    /// Of a member, if all its blocks are such; of the volume below; of the machine.
    member: Work,
    below: Work,
    machine: Work,
}

impl Run {
    fn new(scenario: &ArrayScenario, backed: &Backed, fleet: Option<Fleet>, size: Bytes) -> Self {
        let workload = &scenario.workload;
        let request = workload.request.get().max(1);
        let popularity = Popularity::new(workload.used.get() / request, workload.zipf.unwrap_or(0.0));
        let members = fleet.as_ref().map_or(0, |fleet| fleet.slots.len()) as u64;
        let capacity = size.get().saturating_mul(members) as f64 / request as f64;
        Self { fleet, hits: HitRatio::new(&popularity, capacity), below: below(backed) }
    }

    fn costs(&self, scenario: &ArrayScenario, hit: f64) -> Costs {
        let workload = &scenario.workload;
        let (bytes, writes) = (workload.request.get() as f64, workload.write_share);
        let reads = 1.0 - writes;
        let kind = |part: f64| self.fleet.as_ref().map(|fleet| fleet.kind.work(bytes * part, scenario.array.io_size));
        // Reads that hit, reads that miss and are written to the cache, and writes of what it has.
        let member = kind(reads + writes * hit).unwrap_or_default();
        let missed = if self.fleet.is_some() { reads * (1.0 - hit) } else { reads };
        let below = self.below.0.work(bytes * (missed + writes), workload.request);
        Costs { member, below, machine: member.plus(below) }
    }

    /// Requests per second and the share of them that the cache has, for a step.
    fn step(&mut self, scenario: &ArrayScenario) -> (f64, f64) {
        let slots = self.fleet.as_ref().map_or(0, |fleet| fleet.slots.len());
        let share = 1.0 / slots.max(1) as f64;
        let of_slots: Vec<f64> = match &self.fleet {
            Some(fleet) => fleet.slots.iter().map(|slot| self.hits.after(slot.accesses)).collect(),
            None => Vec::new(),
        };
        let hit = of_slots.iter().sum::<f64>() * share;
        let mean = self.costs(scenario, hit);
        let mut rate = scenario.workload.requests_per_s;
        rate = rate.min(machine_headroom(scenario, mean.machine, Work::default()));
        rate = rate.min(self.below.0.headroom(&self.below.1, mean.below, Work::default(), STEP));
        let of_members: Vec<Work> = of_slots.iter().map(|hit| self.costs(scenario, *hit).member.times(share)).collect();
        if let Some(fleet) = &self.fleet {
            for (slot, work) in fleet.slots.iter().zip(&of_members) {
                rate = rate.min(fleet.kind.headroom(&slot.member, *work, Work::default(), STEP));
            }
        }
        self.below.1.serve(mean.below.times(rate), STEP);
        if let Some(fleet) = &mut self.fleet {
            for (slot, work) in fleet.slots.iter_mut().zip(&of_members) {
                slot.member.serve(work.times(rate), STEP);
                slot.accesses += rate * STEP.as_secs_f64();
            }
            fleet.step();
        }
        (rate, hit)
    }

    /// Requests per second of a full cache when no credits are left.
    fn sustained(&self, scenario: &ArrayScenario) -> f64 {
        let costs = self.costs(scenario, self.hits.full());
        let mut rate = scenario.workload.requests_per_s.min(machine_headroom(scenario, costs.machine, Work::default()));
        rate = rate.min(self.below.0.sustained(costs.below));
        if let Some(fleet) = &self.fleet {
            rate = rate.min(fleet.kind.sustained(costs.member.times(1.0 / fleet.slots.len().max(1) as f64)));
        }
        rate
    }
}
