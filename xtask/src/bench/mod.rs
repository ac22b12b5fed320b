//! `cargo xtask bench`: the bars of `docs/BENCHMARKS.md`, each as a ratio of two things measured in one run.

mod boost;
mod exports;
mod fio;
mod losses;
mod mrc;
mod passthrough;
mod peers;
mod recovery;
mod report;
mod rig;
mod sim;
pub mod surgetank;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::say;
use report::Report;
use rig::Interrupt;

/// Flags of the bench.
#[derive(Args)]
pub struct Arguments {
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Where the report and the JSON go
    #[arg(long, default_value = "bench-out")]
    out: PathBuf,
    /// Where volumes are made; by default a temporary directory on the disk of `--out`
    #[arg(long)]
    scratch: Option<PathBuf>,
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
}

/// What every part needs.
struct Bench {
    interrupt: Interrupt,
    directory: PathBuf,
    quick: bool,
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
}

/// Runs the bench; whether every bar was met.
///
/// # Errors
/// If the machine lacks something, or something fails.
pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<bool> {
    if !rustix::process::geteuid().is_root() {
        bail!("the bench makes loop devices and mounts: run it as root (sudo make bench)");
    }
    let out = root.join(&arguments.out);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let scratch = tempfile::Builder::new()
        .prefix("scratch-")
        .tempdir_in(arguments.scratch.as_ref().unwrap_or(&out))
        .context("cannot make a scratch directory")?;
    let bench =
        Bench { interrupt: Interrupt::install()?, directory: scratch.path().to_owned(), quick: arguments.quick };
    let mut report = Report { quick: arguments.quick, versions: versions(), ..Report::default() };
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    if wanted(Part::Passthrough) {
        passthrough::run(&bench, &mut report).context("pass-through")?;
    }
    if wanted(Part::Exports) {
        exports::run(&bench, &mut report).context("exports")?;
    }
    if wanted(Part::Boost) {
        boost::run(&bench, &mut report).context("boost")?;
    }
    if wanted(Part::Mrc) {
        mrc::run(&bench, &mut report).context("miss-ratio curves")?;
    }
    if wanted(Part::Sim) {
        sim::run(&bench, root, &mut report).context("simulator")?;
    }
    if wanted(Part::Losses) {
        losses::run(&bench, root, &mut report).context("losses")?;
    }
    if wanted(Part::Recovery) {
        recovery::run(&bench, root, &mut report).context("recovery")?;
    }
    let table = report.markdown();
    fs::write(out.join("bench.md"), &table)?;
    fs::write(out.join("bench.json"), serde_json::to_vec_pretty(&report)?)?;
    say(&format!("{table}\nwritten to {}/bench.md and bench.json", out.display()));
    Ok(report.rows.iter().all(|row| row.met != Some(false)))
}

fn versions() -> Vec<(String, String)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut versions = vec![("machine".to_owned(), format!("Linux {kernel}, {cores} cores"))];
    versions.extend(["fio", "nbdkit", "nbdfuse"].map(|program| (program.to_owned(), peers::version(program))));
    versions
}
