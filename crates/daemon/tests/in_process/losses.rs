//! What was lost heals, and what went wrong is told, also by the next daemon.

use crate::common::failing::{Vanished, faults_on, on_caches};
use crate::common::{MIB, Machine, Shape, connect, drain, eventually, pattern, status};
use surgetank_daemon::opening::Purpose;
use surgetank_daemon::{Daemon, DevicePhase};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Faults};

#[test]
fn what_was_lost_heals_by_overwriting_and_stays_healed_over_a_restart() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let Vanished { config, daemon, mut nbd, told } = Vanished::new(&machine, &faults);
    assert_eq!(told.lost_range_count, told.lost_ranges.len() as u64);
    let last = *told.lost_ranges.last().unwrap();
    let (at, length) = (last.offset_bytes, last.length_bytes.min(64 << 10));
    nbd.write(at, &pattern(99, 1, length as usize)).unwrap();
    let healed = status(&daemon, "data");
    assert_eq!(healed.lost_bytes, told.lost_bytes - length);
    daemon.stop();
    let journal = machine.path("state/data/healed.journal");
    assert!(journal.exists());
    // Still without the volume: it is not read back.
    let daemon = Daemon::start_with(config, on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    assert_eq!(status(&daemon, "data").lost_ranges, healed.lost_ranges);
    assert_eq!(nbd.read(at, length as usize).unwrap(), pattern(99, 1, length as usize));
    for range in &healed.lost_ranges {
        assert!(nbd.read(range.offset_bytes, 4096).is_err(), "the rest is lost as before");
        for offset in (range.offset_bytes..range.offset_bytes + range.length_bytes).step_by(MIB as usize) {
            let length = MIB.min(range.offset_bytes + range.length_bytes - offset);
            nbd.write(offset, &pattern(offset, 2, length as usize)).unwrap();
        }
    }
    faults.restore();
    // All those writes are a burst, which would last.
    drain(&daemon, "data");
    eventually("the volume is deleted", || machine.rented() == 0);
    eventually("the device is healthy", || {
        let status = status(&daemon, "data");
        status.phase == DevicePhase::Idle && status.reason.is_none()
    });
    let healthy = status(&daemon, "data");
    assert_eq!((healthy.lost_bytes, healthy.lost_range_count), (0, 0));
    assert!(!journal.exists());
}

/// The last flush before a stop is nobody's: its failure is told by the next daemon.
#[test]
fn a_flush_that_fails_at_a_stop_is_told_after_it() {
    let machine = Machine::new();
    let faults = Faults::new(1).unwrap();
    let backing = machine.backing("backing", 8 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
    let daemon = Daemon::start_with(config.clone(), faults_on(Purpose::Backing, &faults)).unwrap();
    connect(&machine, "data").write(0, &pattern(0, 1, MIB as usize)).unwrap();
    faults.add(Rule::always(Kinds::Flushes, Effect::Fail(Failure::Io)));
    daemon.stop();
    let note = machine.path("state/data/flush-failed.json");
    assert!(note.exists());
    // Also if nobody flushes in between.
    Daemon::start(config.clone()).unwrap().stop();
    assert!(note.exists());
    let daemon = Daemon::start(config).unwrap();
    let mut nbd = connect(&machine, "data");
    assert!(nbd.flush().is_err());
    nbd.flush().unwrap();
    eventually("it has been told", || !note.exists());
    daemon.stop();
    assert!(!note.exists());
}
