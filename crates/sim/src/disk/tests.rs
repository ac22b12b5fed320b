//! Tests of the simulated volume.

use super::*;

fn disk(seed: u64) -> Disk {
    Disk::new(1 << 20, Latency::default(), seed)
}

fn now(disk: &mut Disk, io: Io) -> Finished {
    let ticket = disk.submit(Instant::ZERO, 0, io).expect("it fits").expect("not stuck");
    disk.finish(ticket.io)
}

fn write(disk: &mut Disk, offset: u64, byte: u8, fua: bool) {
    assert_eq!(now(disk, Io::Write { offset, data: vec![byte; 1024], fua }).result, Ok(()));
}

fn at(disk: &Disk, offset: u64) -> u8 {
    let mut byte = [0];
    disk.peek(offset, &mut byte);
    byte[0]
}

#[test]
fn flushed_and_forced_writes_survive_every_power_cut() {
    for seed in 0..200 {
        let mut disk = disk(seed);
        write(&mut disk, 0, 1, false);
        assert_eq!(now(&mut disk, Io::Flush).result, Ok(()));
        write(&mut disk, 4096, 2, false);
        write(&mut disk, 4096, 3, true);
        disk.power_cut();
        assert_eq!((at(&disk, 0), at(&disk, 4096), at(&disk, 5119)), (1, 3, 3), "seed {seed}");
    }
}

#[test]
fn unflushed_writes_survive_in_every_combination() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let mut disk = disk(seed);
        write(&mut disk, 0, 1, false);
        write(&mut disk, 512, 2, false);
        disk.power_cut();
        seen.insert((at(&disk, 0), at(&disk, 512), at(&disk, 1024)));
    }
    for expected in [(0, 0, 0), (1, 1, 0), (0, 2, 2), (1, 2, 2), (1, 1, 2), (1, 0, 0), (0, 2, 0)] {
        assert!(seen.contains(&expected), "{expected:?} never happened: {seen:?}");
    }
    assert!(seen.iter().all(|&(first, _, last)| first < 2 && (last == 0 || last == 2)));
}

#[test]
fn a_flush_covers_only_what_was_done_before_its_submission() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut disk = disk(seed);
        let flush = disk.submit(Instant::ZERO, 0, Io::Flush).expect("it fits").expect("not stuck");
        write(&mut disk, 0, 1, false);
        disk.finish(flush.io);
        disk.power_cut();
        lost += u32::from(at(&disk, 0) == 0);
    }
    assert!(lost > 10, "the late write was lost {lost} times");
}

#[test]
fn a_submitters_crash_keeps_what_was_done() {
    for seed in 0..100 {
        let mut disk = disk(seed);
        write(&mut disk, 0, 1, false);
        disk.submit(Instant::ZERO, 0, Io::Write { offset: 0, data: vec![2; 512], fua: false }).expect("it fits");
        disk.submitter_crash();
        assert!(at(&disk, 0) == 1 || at(&disk, 0) == 2);
        assert_eq!((at(&disk, 512), disk.in_flight()), (1, 0));
    }
}

#[test]
fn faults_do_what_they_say() {
    let mut disk = disk(1);
    disk.set_faults(Faults { error_range: Some((8192, 512)), ..Faults::default() });
    assert_eq!(now(&mut disk, Io::Read { offset: 4096, length: 4096 }).result, Ok(()));
    assert_eq!(now(&mut disk, Io::Read { offset: 4096, length: 8192 }).result, Err(IoFailure::Io));
    disk.set_faults(Faults { fail_after: Some(3), ..Faults::default() });
    assert_eq!(now(&mut disk, Io::Flush).result, Ok(()));
    assert_eq!(now(&mut disk, Io::Flush).result, Err(IoFailure::Io));
    disk.set_faults(Faults { outage: Some(IoFailure::Gone), ..Faults::default() });
    assert_eq!(now(&mut disk, Io::Flush).result, Err(IoFailure::Gone));
    disk.set_faults(Faults { stuck: true, ..Faults::default() });
    assert!(disk.submit(Instant::ZERO, 9, Io::Flush).expect("it fits").is_none());
    let tickets = disk.unstick(Instant::ZERO, |_| false);
    assert_eq!(tickets.len(), 1);
    assert_eq!(disk.finish(tickets[0].io).tag, 9);
    assert!(disk.submit(Instant::ZERO, 0, Io::Read { offset: 1, length: 512 }).is_err());
}
