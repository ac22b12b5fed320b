//! `surgetank allocate FILE`: shares of two levels of cache, so that every application's SLO holds.

mod curves;
mod page;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use surgetank_model::Bytes;
use surgetank_planner::allocation::{Allocation, AllocationFile, Placement, PreviousPlan, Scheme};
use surgetank_report::{Failure, output};

use crate::source::{self, TraceOptions};
use curves::{Reading, TraceOf};

/// Flags of `allocate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank allocate caches.toml
  surgetank allocate caches.toml --page shares.html
  surgetank allocate caches.toml --trace A=hm_0.csv --sample 0.01
  surgetank allocate caches.toml --json --previous now.json > next.json

A file:
  slo = 0.05        # at most 5 % above the fair share's latency; or \"2 ms\"
  latency = { level1 = \"0.1 ms\", level2 = \"1 ms\", disk = \"10 ms\" }
  hierarchy = \"exclusive\"
  [[server.level1]]
  name = \"io1\"
  cache = \"100 MiB\"
  [[server.level2]]
  name = \"st1\"
  cache = \"200 MiB\"
  [[app]]
  name = \"A\"
  level1 = \"io1\"
  level2 = [\"st1\"]
  mrc = [[\"0 MiB\", 1.0], [\"100 MiB\", 0.4], [\"200 MiB\", 0.2]]

The fair share is an equal split of each server among those who use it. Among all shares at which every SLO holds the answer \
has the largest fair speedup, the harmonic mean of what latencies gain over the fair share. If there are none, the exit status \
is 3, and the sentence names the application and what would be feasible. With demands_only = true and a demand of each \
application it only places these on the servers of level 2.")]
pub struct Arguments {
    /// Servers with caches, and applications with curves and SLOs
    file: PathBuf,
    /// How the shares are chosen; the others are shown beside it
    #[arg(long, value_parser = scheme(), default_value = Scheme::Optimal.name(), value_name = "SCHEME")]
    scheme: Scheme,
    /// The plan that holds now, as --json answered it: it stays if it is as good, and change_max bounds what changes
    #[arg(long, value_name = "PLAN.json")]
    previous: Option<PathBuf>,
    /// Take an application's miss-ratio curve from a trace, in any format of surgetank mrc
    #[arg(long, value_name = "APP=TRACE")]
    trace: Vec<TraceOf>,
    /// Sample this share of each trace's blocks, for example 0.01
    #[arg(long, value_name = "RATE", requires = "trace")]
    sample: Option<f64>,
    /// What of a cache one block of a trace takes; requests are split into blocks [default: 4 KiB]
    #[arg(long, value_name = "SIZE", requires = "trace")]
    block_size: Option<Bytes>,
    #[command(flatten)]
    reading: TraceOptions,
    /// Write a page with curves, hulls, shares and SLO margins, .html
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

/// The names of all schemes.
fn scheme() -> impl TypedValueParser<Value = Scheme> {
    let names = Scheme::ALL.iter().map(|scheme| PossibleValue::new(scheme.name()).help(scheme.about()));
    let named = |name: String| Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
    PossibleValuesParser::new(names).map(move |name| named(name).unwrap_or(Scheme::Optimal))
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        self.check()?;
        let file = AllocationFile::parse(source::read(&self.file)?).map_err(Failure::invalid)?;
        if file.demands_only() {
            return self.place(&file);
        }
        let reading = Reading { options: self.reading, sample: self.sample, block: self.block_size };
        let measured = reading.curves(&file, &self.trace)?;
        let problem = file.problem(&measured).map_err(Failure::invalid)?;
        let previous = self.previous.as_deref().map(previous).transpose()?;
        let answer = Allocation::of(&problem, self.scheme, previous.as_ref()).map_err(Failure::Failed)?;
        if let Some(path) = &self.page {
            output::write_whole(path, &page::html(&self.file, &problem, &answer)?)?;
        }
        if self.json {
            output::print_json(&answer)?;
        }
        match &answer.infeasible {
            Some(infeasible) => Err(self.infeasible(&infeasible.reason)),
            None if self.json => Ok(()),
            None => output::print(&text::allocation(&answer)),
        }
    }

    fn infeasible(&self, reason: &str) -> Failure {
        Failure::Infeasible(format!("{}: {reason}", self.file.display()))
    }

    /// What can be told before anything is read.
    fn check(&self) -> Result<(), Failure> {
        if self.trace.is_empty() {
            self.reading.none_given("name one with --trace APP=TRACE")?;
        }
        let read = [&self.file].into_iter().chain(&self.previous).map(PathBuf::as_path);
        source::check_page(self.page.as_deref(), read.chain(self.trace.iter().map(|trace| trace.path().as_path())))
    }

    /// The second step alone.
    fn place(&self, file: &AllocationFile) -> Result<(), Failure> {
        let flags = [
            ("--scheme", self.scheme != Scheme::Optimal),
            ("--previous", self.previous.is_some()),
            ("--trace", !self.trace.is_empty()),
            ("--page", self.page.is_some()),
        ];
        if let Some((flag, _)) = flags.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::Invalid(format!(
                "{}: {flag} is about shares, and demands_only = true asks for none: leave one of the two out",
                self.file.display()
            )));
        }
        let placement = Placement::of(file).map_err(Failure::invalid)?;
        if self.json {
            output::print_json(&placement)?;
        }
        match &placement.reason {
            Some(reason) => Err(self.infeasible(reason)),
            None if self.json => Ok(()),
            None => output::print(&text::placement(&placement)),
        }
    }
}

/// Reads the plan that holds now.
fn previous(path: &Path) -> Result<surgetank_allocation::Plan, Failure> {
    let invalid = |why: String| {
        Failure::Invalid(format!(
            "{} is no plan: {why}; name a file that surgetank allocate --json wrote",
            path.display()
        ))
    };
    let text = source::read(path)?.text;
    let plan: PreviousPlan = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    plan.plan().map_err(invalid)
}

/// Curves by the application's name.
type Curves = BTreeMap<String, surgetank_planner::allocation::Measured>;
