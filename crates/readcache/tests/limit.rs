//! What a limit promises, where a machine of few segments does not come by.

use surgetank_model::effect::BufferId;
use surgetank_model::{Operation, Request, RequestId};
use surgetank_readcache::effect::EffectId;
use surgetank_readcache::{Config, Effect, Engine, MemberId, Outcome, Target};

const BLOCK: u64 = 1024;
const SEGMENT: u64 = 4096;
const CONFIG: Config = Config { size: 1 << 20, logical_block: 512, block: BLOCK as u32, segment: SEGMENT as u32 };

/// Answers everything but what is held back.
struct Driver {
    engine: Engine,
    /// Reads of survivors.
    holds_back: bool,
    holds_discards: bool,
    evictions: Vec<EffectId>,
    discards: Vec<EffectId>,
    /// Reads of the backing volume.
    missed: u64,
    next: u64,
}

impl Driver {
    fn new(members: u32, segments: u64) -> Self {
        let mut engine = Engine::new(CONFIG).unwrap();
        (0..members).for_each(|id| engine.add_member(MemberId(id), segments * SEGMENT).unwrap());
        Self {
            engine,
            holds_back: false,
            holds_discards: false,
            evictions: Vec::new(),
            discards: Vec::new(),
            missed: 0,
            next: 0,
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                Effect::Read { id, target: Target::Member(_), into, .. }
                    if self.holds_back && matches!(into.buffer, BufferId::Scratch(_)) =>
                {
                    self.evictions.push(id);
                }
                Effect::DiscardSegment { id, .. } if self.holds_discards => self.discards.push(id),
                Effect::WriteSegment { id, .. } => {
                    self.engine.complete(id, Outcome::Written(vec![0; (SEGMENT / BLOCK) as usize].into()));
                }
                Effect::Read { id, target: Target::Backing, .. } => {
                    self.missed += 1;
                    self.engine.complete(id, Outcome::Done);
                }
                Effect::Read { id, .. }
                | Effect::DiscardSegment { id, .. }
                | Effect::Write { id, .. }
                | Effect::Flush { id }
                | Effect::Discard { id, .. }
                | Effect::WriteZeroes { id, .. } => self.engine.complete(id, Outcome::Done),
                Effect::Allocate { .. } | Effect::Release { .. } | Effect::Copy { .. } | Effect::Reply { .. } => {}
            }
        }
    }

    fn read(&mut self, block: u64) {
        self.next += 1;
        let (id, operation) = (RequestId(self.next), Operation::Read);
        self.engine.submit(Request { id, operation, offset: block * BLOCK, length: BLOCK });
        self.carry_out();
    }
}

#[test]
fn a_cache_without_room_keeps_no_segment_for_survivors_that_were_being_read() {
    let mut driver = Driver::new(1, 40);
    (driver.holds_back, driver.holds_discards) = (true, true);
    let mut block = 0;
    while driver.evictions.is_empty() {
        // Used twice after it came: it survives.
        (0..4).for_each(|_| driver.read(block));
        block += 1;
        assert!(block < 1000);
    }
    driver.engine.set_limit(Some(0));
    driver.carry_out();
    (900..930).for_each(|block| driver.read(block));
    (driver.holds_back, driver.holds_discards) = (false, false);
    for id in std::mem::take(&mut driver.evictions).into_iter().chain(std::mem::take(&mut driver.discards)) {
        driver.engine.complete(id, Outcome::Done);
        driver.carry_out();
    }
    (900..950).for_each(|block| driver.read(block));
    assert_eq!(driver.engine.status().held_bytes, 0);
}

#[test]
fn what_a_lost_member_had_of_the_limit_the_others_have() {
    let mut driver = Driver::new(2, 20);
    driver.engine.set_limit(Some(20 * SEGMENT));
    driver.carry_out();
    (0..400).for_each(|block| driver.read(block));
    assert_eq!(driver.engine.status().held_bytes, 20 * SEGMENT);
    driver.engine.remove_member(MemberId(1)).unwrap();
    driver.carry_out();
    (400..800).for_each(|block| driver.read(block));
    assert_eq!(driver.engine.status().held_bytes, 20 * SEGMENT);
}

#[test]
fn a_cache_that_shrinks_evicts_nothing_that_has_room_when_free_segments_are_parked() {
    const HOT: u64 = 80;
    let mut driver = Driver::new(1, 128);
    for turn in 0..4000 {
        driver.read(turn % HOT);
        driver.read(HOT + turn % 900);
    }
    driver.holds_discards = true;
    driver.engine.set_limit(Some((HOT * BLOCK / SEGMENT + 6) * SEGMENT));
    driver.carry_out();
    while let Some(discard) = driver.discards.pop() {
        driver.engine.complete(discard, Outcome::Done);
        driver.carry_out();
    }
    let missed = driver.missed;
    (0..HOT).for_each(|block| driver.read(block));
    assert_eq!(driver.missed - missed, 0, "the hot blocks");
}
