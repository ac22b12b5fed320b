//! The optimum for a trace, which does not wait for its device.
//!
//! A *period* is a time in which the backing volume alone, idle at its start, would be busy; only late periods matter. At
//! `t` the device has done at most Bb·(t − start), and what is dirty, and what a caching volume served of reads, beyond
//! what had arrived at the start. What is dirty is no more than the cache holds, nor than Bc times the time for which one
//! was held; without a cache nothing is. So the device is late at `t` at least if what had arrived [`GRACE`] before exceeds
//! that. Everything that a period absorbs can drain within it, so nothing is carried to the next one.
//!
//! Dynamic programming over cells of each period: nothing rented, or a size, and for how many cells one was held. A cell in
//! which a volume comes or goes is charged for the time that it saves there, one that it spans for its length.
//! Between two rentals the provider works for the latencies of both: in cells that are no longer, one comes or goes. In
//! longer cells, every moment may have the cheapest size that saves it.
//!
//! Reads are taken to be served by a caching volume, as far as it is fast enough, once anything was written.

use super::problem::{Pipe, Problem};
use crate::lateness::GRACE;

/// Cells of all periods together, and of one.
const CELLS_ALL: usize = 4096;
const CELLS_MAX: usize = 192;
const CELLS_MIN: usize = 4;
/// Cells that count as held; after more, a cache is as full as it can be.
const HELD_MAX: usize = 24;

/// Bytes that arrive at once.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Seconds since the start of the run.
    pub at: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub written: f64,
}

/// A caching volume of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Which size.
    pub size: usize,
    /// From when to when it is used, in seconds: the cells in which it comes and goes.
    pub from: (f64, f64),
    /// It is given up when it is clean, from this second on.
    pub until: f64,
}

/// A time in which the backing volume alone is late.
struct Period<'a> {
    arrivals: &'a [Arrival],
    start: f64,
    end: f64,
    /// Anything was written until its end.
    has_written: bool,
    /// The run ends with it.
    is_last: bool,
}

/// Lateness of a cell: what it costs, and its time.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    cost: f64,
    time: f64,
}

/// The arrivals that make a device late from some moment on.
struct Piece {
    from: f64,
    until: f64,
    /// Bytes that must be done by then.
    bytes: f64,
    /// Of them, reads.
    read: f64,
    /// Cost of a second.
    weight: f64,
}

fn periods<'a>(backing: &Pipe, arrivals: &'a [Arrival]) -> Vec<Period<'a>> {
    let mut periods = Vec::new();
    let (mut first, mut has_written) = (0, false);
    while first < arrivals.len() {
        let start = arrivals[first].at;
        let (mut bytes, mut next) = (0.0, first);
        let mut end = start;
        while next < arrivals.len() && (next == first || arrivals[next].at <= end) {
            bytes += arrivals[next].read + arrivals[next].written;
            has_written |= arrivals[next].written > 0.0;
            end = start + backing.time(bytes);
            next += 1;
        }
        let is_last = next == arrivals.len();
        periods.push(Period { arrivals: &arrivals[first..next], start, end, has_written, is_last });
        first = next;
    }
    periods
}

impl Period<'_> {
    /// What makes the device late; empty if the backing volume keeps up.
    fn pieces(&self, problem: &Problem) -> Vec<Piece> {
        let grace = GRACE.as_secs_f64();
        let (mut bytes, mut read) = (0.0, 0.0);
        let mut pieces = Vec::new();
        for (index, arrival) in self.arrivals.iter().enumerate() {
            bytes += arrival.read + arrival.written;
            read += if self.has_written { arrival.read } else { 0.0 };
            let next = self.arrivals.get(index + 1);
            let until = next.map_or(f64::INFINITY, |next| next.at + grace);
            // The run lasts until the last bytes are done.
            let tail = if self.is_last && next.is_none() { problem.per_s } else { 0.0 };
            let piece = Piece { from: arrival.at + grace, until, bytes, read, weight: problem.value + tail };
            if piece.from < piece.until.min(self.start + problem.backing.time(bytes)) {
                pieces.push(piece);
            }
        }
        pieces
    }
}

/// The optimum over time.
pub struct Arrivals<'a> {
    problem: &'a Problem,
    held_max: usize,
    costs: Vec<f64>,
    now: f64,
    cells: Vec<Cell>,
}

/// A cell that was decided: from where each state came.
struct Cell {
    from: f64,
    until: f64,
    arcs: Vec<Arc>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Arc {
    from: u32,
    /// One more than the size that is rented in this cell alone.
    within: u16,
}

/// Lateness of a cell by what serves it.
struct Lates {
    width: f64,
    /// Without a cache that was ever held; and where reads were served by one.
    none: Late,
    reads: Late,
    /// By size, if it has been held for long.
    sizes: Vec<Late>,
    /// By cells for which a cache was held.
    held: Vec<Late>,
    /// The least that the cell costs if each moment has the cheapest size that saves it.
    cheapest: f64,
}

impl Late {
    fn of(pieces: &[Piece], backing: &Pipe, start: f64, cell: (f64, f64), served: impl Fn(&Piece) -> f64) -> Self {
        let mut late = Self::default();
        for piece in pieces {
            let until = piece.until.min(cell.1).min(start + backing.time(piece.bytes - served(piece)));
            let time = (until - piece.from.max(cell.0)).max(0.0);
            late.time += time;
            late.cost += time * piece.weight;
        }
        late
    }

    /// The greater of two, of which one is the other's part.
    fn or(self, other: Self) -> Self {
        if self.time >= other.time { self } else { other }
    }

    /// The cost if a volume at `per_s` is held for what it saves of `self`; to save nothing is always possible.
    fn saved(self, with: Self, per_s: f64) -> f64 {
        self.cost.min(with.cost + per_s * (self.time - with.time).max(0.0))
    }
}

impl<'a> Arrivals<'a> {
    /// The least cost of a trace, and how. The run ends when everything is done.
    pub fn optimum(problem: &'a Problem, arrivals: &[Arrival]) -> (f64, Vec<Held>) {
        let ended = arrivals.last().map_or(0.0, |last| last.at);
        let late: Vec<_> = periods(&problem.backing, arrivals)
            .into_iter()
            .map(|period| (period.pieces(problem), period))
            .filter(|(pieces, _)| !pieces.is_empty())
            .collect();
        let most = (CELLS_ALL / late.len().max(1)).clamp(CELLS_MIN, CELLS_MAX);
        let states = (HELD_MAX + 1) * (problem.sizes.len() + 1);
        let mut optimum =
            Self { problem, held_max: HELD_MAX, costs: vec![f64::INFINITY; states], now: 0.0, cells: Vec::new() };
        optimum.costs[0] = 0.0;
        for (pieces, period) in &late {
            optimum.enter(period);
            optimum.period(period, pieces, most);
        }
        let least = optimum.least();
        (least.0 + problem.per_s * ended, optimum.plan(least.1))
    }

    fn state(&self, held: usize, size: Option<usize>) -> usize {
        held * (self.problem.sizes.len() + 1) + size.map_or(0, |size| size + 1)
    }

    fn size_of(&self, state: usize) -> Option<usize> {
        (state % (self.problem.sizes.len() + 1)).checked_sub(1)
    }

    /// The least cost at the end, with nothing rented.
    fn least(&self) -> (f64, usize) {
        let ended = |state: usize| {
            let held = self.size_of(state).map_or(0.0, |size| self.problem.sizes[size].per_s * self.problem.after);
            (self.costs[state] + held, state)
        };
        let all = (0..self.costs.len()).map(ended);
        all.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 0))
    }

    /// Time passes until a period begins; nothing of the one before is left.
    fn enter(&mut self, period: &Period<'_>) {
        let gap = (period.start - self.now).max(0.0);
        let mut arcs = vec![Arc::default(); self.costs.len()];
        let mut next = vec![f64::INFINITY; self.costs.len()];
        for (state, cost) in self.costs.iter().enumerate().filter(|(_, cost)| cost.is_finite()) {
            let from = Arc { from: state as u32, within: 0 };
            let size = self.size_of(state);
            let kept = size.map_or(0.0, |size| self.problem.sizes[size].per_s * gap);
            let ended = size.map_or(0.0, |size| self.problem.sizes[size].per_s * self.problem.after);
            for (to, cost) in [(self.state(0, size), cost + kept), (0, cost + ended)] {
                if cost < next[to] {
                    (next[to], arcs[to]) = (cost, from);
                }
            }
        }
        self.costs = next;
        self.cells.push(Cell { from: self.now, until: period.start, arcs });
        self.now = period.start;
    }

    fn period(&mut self, period: &Period<'_>, pieces: &[Piece], most: usize) {
        let length = period.end - period.start;
        let between = self.problem.before + self.problem.after;
        let wanted = if between > 0.0 { (length / between).ceil().min(1e6) as usize } else { most };
        let count = wanted.clamp(most.min(32), most);
        let width = length / count as f64;
        let mut first = 0;
        for number in 0..count {
            let cell = (period.start + number as f64 * width, period.start + (number + 1) as f64 * width);
            while first < pieces.len() && pieces[first].until <= cell.0 {
                first += 1;
            }
            let last = pieces[first..].iter().position(|piece| piece.from >= cell.1);
            let pieces = &pieces[first..last.map_or(pieces.len(), |last| first + last)];
            let lates = self.lates(pieces, period.start, cell);
            self.decide(&lates, cell, width > between);
        }
        self.now = period.end;
    }

    fn lates(&self, pieces: &[Piece], start: f64, cell: (f64, f64)) -> Lates {
        let problem = self.problem;
        let width = cell.1 - cell.0;
        let late = |served: &dyn Fn(&Piece) -> f64| Late::of(pieces, &problem.backing, start, cell, served);
        let none = late(&|_| 0.0);
        let reads = late(&|piece| piece.read);
        let sizes: Vec<Late> = problem.sizes.iter().map(|size| late(&|piece| size.capacity + piece.read)).collect();
        let held = (0..=self.held_max).map(|held| match held {
            0 => none,
            held if held == self.held_max => Late::default(),
            held => late(&|_| problem.caching.rate * width * held as f64 + problem.caching.ahead),
        });
        let (mut cheapest, mut left) = (0.0, none);
        for (size, late) in problem.sizes.iter().zip(&sizes).filter(|(_, late)| late.time < none.time) {
            if late.time < left.time {
                cheapest += (left.cost - late.cost).min(size.per_s * (left.time - late.time));
                left = *late;
            }
        }
        cheapest += left.cost;
        Lates { width, none, reads, held: held.collect(), sizes, cheapest }
    }

    fn decide(&mut self, lates: &Lates, cell: (f64, f64), is_long: bool) {
        let problem = self.problem;
        let mut next = vec![f64::INFINITY; self.costs.len()];
        let mut arcs = vec![Arc::default(); self.costs.len()];
        let mut relax = |to: usize, cost: f64, arc: Arc| {
            if cost < next[to] {
                (next[to], arcs[to]) = (cost, arc);
            }
        };
        // A volume that is rented from the start of the run on comes when it can.
        let can_come = cell.1 > problem.before;
        for held in 0..=self.held_max {
            let (longer, without) = ((held + 1).min(self.held_max), lates.reads.or(lates.held[held]));
            let without = if held == 0 { lates.none } else { without };
            let none = self.state(held, None);
            let arc = |from: usize, within: usize| Arc { from: from as u32, within: within as u16 };
            let cost = self.costs[none];
            if cost.is_finite() {
                relax(none, cost + without.cost, arc(none, 0));
            }
            for (index, size) in problem.sizes.iter().enumerate() {
                let with = lates.sizes[index].or(lates.held[longer]);
                let with = if with.time < without.time { with } else { without };
                let saved = without.saved(with, size.per_s);
                let (come, go) = (size.fee + size.per_s * problem.before, size.per_s * problem.after);
                let on = self.state(longer, Some(index));
                if cost.is_finite() && can_come {
                    relax(on, cost + come + saved, arc(none, 0));
                    relax(self.state(longer, None), cost + come + saved + go, arc(none, index + 1));
                }
                let from = self.state(held, Some(index));
                if self.costs[from].is_finite() {
                    let cost = self.costs[from];
                    relax(on, cost + size.per_s * lates.width + with.cost, arc(from, 0));
                    relax(self.state(longer, None), cost + saved + go, arc(from, 0));
                    relax(none, cost + go + without.cost, arc(from, 0));
                }
            }
        }
        if is_long && can_come {
            self.any(lates, &mut relax);
        }
        self.costs = next;
        self.cells.push(Cell { from: cell.0, until: cell.1, arcs });
    }

    /// Several volumes come and go in a cell.
    fn any(&self, lates: &Lates, relax: &mut impl FnMut(usize, f64, Arc)) {
        let problem = self.problem;
        let least = |held: bool| {
            let states = (0..self.costs.len()).filter(|state| self.size_of(*state).is_some() == held);
            let cost = |state: usize| {
                let gone = self.size_of(state).map_or(0.0, |size| problem.sizes[size].per_s * problem.after);
                (self.costs[state] + gone, state)
            };
            states.map(cost).min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 0))
        };
        let Some(smallest) = problem.sizes.first() else { return };
        let another = smallest.fee + smallest.per_s * (problem.before + problem.after);
        let (idle, held) = (least(false), least(true));
        for (cost, from) in [(idle.0 + another, idle.1), held] {
            let arc = Arc { from: from as u32, within: 0 };
            relax(self.state(self.held_max, None), cost + lates.cheapest, arc);
        }
        for (index, size) in problem.sizes.iter().enumerate() {
            let come = size.fee + size.per_s * problem.before;
            for (cost, from) in [idle, held] {
                let arc = Arc { from: from as u32, within: 0 };
                relax(self.state(self.held_max, Some(index)), cost + come + lates.cheapest, arc);
            }
        }
    }

    fn plan(&self, last: usize) -> Vec<Held> {
        let mut state = last;
        let mut plan = Vec::new();
        let mut until = self.now;
        for cell in self.cells.iter().rev() {
            let arc = cell.arcs[state];
            let (before, after) = (self.size_of(arc.from as usize), self.size_of(state));
            if let Some(size) = usize::from(arc.within).checked_sub(1) {
                plan.push(Held { size, from: (cell.from, cell.until), until: cell.until });
            }
            if before != after {
                if let Some(size) = after {
                    plan.push(Held { size, from: (cell.from, cell.until), until });
                }
                if before.is_some() {
                    until = cell.until;
                }
            }
            state = arc.from as usize;
        }
        plan.reverse();
        plan
    }
}
