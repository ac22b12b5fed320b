//! `surgetank simulate FILE`: a scenario in virtual time, under the production controller.

mod answer;
mod array;
mod hindsight;
mod sweep;
mod values;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, ValueEnum};
use surgetank_model::toml_error::Source;
use surgetank_model::{Bytes, Catalog};
use surgetank_planner::scenario::{ArrayScenario, Jobs, Scenario};
use surgetank_policy::{Preset, ValueOfTime};
use surgetank_report::progress::ProgressBar;
use surgetank_report::run::{self, RunOutcome};
use surgetank_report::{Failure, output, progress};
use surgetank_trace::{Checkpoints, JobLog, Lacking, Series};
use surgetank_whatif::{self as whatif, Fidelity, Mode, Setup};

use crate::policy::preset;
use crate::source::{self, TraceOptions};
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
  surgetank simulate rotation-100gib.toml --set array.rotate=staggered

The file is that of predict, with [policy] as in serve and [provider] create_s, attach_s, detach_s, delete_s, grow_s, \
jitter and faults; instead of [app] a trace = \"FILE\" (at the top) or [jobs] log = \"FILE\". \
Without a policy adaptive runs. A sweep takes LOW..HIGH with a \
unit and an optional /STEP, or a list, for any key of the file; several make a grid. One run drives the block \
cache request by request, a sweep its fluid model (--model overrides this).

--hindsight adds the least cost + value of time × delay that any controller of this device could have reached, had it \
known what comes, and a plan that comes near it. The delay is what the application waits for its I/O; for a trace, \
how long requests of more than a second ago wait. A value of time is AGBs per second (1650 is what the papers' backing \
volume costs), money per hour where prices are known, 0 for the cheapest run, or inf for the fastest. \
The controller is told the same, unless [policy] has a value_of_time of its own, by which serve is told it.

A file with [array] or [read_cache], and [workload], is about burstable volumes in a stripe: one volume, the array, and the array \
whose members are replaced before their credits end.")]
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
    /// What a second of delay is worth in AGBs, or an hour in money, such as \"3 USD/h\"; or inf; by default 0
    #[arg(long, value_name = "VALUE", requires = "hindsight", value_parser = value_of_time)]
    value_of_time: Option<ValueOfTime>,
    /// Vary a key of the file, for example caching.checkpoint_cache=2..12GiB
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<Sweep>,
    /// Write a sweep's table into a file
    #[arg(long, value_name = "FILE", requires = "sweep")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    reading: TraceOptions,
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

/// How often a bar is drawn although nothing has moved.
const TICK: Duration = Duration::from_secs(1);
/// More than this takes minutes request by request.
const BLOCK_BYTES_MAX: u64 = 4 << 40;

impl Arguments {
    /// Simulates and answers.
    ///
    /// # Errors
    /// A file that cannot be read or does not make sense, or an answer that cannot be written.
    pub fn run(self) -> Result<(), Failure> {
        self.out.as_deref().map_or(Ok(()), output::check_directory)?;
        let source = source::read(&self.file)?;
        if ArrayScenario::is_meant(&source) {
            return self.run_array(&source);
        }
        // The file alone must make sense first: its mistakes have a line.
        let scenario = parse(&source)?;
        let named = |warning: String| format!("{}: {warning}", self.file.display());
        source::tell(&scenario.warnings().into_iter().map(named).collect::<Vec<_>>());
        if !self.sweep.is_empty() {
            return sweep::run(&self, &source);
        }
        if self.set.is_empty() {
            return self.run_once(&scenario);
        }
        let table = source.parse().map_err(Failure::invalid)?;
        let settings: Vec<_> = self.set.iter().map(Setting::pair).collect();
        self.run_once(&values::scenario(&self.file, &table, &settings)?)
    }

    /// Of an array of burstable volumes.
    fn run_array(&self, source: &Source) -> Result<(), Failure> {
        let elastic = [
            ("--policy", self.policy.is_some()),
            ("--model", self.model.is_some()),
            ("--hindsight", self.hindsight),
            ("--sweep", !self.sweep.is_empty()),
        ];
        if let Some((flag, _)) = elastic.iter().find(|(_, given)| *given) {
            let message = format!(
                "{flag} is about an elastic device, and {} is about an array: leave it out",
                self.file.display()
            );
            return Err(Failure::Invalid(message));
        }
        self.reading.none_given("they are for traces, and the file is about an array")?;
        let parse = |source: &Source| ArrayScenario::parse(source, &CATALOG).map_err(Failure::invalid);
        let mut scenario = parse(source)?;
        if !self.set.is_empty() {
            let table = source.parse().map_err(Failure::invalid)?;
            let settings: Vec<_> = self.set.iter().map(Setting::pair).collect();
            scenario = values::with(&self.file, &table, &settings, parse)?;
        }
        source::tell(&array::warnings(&scenario, &self.file));
        let answer = array::answer(&scenario, &CATALOG)?;
        array::show(&answer, &scenario, &self.file, self.out.as_deref(), self.json)
    }

    fn run_once(&self, scenario: &Scenario) -> Result<(), Failure> {
        let (mut setup, load) = setup(scenario, self.policy, self.reading, &source::reading_bar())?;
        if let (Some(value), None) = (self.value_of_time, scenario.controller().value_of_time) {
            // Without prices the optimum is refused below; with an infinite value the controller keeps its own.
            setup.value_delay(value);
        }
        source::tell(&load);
        let by_size = if setup.bytes() > BLOCK_BYTES_MAX { Fidelity::Fluid } else { Fidelity::Block };
        let fidelity = self.model.map_or(by_size, Fidelity::from);
        let mut outcome = RunOutcome::default();
        let mut runs = Vec::new();
        for mode in Mode::ALL {
            let found = run_shown(&setup, mode, fidelity)?;
            outcome.modes.insert(mode, answer::mode_outcome(&setup, &found));
            runs.push(found);
        }
        if self.hindsight {
            let bar = progress::bar("hindsight   {elapsed}", 0);
            bar.enable_steady_tick(TICK);
            let value = self.value_of_time.unwrap_or(ValueOfTime::Agbs(0.0));
            let found = hindsight::compare(&setup, value, fidelity, &runs);
            bar.finish_and_clear();
            outcome.hindsight = Some(found?);
        }
        answer::describe(&mut outcome, scenario, &setup, fidelity, &self.file);
        if !load.is_empty() {
            outcome.parameters.push(("load".to_owned(), load.join("; ")));
        }
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

fn value_of_time(text: &str) -> Result<ValueOfTime, String> {
    text.parse().map_err(|remedy| format!("{remedy}, 0 for the cheapest run, or inf for the fastest"))
}

/// Read once: a sweep parses thousands of scenarios.
static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);

fn parse(source: &Source) -> Result<Scenario, Failure> {
    Scenario::parse(source, &CATALOG).map_err(Failure::invalid)
}

/// Simulates one mode, with a bar on a terminal.
fn run_shown(setup: &Setup, mode: Mode, fidelity: Fidelity) -> Result<whatif::RunReport, Failure> {
    let template = format!("{:<11} {{bar:30.colour}} {{percent:>3}} %  {{elapsed}}, {{eta}} left", mode.name());
    let bar = progress::bar(&template, setup.application.phases.len() as u64);
    // A phase of terabytes takes a while.
    bar.enable_steady_tick(TICK);
    let found = whatif::run_shown(setup, mode, fidelity, |phases| bar.set_position(phases as u64));
    bar.finish_and_clear();
    found.map_err(Failure::invalid)
}

/// Makes a recorded load what is simulated. What is to be known of it.
fn replay(setup: &mut Setup, series: Series, file: &Path) -> Result<Vec<String>, Failure> {
    setup.replay(series.samples.iter().map(|sample| (sample.read, sample.written)), series.interval);
    if setup.bytes() == 0 {
        return Err(Failure::Invalid(format!("{} moves no byte: there is nothing to simulate", file.display())));
    }
    Ok(series.warnings)
}

/// What is simulated: the file's application, trace, or jobs; and what is to be known of a recorded load.
fn setup(
    scenario: &Scenario,
    policy: Option<Preset>,
    reading: TraceOptions,
    bar: &ProgressBar,
) -> Result<(Setup, Vec<String>), Failure> {
    let mut setup = Setup::of(scenario, policy);
    let mut facts = Vec::new();
    match (&scenario.trace, &scenario.jobs, &scenario.app) {
        (Some(trace), _, _) => facts = replay(&mut setup, reading.series(trace, STEP, bar)?, trace)?,
        (None, Some(jobs), _) => {
            if reading.options().format.is_some() {
                return Err(Failure::invalid(
                    "--format is about a trace, and the log of [jobs] has its own: leave it out",
                ));
            }
            let (series, mut warnings) = jobs_series(jobs, reading.strict())?;
            facts = replay(&mut setup, series, &jobs.log)?;
            facts.append(&mut warnings);
        }
        (None, None, Some(_)) => reading.none_given("write trace = \"FILE\" in place of [app]")?,
        (None, None, None) => {
            return Err(Failure::Invalid(
                "the scenario has no [app], no trace and no [jobs]: add one of them".to_owned(),
            ));
        }
    }
    if setup.backing.size == Bytes::ZERO {
        return Err(Failure::Invalid("the backing volume has no size".to_owned()));
    }
    if scenario.controller().value_of_time.is_some_and(ValueOfTime::is_money) && setup.prices().is_none() {
        return Err(Failure::invalid(
            "policy.value_of_time is money, and the price of a volume is unknown: write usd_per_gib_month in [backing] and in [caching]",
        ));
    }
    Ok((setup, facts))
}

/// What the jobs of a log write, and what is to be known of it.
fn jobs_series(jobs: &Jobs, strict: bool) -> Result<(Series, Vec<String>), Failure> {
    let rule = Checkpoints { every: jobs.interval, per_processor: jobs.memory, processors_max: jobs.processors_max };
    let log = JobLog::read(&jobs.log, strict).map_err(source::unreadable)?;
    let series = log
        .series(&rule, STEP)
        .map_err(|error| Failure::Invalid(format!("{}: {}", jobs.log.display(), source::unreadable(error))))?;
    let mut warnings = log.warnings(&jobs.log);
    let Lacking { jobs: lacking, of } = log.lacking(&rule);
    if lacking > 0 {
        warnings.push(format!(
            "{}: {lacking} of {of} jobs have no memory in the log and write nothing: write memory, bytes of a checkpoint for each \
             processor, in [jobs] to count all jobs alike",
            jobs.log.display()
        ));
    }
    Ok((series, warnings))
}
