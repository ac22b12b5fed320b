//! What a run of the demo of arrays came to, in numbers and money. The names of the fields are a contract.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use surgetank_model::volume_type::Provision;
use surgetank_model::{Catalog, Limits};
use surgetank_planner::price::{CreditArray, instead_of_credits};

use super::load::Tick;
use super::mode::Ran;
use super::plan::{ArrayPlan, Mode};
use super::record::Moment;
use super::rotation::Replacement;

/// A run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArrayOutcome {
    /// By name.
    pub modes: BTreeMap<Mode, ModeOutcome>,
    /// Every byte was read back and matched.
    pub verified: bool,
    /// How many.
    pub verified_bytes: u64,
    /// Requests per second that were offered to each mode.
    pub offered_iops: u64,
    /// What would be cheaper, for people; `None`: unknown.
    pub instead: Option<String>,
    /// Whether what would be cheaper costs more than the rotated array.
    pub rotation_pays: Option<bool>,
    /// How the device was exported.
    pub export: String,
    /// When it ran.
    pub date: String,
    /// How long all of it took.
    pub elapsed_s: f64,
    /// What was run, for people.
    pub parameters: Vec<(String, String)>,
}

/// A mode.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModeOutcome {
    /// Volumes.
    pub members: u32,
    /// Requests served per second, over the run.
    pub mean_iops: f64,
    /// The same over the last eighth of the run.
    pub end_iops: f64,
    /// The same over the worst eightieth of the run.
    pub least_iops: f64,
    /// USD a month of the volumes that these stand for, at the catalog's prices; `None`: unknown.
    pub usd_month: Option<f64>,
    /// Of a rotated array.
    #[serde(flatten)]
    pub rotated: Option<Rotated>,
    /// Requests served per second over time: the end of each interval, and its mean.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub iops: Vec<(f64, f64)>,
    /// The volumes over time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Moment>,
    /// The members that were replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<Replacement>,
}

/// What the rotation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rotated {
    /// Members replaced during the run.
    pub rotations: usize,
    /// Copied to their successors.
    pub copied_gib: f64,
    /// The time of rented volumes that goes beyond one for each slot, as a share.
    pub overhead_ratio: f64,
    /// The same of the time that the provider of the original would bill.
    pub billed_overhead_ratio: f64,
    /// Most volumes beside one for each slot.
    pub extra_volumes_most: usize,
}

impl Serialize for Mode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Requests that were served until a moment, between two ticks in proportion.
pub fn served_until(ticks: &[Tick], at_s: f64) -> f64 {
    let mut before = Tick::default();
    for tick in ticks {
        if tick.at_s >= at_s {
            let share = (at_s - before.at_s) / (tick.at_s - before.at_s).max(1e-9);
            return before.served as f64 + share * (tick.served - before.served) as f64;
        }
        before = *tick;
    }
    before.served as f64
}

/// Means over intervals of the run, each with its end.
fn means(ticks: &[Tick], run_s: f64, intervals: u32) -> Vec<(f64, f64)> {
    let interval_s = run_s / f64::from(intervals);
    let mut before = 0.0;
    let mean = |number: u32| {
        let at_s = f64::from(number) * interval_s;
        let served = served_until(ticks, at_s);
        (at_s, (served - std::mem::replace(&mut before, served)) / interval_s)
    };
    (1..=intervals).map(mean).collect()
}

impl ModeOutcome {
    /// Of what was seen.
    #[must_use]
    pub fn new(plan: &ArrayPlan, mode: Mode, ran: Ran) -> Self {
        let run_s = plan.run.as_secs_f64();
        let served = |at_s| served_until(&ran.ticks, at_s);
        let rotated = rotated(plan, mode, &ran);
        let members = plan.members(mode);
        let volume = plan.volume_type.price_per_month(plan.original_size(mode), &Provision::default());
        let factor = f64::from(members) * (1.0 + rotated.billed_overhead_ratio);
        let every = ran.record.moments().len().div_ceil(MOMENTS_MAX).max(1);
        Self {
            members,
            mean_iops: served(run_s) / run_s,
            end_iops: (served(run_s) - served(run_s * 7.0 / 8.0)) / (run_s / 8.0),
            least_iops: means(&ran.ticks, run_s, 80).iter().map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min),
            usd_month: volume.map(|usd| usd * factor),
            rotated: (mode == Mode::Rotated).then_some(rotated),
            iops: means(&ran.ticks, run_s, 160),
            moments: ran
                .record
                .moments()
                .iter()
                .filter(|moment| moment.at_s <= run_s)
                .step_by(every)
                .cloned()
                .collect(),
            replacements: ran.replaced,
        }
    }
}

/// As fine as a screen shows.
const MOMENTS_MAX: usize = 900;

fn rotated(plan: &ArrayPlan, mode: Mode, ran: &Ran) -> Rotated {
    let (run_s, slots) = (plan.run.as_secs_f64(), f64::from(plan.members(mode)));
    let beyond = |sum: f64| (sum / (slots * run_s) - 1.0).max(0.0);
    let scale = f64::from(plan.time_scale);
    let billed = |rented_s: f64| {
        // What goes on being rented is not rounded up.
        let original = Duration::try_from_secs_f64(rented_s * scale).unwrap_or_default();
        if rented_s >= run_s { rented_s } else { plan.volume_type.billing.billed(original).as_secs_f64() / scale }
    };
    let members = plan.members(mode) as usize;
    Rotated {
        rotations: ran.replaced.len(),
        copied_gib: ran.replaced.iter().map(|replaced| replaced.copied_gib).sum(),
        overhead_ratio: beyond(ran.record.rented_s(run_s).sum()),
        billed_overhead_ratio: beyond(ran.record.rented_s(run_s).map(billed).sum()),
        extra_volumes_most: ran
            .record
            .moments()
            .iter()
            .map(|moment| moment.volumes)
            .max()
            .unwrap_or(0)
            .saturating_sub(members),
    }
}

impl ArrayOutcome {
    /// Tells what would be cheaper than the rotated array and give as much as it was asked for.
    pub fn compare(&mut self, plan: &ArrayPlan) {
        let overhead_ratio = self.modes.get(&Mode::Rotated).and_then(|mode| mode.rotated).unwrap_or_default();
        let array = CreditArray {
            volume_type: &plan.volume_type,
            members: plan.members(Mode::Rotated),
            member_size: plan.original_size(Mode::Rotated),
            overhead_ratio: overhead_ratio.billed_overhead_ratio,
            demand: Some(Limits { bandwidth: None, iops: Some(plan.original_demand()) }),
        };
        let instead = instead_of_credits(&Catalog::builtin(), &array);
        self.rotation_pays = instead.as_ref().map(|instead| !instead.ends_the_game());
        self.instead = instead.map(|instead| instead.to_string());
    }

    /// The same for a script: without what is only drawn.
    #[must_use]
    pub fn without_series(mut self) -> Self {
        for mode in self.modes.values_mut() {
            (mode.iops, mode.moments, mode.replacements) = Default::default();
        }
        self
    }
}

#[cfg(test)]
pub mod sample {
    use super::*;
    use crate::array::record::Record;

    /// A run in which all modes served the same, and two members were replaced.
    pub fn outcome() -> ArrayOutcome {
        let plan = ArrayPlan::quick(1).unwrap();
        let ticks = (1..=260u32).map(|tenth| Tick {
            at_s: f64::from(tenth) / 10.0,
            served: u64::from(tenth) * 100,
            written: u64::from(tenth) * 50,
        });
        let replaced = [5.0, 9.0].map(|at_s| Replacement { at_s, slot: 1, credits_left_ratio: 0.1, copied_gib: 0.01 });
        let mode = |mode: Mode| {
            let replaced = if mode == Mode::Rotated { replaced.to_vec() } else { Vec::new() };
            let ran = Ran { ticks: ticks.clone().collect(), record: Record::default(), replaced };
            (mode, ModeOutcome::new(&plan, mode, ran))
        };
        let mut outcome = ArrayOutcome {
            modes: Mode::ALL.into_iter().map(mode).collect(),
            verified: true,
            offered_iops: 1200,
            ..ArrayOutcome::default()
        };
        outcome.compare(&plan);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(sample::outcome().without_series()).unwrap();
        for mode in ["single", "array", "rotated"] {
            assert!((json["modes"][mode]["mean_iops"].as_f64().unwrap() - 1000.0).abs() < 1e-6, "{json}");
            assert!((json["modes"][mode]["usd_month"].as_f64().unwrap() - 10.0).abs() < 1e-6, "{json}");
            assert!(json["modes"][mode].get("moments").is_none());
        }
        for field in ["rotations", "copied_gib", "overhead_ratio"] {
            assert!(json["modes"]["rotated"][field].is_number(), "{field}");
            assert!(json["modes"]["array"].get(field).is_none(), "{field}");
        }
        assert_eq!(json["verified"], true);
        assert!(json["instead"].as_str().unwrap().contains("aws/gp3"), "{json}");
    }

    #[test]
    fn what_is_served_after_the_run_does_not_count() {
        let tick = |at_s, served| Tick { at_s, served, written: 0 };
        let ticks = [tick(1.0, 100), tick(2.0, 300), tick(4.0, 500)];
        assert_eq!([0.0, 0.5, 1.0, 3.0, 9.0].map(|at_s| served_until(&ticks, at_s)), [0.0, 50.0, 100.0, 400.0, 500.0]);
        assert_eq!(means(&ticks, 2.0, 2), [(1.0, 100.0), (2.0, 200.0)]);
    }
}
