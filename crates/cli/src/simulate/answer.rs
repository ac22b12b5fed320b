//! A simulated run as the report that the demo gives.

use std::path::Path;

use surgetank_model::cost::Cost;
use surgetank_model::{Bytes, Instant};
use surgetank_planner::scenario::Scenario;
use surgetank_report::number::thousands;
use surgetank_report::run::{Activity, Boost, BurstSummary, CacheSize, CostPoint, ModeOutcome, PhaseSpan, RunOutcome};
use surgetank_whatif::volume::{Activity as Moved, INTERVAL};
use surgetank_whatif::{self as whatif, AppPhase, Fidelity, Setup};

/// One mode's run: cost and series of one VM.
pub fn mode_outcome(setup: &Setup, found: &whatif::RunReport) -> ModeOutcome {
    ModeOutcome {
        completion_s: found.completion().as_secs_f64(),
        wall_s: found.wall().as_secs_f64(),
        initial_dump_s: (found.wall() - found.completion()).as_secs_f64(),
        cost_agbs: found.cost.agbs,
        cost_total_agbs: Some(found.cost_total.agbs),
        cost_usd: found.cost.usd,
        cost_total_usd: found.cost_total.usd,
        write_mib_s: found.write_mib_s(),
        bursts: bursts(found),
        boosts: found.boosts.iter().map(boost).collect(),
        activity: activity(found),
        cost: cost(setup, found),
        phases: phases(found),
        ..ModeOutcome::default()
    }
}

/// A boost of a run.
pub fn boost(boost: &whatif::Boost) -> Boost {
    let seconds = |time: Option<std::time::Duration>| time.map_or(0.0, |time| time.as_secs_f64());
    let (attach_s, absorb_s, drain_s) = (seconds(boost.attach), seconds(boost.absorb), seconds(boost.drain));
    let rented_s = boost.ended.since(boost.started).as_secs_f64();
    Boost {
        start_s: boost.started.as_seconds(),
        attach_s,
        absorb_s,
        drain_s,
        cache_gib: boost.size.as_gib(),
        sizes: if boost.sizes.len() > 1 { boost.sizes.iter().map(cache_size).collect() } else { Vec::new() },
        high_water_gib: boost.high_water.as_gib(),
        delete_s: (rented_s - attach_s - absorb_s - drain_s).max(0.0),
    }
}

fn cache_size((size, from): &(Bytes, Instant)) -> CacheSize {
    CacheSize { from_s: from.as_seconds(), cache_gib: size.as_gib() }
}

fn bursts(found: &whatif::RunReport) -> Option<BurstSummary> {
    let of = |burst: &whatif::Burst| (burst.length().as_secs_f64(), burst.waited().as_secs_f64());
    BurstSummary::of(&found.bursts.iter().map(of).collect::<Vec<_>>())
}

fn activity(found: &whatif::RunReport) -> Vec<Activity> {
    let traffic = &found.traffic;
    let series = |moved: &Moved| moved.mib_s().collect::<Vec<f64>>();
    let [application, caching, backing, drain] =
        [&traffic.application, &traffic.caching, &traffic.backing, &traffic.drain].map(series);
    let intervals = [&application, &caching, &backing, &drain].iter().map(|series| series.len()).max().unwrap_or(0);
    let of = |series: &[f64], interval: usize| series.get(interval).copied().unwrap_or(0.0);
    (0..intervals)
        .map(|interval| Activity {
            at_s: (interval + 1) as f64 * INTERVAL.as_secs_f64(),
            application_mib_s: of(&application, interval),
            cache_mib_s: of(&caching, interval),
            backing_mib_s: of(&backing, interval),
            drain_mib_s: of(&drain, interval),
            application_peak_mib_s: None,
        })
        .collect()
}

/// The cost curve of one VM: a point wherever something is rented, grows or is deleted.
fn cost(setup: &Setup, found: &whatif::RunReport) -> Vec<CostPoint> {
    let disk = setup.disk(found.mode);
    let edges = found.boosts.iter().flat_map(|boost| boost.sizes.iter().map(|(_, from)| *from).chain([boost.ended]));
    let mut instants: Vec<_> = edges.chain([Instant::ZERO, found.end]).collect();
    instants.sort_unstable();
    instants.dedup();
    let until = |at: Instant| {
        // What has not begun costs nothing yet, not even the shortest time that is billed.
        let begun = found.boosts.iter().filter(|boost| boost.started < at);
        let boosts = begun.map(|boost| setup.caching.tariff.cost_of_sizes(boost.held(at)));
        boosts.fold(disk.tariff.cost(disk.size, at.min(found.end).as_seconds()), Cost::plus)
    };
    let point = |at: Instant| {
        let cost = until(at);
        CostPoint { at_s: at.as_seconds(), agbs: cost.agbs, usd: cost.usd }
    };
    instants.into_iter().map(point).collect()
}

fn phases(found: &whatif::RunReport) -> Vec<PhaseSpan> {
    let mut checkpoints = 0;
    let initial = found.counted_from;
    let name = |phase: &whatif::PhaseTime, checkpoints: &mut u32| match phase.phase {
        AppPhase::Compute(_) => "compute".to_owned(),
        AppPhase::Write(_) if phase.until <= initial => "initial dump".to_owned(),
        AppPhase::Write(_) => {
            *checkpoints += 1;
            format!("checkpoint {checkpoints}")
        }
        AppPhase::Read(_) => "read".to_owned(),
        AppPhase::Arrive { .. } | AppPhase::Finish => "trace".to_owned(),
    };
    let of_application =
        |phase: &&whatif::PhaseTime| !matches!(phase.phase, AppPhase::Arrive { .. } | AppPhase::Finish);
    let spans = found.phases.iter().filter(of_application).map(|phase| PhaseSpan {
        name: name(phase, &mut checkpoints),
        start_s: phase.from.as_seconds(),
        end_s: phase.until.as_seconds(),
    });
    spans.collect()
}

/// What a second is worth to a controller that asks, and what it compares that with.
fn value_of_time(setup: &Setup) -> String {
    let policy = &setup.policy;
    if !policy.preset.when.worth {
        return String::new();
    }
    let by_bills = policy.caching_rent != policy.caching_reserved.as_mib_s();
    let bills =
        if by_bills { ", and caching volumes cost it what their prices are to the backing volume's" } else { "" };
    format!(", a second of waiting is worth {} AGBs{bills}", thousands(policy.value_of_time))
}

/// What was simulated, for the report.
pub fn describe(outcome: &mut RunOutcome, scenario: &Scenario, setup: &Setup, fidelity: Fidelity, file: &Path) {
    let policy = setup.policy.preset.name;
    let seconds = |time: std::time::Duration| format!("{} s", time.as_secs_f64());
    let latencies = scenario.provider;
    let application = scenario.app.as_ref().map_or_else(
        || "a trace".to_owned(),
        |app| {
            format!(
                "{} VMs: initial dump {}, {} checkpoints of {}, {} of compute",
                app.vms,
                app.initial_dump,
                app.checkpoints,
                app.checkpoint_size,
                seconds(app.compute)
            )
        },
    );
    outcome.title = "surgetank simulation";
    outcome.policy = policy.to_owned();
    outcome.model = Some(match fidelity {
        Fidelity::Block => "block",
        Fidelity::Fluid => "fluid",
    });
    outcome.vms = Some(setup.vms);
    let bandwidth =
        |limits: &surgetank_model::Limits| limits.bandwidth.map_or_else(String::new, |found| found.to_string());
    let mut parameters = vec![
        ("scenario", file.display().to_string()),
        ("application", application),
        ("backing volume", format!("{}, {}", setup.backing.size, bandwidth(&setup.backing.limits))),
        ("caching volumes", format!("{}, first {}", bandwidth(&setup.caching.limits), setup.policy.initial_size)),
        (
            "policy",
            format!(
                "{policy}: threshold {} %, inactivity delay {}, sampled every {}{}",
                setup.policy.utilization_threshold * 100.0,
                seconds(setup.policy.inactivity_delay),
                seconds(setup.sampling),
                value_of_time(setup)
            ),
        ),
        (
            "provider",
            format!(
                "create {}, attach {}, detach {}, delete {}; jitter {}, faults {}",
                seconds(latencies.create),
                seconds(latencies.attach),
                seconds(latencies.detach),
                seconds(latencies.delete),
                latencies.jitter,
                latencies.faults
            ),
        ),
        ("seed", setup.seed.to_string()),
    ];
    for (name, tariff) in [("price of backing", &setup.backing.tariff), ("price of caching", &setup.caching.tariff)] {
        parameters.push((
            name,
            tariff.source().unwrap_or_else(|| "unknown: name a volume_type or usd_per_gib_month".to_owned()),
        ));
    }
    outcome.parameters = parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
}
