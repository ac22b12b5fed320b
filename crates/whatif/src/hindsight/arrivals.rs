//! The optimum for a trace, which does not wait for its device.
//!
//! A *period* is a time in which the backing volume alone, idle at its start, would be busy; only late periods matter. At
//! `t` the device has done at most Bb·(t − start), and what is dirty, and what a caching volume served of reads, beyond
//! what had arrived at the start. What is dirty is no more than the cache holds, than was written in the period, than Bc
//! times the time for which this volume is held, or than Bb times the time until it is released: it must be clean then.
//! So the device is late at `t` at least if what had arrived [`GRACE`] before exceeds that. Everything that a period absorbs
//! can drain within it, so nothing is carried to the next one.
//!
//! Dynamic programming over cells of each period: nothing rented; or a size, held for so many cells; or a size that is clean
//! in so many cells. A cell in which a volume comes or goes is charged for the time that it saves there, one that it spans
//! for its length. Between two rentals the provider works for the latencies of both: in cells that are no longer, one
//! comes or goes. In longer cells, every moment may have the cheapest size that saves it.
//!
//! Reads are taken to be served by a caching volume once anything was written.

use super::problem::{Pipe, Problem};
use crate::lateness::GRACE;

/// Cells of all periods together, and of one.
const CELLS_ALL: usize = 4096;
const CELLS_MAX: usize = 512;
const CELLS_MIN: usize = 4;
/// Cells that count as held; after more, a cache is as full as it can be.
const HELD_MAX: usize = 24;
/// Cells that a drain may take; a volume that is released later is not told from one that stays.
const DRAIN_MAX: usize = 64;

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
    /// It is released when it is clean, from this second on.
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
    /// Of them, reads that may hit, and writes.
    read: f64,
    written: f64,
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
        let (mut bytes, mut read, mut written) = (0.0, 0.0, 0.0);
        let mut pieces = Vec::new();
        for (index, arrival) in self.arrivals.iter().enumerate() {
            bytes += arrival.read + arrival.written;
            written += arrival.written;
            read += if self.has_written { arrival.read } else { 0.0 };
            let next = self.arrivals.get(index + 1);
            let until = next.map_or(f64::INFINITY, |next| next.at + grace);
            // The run lasts until the last bytes are done.
            let tail = if self.is_last && next.is_none() { problem.per_s } else { 0.0 };
            let piece = Piece { from: arrival.at + grace, until, bytes, read, written, weight: problem.value + tail };
            if piece.from < piece.until.min(self.start + problem.backing.time(bytes)) {
                pieces.push(piece);
            }
        }
        pieces
    }
}

/// The optimum over time. States: nothing rented, never in this period or before in it; a size, for so many cells; a size
/// that is clean after so many more cells.
pub struct Arrivals<'a> {
    problem: &'a Problem,
    costs: Vec<f64>,
    now: f64,
    cells: Vec<Cell>,
}

/// A state in which something is rented; before these come the two in which nothing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held { size: usize, cells: usize },
    Drains { size: usize, cells: usize },
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

/// The states after a cell.
struct Next {
    costs: Vec<f64>,
    arcs: Vec<Arc>,
}

impl Next {
    fn new(count: usize) -> Self {
        Self { costs: vec![f64::INFINITY; count], arcs: vec![Arc::default(); count] }
    }

    fn relax(&mut self, to: usize, cost: f64, from: usize, within: usize) {
        if cost < self.costs[to] {
            self.costs[to] = cost;
            self.arcs[to] = Arc { from: from as u32, within: within as u16 };
        }
    }
}

/// Lateness of a cell by what serves it.
struct Lates {
    width: f64,
    /// Without a cache that was ever held; and where reads were served by one.
    none: Late,
    reads: Late,
    /// By size.
    sizes: Vec<Late>,
    /// By cells for which a cache was held, this one included, and by those until it is clean.
    held: Vec<Late>,
    drains: Vec<Late>,
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
        let states = 2 + problem.sizes.len() * (HELD_MAX + 1 + DRAIN_MAX);
        let mut optimum = Self { problem, costs: vec![f64::INFINITY; states], now: 0.0, cells: Vec::new() };
        optimum.costs[0] = 0.0;
        for (pieces, period) in &late {
            optimum.enter(period);
            optimum.period(period, pieces, most);
        }
        let least = optimum.least(|_| true);
        (least.0 + problem.per_s * ended, optimum.plan(least.1))
    }

    fn index(state: State) -> usize {
        let of = |size: usize, place: usize| 2 + size * (HELD_MAX + 1 + DRAIN_MAX) + place;
        match state {
            State::Held { size, cells } => of(size, cells.min(HELD_MAX)),
            State::Drains { size, cells } => of(size, HELD_MAX + cells),
        }
    }

    fn size_of(state: usize) -> Option<usize> {
        Some(state.checked_sub(2)? / (HELD_MAX + 1 + DRAIN_MAX))
    }

    /// What a rental costs that ends now.
    fn ended(&self, state: usize) -> f64 {
        let after = |size: usize| self.problem.sizes[size].per_s * self.problem.after;
        self.costs[state] + Self::size_of(state).map_or(0.0, after)
    }

    /// The least cost with nothing rented, of the states that these are.
    fn least(&self, of: impl Fn(Option<usize>) -> bool) -> (f64, usize) {
        let states = (0..self.costs.len()).filter(|state| of(Self::size_of(*state)));
        let all = states.map(|state| (self.ended(state), state));
        all.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 0))
    }

    /// Time passes until a period begins; nothing of the one before is left.
    fn enter(&mut self, period: &Period<'_>) {
        let gap = (period.start - self.now).max(0.0);
        let mut next = Next::new(self.costs.len());
        for state in (0..self.costs.len()).filter(|state| self.costs[*state].is_finite()) {
            next.relax(0, self.ended(state), state, 0);
            if let Some(size) = Self::size_of(state) {
                let kept = self.costs[state] + self.problem.sizes[size].per_s * gap;
                next.relax(Self::index(State::Held { size, cells: 0 }), kept, state, 0);
            }
        }
        self.end_cell(next, (self.now, period.start));
    }

    fn end_cell(&mut self, next: Next, (from, until): (f64, f64)) {
        self.costs = next.costs;
        self.cells.push(Cell { from, until, arcs: next.arcs });
        self.now = until;
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
    }

    fn lates(&self, pieces: &[Piece], start: f64, cell: (f64, f64)) -> Lates {
        let problem = self.problem;
        let width = cell.1 - cell.0;
        let late = |served: &dyn Fn(&Piece) -> f64| Late::of(pieces, &problem.backing, start, cell, served);
        let none = late(&|_| 0.0);
        let reads = late(&|piece| piece.read);
        let room = |most: f64, piece: &Piece| most.min(piece.written) + piece.read;
        let sizes: Vec<Late> = problem.sizes.iter().map(|size| late(&|piece| room(size.capacity, piece))).collect();
        let ramp = |pipe: &Pipe, cells: usize| {
            let most = pipe.rate * width * cells as f64 + pipe.ahead;
            late(&|piece| room(most, piece))
        };
        let full = late(&|piece| room(f64::INFINITY, piece));
        let held = (0..=HELD_MAX + 1).map(|cells| match cells {
            cells if cells > HELD_MAX => full,
            cells => ramp(&problem.caching, cells),
        });
        let drains = (0..=DRAIN_MAX).map(|cells| ramp(&problem.backing, cells));
        let (mut cheapest, mut left) = (0.0, none);
        for (size, late) in problem.sizes.iter().zip(&sizes).filter(|(_, late)| late.time < none.time) {
            if late.time < left.time {
                cheapest += (left.cost - late.cost).min(size.per_s * (left.time - late.time));
                left = *late;
            }
        }
        cheapest += left.cost;
        Lates { width, none, reads, held: held.collect(), drains: drains.collect(), sizes, cheapest }
    }

    fn decide(&mut self, lates: &Lates, cell: (f64, f64), is_long: bool) {
        let mut next = Next::new(self.costs.len());
        // A volume that is rented from the start of the run on comes when it can.
        let can_come = cell.1 > self.problem.before;
        for before in [false, true] {
            let none = usize::from(before);
            let without = if before { lates.reads } else { lates.none };
            if self.costs[none].is_finite() {
                next.relax(none, self.costs[none] + without.cost, none, 0);
                if can_come {
                    self.come(lates, none, without, &mut next);
                }
            }
        }
        for size in 0..self.problem.sizes.len() {
            self.keep(lates, size, &mut next);
        }
        if is_long && can_come {
            self.any(lates, &mut next);
        }
        self.end_cell(next, cell);
    }

    /// A volume comes, and may go in the same cell.
    fn come(&self, lates: &Lates, none: usize, without: Late, next: &mut Next) {
        let problem = self.problem;
        for (index, size) in problem.sizes.iter().enumerate() {
            let cost = self.costs[none] + size.fee + size.per_s * problem.before;
            let with = lates.sizes[index].or(lates.held[1]);
            let held = Self::index(State::Held { size: index, cells: 1 });
            next.relax(held, cost + without.saved(with, size.per_s), none, 0);
            let saved = without.saved(with.or(lates.drains[1]), size.per_s);
            next.relax(1, cost + saved + size.per_s * problem.after, none, index + 1);
        }
    }

    /// A volume stays, begins to drain, goes on with it, or goes.
    fn keep(&self, lates: &Lates, index: usize, next: &mut Next) {
        let size = &self.problem.sizes[index];
        let (held_s, after) = (size.per_s * lates.width, size.per_s * self.problem.after);
        // From here on it must be clean after so many cells, this one included.
        let drain = |from: usize, cells: usize, next: &mut Next| {
            let (cost, with) = (self.costs[from], lates.sizes[index].or(lates.drains[cells]));
            if cells == 1 {
                next.relax(1, cost + lates.reads.saved(with, size.per_s) + after, from, 0);
            } else {
                let to = Self::index(State::Drains { size: index, cells: cells - 1 });
                next.relax(to, cost + held_s + with.cost, from, 0);
            }
        };
        for cells in 0..=HELD_MAX {
            let from = Self::index(State::Held { size: index, cells });
            if self.costs[from].is_finite() {
                let longer = if cells == HELD_MAX { cells + 1 } else { cells };
                let with = lates.sizes[index].or(lates.held[(longer + 1).min(HELD_MAX + 1)]);
                let to = Self::index(State::Held { size: index, cells: cells + 1 });
                next.relax(to, self.costs[from] + held_s + with.cost, from, 0);
            }
        }
        // The drain binds from the cell on in which it allows less than the time for which the volume was held.
        let filled = self.problem.caching.rate / self.problem.backing.rate;
        let (mut held, mut best) = (HELD_MAX + 1, None);
        for cells in (1..=DRAIN_MAX).rev() {
            while held > 0 && (held > HELD_MAX || cells == 1 || cells as f64 <= filled * held as f64) {
                held -= 1;
                let from = Self::index(State::Held { size: index, cells: held });
                best = best.filter(|best| self.costs[*best] <= self.costs[from]).or(Some(from));
            }
            let from = Self::index(State::Drains { size: index, cells });
            for from in best.into_iter().chain([from]).filter(|from| self.costs[*from].is_finite()) {
                drain(from, cells, next);
            }
        }
    }

    /// Several volumes come and go in a cell.
    fn any(&self, lates: &Lates, next: &mut Next) {
        let problem = self.problem;
        let Some(smallest) = problem.sizes.first() else { return };
        let another = smallest.fee + smallest.per_s * (problem.before + problem.after);
        let (idle, held) = (self.least(|size| size.is_none()), self.least(|size| size.is_some()));
        for (cost, from) in [(idle.0 + another, idle.1), held] {
            next.relax(1, cost + lates.cheapest, from, 0);
        }
        for (index, size) in problem.sizes.iter().enumerate() {
            let come = size.fee + size.per_s * problem.before + lates.cheapest;
            for (cost, from) in [idle, held] {
                next.relax(Self::index(State::Held { size: index, cells: HELD_MAX }), cost + come, from, 0);
            }
        }
    }

    fn plan(&self, last: usize) -> Vec<Held> {
        let mut state = last;
        let mut plan = Vec::new();
        let mut until = self.now;
        for cell in self.cells.iter().rev() {
            let arc = cell.arcs[state];
            let from = arc.from as usize;
            if let Some(size) = usize::from(arc.within).checked_sub(1) {
                plan.push(Held { size, from: (cell.from, cell.until), until: cell.until });
            }
            if Self::size_of(from) != Self::size_of(state) {
                if let Some(size) = Self::size_of(state) {
                    plan.push(Held { size, from: (cell.from, cell.until), until });
                }
                until = cell.from;
            }
            if Self::drains(state) {
                until = cell.from;
            }
            state = from;
        }
        plan.reverse();
        plan
    }

    fn drains(state: usize) -> bool {
        state.checked_sub(2).is_some_and(|place| place % (HELD_MAX + 1 + DRAIN_MAX) > HELD_MAX)
    }
}
