//! How long plans take, as one JSON document: `cargo bench --package surgetank-allocation`. Times are those of the processor, so
//! that what else runs on a machine does not count.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_methods, reason = "plans have no clock, their speed has")]

use std::time::Duration;

use surgetank_allocation::mlms::{self, Gap};
use surgetank_allocation::{
    Application, Basis, Description, Estimate, Hierarchy, Latencies, MissCurve, Model, Plan, Problem, Server, Slo,
    solve, verify,
};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

/// Points of a curve, as `mrc` gives them.
const POINTS: u32 = 32;

/// Which problem is solved.
#[derive(Clone, Copy)]
struct Case {
    hierarchy: Hierarchy,
    applications: u64,
    servers: u64,
    reached: u64,
    /// MiB of the second level an application. With 100, less than of the first one, most of an inclusive hierarchy's applications
    /// live on their first level alone.
    second_mib: u64,
    estimate: Estimate,
}

/// Applications on as many servers of both levels, each of which reaches `reached` second-level servers.
fn problem(seed: u64, case: Case) -> Problem {
    let Case { hierarchy, applications, servers, reached, second_mib, estimate } = case;
    let random = &mut Random::from_seed(seed);
    let named = |letter: &str, cache: u64| -> Vec<Server> {
        let server = |index| Server { name: format!("{letter}{index}"), cache: Bytes::from_mib(cache) };
        (0..servers).map(server).collect()
    };
    let (level1, level2) =
        (named("io", 256 * applications / servers), named("st", second_mib * applications / servers));
    let application = |index: u64| {
        let mut all: Vec<u64> = (0..servers).collect();
        random.shuffle(&mut all);
        Application {
            name: format!("app{index}"),
            level1: format!("io{}", index % servers),
            level2: all.into_iter().take(reached as usize).map(|server| format!("st{server}")).collect(),
            latencies: None,
            estimate,
            slo: Slo::AboveFair([0.01, 0.02, 0.05, 0.08, 0.1][random.below(5) as usize]),
            model: Model::Curve(curve(random)),
            accesses_per_s: 1.0,
            most: None,
            queue: None,
            margin: 0.0,
            violations: 0,
        }
    };
    let [level1_latency, level2_latency, disk] = [100, 1000, 10_000].map(Duration::from_micros);
    Problem::new(Description {
        latencies: Latencies { level1: level1_latency, level2: level2_latency, disk },
        hierarchy,
        applications: (0..applications).map(application).collect(),
        level1,
        level2,
        segment: Bytes::new(1),
        change_max: None,
    })
    .expect("the description is valid")
}

/// A working set that ends softly, and maybe a cliff: the hull has fewer points than the curve.
fn curve(random: &mut Random) -> MissCurve {
    let scale = 64.0 + 3000.0 * random.unit() * random.unit();
    let (floor, cliff) = (0.4 * random.unit(), 0.3 * random.unit());
    let at = scale * (0.5 + random.unit());
    let point = |step: u32| {
        let size = 6.0 * scale * (f64::from(step) / f64::from(POINTS)).powf(1.5);
        let beyond = if size >= at { 0.0 } else { cliff };
        let ratio = floor + (1.0 - floor) * ((1.0 - cliff) * (-size / scale).exp() + beyond);
        (Bytes::new((size * 1_048_576.0) as u64), ratio)
    };
    MissCurve::new(&(0..=POINTS).map(point).collect::<Vec<_>>()).expect("it falls")
}

/// This thread's time on a processor so far; some kernels count it in ticks of 4 ms.
fn processor_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.expect("the first number is the time") / 1e6
}

fn millis(work: impl FnOnce() -> Plan) -> (f64, Plan) {
    let start = processor_ms();
    let plan = work();
    (processor_ms() - start, plan)
}

fn main() {
    let mut rows = Vec::new();
    let cases = [(4, 4, 4, 400), (4, 4, 2, 400), (64, 16, 4, 10), (512, 64, 64, 5), (512, 64, 8, 5), (512, 64, 2, 5)];
    let mut all = Vec::new();
    for hierarchy in [Hierarchy::Exclusive, Hierarchy::Inclusive] {
        for (applications, servers, reached, runs) in cases {
            let estimate = Estimate::Split;
            all.push((Case { hierarchy, applications, servers, reached, second_mib: 1024, estimate }, runs));
        }
    }
    let few = Case { second_mib: 100, ..all[all.len() - 1].0 };
    all.extend([(Case { reached: 64, ..few }, 5), (few, 5), (Case { applications: 32, servers: 16, ..few }, 10)]);
    let unsplit = Case { estimate: Estimate::Whole, ..all[0].0 };
    all.extend([(unsplit, 100), (Case { applications: 64, servers: 16, ..unsplit }, 10)]);
    for (case, runs) in all {
        let (mut total_ms, mut most_ms, mut speedup) = (0.0, 0.0_f64, 0.0);
        for seed in 0..runs {
            let problem = problem(seed, case);
            let (ms, plan) = millis(|| solve(&problem, None));
            assert_eq!(verify(&problem, &plan), Ok(()));
            speedup += plan.fair_speedup / runs as f64;
            total_ms += ms;
            most_ms = most_ms.max(ms);
        }
        let Case { hierarchy, applications, servers, reached, second_mib, estimate } = case;
        rows.push(format!(
            "  {{\"hierarchy\": \"{hierarchy:?}\", \"estimate\": \"{estimate:?}\", \"applications\": {applications}, \"servers\": {servers}, \"reached\": {reached}, \"second_mib\": {second_mib}, \"mean_ms\": {:.2}, \"most_ms\": {most_ms:.2}, \"fair_speedup\": {speedup:.4}}}",
            total_ms / runs as f64
        ));
    }
    println!("[\n{}\n]", rows.join(",\n"));
    for reached in [4, 2] {
        println!("mlms, 4 applications on 4 servers, {reached} reached: {}", gap(reached));
    }
}

/// The paper's algorithm after its bootstrap and ten intervals, with latencies as the curves say.
fn gap(reached: u64) -> Gap {
    let (hierarchy, estimate) = (Hierarchy::Exclusive, Estimate::Split);
    let problem = problem(7, Case { hierarchy, applications: 4, servers: 4, reached, second_mib: 1024, estimate });
    let plan = mlms::settled(&problem);
    assert_eq!(plan.basis, Basis::Mlms);
    Gap::of(&problem, &plan)
}
