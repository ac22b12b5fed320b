//! Reports of iostat(1) and sar(1): what was moved in each interval, by device.
//!
//! Both print rates for whole intervals, so bytes and requests are spread evenly over each. kB are 1024 bytes, blocks and
//! sectors 512. Devices that lie on other devices of the same report (device mapper, md, loop, partitions) are left out: their
//! I/O shows up below them once more.

mod clock;

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use self::clock::{Clock, time_of_day};
use crate::error::TraceError;
use crate::format::Format;
use crate::parse::Broken;
use crate::parse::fields::shown_shortly;
use crate::parse::lines::Lines;
use crate::reader::{Opened, left_out, unreadable};
use crate::series::{SAMPLES_MAX, Sample, Series, nanoseconds, too_many};

/// More rows are no report that a person keeps; they are held in memory.
const ROWS_MAX: usize = 10_000_000;
const DEVICES_MAX: usize = 1 << 12;

/// Reads a whole report.
///
/// # Errors
/// If it cannot be read or decompressed, has no report of I/O with times, or (`strict`) a broken line.
pub fn read(
    opened: Opened,
    strict: bool,
    interval: Duration,
    mut shown: impl FnMut((u64, Option<u64>)),
) -> Result<Series, TraceError> {
    let Opened { name, mut source, progress, format } = opened;
    let mut report = Report::new(format);
    let mut lines = Lines::default();
    loop {
        let (window, last) = source.window().map_err(|error| unreadable(&name, &error))?;
        let take = |line, found: Result<&[u8], String>| {
            report.count += 1;
            let Err(reason) = found.and_then(|text| report.line(text)) else { return Ok(()) };
            let broken = Broken { line, reason };
            report.broken += 1;
            report.first_broken.get_or_insert_with(|| broken.clone());
            if strict { Err(broken) } else { Ok(()) }
        };
        let taken = lines.cut(window, last, take).map_err(|Broken { line, reason }| {
            TraceError::Invalid(format!("{name}:{line}: {reason}; fix it, or leave out --strict"))
        })?;
        shown((progress.done.get(), progress.total));
        if source.consume(taken) {
            break;
        }
    }
    report.series(&name, interval)
}

/// What a column holds, in what unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    Device,
    /// Bytes.
    Read(f64),
    Written(f64),
    Requests,
    /// Requests of both kinds, where they also stand apart.
    AllRequests,
    Other,
}

impl Column {
    fn of(name: &[u8]) -> Self {
        const KIB: f64 = 1024.0;
        match name {
            b"Device" | b"Device:" | b"DEV" => Self::Device,
            b"rkB/s" | b"kB_read/s" => Self::Read(KIB),
            b"rMB/s" | b"MB_read/s" => Self::Read(KIB * KIB),
            b"rsec/s" | b"rd_sec/s" | b"Blk_read/s" | b"bread/s" => Self::Read(512.0),
            b"wkB/s" | b"kB_wrtn/s" => Self::Written(KIB),
            b"wMB/s" | b"MB_wrtn/s" => Self::Written(KIB * KIB),
            b"wsec/s" | b"wr_sec/s" | b"Blk_wrtn/s" | b"bwrtn/s" => Self::Written(512.0),
            b"r/s" | b"w/s" | b"rtps" | b"wtps" => Self::Requests,
            b"tps" => Self::AllRequests,
            _ => Self::Other,
        }
    }
}

/// What one device did in one interval, in seconds since the report's first midnight.
#[derive(Clone, Copy, Debug)]
struct Row {
    from_s: u64,
    until_s: u64,
    device: usize,
    /// Bytes, bytes and requests a second.
    rates: [f64; 3],
}

/// A report while it is read.
struct Report {
    is_sar: bool,
    clock: Clock,
    /// The interval that rows are about; `from_s` is `None` while only its end is known.
    from_s: Option<u64>,
    until_s: Option<u64>,
    columns: Vec<Column>,
    /// The next line is the processors'.
    skips_next: bool,
    devices: Vec<Vec<u8>>,
    rows: Vec<Row>,
    count: u64,
    broken: u64,
    first_broken: Option<Broken>,
}

impl Report {
    fn new(format: Format) -> Self {
        Self {
            is_sar: format == Format::Sar,
            clock: Clock::default(),
            from_s: None,
            until_s: None,
            columns: Vec::new(),
            skips_next: false,
            devices: Vec::new(),
            rows: Vec::new(),
            count: 0,
            broken: 0,
            first_broken: None,
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.starts_with(b"Linux ") || line.starts_with(b"Average:") || std::mem::take(&mut self.skips_next) {
            return Ok(());
        }
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        if self.is_sar { self.line_of_sar(&words) } else { self.line_of_iostat(&words) }
    }

    fn line_of_iostat(&mut self, words: &[&[u8]]) -> Result<(), String> {
        match words.first() {
            Some(&b"avg-cpu:") => {
                self.skips_next = true;
                return Ok(());
            }
            Some(&(b"Device" | b"Device:")) => {
                self.columns = words.iter().map(|word| Column::of(word)).collect();
                return Ok(());
            }
            _ => {}
        }
        // A report's time stands alone, with or without its date.
        if words.len() <= 3
            && let Some((_, time)) = time_of_day(words)
        {
            let now_s = self.clock.at(time);
            self.from_s = self.until_s.filter(|before| *before < now_s);
            self.until_s = Some(now_s);
            return Ok(());
        }
        if self.columns.is_empty() {
            return Err(format!("{:?} stands before any header \"Device\"", shown_shortly(words.concat().as_slice())));
        }
        let Some(until_s) = self.until_s else {
            return Err("no time stands before it: record with iostat -t".to_owned());
        };
        // The first report is about all the time since the boot.
        let Some(from_s) = self.from_s else { return Ok(()) };
        self.row(words, from_s, until_s)
    }

    fn line_of_sar(&mut self, words: &[&[u8]]) -> Result<(), String> {
        let Some((used, time)) = time_of_day(words) else {
            return Err(format!("{:?} is no time", shown_shortly(words.first().copied().unwrap_or_default())));
        };
        let now_s = self.clock.at(time);
        let rest = &words[used..];
        let named: Vec<Column> = rest.iter().map(|word| Column::of(word)).collect();
        let is_header = rest.iter().all(|word| !is_value(word));
        if is_header {
            // It carries the time at which the first interval below it begins.
            let restarts = rest.first().is_some_and(|word| word.eq_ignore_ascii_case(b"linux"));
            if restarts || self.until_s != Some(now_s) {
                (self.from_s, self.until_s) = (None, Some(now_s));
            }
            let has_io = named.iter().any(|column| matches!(column, Column::Read(_) | Column::Written(_)));
            self.columns = if has_io { named } else { Vec::new() };
            return Ok(());
        }
        if self.until_s != Some(now_s) {
            (self.from_s, self.until_s) = (self.until_s.filter(|before| *before < now_s), Some(now_s));
        }
        match self.from_s {
            Some(from_s) if !self.columns.is_empty() => self.row(rest, from_s, now_s),
            _ => Ok(()),
        }
    }

    fn row(&mut self, words: &[&[u8]], from_s: u64, until_s: u64) -> Result<(), String> {
        if words.len() < self.columns.len() {
            return Err(format!("it has {} columns, and {} stand above it", words.len(), self.columns.len()));
        }
        let (mut name, mut rates, mut apart) = (&b""[..], [0.0; 3], false);
        let mut all_requests = 0.0;
        for (column, word) in self.columns.iter().zip(words) {
            let value = || value(word).ok_or_else(|| format!("{:?} is no rate", shown_shortly(word)));
            match column {
                Column::Device => name = word,
                Column::Read(unit) => rates[0] += value()? * unit,
                Column::Written(unit) => rates[1] += value()? * unit,
                Column::Requests => {
                    rates[2] += value()?;
                    apart = true;
                }
                Column::AllRequests => all_requests = value()?,
                Column::Other => {}
            }
        }
        if !apart {
            rates[2] = all_requests;
        }
        let known = self.devices.iter().position(|device| device == name);
        let device = known.unwrap_or(self.devices.len());
        if device >= DEVICES_MAX || self.rows.len() >= ROWS_MAX {
            return Err(format!("there are more than {DEVICES_MAX} devices or {ROWS_MAX} rows"));
        }
        if known.is_none() {
            self.devices.push(name.to_owned());
        }
        self.rows.push(Row { from_s, until_s, device, rates });
        Ok(())
    }

    fn series(mut self, name: &str, interval: Duration) -> Result<Series, TraceError> {
        let interval_ns = nanoseconds(interval)?;
        let mut warnings = Vec::new();
        if let Some(Broken { line, reason }) = &self.first_broken {
            warnings.push(left_out(&format!("{name}:{line}: {reason}"), self.broken, self.count));
        }
        let above: Vec<bool> = self.devices.iter().map(|device| lies_on_another(device, &self.devices)).collect();
        if above.contains(&true) && above.contains(&false) {
            let names = self.devices.iter().zip(&above).filter(|(_, above)| **above);
            let names: Vec<String> =
                names.map(|(device, _)| shown_shortly(device)).filter(|name| !name.is_empty()).collect();
            self.rows.retain(|row| !above[row.device]);
            if !names.is_empty() {
                let names = names.join(", ");
                warnings.push(format!("{name}: left out what lies on other devices of the report: {names}"));
            }
        }
        let (Some(start_s), Some(end_s)) =
            (self.rows.iter().map(|row| row.from_s).min(), self.rows.iter().map(|row| row.until_s).max())
        else {
            let how = if self.is_sar { "sar -d" } else { "iostat -d -t 1" };
            return Err(TraceError::Invalid(match self.first_broken {
                Some(Broken { line, reason }) => {
                    format!("{name}:{line}: {reason}; it holds no report of I/O with times")
                }
                None => format!("{name} holds no report of I/O over an interval with its time: record it with {how}"),
            }));
        };
        let count = (end_s - start_s).saturating_mul(1_000_000_000).div_ceil(interval_ns);
        let at = |seconds: u64| Instant::from_nanoseconds(seconds.saturating_mul(1_000_000_000));
        if count > SAMPLES_MAX {
            return Err(too_many(at(start_s), at(end_s)));
        }
        let samples = self.spread(start_s, count as usize, interval.as_secs_f64());
        Ok(Series { interval, start: at(start_s), samples, touched: None, broken: self.broken, warnings })
    }

    /// Each row's rates over the intervals that it covers.
    fn spread(&self, start_s: u64, count: usize, interval_s: f64) -> Vec<Sample> {
        let mut sums = vec![[0.0; 3]; count];
        for row in &self.rows {
            let (from, until) = ((row.from_s - start_s) as f64, (row.until_s - start_s) as f64);
            let first = (from / interval_s) as usize;
            for (index, sum) in sums.iter_mut().enumerate().skip(first) {
                let (begin, end) = (index as f64 * interval_s, (index + 1) as f64 * interval_s);
                if begin >= until {
                    break;
                }
                let seconds = end.min(until) - begin.max(from);
                sum.iter_mut().zip(row.rates).for_each(|(sum, rate)| *sum += rate * seconds.max(0.0));
            }
        }
        // Rounded so that the sums stay what they are.
        let mut before = [0.0f64; 3];
        let rounded = |sum: &[f64; 3]| {
            let mut found = [0; 3];
            for ((found, before), value) in found.iter_mut().zip(&mut before).zip(sum) {
                let exact = *before + value;
                *found = exact.round().max(0.0) as u64;
                *before = exact - *found as f64;
            }
            let [read, written, requests] = found;
            Sample { written: Bytes::new(written), read: Bytes::new(read), requests }
        };
        sums.iter().map(rounded).collect()
    }
}

/// A rate; some locales write a comma before its fraction.
fn value(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?.replace(',', ".");
    text.parse::<f64>().ok().filter(|rate| rate.is_finite() && (0.0..1e15).contains(rate))
}

fn is_value(word: &[u8]) -> bool {
    value(word).is_some()
}

/// Whether a device shows the I/O of others of the same report.
fn lies_on_another(device: &[u8], all: &[Vec<u8>]) -> bool {
    const STACKED: [&[u8]; 8] = [b"dm-", b"md", b"loop", b"zram", b"drbd", b"dev7-", b"dev9-", b"dev253-"];
    let is_partition = |whole: &Vec<u8>| {
        let rest = device.strip_prefix(whole.as_slice()).filter(|_| !whole.is_empty());
        let digits = rest.map(|rest| rest.strip_prefix(b"p").unwrap_or(rest));
        digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
    };
    // Totals without a name, as sar -b has them, beside the devices themselves.
    let is_total = device.is_empty() && all.len() > 1;
    is_total || STACKED.iter().any(|prefix| device.starts_with(prefix)) || all.iter().any(is_partition)
}

#[cfg(test)]
mod tests;
