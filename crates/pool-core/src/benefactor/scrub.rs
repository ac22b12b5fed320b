//! Scrubbing: a benefactor reads everything that it holds again and again, so that damage is found while other copies are whole.
//!
//! A *pass* is what there was at its beginning, each chunk once, those of one session in the order in which they were written. It is spread
//! evenly over half of the period. While requests are under way, and until a moment after, nothing is read, as long as the pass can still
//! end within the period; one that is late goes on beside them. The rate is a limit in any case.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Bandwidth, Instant};

use super::holdings::{Entry, Holdings, Instance, Location};
use crate::planted::{Bug, planted};

/// How a benefactor scrubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Everything is read once in so long.
    pub period: Duration,
    /// Never faster than this, though that takes longer.
    pub rate: Bandwidth,
    /// How long there must have been no request.
    pub quiet: Duration,
}

impl Default for Config {
    fn default() -> Self {
        // A day: most files are drained in less. The rate is a tenth of what a slow SSD reads.
        let period = Duration::from_secs(24 * 60 * 60);
        Self { period, rate: Bandwidth::from_mib_s(50), quiet: Duration::from_secs(1) }
    }
}

/// What scrubbing has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Passes that have ended.
    pub passes: u64,
    /// Chunks that were read, in all passes.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Chunks that it was the first to find damaged.
    pub damaged: u64,
    /// The last pass that has ended.
    pub last: Option<Last>,
}

/// A pass that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// How long ago.
    pub ended: Duration,
    /// Chunks that it read.
    pub chunks: u64,
    /// Chunks of these that were damaged.
    pub damaged: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read this chunk, then [`Scrub::read`].
    Read(Entry, Location),
    /// Ask again then.
    Wait(Instant),
}

#[derive(Debug)]
struct Pass {
    began: Instant,
    left: VecDeque<(Instance, u32)>,
    /// Bytes that there were at its beginning, and those of them that are behind it.
    total: u64,
    done: u64,
    chunks: u64,
    damaged: u64,
}

impl Pass {
    /// When so many bytes are done, if all are in that time.
    fn at(&self, done: u64, within: Duration) -> Instant {
        let nanos = within.as_nanos() * u128::from(done) / u128::from(self.total.max(1));
        self.began + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Scrub {
    config: Config,
    pass: Option<Pass>,
    reading: Option<Instance>,
    /// Neither a pass nor a read begins before.
    next_pass: Instant,
    next_read: Instant,
    /// Requests that are under way, and until when the last one that was counts.
    requests: u64,
    quiet: Instant,
    report: Report,
    /// When the last pass ended.
    ended: Instant,
}

impl Scrub {
    /// A benefactor that begins.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            pass: None,
            reading: None,
            next_pass: Instant::ZERO,
            next_read: Instant::ZERO,
            requests: 0,
            quiet: Instant::ZERO,
            report: Report::default(),
            ended: Instant::ZERO,
        }
    }

    /// A request for bytes begins.
    pub fn request_began(&mut self) {
        self.requests += 1;
    }

    /// A request for bytes has ended.
    pub fn request_ended(&mut self, now: Instant) {
        self.requests = self.requests.saturating_sub(1);
        self.quiet = now + self.config.quiet;
    }

    /// What to read now. Its bytes stay where they are until [`Scrub::read`].
    pub fn next(&mut self, now: Instant, holdings: &mut Holdings) -> Next {
        let again = now + self.config.quiet;
        if self.reading.is_some() {
            return Next::Wait(again);
        }
        if self.pass.is_none() {
            if now < self.next_pass {
                return Next::Wait(self.next_pass);
            }
            let left: VecDeque<(Instance, u32)> = holdings.wanted().collect();
            let total = left.iter().map(|(_, length)| u64::from(*length)).sum();
            // Nothing is no pass.
            if total == 0 {
                return Next::Wait(again);
            }
            self.pass = Some(Pass { began: now, left, total, done: 0, chunks: 0, damaged: 0 });
            self.next_pass = now + self.config.period;
        }
        while let Some(pass) = &mut self.pass {
            let Some((instance, length)) = pass.left.front().copied() else {
                self.end_pass(now);
                break;
            };
            let behind = pass.done + u64::from(length);
            let even = pass.at(pass.done, self.config.period / 2);
            let late = pass.at(behind, self.config.period);
            let calm = if self.requests > 0 { again } else { self.quiet };
            let calm = if planted(Bug::ScrubBesideRequests) { now } else { calm.min(late) };
            let due = even.max(self.next_read).max(calm);
            if now < due {
                return Next::Wait(due);
            }
            pass.left.pop_front();
            pass.done = behind;
            if let Some((entry, location)) = holdings.find_instance(instance) {
                if location == Location::Ssd && planted(Bug::ScrubPassesOverSsd) {
                    holdings.read(instance);
                    continue;
                }
                pass.chunks += 1;
                self.report.chunks += 1;
                self.report.bytes += u64::from(length);
                self.reading = Some(instance);
                self.next_read = now + self.config.rate.time_for(length.into());
                return Next::Read(entry, location);
            }
        }
        Next::Wait(self.next_pass.max(now))
    }

    fn end_pass(&mut self, now: Instant) {
        let Some(pass) = self.pass.take() else { return };
        self.ended = now;
        self.report.passes += 1;
        self.report.last = Some(Last { ended: Duration::ZERO, chunks: pass.chunks, damaged: pass.damaged });
    }

    /// The bytes of what is being read are those that came, or not; whether it is damaged and nobody knew.
    pub fn read(&mut self, holdings: &mut Holdings, intact: bool) -> bool {
        let Some(instance) = self.reading.take() else { return false };
        let is_news = !intact && !planted(Bug::ScrubbedDamageKept) && holdings.damaged(instance);
        if is_news {
            self.report.damaged += 1;
            if let Some(pass) = &mut self.pass {
                pass.damaged += 1;
            }
        }
        holdings.read(instance);
        is_news
    }

    /// What it has come to.
    #[must_use]
    pub fn report(&self, now: Instant) -> Report {
        let last = self.report.last.map(|last| Last { ended: now.since(self.ended), ..last });
        Report { last, ..self.report }
    }
}
