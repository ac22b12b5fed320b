//! Scrubbing in virtual time, beside requests, moves to SSD, damage at rest and repair, against what must have been read by when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Instant};
use surgetank_pool_core::benefactor::buffers::{Buffers, Piece};
use surgetank_pool_core::benefactor::holdings::{
    Admission, Effect, Entry, GroupOf, Holdings, Instance, Location, Put, SealOrder, Table,
};
use surgetank_pool_core::benefactor::scrub::{Config, Next, Scrub};
use surgetank_pool_core::id::{Incarnation, Inode, SessionId, Version};

const CHUNK: u64 = 1000;
const LIFE: Incarnation = Incarnation(3);
const SESSION: SessionId = SessionId(1);

/// A chunk of a file of its own.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    entry: Entry,
    of: GroupOf,
    sealed: bool,
}

/// What the pass that is under way must do.
#[derive(Debug)]
struct Pass {
    began: Instant,
    /// What was there at its beginning, and whether its bytes were damaged then.
    all: BTreeMap<Instance, (u32, bool)>,
    read: BTreeSet<Instance>,
}

struct World {
    random: Random,
    config: Config,
    scrub: Scrub,
    holdings: Holdings,
    now: Instant,
    numbers: u64,
    chunks: BTreeMap<Instance, Chunk>,
    memory: BTreeMap<Instance, Piece>,
    ssd: BTreeSet<Instance>,
    /// Damaged at rest; of these, those that the benefactor knows.
    damaged: BTreeSet<Instance>,
    known: BTreeSet<Instance>,
    /// Reads of others, which keep what nobody else may read any more.
    reading: Vec<Instance>,
    requests: u64,
    request_ended: Option<Instant>,
    pass: Option<Pass>,
    next_pass: Instant,
    passes: u64,
    last_read: Option<(Instant, u32)>,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let buffers = Buffers::new(CHUNK * 60, CHUNK).map_err(|error| error.to_string())?;
    let config = Config {
        period: Duration::from_secs(100 + random.below(1000)),
        rate: Bandwidth::new(CHUNK * (1 + random.below(4))),
        quiet: Duration::from_secs(1 + random.below(3)),
    };
    let ssd = random.chance(0.6);
    let mut world = World {
        random,
        config,
        scrub: Scrub::new(config),
        holdings: Holdings::new(LIFE, buffers, ssd),
        now: Instant::ZERO,
        numbers: 0,
        chunks: BTreeMap::new(),
        memory: BTreeMap::new(),
        ssd: BTreeSet::new(),
        damaged: BTreeSet::new(),
        known: BTreeSet::new(),
        reading: Vec::new(),
        requests: 0,
        request_ended: None,
        pass: None,
        next_pass: Instant::ZERO,
        passes: 0,
        last_read: None,
    };
    for step in 0..300 {
        world.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    // Whatever is damaged now is found in the next pass that begins.
    world.pass_time(world.config.period * 3)?;
    let missed = world.damaged.iter().find(|instance| !world.known.contains(instance));
    missed.map_or(Ok(()), |instance| Err(format!("{instance:?} is damaged, and two passes have not found it")))
}

impl World {
    fn pick(&mut self) -> Option<Chunk> {
        let at = self.random.below(self.chunks.len().max(1) as u64) as usize;
        self.chunks.values().nth(at).copied()
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(14) {
            0..=2 => self.put(),
            3 => self.seal()?,
            4 => self.move_some(),
            5 => {
                if let Some(chunk) = self.pick().filter(|_| self.random.chance(0.4)) {
                    self.damaged.insert(chunk.entry.instance);
                }
            }
            6 => self.repair()?,
            7 => self.forget(),
            8 => {
                self.scrub.request_began();
                self.requests += 1;
            }
            9 | 10 if self.requests > 0 => {
                self.scrub.request_ended(self.now);
                (self.requests, self.request_ended) = (self.requests - 1, Some(self.now));
            }
            11 => {
                let found = self.pick().filter(|chunk| chunk.sealed).map(|chunk| chunk.of);
                if let Some((entry, _)) = found.and_then(|of| self.holdings.find(of, Version(1), SESSION, 0)) {
                    self.reading.push(entry.instance);
                }
            }
            12 => {
                let instance = (!self.reading.is_empty()).then(|| self.reading.remove(0));
                instance.into_iter().for_each(|instance| self.holdings.read(instance));
            }
            _ => {
                let longest = self.config.period.as_millis() as u64 / 4;
                let time = Duration::from_millis(self.random.below(longest));
                return self.pass_time(time);
            }
        }
        Ok(())
    }

    fn put(&mut self) {
        self.numbers += 1;
        let number = self.numbers;
        let instance = Instance { session: SESSION, number };
        let length = u32::try_from(1 + self.random.below(CHUNK)).unwrap_or(1);
        let entry = Entry { instance, length, crc: 7 };
        let of = GroupOf { inode: Inode(number), group: 0 };
        let put = Put { incarnation: LIFE, inode: of.inode, mount: None, entry };
        if let Admission::Room(piece) = self.holdings.put(&put, 0) {
            self.holdings.stored(instance, true);
            self.memory.insert(instance, piece);
            self.chunks.insert(instance, Chunk { entry, of, sealed: false });
        }
    }

    /// A session seals, and sends what is missing again.
    fn seal(&mut self) -> Result<(), String> {
        let Some(Chunk { entry, of, .. }) = self.pick() else { return Ok(()) };
        let table = Table::from([(0, entry)]);
        let mut sealed = self.holdings.seal(of, Version(1), SESSION, SealOrder::default(), table.clone());
        if sealed.is_err() {
            match self.holdings.put(&Put { incarnation: LIFE, inode: of.inode, mount: None, entry }, 0) {
                Admission::Room(piece) => self.brought(entry.instance, piece),
                // A reader has it, or there is no room.
                Admission::Full => return Ok(()),
                other => return Err(format!("{entry:?} is sent again: {other:?}")),
            }
            sealed = self.holdings.seal(of, Version(1), SESSION, SealOrder::default(), table);
        }
        if let Some(chunk) = self.chunks.get_mut(&entry.instance) {
            chunk.sealed = true;
        }
        sealed.map_err(|missing| format!("{entry:?} was sent again: {missing}"))
    }

    fn brought(&mut self, instance: Instance, piece: Piece) {
        self.holdings.stored(instance, true);
        self.memory.insert(instance, piece);
        self.damaged.remove(&instance);
        self.known.remove(&instance);
        if let Some((_, was_damaged)) = self.pass.as_mut().and_then(|pass| pass.all.get_mut(&instance)) {
            *was_damaged = false;
        }
    }

    fn move_some(&mut self) {
        self.holdings.close_filling();
        while let Some(effect) = self.holdings.next_effect(Some(u64::MAX)) {
            match effect {
                Effect::Move(instance, _) => {
                    self.ssd.insert(instance);
                    self.holdings.moved(instance, true);
                }
                Effect::FreeSsd(instance) => drop(self.ssd.remove(&instance)),
            }
        }
    }

    /// A warden has what is damaged fetched anew.
    fn repair(&mut self) -> Result<(), String> {
        for ((of, version, by), chunk) in self.holdings.all_damaged() {
            let entry = self.holdings.table(of, version, by).and_then(|table| table.get(&chunk)).copied();
            let Some(entry) = entry else { return Err(format!("{of:?} is damaged, and not here")) };
            if !self.known.contains(&entry.instance) {
                return Err(format!("{entry:?} counts as damaged, and is not"));
            }
            let Admission::Room(piece) =
                self.holdings.put_copy(&Put { incarnation: LIFE, inode: of.inode, mount: None, entry }, 0)
            else {
                continue;
            };
            if self.holdings.find(of, version, by, chunk).is_some() {
                return Err(format!("{entry:?} is read, and has not come"));
            }
            if self.random.chance(0.3) {
                // The source does not answer.
                self.holdings.stored(entry.instance, false);
                continue;
            }
            self.brought(entry.instance, piece);
            let part = Table::from([(chunk, entry)]);
            self.holdings.adopt((of, version, by), &part, true).map_err(|why| format!("{entry:?}: {why:?}"))?;
        }
        Ok(())
    }

    /// A file is no more; a reader may have it still.
    fn forget(&mut self) {
        let Some(chunk) = self.pick() else { return };
        self.holdings.forgotten(chunk.of.inode);
        self.chunks.remove(&chunk.entry.instance);
        self.damaged.remove(&chunk.entry.instance);
        self.known.remove(&chunk.entry.instance);
    }

    /// Time passes, and the driver does what it is told at once.
    fn pass_time(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now + time;
        while self.now < until {
            let wanted: BTreeMap<Instance, (u32, bool)> = self
                .chunks
                .values()
                .filter(|chunk| !self.known.contains(&chunk.entry.instance))
                .map(|Chunk { entry, .. }| (entry.instance, (entry.length, self.damaged.contains(&entry.instance))))
                .collect();
            if self.pass.is_none() && self.now >= self.next_pass && !wanted.is_empty() {
                self.next_pass = self.now + self.config.period;
                self.pass = Some(Pass { began: self.now, all: wanted, read: BTreeSet::new() });
            }
            let next = self.scrub.next(self.now, &mut self.holdings);
            if let Next::Read(entry, location) = next {
                self.reads(entry, location)?;
                self.last_read = Some((self.now, entry.length));
                let is_damaged = self.damaged.contains(&entry.instance);
                let is_news = self.scrub.read(&mut self.holdings, !is_damaged);
                if is_damaged && (!is_news || !self.known.insert(entry.instance)) {
                    return Err(format!("{entry:?} is damaged, and is not told"));
                }
            }
            let report = self.scrub.report(self.now);
            if report.passes > self.passes {
                self.passes += 1;
                self.ended()?;
            }
            if let Next::Wait(at) = next {
                if at <= self.now && self.pass.is_some() {
                    return Err("it waits for what has been".to_owned());
                }
                self.now = at.min(until).max(self.now + Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Something is read: it may be, and now.
    fn reads(&mut self, entry: Entry, location: Location) -> Result<(), String> {
        let instance = entry.instance;
        if !self.chunks.contains_key(&instance) || self.known.contains(&instance) {
            return Err(format!("{instance:?} is read, and nobody else may read it"));
        }
        let there = match location {
            Location::Memory(piece) => self.memory.get(&instance) == Some(&piece),
            Location::Ssd => self.ssd.contains(&instance),
        };
        if !there {
            return Err(format!("{instance:?} is not at {location:?}"));
        }
        if let Some((at, length)) = self.last_read
            && at + self.config.rate.time_for(length.into()) > self.now
        {
            return Err(format!("{instance:?} is read too soon after another chunk"));
        }
        let Some(pass) = &mut self.pass else { return Err(format!("{instance:?} is read between passes")) };
        if !pass.all.contains_key(&instance) || !pass.read.insert(instance) {
            return Err(format!("{instance:?} is read in a pass to which it does not belong, or twice in one"));
        }
        let bytes = |all: &BTreeMap<Instance, (u32, bool)>, to: Instance| {
            all.range(..=to).map(|(_, (length, _))| u128::from(*length)).sum::<u128>()
        };
        let (done, total) =
            (bytes(&pass.all, instance), bytes(&pass.all, Instance { session: SESSION, number: u64::MAX }));
        let late = self.now.since(pass.began).as_nanos() + 1 >= self.config.period.as_nanos() * done / total;
        let is_busy = self.requests > 0 || self.request_ended.is_some_and(|at| at + self.config.quiet > self.now);
        if is_busy && !late {
            return Err(format!("{instance:?} is read beside requests, and the pass is not late"));
        }
        Ok(())
    }

    /// A pass has ended: whatever was there all the time was read, and what was damaged at its beginning is known.
    fn ended(&mut self) -> Result<(), String> {
        let Some(pass) = self.pass.take() else { return Err("a pass ends that nobody began".to_owned()) };
        for (instance, (_, was_damaged)) in &pass.all {
            if !self.chunks.contains_key(instance) {
                continue;
            }
            if !pass.read.contains(instance) && !self.known.contains(instance) {
                return Err(format!("{instance:?} was not read in the pass"));
            }
            let is_known = self.known.contains(instance) || !self.damaged.contains(instance);
            if *was_damaged && !is_known {
                return Err(format!("{instance:?} was damaged before the pass, and counts as good after it"));
            }
        }
        let total: u64 = pass.all.values().map(|(length, _)| u64::from(*length)).sum();
        let is_fast =
            u128::from(self.config.rate.get()) * self.config.period.as_nanos() / 2_000_000_000 >= total.into();
        let slack = self.config.rate.time_for(CHUNK);
        if is_fast && self.now > pass.began + self.config.period + slack {
            return Err(format!("a pass of {total} bytes lasted for {:?}", self.now.since(pass.began)));
        }
        Ok(())
    }
}
