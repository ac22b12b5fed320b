//! `surgetank demo`: the main job on this machine, on real I/O, three ways; with `--array` arrays of burstable volumes, with `--pool`
//! a staging pool.

use std::path::PathBuf;

use clap::Args;
use surgetank_demo::array::{self, ArrayOptions, ArrayPlan};
use surgetank_demo::pool::{self, PoolOptions, PoolPlan};
use surgetank_demo::{Options, Plan};
use surgetank_policy::Preset;
use surgetank_report::run;
use surgetank_report::{Failure, Interrupt, output};

use crate::logging;
use crate::policy::preset;

/// Where the report goes unless told otherwise.
const DEFAULT_OUT: &str = "surgetank-demo-report";

/// Flags of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank demo --quick
  surgetank demo --out report && xdg-open report/report.html
  surgetank demo --policy paper --json > demo.json
  surgetank demo --array --quick
  surgetank demo --pool

The application writes an initial dump and three checkpoints with pauses between them, through ext4. static-slow \
runs it on a slow volume, static-fast on a fast one, elastic on a slow one with caching volumes rented for the \
bursts. The volumes are files in a temporary directory, throttled to their rates (set TMPDIR to choose the disk). \
Without root the devices are used over NBD, without a file system.

With --array the volumes live on burst credits like those of AWS gp2, scaled so that they end within seconds. The same \
random reads and writes of 4 KiB are made of one large volume (single), of an array of ten small ones (array), and of an \
array whose members are replaced before their credits end (rotated).

With --pool four writers write a checkpoint straight to a slow file system (direct), and through a staging pool of three \
benefactors in front of it, one of which is killed in the middle (pool). It needs root, for the mounts.")]
pub struct Arguments {
    /// Run a smaller setting: about 40 s instead of about two minutes
    #[arg(long)]
    quick: bool,
    /// Run arrays of volumes on burst credits in place of elastic devices
    #[arg(long, conflicts_with = "policy")]
    array: bool,
    /// Run a staging pool in front of a slow file system
    #[arg(long, conflicts_with_all = ["policy", "array"])]
    pool: bool,
    /// Controller of the elastic mode
    #[arg(long, value_parser = preset(), default_value = Preset::ADAPTIVE.name)]
    policy: Preset,
    /// Where report.html, report.json and scenario.toml (the run, for `simulate`) go
    #[arg(long, value_name = "DIR", default_value = DEFAULT_OUT)]
    out: PathBuf,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
    /// Keep the work directory with its volumes
    #[arg(long)]
    keep: bool,
    /// Seed of the files' content, for repeating a run [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl Arguments {
    pub fn run(self) -> Result<(), Failure> {
        if std::env::var_os(logging::VARIABLE).is_some() {
            logging::start(logging::Form::Text, tracing::Level::WARN)?;
        }
        let interrupt = Interrupt::install()?;
        let seed = self.seed.unwrap_or_else(rand::random);
        if self.array {
            return self.run_array(seed, &interrupt);
        }
        if self.pool {
            return self.run_pool(seed, &interrupt);
        }
        let plan = if self.quick { Plan::quick(seed) } else { Plan::standard(seed) };
        let options = Options { plan, policy: self.policy.name, out: self.out, keep: self.keep };
        let outcome = surgetank_demo::run(&options, &interrupt)?;
        if self.json {
            return output::print_json(&outcome.without_series());
        }
        let page = options.out.join("report.html");
        output::print(&format!("{}\nreport: {}", run::text(&outcome), page.display()))
    }

    fn run_pool(self, seed: u64, interrupt: &Interrupt) -> Result<(), Failure> {
        let plan = if self.quick { PoolPlan::quick(seed) } else { PoolPlan::standard(seed) };
        let options = PoolOptions { plan, out: self.out, keep: self.keep };
        let outcome = pool::run(&options, interrupt)?;
        if self.json {
            return output::print_json(&outcome);
        }
        let page = options.out.join("report.html");
        output::print(&format!("{}\nreport: {}", pool::text(&outcome), page.display()))
    }

    fn run_array(self, seed: u64, interrupt: &Interrupt) -> Result<(), Failure> {
        let plan = if self.quick { ArrayPlan::quick(seed)? } else { ArrayPlan::standard(seed)? };
        let options = ArrayOptions { plan, out: self.out, keep: self.keep };
        let outcome = array::run(&options, interrupt)?;
        if self.json {
            return output::print_json(&outcome.without_series());
        }
        let page = options.out.join("report.html");
        output::print(&format!("{}\nreport: {}", array::text(&outcome), page.display()))
    }
}

/// Flags of the hidden command that writes one file of the demo.
#[derive(Debug, Args)]
pub struct Writer {
    order: String,
}

impl Writer {
    pub fn run(self) -> Result<(), Failure> {
        surgetank_demo::work(&self.order)
    }
}
