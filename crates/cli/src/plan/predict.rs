//! `surgetank predict FILE`.

use std::fmt::Write as _;
use std::path::PathBuf;

use surgetank_model::Bytes;
use surgetank_planner::predict::{ModePrediction, Prediction, Predictor};
use surgetank_report::number::{AGBS_EXPLAINED, difference, dollars, duration, gibibytes, prefixed};
use surgetank_report::{Failure, Table, output};

use super::CatalogChoice;

/// Flags of `predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank predict cm1.toml
  surgetank predict cm1.toml --json | jq .elastic.completion_s

The file, with the papers' CM1:
  [app]
  vms = 32
  compute = \"1100 s\"             # without any checkpoint
  checkpoints = 3
  checkpoint_size = \"4 GiB\"      # of one VM
  initial_dump = \"5 GiB\"         # of one VM; optional
  [backing]
  size = \"50 GiB\"
  bandwidth = \"33 MiB/s\"
  [caching]
  bandwidth = \"128 MiB/s\"
  checkpoint_cache = \"6 GiB\"
  initial_cache = \"10 GiB\"
  [[calibration]]                # any number, also none
  dataset = \"4 GiB\"
  cache = \"6 GiB\"
  throughput = \"92 MiB/s\"
  attached = \"180 s\"

[backing] and [caching] may have volume_type = \"aws/gp3\" or usd_per_gib_month = 0.08 for money besides AGBs. \
With volumes = 8 in [caching] a boost is striped over so many volumes, each with the bandwidth that is given or comes \
with its type; with volumes = \"auto\" the planner takes the type and number that cost the least money. \
With name = \"paper\" in [policy] the fluid model sends bursts to the caching volume alone; under adaptive, which is \
assumed where none is named, it splits them.")]
pub struct Arguments {
    /// The application and its volumes
    file: PathBuf,
    /// Calibration points beside the file's own, as surgetank calibrate writes them
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    #[command(flatten)]
    catalog: CatalogChoice,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let scenario = super::scenario(&self.file, &self.catalog.load()?)?;
        let scenario = super::with_points(scenario, self.calibration.as_deref())?;
        let invalid = |message: &str| Failure::Invalid(format!("{}: {message}", self.file.display()));
        let predictor = Predictor::new(&scenario).map_err(invalid)?;
        let chosen = scenario.caching.striping.auto.as_ref().map(|auto| auto.cache);
        let cache = match scenario.caching.checkpoint_cache.or(chosen) {
            Some(cache) => cache,
            None if predictor.app().checkpoints == 0 => Bytes::ZERO,
            None => {
                return Err(invalid(
                    "the setting \"checkpoint_cache\" is missing in [caching]: add it, or ask surgetank recommend for one",
                ));
            }
        };
        let prediction = predictor.predict(cache);
        if self.json { output::print_json(&prediction) } else { output::print(&text(&prediction)) }
    }
}

const HEADER: [&str; 7] = ["mode", "completion", "vs fast", "billed", "AGBs", "vs fast", "money"];

fn row(name: &str, mode: &ModePrediction, fast: &ModePrediction) -> [String; 7] {
    let range = |low: Option<f64>, high: Option<f64>| match (low, high) {
        (Some(low), Some(high)) => format!(" ({} to {})", duration(low), duration(high)),
        _ => String::new(),
    };
    [
        name.to_owned(),
        format!("{}{}", duration(mode.completion_s), range(mode.completion_low_s, mode.completion_high_s)),
        difference(mode.completion_s / fast.completion_s, 1),
        duration(mode.billed_s),
        prefixed(mode.cost_total_agbs),
        difference(mode.cost_total_agbs / fast.cost_total_agbs, 1),
        dollars(mode.cost_total_usd, 4),
    ]
}

fn text(found: &Prediction) -> String {
    let modes = [("static-slow", &found.static_slow), ("static-fast", &found.static_fast), ("elastic", &found.elastic)];
    let table = Table::new(HEADER).with(modes.map(|(name, mode)| row(name, mode, &found.static_fast)));
    let mut text = format!("{table}\n");
    for (what, burst) in [("initial dump", &found.initial), ("checkpoint", &found.checkpoint)] {
        let Some(burst) = burst else { continue };
        let source = if burst.calibrated { "calibrated" } else { "fluid model" };
        let _ = write!(
            text,
            "\n{what}: {} with a cache of {} at {:.1} MiB/s, attached {} ({source})",
            gibibytes(burst.dataset_gib),
            gibibytes(burst.cache_gib),
            burst.throughput_mib_s,
            duration(burst.attached_s)
        );
    }
    let _ = write!(text, "\n{AGBS_EXPLAINED}, of all VMs together; completion starts after the initial dump.");
    for note in &found.notes {
        let _ = write!(text, "\n- {note}");
    }
    text
}
