//! A machine in memory under an engine: requests that overlap, I/Os that move their bytes at one time and end at another, in any
//! order, members that fail, are damaged, vanish and are swapped, a cache that grows and shrinks, and crashes. Everything follows from a
//! seed.
//!
//! Each sector holds the number of the change that wrote it, and the machine knows when each one was what the backing volume had.
//! A read must return, for each sector, what the backing volume had at some time between its submission and its answer. So what
//! an answered write brought is seen by every read that is submitted later, also after a crash.
//!
//! It also knows which segments of members were written and not discarded since: never more than the cache may have.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use surgetank_model::random::Random;
use surgetank_model::{Operation, Request, RequestId};
use surgetank_readcache::effect::{BufferId, IoFailure, Slice};
use surgetank_readcache::io::{Action, Io};
use surgetank_readcache::{Config, Engine, Event, MemberId, Target};

const SECTOR: u64 = 512;
const BLOCK: u32 = 1024;
const SEGMENT: u32 = 4096;
/// Neither a multiple of the block, so that the last one is never whole.
const DEVICE: u64 = 200 * 1024 + 512;
const MEMBER: u64 = 7 * SEGMENT as u64 + 100;
/// Steps after the last request until nothing is under way, at most.
const REST_MAX: usize = 20_000;
const CONFIG: Config = Config { size: DEVICE, logical_block: 512, block: BLOCK, segment: SEGMENT };

/// What a run of the machine does.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Of a hundred I/Os of members, so many fail.
    pub members_failing: u64,
    /// The same of the backing volume.
    pub backing_failing: u64,
    /// Members come, go, vanish and are damaged.
    pub swapping: bool,
    /// Nothing but whole blocks.
    pub whole: bool,
    /// How large the cache may be changes.
    pub resizing: bool,
    /// Of a thousand steps, so many are crashes.
    pub crashing: u64,
}

/// An I/O under way.
struct Flight {
    io: Io,
    /// What was moved when it was performed.
    performed: Option<(Result<(), IoFailure>, Vec<u8>)>,
}

struct Asked {
    request: Request,
    since: u64,
}

/// An I/O of a member that a crash overtook: it is carried out later, and nobody is told.
struct Late {
    member: MemberId,
    offset: u64,
    bytes: Vec<u8>,
}

/// What runs did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Reads of members that returned what they should.
    pub member_reads: u64,
    /// Crashes.
    pub crashes: u64,
    /// Crashes while the cache was larger than it may be.
    pub crashes_while_shrinking: u64,
    /// Times that the cache was to be smaller than it was, and became so.
    pub shrunk: u64,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Self) {
        self.member_reads += other.member_reads;
        self.crashes += other.crashes;
        self.crashes_while_shrinking += other.crashes_while_shrinking;
        self.shrunk += other.shrunk;
    }
}

/// See the module.
pub struct Machine {
    pub engine: Engine,
    random: Random,
    trouble: Trouble,
    /// Steps so far.
    now: u64,
    /// What each sector of the backing volume was: (since when, number of the change).
    history: Vec<Vec<(u64, u64)>>,
    members: BTreeMap<MemberId, Vec<u8>>,
    vanished: Vec<MemberId>,
    buffers: HashMap<BufferId, Vec<u8>>,
    flights: Vec<Flight>,
    asked: BTreeMap<RequestId, Asked>,
    late: Vec<Late>,
    /// Places of members that a write was asked for, and no discard has ended since.
    occupied: BTreeSet<(MemberId, u64)>,
    limit: Option<u64>,
    /// The cache was larger than it may be when that was said.
    shrinking: bool,
    next: u64,
    next_member: u32,
    pub done: Done,
    /// The engine's own checks count.
    checked: bool,
    error: Option<String>,
}

fn stamp(number: u64, sector: u64) -> Vec<u8> {
    let words = [number.to_le_bytes(), (if number == 0 { 0 } else { sector }).to_le_bytes()].concat();
    words.repeat(SECTOR as usize / 16)
}

fn sectors(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / SECTOR..(offset + length) / SECTOR
}

impl Machine {
    pub fn new(seed: u64, trouble: Trouble) -> Self {
        let mut machine = Self {
            engine: Engine::new(CONFIG).expect("the sizes fit"),
            random: Random::from_seed(seed),
            trouble,
            now: 1,
            history: vec![vec![(0, 0)]; (DEVICE / SECTOR) as usize],
            members: BTreeMap::new(),
            vanished: Vec::new(),
            buffers: HashMap::new(),
            flights: Vec::new(),
            asked: BTreeMap::new(),
            late: Vec::new(),
            occupied: BTreeSet::new(),
            limit: None,
            shrinking: false,
            next: 1,
            next_member: 0,
            done: Done::default(),
            checked: true,
            error: None,
        };
        (0..2).for_each(|_| machine.add_member());
        machine
    }

    pub fn add_member(&mut self) {
        let id = MemberId(self.next_member);
        self.next_member += 1;
        // What it holds is not ours.
        self.members.insert(id, vec![0x77; MEMBER as usize]);
        self.engine.add_member(id, MEMBER).expect("it is new and large enough");
    }

    fn fail(&mut self, what: impl Into<String>) {
        self.error.get_or_insert_with(|| what.into());
    }

    fn submit(&mut self, operation: Operation, offset: u64, length: u64) {
        let id = RequestId(self.next);
        self.next += 1;
        match operation {
            Operation::Read => _ = self.buffers.insert(BufferId::Request(id), vec![0xee; length as usize]),
            Operation::Write { .. } => {
                let bytes = sectors(offset, length).flat_map(|sector| stamp(id.0, sector)).collect();
                self.buffers.insert(BufferId::Request(id), bytes);
            }
            Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => {}
        }
        let request = Request { id, operation, offset, length };
        self.asked.insert(id, Asked { request, since: self.now });
        self.engine.submit(request);
        self.pump();
    }

    fn submit_any(&mut self) {
        let unit = if self.trouble.whole { u64::from(BLOCK) } else { SECTOR };
        let units = DEVICE / unit;
        // Most go to a few places.
        let hot = if self.random.chance(0.8) { units / 6 } else { units };
        let first = self.random.below(hot);
        let most = if self.random.chance(0.2) { 24 } else { 4 };
        let count = (1 + self.random.below(most)).min(units - first);
        let (offset, length) = (first * unit, count * unit);
        match self.random.below(20) {
            0..13 => self.submit(Operation::Read, offset, length),
            13..17 => self.submit(Operation::Write { fua: first.is_multiple_of(2) }, offset, length),
            17 => self.submit(Operation::WriteZeroes { fua: false }, offset, length),
            18 => match self.random.chance(0.02) {
                true => self.submit(Operation::Discard, 0, DEVICE),
                false => self.submit(Operation::Discard, offset, length),
            },
            _ => self.submit(Operation::Flush, 0, 0),
        }
    }

    /// Takes the engine's effects and events.
    fn pump(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match Action::from(effect) {
                Action::Io(io) => {
                    if let (Target::Member(member), Operation::Write { .. }) = (io.target, io.operation) {
                        self.occupied.insert((member, io.offset));
                    }
                    self.flights.push(Flight { io, performed: None });
                }
                Action::Allocate { scratch, length } => {
                    _ = self.buffers.insert(BufferId::Scratch(scratch), vec![0xdd; length as usize]);
                }
                Action::Release { scratch } => {
                    if self.buffers.remove(&BufferId::Scratch(scratch)).is_none() {
                        self.fail("a buffer is released twice");
                    }
                    let used = |flight: &Flight| flight.io.memory.map(|s| s.buffer) == Some(BufferId::Scratch(scratch));
                    if self.flights.iter().any(used) {
                        self.fail("a buffer is released while an I/O uses it");
                    }
                }
                Action::Copy { from, to } => {
                    if from.length != to.length {
                        self.fail("a copy of two lengths");
                    }
                    let bytes = self.bytes(from);
                    self.set_bytes(to, &bytes);
                }
                Action::Reply { request, result } => self.reply(request, result.is_ok()),
            }
        }
        while let Some(event) = self.engine.next_event() {
            match event {
                Event::Released(member) => {
                    let asked = |flight: &Flight| flight.io.target == Target::Member(member);
                    if self.flights.iter().any(asked) || self.members.remove(&member).is_none() {
                        self.fail("a member is released while it is asked, or twice");
                    }
                }
                Event::Failed { .. } => {}
                Event::Shrunk => {
                    if !std::mem::take(&mut self.shrinking) {
                        self.fail("the cache has shrunk, and was not to");
                    }
                    self.done.shrunk += 1;
                }
            }
        }
        self.check_limit();
        #[cfg(debug_assertions)]
        if self.checked
            && let Err(what) = self.engine.check()
        {
            self.fail(format!("check: {what}"));
        }
    }

    /// Members have no more than the cache may have, unless it is on its way there.
    fn check_limit(&mut self) {
        let Self { members, vanished, .. } = self;
        self.occupied.retain(|(member, _)| members.contains_key(member) && !vanished.contains(member));
        let occupied = self.occupied.len() as u64 * u64::from(SEGMENT);
        if !self.shrinking && self.allowed().is_some_and(|allowed| occupied > allowed) {
            self.fail(format!("members have {occupied} bytes and the cache may have {:?}", self.limit));
        }
    }

    /// Bytes of whole segments; fewer than four of them are none.
    fn allowed(&self) -> Option<u64> {
        let segment = u64::from(SEGMENT);
        self.limit.map(|limit| limit / segment * segment).map(|limit| if limit < 4 * segment { 0 } else { limit })
    }

    fn resize(&mut self) {
        let most = 4 * MEMBER;
        self.limit = self.random.chance(0.9).then(|| self.random.below(most));
        self.shrinking = self.allowed().is_some_and(|allowed| self.engine.status().held_bytes > allowed);
        self.engine.set_limit(self.limit);
        self.pump();
    }

    /// The process dies, and another one begins with the members as they are. Of what was in flight, any part takes place, and what
    /// members were asked may take place later.
    fn crash(&mut self) {
        self.done.crashes += 1;
        self.done.crashes_while_shrinking += u64::from(self.shrinking);
        for at in 0..self.flights.len() {
            if self.flights[at].performed.is_some() {
                continue;
            }
            let Io { target, operation, offset, length, memory, .. } = self.flights[at].io;
            match (target, operation, self.random.below(4)) {
                (Target::Member(member), Operation::Write { .. }, 0) => {
                    let bytes = memory.map_or(Vec::new(), |slice| self.bytes(slice));
                    self.late.push(Late { member, offset, bytes });
                }
                (Target::Member(member), Operation::Discard, 0) => {
                    self.late.push(Late { member, offset, bytes: vec![0; length as usize] });
                }
                (.., 0 | 1) => {}
                _ => self.perform(at),
            }
        }
        self.flights.clear();
        self.asked.clear();
        self.buffers.clear();
        let vanished = std::mem::take(&mut self.vanished);
        self.members.retain(|member, _| !vanished.contains(member));
        self.engine = Engine::new(CONFIG).expect("the sizes fit");
        self.engine.set_limit(self.limit);
        // What was written before is nobody's: the engine begins empty.
        self.occupied.clear();
        for member in self.members.keys() {
            self.engine.add_member(*member, MEMBER).expect("it is large enough");
        }
        self.shrinking = false;
        self.pump();
    }

    fn land(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let at = self.random.below(self.late.len() as u64) as usize;
        let Late { member, offset, bytes } = self.late.swap_remove(at);
        if let Some(member) = self.members.get_mut(&member) {
            member[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn bytes(&mut self, slice: Slice) -> Vec<u8> {
        let range = slice.offset as usize..(slice.offset + slice.length) as usize;
        match self.buffers.get(&slice.buffer).and_then(|buffer| buffer.get(range)) {
            Some(bytes) => bytes.to_vec(),
            None => {
                self.fail("bytes of a buffer that is not there");
                vec![0; slice.length as usize]
            }
        }
    }

    fn set_bytes(&mut self, slice: Slice, bytes: &[u8]) {
        let range = slice.offset as usize..(slice.offset + slice.length) as usize;
        match self.buffers.get_mut(&slice.buffer).and_then(|buffer| buffer.get_mut(range)) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.fail("bytes for a buffer that is not there"),
        }
    }

    fn reply(&mut self, id: RequestId, success: bool) {
        let bytes = self.buffers.remove(&BufferId::Request(id)).unwrap_or_default();
        let Some(Asked { request, since }) = self.asked.remove(&id) else {
            return self.fail("a request is answered twice");
        };
        let backing_sound = self.trouble.backing_failing == 0;
        if !success {
            if backing_sound {
                self.fail(format!("{request:?} fails, and the backing volume does not"));
            }
            return;
        }
        if request.operation != Operation::Read {
            return;
        }
        for (sector, bytes) in sectors(request.offset, request.length).zip(bytes.chunks(SECTOR as usize)) {
            let history = &self.history[sector as usize];
            let current = history.iter().rposition(|(from, _)| *from <= since).unwrap_or(0);
            if !history[current..].iter().any(|(_, number)| stamp(*number, sector) == bytes) {
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                let valid = &history[current..];
                return self.fail(format!("{request:?} reads {number:#x} at sector {sector}, which has {valid:?}"));
            }
        }
    }

    /// Moves the bytes of an I/O.
    fn perform(&mut self, at: usize) {
        let Io { target, operation, offset, length, memory, .. } = self.flights[at].io;
        let failing = match target {
            Target::Backing => self.trouble.backing_failing,
            Target::Member(_) => self.trouble.members_failing,
        };
        let mut result = if self.random.below(100) < failing { Err(IoFailure::Io) } else { Ok(()) };
        if let Target::Member(id) = target {
            if self.vanished.contains(&id) {
                result = Err(IoFailure::Gone);
            } else if !self.members.contains_key(&id) {
                self.fail("an I/O on a volume that was released");
                result = Err(IoFailure::Gone);
            }
        }
        let range = offset as usize..(offset + length) as usize;
        let mut moved = Vec::new();
        match (target, operation, memory) {
            (_, Operation::Read, Some(slice)) => {
                moved = match target {
                    _ if result.is_err() => vec![0xcc; length as usize],
                    Target::Backing => sectors(offset, length).flat_map(|sector| self.current(sector)).collect(),
                    Target::Member(id) => self.members[&id][range].to_vec(),
                };
                self.done.member_reads += u64::from(result.is_ok() && target != Target::Backing);
                self.set_bytes(slice, &moved);
            }
            (Target::Member(id), _, Some(slice)) => {
                moved = self.bytes(slice);
                // One that fails has written a part.
                let length = if result.is_ok() { moved.len() } else { moved.len() / 2 };
                if let Some(member) = self.members.get_mut(&id) {
                    member[range][..length].copy_from_slice(&moved[..length]);
                }
            }
            (Target::Member(id), Operation::Discard, None) => {
                if let Some(member) = self.members.get_mut(&id).filter(|_| result.is_ok()) {
                    member[range].fill(0);
                }
            }
            (Target::Backing, Operation::Write { .. }, Some(slice)) => {
                let bytes = self.bytes(slice);
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                self.change(offset, length, number, result.is_ok());
            }
            (Target::Backing, Operation::Discard | Operation::WriteZeroes { .. }, _) => {
                self.change(offset, length, 0, result.is_ok());
            }
            (Target::Backing, Operation::Flush, _) => {}
            (..) => self.fail("an I/O that does not fit its target"),
        }
        self.flights[at].performed = Some((result, moved));
    }

    fn current(&self, sector: u64) -> Vec<u8> {
        stamp(self.history[sector as usize].last().map_or(0, |(_, number)| *number), sector)
    }

    /// The backing volume changes; of a change that fails, any part.
    fn change(&mut self, offset: u64, length: u64, number: u64, success: bool) {
        for sector in sectors(offset, length) {
            if success || self.random.chance(0.5) {
                self.history[sector as usize].push((self.now, number));
            }
        }
    }

    fn end(&mut self, at: usize) {
        let Flight { io, performed } = self.flights.swap_remove(at);
        let Some((result, moved)) = performed else { return };
        if let (Target::Member(member), Operation::Discard) = (io.target, io.operation) {
            self.occupied.remove(&(member, io.offset));
        }
        let outcome = io.meaning.outcome(result, BLOCK, || &moved);
        self.engine.complete(io.id, outcome);
        self.pump();
    }

    /// One thing happens.
    fn step(&mut self) {
        self.now += 1;
        match self.random.below(100) {
            0..30 if self.asked.len() < 12 => self.submit_any(),
            30 if self.trouble.swapping => self.swap(),
            31 if self.trouble.resizing => self.resize(),
            32 if self.random.below(10) < self.trouble.crashing => self.crash(),
            33 => self.land(),
            _ if self.flights.is_empty() => self.submit_any(),
            _ => self.work(),
        }
    }

    /// An I/O moves its bytes, or ends.
    fn work(&mut self) {
        let at = self.random.below(self.flights.len() as u64) as usize;
        match self.flights[at].performed {
            None => self.perform(at),
            Some(_) => self.end(at),
        }
    }

    fn swap(&mut self) {
        let serving: Vec<MemberId> = self.members.keys().copied().filter(|id| !self.vanished.contains(id)).collect();
        let any = serving.get(self.random.below(serving.len() as u64) as usize).copied();
        match (self.random.below(12), any) {
            (0, Some(member)) => self.vanished.push(member),
            (1..4, Some(member)) => {
                let at = self.random.below(MEMBER) as usize;
                let end = (at + 700).min(MEMBER as usize);
                self.members.get_mut(&member).expect("it serves")[at..end].fill(0x55);
            }
            (4, Some(member)) => {
                // Refused if it is on its way already.
                _ = self.engine.remove_member(member);
                self.pump();
            }
            _ if self.members.len() < 4 => self.add_member(),
            _ => {}
        }
    }

    /// A run of so many steps, until nothing is left to do, and a look at every sector after it.
    pub fn run(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            self.step();
            self.error.clone().map_or(Ok(()), Err)?;
        }
        self.settle()?;
        for offset in (0..DEVICE).step_by(8 * SECTOR as usize) {
            self.submit(Operation::Read, offset, (8 * SECTOR).min(DEVICE - offset));
            self.settle()?;
        }
        let members: Vec<MemberId> = self.members.keys().copied().collect();
        for member in members {
            _ = self.engine.remove_member(member);
            self.pump();
        }
        self.settle()?;
        match (self.members.is_empty(), self.buffers.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err("a member was not released".to_owned()),
            (_, false) => Err("memory was not released".to_owned()),
        }
    }

    /// Until nothing is under way.
    pub fn settle(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while !self.flights.is_empty() {
            self.now += 1;
            self.work();
            steps += 1;
            if steps == REST_MAX {
                return Err("it never comes to rest".to_owned());
            }
        }
        self.error.clone().map_or(Ok(()), Err)?;
        match (self.asked.is_empty(), self.shrinking) {
            (true, false) => Ok(()),
            (true, true) => Err("the cache does not become as small as it is to be".to_owned()),
            (false, _) => Err("a request is not answered".to_owned()),
        }
    }
}

const CALM: Trouble =
    Trouble { members_failing: 0, backing_failing: 0, swapping: false, whole: true, resizing: false, crashing: 0 };

/// What runs differ in.
pub const TROUBLES: [Trouble; 8] = [
    CALM,
    Trouble { swapping: true, ..CALM },
    Trouble { members_failing: 6, swapping: true, whole: false, ..CALM },
    Trouble { members_failing: 4, backing_failing: 4, swapping: true, whole: false, ..CALM },
    Trouble { backing_failing: 25, ..CALM },
    Trouble { resizing: true, ..CALM },
    Trouble { resizing: true, crashing: 10, ..CALM },
    Trouble { resizing: true, crashing: 10, members_failing: 4, backing_failing: 4, swapping: true, whole: false },
];

/// A run of a seed, with the trouble of this number. `checked`: also by the engine's own checks.
pub fn run(seed: u64, trouble: usize, steps: usize, checked: bool) -> Result<Done, String> {
    let mut machine = Machine::new(seed, TROUBLES[trouble]);
    machine.checked = checked;
    machine.run(steps).map(|()| machine.done)
}
