//! A read cache that is resized under a steady load: the other device's load changes again and again, and with it the shares.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::load::{Caches, Load, Mix, Rig};
use crate::bar::{Bar, Limit, median};
use crate::bench::{Bench, Report};
use crate::output::write;

const CACHE_MIB: u64 = 128;
/// Much, so that hardly anything depends on how much of what is cold is cached.
const DISK_MIB: u64 = 2048;
const INTERVAL: Duration = Duration::from_secs(1);
const SLO: f64 = 0.1;
/// How long the other device's load stays the same.
const TURN: Duration = Duration::from_secs(7);
/// Throughput is counted by this time.
const BIN: Duration = Duration::from_millis(100);
/// Of a second.
const BINS: usize = 10;
/// Seconds after a resize that say how much is read with the new share.
const AFTER: usize = 3;
/// Changes that are apart by less are one resize.
const PAUSE: usize = 5;
/// A resize changes the share by so many MiB at least.
const CHANGE_MIB: f64 = 8.0;
/// The load that is measured: one read in five misses, in turn, so that chance does not change its throughput.
const STEADY: Mix = Mix::Hot { from_mib: 0, mib: 20, cold_every: 5 };
/// The other one wants most of the cache, or none.
const OTHERS: [Mix; 2] = [Mix::Hot { from_mib: 0, mib: 80, cold_every: 5 }, Mix::Scan];

#[derive(Clone, Copy, Debug, Serialize)]
struct Bin {
    reads: u64,
    size_mib: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Resize {
    from_mib: f64,
    to_mib: f64,
    /// Reads of the slowest second of the resize ÷ reads of the second before.
    throughput: f64,
    /// The same ÷ reads of a second before or after, whichever are fewer: a smaller cache has fewer hits from then on, which is no dip.
    dip: f64,
}

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let bins = measured(bench, if bench.quick { 6 } else { 13 })?;
    let resizes = resizes(&bins);
    let calm = calm(&bins);
    let text = resizes.iter().map(|resize| format!("{resize:.3?}\n")).collect::<String>();
    write(&bench.out, "resize", &text, &(&bins, &resizes))?;
    anyhow::ensure!(!resizes.is_empty(), "the cache was not resized");
    let ratios = |of: &[f64]| (median(of.to_vec()), of.iter().copied().fold(f64::INFINITY, f64::min));
    let (middle, worst) = ratios(&resizes.iter().map(|resize| resize.throughput).collect::<Vec<_>>());
    let (_, dip) = ratios(&resizes.iter().map(|resize| resize.dip).collect::<Vec<_>>());
    let name = |what: &str| format!("sharing.resize_dip: reads in the second of a resize, {what} of {}", resizes.len());
    let bar = |name: String, ratio: f64, to: &str| Bar::new(name, "%", ratio * 100.0, (100.0, to));
    let before = "the second before";
    report.add(bar(name("median"), middle, before).must_be(Limit::AtLeast(0.9)));
    report.add(bar(name("worst"), dip, "a second before or after, the slower one").must_be(Limit::AtLeast(0.9)));
    report.add(bar(name("the lowest"), worst, before));
    let (_, worst) = ratios(&calm);
    report.add(bar(format!("a second without a resize, worst of {}", calm.len()), worst, before));
    Ok(())
}

fn measured(bench: &Bench, turns: usize) -> anyhow::Result<Vec<Bin>> {
    let caches = Caches::Shared { mib: CACHE_MIB, interval: INTERVAL, slo: SLO };
    let rig = Rig::serve(bench, "resize", caches, DISK_MIB)?;
    let loads = [STEADY, OTHERS[0]].map(Load::new);
    let mut bins = Vec::new();
    rig.under(&loads, || {
        // Until both caches are full.
        super::wait(bench, TURN)?;
        loads[0].take();
        let mut at = Instant::now();
        for turn in 0..turns {
            loads[1].change(OTHERS[(turn + 1) % OTHERS.len()]);
            let until = at + TURN;
            while at < until {
                at += BIN;
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                bench.interrupt.check()?;
                let reads = loads[0].take().count;
                bins.push(Bin { reads, size_mib: rig.shares()?[0].size_gib * 1024.0 });
            }
        }
        Ok(())
    })?;
    rig.stop()?;
    Ok(bins)
}

fn reads(bins: &[Bin]) -> f64 {
    bins.iter().map(|bin| bin.reads as f64).sum()
}

/// The bins after which the share was another one.
fn changes(bins: &[Bin]) -> Vec<usize> {
    (1..bins.len()).filter(|at| bins[*at].size_mib != bins[*at - 1].size_mib).collect()
}

fn resizes(bins: &[Bin]) -> Vec<Resize> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for at in changes(bins) {
        match spans.last_mut().filter(|(_, end)| at <= *end + PAUSE) {
            Some((_, end)) => *end = at,
            None => spans.push((at, at)),
        }
    }
    let resize = |(begin, end): (usize, usize)| {
        let before = reads(bins.get(begin.checked_sub(BINS)?..begin)?);
        let seconds = (begin..=end).step_by(BINS).filter_map(|at| bins.get(at..at + BINS));
        let slowest = seconds.map(reads).fold(f64::INFINITY, f64::min);
        let behind = end + BINS - (end - begin) % BINS;
        let after = bins.get(behind..behind + AFTER * BINS)?;
        let (throughput, dip) = (slowest / before, slowest / before.min(reads(after) / AFTER as f64));
        let resize = Resize { from_mib: bins[begin - 1].size_mib, to_mib: bins[end].size_mib, throughput, dip };
        let is_large = (resize.to_mib - resize.from_mib).abs() >= CHANGE_MIB;
        (is_large && throughput.is_finite()).then_some(resize)
    };
    spans.into_iter().filter_map(resize).collect()
}

/// The same of seconds in which, as in the one before, the share stays: how much chance there is in it.
fn calm(bins: &[Bin]) -> Vec<f64> {
    let pairs = bins.chunks_exact(2 * BINS).filter(|pair| changes(pair).is_empty());
    pairs.map(|pair| reads(&pair[BINS..]) / reads(&pair[..BINS])).collect()
}
