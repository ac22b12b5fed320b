//! Shares a device among its clients: who is served next, and how much of a long request at a time.
//!
//! Deficit round robin (DRR95) over flows, in bytes, with the flows that have had nothing
//! to do first (as in FQ-CoDel, RFC 8290). A flow is what one client reads and writes, or what it zeroes and discards: a
//! range of any length is zeroed without a byte on the wire, so it must not keep the same client's reads waiting
//! either. Requests are cut into pieces when their turn comes, and so many bytes are in service at a time as keep the
//! device busy: what is in service is ahead of everybody.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use surgetank_model::{ClientId, Instant, Limits, Operation, Request, RequestId};

/// What the least request costs, in bytes.
const COST_MIN: u64 = 4 << 10;
/// A range that is discarded moves no bytes: so many bytes of it cost one.
const DISCARDED_PER_BYTE: u64 = 16;
/// Pieces end at multiples of their length, which is a power of two between these, in bytes.
const PIECE_MIN: u64 = 16 << 10;
const PIECE_MAX: u64 = 1 << 20;
/// In service while one flow alone asks for something, in bytes: at least, on a volume that may be faster than we were told
/// and on one that we hold to its limits; and at most.
const ALONE_MIN: u64 = 4 << 20;
const ALONE_MIN_HELD: u64 = 1 << 20;
const ALONE_MAX: u64 = 16 << 20;
/// How long the device takes for what is in service while one flow alone asks: it is busy however late we wake up, and
/// whoever comes next waits no longer than that.
const ALONE_TIME: Duration = Duration::from_millis(25);
/// The same while flows share it.
const SHARED_TIME: Duration = Duration::from_millis(5);
/// The same where we hold the volume to its limits ourselves: the next I/O starts when the last one is paid.
const SHARED_TIME_HELD: Duration = Duration::from_micros(500);
/// In service while flows share a volume of unknown limits, in bytes.
const SHARED_DEFAULT: u64 = 1 << 20;
/// What has been in service for so long waits for something else than its turn at the device (a caching volume that is
/// away), and keeps nobody from being served any more.
const OVERDUE: Duration = Duration::from_secs(2);
/// How long flows share a device after one of them has asked for something.
const SHARED_FOR: Duration = Duration::from_secs(10);

/// How much is in service at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// While one flow alone asks for something.
    pub alone: Window,
    /// While several do.
    pub shared: Window,
}

/// How much is in service at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes in service, or one request's piece if that is more.
    pub bytes: u64,
    /// The longest piece of a request, in bytes; a power of two.
    pub piece: u64,
}

impl Windows {
    /// For a volume of these limits; `held`: we hold it to them ourselves (it has no latency of its own that pieces would
    /// have to cover).
    #[must_use]
    pub fn new(limits: Limits, held: bool) -> Self {
        let (shared_time, alone_min) = if held { (SHARED_TIME_HELD, ALONE_MIN_HELD) } else { (SHARED_TIME, ALONE_MIN) };
        let Some(bandwidth) = limits.bandwidth.filter(|bandwidth| bandwidth.get() > 0) else {
            return Self {
                alone: Window { bytes: ALONE_MAX, piece: PIECE_MAX },
                shared: Window { bytes: SHARED_DEFAULT, piece: SHARED_DEFAULT / 4 },
            };
        };
        // Pieces so short that they cost more operations than the limits have are no gain.
        let operation = limits.iops.map_or(Duration::ZERO, |iops| Duration::from_secs(1) / clamp(iops.get()));
        let bytes = |time: Duration| {
            u64::try_from(u128::from(bandwidth.get()) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
        };
        let floor = |bytes: u64| 1 << bytes.clamp(PIECE_MIN, PIECE_MAX).ilog2();
        let shared = bytes(shared_time.max(operation)).clamp(PIECE_MIN, ALONE_MAX);
        let pieces = if held { 1 } else { 4 };
        let piece = floor((shared / pieces).max(bytes(operation)));
        Self {
            alone: Window { bytes: bytes(ALONE_TIME).clamp(alone_min, ALONE_MAX), piece: PIECE_MAX },
            shared: Window { bytes: shared.max(piece), piece },
        }
    }
}

/// At least one, and no more than fits.
fn clamp(number: u64) -> u32 {
    u32::try_from(number.max(1)).unwrap_or(u32::MAX)
}

/// A part of a request, to be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The request.
    pub request: RequestId,
    /// What it does.
    pub operation: Operation,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes of the request before this piece.
    pub before: u64,
    /// Nothing of the request comes after it.
    pub last: bool,
    /// What [`FairQueue::ended`] is told of it.
    pub serial: u64,
}

/// Whose requests share a turn: a client's own, and apart from them what it zeroes and discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    client: ClientId,
    is_zeroing: bool,
}

/// A request, or what is left of it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    /// Bytes served or in service.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It waits for nothing.
    None,
    /// It had nothing to do, and comes first.
    New,
    /// It goes round.
    Old,
    /// The same, and it has come back with something left of its last turn: it comes first as far as that goes.
    Early,
}

#[derive(Debug)]
struct Flow {
    waiting: VecDeque<Waiting>,
    /// Bytes that it may be served before the next one's turn; a debt if negative.
    deficit: i64,
    turn: Turn,
    asked: Instant,
}

/// The pieces in service that are not overdue, in the order of their beginning.
#[derive(Debug, Default)]
struct InService {
    /// When each began, and its cost; no cost: it has ended.
    pieces: VecDeque<(Instant, u64)>,
    /// The serial number of the first of them.
    first: u64,
    /// Of all of them.
    cost: u64,
}

impl InService {
    fn begin(&mut self, now: Instant, cost: u64) -> u64 {
        self.pieces.push_back((now, cost));
        self.cost += cost;
        self.first + self.pieces.len() as u64 - 1
    }

    fn end(&mut self, serial: u64) {
        let place = serial.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        if let Some((_, cost)) = place.and_then(|place| self.pieces.get_mut(place)) {
            self.cost -= std::mem::take(cost);
        }
        while let Some((_, 0)) = self.pieces.front() {
            self.forget_first();
        }
    }

    fn forget_overdue(&mut self, now: Instant) {
        while self.pieces.front().is_some_and(|(begun, cost)| *cost == 0 || *begun + OVERDUE <= now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, cost)) = self.pieces.pop_front() {
            self.cost -= cost;
            self.first += 1;
        }
    }
}

/// The requests of all clients that are not in service yet. See the module.
#[derive(Debug)]
pub struct FairQueue {
    windows: Windows,
    flows: BTreeMap<Name, Flow>,
    /// Flows that had nothing to do.
    fresh: VecDeque<Name>,
    /// The others that wait.
    round: VecDeque<Name>,
    in_service: InService,
    /// Requests that wait, whole or in part.
    waiting: usize,
}

impl FairQueue {
    /// Nobody waits.
    #[must_use]
    pub fn new(windows: Windows) -> Self {
        Self {
            windows,
            flows: BTreeMap::new(),
            fresh: VecDeque::new(),
            round: VecDeque::new(),
            in_service: InService::default(),
            waiting: 0,
        }
    }

    /// Changes how much is in service, from now on.
    pub fn set_windows(&mut self, windows: Windows) {
        self.windows = windows;
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A client asks for something.
    pub fn push(&mut self, now: Instant, client: ClientId, request: Request) {
        let is_zeroing = matches!(request.operation, Operation::Discard | Operation::WriteZeroes { .. });
        let name = Name { client, is_zeroing };
        if self.flows.len() > 1 {
            self.flows.retain(|other, flow| *other == name || flow.turn != Turn::None || now < flow.asked + SHARED_FOR);
        }
        let fresh = || Flow { waiting: VecDeque::new(), deficit: 1, turn: Turn::None, asked: now };
        let flow = self.flows.entry(name).or_insert_with(fresh);
        flow.asked = now;
        let had_nothing = flow.waiting.is_empty();
        flow.waiting.push_back(Waiting { request, before: 0 });
        self.waiting += 1;
        match flow.turn {
            Turn::None => {
                flow.turn = Turn::New;
                flow.deficit = 1;
                self.fresh.push_back(name);
            }
            Turn::Old if had_nothing && flow.deficit > 0 => {
                flow.turn = Turn::Early;
                self.fresh.push_back(name);
            }
            Turn::Old | Turn::New | Turn::Early => {}
        }
    }

    /// What is to be served now; `None`: enough is in service, or nothing waits.
    pub fn next(&mut self, now: Instant) -> Option<Piece> {
        if self.waiting == 0 {
            return None;
        }
        self.in_service.forget_overdue(now);
        let window = if self.is_shared(now) { self.windows.shared } else { self.windows.alone };
        let quantum = i64::try_from(window.piece).unwrap_or(i64::MAX);
        // What follows is RFC 8290, 4.2, with pieces for packets, but that a flow may take what its turn gives in parts: one
        // request after the other waits for no round as long as it asks for less than its share.
        loop {
            let name = *self.fresh.front().or_else(|| self.round.front())?;
            let flow = self.flows.get_mut(&name)?;
            let Some(first) = flow.waiting.front_mut().filter(|_| flow.deficit > 0) else {
                let was_fresh = flow.turn == Turn::New;
                if flow.turn == Turn::Early {
                    // It has its place in the round.
                    flow.turn = Turn::Old;
                    self.fresh.pop_front();
                    continue;
                }
                if was_fresh {
                    self.fresh.pop_front()
                } else {
                    self.round.pop_front()
                };
                let has_debt = flow.deficit <= 0;
                if has_debt {
                    flow.deficit += quantum;
                }
                // One that comes back at once with a little more goes round like the others.
                if has_debt || was_fresh {
                    flow.turn = Turn::Old;
                    self.round.push_back(name);
                } else {
                    flow.turn = Turn::None;
                }
                continue;
            };
            let (mut piece, cost) = cut(first, window.piece);
            if self.in_service.cost > 0 && self.in_service.cost + cost > window.bytes {
                return None;
            }
            piece.serial = self.in_service.begin(now, cost);
            first.before += piece.length;
            if piece.last {
                flow.waiting.pop_front();
                self.waiting -= 1;
            }
            flow.deficit = flow.deficit.saturating_sub_unsigned(cost);
            return Some(piece);
        }
    }

    /// A piece has been served.
    pub fn ended(&mut self, serial: u64) {
        self.in_service.end(serial);
    }

    /// When [`FairQueue::next`] may have something although nothing was asked for or has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let (begun, _) = self.in_service.pieces.front().filter(|_| self.waiting > 0)?;
        Some(*begun + OVERDUE)
    }

    /// A client has left: the requests of which something was not in service yet, which will never be.
    pub fn leave(&mut self, client: ClientId) -> Vec<RequestId> {
        let mut dropped = Vec::new();
        for is_zeroing in [false, true] {
            let name = Name { client, is_zeroing };
            let Some(flow) = self.flows.remove(&name) else { continue };
            self.fresh.retain(|other| *other != name);
            self.round.retain(|other| *other != name);
            dropped.extend(flow.waiting.iter().map(|waiting| waiting.request.id));
        }
        self.waiting -= dropped.len();
        dropped
    }

    /// Whether several flows have asked for something lately.
    fn is_shared(&self, now: Instant) -> bool {
        let active = |flow: &&Flow| !flow.waiting.is_empty() || now < flow.asked + SHARED_FOR;
        self.flows.len() > 1 && self.flows.values().filter(active).nth(1).is_some()
    }
}

/// The next piece of a request, `longest` bytes at most, and its cost: it ends at a multiple of that, so that what was aligned stays
/// aligned.
fn cut(waiting: &Waiting, longest: u64) -> (Piece, u64) {
    let Waiting { request, before } = *waiting;
    let Request { id, operation, offset, length } = request;
    let (offset, left) = (offset + before, length - before);
    let per_byte = if operation == Operation::Discard { DISCARDED_PER_BYTE } else { 1 };
    let longest = longest * per_byte;
    let length = if left > longest { longest - offset % longest } else { left };
    let cost = (length / per_byte).max(COST_MIN);
    (Piece { request: id, operation, offset, length, before, last: length == left, serial: 0 }, cost)
}

#[cfg(test)]
mod tests;
