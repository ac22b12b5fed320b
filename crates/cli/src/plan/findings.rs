//! What was found out about a recorded load, and its parts that the terminal and the page share.

use std::path::PathBuf;

use serde::Serialize;
use surgetank_planner::whatif::{Answer, Application, Choice, FoundBurst, Load};
use surgetank_report::Table;
use surgetank_report::number::{count, duration, gibibytes, small_dollars};

/// Everything found out, as JSON has it.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The trace.
    pub trace: PathBuf,
    /// Lines that could not be read.
    pub broken: u64,
    /// What people must know of the trace: the first such line.
    pub warnings: Vec<String>,
    /// The load as an application.
    pub application: Application,
    /// Its bursts.
    pub bursts: Vec<FoundBurst>,
    #[serde(flatten)]
    pub answer: Answer,
    /// For the page.
    #[serde(skip)]
    pub load: Load,
}

/// A table of options.
pub fn options<'a>(choices: impl Iterator<Item = &'a Choice>) -> Table {
    let row = |choice: &Choice| {
        [
            choice.name(),
            duration(choice.completion_s),
            small_dollars(choice.cost_usd),
            match &choice.caching {
                None => format!("{:.0}", choice.throughput_mib_s),
                Some(caching) => format!("{:.0} + {:.0}", choice.throughput_mib_s, caching.throughput_mib_s),
            },
            if choice.sustained { "yes" } else { "on credits" }.to_owned(),
        ]
    };
    Table::new(["option", "completion", "cost", "MiB/s", "sustained"]).with(choices.map(row))
}

/// What to take, in a sentence.
#[must_use]
pub fn advice(choice: &Choice) -> String {
    format!("Take {}: {} for {}.", choice.name(), duration(choice.completion_s), small_dollars(choice.cost_usd))
}

/// What the load is, in a sentence.
#[must_use]
pub fn sentence(app: &Application) -> String {
    let period = app.period_s.map_or(String::new(), |period| format!(", one every {}", duration(period)));
    let bursts = match app.bursts {
        0 => "no burst".to_owned(),
        1 => format!("1 burst of {}", gibibytes(app.burst_gib)),
        more => format!(
            "{} of {} (the largest {}){period}",
            count(more, "burst"),
            gibibytes(app.burst_gib),
            gibibytes(app.largest_burst_gib)
        ),
    };
    format!(
        "{bursts} in {}, {} of them quiet; mean {:.1}, peak {:.0} MiB/s; the volume holds {}",
        duration(app.recorded_s),
        duration(app.compute_s),
        app.mean_mib_s,
        app.peak_mib_s,
        gibibytes(app.capacity_gib)
    )
}
