//! What a sample costs the controller of one device, and how much it keeps, as one JSON document: `cargo bench --package
//! surgetank-policy`, or with its bars `make bench ARGS=policy`.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the controller has no clock, its speed has")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use surgetank_model::random::Random;
use surgetank_model::units::MIB;
use surgetank_model::{Bandwidth, Bytes, Instant as Moment, Observation};
use surgetank_policy::{Config, Controller, Learned, Phase, Preset, Step, StepId, StepOutcome};

const BACKING_MIB_S: u64 = 33;
const CACHING_MIB_S: u64 = 128;
/// Samples of a second each: a day and more of each load, so that all that is remembered is there.
const SAMPLES: u64 = 100_000;
/// Samples that are timed together.
const TOGETHER: u64 = 1000;
/// Seconds that the provider takes to create a volume.
const CREATE_S: u64 = 8;

/// Bytes in use now.
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, which counts what is in use.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

/// MiB that arrive in a second.
type Load = fn(&mut Random, u64) -> u64;

const LOADS: [(&str, Load); 4] = [
    ("calm", |_, _| 0),
    ("regular", |_, second| if second % 300 < 10 { 250 } else { 0 }),
    ("noise", |random, _| (-14.0 * (1.0 - random.unit()).ln()) as u64),
    ("overloaded", |random, _| 25 + random.below(20)),
];

/// A device, and a provider that never fails.
struct World {
    controller: Controller,
    now: Moment,
    observation: Observation,
    waiting_mib: u64,
    size: Bytes,
    pending: Option<(Moment, StepId)>,
}

impl World {
    fn new(value_of_time: f64) -> Self {
        let (backing, caching) = (Bandwidth::from_mib_s(BACKING_MIB_S), Bandwidth::from_mib_s(CACHING_MIB_S));
        let config = Config { value_of_time, ..Config::new(Preset::ADAPTIVE, backing, Bytes::from_gib(50), caching) };
        Self {
            controller: Controller::new(Moment::ZERO, config, Learned::default()),
            now: Moment::ZERO,
            observation: Observation::default(),
            waiting_mib: 0,
            size: Bytes::ZERO,
            pending: None,
        }
    }

    fn second(&mut self, arrives_mib: u64) {
        self.now += Duration::from_secs(1);
        self.waiting_mib += arrives_mib;
        let (dirty, cache) = (self.observation.dirty_bytes, self.observation.cache_bytes);
        let absorbs = self.controller.phase() == Phase::Boost && dirty < cache;
        let rate = if absorbs { BACKING_MIB_S + CACHING_MIB_S } else { BACKING_MIB_S };
        let written = self.waiting_mib.min(rate);
        self.waiting_mib -= written;
        self.observation.written_bytes += written * MIB;
        self.observation.busy += Duration::from_secs(1).mul_f64(written as f64 / rate as f64);
        self.observation.dirty_bytes = if absorbs && written > 0 {
            (dirty + written.min(CACHING_MIB_S) * MIB).min(cache)
        } else {
            dirty.saturating_sub((BACKING_MIB_S - written.min(BACKING_MIB_S)) * MIB)
        };
        if let Some((_, id)) = self.pending.take_if(|(at, _)| *at <= self.now) {
            self.controller.complete(self.now, id, StepOutcome::Done);
        }
        self.controller.observe(self.now, self.observation);
        while self.controller.next_deadline().is_some_and(|at| at <= self.now) {
            self.controller.tick(self.now);
        }
        self.take_steps();
        while self.controller.next_record().is_some() {}
    }

    fn take_steps(&mut self) {
        while let Some((id, step)) = self.controller.next_step() {
            match step {
                Step::Create { size } => {
                    self.size = size;
                    self.pending = Some((self.now + Duration::from_secs(CREATE_S), id));
                    continue;
                }
                Step::Adopt => self.observation.cache_bytes = self.size.get(),
                Step::Release => self.observation.cache_bytes = 0,
                _ => {}
            }
            self.controller.complete(self.now, id, StepOutcome::Done);
        }
    }
}

/// Microseconds a sample in the slowest thousand, those of all, and the most bytes that were kept.
fn measured(load: Load, value_of_time: f64) -> (f64, f64, i64) {
    let before = LIVE.load(Ordering::Relaxed);
    let (mut world, mut random) = (World::new(value_of_time), Random::from_seed(1));
    let (mut slowest, mut all, mut most) = (0.0f64, 0.0, 0);
    for thousand in 0..SAMPLES / TOGETHER {
        let begun = Instant::now();
        for second in 0..TOGETHER {
            world.second(load(&mut random, thousand * TOGETHER + second));
        }
        let micros = begun.elapsed().as_secs_f64() * 1e6;
        (slowest, all) = (slowest.max(micros / TOGETHER as f64), all + micros / SAMPLES as f64);
        most = most.max(LIVE.load(Ordering::Relaxed) - before);
    }
    (slowest, all, most + size_of::<Controller>() as i64)
}

fn main() {
    let backing_agbs = BACKING_MIB_S as f64 * 50.0;
    let mut loads = Vec::new();
    for (name, load) in LOADS {
        for value in [2.0, 100.0] {
            let (slowest, all, bytes) = measured(load, value * backing_agbs);
            loads.push(format!(
                "{{\"load\": \"{name}\", \"value_of_time\": {value}, \"slowest_us\": {slowest:.3}, \"mean_us\": {all:.3}, \
                 \"bytes\": {bytes}}}"
            ));
        }
    }
    println!("{{\"loads\": [{}]}}", loads.join(", "));
}
