//! Two read caches that share, in virtual time: the engines, the curves and the plans of the daemon under the loads of `lab bench sharing`.
//!
//! What is made up is how long things take, and that limits are taken at once.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_allocation::{Disk, MissCurve, Observed, Sharer, Sharing, Slo};
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
/// Where scans begin: hot spots are before that.
const SCAN: u64 = 512 * MIB;
const INTERVAL: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_micros(62_500);
const SLO: f64 = 0.1;
/// How far a prediction may be off.
const ERROR: f64 = 0.15;
/// Intervals of a phase, and those of the first one that do not count.
const OF_PHASE: usize = 28;
const BOOTSTRAP: usize = 4;

/// How long a member answers for, the disk for without a queue, and whoever reads between two reads.
const HIT: Duration = Duration::from_micros(450);
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

/// What an interval had.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// By whoever reads.
    client: Times,
    reads: Times,
    hits: Times,
    misses: Times,
    /// Bytes that hit and missed when it began.
    bytes: (u64, u64),
}

struct Device {
    engine: Engine,
    /// `None`: nobody asks for it.
    curve: Option<MiniatureCurve>,
    random: Random,
    turn: u64,
    scanned: u64,
    began: Instant,
    disk_free: Instant,
    seen: Seen,
}

enum Happens {
    Read(usize),
    Ends(usize, EffectId, Outcome, Option<(Target, Instant)>),
    Step,
    Interval,
}

impl Device {
    fn new(seed: u64, member: u64, shares: bool) -> Self {
        let mut engine = Engine::new(Config::new(DISK, 512)).unwrap();
        engine.add_member(MemberId(0), member).unwrap();
        let options = Miniatures {
            segment_blocks: engine.segment() / engine.block(),
            change_max: 0.1,
            ..Miniatures::up_to(engine.status().size / u64::from(engine.block()))
        };
        Self {
            engine,
            curve: shares.then(|| MiniatureCurve::new(options)),
            random: Random::from_seed(seed),
            turn: 0,
            scanned: 0,
            began: Instant::ZERO,
            disk_free: Instant::ZERO,
            seen: Seen::default(),
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
        let block = u64::from(self.engine.block());
        if let Some(curve) = &mut self.curve {
            curve.observe_range(Access::Read, read * READ / block..(read + 1) * READ / block);
        }
        self.began = now;
        let id = RequestId(self.turn);
        self.engine.submit(Request { id, operation: Operation::Read, offset: read * READ, length: READ });
    }

    /// What an interval came to, which ends.
    fn observed(&mut self) -> Observed {
        let block = self.engine.block();
        let status = self.engine.status();
        let seen = std::mem::replace(
            &mut self.seen,
            Seen { bytes: (status.hit_bytes, status.missed_bytes), ..Seen::default() },
        );
        let (hit, missed) = (status.hit_bytes - seen.bytes.0, status.missed_bytes - seen.bytes.1);
        let curve = self.curve.as_mut().and_then(|curve| {
            let (points, sampled) = (curve.points(), curve.sampled());
            curve.end_interval();
            Some((MissCurve::from_measured(&points, Bytes::new(block.into())).ok()?, sampled))
        });
        let elapsed = INTERVAL.as_secs_f64();
        let disk = (seen.misses.0 > 0)
            .then(|| Disk { busy: BUSY, utilization: BUSY.as_secs_f64() * seen.misses.0 as f64 / elapsed });
        Observed {
            curve: curve.filter(|(_, sampled)| *sampled > 0.0),
            reads: seen.reads.0,
            latency: seen.reads.mean(),
            misses: (hit + missed > 0).then(|| missed as f64 / (hit + missed) as f64),
            waits: (seen.hits.mean(), seen.misses.mean()),
            in_flight: seen.reads.1.as_secs_f64() / elapsed,
            disk,
            cached: Bytes::new(status.cached_bytes),
        }
    }
}

struct World {
    now: Instant,
    devices: [Device; 2],
    mixes: [Mix; 2],
    queue: EventQueue<Happens>,
    sharing: Option<Sharing>,
}

const NAMES: [&str; 2] = ["a", "b"];

impl World {
    fn new(seed: u64, shares: bool) -> Self {
        let sharing = shares.then(|| {
            let sharer = Sharer { slo: Slo::AboveFair(SLO), most: Bytes::new(CACHE) };
            let sharers = NAMES.map(|name| (name.to_owned(), sharer.clone()));
            Sharing::new(Bytes::new(CACHE), Bytes::new(MIB), sharers.into(), &BTreeMap::new())
        });
        let member = if shares { CACHE } else { CACHE / 2 };
        let mut devices = [1, 2].map(|number| Device::new(2 * seed + number, member, shares));
        let mut queue = EventQueue::default();
        for (at, device) in devices.iter_mut().enumerate() {
            if shares {
                device.engine.set_limit(Some(CACHE / 2));
            }
            queue.push(Instant::ZERO, Happens::Read(at));
        }
        queue.push(Instant::ZERO + STEP, Happens::Step);
        queue.push(Instant::ZERO + INTERVAL, Happens::Interval);
        Self { now: Instant::ZERO, devices, mixes: PHASES[0], queue, sharing }
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
                Happens::Ends(at, effect, outcome, began) => {
                    let device = &mut self.devices[at];
                    match began {
                        Some((Target::Backing, began)) => device.seen.misses.add(now.since(began)),
                        Some((Target::Member(_), began)) => device.seen.hits.add(now.since(began)),
                        None => (),
                    }
                    device.engine.complete(effect, outcome);
                    self.carry_out(at);
                }
                Happens::Step => {
                    self.step();
                    self.queue.push(now + STEP, Happens::Step);
                }
                Happens::Interval => {
                    let seen = [0, 1].map(|at| self.devices[at].seen.client.mean().unwrap_or_default());
                    let ended = NAMES.iter().zip(&mut self.devices);
                    let observed = ended.map(|(name, device)| ((*name).to_owned(), device.observed())).collect();
                    if let Some(sharing) = &mut self.sharing {
                        sharing.end_interval(&observed);
                    }
                    self.queue.push(now + INTERVAL, Happens::Interval);
                    return seen;
                }
            }
        }
    }

    fn step(&mut self) {
        let Some(sharing) = self.sharing.as_mut().filter(|sharing| !sharing.is_settled()) else { return };
        let held = NAMES.iter().zip(&self.devices);
        let held = held.map(|(name, device)| ((*name).to_owned(), Bytes::new(device.engine.status().held_bytes)));
        for (name, limit) in sharing.step(&held.collect()) {
            let at = NAMES.iter().position(|other| *other == name).unwrap();
            self.devices[at].engine.set_limit(Some(limit.get()));
        }
        [0, 1].iter().for_each(|at| self.carry_out(*at));
    }

    fn carry_out(&mut self, at: usize) {
        let (now, device) = (self.now, &mut self.devices[at]);
        while let Some(effect) = device.engine.next_effect() {
            let (ends, event) = match effect {
                Effect::Read { id, target: Target::Backing, .. } => {
                    let begins = now.max(device.disk_free);
                    device.disk_free = begins + BUSY;
                    (begins + MISS, Happens::Ends(at, id, Outcome::Done, Some((Target::Backing, now))))
                }
                Effect::Read { id, target, .. } => {
                    (now + HIT, Happens::Ends(at, id, Outcome::Done, Some((target, now))))
                }
                Effect::WriteSegment { id, from, .. } => {
                    let sums = vec![0; (from.length / device.engine.block()) as usize].into();
                    (now + WRITE, Happens::Ends(at, id, Outcome::Written(sums), None))
                }
                Effect::DiscardSegment { id, .. } => (now + MISS, Happens::Ends(at, id, Outcome::Done, None)),
                Effect::Reply { .. } => {
                    let taken = now.since(device.began);
                    device.seen.reads.add(taken);
                    device.seen.client.add(taken + BETWEEN);
                    (now + BETWEEN, Happens::Read(at))
                }
                Effect::Allocate { .. } | Effect::Release { .. } | Effect::Copy { .. } => continue,
                other => panic!("nobody asked for {other:?}"),
            };
            self.queue.push(ends, event);
        }
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

fn run(seed: u64) -> Came {
    let (mut halves, mut shared) = (World::new(seed, false), World::new(seed, true));
    let (mut within, mut near, mut counted, mut slowdown) = ([0, 0], 0, 0, 0.0);
    let mut above = String::new();
    for (phase, mixes) in PHASES.iter().enumerate() {
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
        let came = run(seed);
        assert!(came.within.iter().all(|within| *within >= 0.95), "seed {seed}: {came:?}\n{}", came.above);
        assert!(came.speedup >= 1.3 && came.near >= 0.9, "seed {seed}: {came:?}");
    }
}
