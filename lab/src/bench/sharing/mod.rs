//! Two devices whose read caches share a budget, under loads that change three times; and the same loads with fixed halves.
//!
//! What fixed halves give as long after a change is a device's fair latency in an interval: a hot spot that moves is read from the disk first,
//! by whatever cache. Everything is judged by latencies that the loads measure themselves, in intervals that end when the daemon's do.
//! All intervals after the first ones count, also those in which a load changes: the caches are empty only when the daemon starts.

mod load;
pub mod resize;

use std::time::{Duration, Instant};

use serde::Serialize;

use self::load::{Caches, Load, Mix, Rig};
use super::{Bench, Report};
use crate::bar::{Bar, Limit, median};
use crate::interrupt::wait_for;
use crate::output::write;
use crate::surgetank::Share;

/// What both caches have, in MiB.
const CACHE_MIB: u64 = 128;
/// So much that no scan begins anew.
const DISK_MIB: u64 = 8192;
const INTERVAL: Duration = Duration::from_secs(2);
/// How far above the fair latency a device's may be.
const SLO: f64 = 0.1;
/// Intervals after a start that do not count: nothing was observed before, and the caches are empty.
const BOOTSTRAP: usize = 4;
/// How far a prediction may be off.
const ERROR: f64 = 0.15;
/// How often the daemon is asked whether an interval has ended.
const POLL: Duration = Duration::from_millis(20);

const fn hot(from_mib: u64, mib: u64) -> Mix {
    Mix::Hot { from_mib, mib, cold_every: 5 }
}

/// The loads of both devices. A hot spot that moves to the other device, grows, and then one on each.
const PHASES: [[Mix; 2]; 4] =
    [[hot(0, 88), Mix::Scan], [Mix::Scan, hot(0, 88)], [Mix::Scan, hot(0, 108)], [hot(128, 40), hot(256, 72)]];

/// What one device did in an interval.
#[derive(Clone, Debug, Serialize)]
struct Interval {
    phase: usize,
    /// Since the phase began.
    number: usize,
    device: &'static str,
    latency_ms: f64,
    reads: u64,
    /// As it was told at the beginning.
    predicted_ms: Option<f64>,
    fair_ms: f64,
    /// What the daemon said of it at the end.
    share: Share,
}

impl Interval {
    fn is_within_slo(&self) -> bool {
        self.latency_ms <= self.fair_ms * (1.0 + SLO)
    }

    /// What was measured ÷ predicted, less 1.
    fn error(&self) -> f64 {
        self.predicted_ms.map_or(f64::INFINITY, |predicted| self.latency_ms / predicted - 1.0)
    }
}

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let of_phase = if bench.quick { 10 } else { 28 };
    let fair_ms = halves(bench, of_phase)?;
    let intervals = shared(bench, &fair_ms)?;
    write(&bench.out, "sharing", &table(&intervals), &intervals)?;
    let share = |is: &dyn Fn(&Interval) -> bool, of: &dyn Fn(&Interval) -> bool| {
        let counted = intervals.iter().filter(|interval| of(interval)).count() as f64;
        intervals.iter().filter(|interval| of(interval) && is(interval)).count() as f64 / counted * 100.0
    };
    for device in load::DEVICES {
        let within = share(&Interval::is_within_slo, &|interval| interval.device == device);
        let bar = Bar::new(format!("sharing.slo: intervals of {device} within its SLO"), "%", within, (100.0, "all"));
        report.add(bar.must_be(Limit::AtLeast(0.95)));
    }
    let slowdown: f64 = intervals.iter().map(|interval| interval.latency_ms / interval.fair_ms).sum();
    let speedup = intervals.len() as f64 / slowdown;
    report.add(
        Bar::new("sharing.speedup: fair speedup", "", speedup, (1.0, "fixed halves")).must_be(Limit::AtLeast(1.0)),
    );
    let near = |interval: &Interval| interval.error().abs() <= ERROR;
    let predicted = share(&near, &|_| true);
    let bar = Bar::new("sharing.prediction: intervals within 15 % of it", "%", predicted, (100.0, "all"));
    report.add(bar.must_be(Limit::AtLeast(0.95)));
    let settled = share(&near, &|interval| interval.number >= 3);
    report.add(Bar::new("the same from the fourth interval after a change", "%", settled, (100.0, "all")));
    let error = median(intervals.iter().map(|interval| interval.error().abs()).collect());
    report.add(Bar::new("median error of predictions", "%", error * 100.0, (ERROR * 100.0, "the bar")));
    Ok(())
}

fn table(intervals: &[Interval]) -> String {
    let mut text = String::from("phase, interval, device: latency (fair) predicted, share\n");
    for interval in intervals {
        let Interval { phase, number, device, latency_ms, fair_ms, predicted_ms, share, .. } = interval;
        text += &format!(
            "{phase} {number} {device}: {latency_ms:.3} ({fair_ms:.3}) {:.3} {:.0}{}{} {}\n",
            predicted_ms.unwrap_or(f64::NAN),
            share.size_gib * 1024.0,
            if interval.is_within_slo() { "" } else { " SLO" },
            if interval.error().abs() <= ERROR { "" } else { " off" },
            share.reason.as_deref().unwrap_or_default(),
        );
    }
    text
}

/// Latencies of both devices by interval, in a phase.
type OfPhase = Vec<[f64; 2]>;

/// Intervals of a phase that come before those that count.
const fn bootstrap(phase: usize) -> usize {
    if phase == 0 { BOOTSTRAP } else { 0 }
}

/// The latencies with fixed halves.
fn halves(bench: &Bench, of_phase: usize) -> anyhow::Result<Vec<OfPhase>> {
    let rig = Rig::serve(bench, "halves", Caches::Each { mib: CACHE_MIB / 2 }, DISK_MIB)?;
    let loads = PHASES[0].map(Load::new);
    let found = rig.under(&loads, || {
        let phase = |(phase, mixes): (usize, &[Mix; 2])| {
            loads.iter().zip(mixes).for_each(|(load, mix)| load.change(*mix));
            let interval = |_| {
                wait(bench, INTERVAL)?;
                Ok([loads[0].take().mean_ms(), loads[1].take().mean_ms()])
            };
            (0..of_phase + bootstrap(phase)).map(interval).collect()
        };
        PHASES.iter().enumerate().map(phase).collect()
    })?;
    rig.stop()?;
    Ok(found)
}

fn shared(bench: &Bench, fair_ms: &[OfPhase]) -> anyhow::Result<Vec<Interval>> {
    let caches = Caches::Shared { mib: CACHE_MIB, interval: INTERVAL, slo: SLO };
    let rig = Rig::serve(bench, "shared", caches, DISK_MIB)?;
    let loads = PHASES[0].map(Load::new);
    let mut found = Vec::new();
    rig.under(&loads, || {
        let mut before = next(bench, &rig, 0)?;
        for (phase, (mixes, fair_ms)) in PHASES.iter().zip(fair_ms).enumerate() {
            loads.iter().zip(mixes).for_each(|(load, mix)| load.change(*mix));
            for load in &loads {
                load.take();
            }
            for (turn, fair_ms) in fair_ms.iter().enumerate() {
                let after = next(bench, &rig, before[0].interval)?;
                let reads = [loads[0].take(), loads[1].take()];
                for (at, device) in load::DEVICES.into_iter().enumerate().filter(|_| turn >= bootstrap(phase)) {
                    found.push(Interval {
                        phase,
                        number: turn,
                        device,
                        latency_ms: reads[at].mean_ms(),
                        reads: reads[at].count,
                        predicted_ms: before[at].predicted_ms,
                        fair_ms: fair_ms[at],
                        share: after[at].clone(),
                    });
                }
                before = after;
            }
        }
        Ok(())
    })?;
    rig.stop()?;
    Ok(found)
}

/// What the daemon says once another interval than this one has ended.
fn next(bench: &Bench, rig: &Rig, interval: u64) -> anyhow::Result<[Share; 2]> {
    wait_for("the end of an interval", INTERVAL * 10, POLL, || {
        bench.interrupt.check()?;
        let shares = rig.shares()?;
        Ok((shares[0].interval > interval).then_some(shares))
    })
}

fn wait(bench: &Bench, time: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        bench.interrupt.check()?;
        std::thread::sleep(POLL);
    }
    Ok(())
}
