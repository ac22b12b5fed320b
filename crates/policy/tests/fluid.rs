//! The controller in a closed loop with a fluid model of both volumes, in virtual time: the papers' CM1 run.
//!
//! The fluid model has no seeks, no file system and no page cache, so it must come near the papers' completion times,
//! not meet them.

use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::{Config, Controller, Learned, Name, Outcome, Phase, Step, StepId};

const TICK: f64 = 0.01;
const BACKING: f64 = 33.0;
const CACHING: f64 = 128.0;
const SAMPLING_S: f64 = 5.0;

/// One VM: two volumes as rates in MiB/s, levels in MiB.
#[derive(Default)]
struct Fluid {
    now: f64,
    written: f64,
    dirty: f64,
    high_water: f64,
    evicted: f64,
    cache: Option<f64>,
    rented: Option<f64>,
    draining: bool,
    split: bool,
    agbs: f64,
    next_sample: f64,
    pending: Option<(f64, StepId, Step)>,
    sizes: Vec<u64>,
}

impl Fluid {
    fn instant(&self) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(self.now)
    }

    /// One tick in which the application wants to write as fast as it can (`writing`) or not at all.
    fn tick(&mut self, controller: &mut Controller, writing: bool) {
        let (mut backing, demand) = (BACKING * TICK, if writing { f64::INFINITY } else { 0.0 });
        if let Some(size) = self.cache {
            if self.draining {
                // Priority to the drain; it is at most what is dirty.
                let drained = self.dirty.min(backing);
                (self.dirty, backing) = (self.dirty - drained, backing - drained);
                self.written += demand.min(backing);
            } else {
                let direct = if self.split { demand.min(backing) } else { 0.0 };
                backing -= direct;
                let drained = self.dirty.min(backing);
                let wanted = demand.min(CACHING * TICK);
                let absorbed = wanted.min(size - self.dirty + drained);
                // What does not fit is written to the backing volume as room is made there: the papers' eviction.
                if absorbed < wanted {
                    self.evicted += if self.split { wanted - absorbed } else { drained };
                }
                self.dirty += absorbed - drained;
                self.written += direct + absorbed;
                self.high_water = self.high_water.max(self.dirty);
            }
        } else {
            self.written += demand.min(backing);
        }
        self.agbs += TICK * (50.0 * BACKING + self.rented.map_or(0.0, |mib| mib / 1024.0 * CACHING));
        self.now += TICK;
        self.control(controller);
    }

    fn control(&mut self, controller: &mut Controller) {
        let mib = |mib: f64| (mib * 1_048_576.0) as u64;
        if self.now >= self.next_sample {
            self.next_sample += SAMPLING_S;
            let observation = Observation {
                written_bytes: mib(self.written),
                dirty_bytes: mib(self.dirty),
                high_water_bytes: mib(self.high_water),
                evicted_bytes: mib(self.evicted),
                cache_bytes: mib(self.cache.unwrap_or(0.0)),
                ..Observation::default()
            };
            controller.observe(self.instant(), observation);
        }
        while let Some((at, id, step)) = self.pending.take_if(|(at, ..)| *at <= self.now) {
            self.carry_out(&step);
            controller.complete(Instant::ZERO + Duration::from_secs_f64(at), id, Outcome::Done);
        }
        while let Some((id, step)) = controller.next_step() {
            let takes_s = match step {
                Step::Create { .. } => 2.0,
                Step::Attach => 4.0,
                Step::Detach => 2.0,
                Step::Adopt | Step::Absorb | Step::Drain | Step::Release | Step::Delete => 0.0,
            };
            if let Step::Create { size } = step {
                self.sizes.push(size.get() >> 30);
                self.rented = Some(size.as_mib());
            }
            assert!(self.pending.replace((self.now + takes_s, id, step)).is_none());
        }
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Create { .. } | Step::Attach | Step::Detach => {}
            Step::Adopt => {
                (self.cache, self.draining) = (self.rented, false);
                (self.high_water, self.evicted) = (0.0, 0.0);
            }
            Step::Absorb => self.draining = false,
            Step::Drain => self.draining = true,
            Step::Release => {
                assert!(self.dirty < 1e-6);
                self.cache = None;
            }
            Step::Delete => self.rented = None,
        }
    }
}

/// Completion time without the initial dump, AGBs of the whole run, sizes of the caching volumes.
fn run(name: Option<Name>, dump_gib: f64, checkpoint_gib: f64, compute_s: f64) -> (f64, f64, Vec<u64>) {
    let mut config = Config::new(
        name.unwrap_or_default(),
        Bandwidth::from_mib_s(33),
        Bytes::from_gib(50),
        Bandwidth::from_mib_s(128),
    );
    if name.is_none() {
        config.utilization_threshold = 2.0; // never reached: static-slow
    }
    let mut fluid = Fluid { split: config.split, ..Fluid::default() };
    let mut controller = Controller::new(Instant::ZERO, config, Learned::default());
    let mut completion = 0.0;
    for burst in 0..4 {
        let started = fluid.now;
        if burst > 0 {
            while fluid.now < started + compute_s / 3.0 {
                fluid.tick(&mut controller, false);
            }
        }
        let target = fluid.written + 1024.0 * if burst == 0 { dump_gib } else { checkpoint_gib };
        while fluid.written < target {
            fluid.tick(&mut controller, true);
        }
        completion += if burst == 0 { 0.0 } else { fluid.now - started };
    }
    while controller.phase() != Phase::Idle {
        fluid.tick(&mut controller, false);
    }
    assert!(fluid.rented.is_none() && fluid.dirty < 1e-6);
    (completion, fluid.agbs, fluid.sizes)
}

fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "{what}: {found:.1} is not within {tolerance} of {expected:.1}"
    );
}

#[test]
fn cm1() {
    let (slow, slow_agbs, _) = run(None, 5.0, 4.0, 1100.0);
    let fast = 1100.0 + 3.0 * 4096.0 / CACHING;
    let fast_agbs = 50.0 * CACHING * (fast + 5.0 * 1024.0 / CACHING);
    let (paper, paper_agbs, paper_sizes) = run(Some(Name::Paper), 5.0, 4.0, 1100.0);
    let (split, split_agbs, split_sizes) = run(Some(Name::Adaptive), 5.0, 4.0, 1100.0);
    let report = format!(
        "slow {slow:.0} s {slow_agbs:.0}; fast {fast:.0} s {fast_agbs:.0}; paper {paper:.0} s {paper_agbs:.0} \
         {paper_sizes:?}; split {split:.0} s {split_agbs:.0} {split_sizes:?}"
    );
    near("static-slow", slow, 1471.0, 0.005);
    near("paper", paper, 1231.0, 0.03);
    // The papers start with 10 GB and learn 4, then 6: with ext4 and bcache's overhead, which the fluid has not.
    assert_eq!(paper_sizes[..2], [10, 4], "{report}");
    assert!(paper_sizes[2..].iter().all(|gib| (3..=6).contains(gib)), "{report}");
    assert!(paper_agbs < 0.40 * fast_agbs && paper_agbs < slow_agbs, "{report}");
    // Split is faster and needs a smaller cache.
    assert!(split < paper && split_agbs < paper_agbs, "{report}");
    assert!(split_sizes[1..].iter().all(|gib| *gib <= 4), "{report}");
}

#[test]
fn lammps() {
    let (slow, slow_agbs, _) = run(None, 4.0, 3.0, 1380.0);
    let (paper, paper_agbs, sizes) = run(Some(Name::Paper), 4.0, 3.0, 1380.0);
    near("static-slow", slow, 1680.0, 0.02);
    near("paper", paper, 1476.0, 0.02);
    assert!(paper_agbs < slow_agbs, "{paper_agbs} {slow_agbs} {sizes:?}");
}
