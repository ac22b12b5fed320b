//! `surgetank recommend FILE`.

use std::fmt::Write as _;
use std::path::PathBuf;

use surgetank_model::units::Span;
use surgetank_planner::predict::Predictor;
use surgetank_planner::recommend::{Budget, Candidate, Constraints, Recommendation, recommend};
use surgetank_report::number::{AGBS_EXPLAINED, dollars, duration, gibibytes, prefixed};
use surgetank_report::{Failure, Table, output};

use super::CatalogChoice;
use super::trace::TraceArguments;

/// Flags of `recommend`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank recommend cm1.toml
  surgetank recommend cm1.toml --deadline \"1240 s\"
  surgetank recommend cm1.toml --budget \"90000000 AGBs\" --json
  surgetank recommend cm1.toml --budget \"2.50 USD\"
  surgetank recommend --trace load.csv.xz --deadline \"10 min\" --out page

The candidates are the cache sizes of the file's calibration points; without points, whole GiB by the fluid model. \
The answer is the cheapest that keeps the deadline; under a budget alone the fastest. If nothing is feasible, the \
exit status is 3 and the message names the nearest. With a trace, every volume type of the catalog is compared \
with elastic devices over it, in time and money; without a deadline the answer is the cheapest that is no slower \
than the recording. With volumes = \"auto\" in [caching] the answer is the stripe of caching volumes that costs the \
least money in time. See \"surgetank predict --help\" for the file.")]
pub struct Arguments {
    /// The application and its volumes
    file: Option<PathBuf>,
    /// The longest completion time
    #[arg(long, value_name = "T")]
    deadline: Option<Span>,
    /// The most that all VMs together may cost, in AGBs or USD
    #[arg(long, value_name = "COST", allow_hyphen_values = true)]
    budget: Option<Budget>,
    /// Calibration points beside the file's own, as surgetank calibrate writes them
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    #[command(flatten)]
    trace: TraceArguments,
    #[command(flatten)]
    catalog: CatalogChoice,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let catalog = self.catalog.load()?;
        let scenario = self.file.as_ref().map(|file| super::scenario(file, &catalog)).transpose()?;
        if let Some(trace) = &self.trace.trace {
            let backing = scenario.map(|scenario| scenario.backing.size);
            return self.trace.run(trace, &catalog, (self.deadline, self.budget), backing, self.json);
        }
        let (Some(scenario), Some(file)) = (scenario, &self.file) else {
            return Err(Failure::invalid(
                "there is nothing to recommend for: name a scenario, as in surgetank recommend cm1.toml, or a recorded load, as in \
                 surgetank recommend --trace load.csv",
            ));
        };
        self.trace.reading.none_given("name one with --trace")?;
        let scenario = super::with_points(scenario, self.calibration.as_deref())?;
        let invalid = |message: String| Failure::Invalid(format!("{}: {message}", file.display()));
        let predictor = Predictor::new(&scenario).map_err(|message| invalid(message.to_owned()))?;
        let constraints = Constraints { deadline: self.deadline.map(|span| span.0), budget: self.budget };
        let found = recommend(&predictor, &constraints).map_err(invalid)?;
        if self.json {
            output::print_json(&found)?;
        }
        match &found.infeasible {
            Some(sentence) => Err(Failure::Infeasible(sentence.clone())),
            None if self.json => Ok(()),
            None => output::print(&text(&found)),
        }
    }
}

const HEADER: [&str; 5] = ["cache", "completion", "money", "AGBs", "feasible"];

fn cache(volumes: u32, gib: f64, volume_type: Option<&str>) -> String {
    match (volumes, volume_type) {
        (1, _) => gibibytes(gib),
        (_, Some(name)) => format!("{volumes} × {} {name}", gibibytes(gib / f64::from(volumes))),
        (_, None) => format!("{volumes} × {}", gibibytes(gib / f64::from(volumes))),
    }
}

fn row(one: &Candidate) -> [String; 5] {
    [
        cache(one.volumes, one.checkpoint_cache_gib, one.volume_type.as_deref()),
        duration(one.completion_s),
        dollars(one.cost_total_usd, 4),
        prefixed(one.cost_total_agbs),
        if one.feasible { "yes" } else { "no" }.to_owned(),
    ]
}

/// Rows of the table: with `volumes = "auto"` there are hundreds of stripes, the best first.
const ROWS_MAX: usize = 64;

fn text(found: &Recommendation) -> String {
    let shown = found.considered.iter().take(ROWS_MAX).map(row);
    let table = Table::new(HEADER).with(shown);
    let mut text = format!("{table}\n");
    if let Some(left) = found.considered.len().checked_sub(ROWS_MAX).filter(|left| *left > 0) {
        let _ = writeln!(text, "{left} more in --json");
    }
    if let (Some(gib), Some(volumes), Some(time), Some(cost)) =
        (found.checkpoint_cache_gib, found.volumes, found.completion_s, found.cost_total_agbs)
    {
        let _ = write!(
            text,
            "\nTake a cache of {} for checkpoints: {}, {} and {} AGBs for all VMs ({} model).\n{AGBS_EXPLAINED}.",
            cache(volumes, gib, found.volume_type.as_deref()),
            duration(time),
            found.cost_total_usd.map_or_else(|| "money unknown".to_owned(), |usd| dollars(Some(usd), 4)),
            prefixed(cost),
            found.model
        );
    }
    for note in &found.notes {
        let _ = write!(text, "\n- {note}");
    }
    text
}
