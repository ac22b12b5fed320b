//! What equal nodes deliver together, and the least number of them for a throughput.
//!
//! N nodes deliver N·(T_H − (N−1)·δ) in-job and N·(T_H − N·δ) centre-wide, with δ = 1 ÷ D_link GiB/s (PVK11, equation 1). A measured T_H is
//! a number, and N the lesser root of a quadratic equation, made whole and tested again in whole numbers. A modelled T_H depends on N:
//! each node has a share of the dataset, and the fewer nodes, the more of it overflows.
//!
//! Rates of files are rounded down to whole bytes a second: ten nodes of "0.8 GiB/s" would miss "8 GiB/s" by two bytes a second. So a rate
//! counts as what it may mean at most, a byte a second more, where it is asked whether nodes suffice, and as what it is in answers.

use surgetank_model::Bytes;

use super::problem::{Candidate, Mode, Problem, Rates, Redundancy};

/// Bounded, so that a target above everything ends the search for the highest one.
const TARGET_MAX: u64 = 1 << 60;
/// Whole numbers beside a root that floating point may have missed.
const BESIDE: u64 = 2;
/// Candidates whose most differs by a smaller part than one in so many are equal.
const SLIGHT: u64 = 1_000_000;
/// Of a modelled time, for floating point.
const TIME_ERROR: f64 = 1e-12;

/// Equal nodes.
#[derive(Clone, Copy, Debug)]
pub struct Nodes {
    throughput: Throughput,
    mode: Mode,
    /// What a link costs, as a fraction in bytes a second.
    loss: (u64, u64),
    redundancy: Redundancy,
    max: u64,
}

#[derive(Clone, Copy, Debug)]
enum Throughput {
    Measured(u64),
    Modelled(Model),
}

/// A node that takes in its share of a dataset: memory fills while it drains.
#[derive(Clone, Copy, Debug)]
struct Model {
    dataset: Bytes,
    memory: Bytes,
    ssd: Bytes,
    rates: Rates,
}

/// Bytes and bytes a second of a [`Model`], with redundancy.
struct Flow {
    /// What is stored of the dataset.
    stored: f64,
    memory: f64,
    ssd: f64,
    ingest: f64,
    ssd_write: f64,
    /// Stored bytes that drained ones make superfluous: the target has one copy.
    freed: f64,
}

impl Flow {
    /// What a node takes for a share of the stored bytes.
    fn time(&self, share: f64) -> f64 {
        let overflow = (share - self.memory).max(0.0);
        let beyond = (overflow - self.ssd).max(0.0);
        // Without SSD 0 ÷ 0 would be no time.
        let to_ssd = if self.ssd > 0.0 { overflow.min(self.ssd) / self.ssd_write } else { 0.0 };
        (share / self.ingest).max(to_ssd + beyond / self.freed)
    }

    /// The largest share that a node takes in within a time.
    fn share(&self, time: f64) -> f64 {
        let ssd_time = if self.ssd > 0.0 { self.ssd / self.ssd_write } else { 0.0 };
        let overflow = match time <= ssd_time {
            true => time * self.ssd_write,
            false => self.ssd + (time - ssd_time) * self.freed,
        };
        (time * self.ingest).min(self.memory + overflow)
    }
}

impl Model {
    /// `more`: bytes a second that rates may mean beyond what they are.
    fn flow(&self, redundancy: Redundancy, more: f64) -> Flow {
        let factor = redundancy.factor();
        Flow {
            stored: self.dataset.get() as f64 * factor,
            memory: self.memory.get() as f64,
            ssd: self.ssd.get() as f64,
            ingest: self.rates.ingest.get() as f64 + more,
            ssd_write: self.rates.ssd_write.map_or(0.0, |rate| rate.get() as f64 + more),
            freed: (self.rates.drain.get() as f64 + more) * factor,
        }
    }
}

impl Nodes {
    /// Those of a candidate; `None` if nothing says what they do.
    #[must_use]
    pub fn of(problem: &Problem, candidate: &Candidate) -> Option<Self> {
        let target = &problem.target;
        let throughput = match candidate.throughput {
            Some(rate) => Throughput::Measured(rate.get()),
            None => Throughput::Modelled(Model {
                dataset: target.dataset?,
                memory: candidate.memory,
                ssd: candidate.ssd,
                rates: problem.rates?,
            }),
        };
        Some(Self {
            throughput,
            mode: target.mode,
            loss: target.link.map_or((0, 1), |link| link.loss()),
            redundancy: target.redundancy,
            max: target.nodes_max,
        })
    }

    /// T_H: what one of so many takes of the application's bytes, in bytes a second, before what links cost.
    #[must_use]
    pub fn each_bytes_s(&self, nodes: u64) -> f64 {
        match self.throughput {
            Throughput::Measured(rate) => rate as f64 / self.redundancy.factor(),
            Throughput::Modelled(model) => {
                let share = model.dataset.get() as f64 / nodes as f64;
                share / model.flow(self.redundancy, 0.0).time(share * self.redundancy.factor())
            }
        }
    }

    /// What they deliver together, in bytes a second; never below nothing.
    #[must_use]
    pub fn delivered_bytes_s(&self, nodes: u64) -> f64 {
        let of = match self.throughput {
            Throughput::Measured(rate) => {
                let (delivered, scale) = self.exact(nodes, rate);
                delivered as f64 / scale as f64
            }
            Throughput::Modelled(_) => nodes as f64 * self.each_bytes_s(nodes) - self.lost(nodes),
        };
        of.max(0.0)
    }

    /// The least number of nodes that deliver so many bytes a second.
    #[must_use]
    pub fn least(&self, bytes_s: u64) -> Option<u64> {
        match self.throughput {
            Throughput::Measured(rate) => self.least_measured(rate, bytes_s),
            Throughput::Modelled(model) => self.least_modelled(&model, bytes_s),
        }
    }

    /// Nodes of which even without what links cost no fewer deliver so many bytes a second. A bound that takes no root.
    #[must_use]
    pub fn at_least(&self, bytes_s: u64) -> u64 {
        let rate = match self.throughput {
            Throughput::Measured(rate) => rate,
            Throughput::Modelled(model) => model.rates.ingest.get(),
        };
        let nodes = bytes_s as f64 * self.redundancy.factor() / (rate + 1) as f64;
        ((nodes * (1.0 - TIME_ERROR)) as u64).max(self.redundancy.nodes_min())
    }

    /// The most bytes a second that any number of nodes delivers, and how many nodes that are; `None`: no number delivers more than
    /// `above`.
    #[must_use]
    pub fn most(&self, above: u64) -> Option<(u64, u64)> {
        let (nodes, bytes_s) = match self.throughput {
            Throughput::Measured(rate) => self.most_measured(rate)?,
            Throughput::Modelled(model) => {
                // Whoever delivers more delivers less, too. Less than that is within what rates may mean beyond what they are.
                let mut met = above + above / SLIGHT + 1;
                // Nodes that only take in do no less.
                self.most_measured(model.rates.ingest.get() + 1).filter(|(_, bytes_s)| *bytes_s >= met)?;
                let mut nodes = self.least(met)?;
                let mut missed = TARGET_MAX.max(met + 1);
                while missed - met > 1 + met / SLIGHT / SLIGHT {
                    let middle = met + (missed - met) / 2;
                    match self.least(middle) {
                        Some(least) => (met, nodes) = (middle, least),
                        None => missed = middle,
                    }
                }
                (nodes, self.delivered_bytes_s(nodes) as u64)
            }
        };
        (bytes_s > above).then_some((nodes, bytes_s))
    }

    /// The top of the parabola, at a whole number of nodes.
    fn most_measured(&self, rate: u64) -> Option<(u64, u64)> {
        let peak = if self.loss.0 == 0 { self.max } else { (self.offered(rate) / (2.0 * self.delta())) as u64 };
        let value = |nodes: u64| {
            let (delivered, scale) = self.exact(nodes, rate);
            (delivered.div_euclid(scale), nodes)
        };
        let (bytes_s, nodes) = self.around(peak).map(value).max_by_key(|(bytes_s, nodes)| (*bytes_s, !nodes))?;
        Some((nodes, u64::try_from(bytes_s).ok()?))
    }

    /// δ in bytes a second.
    fn delta(&self) -> f64 {
        self.loss.0 as f64 / self.loss.1 as f64
    }

    /// What links cost so many nodes together, in bytes a second.
    fn lost(&self, nodes: u64) -> f64 {
        self.mode.links(nodes) as f64 * self.delta()
    }

    /// The linear term of what nodes deliver: T_H + δ in-job, T_H centre-wide.
    fn offered(&self, rate: u64) -> f64 {
        let each = rate as f64 / self.redundancy.factor();
        match self.mode {
            Mode::InJob => each + self.delta(),
            Mode::CentreWide => each,
        }
    }

    /// What nodes of a measured rate deliver, times a scale, and the scale. At most 2²⁴ nodes × 2⁵⁰ B/s × 2⁶ × 2⁴⁰.
    fn exact(&self, nodes: u64, rate: u64) -> (i128, i128) {
        let (stored, of) = self.redundancy.stored();
        let (loss, divisor) = self.loss;
        let [stored, of, loss, divisor] = [stored, of, loss, divisor].map(i128::from);
        let taken = i128::from(nodes) * i128::from(rate) * of * divisor;
        (taken - i128::from(self.mode.links(nodes)) * loss * stored, divisor * stored)
    }

    /// Numbers of nodes beside this one, of those that there can be.
    fn around(&self, nodes: u64) -> impl Iterator<Item = u64> + use<> {
        let least = self.redundancy.nodes_min().max(1);
        let nodes = nodes.min(self.max);
        nodes.saturating_sub(BESIDE).max(least)..=(nodes.max(least) + BESIDE).min(self.max)
    }

    /// N·(T_H − (N−1)·δ) ≥ T_app holds between the roots of a parabola. The lesser root, 2·T_app ÷ (b + √(b² − 4·δ·T_app)), is
    /// ((T_H+δ) − √((T_H+δ)² − 4·δ·T_app)) ÷ 2δ without its cancellation, and holds for δ = 0. Its error is below 1: where the square root is
    /// small, it is of half the digits of b, and N of seven digits.
    fn least_measured(&self, rate: u64, bytes_s: u64) -> Option<u64> {
        let most = rate + 1;
        let linear = self.offered(most);
        let under_root = linear * linear - 4.0 * self.delta() * bytes_s as f64;
        let root = 2.0 * bytes_s as f64 / (linear + under_root.max(0.0).sqrt());
        let suffices = |nodes: &u64| {
            let (delivered, scale) = self.exact(*nodes, most);
            // What it may mean at most, it does not mean.
            delivered > i128::from(bytes_s) * scale
        };
        self.around(root.ceil() as u64).find(suffices)
    }

    /// Scans numbers of nodes upward. The time that a node may take, S ÷ (T_app + what links cost), shrinks with N, and so does what it
    /// takes: the number at which it takes no more than now is allowed is therefore none too many, and the scan goes there at once.
    fn least_modelled(&self, model: &Model, bytes_s: u64) -> Option<u64> {
        let flow = model.flow(self.redundancy, 1.0);
        let dataset = model.dataset.get() as f64;
        let mut nodes = self.redundancy.nodes_min().max(1);
        while nodes <= self.max {
            let allowed = dataset / (bytes_s as f64 + self.lost(nodes)) * (1.0 + TIME_ERROR);
            if flow.time(flow.stored / nodes as f64) <= allowed {
                return Some(nodes);
            }
            let next = (flow.stored / flow.share(allowed) * (1.0 - TIME_ERROR)).ceil();
            nodes = (nodes + 1).max(next as u64);
        }
        None
    }
}
