//! The bars and the table of [`super`].

use surgetank_report::Table;
use surgetank_report::number::digits;

use crate::bar::{Bar, Limit};
use crate::fio::Measured;
use crate::inside::arrays::{ArrayLoad, ArraysSample, Copying, FILLED, Side};

/// What a replacement may copy of an array of which a fifth has data, as a share of the whole.
const COPIED_MOST: f64 = 0.25;
/// What a replacement may do to latency.
const LATENCY_MOST: f64 = 1.5;

/// The turns of both sides, ours first. A turn that one side has not ended does not count.
fn turns<T>(samples: &[ArraysSample], pick: impl Fn(&ArraysSample) -> Option<(Side, T)>) -> Vec<[T; 2]> {
    let (mut ours, mut kernel) = (Vec::new(), Vec::new());
    for (side, value) in samples.iter().filter_map(pick) {
        match side {
            Side::Surgetank => ours.push(value),
            Side::Kernel => kernel.push(value),
        }
    }
    ours.into_iter().zip(kernel).map(Into::into).collect()
}

/// One bar for each thing that was measured on both sides.
pub fn judge(samples: &[ArraysSample]) -> Vec<Bar> {
    let (least, mut bars) = (Limit::AtLeast(1.0), Vec::new());
    for wanted in ArrayLoad::OF_STRIPES {
        let is_sequential = matches!(wanted, ArrayLoad::SequentialReads | ArrayLoad::SequentialWrites);
        let unit = if is_sequential { "MiB/s" } else { "IOPS" };
        let pairs = turns(samples, |sample| match sample {
            ArraysSample::Stripe { side, load, measured, .. } if *load == wanted => {
                Some((*side, if is_sequential { measured.mib_s() } else { measured.iops }))
            }
            _ => None,
        });
        bars.extend(paired(format!("stripe: {}", wanted.name()), unit, &pairs, "mdadm").map(|bar| bar.must_be(least)));
    }
    for wanted in ArrayLoad::OF_COPIES {
        let both = turns(samples, |sample| match sample {
            ArraysSample::Copy(copying) if copying.load == wanted => Some((copying.side, copying.clone())),
            _ => None,
        });
        bars.extend(copies(wanted, &both));
    }
    for sample in samples {
        if let ArraysSample::Filled { side, copied_mib, member_mib } = sample {
            let name = format!("{FILLED} % of the array have data: {} writes", replacement(*side));
            let bar = Bar::new(name, "MiB", *copied_mib, (*member_mib, "all of the member"));
            bars.push(if *side == Side::Surgetank { bar.must_be(Limit::AtMost(COPIED_MOST)) } else { bar });
        }
    }
    let cached = |pick: fn(&Measured, f64) -> f64| {
        turns(samples, |sample| match sample {
            ArraysSample::Cache { side, measured, hit_ratio, .. } => Some((*side, pick(measured, *hit_ratio))),
            _ => None,
        })
    };
    let hits =
        paired("read cache: hits".to_owned(), "IOPS", &cached(|measured, hits| measured.iops * hits), "lvmcache");
    bars.extend(hits.map(|bar| bar.must_be(least)));
    bars.extend(paired("read cache: all reads".to_owned(), "IOPS", &cached(|measured, _| measured.iops), "lvmcache"));
    bars.extend(paired("read cache: hit ratio".to_owned(), "%", &cached(|_, hits| hits * 100.0), "lvmcache"));
    bars
}

fn copies(load: ArrayLoad, both: &[[Copying; 2]]) -> Vec<Bar> {
    let beside = |what: &str, unit, pick: fn(&Copying) -> f64| {
        let pairs: Vec<[f64; 2]> = both.iter().map(|turn| [pick(&turn[0]), pick(&turn[1])]).collect();
        paired(format!("{}: {what}", load.name()), unit, &pairs, "mdadm")
    };
    let mut bars = Vec::new();
    if load == ArrayLoad::Paced {
        for (at, side) in [Side::Surgetank, Side::Kernel].into_iter().enumerate() {
            let pairs: Vec<[f64; 2]> =
                both.iter().map(|turn| [turn[at].copying.p99_us / 1000.0, turn[at].at_rest.p99_us / 1000.0]).collect();
            let name = format!("{}: p99 during {}", load.name(), replacement(side));
            let bar = paired(name, "ms", &pairs, "at rest");
            let judged = |bar: Bar| if at == 0 { bar.must_be(Limit::AtMost(LATENCY_MOST)) } else { bar };
            bars.extend(bar.map(judged));
        }
        bars.extend(beside("p99 during a replacement", "ms", |copying| copying.copying.p99_us / 1000.0));
    } else {
        bars.extend(beside("at rest", "IOPS", |copying| copying.at_rest.iops));
        let during = beside("during a replacement", "IOPS", |copying| copying.copying.iops);
        bars.extend(during.map(|bar| bar.must_be(Limit::AtLeast(1.0))));
    }
    bars.extend(beside("rate of the copy", "MiB/s", |copying| copying.copied_mib_s));
    bars
}

fn replacement(side: Side) -> &'static str {
    match side {
        Side::Surgetank => "a replacement",
        Side::Kernel => "mdadm's replacement",
    }
}

/// `None`: nothing was measured on both sides.
fn paired(name: String, unit: &'static str, pairs: &[[f64; 2]], peer: &str) -> Option<Bar> {
    (!pairs.is_empty()).then(|| Bar::paired(name, unit, pairs, peer))
}

/// One row a sample.
pub fn table(samples: &[ArraysSample]) -> Table {
    let header = "measured | of | MiB/s | IOPS | p99 | processors | beside";
    Table::of(header).with(samples.iter().flat_map(rows))
}

fn rows(sample: &ArraysSample) -> Vec<[String; 7]> {
    let row = |what: String, side: Side, measured: &Measured, beside: String| {
        let p99 = format!("{} ms", digits(measured.p99_us / 1000.0));
        // With both of a guest's busy, they were the limit and not the volumes.
        let busy = if measured.busy_s > 0.0 { digits(measured.busy_s / measured.run_s) } else { String::new() };
        [what, name(side, sample).to_owned(), digits(measured.mib_s()), digits(measured.iops), p99, busy, beside]
    };
    match sample {
        ArraysSample::Stripe { side, load, measured, .. } => {
            vec![row(load.name().to_owned(), *side, measured, String::new())]
        }
        ArraysSample::Filled { side, copied_mib, member_mib } => {
            let beside = format!("{} of {} MiB written", digits(*copied_mib), digits(*member_mib));
            let what = format!("replacement, {FILLED} % have data");
            let [mib_s, iops, p99, busy] = [const { String::new() }; 4];
            vec![[what, name(*side, sample).to_owned(), mib_s, iops, p99, busy, beside]]
        }
        ArraysSample::Copy(Copying { side, load, at_rest, copying, copied_mib_s, replaced_s, .. }) => {
            let beside = format!("copied at {} MiB/s, replaced in {} s", digits(*copied_mib_s), digits(*replaced_s));
            let what = |when: &str| format!("{}, {when}", load.name());
            vec![
                row(what("at rest"), *side, at_rest, String::new()),
                row(what("during a replacement"), *side, copying, beside),
            ]
        }
        ArraysSample::Cache { side, measured, hit_ratio, .. } => {
            let beside = format!("{} % hits", digits(hit_ratio * 100.0));
            vec![row("4 KiB reads by Zipf 1.2, 16 in flight".to_owned(), *side, measured, beside)]
        }
    }
}

fn name(side: Side, sample: &ArraysSample) -> &'static str {
    if matches!(sample, ArraysSample::Cache { .. }) { side.read_cache() } else { side.array() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(iops: f64, p99_us: f64) -> Measured {
        Measured { iops, p99_us, run_s: 2.0, moved_mib: iops, ..Measured::default() }
    }

    fn copying(side: Side, load: ArrayLoad, iops: [f64; 2], p99_us: [f64; 2]) -> ArraysSample {
        let [at_rest, copying] = [0, 1].map(|at| measured(iops[at], p99_us[at]));
        ArraysSample::Copy(Copying { side, load, turn: 0, at_rest, copying, copied_mib_s: 2.0, replaced_s: 50.0 })
    }

    /// What was judged, by the bars' names.
    fn verdicts(samples: &[ArraysSample]) -> Vec<(String, bool)> {
        judge(samples).into_iter().filter_map(|bar| Some((bar.name, bar.met?))).collect()
    }

    #[test]
    fn rates_are_judged_by_mdadms_and_latency_by_that_at_rest() {
        let samples = [
            copying(Side::Kernel, ArrayLoad::Mixed, [900.0, 800.0], [1.0, 1.0]),
            copying(Side::Surgetank, ArrayLoad::Mixed, [1000.0, 790.0], [1.0, 1.0]),
            copying(Side::Kernel, ArrayLoad::Paced, [400.0, 400.0], [100.0, 900.0]),
            copying(Side::Surgetank, ArrayLoad::Paced, [400.0, 400.0], [100.0, 160.0]),
        ];
        let met: Vec<bool> = verdicts(&samples).into_iter().map(|(_, met)| met).collect();
        assert_eq!(met, [false, false]);
        let better = copying(Side::Surgetank, ArrayLoad::Mixed, [1000.0, 800.0], [1.0, 1.0]);
        let calmer = copying(Side::Surgetank, ArrayLoad::Paced, [400.0, 400.0], [100.0, 150.0]);
        let met: Vec<bool> = verdicts(&[samples[0].clone(), better, samples[2].clone(), calmer])
            .into_iter()
            .map(|(_, met)| met)
            .collect();
        assert_eq!(met, [true, true]);
        assert!(judge(&samples[..1]).is_empty(), "one side alone");
        let text = table(&samples).markdown();
        assert!(
            text.contains("| 16 KiB reads and writes, 120 in flight, at rest | surgetank | 500 | 1000 |"),
            "{text}"
        );
    }

    #[test]
    fn sequential_loads_are_judged_by_bytes_and_what_is_copied_by_the_whole() {
        let stripe = |side, load, iops, moved_mib| {
            let measured = Measured { moved_mib, ..measured(iops, 1.0) };
            ArraysSample::Stripe { side, load, turn: 0, measured }
        };
        let filled = |side, copied_mib| ArraysSample::Filled { side, copied_mib, member_mib: 40.0 };
        let samples = [
            stripe(Side::Surgetank, ArrayLoad::SequentialReads, 1.0, 100.0),
            stripe(Side::Kernel, ArrayLoad::SequentialReads, 2.0, 100.0),
            stripe(Side::Surgetank, ArrayLoad::RandomWrites, 1.0, 100.0),
            stripe(Side::Kernel, ArrayLoad::RandomWrites, 2.0, 100.0),
            filled(Side::Surgetank, 10.0),
            filled(Side::Kernel, 40.0),
        ];
        let met: Vec<bool> = verdicts(&samples).into_iter().map(|(_, met)| met).collect();
        assert_eq!(met, [true, false, true]);
        assert_eq!(verdicts(&[filled(Side::Surgetank, 10.1)]).len(), 1);
        assert!(!verdicts(&[filled(Side::Surgetank, 10.1)])[0].1);
    }

    #[test]
    fn a_read_cache_is_judged_by_its_hits() {
        let cache =
            |side, iops, hit_ratio| ArraysSample::Cache { side, turn: 0, measured: measured(iops, 1.0), hit_ratio };
        let samples = [cache(Side::Kernel, 400.0, 0.5), cache(Side::Surgetank, 300.0, 0.9)];
        assert_eq!(verdicts(&samples), [("read cache: hits".to_owned(), true)]);
        let text = table(&samples).markdown();
        assert!(text.contains("| lvmcache | 200 | 400 |") && text.contains("90.0 % hits"), "{text}");
    }
}
