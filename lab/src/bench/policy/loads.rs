//! What the scenarios ask of a device.

use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_whatif::AppPhase;

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// What a device is asked.
#[derive(Clone, Debug)]
pub enum Load {
    /// By an application that waits for it.
    Application(Vec<AppPhase>),
    /// By a load that does not: MiB read and written in each second.
    Series(Vec<(f64, f64)>),
}

fn bytes(mib: f64) -> Bytes {
    Bytes::new((mib.max(0.0) * MIB) as u64)
}

/// `[(seconds of compute, MiB written)…]`
pub fn application(bursts: impl IntoIterator<Item = (f64, f64)>) -> Load {
    let phases = bursts.into_iter().flat_map(|(compute_s, mib)| {
        [AppPhase::Compute(Duration::from_secs_f64(compute_s)), AppPhase::Write(bytes(mib))]
    });
    Load::Application(phases.collect())
}

/// The same, and an initial dump before it.
pub fn dumped(mib: f64, bursts: impl IntoIterator<Item = (f64, f64)>) -> Load {
    application([(0.0, mib)].into_iter().chain(bursts))
}

/// So many bursts, each by its number.
pub fn bursts(count: u32, each: impl Fn(f64) -> (f64, f64)) -> Load {
    application((0..count).map(|number| each(f64::from(number))))
}

/// So many bursts at random; the same ones for the same seed.
pub fn random_bursts(seed: u64, count: u32, each: impl Fn(&mut Random) -> (f64, f64)) -> Load {
    let mut random = Random::from_seed(seed);
    application((0..count).map(|_| each(&mut random)))
}

/// The same, and so many seconds without I/O in the end.
pub fn then(load: Load, compute_s: f64) -> Load {
    match load {
        Load::Application(mut phases) => {
            phases.push(AppPhase::Compute(Duration::from_secs_f64(compute_s)));
            Load::Application(phases)
        }
        Load::Series(mut series) => {
            series.extend(std::iter::repeat_n((0.0, 0.0), compute_s as usize));
            Load::Series(series)
        }
    }
}

/// The same; after each write the application reads so many MiB of it.
pub fn read_back(load: Load, mib: f64) -> Load {
    let Load::Application(phases) = load else { return load };
    let reads = |phase| [Some(phase), matches!(phase, AppPhase::Write(_)).then(|| AppPhase::Read(bytes(mib)))];
    Load::Application(phases.into_iter().flat_map(reads).flatten().collect())
}

/// MiB read and written in each second, by its number.
pub fn series(seconds: u32, each: impl Fn(f64) -> (f64, f64)) -> Load {
    Load::Series((0..seconds).map(|second| each(f64::from(second))).collect())
}

/// The same at random; the same for the same seed.
pub fn random_series(seed: u64, seconds: u32, each: impl Fn(&mut Random, f64) -> (f64, f64)) -> Load {
    let mut random = Random::from_seed(seed);
    Load::Series((0..seconds).map(|second| each(&mut random, f64::from(second))).collect())
}

/// From this second of each period on and for so many seconds: `mib`, else nothing.
pub fn pulse(second: f64, (period, from, lasting): (f64, f64, f64), mib: f64) -> f64 {
    let into = second % period;
    if into >= from && into < from + lasting { mib } else { 0.0 }
}

/// Exponentially distributed around a mean.
pub fn exponential(random: &mut Random, mean: f64) -> f64 {
    -mean * (1.0 - random.unit()).ln()
}

impl Load {
    /// As phases of an application, or arrivals each second.
    pub fn phases(&self) -> Vec<AppPhase> {
        match self {
            Self::Application(phases) => phases.clone(),
            Self::Series(series) => {
                let moves = (0..).zip(series).filter(|(_, (read, written))| *read > 0.0 || *written > 0.0);
                let arrivals = moves.map(|(second, (read, written))| AppPhase::Arrive {
                    at: Duration::from_secs(second),
                    read: bytes(*read),
                    written: bytes(*written),
                });
                arrivals.chain([AppPhase::Finish]).collect()
            }
        }
    }

    /// MiB of its first burst, if it is an application: what its user would tell the planner.
    pub fn first_mib(&self) -> Option<f64> {
        let Self::Application(phases) = self else { return None };
        phases.iter().find_map(|phase| match phase {
            AppPhase::Write(bytes) => Some(bytes.as_mib()),
            _ => None,
        })
    }
}
