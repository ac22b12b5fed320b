//! A machine with two volumes in memory and an engine; effects end in an order that follows from a seed. The engine may
//! be killed and started again; power cuts and faults are the simulator's.

use std::collections::{BTreeSet, HashMap};

use surgetank_cache::effect::Slices;
use surgetank_cache::format::{self, BLOCK, Geometry, Sealer, Summary};
use surgetank_cache::{
    Attach, BufferId, Config, Effect, EffectId, Engine, Epoch, Event, IoFailure, Outcome, Owner, ReadFill, ReplyError,
    ScratchId, Slice, Stage, Target,
};
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Duration, Instant, Limits, Operation, Request, RequestId};

/// What is done when an effect ends.
#[derive(Debug)]
enum Action {
    Read { target: Target, offset: u64, into: Slice, checksums: Option<Box<[u32]>> },
    Write { target: Target, offset: u64, from: Slices },
    Append { offset: u64, summary: Box<Summary>, block: format::Block, data: Slices },
    Store { offset: u64, bytes: Box<[u8]> },
    Zero { offset: u64, length: u64 },
    Owner(Owner),
    Flush(Target),
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
    in_flight: Vec<(EffectId, Action)>,
    outstanding: Vec<Outstanding>,
    random: Random,
    next_request: u64,
    pub epochs: u8,
    sealer: Sealer,
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
            sealer: Sealer::default(),
        }
    }

    pub fn stage(&self) -> Stage {
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
            let (id, action) = self.in_flight.swap_remove(index);
            let outcome = self.perform(action);
            self.engine.complete(self.now, id, outcome);
        }
        self.pump();
        true
    }

    /// Lets one effect end that does not wait for the backing volume, which takes for ever. False: all others have.
    pub fn advance_without_backing(&mut self) -> bool {
        self.pump();
        let is_other =
            |(_, action): &(EffectId, Action)| !matches!(action, Action::Write { target: Target::Backing, .. });
        let Some(index) = self.in_flight.iter().position(is_other) else { return false };
        self.now += Duration::from_micros(10);
        let (id, action) = self.in_flight.swap_remove(index);
        let outcome = self.perform(action);
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
        let (id, action) = match effect {
            Effect::Allocate { scratch, length } => {
                self.buffers.insert(BufferId::Scratch(scratch), vec![0x99; length as usize]);
                return;
            }
            Effect::Release { scratch } => return self.release(scratch),
            Effect::Copy { from, to } => {
                let bytes = self.bytes(from).to_vec();
                return self.put(to, &bytes);
            }
            Effect::Zero { to } => return self.put(to, &vec![0; to.length as usize]),
            Effect::Reply { request, result } => return self.reply(request, result),
            Effect::Read { id, target, offset, into, checksums } => {
                (id, Action::Read { target, offset, into, checksums })
            }
            Effect::Write { id, target, offset, from, .. } => (id, Action::Write { target, offset, from }),
            Effect::Append { id, offset, mut summary, data, .. } => {
                let bytes = self.gather(&data);
                let block = self.sealer.seal(&mut summary, bytes.chunks(BLOCK as usize));
                (id, Action::Append { offset, summary, block, data })
            }
            Effect::WriteSuperblock { id, offset, superblock } => {
                (id, Action::Store { offset, bytes: superblock.encode() })
            }
            Effect::WriteTable { id, offset, page } => {
                self.done.push(Done::TableBegun);
                (id, Action::Store { offset, bytes: page.encode() })
            }
            Effect::WriteIndex { id, offset, bytes } => (id, Action::Store { offset, bytes }),
            Effect::Flush { id, target } => (id, Action::Flush(target)),
            Effect::Discard { id, offset, length } | Effect::WriteZeroes { id, offset, length, .. } => {
                (id, Action::Zero { offset, length })
            }
            Effect::PersistOwner { id, owner } => (id, Action::Owner(owner)),
            Effect::RecordHealed { ranges, .. } => panic!("nothing is lost here: {ranges:?}"),
            Effect::Parse { id, from, what } => {
                let parsed = what.read(self.bytes(from));
                return self.engine.complete(self.now, id, Outcome::Parsed(parsed));
            }
        };
        self.in_flight.push((id, action));
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

    fn perform(&mut self, action: Action) -> Outcome {
        match action {
            Action::Read { target, offset, into, checksums } => {
                let start = offset as usize;
                let blocks = offset / u64::from(BLOCK)..(offset + u64::from(into.length)).div_ceil(u64::from(BLOCK));
                if target == Target::Cache && self.unreadable.range(blocks).next().is_some() {
                    return Outcome::Failed(IoFailure::Io);
                }
                let bytes = self.volume(target)[start..start + into.length as usize].to_vec();
                self.put(into, &bytes);
                let wrong = checksums.is_some_and(|expected| !format::verifies(&bytes, &expected));
                return if wrong { Outcome::Failed(IoFailure::Corrupt) } else { Outcome::Done };
            }
            Action::Write { target, offset, from } => {
                let bytes = self.gather(&from);
                let start = offset as usize;
                self.volume(target)[start..start + bytes.len()].copy_from_slice(&bytes);
            }
            Action::Append { offset, summary, block, data } => {
                let bytes = self.gather(&data);
                let start = offset as usize;
                let (head, rest) = self.cache[start..].split_at_mut(BLOCK as usize);
                head.copy_from_slice(&block[..]);
                rest[..bytes.len()].copy_from_slice(&bytes);
                self.done.push(Done::Append);
                return Outcome::Appended(summary);
            }
            Action::Store { offset, bytes } => {
                self.cache[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
            }
            Action::Zero { offset, length } => self.backing[offset as usize..(offset + length) as usize].fill(0),
            Action::Owner(owner) => self.owner = owner,
            Action::Flush(target) => self.done.push(Done::Flush(target)),
        }
        Outcome::Done
    }

    /// Bytes of the application's writes in flight on the backing volume.
    pub fn direct_bytes_in_flight(&self) -> u64 {
        let direct = |(_, action): &(EffectId, Action)| match action {
            Action::Write { target: Target::Backing, from, .. } => {
                let requests = from.iter().filter(|slice| matches!(slice.buffer, BufferId::Request(_)));
                requests.map(|slice| u64::from(slice.length)).sum()
            }
            _ => 0,
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
