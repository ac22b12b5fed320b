//! How long a plan among a million candidates takes, as one JSON document: `cargo bench --package surgetank-planner`. Times are those of
//! the processor, so that what else runs on a machine does not count.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_methods, reason = "plans have no clock, their speed has")]

use surgetank_model::random::Random;
use surgetank_model::units::{GIB, MIB};
use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::provision::{
    Candidate, LinkDivisor, Mode, NODES_MAX, Prices, Problem, Provision, Rates, Redundancy, Target, cheapest,
};

const CANDIDATES: u64 = 1_000_000;

/// This thread's time on a processor so far; some kernels count it in ticks of 4 ms.
fn processor_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.expect("the first number is the time") / 1e6
}

/// A checkpoint of 450 GiB on kinds of nodes at random.
fn problem(is_measured: bool, throughput: u64) -> Problem {
    let random = &mut Random::from_seed(7);
    let mut candidate = || Candidate {
        memory: Bytes::new(random.below(64) * GIB + MIB),
        ssd: Bytes::new(random.below(256) * GIB),
        throughput: is_measured.then(|| Bandwidth::new(GIB / 10 + random.below(GIB))),
    };
    let rate = |mib_s| Bandwidth::from_mib_s(mib_s);
    Problem {
        target: Target {
            throughput: Bandwidth::new(throughput),
            dataset: Some(Bytes::from_gib(450)),
            mode: Mode::InJob,
            link: LinkDivisor::new(2000.0),
            redundancy: Redundancy::Copies(2),
            nodes_max: NODES_MAX,
        },
        rates: Some(Rates { ingest: rate(700), ssd_write: Some(rate(250)), drain: rate(60) }),
        prices: Prices::new(5.0, 1.0, 0.0),
        candidates: (0..CANDIDATES).map(|_| candidate()).collect(),
    }
}

fn main() {
    let mut rows = Vec::new();
    for (throughputs, is_measured) in [("measured", true), ("modelled", false)] {
        for (targets, gib_s) in [("feasible", 15), ("infeasible", 10_000)] {
            let problem = problem(is_measured, gib_s * GIB);
            let begin = processor_ms();
            let best = cheapest(&problem, gib_s * GIB);
            let best_ms = processor_ms() - begin;
            let answer = Provision::of(&problem);
            let answer_ms = processor_ms() - begin - best_ms;
            assert_eq!(best.is_some(), answer.best.is_some());
            rows.push(format!(
                "  {{\"throughputs\": \"{throughputs}\", \"target\": \"{targets}\", \"candidates\": {CANDIDATES}, \"best_ms\": {best_ms:.0}, \"answer_ms\": {answer_ms:.0}, \"best\": {best:?}}}"
            ));
        }
    }
    println!("[\n{}\n]", rows.join(",\n"));
}
