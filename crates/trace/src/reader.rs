//! A trace file from opening to the last request.

use std::io::{self, Read};
use std::path::Path;

use crate::error::TraceError;
use crate::format::Format;
use crate::keys::Gathered;
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

impl Reader {
    /// Opens the file at `path`, which must not shrink while it is read; `-` is standard input.
    ///
    /// # Errors
    /// If it cannot be read, or its format is not known or not that.
    pub fn open(path: &Path, options: Options) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let invalid = |error: io::Error| {
            TraceError::Invalid(format!("cannot read {name}: {error}; name a trace file that you may read"))
        };
        let (source, progress) = if path == Path::new("-") {
            (Source::stream(io::stdin()).map_err(invalid)?, Progress::default())
        } else {
            Source::open(path).map_err(invalid)?
        };
        Self::new(name, source, progress, options, Format::of_name(path))
    }

    /// Reads from anything; `name` is for messages.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_stream(name: &str, from: impl Read + 'static, options: Options) -> Result<Self, TraceError> {
        let source = Source::stream(from).map_err(|error| unreadable(name, &error))?;
        Self::new(name.to_owned(), source, Progress::default(), options, None)
    }

    fn new(
        name: String,
        mut source: Source,
        progress: Progress,
        options: Options,
        by_name: Option<Format>,
    ) -> Result<Self, TraceError> {
        let (window, _) = source.window().map_err(|error| unreadable(&name, &error))?;
        let head = &window[..window.len().min(HEAD)];
        if head.is_empty() {
            return Err(TraceError::Invalid(format!("{name} is empty: name a trace with at least one request")));
        }
        let format = options.format.or(by_name).or_else(|| Format::of_head(head)).ok_or_else(|| {
            let names: Vec<&str> = Format::NAMES.iter().map(|(name, _)| *name).collect();
            TraceError::Invalid(format!(
                "cannot tell the format of {name}: name it with --format, one of {}",
                names.join(", ")
            ))
        })?;
        let parser = Parser::new(format, head, options.strict).map_err(|reason| {
            TraceError::Invalid(format!(
                "{name} is no {} trace: {reason}; name its format with --format",
                format.name()
            ))
        })?;
        Ok(Self { name, source, progress, parser, ended: false })
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
            None => format!("{name} holds no reads or writes: name a {} trace that does", format.name()),
        }))
    }

    /// The first broken line with its place, for a warning.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let tally = self.tally();
        let first = tally.first_broken.as_ref()?;
        let lines = if tally.broken == 1 { "was left out" } else { "is the first that was left out" };
        let place = place(&self.name, self.format(), first);
        Some(format!("{place}; it {lines} ({} of {})", tally.broken, tally.broken + tally.requests + tally.others))
    }
}

fn place(name: &str, format: Format, broken: &Broken) -> String {
    match format.line_name() {
        "line" => format!("{name}:{}: {}", broken.line, broken.reason),
        other => format!("{name}: {other} {}: {}", broken.line, broken.reason),
    }
}

fn unreadable(name: &str, error: &io::Error) -> TraceError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
            TraceError::Invalid(format!("{name} is damaged: {error}; fetch or compress it anew"))
        }
        _ => TraceError::Failed(format!("cannot read {name}: {error}")),
    }
}
