//! What-if from a recorded load: the bursts found are those made, the front is one, the choice keeps its constraints.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::{Bytes, Catalog};
use surgetank_planner::whatif::{Application, Choice, Constraint, Detection, FoundBurst, Load, Moment, compare, fit};

const MIB: u64 = 1 << 20;

/// `count` bursts of `burst_s` seconds at `mib_s`, `quiet_s` seconds before each.
fn bursty(count: usize, quiet_s: usize, burst_s: usize, mib_s: u64, background_mib_s: u64) -> Load {
    let quiet = Moment { written: background_mib_s * MIB, read: 0, requests: background_mib_s };
    let burst = Moment { written: mib_s * MIB, read: 0, requests: mib_s };
    let one: Vec<Moment> = [vec![quiet; quiet_s], vec![burst; burst_s]].concat();
    Load { interval: Duration::from_secs(1), moments: one.repeat(count), capacity: Bytes::from_gib(50) }
}

fn found(load: &Load) -> (Application, Vec<FoundBurst>) {
    fit(load, &Detection::default()).unwrap()
}

#[test]
fn the_bursts_found_are_the_bursts_made() {
    let (app, bursts) = found(&bursty(4, 300, 20, 200, 1));
    assert_eq!((app.bursts, bursts.len()), (4, 4));
    assert!((app.burst_gib - 4000.0 / 1024.0).abs() < 1e-9 && (app.compute_s - 1200.0).abs() < 1e-9);
    assert_eq!((bursts[0].start_s, bursts[0].end_s), (300.0, 320.0));
    assert!((app.period_s.unwrap() - 320.0).abs() < 1e-9);
    assert!((app.background_mib_s - 1.0).abs() < 1e-6 && (app.request_kib - 1024.0).abs() < 1e-6);
    // A pause within a burst does not cut it in two.
    let mut load = bursty(2, 300, 20, 200, 0);
    load.moments[310] = Moment::default();
    assert_eq!(found(&load).1.len(), 2);
    // A constant load has no bursts.
    assert_eq!(found(&bursty(1, 0, 600, 50, 0)).1.len(), 0);
    let empty =
        Load { interval: Duration::from_secs(1), moments: vec![Moment::default(); 5], capacity: Bytes::from_gib(1) };
    assert!(fit(&empty, &Detection::default()).unwrap_err().contains("reads and writes nothing"));
}

#[test]
fn elastic_options_are_compared_with_all_others() {
    let (app, bursts) = found(&bursty(4, 300, 20, 200, 0));
    let answer = compare(&Catalog::builtin(), &app, &bursts, None, &Constraint::default());
    assert!(answer.considered.iter().any(|choice| choice.caching.is_some()));
    assert!(answer.considered.iter().any(|choice| choice.caching.is_none() && !choice.sustained));
    let choice = answer.choice.unwrap();
    assert!(choice.completion_s <= app.recorded_s);
    let cheaper = answer.considered.iter().filter(|other| other.cost_usd < choice.cost_usd);
    assert!(cheaper.into_iter().all(|other| other.completion_s > app.recorded_s));
    // Nothing is faster than the compute time.
    assert!(answer.considered.iter().all(|choice| choice.completion_s > app.compute_s));
    let gcp = compare(&Catalog::builtin(), &app, &bursts, Some("gcp"), &Constraint::default());
    assert!(gcp.considered.iter().all(|choice| choice.provider == "gcp"));
}

#[test]
fn what_lives_on_credits_slows_down_when_bursts_follow_each_other_too_fast() {
    // By option: seconds per burst beyond what is moved at the full rate.
    let lost = |quiet_s: usize| -> BTreeMap<String, f64> {
        const COUNT: usize = 12;
        let (app, bursts) = found(&bursty(COUNT, quiet_s, 600, 240, 0));
        let answer = compare(&Catalog::builtin(), &app, &bursts, None, &Constraint::default());
        let options = answer.considered.into_iter().filter(|choice| choice.caching.is_none() && !choice.sustained);
        let lost = |choice: &Choice| {
            choice.completion_s / COUNT as f64 - quiet_s as f64 - 600.0 * 240.0 / choice.throughput_mib_s
        };
        options.map(|choice| (format!("{} at {}", choice.name(), choice.throughput_mib_s), lost(&choice))).collect()
    };
    let (close, apart) = (lost(700), lost(36_000));
    let both: Vec<(f64, f64)> = close.iter().filter_map(|(name, lost)| Some((*lost, *apart.get(name)?))).collect();
    assert!(both.iter().all(|(close, apart)| *apart > -1e-6 && close - apart > -1e-6), "{both:?}");
    assert!(both.iter().any(|(close, apart)| close - apart > 10.0), "{both:?}");
}

#[test]
fn transactions_are_part_of_the_cost() {
    // 60,000 requests of 64 KiB in bursts: at $0.002 for 10,000 they cost 1.2 cents.
    let mut load = bursty(3, 300, 100, 20, 0);
    load.moments.iter_mut().filter(|moment| moment.written > 0).for_each(|moment| moment.requests = 320);
    load.capacity = Bytes::from_gib(4);
    let (app, bursts) = found(&load);
    assert_eq!(app.requests, 96_000);
    let answer = compare(&Catalog::builtin(), &app, &bursts, Some("azure"), &Constraint::default());
    let on = |name: &'static str| answer.considered.iter().filter(move |choice| choice.volume_type == name);
    assert!(on("standard-ssd").count() > 0);
    for choice in on("standard-ssd") {
        assert!((choice.transactions_usd - 96_000.0 * 0.002 / 10_000.0).abs() < 1e-9 || choice.caching.is_some());
        assert!(choice.cost_usd > choice.transactions_usd && choice.transactions_usd >= 0.0192 - 1e-9, "{choice:?}");
    }
    assert!(
        on("premium-ssd-v2").filter(|choice| choice.caching.is_none()).all(|choice| choice.transactions_usd == 0.0)
    );
    // Requests larger than a transaction count as several.
    let (large, bursts) = found(&bursty(3, 300, 100, 20, 0));
    let answer = compare(&Catalog::builtin(), &large, &bursts, Some("azure"), &Constraint::default());
    let one = answer.considered.iter().find(|one| one.volume_type == "standard-ssd" && one.caching.is_none()).unwrap();
    assert!((one.transactions_usd - 6000.0 * 4.0 * 0.002 / 10_000.0).abs() < 1e-9, "{one:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_front_is_a_front_and_the_choice_keeps_its_constraints(
        count in 1usize..5, quiet_s in 60usize..400, burst_s in 2usize..40, mib_s in 20u64..900,
        deadline in 0.5f64..1.5, budget in 0.0f64..0.2,
    ) {
        let (app, bursts) = found(&bursty(count, quiet_s, burst_s, mib_s, 0));
        let constraint = Constraint { deadline_s: Some(deadline * app.recorded_s), budget_usd: Some(budget) };
        let answer = compare(&Catalog::builtin(), &app, &bursts, Some("aws"), &constraint);
        for choice in &answer.considered {
            let beaten = answer.considered.iter().any(|other| {
                other.completion_s < choice.completion_s - 1e-9 && other.cost_usd < choice.cost_usd - 1e-12
            });
            prop_assert!(!(choice.pareto && beaten), "{choice:?}");
            prop_assert!(choice.cost_usd > 0.0 && choice.completion_s.is_finite());
        }
        let keeps = |time: f64, cost: f64| time <= deadline * app.recorded_s && cost <= budget;
        match answer.choice {
            Some(choice) => prop_assert!(keeps(choice.completion_s, choice.cost_usd)),
            None => {
                prop_assert!(answer.considered.iter().all(|choice| !keeps(choice.completion_s, choice.cost_usd)));
                prop_assert!(answer.infeasible.unwrap().contains("the fastest is"));
            }
        }
    }
}
