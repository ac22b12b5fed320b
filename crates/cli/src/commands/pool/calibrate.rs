//! `surgetank pool calibrate`: what a node takes in, writes to its SSD and drains, and what links cost, measured with pools of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use surgetank_model::units::{MIB, ParseUnitError, Span};
use surgetank_model::{Bandwidth, Bytes};
use surgetank_planner::provision::{Fitted, LinkDivisor, Measured, Mode, NODES_MAX, Run};
use surgetank_pool::client::{self, Config, PoolClient};
use surgetank_pool::local::{self, Local};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;
use surgetank_report::number::count;
use surgetank_report::{Doing, Failure, Interrupt, output};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::{joined, not_started};

/// Of a file: what is drained is counted by whole ones.
const FILE: u64 = 8 * MIB;
/// Files that are written at a time.
const WRITERS: u64 = 4;
/// Between two looks at what is drained, and at signals.
const LOOK: Duration = Duration::from_millis(20);
/// Of each number of benefactors; the median counts.
const ROUNDS: usize = 3;
/// What is lent beyond what is written, in parts of it: buffers have ends that nobody fills.
const SPARE: u64 = 4;
/// Below that nobody lends SSD, and a part of it is for compaction.
const SSD_LENT: Bytes = Bytes::from_mib(512);

/// Flags of `pool calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank pool calibrate --target /scratch
  surgetank pool calibrate --target /scratch --ssd-directory /nvme \\
      --benefactors 8 --memory '1 GiB' > node.toml
  surgetank pool calibrate --target /scratch \\
      --run '1=1.1 GiB/s' --run '4=4.1 GiB/s' --run '16=14 GiB/s'

It runs pools of 1 to --benefactors benefactors on this machine, writes files into each, and drains them to a directory of its own \
below --target. It prints [target] and [node] for the file of surgetank provision. The loss of a link is that of this machine: its \
benefactors share processors and memory. With --run, what pools of several machines took in says what a node takes in and what a \
link costs. Everything that it writes is removed at its end, also after Ctrl-C; no measurement takes \
longer than --within, and the room that it takes is what --memory of all benefactors is, at the target and in memory.")]
pub struct Calibrate {
    /// A directory of the file system that the pool is to drain to
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// A directory of the SSD that nodes are to lend; without it ssd_write is not measured
    #[arg(long, value_name = "DIR")]
    ssd_directory: Option<PathBuf>,
    /// The most benefactors that are measured together
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    benefactors: u32,
    /// Memory that each lends while it is measured; most of it is written
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: Bytes,
    /// What a pool of N nodes took in with one copy, all of them written to at once: in place of pools here, for ingest and links
    #[arg(long, value_name = "N=RATE", value_parser = run_of)]
    run: Vec<Run>,
    /// Where nodes are to be: in-job or centre-wide
    #[arg(long, value_name = "MODE", default_value = Mode::InJob.name(), value_parser = mode())]
    mode: Mode,
    /// How long one measurement may take
    #[arg(long, value_name = "TIME", default_value = "20 s")]
    within: Span,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

fn mode() -> impl TypedValueParser<Value = Mode> {
    let named = |name: String| if name == Mode::CentreWide.name() { Mode::CentreWide } else { Mode::InJob };
    PossibleValuesParser::new([Mode::InJob, Mode::CentreWide].map(Mode::name)).map(named)
}

/// "4=4.1 GiB/s".
fn run_of(text: &str) -> Result<Run, String> {
    let example = "write a number of nodes and what they took in together, such as \"4=4.1 GiB/s\"";
    let (nodes, rate) = text.split_once('=').ok_or(example)?;
    let nodes = nodes.trim().parse().ok().filter(|nodes| (1..=NODES_MAX).contains(nodes)).ok_or(example)?;
    let rate: Bandwidth = rate.trim().parse().map_err(|error: ParseUnitError| error.to_string())?;
    Ok(Run { nodes, bytes_s: rate.get() as f64 })
}

/// What was measured.
#[derive(Serialize)]
struct Answer {
    ingest_mib_s: f64,
    ssd_write_mib_s: Option<f64>,
    drain_mib_s: f64,
    link_divisor: Option<f64>,
    mode: &'static str,
    runs: Vec<AnswerRun>,
    /// For the file of `provision`.
    sections: String,
}

#[derive(Serialize)]
struct AnswerRun {
    benefactors: u64,
    throughput_mib_s: f64,
}

/// A directory that is removed with everything in it.
struct Own(PathBuf);

impl Own {
    /// All three may be below one directory.
    fn below(parent: &Path, what: &str) -> Result<Self, Failure> {
        // The pool's processes have directories of their own.
        let made = std::fs::canonicalize(parent).and_then(|parent| {
            let path = parent.join(format!("surgetank-calibrate-{}-{what}", std::process::id()));
            std::fs::create_dir(&path).map(|()| Self(path))
        });
        made.map_err(|error| {
            Failure::Invalid(format!("{}: {error}: name a directory that can be written", parent.display()))
        })
    }

    /// Removes it, and says if that does not succeed.
    fn remove(self) -> Result<(), Failure> {
        let path = self.0.clone();
        std::mem::forget(self);
        std::fs::remove_dir_all(&path).doing(|| format!("cannot remove {}", path.display()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes in seconds.
#[derive(Clone, Copy)]
struct Took {
    bytes: u64,
    seconds: f64,
}

impl Took {
    fn bytes_s(self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-6)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted: what was written is removed".to_owned())
}

/// Where measurements put their files.
struct Places {
    /// The pools' own.
    pool: Own,
    target: Own,
    ssd: Option<Own>,
}

impl Places {
    fn remove(self) -> Result<(), Failure> {
        let removed = [Some(self.pool), Some(self.target), self.ssd].map(|own| own.map_or(Ok(()), Own::remove));
        removed.into_iter().collect()
    }
}

impl Calibrate {
    pub fn run(&self) -> Result<(), Failure> {
        self.check()?;
        let interrupt = Interrupt::install()?;
        let places = Places {
            pool: Own::below(&std::env::temp_dir(), "pool")?,
            target: Own::below(&self.target, "target")?,
            ssd: self.ssd_directory.as_deref().map(|ssd| Own::below(ssd, "ssd")).transpose()?,
        };
        let measured = self.measure(&places, &interrupt);
        places.remove()?;
        let (measured, runs) = measured?;
        if self.json { output::print_json(&answer(&measured, &runs)) } else { output::print(&text(&measured, &runs)) }
    }

    /// What can be told before anything is made.
    fn check(&self) -> Result<(), Failure> {
        if self.memory.get() < 4 * FILE {
            return Err(Failure::Invalid(format!(
                "--memory {} is too little to measure with: lend at least {}",
                self.memory,
                Bytes::new(4 * FILE)
            )));
        }
        if self.within.0 < Duration::from_secs(1) {
            return Err(Failure::Invalid(format!(
                "--within {} is too short to measure: allow at least \"1 s\"",
                self.within
            )));
        }
        Ok(())
    }

    fn measure(&self, places: &Places, interrupt: &Interrupt) -> Result<(Measured, Vec<Run>), Failure> {
        let runtime = Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
        let (mut runs, mut drains) = (Vec::new(), Vec::new());
        // Where runs are given, pools here are for the drain alone.
        let first = if self.run.is_empty() { 1 } else { self.benefactors };
        for benefactors in first..=self.benefactors {
            output::note(&format!("surgetank: measuring {}", count(benefactors as usize, "benefactor")));
            let mut taken = Vec::new();
            for round in 0..ROUNDS {
                let of = Pool { calibrate: self, places, interrupt, runtime: &runtime };
                let name = format!("memory-{benefactors}-{round}");
                let (took, drained) = of.memory(&name, benefactors)?;
                taken.push(took.bytes_s());
                // The target is shared: what each drains is what it does while all others drain.
                if benefactors == self.benefactors {
                    drains.push(drained.bytes_s() / f64::from(benefactors));
                }
            }
            runs.push(Run { nodes: benefactors.into(), bytes_s: median(taken) });
        }
        let ssd_write_bytes_s = match &places.ssd {
            None => None,
            Some(ssd) => {
                output::note("surgetank: measuring the SSD");
                let of = Pool { calibrate: self, places, interrupt, runtime: &runtime };
                let rounds = (0..ROUNDS).map(|round| of.ssd(&format!("ssd-{round}"), ssd).map(Took::bytes_s));
                Some(median(rounds.collect::<Result<_, _>>()?))
            }
        };
        if !self.run.is_empty() {
            runs.clone_from(&self.run);
        }
        let drain_bytes_s = median(drains);
        if drain_bytes_s <= 0.0 {
            return Err(Failure::Failed(format!(
                "{} took not even one file of {} within {}: allow more time with --within",
                self.target.display(),
                Bytes::new(FILE),
                self.within
            )));
        }
        let ingest = Fitted::of(self.mode, &runs).ok_or_else(|| Failure::Failed("nothing was measured".to_owned()))?;
        Ok((Measured { mode: self.mode, ingest, ssd_write_bytes_s, drain_bytes_s }, runs))
    }
}

/// What one measurement needs.
#[derive(Clone, Copy)]
struct Pool<'a> {
    calibrate: &'a Calibrate,
    places: &'a Places,
    interrupt: &'a Interrupt,
    runtime: &'a Runtime,
}

impl Pool<'_> {
    /// Writes into the memory of so many benefactors, and waits until it is drained or the time is over.
    fn memory(&self, name: &str, benefactors: u32) -> Result<(Took, Took), Failure> {
        let memory = self.calibrate.memory;
        let files = (memory.get() - memory.get() / SPARE) / FILE * u64::from(benefactors);
        let config = local::Config::of_memory(self.places.pool.0.join(name), "127.0.0.1:0", benefactors, memory);
        self.with(config, name, Media::Any, async |client, deadline| {
            let began = Instant::now();
            let took = write(&client, files, deadline).await?;
            let drained = self.drained(&client, took.bytes, deadline).await?;
            Ok((took, Took { bytes: drained, seconds: began.elapsed().as_secs_f64() }))
        })
    }

    /// Writes to the SSD of one benefactor.
    fn ssd(&self, name: &str, ssd: &Own) -> Result<Took, Failure> {
        let mut config =
            local::Config::of_memory(self.places.pool.0.join(name), "127.0.0.1:0", 1, self.calibrate.memory);
        config.ssd = SSD_LENT;
        config.ssd_directory = Some(ssd.0.join(name));
        // A part of an SSD is never used for files.
        let files = SSD_LENT.get() / 2 / FILE;
        let took =
            self.with(config, name, Media::Ssd, async |client, deadline| write(&client, files, deadline).await)?;
        // Its room is free for the next one.
        let of_this = ssd.0.join(name);
        std::fs::remove_dir_all(&of_this).doing(|| format!("cannot remove {}", of_this.display()))?;
        Ok(took)
    }

    /// Starts a pool, measures with a client of it, and ends it, whatever happens.
    fn with<T>(
        &self,
        config: local::Config,
        name: &str,
        media: Media,
        measure: impl AsyncFnOnce(Arc<PoolClient>, Instant) -> Result<T, client::Error>,
    ) -> Result<T, Failure> {
        let target = self.places.target.0.join(name);
        std::fs::create_dir(&target).doing(|| format!("cannot make {}", target.display()))?;
        let benefactors = config.benefactors as usize;
        let mut pool = Local::start(&config).map_err(not_started)?;
        let measured = match joined(&mut pool, benefactors, self.interrupt)? {
            false => Err(interrupted()),
            true => {
                let mut config = Config::new(vec![pool.address().to_owned()], pool.access().clone(), name);
                config.make = Some((target, Durability::Copies { copies: 1, media }));
                config.timeout = self.calibrate.within.0;
                self.runtime.block_on(async {
                    let deadline = Instant::now() + self.calibrate.within.0;
                    let work = async {
                        let client = Arc::new(PoolClient::begin(config).await?);
                        measure(client, deadline).await
                    };
                    tokio::select! {
                        measured = work => measured.map_err(Failure::failed),
                        () = self.signal() => Err(interrupted()),
                    }
                })
            }
        };
        pool.end().map_err(Failure::failed)?;
        measured
    }

    async fn signal(&self) {
        while !self.interrupt.raised() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Bytes that the target has of so many, as soon as it has all, or the time is over.
    async fn drained(&self, client: &PoolClient, all: u64, deadline: Instant) -> Result<u64, client::Error> {
        loop {
            let files = client.status().await?.files;
            // Drained, and evicted.
            let drained = files.iter().skip(2).take(2).sum::<u64>() * FILE;
            if drained >= all || Instant::now() >= deadline {
                return Ok(drained.min(all));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Writes files until there are so many, or the time is over; what they took until the last was closed.
async fn write(client: &Arc<PoolClient>, files: u64, deadline: Instant) -> Result<Took, client::Error> {
    let bytes = bytes::Bytes::from(filled());
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (client, bytes, next) = (Arc::clone(client), bytes.clone(), Arc::clone(&next));
        writers.spawn(async move {
            let mut written = 0;
            while Instant::now() < deadline {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= files {
                    break;
                }
                let mut file = client.create(&format!("file{number}")).await?;
                for at in (0..FILE).step_by(bytes.len()) {
                    file.write_bytes_at(at, &bytes).await?;
                }
                file.close().await?;
                written += FILE;
            }
            Ok::<u64, client::Error>(written)
        });
    }
    let mut written = 0;
    while let Some(ended) = writers.join_next().await {
        written += ended.map_err(|error| client::Error::Managers(error.to_string()))??;
    }
    Ok(Took { bytes: written, seconds: began.elapsed().as_secs_f64() })
}

/// A MiB that is no zeros.
fn filled() -> Vec<u8> {
    (0..MIB as u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

fn mib_s(bytes_s: f64) -> f64 {
    bytes_s / MIB as f64
}

fn answer(measured: &Measured, runs: &[Run]) -> Answer {
    let run = |run: &Run| AnswerRun { benefactors: run.nodes, throughput_mib_s: mib_s(run.bytes_s) };
    Answer {
        ingest_mib_s: mib_s(measured.ingest.each_bytes_s),
        ssd_write_mib_s: measured.ssd_write_bytes_s.map(mib_s),
        drain_mib_s: mib_s(measured.drain_bytes_s),
        link_divisor: measured.ingest.link.map(LinkDivisor::get),
        mode: measured.mode.name(),
        runs: runs.iter().map(run).collect(),
        sections: measured.sections(),
    }
}

/// The sections, with what they come from as comments.
fn text(measured: &Measured, runs: &[Run]) -> String {
    let line = |run: &Run| {
        let nodes = count(usize::try_from(run.nodes).unwrap_or(usize::MAX), "node");
        format!("# {nodes}: {:.1} MiB/s\n", mib_s(run.bytes_s))
    };
    let seen = match measured.ingest.link {
        Some(_) => "",
        None => "# more nodes took in no less each: no loss of a link is seen\n",
    };
    let lines: String = runs.iter().map(line).collect();
    format!("{lines}{seen}{}", measured.sections())
}
