//! Two read caches that share, in virtual time: the engines, the curves and the plans of the daemon under the loads of `lab bench sharing`.
//!
//! What is made up is how long things take, and that limits are taken at once.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_allocation::{Behind, Disk, Level, MissCurve, Observed, Sharer, Sharing, Slo};
use surgetank_model::event_queue::EventQueue;
use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant, Operation, Request, RequestId};
use surgetank_mrc::{Access, MiniatureCurve, Miniatures};
use surgetank_readcache::effect::EffectId;
use surgetank_readcache::{Config, Effect, Engine, MemberId, Outcome, Target};

const MIB: u64 = 1 << 20;
/// Of a read.
const READ: u64 = 128 << 10;
const DISK: u64 = 8192 * MIB;
const CACHE: u64 = 128 * MIB;
/// Of both second levels together.
const SECOND: u64 = 512 * MIB;
/// Where scans begin: hot spots are before that.
const SCAN: u64 = 512 * MIB;
/// By the number of levels: what is cached in a second one takes longer to change.
const INTERVALS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(6)];
const STEP: Duration = Duration::from_micros(62_500);
const SLO: f64 = 0.1;
/// How far a prediction may be off.
const ERROR: f64 = 0.15;
/// Intervals of a phase, and those of the first one that do not count.
const OF_PHASE: usize = 28;
const BOOTSTRAP: usize = 4;

/// How long a member answers for, one of a second level, the disk without a queue, and whoever reads between two reads.
const HIT: Duration = Duration::from_micros(450);
const ANSWER: Duration = Duration::from_millis(1);
const MISS: Duration = Duration::from_micros(100);
const BETWEEN: Duration = Duration::from_micros(200);
/// The disk's time for a read: 250 IOPS.
const BUSY: Duration = Duration::from_millis(4);
const WRITE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
enum Mix {
    /// Uniformly from these MiB; one read in five is from anywhere.
    Hot(u64, u64),
    Scan,
}

const PHASES: [[Mix; 2]; 4] = [
    [Mix::Hot(0, 88), Mix::Scan],
    [Mix::Scan, Mix::Hot(0, 88)],
    [Mix::Scan, Mix::Hot(0, 108)],
    [Mix::Hot(128, 40), Mix::Hot(256, 72)],
];
/// For caches of two levels.
const PHASES_OF_TWO: [[Mix; 2]; 3] =
    [[Mix::Hot(0, 100), Mix::Hot(128, 340)], [Mix::Hot(128, 340), Mix::Hot(0, 100)], [Mix::Scan, Mix::Hot(0, 400)]];

#[derive(Clone, Copy, Debug, Default)]
struct Times(u64, Duration);

impl Times {
    fn add(&mut self, taken: Duration) {
        *self = Self(self.0 + 1, self.1 + taken);
    }

    fn mean(self) -> Option<Duration> {
        (self.0 > 0).then(|| self.1.div_f64(self.0 as f64))
    }
}

/// A read cache of a device.
struct Cache {
    engine: Engine,
    /// What its members answer for.
    answers: Duration,
    hits: Times,
    misses: Times,
    /// Bytes that hit and missed when the interval began.
    bytes: (u64, u64),
}

impl Cache {
    fn new(member: u64, answers: Duration) -> Self {
        let mut engine = Engine::new(Config::new(DISK, 512)).unwrap();
        engine.add_member(MemberId(0), member).unwrap();
        Self { engine, answers, hits: Times::default(), misses: Times::default(), bytes: (0, 0) }
    }

    /// The part of what was read in the interval that ends that it did not have, and what hits and misses took.
    fn end_interval(&mut self) -> (Option<f64>, (Times, Times)) {
        let status = self.engine.status();
        let now = (status.hit_bytes, status.missed_bytes);
        let former = std::mem::replace(&mut self.bytes, now);
        let (hit, missed) = (now.0 - former.0, now.1 - former.1);
        let misses = (hit + missed > 0).then(|| missed as f64 / (hit + missed) as f64);
        (misses, (std::mem::take(&mut self.hits), std::mem::take(&mut self.misses)))
    }
}

struct Device {
    /// The first level, and the second one, if there is one.
    caches: Vec<Cache>,
    /// What the first level asked of the second one, by its request, and since when.
    asked: BTreeMap<RequestId, (EffectId, Instant)>,
    /// `None`: nobody asks for it.
    curve: Option<MiniatureCurve>,
    random: Random,
    turn: u64,
    scanned: u64,
    began: Instant,
    disk_free: Instant,
    /// By whoever reads, in this interval.
    client: Times,
    reads: Times,
}

enum Happens {
    Read(usize),
    /// What a cache of a device asked for, and if that was a read, of what and since when.
    Ends((usize, usize), EffectId, Outcome, Option<(Target, Instant)>),
    Step,
    Interval,
}

impl Device {
    fn new(seed: u64, members: &[u64], shares: bool) -> Self {
        let caches: Vec<Cache> =
            members.iter().zip([HIT, ANSWER]).map(|(member, answers)| Cache::new(*member, answers)).collect();
        let engine = &caches[0].engine;
        let largest = caches.iter().map(|cache| cache.engine.status().size).max().unwrap();
        let options = Miniatures {
            segment_blocks: engine.segment() / engine.block(),
            change_max: 0.1,
            ..Miniatures::up_to(largest / u64::from(engine.block()))
        };
        Self {
            caches,
            asked: BTreeMap::new(),
            curve: shares.then(|| MiniatureCurve::new(options)),
            random: Random::from_seed(seed),
            turn: 0,
            scanned: 0,
            began: Instant::ZERO,
            disk_free: Instant::ZERO,
            client: Times::default(),
            reads: Times::default(),
        }
    }

    fn read(&mut self, now: Instant, mix: Mix) {
        self.turn += 1;
        let (blocks, scan) = (DISK / READ, SCAN / READ);
        let read = match mix {
            Mix::Scan => {
                self.scanned += 1;
                scan + self.scanned % (blocks - scan)
            }
            Mix::Hot(..) if self.turn.is_multiple_of(5) => self.random.below(blocks),
            Mix::Hot(from, mib) => from * MIB / READ + self.random.below(mib * MIB / READ),
        };
        let engine = &mut self.caches[0].engine;
        let block = u64::from(engine.block());
        if let Some(curve) = &mut self.curve {
            curve.observe_range(Access::Read, read * READ / block..(read + 1) * READ / block);
        }
        self.began = now;
        let id = RequestId(self.turn);
        engine.submit(Request { id, operation: Operation::Read, offset: read * READ, length: READ });
    }

    /// What an interval came to, which ends.
    fn observed(&mut self) -> Observed {
        let block = self.caches[0].engine.block();
        let cached: Vec<Bytes> =
            self.caches.iter().map(|cache| Bytes::new(cache.engine.status().cached_bytes)).collect();
        let ended: Vec<_> = self.caches.iter_mut().map(Cache::end_interval).collect();
        let curve = self.curve.as_mut().and_then(|curve| {
            let (points, sampled) = (curve.points(), curve.sampled());
            curve.end_interval();
            Some((MissCurve::from_measured(&points, Bytes::new(block.into())).ok()?, sampled))
        });
        let waits = |at: usize| (ended[at].1.0.mean(), ended[at].1.1.mean());
        let (elapsed, missed) = (INTERVALS[self.caches.len() - 1].as_secs_f64(), ended.last().unwrap().1.1.0);
        let disk = (missed > 0).then(|| Disk { busy: BUSY, utilization: BUSY.as_secs_f64() * missed as f64 / elapsed });
        self.client = Times::default();
        let reads = std::mem::take(&mut self.reads);
        Observed {
            curve: curve.filter(|(_, sampled)| *sampled > 0.0),
            reads: reads.0,
            latency: reads.mean(),
            misses: ended[0].0,
            waits: waits(0),
            overhead: Duration::ZERO,
            in_flight: reads.1.as_secs_f64() / elapsed,
            disk,
            cached: cached[0],
            second: ended.get(1).map(|second| Behind {
                misses: second.0,
                waits: waits(1),
                cached: cached[1],
                size: Bytes::new(self.caches[1].engine.status().size),
            }),
        }
    }
}

struct World {
    interval: Duration,
    now: Instant,
    devices: [Device; 2],
    mixes: [Mix; 2],
    queue: EventQueue<Happens>,
    sharing: Option<Sharing>,
}

const NAMES: [&str; 2] = ["a", "b"];

const LEVELS: [Level; 2] = [Level::First, Level::Second];

impl World {
    /// With so many levels.
    fn new(seed: u64, levels: usize, shares: bool) -> Self {
        let budgets = &[CACHE, SECOND][..levels];
        let second = budgets.get(1).copied().map(Bytes::new);
        let sharing = shares.then(|| {
            let sharer = Sharer { slo: Slo::AboveFair(SLO), most: Bytes::new(CACHE), second };
            let sharers = NAMES.map(|name| (name.to_owned(), sharer.clone()));
            let budgets = (Bytes::new(CACHE), second.unwrap_or_default());
            Sharing::new(budgets, Bytes::new(MIB), sharers.into(), &BTreeMap::new())
        });
        let members: Vec<u64> = budgets.iter().map(|budget| if shares { *budget } else { budget / 2 }).collect();
        let mut devices = [1, 2].map(|number| Device::new(2 * seed + number, &members, shares));
        let mut queue = EventQueue::default();
        for (at, device) in devices.iter_mut().enumerate() {
            for (cache, budget) in device.caches.iter_mut().zip(budgets).filter(|_| shares) {
                cache.engine.set_limit(Some(budget / 2));
            }
            queue.push(Instant::ZERO, Happens::Read(at));
        }
        queue.push(Instant::ZERO + STEP, Happens::Step);
        let interval = INTERVALS[levels - 1];
        queue.push(Instant::ZERO + interval, Happens::Interval);
        Self { interval, now: Instant::ZERO, devices, mixes: PHASES[0], queue, sharing }
    }

    /// Until an interval ends: what both clients saw.
    fn interval(&mut self) -> [Duration; 2] {
        loop {
            let (now, happens) = self.queue.pop().expect("something goes on");
            self.now = now;
            match happens {
                Happens::Read(at) => {
                    self.devices[at].read(now, self.mixes[at]);
                    self.carry_out(at);
                }
                Happens::Ends((at, level), effect, outcome, began) => {
                    let cache = &mut self.devices[at].caches[level];
                    match began {
                        Some((Target::Backing, began)) => cache.misses.add(now.since(began)),
                        Some((Target::Member(_), began)) => cache.hits.add(now.since(began)),
                        None => (),
                    }
                    cache.engine.complete(effect, outcome);
                    self.carry_out(at);
                }
                Happens::Step => {
                    self.step();
                    self.queue.push(now + STEP, Happens::Step);
                }
                Happens::Interval => {
                    let seen = [0, 1].map(|at| self.devices[at].client.mean().unwrap_or_default());
                    let ended = NAMES.iter().zip(&mut self.devices);
                    let observed = ended.map(|(name, device)| ((*name).to_owned(), device.observed())).collect();
                    if let Some(sharing) = &mut self.sharing {
                        sharing.end_interval(&observed);
                    }
                    self.queue.push(now + self.interval, Happens::Interval);
                    return seen;
                }
            }
        }
    }

    fn step(&mut self) {
        let Some(sharing) = self.sharing.as_mut().filter(|sharing| !sharing.is_settled()) else { return };
        for (number, level) in LEVELS.into_iter().enumerate() {
            let held = |(name, device): (&&str, &Device)| {
                let cache = device.caches.get(number)?;
                Some(((*name).to_owned(), Bytes::new(cache.engine.status().held_bytes)))
            };
            let held = NAMES.iter().zip(&self.devices).filter_map(held).collect();
            for (name, limit) in sharing.step(level, &held) {
                let at = NAMES.iter().position(|other| *other == name).unwrap();
                self.devices[at].caches[number].engine.set_limit(Some(limit.get()));
            }
        }
        [0, 1].iter().for_each(|at| self.carry_out(*at));
    }

    fn carry_out(&mut self, at: usize) {
        let device = &mut self.devices[at];
        while let Some((level, effect)) =
            (0..device.caches.len()).find_map(|level| Some((level, device.caches[level].engine.next_effect()?)))
        {
            if let Some((ends, event)) = device.carried_out(self.now, (at, level), effect) {
                self.queue.push(ends, event);
            }
        }
    }
}

impl Device {
    /// When what a cache asks for ends, and what happens then; `None`: it has ended, or the second level is asked for it.
    fn carried_out(&mut self, now: Instant, (at, level): (usize, usize), effect: Effect) -> Option<(Instant, Happens)> {
        let (block, answers) = (self.caches[level].engine.block(), self.caches[level].answers);
        let ends = |id, outcome, began| Happens::Ends((at, level), id, outcome, began);
        Some(match effect {
            Effect::Read { id, target: Target::Backing, offset, into, .. } if level + 1 < self.caches.len() => {
                self.turn += 1;
                let request = RequestId(self.turn);
                self.asked.insert(request, (id, now));
                let (offset, length) = (offset, into.length.into());
                let asked = Request { id: request, operation: Operation::Read, offset, length };
                self.caches[level + 1].engine.submit(asked);
                return None;
            }
            Effect::Read { id, target: Target::Backing, .. } => {
                let begins = now.max(self.disk_free);
                self.disk_free = begins + BUSY;
                (begins + MISS, ends(id, Outcome::Done, Some((Target::Backing, now))))
            }
            Effect::Read { id, target, .. } => (now + answers, ends(id, Outcome::Done, Some((target, now)))),
            Effect::WriteSegment { id, from, .. } => {
                let sums = vec![0; (from.length / block) as usize].into();
                (now + WRITE, ends(id, Outcome::Written(sums), None))
            }
            Effect::DiscardSegment { id, .. } => (now + MISS, ends(id, Outcome::Done, None)),
            Effect::Reply { request, .. } if level > 0 => {
                let (id, began) = self.asked.remove(&request).expect("it was asked");
                (now, Happens::Ends((at, level - 1), id, Outcome::Done, Some((Target::Backing, began))))
            }
            Effect::Reply { .. } => {
                let taken = now.since(self.began);
                self.reads.add(taken);
                self.client.add(taken + BETWEEN);
                (now + BETWEEN, Happens::Read(at))
            }
            Effect::Allocate { .. } | Effect::Release { .. } | Effect::Copy { .. } => return None,
            other => panic!("nobody asked for {other:?}"),
        })
    }
}

/// What a run came to: the intervals in which each device was within its SLO, the fair speedup, and how often what the reads took was within 15 % of
/// what was predicted, for the engine; all as parts of 1.
#[derive(Debug)]
struct Came {
    within: [f64; 2],
    speedup: f64,
    near: f64,
    /// Intervals above an SLO.
    above: String,
}

fn run(seed: u64, levels: usize, phases: &[[Mix; 2]]) -> Came {
    let (mut halves, mut shared) = (World::new(seed, levels, false), World::new(seed, levels, true));
    let (mut within, mut near, mut counted, mut slowdown) = ([0, 0], 0, 0, 0.0);
    let mut above = String::new();
    for (phase, mixes) in phases.iter().enumerate() {
        (halves.mixes, shared.mixes) = (*mixes, *mixes);
        let bootstrap = if phase == 0 { BOOTSTRAP } else { 0 };
        for number in 0..OF_PHASE + bootstrap {
            let (fair, got) = (halves.interval(), shared.interval());
            if number < bootstrap {
                continue;
            }
            counted += 1;
            for (at, name) in NAMES.iter().enumerate() {
                let ratio = got[at].div_duration_f64(fair[at]);
                slowdown += ratio;
                within[at] += u32::from(ratio <= 1.0 + SLO);
                if ratio > 1.0 + SLO {
                    above += &format!("{phase}.{number} {name}: {:?}, fair is {:?}\n", got[at], fair[at]);
                }
                let verdict = shared.sharing.as_ref().and_then(|sharing| sharing.verdict(name)).expect("it reads");
                near += u32::from((verdict.latency.div_duration_f64(verdict.expected) - 1.0).abs() <= ERROR);
            }
        }
    }
    let part = |count: u32, of: u32| f64::from(count) / f64::from(of);
    Came {
        within: within.map(|within| part(within, counted)),
        speedup: 2.0 * f64::from(counted) / slowdown,
        near: part(near, 2 * counted),
        above,
    }
}

/// The bars of `lab bench sharing`, where a part of the intervals follows a change of the loads.
#[test]
fn two_caches_keep_their_slos_while_the_loads_change_and_are_faster_than_with_halves() {
    for seed in 0..2 {
        let came = run(seed, 1, &PHASES);
        assert!(came.within.iter().all(|within| *within >= 0.95), "seed {seed}: {came:?}\n{}", came.above);
        assert!(came.speedup >= 1.3 && came.near >= 0.9, "seed {seed}: {came:?}");
    }
}

/// What is cached in a second level takes some intervals to follow a change of the loads, in halves as well.
#[test]
fn both_levels_of_two_caches_keep_their_slos_while_the_loads_change_and_are_faster_than_with_halves() {
    let came = run(0, 2, &PHASES_OF_TWO);
    assert!(came.within.iter().all(|within| *within >= 0.95), "{came:?}\n{}", came.above);
    assert!(came.speedup >= 1.1 && came.near >= 0.8, "{came:?}");
}
