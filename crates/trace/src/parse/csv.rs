//! MSR Cambridge CSV, and CSV with a header.

use super::Line;
use super::fields::{Volumes, decimal, fraction, not_a, operation, request};
use crate::request::Access;

/// `128166372003061629,hm,1,Read,383496192,32768,113736`: time in 100 ns, host, disk, operation, offset, size, response.
#[derive(Debug, Default)]
pub struct Msr {
    volumes: Volumes,
    seen: bool,
}

impl Msr {
    pub fn line(&mut self, line: &[u8]) -> Line {
        let first = !std::mem::replace(&mut self.seen, true);
        let mut fields = line.split(|byte| *byte == b',');
        let mut next = || fields.next().map(<[u8]>::trim_ascii);
        let (Some(time), Some(host), Some(disk), Some(kind), Some(offset), Some(size)) =
            (next(), next(), next(), next(), next(), next())
        else {
            return Line::Broken(
                "it has fewer than the six fields time, host, disk, operation, offset, size".to_owned(),
            );
        };
        if first && time.eq_ignore_ascii_case(b"timestamp") {
            return Line::Other;
        }
        let Some(time_ns) = decimal(time).and_then(|time| time.checked_mul(100)) else {
            return not_a("timestamp", "a count of 100 ns", time);
        };
        let Some(operation) = operation(kind) else { return not_a("operation", "Read or Write", kind) };
        let Some(offset) = decimal(offset) else { return not_a("offset", "a number", offset) };
        let Some(size) = decimal(size) else { return not_a("size", "a number", size) };
        // Host and disk stand beside each other: both name the volume.
        let names = host.as_ptr_range().start as usize - line.as_ptr() as usize;
        let end = disk.as_ptr_range().end as usize - line.as_ptr() as usize;
        match self.volumes.number(&line[names..end]) {
            Ok(volume) => request(time_ns, volume, offset, size, operation),
            Err(broken) => broken,
        }
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    /// A count or fraction of a unit of so many nanoseconds.
    Time(u64),
    Operation,
    /// A count of units of so many bytes.
    Offset(u64),
    Length(u64),
    Volume,
    Ignored,
}

impl Column {
    fn of(name: &[u8]) -> Self {
        match &*name.to_ascii_lowercase() {
            b"time_s" | b"time" | b"timestamp_s" => Self::Time(1_000_000_000),
            b"time_ms" => Self::Time(1_000_000),
            b"time_us" | b"timestamp_us" => Self::Time(1_000),
            b"time_ns" | b"timestamp_ns" => Self::Time(1),
            b"op" | b"operation" | b"type" | b"rw" => Self::Operation,
            b"offset_bytes" | b"offset" => Self::Offset(1),
            b"lba" | b"sector" => Self::Offset(512),
            b"length_bytes" | b"length" | b"size_bytes" | b"size" | b"bytes" => Self::Length(1),
            b"sectors" => Self::Length(512),
            b"volume" | b"device" | b"disk" => Self::Volume,
            _ => Self::Ignored,
        }
    }
}

/// Whether the header, the first line that is not empty, names a column of times.
pub fn has_times(head: &[u8]) -> bool {
    let header = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(|line| !line.is_empty());
    let mut names = header.unwrap_or_default().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.any(|name| matches!(Column::of(name), Column::Time(_)))
}

/// CSV whose first line names the columns.
#[derive(Debug, Default)]
pub struct Named {
    columns: Option<Vec<Column>>,
    volumes: Volumes,
}

impl Named {
    pub fn line(&mut self, line: &[u8]) -> Line {
        let fields = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let Some(columns) = &self.columns else {
            let columns: Vec<Column> = fields.map(Column::of).collect();
            let has_offset = columns.iter().any(|column| matches!(column, Column::Offset(_)));
            self.columns = Some(columns);
            let missing = || Line::Broken("the header names no column offset_bytes, offset or lba".to_owned());
            return if has_offset { Line::Other } else { missing() };
        };
        let (mut time_ns, mut volume, mut offset, mut length, mut kind) = (0, 0, None, 0, Access::Unknown);
        for (column, field) in columns.iter().zip(fields) {
            match column {
                Column::Time(scale) => match fraction(field, *scale) {
                    Some(time) => time_ns = time,
                    None => return not_a("time", "a number", field),
                },
                Column::Operation => match operation(field) {
                    Some(known) => kind = known,
                    // Flushes, discards and their combinations.
                    None if field.iter().all(u8::is_ascii_alphabetic) && !field.is_empty() => return Line::Other,
                    None => return not_a("operation", "a letter or word", field),
                },
                Column::Offset(unit) => match decimal(field).and_then(|count| count.checked_mul(*unit)) {
                    Some(bytes) => offset = Some(bytes),
                    None => return not_a("offset", "a number", field),
                },
                Column::Length(unit) => match decimal(field).and_then(|count| count.checked_mul(*unit)) {
                    Some(bytes) => length = bytes,
                    None => return not_a("length", "a number", field),
                },
                Column::Volume => match self.volumes.number(field) {
                    Ok(number) => volume = number,
                    Err(broken) => return broken,
                },
                Column::Ignored => {}
            }
        }
        match offset {
            Some(offset) => request(time_ns, volume, offset, length, kind),
            None => Line::Broken("it has no offset".to_owned()),
        }
    }
}
