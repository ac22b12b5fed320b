//! `surgetank recommend --trace FILE`: what would have been cheaper for a recorded load.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Catalog};
use surgetank_planner::recommend::Budget;
use surgetank_planner::whatif::{Constraint, Detection, Load, Moment, compare, fit};
use surgetank_report::number::{gibibytes, thousands};
use surgetank_report::{Failure, output};
use surgetank_trace::Series;

use super::findings::{Findings, advice, options, sentence};
use super::page;
use crate::source::{TraceOptions, reading_bar, tell};

/// Options that a terminal shows; JSON and the page have all.
const SHOWN: usize = 12;

/// Flags of a what-if.
#[derive(Debug, clap::Args)]
pub struct TraceArguments {
    /// A block trace: finds its bursts and compares every way to rent storage for it
    #[arg(long, value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub reading: TraceOptions,
    /// How finely the trace's load is looked at
    #[arg(long, value_name = "T", default_value = "1 s", requires = "trace")]
    interval: Span,
    /// Above this an interval belongs to a burst [default: twice the average, at least a tenth of the peak]
    #[arg(long, value_name = "R", requires = "trace")]
    threshold: Option<Bandwidth>,
    /// How long it is quiet between bursts [default: a fortieth of the trace, at most 30 s]
    #[arg(long, value_name = "T", requires = "trace")]
    quiet: Option<Span>,
    /// What the volume must hold [default: the file's backing volume, else what the trace touches]
    #[arg(long, value_name = "S", requires = "trace")]
    capacity: Option<Bytes>,
    /// One provider alone
    #[arg(long, value_name = "P", requires = "trace")]
    provider: Option<String>,
    /// Where recommend.html goes
    #[arg(long, value_name = "DIR", requires = "trace")]
    out: Option<PathBuf>,
}

impl TraceArguments {
    /// Answers for the trace. `backing` is the size of a scenario's backing volume.
    ///
    /// # Errors
    /// What is wrong with the trace; or that nothing is feasible.
    pub fn run(
        &self,
        trace: &Path,
        catalog: &Catalog,
        constraint: (Option<Span>, Option<Budget>),
        backing: Option<Bytes>,
        json: bool,
    ) -> Result<(), Failure> {
        let constraint = Constraint {
            deadline_s: constraint.0.map(|span| span.0.as_secs_f64()),
            budget_usd: match constraint.1 {
                None => None,
                Some(Budget::Usd(usd)) => Some(usd),
                Some(Budget::Agbs(_)) => {
                    return Err(Failure::invalid("with a trace a budget is in USD: write it as \"12.50 USD\""));
                }
            },
        };
        super::price::check_provider(catalog, self.provider.as_deref())?;
        self.out.as_deref().map_or(Ok(()), output::check_directory)?;
        let found = self.find(trace, catalog, &constraint, backing)?;
        // The page is drawn before anything is written, and written whole.
        let page = self.out.as_ref().map(|directory| Ok::<_, Failure>((directory, page::html(&found)?))).transpose()?;
        let written =
            page.map(|(directory, page)| output::write_into(directory, ("recommend.html", &page), &[])).transpose()?;
        if json {
            output::print_json(&found)?;
        }
        match &found.answer.infeasible {
            Some(sentence) => Err(Failure::Infeasible(sentence.clone())),
            None if json => Ok(()),
            None => output::print(&text(&found, written.as_deref())),
        }
    }

    fn find(
        &self,
        trace: &Path,
        catalog: &Catalog,
        constraint: &Constraint,
        backing: Option<Bytes>,
    ) -> Result<Findings, Failure> {
        let mut series = self.reading.series(trace, self.interval.0, &reading_bar())?;
        if let (Some(given), Some(touched)) = (self.capacity.or(backing), series.touched)
            && given < touched
        {
            let (trace, touched) = (trace.display(), gibibytes(touched.as_gib()));
            series
                .warnings
                .push(format!("{trace}: it touches {touched}, and the volume is to hold {given}: check its capacity"));
        }
        tell(&series.warnings);
        let moment = |sample: &surgetank_trace::Sample| Moment {
            written: sample.written.get(),
            read: sample.read.get(),
            requests: sample.requests,
        };
        let touched = series.touched.map(|touched| touched.round_up(Bytes::from_gib(1)).max(Bytes::from_gib(1)));
        let Some(capacity) = self.capacity.or(backing).or(touched) else {
            return Err(Failure::Invalid(format!(
                "{} says how much was moved and not where: write what the volume must hold, such as --capacity \"500 GiB\"",
                trace.display()
            )));
        };
        let load = Load { interval: series.interval, moments: series.samples.iter().map(moment).collect(), capacity };
        if load.capacity == Bytes::ZERO {
            return Err(Failure::invalid("--capacity is zero: write what must fit, such as \"500 GiB\""));
        }
        let detection = Detection {
            threshold_mib_s: self.threshold.map(Bandwidth::as_mib_s),
            quiet: self.quiet.map(|span: Span| -> Duration { span.0 }),
        };
        let named = |message: String| Failure::Invalid(format!("{}: {message}", trace.display()));
        let (application, bursts) = fit(&load, &detection).map_err(named)?;
        let answer = compare(catalog, &application, &bursts, self.provider.as_deref(), constraint);
        let Series { broken, warnings, .. } = series;
        Ok(Findings { trace: trace.to_owned(), broken, warnings, application, bursts, answer, load })
    }
}

fn text(found: &Findings, page: Option<&Path>) -> String {
    let table = options(found.answer.pareto.iter().take(SHOWN));
    let more = found.answer.pareto.len().saturating_sub(SHOWN);
    let mut text =
        format!("{}\n\nNothing is both faster and cheaper than these:\n{table}\n", sentence(&found.application));
    if more > 0 {
        let _ = writeln!(text, "and {more} more (--json has them all)");
    }
    if let Some(choice) = &found.answer.choice {
        let _ = write!(text, "\n{}", advice(choice));
    }
    let _ = write!(
        text,
        "\n{} options considered; list prices, billed as the provider bills, transactions included; elastic ones split bursts, as the fluid model has it.",
        found.answer.considered.len()
    );
    if found.broken > 0 {
        let lines = thousands(found.broken as f64);
        let _ = write!(text, "\n{lines} broken lines were left out, the first as told above (--strict stops there)");
    }
    if let Some(page) = page {
        let _ = write!(text, "\npage: {}", page.display());
    }
    text
}
