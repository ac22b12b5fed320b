//! `surgetank simulate FILE`: a scenario in virtual time, under the production controller.

mod answer;
mod hindsight;
mod sweep;
mod values;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, ValueEnum};
use surgetank_model::toml_error::Source;
use surgetank_model::{Bytes, Catalog};
use surgetank_planner::scenario::Scenario;
use surgetank_policy::Preset;
use surgetank_report::Failure;
use surgetank_report::output::{self, note};
use surgetank_report::run::{self, RunOutcome};
use surgetank_trace::{Checkpoints, JobLog, Options, Reader, Series};
use surgetank_whatif::{self as whatif, Fidelity, Mode, Setup};

use crate::policy::preset;
use crate::source;
use hindsight::ValueOfTime;
use values::{Setting, Sweep};

/// Traces are replayed in steps of this: what a controller that samples each second can see.
const STEP: Duration = Duration::from_secs(1);

/// Flags of `simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank simulate cm1.toml
  surgetank simulate cm1.toml --out report --policy paper
  surgetank simulate cm1.toml --hindsight --value-of-time 16500
  surgetank simulate cm1.toml --sweep caching.checkpoint_cache=2..12GiB \\
      --csv sweep.csv
  surgetank simulate cm1.toml --sweep app.vms=1,8,32 \\
      --sweep policy.name=paper,adaptive --json

The file is that of predict, with [policy] as in serve and [provider] create_s, attach_s, detach_s, delete_s, \
jitter and faults; instead of [app] a trace = \"FILE\" or [jobs] log = \"FILE\". A sweep takes LOW..HIGH with a \
unit and an optional /STEP, or a list, for any key of the file; several make a grid. One run drives the block \
cache request by request, a sweep its fluid model (--model overrides this).

--hindsight adds the least cost + value of time × delay that any controller of this device could have reached, had it \
known what comes, and a plan that comes near it. The delay is what the application waits for its I/O; for a trace, \
how long requests of more than a second ago wait. A value of time is AGBs per second (1650 is what the papers' backing \
volume costs), money per hour where prices are known, 0 for the cheapest run, or inf for the fastest.")]
pub struct Arguments {
    /// The scenario
    file: PathBuf,
    /// Controller of the elastic mode, in place of the file's
    #[arg(long, value_parser = preset())]
    policy: Option<Preset>,
    /// How exactly; by default block, and fluid for sweeps and for more than 4 TiB
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Set a key of the file, for example \"policy.sampling=5 s\"
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Compare with the best that could have been made of the run
    #[arg(long, conflicts_with = "sweep")]
    hindsight: bool,
    /// What a second of delay is worth in AGBs, or an hour in money, such as \"3 USD/h\"; or inf
    #[arg(long, value_name = "VALUE", requires = "hindsight", default_value = "0")]
    value_of_time: ValueOfTime,
    /// Vary a key of the file, for example caching.checkpoint_cache=2..12GiB
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<Sweep>,
    /// Write a sweep's table into a file
    #[arg(long, value_name = "FILE", requires = "sweep")]
    csv: Option<PathBuf>,
    /// Write report.html and report.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// Every request through the production engine
    Block,
    /// Flows
    Fluid,
}

impl From<Model> for Fidelity {
    fn from(model: Model) -> Self {
        match model {
            Model::Block => Self::Block,
            Model::Fluid => Self::Fluid,
        }
    }
}

/// More than this takes minutes request by request.
const BLOCK_BYTES_MAX: u64 = 4 << 40;

impl Arguments {
    /// Simulates and answers.
    ///
    /// # Errors
    /// A file that cannot be read or does not make sense, or an answer that cannot be written.
    pub fn run(self) -> Result<(), Failure> {
        let source = source::read(&self.file)?;
        // The file alone must make sense first: its mistakes have a line.
        let scenario = parse(&source)?;
        if !self.sweep.is_empty() {
            return sweep::run(&self, &source.text);
        }
        if self.set.is_empty() {
            return self.run_once(&scenario);
        }
        let table = toml::from_str(&source.text).map_err(Failure::invalid)?;
        let settings: Vec<_> = self.set.iter().map(Setting::pair).collect();
        self.run_once(&values::scenario(&self.file, &table, &settings)?)
    }

    fn run_once(&self, scenario: &Scenario) -> Result<(), Failure> {
        let setup = setup(scenario, self.policy)?;
        let by_size = if setup.bytes() > BLOCK_BYTES_MAX { Fidelity::Fluid } else { Fidelity::Block };
        let fidelity = self.model.map_or(by_size, Fidelity::from);
        let mut outcome = RunOutcome::default();
        let mut runs = Vec::new();
        for mode in Mode::ALL {
            let found = whatif::run(&setup, mode, fidelity).map_err(Failure::failed)?;
            outcome.modes.insert(mode, answer::mode_outcome(&setup, &found));
            runs.push(found);
        }
        if self.hindsight {
            outcome.hindsight = Some(hindsight::compare(&setup, self.value_of_time, fidelity, &runs)?);
        }
        answer::describe(&mut outcome, scenario, &setup, fidelity, &self.file);
        outcome.relate();
        if let Some(directory) = &self.out {
            run::write(&outcome, directory)?;
        }
        if self.json {
            return output::print_json(&outcome.without_series());
        }
        let report =
            self.out.as_ref().map(|directory| format!("\nreport: {}", directory.join("report.html").display()));
        output::print(&format!("{}{}", run::text(&outcome), report.unwrap_or_default()))
    }
}

/// Read once: a sweep parses thousands of scenarios.
static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);

fn parse(source: &Source) -> Result<Scenario, Failure> {
    Scenario::parse(source, &CATALOG).map_err(Failure::invalid)
}

/// Makes a recorded load what is simulated.
fn replay(setup: &mut Setup, series: &Series, file: &Path) -> Result<(), Failure> {
    setup.replay(series.samples.iter().map(|sample| (sample.read, sample.written)), series.interval);
    if setup.bytes() == 0 {
        return Err(Failure::Invalid(format!("{} moves no byte: there is nothing to simulate", file.display())));
    }
    Ok(())
}

/// What is simulated: the file's application, trace, or jobs.
fn setup(scenario: &Scenario, policy: Option<Preset>) -> Result<Setup, Failure> {
    let mut setup = Setup::of(scenario, policy);
    match (&scenario.trace, &scenario.jobs, &scenario.app) {
        (Some(trace), _, _) => {
            let reader = Reader::open(trace, Options::default()).map_err(Failure::invalid)?;
            replay(&mut setup, &Series::read(reader, STEP).map_err(Failure::invalid)?, trace)?;
        }
        (None, Some(jobs), _) => {
            let rule =
                Checkpoints { every: jobs.interval, per_processor: jobs.memory, processors_max: jobs.processors_max };
            let log = JobLog::read(&jobs.log, false).map_err(Failure::invalid)?;
            if let Some(first) = &log.first_broken {
                let (file, line, reason) = (jobs.log.display(), first.line, &first.reason);
                note(&format!("surgetank: {file}:{line}: {reason}; {} such lines were left out", log.broken));
            }
            replay(&mut setup, &log.series(&rule, STEP).map_err(Failure::invalid)?, &jobs.log)?;
        }
        (None, None, Some(_)) => {}
        (None, None, None) => {
            return Err(Failure::Invalid(
                "the scenario has no [app], no trace and no [jobs]: add one of them".to_owned(),
            ));
        }
    }
    if setup.backing.size == Bytes::ZERO {
        return Err(Failure::Invalid("the backing volume has no size".to_owned()));
    }
    Ok(setup)
}
