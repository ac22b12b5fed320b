//! How much was read and written, interval by interval: where bursts are looked for.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use crate::error::TraceError;
use crate::reader::Reader;
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
    /// Time of the first request, where the first interval begins, since the trace's own origin.
    pub start: Instant,
    /// One an interval, without gaps. What is earlier than the first request, in traces out of order, is in the first.
    pub samples: Vec<Sample>,
    /// The last byte of any volume that was touched: the least that the volume must hold.
    pub end: Bytes,
    /// Lines or records that could not be read, and were left out.
    pub broken: u64,
}

impl Series {
    /// Reads a whole trace. A request counts where it begins.
    ///
    /// # Errors
    /// As [`Reader::read_all`]; if the format has no times, the interval is zero, or the trace spans absurdly many.
    pub fn read(reader: Reader, interval: Duration) -> Result<Self, TraceError> {
        let format = reader.format();
        if !format.has_times() {
            return Err(TraceError::Invalid(format!(
                "a trace of the format {} has no times: name one that has, for example in csv or blkparse",
                format.name()
            )));
        }
        let interval_ns = u64::try_from(interval.as_nanos()).ok().filter(|nanoseconds| *nanoseconds > 0);
        let Some(interval_ns) = interval_ns else {
            return Err(TraceError::Invalid("an interval must be longer than zero: try 1 s".to_owned()));
        };
        let mut series = Self { interval, start: Instant::ZERO, samples: Vec::new(), end: Bytes::new(0), broken: 0 };
        let mut absurd = None;
        let tally = reader.read_all(|request| {
            if !series.add(request, interval_ns) && absurd.is_none() {
                absurd = Some(request.time);
            }
        })?;
        series.broken = tally.broken;
        match absurd {
            None => Ok(series),
            Some(time) => Err(TraceError::Invalid(format!(
                "the trace goes from {} to {time}, more than {SAMPLES_MAX} intervals: fix its times or choose a longer \
                 interval",
                series.start
            ))),
        }
    }

    /// Whether it lies within bounds.
    fn add(&mut self, request: Request, interval_ns: u64) -> bool {
        if self.samples.is_empty() {
            self.start = request.time;
        }
        let index = request.time.as_nanoseconds().saturating_sub(self.start.as_nanoseconds()) / interval_ns;
        if index >= SAMPLES_MAX {
            return false;
        }
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
        self.end = self.end.max(Bytes::new(request.address.saturating_add(request.length.get())));
        true
    }
}
