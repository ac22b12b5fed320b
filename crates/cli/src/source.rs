//! Files that commands read: scenarios, catalogs, points, traces.

use std::path::Path;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use surgetank_daemon::toml_error;
use surgetank_model::toml_error::Source;
use surgetank_report::Failure;
use surgetank_report::output::note;
use surgetank_report::progress::{self, ProgressBar};
use surgetank_trace::{Format, Options, Series, TraceError};

/// Reads a file that is to be parsed.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read(file: &Path) -> Result<Source, Failure> {
    toml_error::read(file).map_err(|error| match error.place {
        None => Failure::invalid(error),
        Some(_) => Failure::Invalid(format!("{error} (traces go to --trace or trace = …)")),
    })
}

/// Refuses a page that would not be one, or that would be written over what is read.
///
/// # Errors
/// Which, and that another is to be named.
pub fn check_page<'a>(page: Option<&Path>, read: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let Some(page) = page else { return Ok(()) };
    if !page.extension().is_some_and(|extension| extension == "html" || extension == "htm") {
        return Err(Failure::Invalid(format!("{} is to be a page: let its name end in .html", page.display())));
    }
    let there = page.canonicalize().ok();
    match read.into_iter().any(|path| there.is_some() && path.canonicalize().ok() == there) {
        true => Err(Failure::Invalid(format!("{} is read, and would be written over: name another", page.display()))),
        false => Ok(()),
    }
}

/// How a trace is read.
#[derive(Clone, Copy, Debug, Args)]
pub struct TraceOptions {
    /// The trace's format; by default told from its name and beginning
    #[arg(long, value_enum, ignore_case = true)]
    format: Option<FormatName>,
    /// Stop at a broken line instead of counting it
    #[arg(long)]
    strict: bool,
}

impl TraceOptions {
    /// For the readers.
    pub fn options(self) -> Options {
        Options { format: self.format.map(|name| name.0), strict: self.strict }
    }

    /// Whether a broken line is an error.
    pub fn strict(self) -> bool {
        self.strict
    }

    /// Refuses flags that have nothing to be about.
    ///
    /// # Errors
    /// Which flag, and `remedy`.
    pub fn none_given(self, remedy: &str) -> Result<(), Failure> {
        let given = [("--format", self.format.is_some()), ("--strict", self.strict)];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::Invalid(format!("{flag} is about a trace, and there is none: {remedy}"))),
            None => Ok(()),
        }
    }

    /// Reads how much is moved in each interval. `bar` shows how far it is.
    ///
    /// # Errors
    /// What is wrong with the trace.
    pub fn series(self, trace: &Path, interval: Duration, bar: &ProgressBar) -> Result<Series, Failure> {
        let series = Series::open(trace, self.options(), interval, |(done, total)| {
            bar.set_length(total.unwrap_or(done));
            bar.set_position(done);
        });
        bar.finish_and_clear();
        series.map_err(unreadable)
    }
}

/// A bar for reading a trace.
pub fn reading_bar() -> ProgressBar {
    progress::bar("reading {bar:30.colour} {percent:>3} %  {eta} left", 0)
}

/// Tells people what they must know of an input.
pub fn tell(warnings: &[String]) {
    warnings.iter().for_each(|warning| note(&format!("surgetank: {warning}")));
}

/// A format under the name that people give.
#[derive(Clone, Copy, Debug)]
pub struct FormatName(pub Format);

impl ValueEnum for FormatName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: &[FormatName] = &[
            FormatName(Format::Plain),
            FormatName(Format::Msr),
            FormatName(Format::Csv),
            FormatName(Format::Vscsi),
            FormatName(Format::OracleGeneral),
            FormatName(Format::FioIolog),
            FormatName(Format::Blkparse),
            FormatName(Format::Arc),
            FormatName(Format::DarshanDxt),
            FormatName(Format::MqSim),
            FormatName(Format::Iostat),
            FormatName(Format::Sar),
        ];
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (help, aliases): (_, &[&str]) = match self.0 {
            Format::Plain => ("One key a token", &["txt"]),
            Format::Msr => ("MSR Cambridge CSV", &["msr-csv"]),
            Format::Csv => ("CSV with a header: time_s, op, offset_bytes, length_bytes", &["named-csv"]),
            Format::Vscsi => ("vscsiStats records, version 1 or 2", &["cloudphysics"]),
            Format::OracleGeneral => ("libCacheSim's oracleGeneral records", &["oracle-general"]),
            Format::FioIolog => ("fio's iolog, version 2 or 3", &["fio-iolog", "iolog"]),
            Format::Blkparse => ("Text that blkparse prints", &["blktrace"]),
            Format::Arc => ("First block, count, ignored, request number", &["lis"]),
            Format::DarshanDxt => ("Text that darshan-dxt-parser prints", &["darshan", "darshan-dxt"]),
            Format::MqSim => ("Arrival in ns, device, sector, sectors, type", &["mq-sim"]),
            Format::Iostat => ("Reports of iostat -t: rates, no requests", &[]),
            Format::Sar => ("Reports of sar -b or -d: rates, no requests", &[]),
        };
        Some(PossibleValue::new(self.0.name()).help(help).aliases(aliases.iter().copied()))
    }
}

/// Why a trace cannot be read.
#[must_use]
pub fn unreadable(error: TraceError) -> Failure {
    match error {
        TraceError::Invalid(text) => Failure::Invalid(text),
        TraceError::Failed(text) => Failure::Failed(text),
    }
}
