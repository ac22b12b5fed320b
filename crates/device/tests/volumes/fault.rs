//! The fault decorator does what its fault model says.

use std::time::Duration;

use crate::volume_common::{Driver, memory};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Fault, Faults, FileVolume, MemoryVolume, Operation, Options, Volume};

const SIZE: u64 = 1 << 20;
const WRITE: Operation = Operation::Write { fua: false };

fn faulty(seed: u64) -> (Fault<MemoryVolume>, Faults) {
    let faults = Faults::new(seed).unwrap();
    (Fault::new(MemoryVolume::new(SIZE, 512).unwrap(), faults.clone()).unwrap(), faults)
}

fn write(driver: &mut Driver<'_>, offset: u64, byte: u8) -> Result<(), Failure> {
    driver.one(WRITE, offset, 4096, vec![memory(&[byte; 4096]).slice(0, 4096)])
}

#[test]
fn failures_hit_their_range_kind_and_number() {
    let (mut volume, faults) = faulty(1);
    let mut driver = Driver::new(&mut volume);
    let rule = Rule::always(Kinds::Writes, Effect::Fail(Failure::NoSpace));
    faults.add(Rule { range: Some(8192..16384), after: 1, times: Some(2), ..rule });
    assert_eq!(write(&mut driver, 4096, 1), Ok(()), "outside");
    assert_eq!(write(&mut driver, 12288, 1), Ok(()), "the first passes");
    assert_eq!(driver.read(8192, 4096, 1), [0; 4096], "a read");
    assert_eq!(write(&mut driver, 8192, 2), Err(Failure::NoSpace));
    assert_eq!(write(&mut driver, 12288, 2), Err(Failure::NoSpace));
    assert_eq!(write(&mut driver, 8192, 3), Ok(()), "spent");
    assert_eq!(driver.read(12288, 4096, 1), [1; 4096], "failed writes changed nothing");
    assert_eq!(faults.hits(), 2);
}

#[test]
fn rules_can_be_removed_and_flushes_fail() {
    let (mut volume, faults) = faulty(1);
    let mut driver = Driver::new(&mut volume);
    let rule = faults.add(Rule::always(Kinds::Flushes, Effect::Fail(Failure::Io)));
    assert_eq!(driver.one(Operation::Flush, 0, 0, Vec::new()), Err(Failure::Io));
    faults.remove(rule);
    driver.must(Operation::Flush, 0, 0, Vec::new());
    faults.add(Rule::always(Kinds::Zeroing, Effect::Fail(Failure::Unsupported)));
    assert_eq!(driver.one(Operation::Discard, 0, 4096, Vec::new()), Err(Failure::Unsupported));
    faults.clear();
    driver.must(Operation::Discard, 0, 4096, Vec::new());
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| {
        let (mut volume, faults) = faulty(seed);
        faults.add(Rule { chance: 0.25, ..Rule::always(Kinds::Any, Effect::Fail(Failure::Io)) });
        let mut driver = Driver::new(&mut volume);
        (0..200).map(|_| write(&mut driver, 0, 1).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    let failed = run(7).iter().filter(|failed| **failed).count();
    assert!((25..=75).contains(&failed), "{failed} of 200 with a chance of 0.25");
}

#[test]
fn short_writes_are_torn_and_reported() {
    let (mut volume, faults) = faulty(1);
    let mut driver = Driver::new(&mut volume);
    faults.add(Rule::once(Kinds::Writes, Effect::Short));
    assert_eq!(write(&mut driver, 0, 9), Err(Failure::Io));
    let data = driver.read(0, 4096, 1);
    assert!(data[..2048].iter().all(|byte| *byte == 9) && data[2048..].iter().all(|byte| *byte == 0));
    faults.add(Rule::once(Kinds::Writes, Effect::FailAfter(Failure::Io)));
    assert_eq!(write(&mut driver, 4096, 8), Err(Failure::Io));
    assert_eq!(driver.read(4096, 4096, 1), [8; 4096], "done all the same");
}

#[test]
fn delays_end_at_their_deadline() {
    let (mut volume, faults) = faulty(1);
    let mut driver = Driver::new(&mut volume);
    faults.add(Rule::once(Kinds::Any, Effect::Delay(Duration::from_millis(5))));
    let start = driver.now;
    assert_eq!(write(&mut driver, 0, 1), Ok(()));
    assert_eq!(driver.now - start, Duration::from_millis(5));
}

#[test]
fn stuck_ios_wait_for_their_release_from_another_thread() {
    let (mut volume, faults) = faulty(1);
    let mut driver = Driver::new(&mut volume);
    faults.add(Rule::once(Kinds::Writes, Effect::Stuck));
    driver.submit(WRITE, 0, 4096, vec![memory(&[5; 4096]).slice(0, 4096)]);
    assert!(driver.poll().is_empty());
    assert_eq!(faults.stuck(), 1);
    let remote = faults.clone();
    let thread = std::thread::spawn(move || remote.release());
    assert!(driver.finish().values().all(Result::is_ok), "the release wakes the driver");
    thread.join().unwrap();
    assert_eq!((faults.stuck(), driver.read(0, 4096, 1)), (0, vec![5; 4096]));
}

#[test]
fn a_vanished_volume_fails_everything_until_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let faults = Faults::new(1).unwrap();
    let file = FileVolume::open(&path, Options::default()).unwrap();
    let mut volume = Fault::new(Box::new(file) as Box<dyn Volume>, faults.clone()).unwrap();
    let mut driver = Driver::new(&mut volume);
    assert_eq!(write(&mut driver, 0, 1), Ok(()));
    faults.add(Rule::once(Kinds::Any, Effect::Stuck));
    faults.add(Rule::once(Kinds::Any, Effect::Delay(Duration::from_secs(1000))));
    for _ in 0..2 {
        driver.submit(WRITE, 0, 4096, vec![memory(&[2; 4096]).slice(0, 4096)]);
    }
    assert!(driver.poll().is_empty());
    faults.vanish();
    assert!(driver.finish().values().all(|result| *result == Err(Failure::Gone)), "what waited");
    assert_eq!(write(&mut driver, 0, 3), Err(Failure::Gone));
    assert_eq!(driver.volume.resize_check(), Err(Failure::Gone));
    faults.restore();
    assert_eq!(driver.read(0, 4096, 1), [1; 4096]);
}
