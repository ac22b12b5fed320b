//! An array that holds the data.
//!
//! While a member is copied, writes to what is copied go to both. Reads of that go to the old member as long as it keeps up: the
//! credits that it leaves behind are lost with it. What it cannot serve the new one does.

use surgetank_model::Bytes;
use surgetank_planner::scenario::ArrayScenario;

use super::fleet::{Fleet, STEP};
use super::member::Work;
use super::popularity::Popularity;
use super::{ArrayReport, Meter, machine_headroom, steps};

/// What a slot's two members can do now.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// What the copy takes of each, per second.
    copying: Work,
    /// How much is copied, from 0 to 1; `None`: there is one member.
    copied: Option<f64>,
    /// Operations per second of the old and of the new member beside the copy.
    old: f64,
    new: f64,
}

impl Pair {
    /// Operations per second that both serve together, of which this is the share of writes.
    fn most(&self, writes: f64) -> f64 {
        let Some(copied) = self.copied else { return self.old };
        let reads = 1.0 - writes;
        let only_old = writes + (1.0 - copied) * reads;
        let limit = |limit: f64, each: f64| if each > 0.0 { limit / each } else { f64::INFINITY };
        limit(self.old, only_old)
            .min(limit(self.new, copied * writes))
            .min((self.old + self.new) / (1.0 + copied * writes))
    }

    /// How so many operations per second fall on the old and on the new member.
    fn split(&self, rate: f64, writes: f64) -> (f64, f64) {
        let Some(copied) = self.copied else { return (rate, 0.0) };
        let on_old = (rate * (1.0 - writes)).min((self.old - rate * writes).max(0.0));
        (rate * writes + on_old, rate * (1.0 - writes) - on_old + rate * writes * copied)
    }
}

/// Runs the scenario on a fleet of volumes of this size.
pub fn run(scenario: &ArrayScenario, mut fleet: Fleet, size: Bytes) -> ArrayReport {
    let workload = &scenario.workload;
    let io_size = scenario.array.io_size;
    let pieces = workload.request.get().div_ceil(io_size.get().max(1)).max(1);
    let blocks = workload.used.get() / workload.request.get().max(1);
    let shares = Popularity::new(blocks, workload.zipf.unwrap_or(0.0)).shares(fleet.slots.len(), pieces);
    let each = fleet.kind.work(io_size.get() as f64, io_size);
    let per_request = workload.request.get() as f64 / io_size.get().max(1) as f64;
    let writes = workload.write_share;
    let mut meter = Meter::new(scenario);
    for _ in 0..steps(scenario) {
        let pairs: Vec<Pair> = (0..fleet.slots.len()).map(|slot| pair(&mut fleet, slot, each)).collect();
        // Requests per second: the slowest member decides.
        let slowest = pairs
            .iter()
            .zip(&shares)
            .filter(|(_, share)| **share > 0.0)
            .map(|(pair, share)| pair.most(writes) / (share * per_request))
            .fold(workload.requests_per_s, f64::min);
        let twice: f64 = pairs.iter().zip(&shares).filter_map(|(pair, share)| Some(pair.copied? * share)).sum();
        let copies = pairs.iter().fold(Work::default(), |sum, pair| sum.plus(pair.copying.times(2.0)));
        let on_machine = each.times(per_request * (1.0 + writes * twice));
        let rate = slowest.min(machine_headroom(scenario, on_machine, copies));
        for (slot, (pair, share)) in pairs.iter().zip(&shares).enumerate() {
            let (old, new) = pair.split(rate * share * per_request, writes);
            if let Some(at) = fleet.slots.get_mut(slot) {
                at.member.serve(each.times(old).plus(pair.copying), STEP);
                if let Some(joining) = at.joining() {
                    joining.member.serve(each.times(new).plus(pair.copying), STEP);
                }
            }
            fleet.copy(slot, pair.copying);
        }
        meter.step(rate, Some(&fleet));
        fleet.step();
    }
    let most_loaded = shares.iter().copied().fold(0.0, f64::max);
    let sustained = fleet.kind.sustained(each) / (most_loaded * per_request).max(1e-12);
    let machine = machine_headroom(scenario, each.times(per_request), Work::default());
    ArrayReport {
        sustained_iops: sustained.min(machine).min(workload.requests_per_s),
        ..meter.report(scenario, Some(&fleet), size, None)
    }
}

fn pair(fleet: &mut Fleet, index: usize, each: Work) -> Pair {
    let Some(slot) = fleet.slots.get_mut(index) else { return Pair::default() };
    let joining = slot.joining().cloned();
    let Some(slot) = fleet.slots.get(index) else { return Pair::default() };
    let Some(joining) = joining else {
        return Pair { old: fleet.kind.headroom(&slot.member, each, Work::default(), STEP), ..Pair::default() };
    };
    let copying = fleet.copying(&joining, &slot.member);
    Pair {
        copying,
        copied: Some(fleet.copied_share(&joining)),
        old: fleet.kind.headroom(&slot.member, each, copying, STEP),
        new: fleet.kind.headroom(&joining.member, each, copying, STEP),
    }
}
