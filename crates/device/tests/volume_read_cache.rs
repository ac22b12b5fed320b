//! A read cache over real volumes: whatever its members do, it is the backing volume, only faster.

mod volume_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Fault, Faults, FileVolume, MemoryVolume, Operation, Options, Volume};
use surgetank_model::random::Random;
use surgetank_readcache::{Event, MemberId};
use volume_common::read_caches::{MEMBER, SOON, member, memory_member, new};
use volume_common::{Driver, memory, slices};

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const WRITE: Operation = Operation::Write { fua: false };

fn backing(faults: &Faults) -> Box<dyn Volume> {
    Box::new(Fault::new(MemoryVolume::new(SIZE, 512).unwrap(), faults.clone()).unwrap())
}

/// Random requests, several at once, on a volume and a vector; what is in flight together does not overlap.
struct Model<'a> {
    driver: Driver<'a>,
    bytes: Vec<u8>,
    random: Random,
}

impl<'a> Model<'a> {
    fn new(volume: &'a mut dyn Volume, seed: u64) -> Self {
        let mut model =
            Self { driver: Driver::new(volume), bytes: vec![0; SIZE as usize], random: Random::from_seed(seed) };
        model.write_all();
        model
    }

    fn write_all(&mut self) {
        let data: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8).collect();
        self.driver.must(WRITE, 0, SIZE, slices(&memory(&data), 1, 512));
        self.bytes = data;
    }

    /// A round: one request in each of eight parts of the device, all at the same time.
    fn round(&mut self) {
        let part = SIZE / 8;
        let mut reads = Vec::new();
        for start in (0..SIZE).step_by(part as usize) {
            // Half a part is hot; a few requests are not whole blocks.
            let unit = if self.random.chance(0.1) { 512 } else { BLOCK };
            let first = self.random.below(part / unit / 2) * unit;
            let length = (1 + self.random.below(6)) * unit;
            let (offset, length) = (start + first, length.min(part - first));
            let range = offset as usize..(offset + length) as usize;
            match self.random.below(10) {
                0..7 => {
                    let buffer = memory(&vec![0xee; length as usize]);
                    let pieces = 1 + self.random.below(3) as usize;
                    let token = self.driver.submit(Operation::Read, offset, length, slices(&buffer, pieces, 512));
                    reads.push((token, range, buffer));
                }
                7 | 8 => {
                    let data: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
                    let pieces = 1 + self.random.below(3) as usize;
                    self.driver.submit(WRITE, offset, length, slices(&memory(&data), pieces, 512));
                    self.bytes[range].copy_from_slice(&data);
                }
                _ => {
                    self.driver.submit(Operation::Discard, offset, length, Vec::new());
                    self.bytes[range].fill(0);
                }
            }
        }
        let results = self.driver.finish();
        assert!(results.values().all(|result| *result == Ok(())), "a request fails: {results:?}");
        for (_, range, buffer) in reads {
            // SAFETY: the read has ended.
            assert!(unsafe { buffer.bytes() } == &self.bytes[range.clone()], "{range:?} reads something else");
        }
    }

    fn check_all(&mut self) {
        assert!(self.driver.read(0, SIZE, 1) == self.bytes, "the device is not what was written");
    }
}

#[test]
fn members_that_fail_are_late_and_vanish_fail_no_request() {
    let healthy = Faults::new(1).unwrap();
    let faults: Vec<Faults> = (0..3).map(|seed| Faults::new(seed).unwrap()).collect();
    let members = faults.iter().enumerate().map(|(id, faults)| {
        let volume = MemoryVolume::new(MEMBER, 512).unwrap();
        member(id as u32, Box::new(Fault::new(volume, faults.clone()).unwrap()))
    });
    let (mut cache, handle) = new(backing(&healthy), members.collect());
    let mut model = Model::new(&mut cache, 2);
    for effect in [Effect::Fail(Failure::Io), Effect::FailAfter(Failure::Io), Effect::Short] {
        faults[0].add(Rule { chance: 0.05, ..Rule::always(Kinds::Any, effect) });
    }
    faults[1].add(Rule { chance: 0.3, ..Rule::always(Kinds::Any, Effect::Delay(Duration::from_micros(100))) });
    (0..300).for_each(|_| model.round());
    _ = handle.status();
    model.round();
    assert!(handle.status().hit_bytes > 0);
    faults[1].vanish();
    (0..100).for_each(|_| model.round());
    let gone = MemberId(1);
    let events = handle.take_events();
    assert!(events.contains(&Event::Failed { member: gone, failure: surgetank_readcache::effect::IoFailure::Gone }));
    assert!(events.contains(&Event::Released(gone)));
    assert!(handle.take_released().iter().any(|member| member.id == gone));
    faults[0].vanish();
    faults[2].vanish();
    (0..50).for_each(|_| model.round());
    model.check_all();
}

#[test]
fn what_is_read_twice_comes_from_the_cache_and_needs_no_backing_volume() {
    let faults = Faults::new(1).unwrap();
    let (mut cache, handle) = new(backing(&faults), vec![memory_member(0), memory_member(1)]);
    let mut model = Model::new(&mut cache, 3);
    let expected = model.bytes[..128 << 10].to_vec();
    assert!(model.driver.read(0, 128 << 10, 1) == expected);
    faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Gone)));
    assert!(model.driver.read(0, 128 << 10, 3) == expected);
    let elsewhere = slices(&memory(&[0; 4096]), 1, 512);
    assert_eq!(model.driver.one(Operation::Read, 512 << 10, 4096, elsewhere), Err(Failure::Gone), "as it fails itself");
    model.driver.poll();
    _ = handle.status();
    model.driver.poll();
    let status = handle.status();
    assert_eq!((status.members, status.hit_bytes), (2, 128 << 10));
}

/// Members come and go while another thread reads and writes, and every one comes back.
#[test]
fn members_are_swapped_from_another_thread() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: String, size: u64| {
        let path = directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        Box::new(FileVolume::open(path, Options { logical_block: Some(512), ..Options::default() }).unwrap())
    };
    let members = (0..2).map(|id| member(id, file(format!("member {id}"), MEMBER))).collect();
    let (mut cache, handle) = new(file("backing".to_owned(), SIZE), members);
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let server = thread::spawn({
        let (stop, rounds) = (stop.clone(), rounds.clone());
        move || {
            let mut model = Model::new(&mut cache, 4);
            while !stop.load(Ordering::Relaxed) {
                model.round();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            model.check_all();
        }
    });
    for id in 2..12 {
        assert_eq!(handle.remove(MemberId(id - 2)).wait(SOON), Some(Ok(())));
        assert_eq!(handle.add(member(id, file(format!("member {id}"), MEMBER))).wait(SOON), Some(Ok(())));
        let begun = rounds.load(Ordering::Relaxed);
        while rounds.load(Ordering::Relaxed) < begun + 5 && !server.is_finished() {
            thread::yield_now();
        }
    }
    let small = handle.add(member(50, file("small".to_owned(), 4096))).wait(SOON);
    assert!(small.is_some_and(|answer| answer.is_err_and(|refusal| refusal.0.contains(": use a larger one"))));
    stop.store(true, Ordering::Relaxed);
    server.join().unwrap();
    let mut released: Vec<u32> = handle.take_released().iter().map(|member| member.id.0).collect();
    released.sort_unstable();
    assert_eq!(released, [(0..10).collect(), vec![50]].concat());
    assert!(handle.remove(MemberId(10)).wait(SOON).is_some_and(|answer| answer.is_err()), "it was closed");
}
