//! What a credit volume serves under a demand, in closed form.
//!
//! The rule of the buckets is [`surgetank_model::credits`].

use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use surgetank_model::units::{MIB, Span};
use surgetank_model::volume_type::{CreditUnit, Performance, Provision};
use surgetank_model::{Balance, Bandwidth, Bytes, Iops, VolumeType};

/// A stretch of constant demand: `"2000 IOPS for 1500 s"`, `"100 MiB/s for 10 min"`, or both rates with a comma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Operations; `None`: whatever the bandwidth needs.
    pub iops: Option<Iops>,
    /// Bytes; `None`: not counted.
    pub bandwidth: Option<Bandwidth>,
    /// How long.
    pub lasts: Duration,
}

impl FromStr for Demand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = "write a demand such as \"2000 IOPS for 1500 s\"";
        let (rates, lasts) =
            text.split_once(" for ").ok_or_else(|| format!("\"{text}\" says not how long: {shape}"))?;
        let lasts: Span = lasts.trim().parse().map_err(|error| format!("{error}"))?;
        if lasts.0.is_zero() {
            return Err(format!("\"{text}\" lasts no time: {shape}"));
        }
        let mut demand = Self { iops: None, bandwidth: None, lasts: lasts.0 };
        for rate in rates.split(',').map(str::trim) {
            let twice = || format!("\"{text}\" has two rates of a kind: {shape}");
            if rate.ends_with("/s") {
                let bandwidth = rate.parse().map_err(|error| format!("{error}"))?;
                demand.bandwidth.replace(bandwidth).map_or(Ok(()), |_| Err(twice()))?;
            } else {
                let iops = rate.parse().map_err(|error| format!("{error}"))?;
                demand.iops.replace(iops).map_or(Ok(()), |_| Err(twice()))?;
            }
        }
        Ok(demand)
    }
}

/// What was served in one stretch of demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Segment {
    /// Average over the stretch; `None`: no operations were asked for.
    pub served_iops: Option<f64>,
    /// Average over the stretch; `None`: no bandwidth was asked for.
    pub served_mib_s: Option<f64>,
    /// Operation credits at its end, or MiB of credit where the type counts bytes alone; `None`: the volume has none.
    pub credits_end: Option<f64>,
    /// MiB of credit at its end, where the type counts bytes besides operations.
    pub credits_end_mib: Option<f64>,
    /// From its beginning until the first bucket was empty; `None`: the credits outlast it.
    pub exhausted_after_s: Option<f64>,
}

/// What a volume serves, from full buckets on.
///
/// # Errors
/// One sentence: the type has no such volume, or counts what the demand does not give.
pub fn serve(volume_type: &VolumeType, size: Bytes, demands: &[Demand]) -> Result<Vec<Segment>, String> {
    volume_type.check(size, &Provision::default())?;
    if !volume_type.limits_are_known() {
        return Err(format!("the limits of {} are its operator's: give them with --catalog FILE", volume_type.key()));
    }
    let mut levels = Balance::of_new(volume_type, size);
    demands.iter().map(|demand| segment(volume_type, size, &mut levels, demand)).collect()
}

fn segment(volume_type: &VolumeType, size: Bytes, levels: &mut [Balance], demand: &Demand) -> Result<Segment, String> {
    let limits = volume_type.limits_at(size);
    let cap = |asked: f64, limit: Option<f64>| limit.map_or(asked, |limit| asked.min(limit));
    let seconds = demand.lasts.as_secs_f64();
    let asked_iops = demand.iops.map(|iops| cap(iops.get() as f64, limits.iops.map(|iops| iops.get() as f64)));
    let asked_mib_s = demand.bandwidth.map(|rate| cap(rate.as_mib_s(), limits.bandwidth.map(Bandwidth::as_mib_s)));
    let mut found = Segment { served_iops: asked_iops, served_mib_s: asked_mib_s, ..Segment::default() };
    let alone = levels.len() == 1;
    for level in levels {
        let exhausted = match level.credits().unit {
            CreditUnit::Operations => {
                let asked = operations(volume_type, asked_iops, asked_mib_s);
                let (served, exhausted) = level.serve(asked, seconds);
                let share = if asked > 0.0 { served / asked } else { 1.0 };
                found.served_iops = asked_iops.map(|iops| iops * share);
                // Where bytes have a bucket of their own, operations do not limit them.
                if alone {
                    found.served_mib_s = asked_mib_s.map(|mib_s| mib_s * share);
                }
                found.credits_end = Some(level.level());
                exhausted
            }
            CreditUnit::Bytes => {
                if alone && asked_mib_s.is_none() {
                    let key = volume_type.key();
                    return Err(format!("{key} counts bytes: write a demand such as \"100 MiB/s for 10 min\""));
                }
                let (served, exhausted) = level.serve(asked_mib_s.unwrap_or(0.0) * MIB as f64, seconds);
                found.served_mib_s = asked_mib_s.map(|_| served / MIB as f64);
                let credits = Some(level.level() / MIB as f64);
                if alone {
                    found.credits_end = credits
                } else {
                    found.credits_end_mib = credits
                }
                exhausted
            }
        };
        found.exhausted_after_s = [found.exhausted_after_s, exhausted].into_iter().flatten().min_by(f64::total_cmp);
    }
    Ok(found)
}

/// The buckets of one volume, as a run of bursts empties them and its pauses fill them.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    levels: Vec<Balance>,
    /// Bytes of an operation: of a request, or less where the type counts a long one as several.
    operation: f64,
}

impl Buckets {
    /// Full ones, for requests of so many bytes; `None`: the type has none.
    pub fn full(volume_type: &VolumeType, size: Bytes, request: f64) -> Option<Self> {
        let levels = Balance::of_new(volume_type, size);
        let operation = match &volume_type.performance {
            Performance::IopsCredits { io_unit, .. } => request.min(io_unit.get() as f64),
            _ => request,
        };
        (!levels.is_empty() && operation > 0.0).then_some(Self { levels, operation })
    }

    /// Seconds to move so many bytes as fast as possible, at most at this rate.
    pub fn transfer(&mut self, bytes: f64, rate: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let units: Vec<f64> = self.levels.iter().map(|level| level.units(bytes, self.operation)).collect();
        let times = self.levels.iter().zip(&units).map(|(level, units)| level.time_for(*units, rate * units / bytes));
        let seconds = times.fold(bytes / rate, f64::max);
        for (level, units) in self.levels.iter_mut().zip(units) {
            level.serve(units / seconds, seconds);
        }
        seconds
    }

    /// Whether no bucket is emptier than then.
    pub fn hold_as_much_as(&self, then: &Self) -> bool {
        self.levels.iter().zip(&then.levels).all(|(now, then)| now.level() >= then.level())
    }

    /// A pause of so many seconds, in which so many bytes are moved nevertheless: longer, if they take longer.
    pub fn pause(&mut self, seconds: f64, bytes: f64, rate: f64) -> f64 {
        let moving = self.transfer(bytes, rate);
        let rest = (seconds - moving).max(0.0);
        self.levels.iter_mut().for_each(|level| _ = level.serve(0.0, rest));
        moving + rest
    }
}

/// How many operations a demand takes: those asked for, and at least one for each unit of bandwidth.
fn operations(volume_type: &VolumeType, iops: Option<f64>, mib_s: Option<f64>) -> f64 {
    let unit = match &volume_type.performance {
        Performance::IopsCredits { io_unit, .. } => *io_unit,
        _ => return iops.unwrap_or(0.0),
    };
    let carried = mib_s.map_or(0.0, |mib_s| mib_s * MIB as f64 / unit.get().max(1) as f64);
    iops.unwrap_or(0.0).max(carried)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_model::volume_type::Credits;

    use super::*;

    proptest! {
        /// The closed form against steps of a millisecond.
        #[test]
        fn bursts_and_pauses_follow_the_bucket(
            baseline in 1u64..200, burst in 1u64..500, bucket in 0u64..20_000, rate in 1.0f64..600.0,
            steps in prop::collection::vec((0.0f64..3000.0, 0.0f64..20.0), 1..6),
        ) {
            let credits =
                Credits { unit: CreditUnit::Bytes, baseline_per_s: baseline, burst_per_s: burst, bucket };
            let mut buckets = Buckets { levels: vec![Balance::full(credits)], operation: 1.0 };
            let (dt, mut level, mut stepped, mut closed) = (1e-3, bucket as f64, 0.0, 0.0);
            for (bytes, pause) in steps {
                closed += buckets.transfer(bytes, rate) + buckets.pause(pause, 0.0, rate);
                let mut left = bytes;
                while left > 0.0 {
                    let fast = rate.min(burst.max(baseline) as f64);
                    let served = if level > 0.0 { fast } else { fast.min(baseline as f64) };
                    level = (level + (baseline as f64 - served) * dt).clamp(0.0, bucket as f64);
                    stepped += dt.min(left / served);
                    left -= served * dt;
                }
                level = (level + baseline as f64 * pause).min(bucket as f64);
                stepped += pause;
            }
            prop_assert!((closed - stepped).abs() <= 0.02 + 0.01 * stepped, "{closed} {stepped}");
        }
    }
}
