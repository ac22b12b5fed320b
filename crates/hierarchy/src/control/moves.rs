//! From what applications have towards what a plan gives them, as fast as caches follow.

use surgetank_allocation::hull::Hull;
use surgetank_allocation::{MissCurve, Plan, Problem};

use super::Controller;
use crate::case::Times;
use crate::place::{differing, misses, misses_on_the_way};
use crate::planted::{Bug, planted};
use crate::system::{Grant, Layout};

/// A share is split if that makes an application faster by so much, or else its SLO does not hold; and is one cache again when it makes it faster by less than
/// the other: a split costs what the smaller part holds, until the larger one is warm.
const SPLIT_FROM: f64 = 1.15;
const SPLIT_UNTIL: f64 = 1.05;
/// A step of a split has done what it should if the latency is above that by less than this part of it, or else after so many intervals in which the
/// SLO held.
const NEAR: f64 = 0.03;
pub(super) const ARRIVED: usize = 4;
/// For so many intervals a share is one cache whose split did not do what it should.
const WHOLE_AGAIN: usize = 20;
/// How much further a share is split in an interval at most, and how often that is halved until the SLO holds on the way.
const SPLIT_STEP: f64 = 0.2;
const SPLIT_STEPS: u32 = 4;
/// How often a step of shares is halved until every SLO holds by what is split now.
const SHARE_STEPS: u32 = 5;
/// What floating point adds.
const ROUNDING: f64 = 1e-9;

impl Controller<'_> {
    /// From what applications have towards these grants: as far as shares may change at once, and no further than every SLO holds by what is split now,
    /// though the difference to the fair share is from a sample, and would have held in the last intervals. A plan counts on splits that take a while,
    /// and between two plans no application is slower than under the worse one only where shares behave as the hull says.
    pub(super) fn step(&self, problem: &Problem, curves: &[MissCurve], plan: &Plan, to: &[Grant]) -> Vec<Grant> {
        let Some(change_max) = self.case.change_max else { return to.to_vec() };
        let holds = |grants: &Vec<Grant>| {
            grants.iter().enumerate().all(|(index, grant)| {
                let (hull, far, has) = (problem.hull(index), self.split[index], &self.has[index]);
                let ms = |grant: &Grant| self.split_ms(grant, &curves[index], hull, far);
                let held = |grant: &Grant| self.held_lately(index, grant, hull, far);
                let bound_ms = plan.shares[index].bound_ms;
                let left = self.left_by_a_step(index, grant, (&curves[index], hull.map(|hull| (hull, far))), bound_ms);
                let target_ms = (bound_ms * (1.0 - left)).max(ms(has));
                ms(grant) <= target_ms * (1.0 + ROUNDING) && (held(grant) || !held(has))
            })
        };
        let mut steps = (0..SHARE_STEPS).map(|halvings| self.stepped(to, change_max / f64::from(1 << halvings)));
        steps.find(holds).unwrap_or_else(|| self.has.clone())
    }

    /// How much of its bound a step leaves to an application, as a part of that. The bound is so much above the fair share's latency by the same sample,
    /// so what errs is the difference: of the accesses that hit in one of the two shares and miss in the other. Near the edge of a loop these are many.
    fn left_by_a_step(
        &self,
        index: usize,
        grant: &Grant,
        (curve, hull): (&MissCurve, Option<(&Hull, f64)>),
        bound_ms: f64,
    ) -> f64 {
        // Who is to have its fair share goes there.
        let deviations = self.case.deviations.filter(|_| self.foresight.is_none() && self.margins[index].is_some());
        let Some(deviations) = deviations else { return 0.0 };
        let (now, fair) = (self.sizes_of(grant), self.sizes_of(&self.fair[index]));
        let Times { level1_ms, level2_ms } = self.case.times;
        // Of one access: the square root of the mean square is at least the deviation.
        let deviation_ms = (level2_ms - level1_ms) * differing(curve, hull, now.0, fair.0).sqrt()
            + (self.disk_ms - level2_ms).max(0.0) * differing(curve, hull, now.1, fair.1).sqrt();
        let slo = self.case.slos[index];
        (deviations * deviation_ms / self.curves[index].sampled().sqrt() / bound_ms).min(slo / (1.0 + slo))
    }

    /// The same for everybody, so that no server has to have more than it has.
    pub(super) fn stepped(&self, to: &[Grant], change_max: f64) -> Vec<Grant> {
        let Layout { level1, reach, .. } = &self.case.layout;
        let second = |grant: &Grant| grant.level2.iter().map(|(_, blocks)| blocks).sum::<u64>();
        let mut part = 1.0_f64;
        let change_max = if planted(Bug::PlanAtOnce) { f64::INFINITY } else { change_max };
        for ((from, to), reach) in self.has.iter().zip(to).zip(reach) {
            let reached = self.case.layout.reached(reach);
            for (from, to, of) in [(from.level1, to.level1, level1[reach.level1]), (second(from), second(to), reached)]
            {
                part = part.min(change_max * of as f64 / from.abs_diff(to).max(1) as f64);
            }
        }
        let between = |from: u64, to: u64| (from as f64 * (1.0 - part) + to as f64 * part) as u64;
        let one = |(from, to): (&Grant, &Grant)| Grant {
            level1: between(from.level1, to.level1),
            level2: from.level2.iter().zip(&to.level2).map(|(from, to)| (to.0, between(from.1, to.1))).collect(),
            ..Grant::default()
        };
        self.has.iter().zip(to).map(one).collect()
    }

    /// Whether an application with this share, split as far as that, would have had its SLO in each of the last intervals.
    pub(super) fn held_lately(&self, index: usize, grant: &Grant, hull: Option<&Hull>, far: f64) -> bool {
        let fair = &self.fair[index];
        self.lately[index].iter().all(|curve| {
            let fair_ms = self.model_ms(fair, |size| curve.at(size));
            self.split_ms(grant, curve, hull, far) <= fair_ms * (1.0 + self.case.slos[index])
        })
    }

    fn split_ms(&self, grant: &Grant, curve: &MissCurve, hull: Option<&Hull>, far: f64) -> f64 {
        match hull {
            Some(hull) => self.model_ms(grant, |size| misses(curve, hull, far, size)),
            None => self.model_ms(grant, |size| curve.at(size)),
        }
    }

    /// How far a share is split next: further while its target holds before the larger part has what it is to have.
    pub(super) fn how_far(
        &mut self,
        index: usize,
        grant: &Grant,
        (curve, hull): (&MissCurve, &Hull),
        (bound_ms, measured_ms): (f64, f64),
    ) -> f64 {
        let from = self.split[index];
        if self.violations[index] > 0 && from > 0.0 {
            // The mix of accesses may be another one: one cache is right for any.
            self.whole_until[index] = self.ended + WHOLE_AGAIN;
        }
        let split_ms = |far: f64| self.split_ms(grant, curve, Some(hull), far);
        let gain = if from > 0.0 { SPLIT_UNTIL } else { SPLIT_FROM };
        let whole_ms = split_ms(0.0);
        let is_of_use = whole_ms > gain * split_ms(1.0) || whole_ms > bound_ms;
        // A curve that says nothing does not say how to split either.
        let margin = self.margins[index].filter(|_| is_of_use && self.ended >= self.whole_until[index]);
        let steps = (0..SPLIT_STEPS).map(|halvings| SPLIT_STEP / f64::from(1 << halvings));
        let Some(margin) = margin else {
            // What comes together has to sort itself out, and the share may be one that needs its split: step by step as well.
            let mut less = steps.map(|step| (from - step).max(0.0));
            let is_better = whole_ms <= split_ms(from);
            return less.find(|to| is_better || split_ms(*to) <= bound_ms).unwrap_or(from);
        };
        let has_arrived = measured_ms <= split_ms(from) * self.bias[index] * (1.0 + NEAR);
        let held_long = measured_ms <= bound_ms * self.bias[index] * (1.0 - NEAR) && self.steady[index] >= ARRIVED;
        if from > 0.0 && !has_arrived && !held_long {
            return from;
        }
        let target_ms = bound_ms * (1.0 - margin);
        let holds = |to: &f64| {
            let on_the_way = |size| misses_on_the_way(curve, hull, (from, *to), size);
            self.model_ms(grant, on_the_way) <= target_ms.max(split_ms(from))
        };
        steps.map(|step| (from + step).min(1.0)).find(holds).unwrap_or(from)
    }
}

#[cfg(test)]
mod tests {
    use surgetank_allocation::{Hierarchy, solve};
    use surgetank_model::Bytes;

    use super::*;
    use crate::case::{Case, Measured, Times};
    use crate::control::Scheme;
    use crate::disk::DiskType;
    use crate::load::Source;
    use crate::system::{Reach, Replacement};

    const BLOCK: u64 = 4096;

    fn case() -> Case {
        let source = |name: &str| Source { name: name.to_owned(), accesses_per_s: 1.0, phases: Vec::new() };
        Case {
            layout: Layout {
                hierarchy: Hierarchy::Exclusive,
                behind: Replacement::Lru,
                block: BLOCK,
                level1: vec![600],
                level2: vec![1000],
                reach: vec![Reach { level1: 0, level2: vec![0] }; 2],
            },
            times: Times { level1_ms: 0.25, level2_ms: 0.75 },
            disk: DiskType::PAPER,
            disks: 1,
            sources: vec![source("cliff"), source("slope")],
            seed: 1,
            interval_s: 1.0,
            intervals: 1,
            warmup: 0,
            slos: vec![0.1; 2],
            change_max: Some(0.03),
            deviations: None,
            sampled: 1.0,
        }
    }

    #[test]
    fn a_share_falls_below_a_cliff_of_its_curve_only_once_it_is_split() {
        let curve = |points: &[(u64, f64)]| {
            let points: Vec<(Bytes, f64)> =
                points.iter().map(|(blocks, ratio)| (Bytes::new(blocks * BLOCK), *ratio)).collect();
            MissCurve::new(&points).unwrap()
        };
        let curves = [curve(&[(0, 0.5), (590, 0.5), (600, 0.44)]), curve(&[(0, 1.0), (1600, 0.0)])];
        let case = case();
        let mut controller = Controller::new(&case, Scheme::Optimal).unwrap();
        controller.disk_ms = 10.0;
        let problem = controller.problem(&curves, &[Measured::default(); 2]).unwrap();
        let plan = solve(&problem, None);
        let to = controller.grants(&plan);
        let blocks = |grant: &Grant| grant.level1 + grant.level2.iter().map(|(_, blocks)| blocks).sum::<u64>();
        assert!(blocks(&to[0]) < 400, "the plan counts on a split: {to:?}");
        let mut moved = |split: f64| {
            controller.split = vec![split, 0.0];
            for _ in 0..200 {
                controller.has = controller.step(&problem, &curves, &plan, &to);
            }
            blocks(&controller.has[0])
        };
        let whole = moved(0.0);
        assert!((590..700).contains(&whole), "{whole} blocks of one cache");
        let split = moved(1.0);
        assert!(split < 500, "{split} blocks that are split");
    }

    #[test]
    fn a_step_leaves_what_a_sample_says_wrongly_of_the_difference_to_the_fair_share() {
        let curve = |points: &[(u64, f64)]| {
            let points: Vec<(Bytes, f64)> =
                points.iter().map(|(blocks, ratio)| (Bytes::new(blocks * BLOCK), *ratio)).collect();
            MissCurve::new(&points).unwrap()
        };
        let curves = [curve(&[(0, 0.5), (800, 0.4)]), curve(&[(0, 1.0), (1600, 0.0)])];
        let free = |deviations: Option<f64>, sampled: usize| {
            let case = Case { deviations, ..case() };
            let mut controller = Controller::new(&case, Scheme::Optimal).unwrap();
            controller.disk_ms = 10.0;
            (0..2).for_each(|index| controller.feed(index, &vec![1; sampled]));
            let problem = controller.problem(&curves, &[Measured::default(); 2]).unwrap();
            let plan = solve(&problem, None);
            let to = controller.grants(&plan);
            for _ in 0..200 {
                controller.has = controller.step(&problem, &curves, &plan, &to);
            }
            let ms = |grant: &Grant| controller.model_ms(grant, |size| curves[0].at(size));
            let (now_ms, fair_ms) = (ms(&controller.has[0]), ms(&controller.fair[0]));
            // By far the most of it: what the disk answers in one of the two and a cache in the other.
            let differ = (now_ms - fair_ms) / 10.0;
            (1.1 - now_ms / fair_ms, 2.0 * 10.0 * differ.sqrt() / (sampled as f64).sqrt() / fair_ms)
        };
        assert!(free(None, 1000).0 < 0.001);
        for sampled in [1000, 4000, 16_000] {
            let (free, errs) = free(Some(2.0), sampled);
            assert!((0.85..1.25).contains(&(free / errs)), "{free} of the bound is free, {errs} may be wrong");
        }
        let (free, _) = free(Some(2.0), 1);
        assert!((free - 0.1).abs() < 0.001, "a sample of one takes nothing from anybody: {free}");
    }
}
