//! What one core simulates in a second, as one JSON document: `cargo bench --package surgetank-whatif`, or with its bars
//! `make bench ARGS=sim`.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the simulator has no clock, its speed has")]

use std::hint::black_box;
use std::time::Instant;

use surgetank_model::toml_error::Source;
use surgetank_model::{Catalog, EventQueue, Instant as Moment};
use surgetank_planner::scenario::Scenario;
use surgetank_whatif::{AppPhase, Fidelity, Mode, Setup};

/// Events waiting while others come and go: some for every request in flight of many machines.
const WAITING: u64 = 1000;
const EVENTS: u64 = 2_000_000;
const RUNS: u32 = 2000;
const ROUNDS: usize = 5;

const SCENARIO: &str = include_str!("../../../scenarios/cm1.toml");

/// Events taken from the queue a second, each of which schedules another one.
fn events_per_s() -> f64 {
    let mut queue = EventQueue::default();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut after = |now: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        Moment::from_nanoseconds(now + random % 1_000_000)
    };
    (0..WAITING).for_each(|number| queue.push(after(0), number));
    let begun = Instant::now();
    for _ in 0..EVENTS {
        if let Some((at, event)) = queue.pop() {
            queue.push(after(at.as_nanoseconds()), black_box(event));
        }
    }
    EVENTS as f64 / begun.elapsed().as_secs_f64()
}

/// Checkpoints a second: CM1, elastic, in flows.
fn checkpoints_per_s(setup: &Setup) -> f64 {
    let writes = setup.application.phases.iter().filter(|phase| matches!(phase, AppPhase::Write(_))).count();
    let begun = Instant::now();
    for _ in 0..RUNS {
        let _ = black_box(surgetank_whatif::run(setup, Mode::Elastic, Fidelity::Fluid));
    }
    f64::from(RUNS) * writes as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut measured: Vec<f64>) -> f64 {
    measured.sort_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied().unwrap_or(0.0)
}

fn main() {
    let source = Source { file: "scenarios/cm1.toml".into(), text: SCENARIO.to_owned() };
    let Ok(scenario) = Scenario::parse(&source, &Catalog::builtin()) else { return };
    let setup = Setup::of(&scenario, None);
    let events = median((0..ROUNDS).map(|_| events_per_s()).collect());
    let checkpoints = median((0..ROUNDS).map(|_| checkpoints_per_s(&setup)).collect());
    println!("{{\"events_per_s\": {events:.0}, \"fluid_checkpoints_per_s\": {checkpoints:.0}}}");
}
