//! Problems of any scale and kind: caches of a few bytes and of terabytes, segments, surfaces, applications that split nothing, small
//! changes, and previous plans of other problems.

use std::time::Duration;

use surgetank_allocation::mlms::{Mlms, Sample, Surface};
use surgetank_allocation::{
    Application, Basis, Description, Estimate, Fallback, Hierarchy, Latencies, MissCurve, Model, Plan, Problem, Server,
    Slo, solve, verify, verify_change,
};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use super::ensure;

/// A number between 2^low and 2^high, each power as likely.
fn power(random: &mut Random, low: f64, high: f64) -> u64 {
    2_f64.powf(low + (high - low) * random.unit()) as u64
}

fn curve(random: &mut Random, low: f64, high: f64) -> MissCurve {
    let (mut size, mut ratio) = (0, if random.chance(0.3) { 0.2 + 0.8 * random.unit() } else { 1.0 });
    let mut points = vec![(Bytes::ZERO, ratio)];
    for _ in 0..1 + random.below(6) {
        size += power(random, low - 4.0, high + 1.0).max(1);
        ratio *= if random.chance(0.2) { 1.0 } else { random.unit() };
        points.push((Bytes::new(size), ratio));
    }
    MissCurve::new(&points).expect("it falls")
}

fn surface(random: &mut Random, extent: (u64, u64)) -> Surface {
    let sample = |random: &mut Random| {
        let (x, y) = (random.unit(), random.unit());
        let latency_ms = 0.01 + 5.0 * (1.0 - x).powi(2) + 5.0 * (1.0 - y) + random.unit();
        let part = |of: u64, part: f64| Bytes::new((of as f64 * part) as u64);
        Sample { first: part(extent.0, x), second: part(extent.1, y), latency_ms }
    };
    let samples: Vec<Sample> = (0..6 + random.below(10)).map(|_| sample(random)).collect();
    Surface::fit(&samples, (Bytes::new(extent.0), Bytes::new(extent.1))).expect("there are enough")
}

/// Any description; not every one is a problem.
pub fn description(random: &mut Random) -> Description {
    let (low, high) = [(2.0, 12.0), (12.0, 24.0), (20.0, 42.0), (2.0, 42.0)][random.below(4) as usize];
    let servers = |random: &mut Random, letter: &str, count: u64| -> Vec<Server> {
        let server = |index| Server { name: format!("{letter}{index}"), cache: Bytes::new(power(random, low, high)) };
        (0..count).map(server).collect()
    };
    let (first, second) = (1 + random.below(3), random.below(4));
    let (level1, level2) = (servers(random, "io", first), servers(random, "st", second));
    let least = level1.iter().chain(&level2).map(|server| server.cache.get()).min().unwrap_or(1);
    let segment = [1, 1, 1 + least / 64, 1 + least / 12][random.below(4) as usize];
    let hierarchy = if random.chance(0.3) { Hierarchy::Inclusive } else { Hierarchy::Exclusive };
    let most = if random.chance(0.1) { 30 } else { 5 };
    let surfaces = random.chance(0.2);
    let applications = (0..1 + random.below(most)).map(|index| {
        let mut reached: Vec<String> = level2.iter().map(|server| server.name.clone()).collect();
        random.shuffle(&mut reached);
        reached.truncate(1 + random.below(reached.len().max(1) as u64) as usize);
        let slo = match random.chance(0.8) {
            true => Slo::AboveFair([0.001, 0.01, 0.05, 0.1, 0.5][random.below(5) as usize]),
            false => Slo::Latency(Duration::from_micros(500 + random.below(9000))),
        };
        let model = match surfaces && random.chance(0.5) {
            true => {
                let extent = (power(random, low, high), power(random, low, high));
                Model::Surface(surface(random, extent))
            }
            false => Model::Curve(curve(random, low, high)),
        };
        let own = Latencies {
            level1: Duration::from_micros(1 + random.below(100)),
            level2: Duration::from_micros(200 + random.below(1000)),
            disk: Duration::from_micros(2000 + random.below(90_000)),
        };
        Application {
            name: format!("app{index}"),
            level1: level1[random.below(level1.len() as u64) as usize].name.clone(),
            level2: reached,
            latencies: random.chance(0.3).then_some(own),
            estimate: if random.chance(0.4) { Estimate::Whole } else { Estimate::Split },
            slo,
            model,
            accesses_per_s: 10.0,
            most: None,
            queue: None,
            margin: if random.chance(0.2) { 0.05 * random.unit() } else { 0.0 },
            violations: 0,
        }
    });
    let applications = applications.collect();
    let [level1_latency, level2_latency, disk] = [100, 1000, 10_000].map(Duration::from_micros);
    Description {
        latencies: Latencies { level1: level1_latency, level2: level2_latency, disk },
        hierarchy,
        level1,
        level2,
        applications,
        segment: Bytes::new(segment),
        change_max: random.chance(0.4).then(|| 2_f64.powf(-12.0 * random.unit())),
    }
}

pub fn same(plan: &Plan, other: &Plan) -> bool {
    let sizes = |share: &surgetank_allocation::Share| (share.application.clone(), share.level1, share.level2.clone());
    plan.shares.iter().map(sizes).eq(other.shares.iter().map(sizes))
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let description = description(random);
    // Where an equal share is below a segment there is no problem.
    let Ok(problem) = Problem::new(description.clone()) else { return Ok(()) };
    let plan = checked(&description, &problem, None)?;
    let free =
        Problem::new(Description { change_max: None, ..description.clone() }).map_err(|error| error.to_string())?;
    let again = checked(&description, &free, Some(&plan))?;
    // Surfaces are chords in the program, which are finer where the previous plan was.
    let is_exact = description.applications.iter().all(|application| matches!(application.model, Model::Curve(_)));
    ensure(same(&again, &plan) || !is_exact, || format!("solved again, it is {again:?}, not {plan:?}"))?;
    // A step from another problem's plan, and one on from there.
    let other = super::scales::description(random);
    let Ok(other) = Problem::new(other) else { return Ok(()) };
    let mut previous = solve(&other, None);
    for _ in 0..2 {
        previous = checked(&description, &problem, Some(&previous))?;
    }
    mlms(random, &problem)
}

/// The plan, if it keeps all promises.
fn checked(description: &Description, problem: &Problem, previous: Option<&Plan>) -> Result<Plan, String> {
    let plan = solve(problem, previous);
    verify(problem, &plan).map_err(|error| error.to_string())?;
    if let Some(previous) = previous {
        verify_change(problem, previous, &plan).map_err(|error| error.to_string())?;
    }
    ensure(!matches!(plan.basis, Basis::FairShare(Fallback::Solver(_))), || format!("{:?}", plan.basis))?;
    let is_relative =
        |application: &Application| matches!(application.slo, Slo::AboveFair(_)) && application.margin == 0.0;
    if description.applications.iter().all(is_relative) {
        ensure(plan.basis == Basis::Optimal, || format!("the fair share meets all SLOs, and it is {:?}", plan.basis))?;
        let is_bounded = description.change_max.is_some() && previous.is_some();
        ensure(is_bounded || plan.fair_speedup > 1.0 - 6e-5, || format!("the fair speedup is {}", plan.fair_speedup))?;
    }
    if let Some(infeasible) = plan.infeasible() {
        ensure(!infeasible.relaxed.is_empty(), || "nobody is named".to_owned())?;
    }
    // What a plain cache of each share does is what counts for applications that split nothing.
    let whole = surgetank_allocation::mlms::Gap::judged(problem, &plan);
    for ((share, judged), application) in plan.shares.iter().zip(&whole.shares).zip(&description.applications) {
        if application.estimate == Estimate::Whole && plan.basis == Basis::Optimal {
            ensure(judged.slo_met, || format!("by its curve {} breaks its SLO", share.application))?;
        }
    }
    Ok(plan)
}

fn mlms(random: &mut Random, problem: &Problem) -> Result<(), String> {
    let mut mlms = Mlms::default();
    let mut plan = Mlms::bootstrap(problem, 0);
    for interval in 0..9 {
        for share in &plan.shares {
            let second = Bytes::new(share.level2.values().map(|bytes| bytes.get()).sum());
            // Measured latencies are anything.
            let latency_ms = share.latency_ms * (0.5 + random.unit());
            mlms.observe(&share.application, Sample { first: share.level1, second, latency_ms });
        }
        plan = if interval < 7 { Mlms::bootstrap(problem, interval + 1) } else { mlms.solve(problem, Some(&plan)) };
        verify(problem, &plan).map_err(|error| format!("the paper's algorithm: {error}"))?;
    }
    Ok(())
}
