//! `surgetank mrc TRACE`: the miss-ratio curve of a trace.

mod answer;
mod picture;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use surgetank_model::Bytes;
use surgetank_mrc::{Curve, ExactLru, Miniature, Policy, Rate, SampledLru, Simulation, spread_sizes};
use surgetank_report::{Failure, output, progress};
use surgetank_trace::{Format, Gathered, Keys, Only, Reader, Tally};

use crate::source::{TraceOptions, tell, unreadable};
use answer::MrcAnswer;

/// Sizes in a curve that nobody gave sizes for.
const POINTS: u32 = 40;
/// Sampled keys that tell well enough how many blocks a trace has.
const COUNTING_KEYS: usize = 16 << 10;

/// Flags of `mrc`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank mrc trace.txt --sizes 100,1000,10000
  surgetank mrc hm_0.csv --block-size \"4 KiB\" --policy s3-fifo
  surgetank mrc cluster.oracleGeneral.zst --sample 0.01 --out curve.html
  blkparse -i sda | surgetank mrc - --only writes --json

A request counts as one key, its first address, unless --block-size splits it; a size is a number of keys. LRU \
without --sizes is exact at every size at once, in memory that grows with the distinct blocks; --sizes bounds it \
by the largest size, --sample by the sample (SHARDS), --sample-keys by that number. A trace must not shrink while \
it is read. Compression (zstd, xz, gzip) is detected from the beginning of the file.")]
pub struct Arguments {
    /// The trace; - is standard input
    trace: PathBuf,
    /// Cache sizes in blocks; by default some from 1 to all that the trace touches
    #[arg(long, value_delimiter = ',', value_name = "BLOCKS", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Which block a full cache evicts
    #[arg(long, value_enum, ignore_case = true, default_value = "lru")]
    policy: PolicyName,
    /// How fast lrfu forgets uses: from 0 (LFU) to 1 (LRU)
    #[arg(long, value_name = "NUMBER", default_value_t = 0.001)]
    lambda: f64,
    /// Sample this share of the blocks, for example 0.01
    #[arg(long, value_name = "RATE")]
    sample: Option<f64>,
    /// Sample at most so many blocks, at a rate that falls as they come (lru alone)
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(1..))]
    sample_keys: Option<u64>,
    /// Split requests into blocks of this size
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Bytes>,
    /// Count only reads or only writes
    #[arg(long, value_enum)]
    only: Option<OnlyName>,
    #[command(flatten)]
    reading: TraceOptions,
    /// Draw the curve into a file, .svg or .html
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum PolicyName {
    /// Least recently used
    Lru,
    /// First in, first out
    Fifo,
    /// Least recently and frequently used (Lee et al., 2001)
    Lrfu,
    /// Small, main and ghost queue (Yang et al., SOSP 2023)
    #[value(alias = "s3fifo")]
    S3Fifo,
    /// A queue and a hand (Zhang et al., NSDI 2024)
    Sieve,
    /// A device's read cache: S3-FIFO by segments
    ReadCache,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum OnlyName {
    Reads,
    Writes,
}

fn parse_size(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| "a size is a whole number of blocks, as in --sizes 100,1000".to_owned())
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        self.check()?;
        let sizes = if self.sizes.is_empty() { self.default_sizes()? } else { self.sizes.clone() };
        let mut curve = self.curve(&sizes)?;
        let (format, tally) = self.feed(&mut *curve)?;
        if curve.requests() == 0 {
            return Err(Failure::Invalid(format!(
                "no request of {} is left by --only: a {} trace may not tell reads from writes",
                self.trace.display(),
                format.name()
            )));
        }
        let sizes = if sizes.is_empty() { spread_sizes(curve.distinct().unwrap_or(0), POINTS) } else { sizes };
        let answer = MrcAnswer {
            trace: self.trace.display().to_string(),
            format: format.name(),
            policy: self.policy.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
            unit: if self.block_size.is_some() { "block" } else { "request" },
            block_size_kib: self.block_size.map(|size| size.get() as f64 / 1024.0),
            requests: curve.requests(),
            distinct_blocks: curve.distinct(),
            sample_rate: self.sample,
            sample_keys_max: self.sample_keys,
            broken_lines: tally.broken,
            points: curve.points(&sizes).into_iter().map(answer::Point::from).collect(),
        };
        if let Some(path) = &self.out {
            picture::write(path, &answer)?;
        }
        if self.json { output::print_json(&answer) } else { output::print(&answer.people()) }
    }

    /// What can be told before anything is read.
    fn check(&self) -> Result<(), Failure> {
        let invalid = |text: &str| Err(Failure::Invalid(text.to_owned()));
        if !(0.0..=1.0).contains(&self.lambda) {
            return invalid("--lambda is from 0 (LFU) to 1 (LRU): try 0.001");
        }
        if self.sample_keys.is_some() && self.policy != PolicyName::Lru {
            return invalid("--sample-keys works with the policy lru alone: use --sample with a rate");
        }
        if self.block_size.is_some_and(|size| size.get() == 0) {
            return invalid("--block-size is at least one byte: try \"4 KiB\"");
        }
        if let Some(path) = &self.out {
            picture::Kind::of(path)?;
        }
        self.rate().map(|_| ())
    }

    fn rate(&self) -> Result<Option<Rate>, Failure> {
        let checked = self.sample.map(Rate::new).transpose();
        checked.map_err(|error| Failure::Invalid(format!("--sample does not fit: {error}")))
    }

    fn policy(&self) -> Policy {
        match self.policy {
            PolicyName::Lru => Policy::Lru,
            PolicyName::Fifo => Policy::Fifo,
            PolicyName::Lrfu => Policy::Lrfu { lambda: self.lambda },
            PolicyName::S3Fifo => Policy::S3Fifo,
            PolicyName::Sieve => Policy::Sieve,
            PolicyName::ReadCache => Policy::ReadCache,
        }
    }

    /// The way to the curve that the flags ask for.
    fn curve(&self, sizes: &[u64]) -> Result<Box<dyn Curve>, Failure> {
        let keys_max = self.sample_keys.map(|keys| usize::try_from(keys).unwrap_or(usize::MAX));
        Ok(match (self.policy, self.rate()?, keys_max) {
            (_, rate, Some(keys)) => Box::new(SampledLru::fixed_size(rate.unwrap_or(Rate::ALL), keys)),
            (PolicyName::Lru, Some(rate), None) => Box::new(SampledLru::fixed_rate(rate)),
            (_, Some(rate), None) => Box::new(Miniature::new(self.policy(), sizes, rate)),
            (PolicyName::Lru, None, None) if sizes.is_empty() => Box::new(ExactLru::new()),
            (_, None, None) => Box::new(Simulation::new(self.policy(), sizes)),
        })
    }

    /// Sizes for a curve that cannot choose them afterwards: from a first reading of the trace.
    fn default_sizes(&self) -> Result<Vec<u64>, Failure> {
        if self.policy == PolicyName::Lru {
            return Ok(Vec::new());
        }
        if self.trace == Path::new("-") {
            return Err(Failure::Invalid(
                "standard input can be read only once: give the sizes with --sizes, or use the policy lru".to_owned(),
            ));
        }
        let mut counting = SampledLru::fixed_size(Rate::ALL, COUNTING_KEYS);
        self.feed(&mut counting)?;
        Ok(spread_sizes(counting.distinct().unwrap_or(0), POINTS))
    }

    /// Feeds the whole trace.
    fn feed(&self, curve: &mut dyn Curve) -> Result<(Format, Tally), Failure> {
        let mut reader = Reader::open(&self.trace, self.reading.options()).map_err(unreadable)?;
        let format = reader.format();
        if self.block_size.is_some() && !format.has_lengths() {
            return Err(Failure::Invalid(format!(
                "a {} trace has keys and no addresses in bytes: leave out --block-size",
                format.name()
            )));
        }
        let only = match self.only {
            None => Only::All,
            Some(OnlyName::Reads) => Only::Reads,
            Some(OnlyName::Writes) => Only::Writes,
        };
        let mut gathered = Gathered::new(Keys { block: self.block_size, only });
        let (_, total) = reader.progress();
        let template = match total {
            Some(_) => "reading {bar:30.colour} {percent:>3} %  {msg}  {eta} left",
            None => "reading {bytes}  {msg}",
        };
        let bar = progress::bar(template, total.unwrap_or(0));
        while reader.read_keys(&mut gathered, |keys| curve.feed(keys)).map_err(unreadable)? {
            bar.set_position(reader.progress().0);
            bar.set_message(format!("{} requests", answer::grouped(reader.tally().requests)));
        }
        bar.finish_and_clear();
        tell(reader.warning().as_slice());
        Ok((format, reader.finish().map_err(unreadable)?))
    }
}
