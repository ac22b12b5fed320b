//! What would have been cheaper: from a recorded load to every way to rent storage for it.
//!
//! Bursts are found as the controller sees them: intervals above a threshold, with what follows before the device was
//! quiet for a while. What lies between them counts as compute, which no storage shortens. An option then takes the
//! compute time, and each burst at the option's bandwidth; an elastic option by the fluid model of a split burst with
//! the provider's latencies.

mod options;

use std::time::Duration;

use serde::Serialize;
use surgetank_model::Bytes;

pub use self::options::{Answer, Choice, Constraint, Elastic, compare};

/// One interval of a recorded load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Requests of both kinds.
    pub requests: u64,
}

/// A recorded load.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Length of each interval.
    pub interval: Duration,
    /// One an interval.
    pub moments: Vec<Moment>,
    /// What the volume must hold.
    pub capacity: Bytes,
}

/// How bursts are told from the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Detection {
    /// MiB/s above which an interval belongs to a burst; `None`: twice the average, at least a tenth of the peak.
    pub threshold_mib_s: Option<f64>,
    /// How long it must be quiet between bursts; `None`: a fortieth of the record, from one interval to 30 s.
    pub quiet: Option<Duration>,
}

/// A burst that was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FoundBurst {
    /// Since the record's beginning.
    pub start_s: f64,
    /// Since the record's beginning.
    pub end_s: f64,
    /// Written in it.
    pub written_gib: f64,
    /// Read in it.
    pub read_gib: f64,
    /// Requests of both kinds.
    #[serde(skip)]
    pub requests: u64,
}

impl FoundBurst {
    pub(crate) fn written(&self) -> Bytes {
        Bytes::new((self.written_gib * 1_073_741_824.0).round() as u64)
    }

    pub(crate) fn read(&self) -> Bytes {
        Bytes::new((self.read_gib * 1_073_741_824.0).round() as u64)
    }
}

/// A load as the description of an application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Application {
    /// Length of the record.
    pub recorded_s: f64,
    /// What lies outside of bursts.
    pub compute_s: f64,
    /// How many bursts.
    pub bursts: usize,
    /// The median of what they write and read: a checkpoint.
    pub burst_gib: f64,
    /// The largest of them.
    pub largest_burst_gib: f64,
    /// Median from one burst's beginning to the next one's; `None`: fewer than two.
    pub period_s: Option<f64>,
    /// What is read and written outside of bursts, on average.
    pub background_mib_s: f64,
    /// Average bytes of a request in bursts.
    pub request_kib: f64,
    /// Requests of the whole record.
    pub requests: u64,
    /// The highest rate of any interval.
    pub peak_mib_s: f64,
    /// Average over the whole record.
    pub mean_mib_s: f64,
    /// What the volume must hold.
    pub capacity_gib: f64,
    /// Above this an interval belonged to a burst.
    pub threshold_mib_s: f64,
    /// Bursts were at least so far apart.
    pub quiet_s: f64,
}

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;

/// Finds the bursts of a load, and describes it as an application.
///
/// # Errors
/// One sentence: nothing was read or written.
pub fn fit(load: &Load, detection: &Detection) -> Result<(Application, Vec<FoundBurst>), String> {
    let interval_s = load.interval.as_secs_f64();
    let bytes = |moment: &Moment| moment.written.saturating_add(moment.read) as f64;
    let total: f64 = load.moments.iter().map(bytes).sum();
    let recorded_s = interval_s * load.moments.len() as f64;
    if total <= 0.0 || recorded_s <= 0.0 {
        return Err("the trace reads and writes nothing: name one with requests that have lengths and times".to_owned());
    }
    let rate = |moment: &Moment| bytes(moment) / MIB / interval_s;
    let peak = load.moments.iter().map(rate).fold(0.0, f64::max);
    let mean = total / MIB / recorded_s;
    let threshold = detection.threshold_mib_s.unwrap_or((2.0 * mean).max(0.1 * peak));
    let quiet_s = detection
        .quiet
        .map_or_else(|| (recorded_s / 40.0).clamp(interval_s, 30.0f64.max(interval_s)), |quiet| quiet.as_secs_f64());
    let bursts = find(load, threshold, (quiet_s / interval_s).ceil() as usize);
    let lasted_s: f64 = bursts.iter().map(|burst| burst.end_s - burst.start_s).sum();
    let moved: f64 = bursts.iter().map(|burst| burst.written_gib + burst.read_gib).sum();
    let requests: u64 = bursts.iter().map(|burst| burst.requests).sum();
    let volumes: Vec<f64> = bursts.iter().map(|burst| burst.written_gib + burst.read_gib).collect();
    let periods: Vec<f64> = bursts.windows(2).map(|pair| pair[1].start_s - pair[0].start_s).collect();
    let compute_s = (recorded_s - lasted_s).max(0.0);
    let background = total / MIB - moved * 1024.0;
    let all_requests: u64 = load.moments.iter().map(|moment| moment.requests).sum();
    let (request_bytes, of) = if requests > 0 { (moved * GIB, requests) } else { (total, all_requests.max(1)) };
    Ok((
        Application {
            recorded_s,
            compute_s,
            bursts: bursts.len(),
            burst_gib: median(volumes.clone()).unwrap_or(0.0),
            largest_burst_gib: volumes.iter().copied().fold(0.0, f64::max),
            period_s: median(periods),
            background_mib_s: if compute_s > 0.0 { background.max(0.0) / compute_s } else { 0.0 },
            request_kib: request_bytes / of as f64 / 1024.0,
            requests: all_requests,
            peak_mib_s: peak,
            mean_mib_s: mean,
            capacity_gib: load.capacity.as_gib(),
            threshold_mib_s: threshold,
            quiet_s,
        },
        bursts,
    ))
}

/// Runs of intervals above the threshold that are less than `quiet` intervals apart. A single interval of a whole
/// record of one is a burst too.
fn find(load: &Load, threshold_mib_s: f64, quiet: usize) -> Vec<FoundBurst> {
    let interval_s = load.interval.as_secs_f64();
    let busy = |moment: &Moment| moment.written.saturating_add(moment.read) as f64 / MIB / interval_s > threshold_mib_s;
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, _) in load.moments.iter().enumerate().filter(|(_, moment)| busy(moment)) {
        match ranges.last_mut() {
            Some((_, last)) if index - *last <= quiet => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let burst = |(first, last): (usize, usize)| {
        let moments = &load.moments[first..=last];
        let sum = |of: fn(&Moment) -> u64| moments.iter().map(|moment| of(moment) as f64).sum::<f64>() / GIB;
        FoundBurst {
            start_s: first as f64 * interval_s,
            end_s: (last + 1) as f64 * interval_s,
            written_gib: sum(|moment| moment.written),
            read_gib: sum(|moment| moment.read),
            requests: moments.iter().map(|moment| moment.requests).sum(),
        }
    };
    ranges.into_iter().map(burst).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[values.len() / 2]) / 2.0)
}
