//! What the application does: bursts, hot spots, small and large requests, all kinds of operations.

use std::time::Duration;

use surgetank_model::Operation;
use surgetank_model::random::Random;

use crate::scenario::{CrashScenario, Style};

/// A request before it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// What to do.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// From `cursor` on, requests of the same kind back to back.
    Sequential { cursor: u64 },
    /// Anywhere.
    Uniform,
    /// Over and over the same few blocks, in parts.
    Hot { base: u64 },
    /// Whole blocks, anywhere in a span.
    Blocks { base: u64, span: u64 },
}

/// A seeded generator of requests.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    size: u64,
    unit: u64,
    style: Style,
    think_max_us: u64,
    flush_percent: u64,
    fua_one_in: u64,
    pattern: Pattern,
    left: u64,
    write_share: u64,
    /// Every change is followed by a flush, as a database does.
    synced: bool,
    flush_due: bool,
    /// Few and small requests, for now.
    calm: bool,
}

impl Workload {
    /// The application of a scenario.
    #[must_use]
    pub fn new(scenario: &CrashScenario) -> Self {
        let random = Random::from_seed(scenario.seed ^ 0x3f0a_d10a);
        let (flush_percent, fua_one_in) = match scenario.style {
            Style::Mixed | Style::Trickle => (8, 12),
            Style::Overwrites if scenario.seed.is_multiple_of(2) => (3, 20),
            Style::Overwrites => (6, 4),
        };
        Self {
            random,
            size: scenario.size(),
            unit: u64::from(scenario.logical_block),
            style: scenario.style,
            think_max_us: scenario.think_max.as_micros() as u64,
            flush_percent,
            fua_one_in,
            pattern: Pattern::Uniform,
            left: 0,
            write_share: 60,
            synced: false,
            flush_due: false,
            calm: false,
        }
    }

    /// The device has grown to `size` bytes.
    pub fn grow(&mut self, size: u64) {
        self.size = size;
    }

    fn switch(&mut self) {
        self.left = 4 + self.random.below(24);
        self.synced = self.random.below(6) == 0;
        self.write_share = [30, 60, 60, 95][self.random.below(4) as usize];
        if self.style == Style::Overwrites {
            self.write_share = 90;
        }
        if self.style == Style::Trickle {
            self.calm = !self.calm;
            self.left += if self.calm { 20 + self.random.below(60) } else { 0 };
        }
        self.pattern = match self.random.below(3) {
            0 | 1 if self.style == Style::Overwrites => {
                // A small span soon supersedes whole segments of the log; a large one leaves them in part.
                let span = 4096 * [6, 20, 60, 400][self.random.below(4) as usize];
                Pattern::Blocks { base: self.random.below(self.size) / 4096 * 4096, span }
            }
            0 => Pattern::Sequential { cursor: self.random.below(self.size) / 4096 * 4096 },
            1 => Pattern::Uniform,
            _ => Pattern::Hot { base: self.random.below(self.size) / 4096 * 4096 },
        };
    }

    /// How long the application waits before its next request.
    pub fn think_time(&mut self) -> Duration {
        if self.calm {
            return Duration::from_micros(300 + self.random.below(2000));
        }
        match self.random.below(16) {
            0 => Duration::from_micros(self.random.below(self.think_max_us + 1)),
            1..=4 => Duration::from_micros(self.random.below(300)),
            _ => Duration::ZERO,
        }
    }

    /// The next request.
    pub fn wish(&mut self) -> Wish {
        if self.left == 0 {
            self.switch();
        }
        self.left -= 1;
        if std::mem::take(&mut self.flush_due) {
            return Wish { operation: Operation::Flush, offset: 0, length: 0 };
        }
        let choice = self.random.below(100);
        if choice < self.flush_percent || self.calm && choice >= 80 {
            return Wish { operation: Operation::Flush, offset: 0, length: 0 };
        }
        let (offset, length) = self.range();
        let operation = match choice {
            8..=11 => Operation::Discard,
            12..=15 => Operation::WriteZeroes { fua: self.random.below(self.fua_one_in) == 0 },
            _ if self.random.below(100) < self.write_share => {
                Operation::Write { fua: self.random.below(self.fua_one_in) == 0 }
            }
            _ => Operation::Read,
        };
        self.flush_due = self.synced && operation != Operation::Read;
        let length = if self.calm { length.min(8192) } else { length };
        let whole_large = !self.calm && matches!(operation, Operation::Discard | Operation::WriteZeroes { .. });
        if whole_large && self.random.below(6) == 0 {
            let length = self.random.below(self.size - offset + 1) / self.unit * self.unit;
            return Wish { operation, offset, length: length.max(self.unit) };
        }
        Wish { operation, offset, length }
    }

    fn range(&mut self) -> (u64, u64) {
        let small = 1 + self.random.below(8192 / self.unit);
        let (offset, length) = match self.pattern {
            Pattern::Sequential { cursor } => {
                // Some are long enough to be split over both volumes.
                let blocks = if self.random.below(3) == 0 { 96 } else { 16 };
                let length = 4096 * (1 + self.random.below(blocks));
                (cursor, length)
            }
            Pattern::Uniform if self.random.below(2) == 0 => (self.random.below(self.size) / 4096 * 4096, 4096),
            Pattern::Uniform => (self.random.below(self.size), small * self.unit),
            Pattern::Blocks { base, span } => {
                let blocks =
                    if self.random.below(24) == 0 { 16 + self.random.below(32) } else { 1 + self.random.below(3) };
                (base + self.random.below(span) / 4096 * 4096, 4096 * blocks)
            }
            Pattern::Hot { base } => (base + self.random.below(16384), small * self.unit),
        };
        let offset = (offset % self.size) / self.unit * self.unit;
        let length = (length / self.unit * self.unit).clamp(self.unit, self.size - offset);
        if let Pattern::Sequential { cursor } = &mut self.pattern {
            *cursor = (offset + length) % self.size;
        }
        (offset, length)
    }
}
