//! A trace file from opening to the last request.

use std::io::{self, Read};
use std::path::Path;

use crate::error::TraceError;
use crate::format::{Format, unpacked_name};
use crate::keys::Gathered;
use crate::look::JOB_LOG;
use crate::parse::{Broken, Parser, Tally};
use crate::request::Request;
use crate::source::{Progress, Source};

/// As much of a trace as formats are recognised by.
const HEAD: usize = 64 << 10;
/// How many windows are read at once: what callers do in between, as to show how far it is, then does not count.
const WINDOWS: usize = 8;

/// How a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// By its name and what it begins with, if not given.
    pub format: Option<Format>,
    /// A broken line is an error, not counted.
    pub strict: bool,
}

/// Reads one trace, once.
pub struct Reader {
    name: String,
    source: Source,
    progress: Progress,
    parser: Parser,
    ended: bool,
}

/// A file that was opened and whose format is known.
pub(crate) struct Opened {
    pub name: String,
    pub source: Source,
    pub progress: Progress,
    pub format: Format,
}

impl Opened {
    pub(crate) fn open(path: &Path, options: Options) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let (source, progress) = if path == Path::new("-") {
            (Source::stream(&name, io::stdin())?, Progress::default())
        } else {
            Source::open(path)?
        };
        Self::of(name, source, progress, options, Some(path))
    }

    fn of(
        name: String,
        mut source: Source,
        progress: Progress,
        options: Options,
        path: Option<&Path>,
    ) -> Result<Self, TraceError> {
        let (window, _) = source.window().map_err(|error| unreadable(&name, &error))?;
        let head = &window[..window.len().min(HEAD)];
        if head.is_empty() {
            return Err(TraceError::Invalid(format!("{name} is empty: name a trace with at least one request")));
        }
        let by_name = path.and_then(Format::of_name);
        let format = match (options.format, by_name) {
            (Some(format), _) => format,
            // Whatever the name says, what is known to be something else is not counted as keys.
            (None, Some(Format::Plain)) if Format::of_head(head).is_ok() => Format::Plain,
            (None, None | Some(Format::Plain)) => look(&name, path, head)?,
            (None, Some(format)) => format,
        };
        Ok(Self { name, source, progress, format })
    }
}

/// The format by what the file begins with.
fn look(name: &str, path: Option<&Path>, head: &[u8]) -> Result<Format, TraceError> {
    let formats = || Format::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let says = |suffix: &str| path.and_then(unpacked_name).is_some_and(|name| name.ends_with(suffix));
    let told = match Format::of_head(head) {
        Ok(Format::Plain) if says(".swf") => Err(Some(JOB_LOG)),
        told => told,
    };
    match told {
        Ok(Format::Plain) if says(".csv") => Err(TraceError::Invalid(format!(
            "{name} has no columns that commas separate, as its name says: name its format with --format, one of {}",
            formats()
        ))),
        Ok(format) => Ok(format),
        Err(Some(foreign)) => Err(TraceError::Invalid(format!("{name} is no trace that can be read: {foreign}"))),
        Err(None) => Err(TraceError::Invalid(format!(
            "cannot tell the format of {name}: name it with --format, one of {}",
            formats()
        ))),
    }
}

impl Reader {
    /// Opens the file at `path`, which must not shrink while it is read; `-` is standard input.
    ///
    /// # Errors
    /// If it cannot be read, or its format is not known or not that.
    pub fn open(path: &Path, options: Options) -> Result<Self, TraceError> {
        Self::new(Opened::open(path, options)?, options.strict)
    }

    /// Reads from anything; `name` is for messages.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_stream(name: &str, from: impl Read + 'static, options: Options) -> Result<Self, TraceError> {
        let source = Source::stream(name, from)?;
        Self::new(Opened::of(name.to_owned(), source, Progress::default(), options, None)?, options.strict)
    }

    pub(crate) fn new(opened: Opened, strict: bool) -> Result<Self, TraceError> {
        let Opened { name, mut source, progress, format } = opened;
        if !format.has_requests() {
            return Err(TraceError::Invalid(format!(
                "{name} is a report of {}, with what was moved in each interval and without requests: name a block trace, \
                 as blkparse prints it",
                format.name()
            )));
        }
        let (window, _) = source.window().map_err(|error| unreadable(&name, &error))?;
        let parser = Parser::new(format, &window[..window.len().min(HEAD)], strict).map_err(|reason| {
            TraceError::Invalid(format!(
                "{name} is no {} trace: {reason}; name its format with --format",
                format.name()
            ))
        })?;
        Ok(Self { name, source, progress, parser, ended: false })
    }

    /// Whether its requests carry a time.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.parser.has_times()
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format that it is read as.
    #[must_use]
    pub fn format(&self) -> Format {
        self.parser.format()
    }

    /// What was seen so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        self.parser.tally()
    }

    /// Bytes of the file that were read, and all of them if that is known.
    #[must_use]
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.progress.done.get(), self.progress.total)
    }

    /// Gives about a megabyte's worth of requests to `sink`, in order; and whether there may be more.
    ///
    /// # Errors
    /// Of reading; if strict, the first broken line.
    #[inline]
    pub fn read(&mut self, mut sink: impl FnMut(Request)) -> Result<bool, TraceError> {
        self.parse(|parser, window, last| parser.parse(window, last, &mut sink))
    }

    /// As [`Self::read`], but gives the keys of requests to `feed`, many at a time.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_keys(&mut self, gathered: &mut Gathered, mut feed: impl FnMut(&[u64])) -> Result<bool, TraceError> {
        let keys = gathered.keys;
        let more = if keys.are_whole_requests() {
            self.parse(|parser, window, last| parser.parse_keys(window, last, gathered, &mut feed))?
        } else {
            self.read(|request| keys.of(&request, |key| gathered.push(key, &mut feed)))?
        };
        gathered.flush(&mut feed);
        Ok(more)
    }

    #[inline]
    fn parse(
        &mut self,
        mut parse: impl FnMut(&mut Parser, &[u8], bool) -> Result<usize, Broken>,
    ) -> Result<bool, TraceError> {
        for _ in 0..WINDOWS {
            if self.ended {
                break;
            }
            let (window, last) = self.source.window().map_err(|error| unreadable(&self.name, &error))?;
            let consumed = parse(&mut self.parser, window, last).map_err(|broken| {
                let place = place(&self.name, self.parser.format(), &broken);
                TraceError::Invalid(format!("{place}; fix it, or leave out --strict to count such lines and go on"))
            })?;
            self.ended = self.source.consume(consumed);
        }
        Ok(!self.ended)
    }

    /// Gives all requests to `sink`, in order, and what was seen.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::finish`].
    pub fn read_all(mut self, mut sink: impl FnMut(Request)) -> Result<Tally, TraceError> {
        while self.read(&mut sink)? {}
        self.finish()
    }

    /// What was seen, after the last request.
    ///
    /// # Errors
    /// If there was no request at all.
    pub fn finish(self) -> Result<Tally, TraceError> {
        let (name, format) = (&self.name, self.parser.format());
        let tally = self.parser.tally();
        if tally.requests > 0 {
            return Ok(tally.clone());
        }
        Err(TraceError::Invalid(match &tally.first_broken {
            Some(broken) => format!(
                "{}; no {} of it could be read as {}: name the right format with --format",
                place(name, format, broken),
                format.line_name(),
                format.name(),
            ),
            None if format == Format::DarshanDxt => format!(
                "{name} holds no traced accesses: run the application with DXT_ENABLE_IO_TRACE=1, and print its log with \
                 darshan-dxt-parser"
            ),
            None => format!("{name} holds no reads or writes: name a {} trace that does", format.name()),
        }))
    }

    /// The first broken line with its place, and how many there are, for a warning.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let tally = self.tally();
        let first = tally.first_broken.as_ref()?;
        let all = tally.broken + tally.requests + tally.others;
        Some(left_out(&place(&self.name, self.format(), first), tally.broken, all))
    }
}

/// Says that lines were left out: the first of them, and how many of all.
pub(crate) fn left_out(first: &str, broken: u64, all: u64) -> String {
    let lines = if broken == 1 { "was left out" } else { "is the first that was left out" };
    format!("{first}; it {lines} ({broken} of {all})")
}

fn place(name: &str, format: Format, broken: &Broken) -> String {
    match format.line_name() {
        "line" => format!("{name}:{}: {}", broken.line, broken.reason),
        other => format!("{name}: {other} {}: {}", broken.line, broken.reason),
    }
}

pub(crate) fn unreadable(name: &str, error: &io::Error) -> TraceError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
            TraceError::Invalid(format!("{name} is damaged: {error}; fetch or compress it anew"))
        }
        _ => TraceError::Failed(format!("cannot read {name}: {error}")),
    }
}
