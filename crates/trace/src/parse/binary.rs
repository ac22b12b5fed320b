//! Records of fixed size.

use surgetank_model::{Bytes, Instant};

use super::fields::request;
use super::vscsi::{SIZE_1, SIZE_2, version};
use super::{Broken, Line, Output};
use crate::keys::Gathered;
use crate::request::{Access, Request};

#[inline]
fn u16_at(record: &[u8], at: usize) -> u16 {
    record.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_le_bytes)
}

#[inline]
fn u32_at(record: &[u8], at: usize) -> u32 {
    record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[inline]
fn u64_at(record: &[u8], at: usize) -> u64 {
    record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Gives each record of `SIZE` bytes to `read`; bytes left at the end are a broken record.
#[inline]
fn records<const SIZE: usize, F: FnMut(Request)>(
    count: &mut u64,
    bytes: &[u8],
    last: bool,
    output: &mut Output<'_, F>,
    mut read: impl FnMut(&[u8; SIZE], u64, &mut Output<'_, F>) -> Result<(), Broken>,
) -> Result<usize, Broken> {
    let (whole, rest) = bytes.as_chunks::<SIZE>();
    let before = *count;
    *count += whole.len() as u64;
    for (record, number) in whole.iter().zip(before + 1..) {
        read(record, number, output)?;
    }
    if last && !rest.is_empty() {
        *count += 1;
        output.broken(*count, format!("it is cut off: {} of {SIZE} bytes", rest.len()))?;
        return Ok(bytes.len());
    }
    Ok(bytes.len() - rest.len())
}

/// u32 time in s, u64 key, u32 size in bytes, i64 request number of the next use.
#[derive(Debug, Default)]
pub struct OracleGeneral {
    records: u64,
}

impl OracleGeneral {
    const SIZE: usize = 24;

    #[inline]
    pub fn parse<F: FnMut(Request)>(
        &mut self,
        bytes: &[u8],
        last: bool,
        output: &mut Output<'_, F>,
    ) -> Result<usize, Broken> {
        records::<{ Self::SIZE }, F>(&mut self.records, bytes, last, output, |record, _, output| {
            output.request(Request {
                time: Instant::from_nanoseconds(u64::from(u32_at(record, 0)) * 1_000_000_000),
                volume: 0,
                address: u64_at(record, 4),
                length: Bytes::new(u32_at(record, 12).into()),
                operation: Access::Unknown,
            });
            Ok(())
        })
    }

    /// No record is broken or no request, so that nothing has to be looked at but the keys.
    #[inline]
    pub fn parse_keys<F: FnMut(Request)>(
        &mut self,
        bytes: &[u8],
        last: bool,
        output: &mut Output<'_, F>,
        gathered: &mut Gathered,
        feed: &mut impl FnMut(&[u64]),
    ) -> Result<usize, Broken> {
        let (whole, rest) = bytes.as_chunks::<{ Self::SIZE }>();
        gathered.extend(whole, |record| u64_at(record, 4), feed);
        self.records += whole.len() as u64;
        output.tally.requests += whole.len() as u64;
        Ok(bytes.len() - rest.len() + self.parse(rest, last, output)?)
    }
}

/// Version 1: u32 sequence, u32 bytes, u32 segments, u16 command, u16 version, u64 block, u64 µs. Version 2: u16 command,
/// u16 version, u32 sequence, u32 bytes, u32 segments, u64 block, u64 µs, u64 latency. Blocks of 512 bytes.
#[derive(Debug)]
pub struct Vscsi {
    version: u8,
    records: u64,
}

impl Vscsi {
    /// # Errors
    /// If `head` is none of both.
    pub fn new(head: &[u8]) -> Result<Self, String> {
        match version(head) {
            Some(version) => Ok(Self { version, records: 0 }),
            // An empty trace is told as such.
            None if head.is_empty() => Ok(Self { version: 1, records: 0 }),
            None => Err("its first records carry neither version 1 nor version 2 of vscsi".to_owned()),
        }
    }

    pub fn parse<F: FnMut(Request)>(
        &mut self,
        bytes: &[u8],
        last: bool,
        output: &mut Output<'_, F>,
    ) -> Result<usize, Broken> {
        if self.version == 2 {
            records::<{ SIZE_2 }, F>(&mut self.records, bytes, last, output, |record, number, output| {
                let line = one(2, u16_at(record, 2), u16_at(record, 0), u32_at(record, 8), record, 16);
                output.line(number, line)
            })
        } else {
            records::<{ SIZE_1 }, F>(&mut self.records, bytes, last, output, |record, number, output| {
                let line = one(1, u16_at(record, 14), u16_at(record, 12), u32_at(record, 4), record, 16);
                output.line(number, line)
            })
        }
    }
}

/// Block and time stand at `at` in both versions.
#[inline]
fn one(version: u16, found: u16, command: u16, length: u32, record: &[u8], at: usize) -> Line {
    if found >> 8 != version {
        return Line::Broken(format!("it says version {}, the trace is of version {version}", found >> 8));
    }
    // SCSI block commands: READ and WRITE of 6, 10, 12 and 16 bytes.
    let operation = match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Access::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Access::Write,
        _ => return Line::Other,
    };
    let (block, time_us) = (u64_at(record, at), u64_at(record, at + 8));
    match block.checked_mul(512) {
        Some(address) => request(time_us.saturating_mul(1000), 0, address, length.into(), operation),
        None => Line::Broken(format!("block {block} lies beyond all volumes")),
    }
}
