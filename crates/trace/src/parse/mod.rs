//! Bytes to requests.
//!
//! A [`Parser`] takes a trace in pieces, cut anywhere, and gives the same requests however it is cut. It never panics and
//! never allocates by what a trace claims.

mod binary;
mod blkparse;
mod csv;
mod dxt;
pub(crate) mod fields;
mod fio;
pub(crate) mod lines;
mod mqsim;
mod plain;
pub(crate) mod vscsi;

use crate::format::Format;
use crate::keys::{Gathered, Keys};
use crate::request::Request;

/// A line that is not what the format says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Counting from 1; of a binary trace the record.
    pub line: u64,
    /// What is wrong: "the offset is not a number".
    pub reason: String,
}

/// What was seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests given.
    pub requests: u64,
    /// Broken lines or records.
    pub broken: u64,
    /// The first of them.
    pub first_broken: Option<Broken>,
    /// Lines that are right and no reads or writes: flushes, discards, files opened, other events.
    pub others: u64,
}

/// What a line is.
#[derive(Debug)]
pub(crate) enum Line {
    Request(Request),
    Other,
    Broken(String),
}

/// Where requests and the rest go.
pub(crate) struct Output<'a, F> {
    tally: &'a mut Tally,
    strict: bool,
    sink: F,
}

impl<F: FnMut(Request)> Output<'_, F> {
    #[inline]
    fn request(&mut self, request: Request) {
        self.tally.requests += 1;
        (self.sink)(request);
    }

    #[cold]
    fn broken(&mut self, line: u64, reason: String) -> Result<(), Broken> {
        let broken = Broken { line, reason };
        self.tally.broken += 1;
        if self.tally.first_broken.is_none() {
            self.tally.first_broken = Some(broken.clone());
        }
        if self.strict { Err(broken) } else { Ok(()) }
    }

    #[inline]
    fn line(&mut self, number: u64, line: Line) -> Result<(), Broken> {
        match line {
            Line::Request(request) => self.request(request),
            Line::Other => self.tally.others += 1,
            Line::Broken(reason) => return self.broken(number, reason),
        }
        Ok(())
    }
}

/// Reads one trace.
#[derive(Debug)]
pub struct Parser {
    format: Format,
    kind: Kind,
    has_times: bool,
    strict: bool,
    tally: Tally,
}

#[derive(Debug)]
enum Kind {
    Plain(plain::Plain),
    Lines(lines::Lines, LineKind),
    Vscsi(binary::Vscsi),
    OracleGeneral(binary::OracleGeneral),
}

#[derive(Debug)]
enum LineKind {
    Msr(csv::Msr),
    Csv(csv::Named),
    Fio(fio::Iolog),
    Blkparse(blkparse::Blkparse),
    Dxt(dxt::Dxt),
    MqSim(mqsim::MqSim),
    Arc,
}

impl Parser {
    /// A parser of a trace that begins with `head` (its first 64 KiB, or all of it); `strict` if a broken line is an error.
    ///
    /// # Errors
    /// One phrase, if the trace does not begin as its format must.
    pub fn new(format: Format, head: &[u8], strict: bool) -> Result<Self, String> {
        let lines = |kind| Kind::Lines(lines::Lines::default(), kind);
        let kind = match format {
            Format::Plain => Kind::Plain(plain::Plain::default()),
            Format::Msr => lines(LineKind::Msr(csv::Msr::default())),
            Format::Csv => lines(LineKind::Csv(csv::Named::default())),
            Format::Vscsi => Kind::Vscsi(binary::Vscsi::new(head)?),
            Format::OracleGeneral => Kind::OracleGeneral(binary::OracleGeneral::default()),
            Format::FioIolog => lines(LineKind::Fio(fio::Iolog::default())),
            Format::Blkparse => lines(LineKind::Blkparse(blkparse::Blkparse::new(head))),
            Format::Arc => lines(LineKind::Arc),
            Format::DarshanDxt => lines(LineKind::Dxt(dxt::Dxt::default())),
            Format::MqSim => lines(LineKind::MqSim(mqsim::MqSim::default())),
            Format::Iostat | Format::Sar => {
                return Err("it has what was moved in each interval, and no requests".to_owned());
            }
        };
        let has_times = format.has_times() && (format != Format::Csv || csv::has_times(head));
        Ok(Self { format, kind, has_times, strict, tally: Tally::default() })
    }

    /// Whether requests carry a time: of CSV, whether its header names a column of times.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// What was seen so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Gives the requests of all whole lines or records in `bytes` to `sink`; with `last`, also of what nothing ends. How
    /// many bytes it took: the rest must come again, with more behind it. It takes some of any 64 KiB.
    ///
    /// # Errors
    /// The broken line at which a strict parser stops.
    #[inline]
    pub fn parse(&mut self, bytes: &[u8], last: bool, sink: impl FnMut(Request)) -> Result<usize, Broken> {
        let mut output = Output { tally: &mut self.tally, strict: self.strict, sink };
        match &mut self.kind {
            Kind::Plain(plain) => plain.parse(bytes, last, &mut output),
            Kind::Vscsi(vscsi) => vscsi.parse(bytes, last, &mut output),
            Kind::OracleGeneral(oracle) => oracle.parse(bytes, last, &mut output),
            Kind::Lines(lines, kind) => match kind {
                LineKind::Msr(msr) => lines.parse(bytes, last, &mut output, |_, line| msr.line(line)),
                LineKind::Csv(named) => lines.parse(bytes, last, &mut output, |_, line| named.line(line)),
                LineKind::Fio(fio) => lines.parse(bytes, last, &mut output, |_, line| fio.line(line)),
                LineKind::Blkparse(blkparse) => lines.parse(bytes, last, &mut output, |_, line| blkparse.line(line)),
                LineKind::Dxt(dxt) => lines.parse(bytes, last, &mut output, |_, line| dxt.line(line)),
                LineKind::MqSim(mqsim) => lines.parse(bytes, last, &mut output, |_, line| mqsim.line(line)),
                LineKind::Arc => lines.parse(bytes, last, &mut output, |_, line| plain::arc(line)),
            },
        }
    }

    /// As [`Self::parse`], but gives the keys of requests that are not split to `feed`, many at a time.
    #[inline]
    pub(crate) fn parse_keys(
        &mut self,
        bytes: &[u8],
        last: bool,
        gathered: &mut Gathered,
        feed: &mut impl FnMut(&[u64]),
    ) -> Result<usize, Broken> {
        if let Kind::OracleGeneral(oracle) = &mut self.kind {
            let mut output = Output { tally: &mut self.tally, strict: self.strict, sink: |_| () };
            return oracle.parse_keys(bytes, last, &mut output, gathered, feed);
        }
        self.parse(bytes, last, |request| gathered.push(Keys::whole(&request), feed))
    }
}
