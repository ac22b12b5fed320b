//! What a benefactor holds, and where it flows.

use surgetank_model::Bytes;
use surgetank_planner::provision::Rates;

use super::planted::{Bug, planted};

/// An SSD that was full takes in again when so much of it is free: it frees whole segments, 64 MiB of a GiB. Without this its agent
/// would turn at every byte.
const FREE_AGAIN: f64 = 1.0 / 16.0;

/// Equal benefactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// How many; none is taken for one.
    pub nodes: u64,
    /// Memory of each.
    pub memory: Bytes,
    /// SSD of each.
    pub ssd: Bytes,
    /// What each does: above zero, as all rates. Without `ssd_write` it has no SSD.
    pub rates: Rates,
}

/// Bytes in memory and on SSD, of one benefactor or of equal ones together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiers {
    limits: Limits,
    pub memory: f64,
    pub ssd: f64,
    /// Whether the SSD was full, and has not freed enough since.
    is_ssd_closed: bool,
    /// What came in and what has reached the target.
    pub absorbed: f64,
    pub drained: f64,
}

/// Bytes and bytes a second.
#[derive(Clone, Copy, Debug)]
struct Limits {
    memory: f64,
    ssd: f64,
    ingest: f64,
    ssd_write: f64,
    drain: f64,
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flow {
    pub taken: f64,
    to_ssd: f64,
    to_target: f64,
    from_ssd: f64,
}

impl Tiers {
    /// Those of so many equal benefactors together, empty.
    pub fn of(count: u64, pool: &Pool) -> Self {
        let count = count.max(1) as f64;
        let ssd_write = pool.rates.ssd_write.map_or(0.0, |rate| rate.get() as f64);
        let limits = Limits {
            memory: count * pool.memory.get() as f64,
            ssd: if ssd_write > 0.0 && !planted(Bug::SsdLeftOut) { count * pool.ssd.get() as f64 } else { 0.0 },
            ingest: count * pool.rates.ingest.get() as f64,
            ssd_write: count * ssd_write,
            drain: count * pool.rates.drain.get() as f64,
        };
        Self { limits, memory: 0.0, ssd: 0.0, is_ssd_closed: false, absorbed: 0.0, drained: 0.0 }
    }

    /// Whether the target has everything.
    pub fn is_empty(&self) -> bool {
        self.memory == 0.0 && self.ssd == 0.0
    }

    /// What flows from now on, until [`Self::horizon`], where as much is offered as comes in, or nothing is.
    pub fn flow(&self, is_offered: bool) -> Flow {
        let limits = &self.limits;
        let offered = if is_offered { limits.ingest } else { 0.0 };
        let to_ssd = limits.ssd > 0.0 && !self.is_ssd_closed;
        let agent = if to_ssd { limits.ssd_write } else { limits.drain };
        let moved = if self.memory > 0.0 { agent } else { agent.min(offered) };
        let has_room = self.memory < limits.memory || planted(Bug::MemoryOverfilled);
        let taken = if has_room { offered } else { offered.min(moved) };
        // The agent's time that memory leaves.
        let idle = if planted(Bug::TwoAgents) { 1.0 } else { 1.0 - moved / agent };
        let drain = if planted(Bug::SsdDrainsSlowly) { limits.drain / 2.0 } else { limits.drain };
        let from_ssd = match drain * idle {
            most if self.ssd > 0.0 => most,
            most if to_ssd => most.min(moved),
            _ => 0.0,
        };
        Flow { taken, to_ssd: if to_ssd { moved } else { 0.0 }, to_target: if to_ssd { 0.0 } else { moved }, from_ssd }
    }

    /// Seconds until a flow changes by itself.
    pub fn horizon(&self, flow: &Flow) -> f64 {
        self.memory_s(flow).min(self.ssd_s(flow))
    }

    fn memory_s(&self, flow: &Flow) -> f64 {
        let more = flow.taken - flow.to_ssd - flow.to_target;
        if planted(Bug::MemoryOverfilled) && more > 0.0 {
            return f64::INFINITY;
        }
        until(self.memory, more, self.limits.memory)
    }

    fn ssd_s(&self, flow: &Flow) -> f64 {
        let more = flow.to_ssd - flow.from_ssd;
        let seconds = until(self.ssd, more, self.limits.ssd);
        match self.is_ssd_closed && more < 0.0 {
            true => seconds.min((self.ssd - self.reopens_at()).max(0.0) / -more),
            false => seconds,
        }
    }

    fn reopens_at(&self) -> f64 {
        self.limits.ssd * (1.0 - FREE_AGAIN)
    }

    /// Lets a flow go on for so long, at most its horizon. What is full or empty then is so exactly, whatever floating point makes
    /// of the rest.
    pub fn advance(&mut self, flow: &Flow, seconds: f64) {
        let (memory_s, ssd_s) = (self.memory_s(flow), self.ssd_s(flow));
        let (more_memory, more_ssd) = (flow.taken - flow.to_ssd - flow.to_target, flow.to_ssd - flow.from_ssd);
        let is_reopened = self.is_ssd_closed && more_ssd < 0.0 && seconds >= ssd_s;
        self.memory = reached(self.memory, more_memory, seconds, self.limits.memory, seconds >= memory_s);
        self.ssd = match is_reopened {
            true => self.reopens_at().min(self.ssd),
            false => reached(self.ssd, more_ssd, seconds, self.limits.ssd, seconds >= ssd_s),
        };
        self.is_ssd_closed = match self.is_ssd_closed {
            true => !is_reopened,
            false => self.ssd >= self.limits.ssd,
        };
        self.absorbed += flow.taken * seconds;
        let counted_early = if planted(Bug::SsdCountedAsDrained) { flow.to_ssd } else { 0.0 };
        self.drained += (flow.to_target + flow.from_ssd + counted_early) * seconds;
    }
}

/// Seconds until an amount that changes so fast is nothing or all.
fn until(amount: f64, more: f64, all: f64) -> f64 {
    match more {
        _ if more > 0.0 => (all - amount).max(0.0) / more,
        _ if more < 0.0 => amount / -more,
        _ => f64::INFINITY,
    }
}

/// The amount after so long. `is_end`: it has become nothing or all.
fn reached(amount: f64, more: f64, seconds: f64, all: f64, is_end: bool) -> f64 {
    match is_end {
        true if more > 0.0 => all,
        true if more < 0.0 => 0.0,
        _ => amount + more * seconds,
    }
}
