//! Every volume keeps the contract: what is read is what was written, whatever was discarded, zeroed or gathered.

use std::cell::RefCell;
use std::time::Duration;

use crate::volume_common::arrays::{self, member_size};
use crate::volume_common::read_caches;
use crate::volume_common::{Driver, LoopDevice, memory, skipped, slices};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::volume::throttle::Throttle;
use surgetank_device::*;
use surgetank_model::{Bandwidth, Instant, Iops, Limits};

pub const SIZE: u64 = 1 << 20;

/// A step of the model, in blocks.
#[derive(Clone, Debug)]
enum Step {
    Read { block: u64, blocks: u64, pieces: usize },
    Write { block: u64, blocks: u64, pieces: usize, fill: u8, fua: bool },
    Discard { block: u64, blocks: u64 },
    Zeroes { block: u64, blocks: u64, fua: bool },
    Flush,
}

fn steps(block: u64) -> impl Strategy<Value = Vec<Step>> {
    let blocks = SIZE / block;
    let range = (0..blocks, 1..=32u64).prop_map(move |(first, count)| (first, count.min(blocks - first)));
    let step = prop_oneof![
        3 => (range.clone(), 1..5usize).prop_map(|((block, blocks), pieces)| Step::Read { block, blocks, pieces }),
        4 => (range.clone(), 1..5usize, 1..=255u8, any::<bool>()).prop_map(|((block, blocks), pieces, fill, fua)| {
            Step::Write { block, blocks, pieces, fill, fua }
        }),
        1 => range.clone().prop_map(|(block, blocks)| Step::Discard { block, blocks }),
        1 => (range, any::<bool>()).prop_map(|((block, blocks), fua)| Step::Zeroes { block, blocks, fua }),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..40)
}

/// Runs the steps on the volume and on an array of bytes; the volume may hold anything at first.
fn run(volume: &mut dyn Volume, block: u64, steps: &[Step]) {
    let mut driver = Driver::new(volume);
    let mut model = vec![0u8; SIZE as usize];
    driver.must(Operation::WriteZeroes { fua: false }, 0, SIZE, Vec::new());
    for step in steps {
        match *step {
            Step::Read { block: first, blocks, pieces } => {
                let (offset, length) = (first * block, blocks * block);
                assert_eq!(driver.read(offset, length, pieces), model[offset as usize..][..length as usize]);
            }
            Step::Write { block: first, blocks, pieces, fill, fua } => {
                let (offset, length) = (first * block, blocks * block);
                let data: Vec<u8> = (0..length).map(|index| fill ^ (index / 7) as u8).collect();
                driver.must(Operation::Write { fua }, offset, length, slices(&memory(&data), pieces, block));
                model[offset as usize..][..length as usize].copy_from_slice(&data);
            }
            Step::Discard { block: first, blocks } => {
                driver.must(Operation::Discard, first * block, blocks * block, Vec::new());
                model[(first * block) as usize..][..(blocks * block) as usize].fill(0);
            }
            Step::Zeroes { block: first, blocks, fua } => {
                driver.must(Operation::WriteZeroes { fua }, first * block, blocks * block, Vec::new());
                model[(first * block) as usize..][..(blocks * block) as usize].fill(0);
            }
            Step::Flush => driver.must(Operation::Flush, 0, 0, Vec::new()),
        }
    }
    assert_eq!(driver.read(0, SIZE, 1), model);
}

pub fn contract(volume: &mut dyn Volume, block: u64) {
    assert_eq!((volume.size(), u64::from(volume.logical_block())), (SIZE, block));
    let volume = RefCell::new(volume);
    let config = Config { cases: 32, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&steps(block), |steps| {
            run(&mut **volume.borrow_mut(), block, &steps);
            Ok(())
        })
        .unwrap();
    let volume = volume.into_inner();
    refusals(volume, block);
    many_at_once(volume, block);
}

fn refusals(volume: &mut dyn Volume, block: u64) {
    let mut driver = Driver::new(volume);
    let write = Operation::Write { fua: false };
    let data = memory(&vec![1; block as usize]);
    let whole = || vec![data.slice(0, block as usize)];
    assert_eq!(driver.one(write, SIZE, block, whole()), Err(Failure::Io), "beyond the end");
    assert_eq!(driver.one(write, u64::MAX - block + 1, block, whole()), Err(Failure::Io), "beyond all numbers");
    assert_eq!(driver.one(write, block / 2, block, whole()), Err(Failure::Io), "misaligned");
    assert_eq!(driver.one(write, 0, 2 * block, whole()), Err(Failure::Io), "memory of another length");
    assert_eq!(driver.one(Operation::Discard, SIZE - block, 2 * block, Vec::new()), Err(Failure::Io));
}

/// More in flight than any queue holds, to different places.
fn many_at_once(volume: &mut dyn Volume, block: u64) {
    let mut driver = Driver::new(volume);
    let count = (SIZE / block).min(600);
    for index in 0..count {
        let data = memory(&vec![index as u8 ^ 0x5a; block as usize]);
        driver.submit(Operation::Write { fua: false }, index * block, block, vec![data.slice(0, block as usize)]);
    }
    let results = driver.finish();
    assert_eq!(results.len() as u64, count);
    assert!(results.values().all(Result::is_ok));
    for index in 0..count {
        assert!(driver.read(index * block, block, 1).iter().all(|byte| *byte == index as u8 ^ 0x5a));
    }
}

fn options(block: u64) -> Options {
    Options { logical_block: Some(block as u32), depth: 16, ..Options::default() }
}

fn image(directory: &tempfile::TempDir) -> std::path::PathBuf {
    let path = directory.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path
}

#[test]
fn memory_volume() {
    for block in [512, 4096] {
        contract(&mut MemoryVolume::new(SIZE, block as u32).unwrap(), block);
    }
}

#[test]
fn file_volume() {
    let directory = tempfile::tempdir().unwrap();
    for block in [512, 4096] {
        match FileVolume::open(image(&directory), options(block)) {
            Ok(mut volume) => contract(&mut volume, block),
            Err(OpenError::LogicalBlock { least, .. }) => skipped(&format!("blocks here have {least} bytes")),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn file_volume_without_direct_io() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        skipped("no /dev/shm");
        return;
    };
    let mut volume = FileVolume::open(image(&directory), options(512)).unwrap();
    contract(&mut volume, 512);
}

#[test]
fn loop_device_volume() {
    let directory = tempfile::tempdir().unwrap();
    for block in [512, 4096] {
        let Some(device) = LoopDevice::attach(&image(&directory), block) else { return };
        let mut volume = FileVolume::open(device.path(), Options { depth: 16, ..Options::default() }).unwrap();
        contract(&mut volume, block);
    }
}

#[test]
fn array_of_memory_volumes() {
    for (block, members) in [(512, 1), (512, 4), (4096, 4)] {
        let volume =
            |_| Box::new(MemoryVolume::new(member_size(SIZE, members), block as u32).unwrap()) as Box<dyn Volume>;
        contract(&mut arrays::new((0..members).map(volume).collect(), block as u32).0, block);
    }
}

#[test]
fn array_of_file_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let volume = |number: u32| {
        let path = directory.path().join(number.to_string());
        std::fs::File::create(&path).unwrap().set_len(member_size(SIZE, 4)).unwrap();
        Box::new(FileVolume::open(path, options(4096)).unwrap()) as Box<dyn Volume>
    };
    contract(&mut arrays::new((0..4).map(volume).collect(), 4096).0, 4096);
}

#[test]
fn array_of_throttled_and_late_volumes() {
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(200)), iops: Some(Iops::new(5000)) };
    let faults = Faults::new(1).unwrap();
    let volume = |number| {
        let volume = MemoryVolume::new(member_size(SIZE, 4), 512).unwrap();
        match number {
            0 => Box::new(Throttle::new(volume, limits, Instant::ZERO)) as Box<dyn Volume>,
            _ => Box::new(Fault::new(volume, faults.clone()).unwrap()),
        }
    };
    let mut array = arrays::new((0..4).map(volume).collect(), 512).0;
    faults.add(Rule { chance: 0.3, ..Rule::always(Kinds::Any, Effect::Delay(Duration::from_micros(300))) });
    contract(&mut array, 512);
    assert!(faults.hits() > 0);
}

#[test]
fn read_cache_over_memory_and_file_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let backing = || Box::new(MemoryVolume::new(SIZE, 512).unwrap()) as Box<dyn Volume>;
    contract(&mut read_caches::new(backing(), (0..3).map(read_caches::memory_member).collect()).0, 512);
    let file = |name: &str, size: u64| {
        let path = directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        Box::new(FileVolume::open(path, options(4096)).unwrap()) as Box<dyn Volume>
    };
    let members = (0..2).map(|id| read_caches::member(id, file(&id.to_string(), read_caches::MEMBER)));
    contract(&mut read_caches::new(file("backing", SIZE), members.collect()).0, 4096);
}

#[test]
fn throttled_volume() {
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(200)), iops: Some(Iops::new(5000)) };
    let volume = MemoryVolume::new(SIZE, 512).unwrap();
    contract(&mut Throttle::new(volume, limits, Instant::ZERO), 512);
}

#[test]
fn faulty_volume_without_and_with_delays() {
    let faults = Faults::new(1).unwrap();
    let mut volume = Fault::new(MemoryVolume::new(SIZE, 4096).unwrap(), faults.clone()).unwrap();
    contract(&mut volume, 4096);
    let delay = Effect::Delay(Duration::from_micros(300));
    faults.add(Rule { chance: 0.3, ..Rule::always(Kinds::Any, delay) });
    contract(&mut volume, 4096);
    assert!(faults.hits() > 0);
}

#[test]
fn long_gather_lists_and_misaligned_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = FileVolume::open(image(&directory), Options::default()).unwrap();
    let mut memory_volume = MemoryVolume::new(SIZE, 512).unwrap();
    for volume in [&mut file as &mut dyn Volume, &mut memory_volume] {
        let mut driver = Driver::new(volume);
        let data: Vec<u8> = (0..SIZE).map(|index| (index / 512) as u8 ^ index as u8).collect();
        let buffer = memory(&data);
        // 2048 pieces: two kernel requests.
        driver.must(Operation::Write { fua: true }, 0, SIZE, slices(&buffer, 2048, 512));
        assert_eq!(driver.read(0, SIZE, 2048), data);
        // Pieces that are no multiples of anything.
        let odd = Buffer::zeroed(8192 + 3);
        odd.slice(3, 8192).copy_from(&buffer.slice(1000, 8192));
        let pieces = vec![odd.slice(3, 100), odd.slice(103, 8092)];
        driver.must(Operation::Write { fua: false }, 4096, 8192, pieces);
        assert_eq!(driver.read(4096, 8192, 1), data[1000..][..8192]);
        let target = Buffer::zeroed(8192 + 5);
        driver.must(Operation::Read, 4096, 8192, vec![target.slice(5, 1), target.slice(6, 8191)]);
        // SAFETY: the read has ended.
        assert_eq!(unsafe { &target.bytes()[5..] }, &data[1000..][..8192]);
    }
}

#[test]
fn a_dropped_volume_waits_for_what_is_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let mut volume = FileVolume::open(image(&directory), Options::default()).unwrap();
    for token in 0..64 {
        let buffer = Buffer::zeroed(16384);
        let memory = vec![buffer.slice(0, 16384)];
        let io =
            VolumeIo { token, operation: Operation::Read, offset: token * 16384, length: 16384, memory: memory.into() };
        volume.submit(Instant::ZERO, io);
    }
    volume.poll(Instant::ZERO, &mut Vec::new());
    drop(volume);
}
