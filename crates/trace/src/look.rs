//! What a file holds, by what it begins with.
//!
//! Plain keys are what is left over, so whatever has a known form of its own is told apart from them: a curve of a job log's
//! numbers, or of a table's words, would look like an answer and be none.

use crate::format::Format;
use crate::parse::{fields, vscsi};

/// More lines tell no more.
const LINES_MAX: usize = 200;
/// Fields of a job in the Standard Workload Format.
pub(crate) const SWF_FIELDS: usize = 18;

/// What a file begins with that is nothing we read, and what to do about it.
struct Foreign {
    begins: &'static [u8],
    at: usize,
    says: &'static str,
}

/// Files of other programs, by their first bytes.
const FOREIGN: [Foreign; 8] = [
    Foreign {
        begins: b"75d\0",
        at: 8,
        says: "it is a Darshan log: print its traced accesses with darshan-dxt-parser, and name that text",
    },
    Foreign {
        begins: &[0x07, b't', b'a', b'e'],
        at: 0,
        says: "it is blktrace's binary output: print it with blkparse, and name that text",
    },
    Foreign {
        begins: &[0x96, 0xd5],
        at: 0,
        says: "it is sar's binary file: print it with sar -d -f FILE, and name that text",
    },
    Foreign { begins: b"PAR1", at: 0, says: "it is a Parquet file: write its rows as CSV with a header" },
    Foreign { begins: b"\x89HDF", at: 0, says: "it is an HDF5 file: write its rows as CSV with a header" },
    Foreign { begins: b"PK\x03\x04", at: 0, says: "it is a ZIP archive: unpack it, and name a file of it" },
    Foreign { begins: b"\x7fELF", at: 0, says: "it is a program, and no trace" },
    Foreign {
        begins: b"SQLite format 3",
        at: 0,
        says: "it is an SQLite database: write its rows as CSV with a header",
    },
];

/// What the table of Argonne's job logs begins with.
pub(crate) const ARGONNE_HEADER: &[u8] = b"Job_name Submit Runtime Nodes";
pub(crate) const JOB_LOG: &str = "it is a job log (Standard Workload Format, or Argonne's table): surgetank simulate replays one that its scenario names as log in [jobs]";
const JSON: &str = "it is JSON: write one request a line, as CSV with a header";
const TABLE: &str = "it is a table with a header and without commas: write it as CSV with commas";
const SEMICOLONS: &str = "its columns are separated by semicolons: separate them by commas";
const NO_IO: &str = "it is a report of sar without I/O: record one with sar -b or sar -d";

impl Format {
    /// By what the file begins with (its first 64 KiB, or all of it).
    ///
    /// # Errors
    /// What it is instead, and what to do about it; `None` if that cannot be told.
    pub fn of_head(head: &[u8]) -> Result<Self, Option<&'static str>> {
        if let Some(foreign) = FOREIGN.iter().find(|foreign| has_at(head, foreign.at, foreign.begins)) {
            return Err(Some(foreign.says));
        }
        if head.starts_with(b"fio version ") {
            return Ok(Self::FioIolog);
        }
        if head.contains(&0) {
            return vscsi::version(head).map(|_| Self::Vscsi).ok_or(None);
        }
        if head.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace() && *byte != 0x1b) {
            return Err(None);
        }
        let lines: Vec<&[u8]> = whole_lines(head);
        if lines.iter().any(|line| line.starts_with(b"# DXT,") || line.starts_with(b"# darshan log version")) {
            return Ok(Self::DarshanDxt);
        }
        if let Some(report) = report(&lines) {
            return report.map_err(Some);
        }
        let mut shown = lines.iter().copied().filter(|line| !line.starts_with(b"#"));
        let Some(first) = shown.next() else { return Ok(Self::Plain) };
        of_lines(first, &shown.collect::<Vec<_>>())
    }
}

fn has_at(head: &[u8], at: usize, bytes: &[u8]) -> bool {
    head.get(at..).is_some_and(|rest| rest.starts_with(bytes))
}

/// Lines that are not empty; not the last if it may be cut off.
fn whole_lines(head: &[u8]) -> Vec<&[u8]> {
    let end = memchr::memrchr(b'\n', head).map_or(head.len(), |end| end + 1);
    let lines = head[..end].split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty()).take(LINES_MAX).collect()
}

fn words(line: &[u8]) -> Vec<&[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect()
}

/// A report of iostat or sar: both begin with the kernel's name.
fn report(lines: &[&[u8]]) -> Option<Result<Format, &'static str>> {
    let begins = lines.first()?.starts_with(b"Linux ");
    let has = |names: &[&[u8]]| lines.iter().any(|line| words(line).iter().any(|word| names.contains(word)));
    let is_device = |line: &&[u8]| line.starts_with(b"Device") && has(&[b"r/s", b"tps"]);
    if lines.iter().take(40).any(is_device) {
        return Some(Ok(Format::Iostat));
    }
    let of_sar = has(&[b"rtps", b"rd_sec/s"]) || (has(&[b"DEV"]) && has(&[b"tps", b"rkB/s"]));
    match (of_sar, begins) {
        (true, _) => Some(Ok(Format::Sar)),
        (false, true) if has(&[b"CPU", b"%user"]) => Some(Err(NO_IO)),
        (false, _) => None,
    }
}

fn of_lines(first: &[u8], rest: &[&[u8]]) -> Result<Format, Option<&'static str>> {
    let columns = words(first);
    let device = |word: &[u8]| word.splitn(2, |byte| *byte == b',').all(is_number) && word.contains(&b',');
    if columns.len() >= 6 && device(columns[0]) {
        return Ok(Format::Blkparse);
    }
    if first.starts_with(b";")
        || first.starts_with(ARGONNE_HEADER)
        || (columns.len() >= SWF_FIELDS && columns.iter().take(SWF_FIELDS).all(|word| signed(word)))
    {
        return Err(Some(JOB_LOG));
    }
    if first.starts_with(b"{") || first.starts_with(b"[") {
        return Err(Some(JSON));
    }
    let fields: Vec<&[u8]> = first.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
    if fields.len() >= 6 && (is_number(fields[0]) || fields[0].eq_ignore_ascii_case(b"timestamp")) {
        return Ok(Format::Msr);
    }
    if fields.len() >= 2 {
        return Ok(Format::Csv);
    }
    if first.split(|byte| *byte == b';').count() >= 3 {
        return Err(Some(SEMICOLONS));
    }
    let all: Vec<Vec<&[u8]>> = [first].iter().chain(rest).map(|line| words(line)).collect();
    if is_mqsim(&all) {
        return Ok(Format::MqSim);
    }
    if is_table(&all) {
        return Err(Some(TABLE));
    }
    Ok(Format::Plain)
}

/// Lines of time, device, sector, sectors and type, in order of time.
fn is_mqsim(lines: &[Vec<&[u8]>]) -> bool {
    let right = |line: &Vec<&[u8]>| {
        line.len() == 5 && line.iter().all(|word| is_number(word)) && matches!(line[4], b"0" | b"1")
    };
    let times: Vec<Option<u64>> = lines.iter().map(|line| fields::decimal(line[0])).collect();
    lines.len() >= 3 && lines.iter().all(right) && times.is_sorted()
}

/// A line of words, and lines of as many columns below it, most of them numbers.
fn is_table(lines: &[Vec<&[u8]>]) -> bool {
    let [header, below @ ..] = lines else { return false };
    let numbers = |line: &Vec<&[u8]>| line.iter().filter(|word| signed(word)).count();
    let fits = |line: &Vec<&[u8]>| line.len() == header.len() && 2 * numbers(line) > line.len();
    header.len() >= 3 && numbers(header) == 0 && !below.is_empty() && below.iter().all(fits)
}

fn is_number(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

/// A number with a sign or a fraction.
fn signed(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| word.parse::<f64>().is_ok_and(f64::is_finite))
}
