//! A machine with two volumes in memory and an engine; effects end in an order that follows from a seed. The engine may
//! be killed and started again; power cuts and faults are the simulator's.

use std::collections::{BTreeSet, HashMap};

use surgetank_cache::effect::Slices;
#[cfg(debug_assertions)]
use surgetank_cache::engine::check::Depth;
use surgetank_cache::format::{BLOCK, Geometry};
use surgetank_cache::io::{Action, Encoder, Io, Meaning};
use surgetank_cache::{
    Attach, BufferId, Config, Effect, EffectId, Engine, EngineStage, Epoch, Event, IoFailure, Outcome, Owner, ReadFill,
    ReplyError, ScratchId, Slice, Target,
};
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Duration, Instant, Limits, Operation, Request, RequestId};

/// What is done when an effect ends.
#[derive(Debug)]
enum Waiting {
    Io {
        target: Target,
        operation: Operation,
        offset: u64,
        length: u64,
        head: Box<[u8]>,
        memory: Slices,
        meaning: Meaning,
    },
    Owner(Owner),
}

impl Waiting {
    /// What is written to the backing volume.
    fn written_to_backing(&self) -> Option<&Slices> {
        match self {
            Self::Io { target: Target::Backing, operation: Operation::Write { .. }, memory, .. } => Some(memory),
            Self::Io { .. } | Self::Owner(_) => None,
        }
    }
}

/// What happened, as far as its order matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Append,
    Flush(Target),
    /// A page of the segment table is about to be written.
    TableBegun,
}

/// A request in flight and what the device must hold where it reads.
#[derive(Debug)]
struct Outstanding {
    request: Request,
    expected: Vec<u8>,
}

/// An engine, its volumes, and the byte array that it must behave as.
pub struct Machine {
    pub engine: Engine,
    config: Config,
    pub now: Instant,
    pub backing: Vec<u8>,
    pub cache: Vec<u8>,
    pub model: Vec<u8>,
    pub owner: Owner,
    pub events: Vec<Event>,
    pub replies: Vec<(RequestId, Result<(), ReplyError>)>,
    pub done: Vec<Done>,
    /// Blocks of the caching volume that cannot be read.
    pub unreadable: BTreeSet<u64>,
    /// Requests may be answered with errors.
    pub may_fail: bool,
    /// Bytes that were split off to the backing volume, over all boosts.
    pub split_bytes: u64,
    split_before: u64,
    buffers: HashMap<BufferId, Vec<u8>>,
    in_flight: Vec<(EffectId, Waiting)>,
    outstanding: Vec<Outstanding>,
    random: Random,
    next_request: u64,
    pub epochs: u8,
    encoder: Encoder,
    #[cfg(debug_assertions)]
    pumps: u64,
}

/// Of both volumes: equally fast, so that long writes are split.
const LIMITS: Limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(33)), iops: None };

impl Machine {
    pub fn new(size: usize, logical_block: u32, seed: u64) -> Self {
        let outage_patience = Duration::from_secs(60);
        let config = Config { size: size as u64, logical_block, backing_limits: LIMITS, outage_patience };
        let mut random = Random::from_seed(seed);
        let backing: Vec<u8> = (0..size).map(|at| (at / 512) as u8 ^ random.below(2) as u8).collect();
        Self {
            engine: Engine::new(config.clone()),
            config,
            now: Instant::ZERO,
            model: backing.clone(),
            backing,
            cache: Vec::new(),
            owner: Owner::Backing,
            events: Vec::new(),
            replies: Vec::new(),
            done: Vec::new(),
            unreadable: BTreeSet::new(),
            may_fail: false,
            split_bytes: 0,
            split_before: 0,
            buffers: HashMap::new(),
            in_flight: Vec::new(),
            outstanding: Vec::new(),
            random,
            next_request: 0,
            epochs: 0,
            encoder: Encoder::default(),
            #[cfg(debug_assertions)]
            pumps: 0,
        }
    }

    pub fn stage(&self) -> EngineStage {
        self.engine.status().stage
    }

    /// Adopts a cache of this size, with leftovers of an earlier one. False: too small.
    pub fn adopt(&mut self, cache_size: usize, split: bool, read_fill: ReadFill) -> bool {
        self.cache.resize(cache_size, 0xee);
        self.epochs += 1;
        let attach = self.attach(split, read_fill);
        let adopted = self.engine.adopt(self.now, attach).is_ok();
        self.pump();
        adopted
    }

    fn attach(&self, split: bool, read_fill: ReadFill) -> Attach {
        let (epoch, cache_size) = (Epoch([self.epochs; 16]), self.cache.len() as u64);
        Attach {
            epoch,
            cache_size,
            cache_limits: LIMITS,
            split,
            read_fill,
            indexes: Geometry::wants_indexes(cache_size),
        }
    }

    /// Kills the engine once every request is answered, and starts another where the owner record says. Effects in
    /// flight do not happen.
    pub fn restart(&mut self, split: bool, read_fill: ReadFill) {
        self.answer_all();
        self.in_flight.clear();
        self.buffers.clear();
        let config = Config { size: self.model.len() as u64, ..self.config.clone() };
        match self.owner {
            Owner::Cache { .. } => {
                self.engine = Engine::awaiting_recovery(config);
                let attach = self.attach(split, read_fill);
                self.engine.recover(self.now, attach).expect("it awaits recovery");
            }
            Owner::Backing | Owner::Lost { .. } => self.engine = Engine::new(config),
        }
        self.pump();
    }

    /// Reads the cache back once more after a recovery that failed.
    pub fn recover_again(&mut self, split: bool, read_fill: ReadFill) {
        let attach = self.attach(split, read_fill);
        self.engine.recover(self.now, attach).expect("it awaits recovery");
        self.pump();
    }

    /// Submits a request; overlapping ones that are in flight end first, so that the model stays a byte array.
    pub fn submit(&mut self, operation: Operation, offset: usize, length: usize) {
        let overlaps = |other: &Outstanding| {
            let (start, end) = (other.request.offset as usize, (other.request.offset + other.request.length) as usize);
            start < offset + length && offset < end
        };
        while self.outstanding.iter().any(overlaps) {
            assert!(self.advance(), "overlapping requests never end: {:?}", self.engine.status());
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let mut buffer = vec![0x77; if operation == Operation::Flush { 0 } else { length }];
        match operation {
            Operation::Write { .. } => {
                let tag = self.random.next_u64().to_le_bytes();
                buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = tag[at % 8] ^ (at / 512) as u8);
                self.model[offset..offset + length].copy_from_slice(&buffer);
            }
            Operation::Discard | Operation::WriteZeroes { .. } => self.model[offset..offset + length].fill(0),
            Operation::Read | Operation::Flush => {}
        }
        let expected = match operation {
            Operation::Read => self.model[offset..offset + length].to_vec(),
            _ => Vec::new(),
        };
        let request = Request { id, operation, offset: offset as u64, length: length as u64 };
        self.buffers.insert(BufferId::Request(id), buffer);
        self.outstanding.push(Outstanding { request, expected });
        self.engine.submit(self.now, request);
        self.pump();
    }

    /// The same, unless an overlapping request is in flight.
    pub fn submit_unless_it_waits(&mut self, operation: Operation, offset: usize, length: usize) {
        let (start, end) = (offset as u64, (offset + length) as u64);
        let free = |other: &Outstanding| {
            let Request { offset, length, .. } = other.request;
            offset + length <= start || end <= offset
        };
        if self.outstanding.iter().all(free) {
            self.submit(operation, offset, length);
        }
    }

    /// Lets one effect end, or else time pass. False: nothing is left to do.
    pub fn advance(&mut self) -> bool {
        // What the caller did to the engine just before comes first.
        self.pump();
        self.now += Duration::from_micros(10);
        if self.in_flight.is_empty() {
            let Some(deadline) = self.engine.next_deadline() else { return false };
            self.now = self.now.max(deadline);
            self.engine.tick(self.now);
        } else {
            let index = self.random.below(self.in_flight.len() as u64) as usize;
            let (id, waiting) = self.in_flight.swap_remove(index);
            let outcome = self.perform(waiting);
            self.engine.complete(self.now, id, outcome);
        }
        self.pump();
        true
    }

    /// Lets one effect end that does not wait for the backing volume, which takes for ever. False: all others have.
    pub fn advance_without_backing(&mut self) -> bool {
        self.pump();
        let is_other = |(_, waiting): &(EffectId, Waiting)| waiting.written_to_backing().is_none();
        let Some(index) = self.in_flight.iter().position(is_other) else { return false };
        self.now += Duration::from_micros(10);
        let (id, waiting) = self.in_flight.swap_remove(index);
        let outcome = self.perform(waiting);
        self.engine.complete(self.now, id, outcome);
        self.pump();
        true
    }

    /// Until every request is answered.
    pub fn answer_all(&mut self) {
        while !self.outstanding.is_empty() {
            assert!(self.advance(), "requests are never answered: {:?}", self.engine.status());
        }
    }

    /// Until an event like this comes, within `most` effects.
    pub fn wait_for(&mut self, event: &Event, most: usize) -> bool {
        for _ in 0..most {
            if self.events.contains(event) {
                return true;
            }
            if !self.advance() {
                return false;
            }
        }
        false
    }

    fn pump(&mut self) {
        loop {
            while let Some(effect) = self.engine.next_effect() {
                self.take(effect);
            }
            let split = self.engine.status().split_bytes;
            self.split_bytes += split.saturating_sub(self.split_before);
            self.split_before = split;
            let Some(event) = self.engine.next_event() else { break };
            self.events.push(event);
        }
        #[cfg(debug_assertions)]
        self.check();
    }

    #[cfg(debug_assertions)]
    fn check(&mut self) {
        self.pumps += 1;
        let depth = if self.pumps.is_multiple_of(64) { Depth::Index } else { Depth::InFlight };
        if let Err(what) = self.engine.check(depth) {
            panic!("{what}: {:?}", self.engine.status());
        }
    }

    fn bytes(&self, slice: Slice) -> &[u8] {
        let start = slice.offset as usize;
        &self.buffers[&slice.buffer][start..start + slice.length as usize]
    }

    fn put(&mut self, slice: Slice, bytes: &[u8]) {
        let start = slice.offset as usize;
        let buffer = self.buffers.get_mut(&slice.buffer).expect("the buffer exists");
        buffer[start..start + slice.length as usize].copy_from_slice(bytes);
    }

    fn gather(&self, slices: &Slices) -> Vec<u8> {
        let pieces: Vec<&[u8]> = slices.iter().map(|&slice| self.bytes(slice)).collect();
        pieces.concat()
    }

    fn take(&mut self, effect: Effect) {
        if let Effect::WriteTable { .. } = effect {
            self.done.push(Done::TableBegun);
        }
        match Action::from(effect) {
            Action::Io(Io { id, target, operation, offset, length, memory, content }) => {
                // Reads have no data yet, and nobody looks.
                let data = if let Operation::Read = operation { Vec::new() } else { self.gather(&memory) };
                let (head, meaning) = self.encoder.encode(content, data.chunks(BLOCK as usize));
                let head = head.unwrap_or_default();
                self.in_flight.push((id, Waiting::Io { target, operation, offset, length, head, memory, meaning }));
            }
            Action::Parse { id, from, meaning } => {
                let outcome = meaning.outcome(Ok(()), || self.bytes(from));
                self.engine.complete(self.now, id, outcome);
            }
            Action::Allocate { scratch, length } => {
                self.buffers.insert(BufferId::Scratch(scratch), vec![0x99; length as usize]);
            }
            Action::Release { scratch } => self.release(scratch),
            Action::Copy { from, to } => {
                let bytes = self.bytes(from).to_vec();
                self.put(to, &bytes);
            }
            Action::Zero { to } => self.put(to, &vec![0; to.length as usize]),
            Action::Reply { request, result } => self.reply(request, result),
            Action::PersistOwner { id, owner } => self.in_flight.push((id, Waiting::Owner(owner))),
            Action::RecordHealed { ranges, .. } => panic!("nothing is lost here: {ranges:?}"),
        }
    }

    fn release(&mut self, scratch: ScratchId) {
        assert!(self.buffers.remove(&BufferId::Scratch(scratch)).is_some(), "{scratch:?} does not exist");
    }

    fn reply(&mut self, id: RequestId, result: Result<(), ReplyError>) {
        let index = self.outstanding.iter().position(|other| other.request.id == id).expect("it is outstanding");
        let Outstanding { request, expected } = self.outstanding.swap_remove(index);
        let buffer = self.buffers.remove(&BufferId::Request(id)).expect("a request has a buffer");
        assert!(result.is_ok() || self.may_fail, "{request:?} failed");
        if request.operation == Operation::Read && result.is_ok() {
            // Whole slices first: byte by byte is slow under a fuzzer's instruments.
            assert!(buffer == expected, "{request:?}: wrong from byte {:?} on", difference(&buffer, &expected));
        }
        self.replies.push((id, result));
    }

    fn volume(&mut self, target: Target) -> &mut Vec<u8> {
        match target {
            Target::Backing => &mut self.backing,
            Target::Cache => &mut self.cache,
        }
    }

    fn perform(&mut self, waiting: Waiting) -> Outcome {
        let (target, operation, offset, length, head, memory, meaning) = match waiting {
            Waiting::Io { target, operation, offset, length, head, memory, meaning } => {
                (target, operation, offset as usize, length as usize, head, memory, meaning)
            }
            Waiting::Owner(owner) => {
                self.owner = owner;
                return Outcome::Done;
            }
        };
        let range = offset..offset + length;
        match operation {
            Operation::Read => {
                let blocks = range.start as u64 / u64::from(BLOCK)..(range.end as u64).div_ceil(u64::from(BLOCK));
                if target == Target::Cache && self.unreadable.range(blocks).next().is_some() {
                    return meaning.outcome(Err(IoFailure::Io), || &[]);
                }
                let bytes = self.volume(target)[range].to_vec();
                self.put(memory[0], &bytes);
                return meaning.outcome(Ok(()), || &bytes);
            }
            Operation::Write { .. } => {
                let bytes = [&head[..], &self.gather(&memory)].concat();
                self.volume(target)[range].copy_from_slice(&bytes);
                if let Meaning::Appended(_) = meaning {
                    self.done.push(Done::Append);
                }
            }
            Operation::Flush => self.done.push(Done::Flush(target)),
            Operation::Discard | Operation::WriteZeroes { .. } => self.volume(target)[range].fill(0),
        }
        meaning.outcome(Ok(()), || &[])
    }

    /// Bytes of the application's writes in flight on the backing volume.
    pub fn direct_bytes_in_flight(&self) -> u64 {
        let direct = |(_, waiting): &(EffectId, Waiting)| {
            let requests = waiting.written_to_backing().into_iter().flatten();
            let requests = requests.filter(|slice| matches!(slice.buffer, BufferId::Request(_)));
            requests.map(|slice| u64::from(slice.length)).sum::<u64>()
        };
        self.in_flight.iter().map(direct).sum()
    }

    /// Grows the device and its backing volume.
    pub fn grow(&mut self, bytes: usize) {
        let size = self.model.len() + bytes;
        self.model.resize(size, 0);
        self.backing.resize(size, 0);
        self.engine.grow(size as u64).expect("growing is allowed");
        self.pump();
    }

    /// Grows the caching volume and tells the engine. False: it cannot grow now.
    pub fn grow_cache(&mut self, bytes: usize) -> bool {
        let size = self.cache.len() + bytes;
        self.cache.resize(size, 0xee);
        let grows = self.engine.grow_cache(self.now, size as u64).is_ok();
        self.pump();
        grows
    }

    /// Buffers that exist.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The backing volume alone holds what the model holds.
    pub fn check_backing(&self) {
        let (got, want) = (&self.backing, &self.model);
        assert!(got == want, "the backing volume is wrong from byte {:?} on", difference(got, want));
        assert_eq!(self.owner, Owner::Backing);
    }
}

fn difference(got: &[u8], want: &[u8]) -> Option<usize> {
    got.iter().zip(want).position(|(got, want)| got != want)
}
