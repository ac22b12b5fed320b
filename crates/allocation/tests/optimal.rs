//! The best plan is the best one: against all shares there are, and against the program as it is on paper.

mod support;

use std::time::Duration;

use support::exhaustive::{Kind, compare};
use support::{Extent, all, optimum};
use surgetank_allocation::mlms::{Sample, Surface};
use surgetank_allocation::{
    Application, Basis, Description, Estimate, Hierarchy, Latencies, MissCurve, Model, Problem, Server, Slo, baselines,
    solve, verify,
};
use surgetank_model::Bytes;

#[test]
fn no_shares_are_better_than_the_plan() {
    let kinds: Vec<Kind> =
        (0..500).map(|seed| compare(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))).collect();
    let count = |kind: Kind| kinds.iter().filter(|one| **one == kind).count();
    let counts = [Kind::Unbound, Kind::Bound, Kind::Infeasible].map(count);
    assert!(counts.iter().all(|count| *count >= 20), "no SLO in the way, one in the way, infeasible: {counts:?}");
}

#[test]
fn ten_thousand_problems_are_feasible_when_the_program_on_paper_is() {
    all(10_000, support::exhaustive::decide);
}

#[test]
fn plans_in_few_segments_are_near_the_best_ones() {
    for estimate in [Estimate::Split, Estimate::Whole] {
        let costs: Vec<(f64, f64)> = (0..500)
            .filter_map(|seed| {
                support::exhaustive::in_segments(seed, estimate).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
            })
            .collect();
        let gaps: Vec<f64> = costs.iter().map(|(cost, least)| cost / least - 1.0).collect();
        let (mean, most) = (gaps.iter().sum::<f64>() / gaps.len() as f64, gaps.iter().copied().fold(0.0, f64::max));
        assert!(gaps.len() > 400 && mean < 1e-4 && most < 0.01, "{estimate:?}: {mean} on average, {most} at most");
    }
}

#[test]
fn the_plan_is_that_of_the_whole_program() {
    all(300, optimum::run);
}

#[test]
fn many_applications_of_any_connectivity_have_the_plan_of_the_whole_program() {
    let large = Extent { applications: 40, first: 6, second: 12, grains: 400 };
    for seed in 0..20 {
        optimum::compare(1000 + seed, large).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// What scipy with HiGHS answers to the program as it is on paper, for the two curves of the test.
const SPEEDUP_OF_HIGHS: f64 = 1.113_401_392_563;

const NAMES: [&str; 2] = ["A", "B"];

/// A hundred MiB of level 1, two hundred of level 2, and two applications.
fn two(models: [Model; 2]) -> Description {
    let [level1, level2, disk] = [100, 1000, 10_000].map(Duration::from_micros);
    let server = |name: &str, mib| vec![Server { name: name.to_owned(), cache: Bytes::from_mib(mib) }];
    let application = |(name, model): (&str, Model)| Application {
        name: name.to_owned(),
        level1: "io1".to_owned(),
        level2: vec!["st1".to_owned()],
        latencies: None,
        estimate: Estimate::Split,
        slo: Slo::AboveFair(0.05),
        model,
        accesses_per_s: 100.0,
        most: None,
        queue: None,
        margin: 0.0,
        violations: 0,
    };
    Description {
        latencies: Latencies { level1, level2, disk },
        hierarchy: Hierarchy::Exclusive,
        level1: server("io1", 100),
        level2: server("st1", 200),
        applications: NAMES.into_iter().zip(models).map(application).collect(),
        segment: Bytes::from_mib(1),
        change_max: None,
    }
}

#[test]
fn two_applications_have_the_plan_that_another_solver_finds() {
    let curve = |points: &[(u64, f64)]| {
        let points: Vec<_> = points.iter().map(|(mib, ratio)| (Bytes::from_mib(*mib), *ratio)).collect();
        Model::Curve(MissCurve::new(&points).expect("it falls"))
    };
    let models = [
        curve(&[(0, 1.0), (100, 0.4), (200, 0.2), (400, 0.2)]),
        curve(&[(0, 1.0), (40, 0.7), (80, 0.55), (160, 0.5), (300, 0.48)]),
    ];
    let mut description = two(models);
    let in_segments = solve(&Problem::new(description.clone()).expect("it is valid"), None);
    assert_eq!(in_segments.basis, Basis::Optimal);
    assert!((in_segments.fair_speedup - SPEEDUP_OF_HIGHS).abs() < 1e-3, "{}", in_segments.fair_speedup);
    description.segment = Bytes::new(1);
    let plan = solve(&Problem::new(description).expect("it is valid"), None);
    assert_eq!(plan.basis, Basis::Optimal);
    assert!((plan.fair_speedup - SPEEDUP_OF_HIGHS).abs() < 1e-6, "{}", plan.fair_speedup);
}

#[test]
fn surfaces_take_the_place_of_curves() {
    let surface = |scale: f64, depth: f64| {
        let at = |x: u64, y: u64| {
            let (x, y) = (x as f64 / 100.0, y as f64 / 200.0);
            depth + scale * ((1.0 - x) + 2.0 * (1.0 - y).powi(2) + 3.0 * (1.0 - (x + 2.0 * y) / 3.0).powi(2))
        };
        let grid = (0..=4).flat_map(|i| (0..=4).map(move |j| (25 * i, 50 * j)));
        let samples: Vec<Sample> = grid
            .map(|(x, y)| Sample { first: Bytes::from_mib(x), second: Bytes::from_mib(y), latency_ms: at(x, y) })
            .collect();
        Surface::fit(&samples, (Bytes::from_mib(100), Bytes::from_mib(200))).expect("there are enough")
    };
    let surfaces = [surface(1.0, 0.2), surface(0.4, 1.0)];
    let problem = Problem::new(two(surfaces.clone().map(Model::Surface))).expect("it is valid");
    let plan = solve(&problem, None);
    assert_eq!((&plan.basis, verify(&problem, &plan)), (&Basis::Optimal, Ok(())));
    assert!(baselines::uncontrolled(&problem).is_err(), "surfaces do not say what shared caches do");
    // Of the shares on a grid that meet both SLOs none is better.
    let mib = f64::from(1 << 20);
    let [a, b] = &surfaces;
    let cost = |x: f64, y: f64| {
        let ratios = [a.at(x * mib, y * mib) / a.at(50.0 * mib, 100.0 * mib), {
            b.at((100.0 - x) * mib, (200.0 - y) * mib) / b.at(50.0 * mib, 100.0 * mib)
        }];
        if ratios.iter().all(|ratio| *ratio <= 1.05) { ratios.iter().sum() } else { f64::INFINITY }
    };
    let grid = (0..=100).flat_map(|x| (0..=200).map(move |y| (f64::from(x), f64::from(y))));
    let best = grid.map(|(x, y)| cost(x, y)).fold(f64::INFINITY, f64::min);
    let found = 2.0 / plan.fair_speedup;
    // A surface is chords in the program, and a grid has no points where bounds just hold.
    assert!(found < best * 1.0005 && found > best * 0.997, "it costs {found}, and {best} was found");
}
