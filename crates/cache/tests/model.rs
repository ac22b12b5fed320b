//! The engine behaves as a byte array, whatever boosts come and go and however its effects are ordered.

#[allow(dead_code, reason = "other tests use more of it")]
mod support;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use surgetank_cache::{CacheMode, EngineStage, Event, Owner, ReadFill, Target};
use surgetank_model::Operation;

use support::{Done, Machine};

/// The smallest caching volume: a header and eight segments of 64 KiB.
const CACHE_MIN: usize = (64 << 10) * 9 + 4096;

#[derive(Clone, Debug)]
enum Op {
    Request { operation: Operation, at: u32, units: u32 },
    Adopt,
    Mode(CacheMode),
    Release,
    Advance(u8),
    AnswerAll,
    Grow(u8),
    GrowCache(u8),
    Restart,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => any::<bool>().prop_map(|fua| Operation::Write { fua }),
        4 => Just(Operation::Read),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Discard),
        1 => any::<bool>().prop_map(|fua| Operation::WriteZeroes { fua }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => (operation(), any::<u32>(), prop_oneof![3 => 1..=16u32, 1 => 1..=300u32])
            .prop_map(|(operation, at, units)| Op::Request { operation, at, units }),
        3 => Just(Op::Adopt),
        1 => Just(Op::Mode(CacheMode::Drain)),
        1 => Just(Op::Mode(CacheMode::Finish)),
        2 => Just(Op::Mode(CacheMode::Absorb)),
        1 => Just(Op::Release),
        6 => any::<u8>().prop_map(Op::Advance),
        1 => Just(Op::AnswerAll),
        1 => (1..=20u8).prop_map(Op::Grow),
        2 => any::<u8>().prop_map(Op::GrowCache),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, Debug)]
struct Setting {
    seed: u64,
    blocks: usize,
    tail_units: usize,
    logical_block: u32,
    cache_size: usize,
    split: bool,
    read_fill: ReadFill,
}

fn setting() -> impl Strategy<Value = Setting> {
    let fill = prop_oneof![Just(ReadFill::Never), Just(ReadFill::SecondHit), Just(ReadFill::Always)];
    let logical_block = prop_oneof![Just(512), Just(4096)];
    (any::<u64>(), 1..400usize, 0..8usize, logical_block, 0..300usize, any::<bool>(), fill).prop_map(
        |(seed, blocks, tail_units, logical_block, extra, split, read_fill)| Setting {
            seed,
            blocks,
            tail_units: if logical_block == 512 { tail_units } else { 0 },
            logical_block,
            cache_size: CACHE_MIN + extra * 4096,
            split,
            read_fill,
        },
    )
}

fn apply(machine: &mut Machine, setting: &Setting, op: &Op) {
    match *op {
        Op::Request { operation, at, units } => {
            let unit = setting.logical_block as usize;
            let units_all = machine.model.len() / unit;
            // Low bits choose a place near the start, so that ranges meet often.
            let near = if at % 2 == 0 { units_all } else { units_all.min(96) };
            let first = (at / 2) as usize % near;
            let units = (units as usize).min(units_all - first);
            let (offset, length) = if operation == Operation::Flush { (0, 0) } else { (first * unit, units * unit) };
            machine.submit(operation, offset, length);
        }
        Op::Adopt => {
            if machine.stage() == EngineStage::PassThrough {
                assert!(machine.adopt(setting.cache_size, setting.split, setting.read_fill));
            }
        }
        Op::Mode(mode) => {
            machine.engine.set_mode(machine.now, mode);
            machine.advance();
        }
        Op::Release => {
            if matches!(machine.stage(), EngineStage::Absorb | EngineStage::Drain) {
                machine.engine.release(machine.now).expect("there is a cache");
            }
        }
        Op::Advance(times) => {
            for _ in 0..times {
                machine.advance();
            }
        }
        Op::AnswerAll => machine.answer_all(),
        Op::Restart => machine.restart(setting.split, setting.read_fill),
        Op::GrowCache(blocks) => {
            if matches!(machine.stage(), EngineStage::Absorb | EngineStage::Drain) {
                machine.grow_cache(usize::from(blocks) * 4096);
            }
        }
        Op::Grow(units) => machine.grow(usize::from(units) * setting.logical_block as usize),
    }
}

/// Everything is answered, the cache is released, and the backing volume holds it all.
fn finish(machine: &mut Machine) {
    machine.answer_all();
    while matches!(machine.stage(), EngineStage::Adopting | EngineStage::Recovering) {
        assert!(machine.advance(), "adopting or recovering never ends");
    }
    while machine.stage() == EngineStage::Releasing {
        assert!(machine.advance(), "releasing never ends");
    }
    if machine.stage() != EngineStage::PassThrough {
        machine.events.clear();
        machine.engine.release(machine.now).expect("there is a cache");
        assert!(machine.wait_for(&Event::Released, 20_000), "never released: {:?}", machine.engine.status());
    }
    machine.check_backing();
    let status = machine.engine.status();
    assert_eq!((status.dirty_bytes, status.requests_in_flight, machine.buffers()), (0, 0, 0));
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn the_device_is_a_byte_array() {
    let split_bytes = Cell::new(0);
    let runs = (setting(), prop::collection::vec(op(), 1..120));
    let result = TestRunner::new(cases(300)).run(&runs, |(setting, ops)| {
        let size = setting.blocks * 4096 + setting.tail_units * setting.logical_block as usize;
        let mut machine = Machine::new(size, setting.logical_block, setting.seed);
        for op in &ops {
            apply(&mut machine, &setting, op);
        }
        finish(&mut machine);
        split_bytes.set(split_bytes.get() + machine.split_bytes);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(split_bytes.get() > 0, "nothing was ever split");
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn any_cache_size_is_refused_or_works(size in 0..3_000_000usize, seed in any::<u64>()) {
        let mut machine = Machine::new(1 << 20, 4096, seed);
        if machine.adopt(size, false, ReadFill::Never) {
            for at in 0..64 {
                machine.submit(Operation::Write { fua: false }, at * 16384, 16384);
            }
            finish(&mut machine);
        } else {
            prop_assert!(size < CACHE_MIN, "{} bytes are enough for a cache", size);
        }
    }

    #[test]
    fn a_release_ends_under_hot_rewrites(seed in any::<u64>(), hot in 1..40usize, depth in 1..8usize) {
        let mut machine = Machine::new(4 << 20, 4096, seed);
        machine.adopt(2 << 20, true, ReadFill::Never);
        prop_assert!(machine.wait_for(&Event::Adopted, 1000));
        for at in 0..256 {
            machine.submit(Operation::Write { fua: false }, at * 4096, 4096);
        }
        machine.engine.release(machine.now).expect("there is a cache");
        let mut rewrites = 0;
        while !machine.events.contains(&Event::Released) {
            for _ in 0..depth {
                machine.submit(Operation::Write { fua: false }, rewrites % hot * 4096, 4096);
                rewrites += 1;
            }
            machine.advance();
            prop_assert!(rewrites < 10_000, "the release never ends: {:?}", machine.engine.status());
        }
        machine.answer_all();
        machine.check_backing();
    }
}

/// A drain of 24 MiB that the application rewrites all the while, so many times as fast as it is drained if it can: bytes
/// drained, and bytes that were dirty.
fn drain_under_rewrites(seed: u64, times: usize, mode: CacheMode) -> (u64, u64) {
    const REQUEST: usize = 64 << 10;
    let mut machine = Machine::new(40 << 20, 4096, seed);
    machine.adopt(48 << 20, false, ReadFill::Never);
    assert!(machine.wait_for(&Event::Adopted, 1000));
    let write = Operation::Write { fua: false };
    for at in 0..384 {
        machine.submit(write, at * REQUEST, REQUEST);
    }
    while machine.engine.status().requests_in_flight > 0 {
        assert!(machine.advance_without_backing(), "the burst is not absorbed");
    }
    let before = machine.engine.status();
    machine.engine.set_mode(machine.now, mode);
    let mut rewrites = 0;
    while machine.engine.status().dirty_bytes > 0 && rewrites < 10_000 {
        for _ in 0..times {
            // Every fourth goes where nothing is dirty.
            let at = if rewrites % 4 == 3 { 400 + rewrites % 200 } else { rewrites * 7 % 384 };
            machine.submit_unless_it_waits(write, at * REQUEST, REQUEST);
            rewrites += 1;
            machine.advance_without_backing();
        }
        machine.advance();
    }
    let drained = machine.engine.status().drained_bytes - before.drained_bytes;
    finish(&mut machine);
    (drained, before.dirty_bytes)
}

/// Whatever is rewritten, a drain that is to be finished writes what was dirty and no more, and every request is answered
/// in the end: `finish` waits for them. A plain drain is prolonged.
#[test]
fn a_drain_that_is_to_be_finished_ends_under_hot_rewrites() {
    for (seed, times) in [1, 2, 4, 8].into_iter().enumerate() {
        let seed = seed as u64;
        let (drained, dirty) = drain_under_rewrites(seed, times, CacheMode::Finish);
        assert_eq!(drained, dirty, "{times} times, seed {seed}");
        let (drained, dirty) = drain_under_rewrites(seed, times, CacheMode::Drain);
        assert!(
            times == 1 || drained > 2 * dirty,
            "{times} times, seed {seed}: {drained} bytes are drained of {dirty}"
        );
    }
}

/// Who waits for the oldest data does not wait for the end of the drain, wherever on the device they are.
#[test]
fn the_oldest_segments_are_drained_and_freed_first() {
    const REQUEST: usize = 64 << 10;
    let mut machine = Machine::new(160 << 20, 4096, 3);
    machine.adopt(192 << 20, false, ReadFill::Never);
    assert!(machine.wait_for(&Event::Adopted, 1000));
    let write = Operation::Write { fua: false };
    for at in (0..1600).rev() {
        machine.submit(write, at * REQUEST, REQUEST);
    }
    while machine.engine.status().requests_in_flight > 0 {
        assert!(machine.advance_without_backing(), "the burst is not absorbed");
    }
    let dirty = machine.engine.status().dirty_bytes;
    machine.engine.set_mode(machine.now, CacheMode::Finish);
    machine.submit(write, 1599 * REQUEST, REQUEST);
    while machine.engine.status().requests_in_flight > 0 {
        // As if the volumes did 50 effects a second: segments are freed every second.
        machine.now += std::time::Duration::from_millis(20);
        assert!(machine.advance(), "the change is never answered");
    }
    let left = machine.engine.status().dirty_bytes;
    assert!(left > dirty / 2, "{left} of {dirty} bytes are left when the first change goes on");
    finish(&mut machine);
}

/// Writes where nothing is dirty leave a drain that is to be finished four fifths of the backing volume, also to one of
/// single blocks.
#[test]
fn a_drain_that_is_to_be_finished_has_most_of_the_backing_volume() {
    for (stride, in_flight) in [(1, 4 << 20), (2, 32 * 4096)] {
        for (mode, most) in [(CacheMode::Finish, in_flight / 4), (CacheMode::Drain, 256 << 10)] {
            let mut machine = Machine::new(32 << 20, 4096, 3);
            machine.adopt(32 << 20, false, ReadFill::Never);
            assert!(machine.wait_for(&Event::Adopted, 1000));
            let write = Operation::Write { fua: false };
            for at in 0..2048 {
                machine.submit(write, at * stride * 4096, 4096);
            }
            while machine.engine.status().requests_in_flight > 0 {
                assert!(machine.advance_without_backing(), "the burst is not absorbed");
            }
            machine.engine.set_mode(machine.now, mode);
            while machine.advance_without_backing() {}
            for at in 0..64 {
                machine.submit(write, (20 << 20) + at * 4096, 4096);
            }
            assert_eq!(machine.direct_bytes_in_flight(), most.min(256 << 10), "{mode:?}, every {stride}. block");
            machine.answer_all();
            finish(&mut machine);
        }
    }
}

/// Changes that wait for a drain go on at once if it is called off.
#[test]
fn changes_that_wait_go_on_when_the_drain_is_called_off() {
    for mode in [CacheMode::Absorb, CacheMode::Drain] {
        let mut machine = Machine::new(8 << 20, 4096, 3);
        machine.adopt(64 << 20, false, ReadFill::Never);
        assert!(machine.wait_for(&Event::Adopted, 1000));
        let write = Operation::Write { fua: false };
        for at in 0..8 {
            machine.submit(write, at << 20, 1 << 20);
        }
        while machine.advance_without_backing() {}
        machine.engine.set_mode(machine.now, CacheMode::Finish);
        machine.submit(write, 0, 8192);
        while machine.advance_without_backing() {}
        assert_eq!(machine.engine.status().requests_in_flight, 1, "a change over what is dirty waits");
        machine.engine.set_mode(machine.now, mode);
        while machine.advance_without_backing() {}
        assert_eq!(machine.engine.status().requests_in_flight, 0, "{mode:?}");
        finish(&mut machine);
    }
}

/// What summaries, the reserve and the segment table leave of a cache for a burst.
#[test]
fn a_burst_finds_nearly_the_whole_cache() {
    for (mib, percent) in [(16, 93), (64, 95), (192, 97)] {
        let cache = mib << 20;
        let mut machine = Machine::new(cache + (8 << 20), 4096, 5);
        machine.adopt(cache, false, ReadFill::Never);
        assert!(machine.wait_for(&Event::Adopted, 100));
        for offset in (0..cache + (4 << 20)).step_by(1 << 20) {
            machine.submit(Operation::Write { fua: false }, offset, 1 << 20);
            while machine.advance_without_backing() {}
        }
        let status = machine.engine.status();
        assert!(
            status.evicted_bytes > 0 && status.dirty_bytes >= cache as u64 / 100 * percent,
            "{mib} MiB: {status:?}"
        );
    }
}

/// A full cache that grows takes nearly as much more of the burst as it has grown by, again and again.
#[test]
fn a_cache_that_grows_takes_more_of_the_burst() {
    const CACHE: usize = 64 << 20;
    let mut machine = Machine::new(CACHE * 4, 4096, 5);
    machine.adopt(CACHE, false, ReadFill::Never);
    assert!(machine.wait_for(&Event::Adopted, 100));
    let mut offset = 0;
    for growth in 0..3 {
        let evicted = machine.engine.status().evicted_bytes;
        while machine.engine.status().evicted_bytes == evicted {
            machine.submit(Operation::Write { fua: false }, offset, 1 << 20);
            while machine.advance_without_backing() {}
            offset += 1 << 20;
        }
        let (status, size) = (machine.engine.status(), machine.cache.len() as u64);
        assert!(status.dirty_bytes >= size / 100 * 95, "growth {growth}: {status:?}");
        machine.events.clear();
        assert!(machine.grow_cache(CACHE / 2));
        while machine.advance_without_backing() {}
        let cache_bytes = machine.engine.status().cache_bytes;
        assert!(machine.events.contains(&Event::CacheGrown { cache_bytes }), "{:?}", machine.events);
    }
    finish(&mut machine);
}

/// Nobody can make the log smaller, or grow it by nothing; a size that it has already is no growth, and no error.
#[test]
fn a_log_grows_by_segments_and_never_shrinks() {
    let mut machine = Machine::new(8 << 20, 4096, 7);
    assert!(machine.engine.grow_cache(machine.now, 1 << 30).is_err(), "there is none");
    assert!(machine.adopt(2 << 20, false, ReadFill::Never));
    assert!(machine.wait_for(&Event::Adopted, 1000));
    let cache_bytes = machine.engine.status().cache_bytes;
    for size in [0, 1 << 20, 2 << 20] {
        machine.events.clear();
        machine.engine.grow_cache(machine.now, size).expect("it has that size");
        machine.advance();
        assert_eq!(machine.events, [Event::CacheGrown { cache_bytes }]);
    }
    machine.events.clear();
    assert!(machine.grow_cache(4096), "that is no segment, so nothing is left to do");
    assert_eq!(machine.events, [Event::CacheGrown { cache_bytes }]);
    for _ in 0..surgetank_cache::format::GROWTHS_MAX {
        machine.events.clear();
        assert!(machine.grow_cache(1 << 20));
        assert!(!machine.grow_cache(0), "one growth at a time");
        while !machine.events.iter().any(|event| matches!(event, Event::CacheGrown { .. })) {
            assert!(machine.advance(), "the growth never ends");
        }
    }
    assert!(!machine.grow_cache(1 << 20), "it has grown often enough");
    assert!(machine.engine.status().cache_bytes >= cache_bytes + 7 * (1 << 20));
    finish(&mut machine);
}

/// The provider had grown the volume, and the crash came before the engine was told, or before the log had grown.
#[test]
fn what_a_volume_grew_by_before_a_crash_is_taken_in_use() {
    for told in [false, true] {
        let mut machine = Machine::new(8 << 20, 4096, 7);
        assert!(machine.adopt(2 << 20, false, ReadFill::Never));
        assert!(machine.wait_for(&Event::Adopted, 1000));
        let cache_bytes = machine.engine.status().cache_bytes;
        let size = machine.cache.len() + (2 << 20);
        if told {
            assert!(machine.grow_cache(2 << 20));
        } else {
            machine.cache.resize(size, 0xee);
        }
        machine.restart(false, ReadFill::Never);
        while !machine.events.iter().any(|event| matches!(event, Event::Recovered { .. })) {
            assert!(machine.advance(), "the recovery never ends");
        }
        assert_eq!(machine.engine.status().cache_bytes, cache_bytes, "the log is as it was");
        for _ in 0..2 {
            machine.events.clear();
            assert!(machine.grow_cache(0));
            while !machine.events.iter().any(|event| matches!(event, Event::CacheGrown { .. })) {
                assert!(machine.advance(), "the growth never ends");
            }
            assert!(machine.engine.status().cache_bytes >= cache_bytes + (2 << 20) / 100 * 90);
        }
        finish(&mut machine);
    }
}

/// A cache far smaller than the burst: what does not fit goes to the backing volume, and nothing stalls.
#[test]
fn a_full_cache_spills_and_never_stalls() {
    let mut machine = Machine::new(8 << 20, 4096, 7);
    assert!(machine.adopt(CACHE_MIN, false, ReadFill::Never));
    assert!(machine.wait_for(&Event::Adopted, 1000));
    assert!(matches!(machine.owner, Owner::Cache { .. }));
    for round in 0..3 {
        for at in 0..128 {
            machine.submit(Operation::Write { fua: round == 1 }, at * 65536, 65536);
        }
        machine.answer_all();
    }
    assert!(machine.engine.status().evicted_bytes > 0);
    finish(&mut machine);
}

/// Tombstones may cover more of the device than the log has room for. An overwrite of all of it must not wait for a
/// segment that is open and drained.
#[test]
fn an_overwrite_of_all_that_was_discarded_ends() {
    let mut machine = Machine::new(4 << 20, 4096, 7);
    assert!(machine.adopt(CACHE_MIN, false, ReadFill::Never));
    assert!(machine.wait_for(&Event::Adopted, 1000));
    let (write, block) = (Operation::Write { fua: false }, 4096);
    machine.submit(write, 0, 60 * block);
    machine.answer_all();
    machine.submit(Operation::Discard, 0, 60 * block);
    machine.answer_all();
    // Until all is drained, and what can be freed is freed.
    while machine.advance() {}
    machine.submit(write, 100 * block, 60 * block);
    machine.answer_all();
    machine.submit(Operation::Discard, 0, 160 * block);
    machine.answer_all();
    while machine.advance() {}
    machine.submit(write, 0, 160 * block);
    machine.answer_all();
    finish(&mut machine);
}

/// In a full cache one overwrite of a request's length finds room at once, however short the segments are.
#[test]
fn a_full_cache_has_room_for_an_overwrite() {
    for mib in [48, 128, 300] {
        let cache = mib << 20;
        let mut machine = Machine::new(cache + (8 << 20), 4096, 5);
        machine.adopt(cache, false, ReadFill::Never);
        assert!(machine.wait_for(&Event::Adopted, 100));
        let write = Operation::Write { fua: false };
        for offset in (0..cache + (4 << 20)).step_by(1 << 20) {
            machine.submit(write, offset, 1 << 20);
            while machine.advance_without_backing() {}
        }
        assert!(machine.engine.status().evicted_bytes > 0);
        machine.submit(write, 0, 1 << 20);
        let before = machine.engine.status().requests_in_flight;
        while machine.advance_without_backing() {}
        assert_eq!(machine.engine.status().requests_in_flight, before - 1, "{mib} MiB");
    }
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    use surgetank_cache::{Config, Effect, Engine, ReplyError};
    use surgetank_model::{Instant, Limits, Request, RequestId};
    let config = Config {
        size: 1 << 20,
        logical_block: 4096,
        backing_limits: Limits::NONE,
        outage_patience: std::time::Duration::from_secs(300),
    };
    let mut engine = Engine::new(config);
    let write = Operation::Write { fua: false };
    let cases = [
        (write, 512, 4096),
        (write, 0, 512),
        (write, 0, 0),
        (Operation::Read, 1 << 20, 4096),
        (Operation::Read, u64::MAX - 4095, 4096),
        (Operation::Discard, 4096, 1 << 20),
        (Operation::WriteZeroes { fua: false }, 4096, u64::MAX - 4095),
    ];
    for (number, (operation, offset, length)) in cases.into_iter().enumerate() {
        let id = RequestId(number as u64);
        engine.submit(Instant::ZERO, Request { id, operation, offset, length });
        match engine.next_effect() {
            Some(Effect::Reply { request, result: Err(ReplyError::Invalid) }) => assert_eq!(request, id),
            other => panic!("{operation:?} at {offset} of {length} bytes got {other:?}"),
        }
        assert!(engine.next_effect().is_none());
    }
    assert_eq!(engine.status().requests_in_flight, 0);
}

/// A segment whose blocks are all superseded may be freed only when the newer versions are durable: its own may be all
/// that a power cut leaves.
#[test]
fn superseding_records_are_flushed_before_a_segment_is_freed() {
    let mut machine = Machine::new(4 << 20, 4096, 7);
    assert!(machine.adopt(CACHE_MIN, false, ReadFill::Never));
    assert!(machine.wait_for(&Event::Adopted, 100));
    let write = Operation::Write { fua: false };
    machine.submit(write, 0, 64 << 10);
    machine.answer_all();
    machine.submit(Operation::Flush, 0, 0);
    machine.answer_all();
    machine.submit(write, 0, 64 << 10);
    machine.answer_all();
    machine.done.clear();
    machine.done.push(Done::Append);
    while !machine.done.contains(&Done::TableBegun) {
        assert!(machine.advance(), "the superseded segment is never freed");
    }
    let table = machine.done.iter().position(|done| *done == Done::TableBegun).expect("it was just found");
    let append = machine.done[..table].iter().rposition(|done| *done == Done::Append).expect("it is the first");
    let between = &machine.done[append..table];
    assert!(between.contains(&Done::Flush(Target::Cache)), "the table is written before a flush: {between:?}");
}
