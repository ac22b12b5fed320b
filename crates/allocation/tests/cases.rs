//! Cases that are hard to plan or easy to get wrong, one by one.

use std::time::Duration;

use surgetank_allocation::mlms::{Mlms, Sample, Surface};
use surgetank_allocation::{
    Application, Basis, Change, Description, Estimate, Fallback, Hierarchy, Latencies, MissCurve, Model, Plan, Problem,
    Server, Slo, baselines, solve, verify, verify_change,
};
use surgetank_model::Bytes;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn server(name: &str, cache: u64) -> Server {
    Server { name: name.to_owned(), cache: Bytes::new(cache) }
}

fn curve(points: &[(u64, f64)]) -> Model {
    let points: Vec<_> = points.iter().map(|(size, ratio)| (Bytes::new(*size), *ratio)).collect();
    Model::Curve(MissCurve::new(&points).expect("it falls"))
}

/// An application on `io` that reaches `st`.
fn application(name: &str, slo: f64, model: Model) -> Application {
    Application {
        name: name.to_owned(),
        level1: "io".to_owned(),
        level2: vec!["st".to_owned()],
        latencies: None,
        estimate: Estimate::Split,
        slo: Slo::AboveFair(slo),
        model,
        accesses_per_s: 1.0,
        most: None,
        queue: None,
        margin: 0.0,
        violations: 0,
    }
}

fn latencies(level1_us: u64, level2_us: u64, disk_us: u64) -> Latencies {
    let [level1, level2, disk] = [level1_us, level2_us, disk_us].map(Duration::from_micros);
    Latencies { level1, level2, disk }
}

/// One server of each level.
fn description(first: u64, second: u64, applications: Vec<Application>) -> Description {
    Description {
        latencies: latencies(100, 1000, 10_000),
        hierarchy: Hierarchy::Exclusive,
        level1: vec![server("io", first)],
        level2: vec![server("st", second)],
        applications,
        segment: Bytes::new(1),
        change_max: None,
    }
}

fn problem(description: Description) -> Problem {
    Problem::new(description).expect("it is valid")
}

/// The plan, which is the best one and keeps its promises.
fn best(description: Description) -> Plan {
    let problem = problem(description);
    let plan = solve(&problem, None);
    assert_eq!((&plan.basis, verify(&problem, &plan)), (&Basis::Optimal, Ok(())));
    plan
}

fn second(plan: &Plan, of: usize) -> u64 {
    plan.shares[of].level2.values().map(|bytes| bytes.get()).sum()
}

fn two() -> Description {
    let curves = [curve(&[(0, 1.0), (250 * MIB, 0.1)]), curve(&[(0, 1.0), (20 * MIB, 0.5)])];
    let [a, b] = curves;
    description(100 * MIB, 200 * MIB, vec![application("A", 0.05, a), application("B", 0.05, b)])
}

#[test]
fn servers_of_any_scale_are_planned_together() {
    for first in [4 * KIB, 64 * KIB, MIB, 16 * MIB] {
        let hot = |size: u64| curve(&[(0, 1.0), (size, 0.1), (TIB, 0.0)]);
        let applications = vec![
            application("A", 0.05, hot(64 * KIB)),
            application("B", 0.05, hot(64 * KIB)),
            application("C", 0.05, hot(32 * KIB)),
        ];
        // The second level holds everything, and the first one is worth 0.9 × 0.9 ms to one application.
        let plan = best(description(first, 16 * TIB, applications));
        assert!(plan.fair_speedup > 1.0, "{first}: {}", plan.fair_speedup);
        assert!((0..3).all(|of| second(&plan, of) >= TIB - first), "{first}: {plan:?}");
    }
}

#[test]
fn a_narrow_piece_of_a_curve_counts_beside_a_wide_one() {
    let hot = || curve(&[(0, 1.0), (64 * KIB, 0.01), (4 * TIB, 0.0)]);
    best(description(GIB, TIB, vec![application("A", 0.05, hot()), application("B", 0.05, hot())]));
    let hot = || curve(&[(0, 1.0), (MIB, 0.3), (512 * GIB, 0.1), (4 * TIB, 0.0)]);
    best(description(4 * GIB, 2 * TIB, vec![application("A", 0.05, hot()), application("B", 0.05, hot())]));
}

#[test]
fn slos_hold_in_caches_of_a_few_bytes() {
    for cache in [3, 7, 100, 1000, 4096, 64 * KIB, MIB] {
        for step in 0..40 {
            let part = |factor: f64| ((cache as f64 * factor) as u64).max(1);
            let narrow = curve(&[(0, 1.0), (part(0.5 + f64::from(step) / 40.0), 0.5), (part(6.0) + 2, 0.05)]);
            let wide = curve(&[(0, 1.0), (part(2.5), 0.01)]);
            best(description(cache, 2 * cache, vec![application("A", 0.01, narrow), application("B", 0.05, wide)]));
        }
    }
}

#[test]
fn shares_are_whole_segments() {
    for segment in [1, 3 * MIB, 10 * MIB, 17 * MIB, 50 * MIB] {
        let mut description = two();
        description.segment = Bytes::new(segment);
        let plan = best(description);
        for share in &plan.shares {
            assert!(share.level2.values().chain([&share.level1]).all(|size| size.get() % segment == 0), "{share:?}");
        }
    }
}

#[test]
fn idle_cache_is_handed_out() {
    let plan = best(description(
        100 * MIB,
        200 * MIB,
        vec![application("A", 0.05, curve(&[(0, 1.0), (MIB, 0.1)])), application("B", 0.05, curve(&[(0, 0.5)]))],
    ));
    assert_eq!(plan.shares.iter().map(|share| share.level1.get()).sum::<u64>(), 100 * MIB);
    assert_eq!(second(&plan, 0) + second(&plan, 1), 200 * MIB);
    assert!(plan.shares.iter().all(|share| share.level1.get() > 40 * MIB), "{plan:?}");
}

#[test]
fn a_fallback_says_how_far_it_is_from_the_previous_plan() {
    let first = best(two());
    let mut description = two();
    description.change_max = Some(0.05);
    description.applications[0].violations = 2;
    let problem = problem(description);
    let next = solve(&problem, Some(&first));
    assert!(matches!(next.basis, Basis::FairShare(Fallback::Violated { .. })));
    assert_eq!((next.change, verify_change(&problem, &first, &next)), (Change::Exceeded, Ok(())));
}

#[test]
fn a_false_plan_is_refused() {
    let problem = problem(two());
    let plan = solve(&problem, None);
    let refused = |change: &dyn Fn(&mut Plan), plan: &Plan, part: &str| {
        let mut plan = plan.clone();
        change(&mut plan);
        let message = verify(&problem, &plan).expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    refused(&|plan| plan.shares[0].fair_latency_ms *= 3.0, &plan, "latency with its fair share");
    refused(&|plan| plan.shares[0].bound_ms *= 7.0, &plan, "bound");
    refused(&|plan| plan.fair_speedup *= 3.0, &plan, "fair speedup");
    refused(&|plan| plan.fair_speedup = f64::NAN, &plan, "fair speedup");
    refused(&|plan| plan.shares[0].latency_ms = f64::NAN, &plan, "said to take NaN ms");
    refused(&|plan| plan.shares[0].slo_met = false, &plan, "within its bound");
    let fair = Plan { basis: Basis::FairShare(Fallback::Bootstrap), ..baselines::fair_share(&problem) };
    assert_eq!(verify(&problem, &fair), Ok(()));
    let other = |plan: &mut Plan| {
        plan.shares[0].level1 = Bytes::ZERO;
        plan.shares[0].level2.clear();
        plan.shares[0].latency_ms = 10.0;
        plan.shares[0].slo_met = false;
    };
    refused(&other, &fair, "does not have its fair share");
    let mlms = Plan { basis: Basis::Mlms, ..baselines::fair_share(&problem) };
    assert_eq!(verify(&problem, &mlms), Ok(()));
    refused(&|plan| plan.shares[0].latency_ms = f64::NAN, &mlms, "said to take NaN ms");
    refused(&|plan| plan.shares[0].bound_ms *= 2.0, &mlms, "bound");
}

#[test]
fn a_larger_change_than_allowed_takes_a_reason() {
    let mut description = two();
    description.change_max = Some(0.01);
    let problem = problem(description);
    let before = baselines::fair_share(&problem);
    let mut far = best(two());
    let message = verify_change(&problem, &before, &far).unwrap_err().to_string();
    assert!(message.contains("the change is said to be Within, and is Exceeded"), "{message}");
    far.change = Change::Exceeded;
    let message = verify_change(&problem, &before, &far).unwrap_err().to_string();
    assert!(message.contains("the previous ones meet all SLOs"), "{message}");
    let next = solve(&problem, Some(&before));
    assert_eq!((next.change, verify_change(&problem, &before, &next)), (Change::Within, Ok(())));
}

#[test]
fn small_steps_arrive_where_large_ones_do() {
    let curves = [
        curve(&[(0, 1.0), (40 * MIB, 0.6), (300 * MIB, 0.5)]),
        curve(&[(0, 1.0), (50 * MIB, 0.62), (300 * MIB, 0.515)]),
    ];
    let [a, b] = curves;
    let mut description = description(100 * MIB, 200 * MIB, vec![application("A", 0.05, a), application("B", 0.05, b)]);
    let goal = best(description.clone()).fair_speedup;
    for change_max in [0.05, 0.003, 0.0003] {
        description.change_max = Some(change_max);
        let problem = problem(description.clone());
        let mut plan = baselines::fair_share(&problem);
        for _ in 0..3000 {
            let next = solve(&problem, Some(&plan));
            let is_last = next.shares == plan.shares;
            plan = next;
            if is_last {
                break;
            }
        }
        assert!((plan.fair_speedup - goal).abs() < 1e-6, "{change_max}: {}, not {goal}", plan.fair_speedup);
    }
}

/// A surface that falls with the square of what is missing of each level.
fn bowl(extent: (u64, u64)) -> Surface {
    let at = |i: u64, j: u64| {
        let (u, v) = (1.0 - i as f64 / 4.0, 1.0 - j as f64 / 4.0);
        let (first, second) = (Bytes::new(extent.0 / 4 * i), Bytes::new(extent.1 / 4 * j));
        Sample { first, second, latency_ms: 0.1 + 4.0 * u * u + 4.0 * v * v }
    };
    let samples: Vec<Sample> = (0..=4).flat_map(|i| (0..=4).map(move |j| at(i, j))).collect();
    Surface::fit(&samples, (Bytes::new(extent.0), Bytes::new(extent.1))).expect("there are enough")
}

#[test]
fn equal_surfaces_have_equal_shares_however_tight_their_slos_and_large_their_servers() {
    for slo in [0.05, 0.0005, 0.0001] {
        for (count, scale) in [(7, 1), (25, 20)] {
            let model = || Model::Surface(bowl((100 * MIB, 200 * MIB)));
            let applications = (0..count).map(|of| application(&format!("app{of}"), slo, model())).collect();
            let plan = best(description(scale * 100 * MIB, scale * 200 * MIB, applications));
            assert!((plan.fair_speedup - 1.0).abs() < 1e-5, "{slo}: {}", plan.fair_speedup);
        }
    }
}

#[test]
fn an_unequal_pair_of_surfaces_is_planned_up_to_a_chord() {
    // Servers are ten times what the surfaces can use: chords end where surfaces do.
    let surface = |scale: f64| {
        let at = |i: u64| Sample {
            first: Bytes::new(25 * MIB * i),
            second: Bytes::ZERO,
            latency_ms: 0.2 + scale * (1.0 - i as f64 / 4.0).powi(2),
        };
        let samples: Vec<Sample> = (0..=4).chain(0..=4).map(at).collect();
        Model::Surface(Surface::fit(&samples, (Bytes::new(100 * MIB), Bytes::new(MIB))).expect("there are enough"))
    };
    let mut description = description(
        100 * MIB,
        1000 * MIB,
        vec![application("A", 0.5, surface(1.0)), application("B", 0.5, surface(3.0))],
    );
    description.level1[0].cache = Bytes::new(120 * MIB);
    let problem = problem(description.clone());
    let plan = best(description);
    let cost = 2.0 / plan.fair_speedup;
    let (Model::Surface(a), Model::Surface(b)) = (surface(1.0), surface(3.0)) else { panic!("they are surfaces") };
    let fair = baselines::fair_share(&problem);
    let costs = (0..=1200_u32).map(|step| {
        let x = f64::from(step) * 0.1 * MIB as f64;
        let ratios =
            [a.at(x, 0.0) / fair.shares[0].latency_ms, b.at(120.0 * MIB as f64 - x, 0.0) / fair.shares[1].latency_ms];
        if ratios.iter().all(|ratio| *ratio <= 1.5) { ratios.iter().sum() } else { f64::INFINITY }
    });
    let least = costs.fold(f64::INFINITY, f64::min);
    assert!(cost < least * 1.0005, "it costs {cost}, and {least} was found");
}

#[test]
fn applications_with_and_without_a_second_level_share_the_first_one() {
    let hot = || curve(&[(0, 1.0), (60 * MIB, 0.9), (90 * MIB, 0.1)]);
    for estimate in [Estimate::Split, Estimate::Whole] {
        let mut one = Application { estimate, ..application("A", 0.05, curve(&[(0, 1.0), (150 * MIB, 0.1)])) };
        let mut alone = Application { estimate, level2: Vec::new(), ..application("B", 0.05, hot()) };
        // What its cache cannot have is of no use to it.
        one.most = Some([Bytes::new(30 * MIB), Bytes::new(200 * MIB)]);
        alone.most = Some([Bytes::new(100 * MIB), Bytes::ZERO]);
        let description = Description {
            hierarchy: Hierarchy::Inclusive,
            segment: Bytes::new(MIB),
            ..description(120 * MIB, 200 * MIB, vec![one, alone])
        };
        let plan = best(description);
        assert!(plan.shares[1].level1 >= Bytes::new(90 * MIB), "{plan:?}");
        assert!(plan.shares[0].level1 <= Bytes::new(30 * MIB) && plan.fair_speedup > 1.1, "{plan:?}");
        assert_eq!((second(&plan, 0), second(&plan, 1)), (200 * MIB, 0));
    }
}

#[test]
fn a_surface_that_falls_to_nothing_has_the_latency_of_level_1() {
    let sample =
        |x: u64, y: u64, latency_ms: f64| Sample { first: Bytes::from_mib(x), second: Bytes::from_mib(y), latency_ms };
    let samples = [(10, 10, 9.0), (20, 20, 7.0), (30, 30, 5.0), (40, 50, 3.0), (50, 60, 1.0), (55, 65, 0.1)];
    let samples = samples.map(|(x, y, ms)| sample(x, y, ms));
    let surface = Surface::fit(&samples, (Bytes::new(100 * MIB), Bytes::new(200 * MIB))).expect("there are enough");
    assert!(surface.at(100.0 * MIB as f64, 200.0 * MIB as f64) <= 0.0);
    let plan = best(description(100 * MIB, 200 * MIB, vec![application("A", 0.05, Model::Surface(surface))]));
    assert!(plan.shares[0].latency_ms >= 0.1 && plan.fair_speedup.is_finite(), "{plan:?}");
}

#[test]
fn an_slo_that_is_missed_by_nanoseconds_names_its_application() {
    for nanoseconds in [1_999_998, 1_999_997, 1_999_990] {
        let mut one = application("A", 0.05, curve(&[(0, 1.0), (100 * MIB, 1.9 / 9.9)]));
        one.slo = Slo::Latency(Duration::from_nanos(nanoseconds));
        let mut description = description(100 * MIB, 200 * MIB, vec![one]);
        let plan = solve(&problem(description.clone()), None);
        let infeasible = plan.infeasible().expect("2 ms is the least");
        assert_eq!(infeasible.relaxed.len(), 1, "{nanoseconds}");
        description.applications[0].slo = infeasible.relaxed[0].feasible;
        best(description);
    }
}

#[test]
fn numbers_at_their_limits_are_planned_or_refused() {
    let endless = || curve(&[(0, 1.0), (1 << 63, 0.0)]);
    let applications = (0..4).map(|of| {
        let mut application = application(&format!("app{of}"), 0.05, endless());
        application.slo = Slo::Latency(Duration::from_micros(1800));
        application
    });
    // More cache than there can be would do.
    let plan = solve(&problem(description(GIB << 25, GIB << 28, applications.collect())), None);
    let infeasible = plan.infeasible().expect("half of a curve is not there");
    assert_eq!(infeasible.added, None);
    // Measured latencies have no limit.
    let mut mlms = Mlms::default();
    for step in 0..8 {
        for name in ["A", "B"] {
            let (first, second) = (Bytes::new(step * MIB), Bytes::new(step * step % 7 * MIB));
            mlms.observe(name, Sample { first, second, latency_ms: 1e30 });
        }
    }
    let mut description = two();
    description.applications[0].slo = Slo::Latency(Duration::from_micros(1500));
    assert!(mlms.solve(&problem(description), None).infeasible().is_some());
    let with = |slo: f64| {
        let mut description = two();
        description.applications[0].slo = Slo::AboveFair(slo);
        description
    };
    best(with(Slo::ABOVE_MAX));
    assert!([Slo::ABOVE_MAX * 1.01, 1e100, f64::MAX].into_iter().all(|slo| Problem::new(with(slo)).is_err()));
}

#[test]
fn many_applications_of_an_inclusive_hierarchy_have_a_plan() {
    for count in [9, 16, 32, 48] {
        let hot = |of: u64| {
            let (first, second) = ((50 + 17 * (of * 7 % 13)) * MIB, (300 + 40 * (of % 11)) * MIB);
            let end = 0.1 * (of % 2) as f64;
            curve(&[(0, 1.0), (first, 0.5 + 0.02 * (of % 7) as f64), (second, 0.2), (1200 * MIB, end)])
        };
        let one = |of: u64| {
            let mut application = application(&format!("app{of}"), 0.05, hot(of));
            application.level1 = format!("io{}", of % (count / 2));
            application.level2 =
                [vec!["st"], vec!["su"], vec!["st", "su"]][of as usize % 3].iter().map(|s| (*s).into()).collect();
            application
        };
        let mut description = description(MIB, count * 40 * MIB, (0..count).map(one).collect());
        description.hierarchy = Hierarchy::Inclusive;
        description.level1 = (0..count / 2).map(|of| server(&format!("io{of}"), (512 + 13 * of) * MIB)).collect();
        description.level2.push(server("su", count * 60 * MIB));
        assert!(best(description).fair_speedup > 1.005);
    }
}

#[test]
fn an_application_that_splits_nothing_is_planned_by_its_curve() {
    // Of a cache of 100 that two share each misses everything with 50, and one nothing with 80: by the hull both miss 3/8.
    let cliff = || curve(&[(0, 1.0), (79 * MIB, 1.0), (80 * MIB, 0.0)]);
    let mut applications = vec![application("A", 9.0, cliff()), application("B", 9.0, cliff())];
    for application in &mut applications {
        application.level2.clear();
        application.estimate = Estimate::Whole;
    }
    let mut description = description(100 * MIB, MIB, applications);
    description.level2.clear();
    description.segment = Bytes::new(MIB);
    let plan = best(description.clone());
    let mut latencies = [plan.shares[0].latency_ms, plan.shares[1].latency_ms];
    latencies.sort_by(f64::total_cmp);
    assert_eq!(latencies, [0.1, 10.0]);
    // With a tight SLO nobody may lose, and nobody can gain: by the hull the fair share would do, by the curve it is what it is.
    for application in &mut description.applications {
        application.slo = Slo::Latency(Duration::from_millis(5));
    }
    let plan = solve(&problem(description.clone()), None);
    assert!(plan.infeasible().is_some(), "by the curve both cannot have 5 ms: {plan:?}");
    for application in &mut description.applications {
        application.estimate = Estimate::Split;
    }
    assert!(best(description).shares.iter().all(|share| share.latency_ms <= 5.0));
}

#[test]
fn each_application_may_have_its_own_latencies() {
    let same = || curve(&[(0, 1.0), (300 * MIB, 0.0)]);
    let applications = vec![application("A", 0.9, same()), application("B", 0.9, same())];
    let mut description = description(100 * MIB, 100 * MIB, applications);
    description.applications[1].latencies = Some(latencies(100, 200, 300));
    let problem = problem(description.clone());
    let fair = baselines::fair_share(&problem);
    // 50 of 300 MiB in level 1, as much in level 2.
    let of = |t1: f64, t2: f64, t3: f64| t1 + (t2 - t1) * 5.0 / 6.0 + (t3 - t2) * 2.0 / 3.0;
    assert!((fair.shares[0].latency_ms - of(0.1, 1.0, 10.0)).abs() < 1e-9);
    assert!((fair.shares[1].latency_ms - of(0.1, 0.2, 0.3)).abs() < 1e-9);
    let plan = best(description);
    let both = |of: usize| plan.shares[of].level1.get() + second(&plan, of);
    assert!(both(0) > both(1) && plan.fair_speedup > 1.0, "whose disk is slow has more: {plan:?}");
}

#[test]
fn there_may_be_no_second_level() {
    let mut alone = two();
    alone.level2.clear();
    for application in &mut alone.applications {
        application.level2.clear();
        application.slo = Slo::AboveFair(0.3);
    }
    for hierarchy in [Hierarchy::Exclusive, Hierarchy::Inclusive] {
        let mut description = alone.clone();
        description.hierarchy = hierarchy;
        let problem = problem(description.clone());
        let plan = best(description);
        assert!(plan.fair_speedup > 1.0 && plan.shares.iter().all(|share| share.level2.is_empty()), "{plan:?}");
        assert_eq!(plan.shares.iter().map(|share| share.level1.get()).sum::<u64>(), 100 * MIB);
        // What misses level 1 goes to the disk: 50 of 250 MiB.
        let fair = baselines::fair_share(&problem);
        assert!((fair.shares[0].latency_ms - (0.1 + 9.9 * (1.0 - 0.9 * 0.2))).abs() < 1e-9);
        for shared in [baselines::uncontrolled(&problem), baselines::first_level_only(&problem)] {
            let shared = shared.expect("there are curves");
            assert!(shared.shares.iter().all(|share| share.latency_ms > 1.0 && share.level2.is_empty()), "{shared:?}");
        }
        let mut mlms = Mlms::default();
        for interval in 0..8 {
            for share in Mlms::bootstrap(&problem, interval).shares {
                let (first, second) = (share.level1, Bytes::ZERO);
                mlms.observe(&share.application, Sample { first, second, latency_ms: share.latency_ms });
            }
        }
        assert_eq!(mlms.solve(&problem, None).basis, Basis::Mlms);
    }
    alone.applications[0].level2.push("st".to_owned());
    let message = Problem::new(alone).unwrap_err().to_string();
    assert!(message.contains("application A uses the second-level server st, which is not there"), "{message}");
}
