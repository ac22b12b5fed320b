//! `surgetank model …`: the closed forms, one at a time.

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Iops};
use surgetank_planner::credits::{Demand, Segment, serve};
use surgetank_planner::fluid::{Absorb, Pipes};
use surgetank_planner::interval::{Checkpointing, ElasticDevice, interval};
use surgetank_planner::rotation::{Member, rotation};
use surgetank_policy::sizing::{Usage, paper_next_size};
use surgetank_report::number::{AGBS_EXPLAINED, duration, plain, prefixed, thousands};
use surgetank_report::{Failure, Table, output};

use super::{CatalogChoice, volume_type};
use crate::source::tell;

/// Flags of `model`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model burst --dataset \"4 GiB\" --backing-bandwidth \"33 MiB/s\" \\
      --caching-bandwidth \"128 MiB/s\" --cache \"2 GiB\" --cache \"4 GiB\"
  surgetank model sizing --cache \"4 GiB\" --high-water \"4 GiB\" \\
      --evicted \"1.5 GiB\"
  surgetank model credits --type gp2 --size \"100 GiB\" \\
      --demand \"2000 IOPS for 1500 s\"
  surgetank model rotation --type gp2 --size \"10 GiB\" --copy-rate \"64 MiB/s\" \\
      --copy-io-size \"256 KiB\" --demand \"2500 IOPS\" --write-share 0.5
  surgetank model interval --checkpoint \"4 GiB\" --throughput \"92 MiB/s\" \\
      --mtbf \"24 h\"")]
pub struct Arguments {
    #[command(subcommand)]
    form: Form,
}

#[derive(Debug, Subcommand)]
enum Form {
    /// Absorb one burst: time, occupancy and cost by cache size (fluid)
    Burst(BurstArguments),
    /// Size the next cache by the papers' rule
    Sizing(SizingArguments),
    /// Serve a demand from a volume with burst credits
    Credits(CreditsArguments),
    /// Rotate a member of a burstable array before its credits end
    Rotation(RotationArguments),
    /// Choose the interval between checkpoints (Young)
    Interval(IntervalArguments),
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        match &self.form {
            Form::Burst(arguments) => arguments.run(),
            Form::Sizing(arguments) => arguments.run(),
            Form::Credits(arguments) => arguments.run(),
            Form::Rotation(arguments) => arguments.run(),
            Form::Interval(arguments) => arguments.run(),
        }
    }
}

fn answer(json: bool, document: &impl Serialize, people: impl FnOnce() -> String) -> Result<(), Failure> {
    if json { output::print_json(document) } else { output::print(&people()) }
}

fn above_zero(flag: &str, size: Bytes) -> Result<Bytes, Failure> {
    if size > Bytes::ZERO {
        Ok(size)
    } else {
        Err(Failure::Invalid(format!("--{flag} is zero: write a size such as \"4 GiB\"")))
    }
}

/// Where the writes of a burst go.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum BurstWrites {
    /// To both volumes, so that both run at full rate
    Split,
    /// To the caching volume while it has room
    Writeback,
}

impl BurstWrites {
    fn absorb(self) -> Absorb {
        match self {
            Self::Split => Absorb::Split,
            Self::Writeback => Absorb::WriteBack,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model burst --dataset \"4 GiB\" --backing-bandwidth \"33 MiB/s\" \\
      --caching-bandwidth \"128 MiB/s\" --cache \"2 GiB\" --cache \"4 GiB\" \\
      --mode writeback --json

split: max((S−M)/Bb, S/(Bb+Bc)) to absorb, S/Bb until drained. \
writeback: M/Bc + (S−M)/Bb to absorb, and M/Bb more to drain, because the application has priority. \
Cost of the occupancy: Bb·N·absorb + Bc·M·occupied.")]
struct BurstArguments {
    /// Bytes that the burst writes, S
    #[arg(long, value_name = "S")]
    dataset: Bytes,
    /// Bandwidth of the backing volume, Bb
    #[arg(long, value_name = "R")]
    backing_bandwidth: Bandwidth,
    /// Bandwidth of the caching volume, Bc
    #[arg(long, value_name = "R")]
    caching_bandwidth: Bandwidth,
    /// Size of the caching volume, M; may be repeated
    #[arg(long, value_name = "M", required = true)]
    cache: Vec<Bytes>,
    /// Where the writes go
    #[arg(long, value_enum, default_value_t = BurstWrites::Split)]
    mode: BurstWrites,
    /// Size of the backing volume, N: what waiting costs
    #[arg(long, value_name = "N", default_value = "50 GiB")]
    backing_size: Bytes,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct BurstPoint {
    cache_gib: f64,
    absorb_s: f64,
    occupied_s: f64,
    cost_agbs: f64,
}

#[derive(Serialize)]
struct BurstAnswer {
    mode: &'static str,
    backing_size_gib: f64,
    points: Vec<BurstPoint>,
    /// The cheapest of the points.
    best_cache_gib: f64,
    /// Whether that, the cheapest of the caches that were given, costs less than no cache.
    worth_it: bool,
    /// Whether any cache does, whatever its size.
    any_worth_it: bool,
    /// `None`: no dataset is small enough.
    break_even_dataset_gib: Option<f64>,
    /// The smallest cache that absorbs as fast as any.
    sufficient_cache_gib: f64,
    without_cache_s: f64,
    without_cache_agbs: f64,
}

impl BurstArguments {
    fn run(&self) -> Result<(), Failure> {
        let dataset = above_zero("dataset", self.dataset)?;
        let size = above_zero("backing-size", self.backing_size)?;
        let pipes = Pipes { backing: self.backing_bandwidth, caching: self.caching_bandwidth };
        let absorb = self.mode.absorb();
        let backing_agbs_s = size.as_gib() * pipes.backing.as_mib_s();
        let point = |cache: &Bytes| {
            let burst = pipes.burst(dataset, *cache, absorb);
            let cached = pipes.caching.as_mib_s() * cache.as_gib() * burst.occupied_s;
            BurstPoint {
                cache_gib: cache.as_gib(),
                absorb_s: burst.absorb_s,
                occupied_s: burst.occupied_s,
                cost_agbs: backing_agbs_s * burst.absorb_s + cached,
            }
        };
        let points: Vec<BurstPoint> = self.cache.iter().map(point).collect();
        let without_cache_s = dataset.as_mib() / pipes.backing.as_mib_s();
        let best = points.iter().min_by(|one, other| one.cost_agbs.total_cmp(&other.cost_agbs));
        let best = best.ok_or_else(|| Failure::invalid("no cache is given: add --cache \"4 GiB\""))?;
        let break_even_gib = pipes.break_even_gib(size, absorb);
        if pipes.caching < pipes.backing {
            tell(&[format!(
                "--caching-bandwidth ({}) is below --backing-bandwidth ({}): check that the two are not exchanged",
                pipes.caching, pipes.backing
            )]);
        }
        let found = BurstAnswer {
            mode: absorb.name(),
            backing_size_gib: size.as_gib(),
            best_cache_gib: best.cache_gib,
            worth_it: best.cost_agbs < backing_agbs_s * without_cache_s,
            any_worth_it: break_even_gib.is_some_and(|gib| dataset.as_gib() < gib),
            break_even_dataset_gib: break_even_gib,
            sufficient_cache_gib: pipes.cache_for(dataset, absorb).as_gib(),
            without_cache_s,
            without_cache_agbs: backing_agbs_s * without_cache_s,
            points,
        };
        answer(self.json, &found, || burst_text(&found))
    }
}

fn burst_text(found: &BurstAnswer) -> String {
    let mut table = Table::new(["cache", "absorb", "occupied", "AGBs"]);
    table.row([
        "none".to_owned(),
        format!("{:.1} s", found.without_cache_s),
        "–".to_owned(),
        prefixed(found.without_cache_agbs),
    ]);
    for point in &found.points {
        table.row([
            format!("{} GiB", plain(point.cache_gib)),
            format!("{:.1} s", point.absorb_s),
            format!("{:.1} s", point.occupied_s),
            prefixed(point.cost_agbs),
        ]);
    }
    let worth = if found.worth_it { "pays" } else { "does not pay" };
    let until = match found.break_even_dataset_gib {
        Some(gib) => format!("the best size of cache pays for bursts below {gib:.2} GiB"),
        None => "no cache pays, however small the burst".to_owned(),
    };
    format!(
        "{table}\n\n{}: the cheapest of the caches that were given, {} GiB, {worth} in AGBs; {until}. {:.2} GiB absorb as fast as \
         any.\n{AGBS_EXPLAINED}.",
        found.mode,
        plain(found.best_cache_gib),
        found.sufficient_cache_gib
    )
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model sizing --cache \"10 GiB\" --high-water \"3.2 GiB\" \\
      --evicted \"0 GiB\"

evicted > 0: M + evicted; else the smaller of M and the high water; rounded up to the grain.")]
struct SizingArguments {
    /// Size of the caching volume that was used, M
    #[arg(long, value_name = "M")]
    cache: Bytes,
    /// The most of it in use at once
    #[arg(long, value_name = "H")]
    high_water: Bytes,
    /// What a larger one would have taken
    #[arg(long, value_name = "E")]
    evicted: Bytes,
    /// Sizes are multiples of this
    #[arg(long, value_name = "G", default_value = "1 GiB")]
    grain: Bytes,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct SizingAnswer {
    next_cache_gib: f64,
}

impl SizingArguments {
    fn run(&self) -> Result<(), Failure> {
        let grain = above_zero("grain", self.grain)?;
        if self.high_water > self.cache {
            return Err(Failure::Invalid(format!(
                "--high-water is {}, above the cache of {}: no more of it can be in use; what a larger one would have taken is \
                 --evicted",
                self.high_water, self.cache
            )));
        }
        let usage = Usage {
            size: self.cache,
            usable: self.cache,
            high_water: self.high_water,
            evicted: self.evicted,
            ..Usage::default()
        };
        let found = SizingAnswer { next_cache_gib: paper_next_size(&usage, grain).as_gib() };
        answer(self.json, &found, || format!("next cache: {} GiB", plain(found.next_cache_gib)))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model credits --type gp2 --size \"100 GiB\" \\
      --demand \"3000 IOPS for 40 min\" --demand \"100 IOPS for 5 h\"
  surgetank model credits --type st1 --size \"2 TiB\" --demand \"500 MiB/s for 1 h\"
  surgetank model credits --type premium-ssd --size \"128 GiB\" \\
      --demand \"3500 IOPS, 100 MB/s for 1 h\"

The buckets are full at the beginning. Served rates are averages over their segment of demand.")]
struct CreditsArguments {
    /// Volume type, as aws/gp2 or gp2
    #[arg(long = "type", value_name = "TYPE")]
    volume_type: String,
    /// Size of the volume
    #[arg(long, value_name = "S")]
    size: Bytes,
    /// A stretch of demand, as \"2000 IOPS for 1500 s\"; may be repeated
    #[arg(long, value_name = "DEMAND", required = true)]
    demand: Vec<Demand>,
    #[command(flatten)]
    catalog: CatalogChoice,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CreditsAnswer {
    volume_type: String,
    segments: Vec<Segment>,
}

impl CreditsArguments {
    fn run(&self) -> Result<(), Failure> {
        let catalog = self.catalog.load()?;
        let known = volume_type(&catalog, &self.volume_type)?;
        let segments = serve(known, self.size, &self.demand).map_err(Failure::Invalid)?;
        let found = CreditsAnswer { volume_type: known.key(), segments };
        answer(self.json, &found, || {
            let mut table = Table::new(["stretch", "IOPS", "MiB/s", "credits at its end", "exhausted after"]);
            for (demand, segment) in self.demand.iter().zip(&found.segments) {
                let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), thousands);
                let credits = match (segment.credits_end, segment.credits_end_mib) {
                    (credits, None) => number(credits),
                    (credits, Some(mib)) => format!("{} and {} MiB", number(credits), thousands(mib)),
                };
                let exhausted = segment.exhausted_after_s.map_or_else(|| "never".to_owned(), |s| format!("{s:.0} s"));
                let stretch = Span(demand.lasts).to_string();
                table.row([stretch, number(segment.served_iops), number(segment.served_mib_s), credits, exhausted]);
            }
            format!("{}\n{table}", found.volume_type)
        })
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model rotation --type gp2 --size \"10 GiB\" --copy-rate \"64 MiB/s\" \\
      --copy-io-size \"256 KiB\" --demand \"2500 IOPS\" --write-share 0.5")]
struct RotationArguments {
    /// Volume type, as aws/gp2 or gp2
    #[arg(long = "type", value_name = "TYPE")]
    volume_type: String,
    /// Size of one member
    #[arg(long, value_name = "S")]
    size: Bytes,
    /// At which a member is copied onto a new volume
    #[arg(long, value_name = "R")]
    copy_rate: Bandwidth,
    /// Bytes of one operation of the copy
    #[arg(long, value_name = "B")]
    copy_io_size: Bytes,
    /// What the application asks of one member
    #[arg(long, value_name = "N")]
    demand: Iops,
    /// Share of writes in it, 0 to 1
    #[arg(long, value_name = "W", allow_hyphen_values = true)]
    write_share: f64,
    #[command(flatten)]
    catalog: CatalogChoice,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl RotationArguments {
    fn run(&self) -> Result<(), Failure> {
        let catalog = self.catalog.load()?;
        let known = volume_type(&catalog, &self.volume_type)?;
        if !(0.0..=1.0).contains(&self.write_share) {
            let message = format!("--write-share is {}: write a share from 0 to 1, such as 0.5", self.write_share);
            return Err(Failure::Invalid(message));
        }
        let member = Member {
            size: self.size,
            copy_rate: self.copy_rate,
            copy_io_size: above_zero("copy-io-size", self.copy_io_size)?,
            demand: self.demand,
            write_share: self.write_share,
        };
        let found = rotation(&catalog, known, &member).map_err(Failure::Invalid)?;
        answer(self.json, &found, || {
            let worth = if found.worth_it { "worth it" } else { "not worth it" };
            let cycle = match (found.cycle_s, found.overhead_ratio) {
                (Some(cycle_s), Some(overhead)) => format!(
                    "every {cycle_s:.0} s, two volumes for {:.1} % of the time, begun when {:.0} credits are left",
                    overhead * 100.0,
                    found.start_at_credits
                ),
                _ => "never".to_owned(),
            };
            format!("copy {:.0} s, {cycle}\n{worth}: {}", found.copy_s, found.reason)
        })
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank model interval --checkpoint \"4 GiB\" --throughput \"92 MiB/s\" \\
      --mtbf \"24 h\"
  surgetank model interval --checkpoint \"4 GiB\" --throughput \"161 MiB/s\" \\
      --mtbf \"24 h\" --backing-bandwidth \"33 MiB/s\" \\
      --caching-bandwidth \"128 MiB/s\" --cache \"4 GiB\"

√(2·t·MTBF) of compute between checkpoints, where t is the time of one. With an elastic device also the interval \
of least cost; no interval is shorter than the drain.")]
struct IntervalArguments {
    /// Size of one checkpoint of one VM
    #[arg(long, value_name = "S")]
    checkpoint: Bytes,
    /// At which it is written
    #[arg(long, value_name = "R")]
    throughput: Bandwidth,
    /// Mean time between failures
    #[arg(long, value_name = "T")]
    mtbf: Span,
    /// Bandwidth of an elastic device's backing volume
    #[arg(long, value_name = "R", requires = "caching_bandwidth", requires = "cache")]
    backing_bandwidth: Option<Bandwidth>,
    /// Bandwidth of its caching volume
    #[arg(long, value_name = "R", requires = "backing_bandwidth")]
    caching_bandwidth: Option<Bandwidth>,
    /// Size of its caching volume
    #[arg(long, value_name = "M", requires = "backing_bandwidth")]
    cache: Option<Bytes>,
    /// Size of its backing volume
    #[arg(long, value_name = "N", default_value = "50 GiB")]
    backing_size: Bytes,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl IntervalArguments {
    fn run(&self) -> Result<(), Failure> {
        if self.mtbf.0.is_zero() {
            return Err(Failure::invalid("--mtbf is zero: write the mean time between failures, such as \"24 h\""));
        }
        let backing_size = above_zero("backing-size", self.backing_size)?;
        let pipes = self.backing_bandwidth.zip(self.caching_bandwidth);
        let elastic = pipes.zip(self.cache).map(|((backing, caching), cache)| ElasticDevice {
            pipes: Pipes { backing, caching },
            backing_size,
            cache,
            absorb: Absorb::Split,
        });
        let found = interval(&Checkpointing {
            checkpoint: above_zero("checkpoint", self.checkpoint)?,
            throughput: self.throughput,
            mtbf: self.mtbf.0,
            elastic,
        });
        let mtbf_s = self.mtbf.0.as_secs_f64();
        if found.checkpoint_s >= mtbf_s {
            return Err(Failure::Infeasible(format!(
                "a checkpoint takes {}, and machines fail every {mtbf_s:.0} s, so that no run gets ahead: write less or faster",
                duration(found.checkpoint_s)
            )));
        }
        if found.interval_s > mtbf_s {
            tell(&[format!(
                "the interval of {} is longer than the MTBF: Young's rule holds where checkpoints are short beside it",
                duration(found.interval_s)
            )]);
        }
        answer(self.json, &found, || {
            let cost = found.cost_interval_s.map_or(String::new(), |s| format!("; least cost: every {s:.0} s"));
            let drain = found.drain_s.map_or(String::new(), |s| format!("; the drain takes {s:.0} s"));
            format!(
                "a checkpoint of {:.1} s every {:.0} s of compute{cost}{drain}",
                found.checkpoint_s, found.interval_s
            )
        })
    }
}
