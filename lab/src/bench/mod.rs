//! `make bench`: the bars of `docs/BENCHMARKS.md` that need no guest, each a ratio of two things measured in one run.

mod array;
mod boost;
mod devices;
mod exports;
mod losses;
mod mrc;
mod nbdkit;
mod passthrough;
mod policy;
mod pool;
mod recovery;
mod rig;
mod sharing;
mod sim;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::bar::{Bar, all_met, table};
use crate::flags::absolute;
use crate::interrupt::{Interrupt, output};
use crate::output::{say, write};
use crate::product::{Product, answer, tree};
use crate::surgetank::{Elastic, Places, Rent, Surgetank};

/// Flags of the bench.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Where the report and the JSON go
    #[arg(long, default_value = "bench-out", value_parser = absolute)]
    out: PathBuf,
    /// Where volumes are made; by default a temporary directory on the disk of `--out`
    #[arg(long, value_parser = absolute)]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    policy: policy::Policies,
    #[command(flatten)]
    product: Product,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pass-through against the raw backing volume
    Passthrough,
    /// Exports over memory against nbdkit
    Exports,
    /// A burst absorbed, drained; small writes; memory
    Boost,
    /// Miss-ratio curves against libCacheSim
    Mrc,
    /// Events, checkpoints in flows, a large sweep
    Sim,
    /// Overwriting a device that has lost a million ranges
    Losses,
    /// How long a device is away after its daemon was killed in a boost
    Recovery,
    /// Many devices of one daemon: idle, and boosting at once
    Devices,
    /// Arrays: a stripe, a member replaced under load, what is copied, boosts over several volumes
    Array,
    /// Policies and static volumes against the best that could have been done, in the simulator
    Policy,
    /// Files placed among thousands of benefactors of a staging pool
    Pool,
    /// Read caches of two devices that share a budget while their loads change, beside fixed halves
    Sharing,
    /// Throughput while a read cache is resized
    Resize,
}

impl Part {
    fn measure(self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        match self {
            Self::Passthrough => passthrough::run(bench, report).context("pass-through"),
            Self::Exports => exports::run(bench, report).context("exports"),
            Self::Boost => boost::run(bench, report).context("boost"),
            Self::Mrc => mrc::run(bench, report).context("miss-ratio curves"),
            Self::Sim => sim::run(bench, report).context("simulator"),
            Self::Losses => losses::run(bench, report).context("losses"),
            Self::Recovery => recovery::run(bench, report).context("recovery"),
            Self::Devices => devices::run(bench, report).context("devices"),
            Self::Array => array::run(bench, report).context("arrays"),
            Self::Policy => policy::run(bench, report).context("policies"),
            Self::Pool => pool::run(bench, report).context("staging pool"),
            Self::Sharing => sharing::run(bench, report).context("read caches that share"),
            Self::Resize => sharing::resize::run(bench, report).context("a read cache that is resized"),
        }
    }
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
struct Report {
    /// Shorter runs, fewer rounds.
    quick: bool,
    /// Programs and kernel, with their versions.
    versions: Vec<(String, String)>,
    /// In the order of measuring.
    rows: Vec<Bar>,
    /// Parts that could not run here, and why.
    skipped: Vec<String>,
}

impl Report {
    fn add(&mut self, bar: Bar) {
        say(&format!("{}: {:.3}", bar.name, bar.ratio));
        self.rows.push(bar);
    }

    fn markdown(&self) -> String {
        let skipped = self.skipped.iter().map(|reason| format!("\nSkipped: {reason}\n"));
        let versions = self.versions.iter().map(|(program, version)| format!("- {program}: {version}\n"));
        format!("{}{}\n{}", table(&self.rows).markdown(), skipped.collect::<String>(), versions.collect::<String>())
    }
}

/// What every part needs.
struct Bench {
    interrupt: Interrupt,
    directory: PathBuf,
    surgetank: PathBuf,
    quick: bool,
    out: PathBuf,
    policy: policy::Policies,
}

impl Bench {
    /// How often each side is measured.
    fn rounds(&self) -> u32 {
        if self.quick { 3 } else { 5 }
    }

    /// How long one measurement takes.
    fn time(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { 5 })
    }

    /// Serves an elastic device with its files in a folder of its own, by a command that starts the binary.
    fn serve(&self, name: &str, command: Command, elastic: &Elastic) -> anyhow::Result<Surgetank> {
        let files = self.directory.join(name);
        let places = Places { rent: Rent::Local(files.join("volumes")), log: files.join("surgetank.log"), files };
        Surgetank::serve(command, elastic, &places, &self.interrupt)
    }

    /// A device that passes through, over a backing volume that the daemon does not throttle: its nominal bandwidth is so
    /// high that no load is a burst.
    fn pass(&self, name: &str, command: Command, backing: &Path, export: &'static str) -> anyhow::Result<Surgetank> {
        let mib_s = 100_000;
        let elastic = Elastic { export, ..Elastic::steered("adaptive", backing, 1024, (mib_s, mib_s)) };
        self.serve(name, command, &elastic)
    }

    /// What a benchmark of a crate answers, built on all cores and run on one if it asks for that.
    fn cargo(&self, cores: Cores, package: &str, name: &str, flags: &[String]) -> anyhow::Result<Value> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let words = ["bench", "--quiet", "--package", package, "--bench", name];
        self.interrupt.run(Command::new(&cargo).current_dir(tree()).args(words).arg("--no-run"))?;
        let mut run = match cores {
            Cores::One => one_core(cargo.as_ref()),
            Cores::All => Command::new(&cargo),
        };
        // Its last lines are told when it fails: why, and not from where it was called.
        run.env("RUST_BACKTRACE", "0").env("SURGETANK_SCRATCH", &self.directory);
        run.current_dir(tree()).args(words).arg("--").args(flags);
        answer(&self.interrupt, &mut run)
    }
}

#[derive(Clone, Copy)]
enum Cores {
    One,
    All,
}

/// A program that stays on one core, the last one that this process may use: interrupts like the first.
fn one_core(program: &Path) -> Command {
    let ours = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|core| ours.is_set(*core)).unwrap_or(0);
    let mut command = Command::new("taskset");
    command.arg("--cpu-list").arg(last.to_string()).arg(program);
    command
}

impl Arguments {
    /// Measures and reports; whether every bar was met.
    pub fn run(&self) -> anyhow::Result<bool> {
        // The policies alone are simulated, in this process.
        let is_simulated = self.parts == [Part::Policy];
        if !is_simulated && !rustix::process::geteuid().is_root() {
            bail!("the bench makes loop devices and mounts: run it as root (sudo make bench)");
        }
        let interrupt = Interrupt::install()?;
        let surgetank = if is_simulated { PathBuf::new() } else { self.product.binary()? };
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make {}", self.out.display()))?;
        let parent = self.scratch.as_ref().unwrap_or(&self.out);
        let scratch = tempfile::Builder::new().prefix("scratch-").tempdir_in(parent);
        let scratch = scratch.context("cannot make a scratch directory")?;
        let bench = Bench {
            interrupt,
            directory: scratch.path().to_owned(),
            surgetank,
            quick: self.quick,
            out: self.out.clone(),
            policy: self.policy.clone(),
        };
        let mut report = Report { quick: self.quick, versions: versions(), rows: Vec::new(), skipped: Vec::new() };
        for part in Part::value_variants() {
            if self.parts.is_empty() || self.parts.contains(part) {
                part.measure(&bench, &mut report)?;
            }
        }
        write(&self.out, "bench", &report.markdown(), &report)?;
        Ok(all_met(&report.rows))
    }
}

fn versions() -> Vec<(String, String)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let version = |program: &str| {
        let said = output(Command::new(program).arg("--version")).map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).lines().next().unwrap_or("not found").to_owned()
    };
    let programs = ["fio", "nbdkit", "nbdfuse"].map(|program| (program.to_owned(), version(program)));
    [("machine".to_owned(), format!("Linux {kernel}, {cores} cores"))].into_iter().chain(programs).collect()
}
