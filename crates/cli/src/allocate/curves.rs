//! Miss-ratio curves of applications, from traces.

use std::path::PathBuf;
use std::str::FromStr;

use surgetank_allocation::MissCurve;
use surgetank_model::{Bytes, Instant};
use surgetank_mrc::{Curve, ExactLru, Rate, SampledLru, spread_sizes};
use surgetank_planner::allocation::{AllocationFile, Measured};
use surgetank_report::Failure;
use surgetank_trace::{Keys, Only, Reader};

use super::Curves;
use crate::source::{TraceOptions, reading_bar, tell, unreadable};

/// Sizes of a curve over all that a trace touches, at equal steps of the logarithm.
const POINTS: u32 = 64;
/// Sizes more over what the application can have, at equal steps.
const STEPS: u64 = 64;
/// A block unless the flags say otherwise.
const BLOCK: Bytes = Bytes::new(4096);
/// As many keys as a curve is fed at once.
const FED: usize = 2048;

/// Whose trace lies where.
#[derive(Clone, Debug)]
pub struct TraceOf {
    application: String,
    path: PathBuf,
}

impl TraceOf {
    /// Where it lies.
    pub const fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl FromStr for TraceOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((application, path)) if !application.is_empty() && !path.is_empty() => {
                Ok(Self { application: application.to_owned(), path: path.into() })
            }
            _ => Err("write the application's name and its trace, as in --trace A=trace.csv".to_owned()),
        }
    }
}

/// How traces are read.
pub struct Reading {
    pub options: TraceOptions,
    pub sample: Option<f64>,
    pub block: Option<Bytes>,
}

impl Reading {
    /// The curve of each application that has a trace.
    ///
    /// # Errors
    /// What is wrong with a flag or a trace.
    pub fn curves(&self, file: &AllocationFile, traces: &[TraceOf]) -> Result<Curves, Failure> {
        let rate = self.sample.map(Rate::new).transpose();
        let rate = rate.map_err(|error| Failure::Invalid(format!("--sample does not fit: {error}")))?;
        let block = self.block.unwrap_or(BLOCK);
        if block == Bytes::ZERO {
            return Err(Failure::invalid("--block-size is at least one byte: try \"4 KiB\""));
        }
        let mut curves = Curves::new();
        for trace in traces {
            let TraceOf { application, .. } = trace;
            let reach = file.reach(application).map_err(|why| Failure::Invalid(format!("--trace: {why}")))?;
            if curves.contains_key(application) {
                return Err(Failure::Invalid(format!(
                    "--trace names the application {application} twice: give each one trace"
                )));
            }
            curves.insert(application.clone(), self.curve(trace, rate, block, reach)?);
        }
        Ok(curves)
    }

    fn curve(&self, trace: &TraceOf, rate: Option<Rate>, block: Bytes, reach: Bytes) -> Result<Measured, Failure> {
        let mut reader = Reader::open(&trace.path, self.options.options()).map_err(unreadable)?;
        let mut curve: Box<dyn Curve> = match rate {
            Some(rate) => Box::new(SampledLru::fixed_rate(rate)),
            None => Box::new(ExactLru::new()),
        };
        // A key of a trace without addresses is a block already.
        let keys = Keys { block: reader.format().has_lengths().then_some(block), only: Only::All };
        let mut times: Option<(Instant, Instant)> = None;
        let mut buffer = Vec::with_capacity(FED);
        let bar = reading_bar();
        bar.set_length(reader.progress().1.unwrap_or_default());
        while reader
            .read(|request| {
                times = Some(times.map_or((request.time, request.time), |(first, last)| {
                    (first.min(request.time), last.max(request.time))
                }));
                keys.of(&request, |key| {
                    buffer.push(key);
                    if buffer.len() == FED {
                        curve.feed(&buffer);
                        buffer.clear();
                    }
                });
            })
            .map_err(unreadable)?
        {
            bar.set_position(reader.progress().0);
        }
        curve.feed(&buffer);
        bar.finish_and_clear();
        tell(reader.warning().as_slice());
        let has_times = reader.has_times();
        reader.finish().map_err(unreadable)?;
        let points = curve.points(&sizes(curve.distinct().unwrap_or_default(), reach.get() / block.get()));
        let measured = MissCurve::from_measured(&points, block).map_err(|why| {
            Failure::Invalid(format!(
                "{}: application {}: {why}; a sample may have left nothing of it, so raise --sample",
                trace.path.display(),
                trace.application
            ))
        })?;
        let seconds = times.map_or(0.0, |(first, last)| last.since(first).as_secs_f64());
        let accesses_per_s = (has_times && seconds > 0.0).then(|| curve.requests() as f64 / seconds);
        Ok(Measured { curve: measured, accesses_per_s })
    }
}

/// Sizes in blocks at which a curve is looked at: spread over all that the trace touches, and evenly over what the application
/// can have.
fn sizes(distinct: u64, reach: u64) -> Vec<u64> {
    let most = reach.min(distinct);
    let steps = (1..=STEPS).map(|step| (u128::from(most) * u128::from(step) / u128::from(STEPS)) as u64);
    let mut sizes: Vec<u64> =
        spread_sizes(distinct, POINTS).into_iter().chain(steps).filter(|size| *size > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_dense_where_shares_can_be() {
        let sizes = sizes(1_000_000, 6400);
        assert!(sizes.is_sorted() && sizes.last() == Some(&1_000_000));
        assert!((1..=64).all(|step| sizes.contains(&(100 * step))));
        assert!(super::sizes(0, 5).is_empty());
        assert_eq!(super::sizes(3, u64::MAX), [1, 2, 3]);
    }

    #[test]
    fn a_trace_is_of_an_application() {
        let of = "A=b=c.csv".parse::<TraceOf>().unwrap();
        assert_eq!((of.application.as_str(), of.path.to_str()), ("A", Some("b=c.csv")));
        assert!("A".parse::<TraceOf>().is_err() && "=x".parse::<TraceOf>().is_err());
    }
}
