//! What blkparse prints by default (blkparse(1)):
//!
//! ```text
//!   8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
//! ```
//!
//! device, CPU, sequence, time in s, process, action, what, first sector, `+`, sectors, command. A request shows up once
//! for each thing that happens to it; one kind of event is counted.

use super::Line;
use super::fields::{Volumes, decimal, fraction, not_a, request};
use crate::request::Access;

const SECTOR: u64 = 512;

/// See the module.
#[derive(Debug)]
pub struct Blkparse {
    /// Which action is counted: queued, issued or completed, the first of these that the trace has.
    action: u8,
    volumes: Volumes,
    /// Within the totals that follow the events.
    ended: bool,
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

impl Blkparse {
    pub fn new(head: &[u8]) -> Self {
        let actions: Vec<&[u8]> = head.split(|byte| *byte == b'\n').filter_map(|line| words(line).nth(5)).collect();
        let has = |action: &&u8| actions.contains(&&[**action][..]);
        let action = b"QDC".iter().find(has).copied().unwrap_or(b'Q');
        Self { action, volumes: Volumes::default(), ended: false }
    }

    pub fn line(&mut self, line: &[u8]) -> Line {
        if self.ended || line.starts_with(b"CPU") || line.starts_with(b"Total") {
            self.ended = true;
            return Line::Other;
        }
        let mut words = words(line);
        let mut next = || words.next().unwrap_or_default();
        let [device, cpu, _sequence, time, _process, action, what] = [(); 7].map(|()| next());
        let (first, plus, count) = (next(), next(), next());
        let mut numbers = device.splitn(2, |byte| *byte == b',');
        if numbers.next().and_then(decimal).is_none() || numbers.next().and_then(decimal).is_none() {
            return not_a("device", "of the form major,minor", device);
        }
        if decimal(cpu).is_none() {
            return not_a("CPU", "a number", cpu);
        }
        let Some(time_ns) = fraction(time, 1_000_000_000) else { return not_a("time", "a count of seconds", time) };
        if action.is_empty() {
            return Line::Broken("it ends before the action".to_owned());
        }
        // A leading F is the flush before it; without a range nothing is read or written.
        let operation = match what.strip_prefix(b"F").unwrap_or(what).first() {
            Some(b'R') => Access::Read,
            Some(b'W') => Access::Write,
            _ => return Line::Other,
        };
        if action != [self.action] || plus != b"+" {
            return Line::Other;
        }
        let Some(address) = decimal(first).and_then(|sector| sector.checked_mul(SECTOR)) else {
            return not_a("first sector", "a sector number", first);
        };
        let Some(length) = decimal(count).and_then(|count| count.checked_mul(SECTOR)) else {
            return not_a("count of sectors", "a number", count);
        };
        match self.volumes.number(device) {
            Ok(volume) => request(time_ns, volume, address, length, operation),
            Err(broken) => broken,
        }
    }
}
