//! Members in memory and an engine over them; effects end in an order that follows from a seed. Crashes, power cuts and
//! passing faults are the simulator's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use surgetank_array::assembly::Assembly;
use surgetank_array::effect::{BufferId, IoFailure, ReplyError, Target};
use surgetank_array::format::SUPERBLOCKS_LENGTH;
use surgetank_array::io::{Action, Content, Io};
use surgetank_array::{ArrayId, Config, Device, Engine, Event, MemberId, Options, Regions, assemble, create};
use surgetank_model::random::Random;
use surgetank_model::{Instant, Operation, Request, RequestId};

const ARRAY: ArrayId = ArrayId([0xaa; 16]);
const REGION: u32 = 8 << 10;

/// An engine, its members, and the byte array that it must behave as.
pub struct Machine {
    pub engine: Engine,
    pub now: Instant,
    volumes: BTreeMap<Target, Vec<u8>>,
    model: Vec<u8>,
    buffers: HashMap<BufferId, Vec<u8>>,
    /// What a read in flight must return.
    expected: HashMap<RequestId, Vec<u8>>,
    in_flight: Vec<Io>,
    pub replies: Vec<(RequestId, Result<(), ReplyError>)>,
    pub events: Vec<Event>,
    /// Volumes whose I/Os fail.
    pub failing: BTreeSet<Target>,
    /// The application's writes to this volume do not end for now.
    pub held: Option<Target>,
    /// What was read: (volume, first byte, bytes).
    reads: Vec<(Target, u64, u64)>,
    /// Superblocks and pages of bitmaps that were written.
    pub structures: u64,
    random: Random,
    next_request: u64,
}

impl Machine {
    pub fn new(members: u32, size: u64, seed: u64) -> Self {
        let volumes: Vec<_> = (0..members).map(|slot| (Target(slot), MemberId([1 + slot as u8; 16]), size)).collect();
        let options =
            Options { array: ARRAY, logical_block: 512, chunk: 4096, region: REGION, regions: Regions::Blank };
        let creation = create(&options, &volumes).expect("the members are of one size");
        let mut contents: BTreeMap<Target, Vec<u8>> =
            volumes.iter().map(|(target, ..)| (*target, vec![0; size as usize])).collect();
        for (target, offset, bytes) in creation.bitmaps.iter().chain(&creation.superblocks) {
            let volume = contents.get_mut(target).expect("it is one of them");
            volume[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        let mut machine = Self {
            engine: Self::start(&contents, Instant::ZERO),
            now: Instant::ZERO,
            volumes: contents,
            model: vec![0; creation.geometry.size() as usize],
            buffers: HashMap::new(),
            expected: HashMap::new(),
            in_flight: Vec::new(),
            replies: Vec::new(),
            events: Vec::new(),
            failing: BTreeSet::new(),
            held: None,
            reads: Vec::new(),
            structures: 0,
            random: Random::from_seed(seed),
            next_request: 0,
        };
        machine.settle();
        machine
    }

    fn start(volumes: &BTreeMap<Target, Vec<u8>>, now: Instant) -> Engine {
        let head = |bytes: &Vec<u8>| bytes[..SUPERBLOCKS_LENGTH as usize].to_vec();
        let heads: Vec<(Target, u64, Vec<u8>)> =
            volumes.iter().map(|(target, bytes)| (*target, bytes.len() as u64, head(bytes))).collect();
        let devices: Vec<Device<'_>> = heads
            .iter()
            .map(|(target, size, head)| Device { target: *target, name: "a volume", size: *size, head: Some(head) })
            .collect();
        match assemble(Some(ARRAY), &devices) {
            Assembly::Whole(plan) | Assembly::Degraded(plan, _) => {
                let config = Config { copies_in_flight_max: 2, checkpoint_regions: 3, ..Config::default() };
                Engine::new(config, now, &plan)
            }
            Assembly::Refused(reasons) => panic!("{reasons:?}"),
        }
    }

    pub fn size(&self) -> u64 {
        self.engine.status().size
    }

    pub fn region(&self) -> u32 {
        REGION
    }

    /// A blank volume.
    pub fn add(&mut self, target: u32, size: usize) {
        self.volumes.insert(Target(target), vec![0; size]);
    }

    /// Regions of a slot that both members hold.
    pub fn synced(&self, slot: usize) -> u64 {
        self.engine.status().slots[slot].join.map_or(u64::MAX, |join| join.regions_synced)
    }

    /// Bytes of the data of a volume that were read.
    pub fn read_bytes(&self, target: Target) -> u64 {
        self.reads.iter().filter(|read| read.0 == target && read.1 >= 64 << 10).map(|read| read.2).sum()
    }

    pub fn reply_of(&self, id: RequestId) -> Option<Result<(), ReplyError>> {
        self.replies.iter().find(|reply| reply.0 == id).map(|reply| reply.1)
    }

    /// Submits a request whose range nothing else in flight changes or reads.
    pub fn request(&mut self, operation: Operation, offset: u64, length: u64) -> RequestId {
        self.finish_requests();
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let range = offset as usize..(offset + length) as usize;
        match operation {
            Operation::Read => {
                self.buffers.insert(BufferId::Request(id), vec![0xee; length as usize]);
                self.expected.insert(id, self.model[range].to_vec());
            }
            Operation::Write { .. } => {
                let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
                self.model[range].copy_from_slice(&bytes);
                self.buffers.insert(BufferId::Request(id), bytes);
            }
            Operation::Discard | Operation::WriteZeroes { .. } => self.model[range].fill(0),
            Operation::Flush => {}
        }
        self.engine.submit(self.now, Request { id, operation, offset, length });
        self.pump();
        id
    }

    fn finish_requests(&mut self) {
        for _ in 0..100_000 {
            if self.replies.len() as u64 >= self.next_request || self.held.is_some() {
                return;
            }
            self.work(1);
        }
        panic!("a request is not answered");
    }

    /// Takes the engine's effects.
    pub fn pump(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match Action::from(effect) {
                Action::Io(io) => self.in_flight.push(io),
                Action::Allocate { scratch, length } => {
                    _ = self.buffers.insert(BufferId::Scratch(scratch), vec![0xdd; length as usize]);
                }
                Action::Release { scratch } => _ = self.buffers.remove(&BufferId::Scratch(scratch)),
                Action::Reply { request, result } => {
                    let bytes = self.buffers.remove(&BufferId::Request(request)).unwrap_or_default();
                    if let (Some(expected), Ok(())) = (self.expected.remove(&request), result) {
                        assert!(bytes == expected, "{request:?} read something else");
                    }
                    self.replies.push((request, result));
                }
            }
        }
        self.events.extend(std::iter::from_fn(|| self.engine.next_event()));
        #[cfg(debug_assertions)]
        assert_eq!(self.engine.check(), Ok(()));
    }

    /// Reads of what was not copied yet, until so many I/Os wait for a volume.
    pub fn keep_queued(&mut self, target: Target, count: usize) {
        self.pump();
        while self.in_flight.iter().filter(|io| io.target == target).count() < count {
            self.next_request += 1;
            let id = RequestId(self.next_request);
            // The joining member would answer what it has.
            let offset = self.size() - 4096;
            self.buffers.insert(BufferId::Request(id), vec![0xee; 4096]);
            self.engine.submit(self.now, Request { id, operation: Operation::Read, offset, length: 4096 });
            let before = self.in_flight.len();
            self.pump();
            if self.in_flight.get(before..).is_some_and(|new| new.iter().all(|io| io.target != target)) {
                return;
            }
        }
    }

    /// Ends the I/O that has waited longest for a volume.
    pub fn end_first(&mut self, target: Target) {
        self.pump();
        if let Some(at) = self.in_flight.iter().position(|io| io.target == target) {
            let io = self.in_flight.remove(at);
            self.end(io);
        }
    }

    /// Ends all I/Os but those of a volume.
    pub fn end_all_but(&mut self, target: Target) {
        while let Some(at) = self.in_flight.iter().position(|io| io.target != target) {
            let io = self.in_flight.remove(at);
            self.end(io);
        }
    }

    fn is_held(&self, io: &Io) -> bool {
        let asked = io.memory.iter().any(|slice| matches!(slice.buffer, BufferId::Request(_)));
        asked && matches!(io.operation, Operation::Write { .. }) && self.held == Some(io.target)
    }

    /// Ends so many effects, in any order; time passes when none is left.
    pub fn work(&mut self, count: usize) {
        for _ in 0..count {
            self.pump();
            let ready: Vec<usize> =
                (0..self.in_flight.len()).filter(|at| !self.is_held(&self.in_flight[*at])).collect();
            if ready.is_empty() {
                if let Some(deadline) = self.engine.next_deadline() {
                    self.now = self.now.max(deadline);
                    self.engine.tick(self.now);
                }
                self.pump();
                continue;
            }
            let io = self.in_flight.swap_remove(ready[self.random.below(ready.len() as u64) as usize]);
            self.end(io);
        }
    }

    fn end(&mut self, io: Io) {
        let Io { id, target, operation, offset, length, memory, content } = io;
        let result = if self.failing.contains(&target) { Err(IoFailure::Io) } else { Ok(()) };
        let mut bytes = Vec::new();
        if result.is_ok() {
            let volume = self.volumes.get_mut(&target).expect("an effect is on a volume that is there");
            let range = offset as usize..(offset + length) as usize;
            match operation {
                Operation::Read => {
                    bytes = volume[range].to_vec();
                    self.reads.push((target, offset, length));
                    let mut at = 0;
                    for slice in &memory {
                        let buffer = self.buffers.get_mut(&slice.buffer).expect("its buffer is there");
                        let to = slice.offset as usize..(slice.offset + slice.length) as usize;
                        let taken = at + slice.length as usize;
                        buffer[to].copy_from_slice(&bytes[at..taken]);
                        at = taken;
                    }
                }
                Operation::Write { .. } => {
                    let mut data = Vec::new();
                    for slice in &memory {
                        let from = slice.offset as usize..(slice.offset + slice.length) as usize;
                        data.extend_from_slice(&self.buffers[&slice.buffer][from]);
                    }
                    if let Content::Structure(structure) = &content {
                        self.structures += 1;
                        data.extend_from_slice(structure);
                    }
                    volume[range].copy_from_slice(&data);
                }
                Operation::Discard | Operation::WriteZeroes { .. } => volume[range].fill(0),
                Operation::Flush => {}
            }
        }
        self.engine.complete(self.now, id, content.outcome(result, || &bytes));
        self.pump();
    }

    /// Until nothing happens any more.
    pub fn settle(&mut self) {
        for _ in 0..200_000 {
            self.pump();
            if self.in_flight.iter().all(|io| self.is_held(io)) && self.engine.next_deadline().is_none() {
                let model = self.size() as usize;
                self.model.resize(model, 0);
                return;
            }
            self.work(1);
        }
        panic!("it does not come to rest: {:?}", self.engine.status());
    }

    /// The same for something that is tried again for ever: ends all effects, and lets time pass so often.
    pub fn settle_for(&mut self, rounds: usize) {
        for _ in 0..rounds {
            while !self.in_flight.is_empty() {
                self.work(1);
            }
            self.work(1);
        }
    }

    /// An orderly restart: what is in flight ends first.
    pub fn restart(&mut self) {
        while !self.in_flight.is_empty() {
            self.work(1);
        }
        self.finish_requests();
        while !self.in_flight.is_empty() {
            let io = self.in_flight.swap_remove(0);
            self.end(io);
        }
        self.buffers.clear();
        self.engine = Self::start(&self.volumes, self.now);
        self.settle();
    }

    pub fn read_all(&mut self) {
        for offset in (0..self.size()).step_by(16 << 10) {
            let length = (self.size() - offset).min(16 << 10);
            let id = self.request(Operation::Read, offset, length);
            self.settle();
            assert_eq!(self.reply_of(id), Some(Ok(())));
        }
    }
}
