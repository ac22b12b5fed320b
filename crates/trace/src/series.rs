//! How much was read and written, interval by interval: where bursts are looked for.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use crate::error::TraceError;
use crate::loads;
use crate::reader::{Opened, Options, Reader};
use crate::request::{Access, Request};

/// A year of seconds fits in: more is taken for a trace whose times are wrong.
pub(crate) const SAMPLES_MAX: u64 = 40_000_000;

/// What happened in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Written.
    pub written: Bytes,
    /// Read, or not told apart by the format.
    pub read: Bytes,
    /// Requests of both kinds.
    pub requests: u64,
}

/// Bytes per interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Length of each interval.
    pub interval: Duration,
    /// Where the first interval begins, since the trace's own origin: the time of the first request, and in traces out of
    /// order as many whole intervals earlier as another one wants.
    pub start: Instant,
    /// One an interval, without gaps.
    pub samples: Vec<Sample>,
    /// The last byte that was touched of each volume, all volumes together: the least that they must hold. `None`: the
    /// format has no addresses.
    pub touched: Option<Bytes>,
    /// Lines or records that could not be read, and were left out.
    pub broken: u64,
    /// What people must know of it, in sentences: the first line that was left out and how many there are.
    pub warnings: Vec<String>,
}

impl Series {
    /// Reads a whole trace, or a report of rates, by its path. `shown` is told now and then how many bytes of the file
    /// were read, and of how many.
    ///
    /// # Errors
    /// As [`Reader::open`] and [`Series::read`].
    pub fn open(
        path: &Path,
        options: Options,
        interval: Duration,
        shown: impl FnMut((u64, Option<u64>)),
    ) -> Result<Self, TraceError> {
        let opened = Opened::open(path, options)?;
        if opened.format.has_requests() {
            Self::read(Reader::new(opened, options.strict)?, interval, shown)
        } else {
            loads::read(opened, options.strict, interval, shown)
        }
    }

    /// Reads a whole trace. A request counts where it begins.
    ///
    /// # Errors
    /// As [`Reader::read_all`]; if the trace has no times, the interval is zero, or the trace spans absurdly many.
    pub fn read(
        mut reader: Reader,
        interval: Duration,
        mut shown: impl FnMut((u64, Option<u64>)),
    ) -> Result<Self, TraceError> {
        if !reader.has_times() {
            let name = reader.name();
            return Err(TraceError::Invalid(if reader.format().has_times() {
                format!(
                    "{name}:1: the header names no column time_s, time_ms, time_us or time_ns: add one, or rename it"
                )
            } else {
                let format = reader.format().name();
                format!(
                    "{name} is a trace of the format {format}, which has no times: name one that has, for example in csv or blkparse"
                )
            }));
        }
        let mut gathered = Gathering::new(nanoseconds(interval)?);
        let mut absurd = None;
        loop {
            let more = reader.read(|request| {
                if !gathered.add(&request) && absurd.is_none() {
                    absurd = Some(request.time);
                }
            })?;
            shown(reader.progress());
            if !more {
                break;
            }
        }
        let warnings = reader.warning().into_iter().collect();
        let broken = reader.finish()?.broken;
        match absurd {
            None => Ok(Self {
                interval,
                start: Instant::from_nanoseconds(gathered.start_ns),
                samples: gathered.samples.into(),
                touched: Some(Bytes::new(gathered.ends.iter().fold(0, |sum: u64, end| sum.saturating_add(*end)))),
                broken,
                warnings,
            }),
            Some(time) => Err(too_many(Instant::from_nanoseconds(gathered.start_ns), time)),
        }
    }
}

/// # Errors
/// If it is zero.
pub(crate) fn nanoseconds(interval: Duration) -> Result<u64, TraceError> {
    let nanoseconds = u64::try_from(interval.as_nanos()).ok().filter(|nanoseconds| *nanoseconds > 0);
    nanoseconds.ok_or_else(|| TraceError::Invalid("an interval must be longer than zero: try 1 s".to_owned()))
}

pub(crate) fn too_many(start: Instant, time: Instant) -> TraceError {
    TraceError::Invalid(format!(
        "the trace goes from {start} to {time}, more than {SAMPLES_MAX} intervals: fix its times or choose a longer interval"
    ))
}

/// A series while it is read.
struct Gathering {
    interval_ns: u64,
    start_ns: u64,
    samples: VecDeque<Sample>,
    /// Behind the last byte that was touched of each volume.
    ends: Vec<u64>,
}

impl Gathering {
    fn new(interval_ns: u64) -> Self {
        Self { interval_ns, start_ns: 0, samples: VecDeque::new(), ends: Vec::new() }
    }

    /// Whether it lies within bounds.
    fn add(&mut self, request: &Request) -> bool {
        let time_ns = request.time.as_nanoseconds();
        if self.samples.is_empty() {
            self.start_ns = time_ns;
        }
        let earlier = self.start_ns.saturating_sub(time_ns) / self.interval_ns;
        let index = time_ns.saturating_sub(self.start_ns) / self.interval_ns;
        if earlier.saturating_add(index.max(self.samples.len() as u64)) >= SAMPLES_MAX {
            return false;
        }
        for _ in 0..earlier {
            self.samples.push_front(Sample::default());
        }
        self.start_ns -= earlier * self.interval_ns;
        let index = index as usize;
        if index >= self.samples.len() {
            self.samples.resize(index + 1, Sample::default());
        }
        let sample = &mut self.samples[index];
        let sum = |bytes: Bytes| Bytes::new(bytes.get().saturating_add(request.length.get()));
        match request.operation {
            Access::Write => sample.written = sum(sample.written),
            Access::Read | Access::Unknown => sample.read = sum(sample.read),
        }
        sample.requests += 1;
        let volume = request.volume as usize;
        if volume >= self.ends.len() {
            self.ends.resize(volume + 1, 0);
        }
        self.ends[volume] = self.ends[volume].max(request.address.saturating_add(request.length.get()));
        true
    }
}
