//! Orderly stops with data on the caching volume: what rots on it afterwards is reported, and nothing that the volume
//! suffers holds a stop up or costs data.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::failing::{faults_on, on_caches, slow_and_waits};
use crate::common::{MIB, Machine, Nbd, boost, connect, eventually, fill, find, images, pattern, status};
use surgetank_cache::format::{BLOCK, choose_superblock};
use surgetank_daemon::opening::Purpose;
use surgetank_daemon::status::LostRange;
use surgetank_daemon::{Config, Daemon, DevicePhase};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Faults};

const BLOCKS: u64 = 8;
/// Of the last record before the stop.
const LAST: u64 = 64 << 10;
/// A stop that waits for something in vain ends later than that.
const STOP_MAX: Duration = Duration::from_secs(600);

fn config(machine: &Machine) -> Config {
    let backing = machine.backing("backing", 32 * MIB);
    machine.config(&[("data", backing.to_str().unwrap())], &slow_and_waits("1 h"))
}

fn stop(daemon: Daemon, after: &str) {
    let begun = Instant::now();
    daemon.stop();
    assert!(begun.elapsed() < STOP_MAX, "{after}: it took {:?}", begun.elapsed());
}

/// A file of the caching volume, and where in it a block lies that holds this.
fn place(machine: &Machine, block: &[u8]) -> (PathBuf, u64) {
    let mut found = Vec::new();
    for image in images(&machine.path("volumes")) {
        let bytes = std::fs::read(&image).unwrap();
        let blocks = bytes.chunks_exact(BLOCK as usize).enumerate().filter(|(_, there)| *there == block);
        found.extend(blocks.map(|(number, _)| (image.clone(), number as u64 * u64::from(BLOCK))));
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Turns one bit.
fn rot(image: &PathBuf, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

/// Stops a device whose first bytes are on the backing volume in version 1, and in later records of the caching volume in
/// versions 2 and 3: the last record before the stop.
fn stopped_with_three_versions(machine: &Machine, config: &Config) {
    let faults = Faults::new(1).unwrap();
    let daemon = Daemon::start_with(config.clone(), faults_on(Purpose::Backing, &faults)).unwrap();
    let mut nbd = connect(machine, "data");
    nbd.write(0, &pattern(0, 1, LAST as usize)).unwrap();
    nbd.flush().unwrap();
    boost(&daemon, "data");
    // Nothing is drained, whatever the machine's pace.
    faults.add(Rule::always(Kinds::Changes, Effect::Fail(Failure::Io)));
    for version in [2, 3] {
        nbd.write(0, &pattern(0, version, LAST as usize)).unwrap();
        nbd.flush().unwrap();
    }
    stop(daemon, "dirty");
}

/// No later record says of the last one that it was durable; the superblock does, since the log was closed. Without that,
/// a block of it that does not match its checksum may never have arrived, and the version before it counts.
#[test]
fn rot_in_the_last_record_before_a_stop_is_a_loss() {
    let machine = Machine::new();
    let config = config(&machine);
    stopped_with_three_versions(&machine, &config);
    let newest = pattern(0, 3, LAST as usize);
    let (lost, length) = (5 * u64::from(BLOCK), u64::from(BLOCK));
    let block = |at: u64| &newest[at as usize..][..BLOCK as usize];
    let (image, offset) = place(&machine, block(lost));
    let area = std::fs::read(&image).unwrap();
    assert!(choose_superblock(&area).unwrap().closed, "it says that the log was closed");
    rot(&image, offset + 1234);
    // Also after another stop; the rest is drained meanwhile.
    for start in ["first", "second"] {
        let daemon = Daemon::start(config.clone()).unwrap();
        let mut nbd = connect(&machine, "data");
        assert_eq!(nbd.read(lost, 512).unwrap_err().raw_os_error(), Some(libc::EIO), "{start}");
        eventually("the loss is told", || status(&daemon, "data").lost_bytes > 0);
        let told = status(&daemon, "data");
        assert_eq!(told.phase, DevicePhase::Degraded, "{start}");
        assert_eq!(told.lost_ranges, [LostRange { offset_bytes: lost, length_bytes: length }], "{start}");
        assert_eq!((told.lost_range_count, told.lost_bytes), (1, length), "{start}");
        assert!(told.reason.unwrap().contains("answer EIO"), "{start}");
        for at in (0..LAST).step_by(BLOCK as usize) {
            match nbd.read(at, BLOCK as usize) {
                Ok(there) => assert!(at != lost && there == block(at), "{start}: {at} is not what was written last"),
                Err(error) => assert_eq!((at, error.raw_os_error()), (lost, Some(libc::EIO)), "{start}"),
            }
        }
        stop(daemon, start);
    }
    let daemon = Daemon::start(config).unwrap();
    let mut nbd = connect(&machine, "data");
    nbd.write(lost, block(lost)).unwrap();
    nbd.flush().unwrap();
    assert_eq!(nbd.read(0, LAST as usize).unwrap(), newest, "it is overwritten");
    eventually("nothing is lost any more", || status(&daemon, "data").lost_bytes == 0);
}

/// Stops a device whose caching volume holds what [`fill`] wrote and suffers this; without it everything is there again.
fn stopped_while<R>(what: &str, suffers: impl Fn(&Faults) -> R, noticed: &str) {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let config = config(&machine);
    let daemon = Daemon::start_with(config.clone(), on_caches(&faults)).unwrap();
    boost(&daemon, "data");
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, BLOCKS, 3);
    nbd.flush().unwrap();
    suffers(&faults);
    // Where nothing is to be noticed before the stop, nobody reads.
    let (waits, _idle) = if noticed.is_empty() { (None, Some(nbd)) } else { (Some(reading(nbd)), None) };
    eventually(noticed, || status(&daemon, "data").reason.unwrap_or_default().contains(noticed));
    stop(daemon, what);
    // Whatever it was answered.
    let _ = waits.map(|waits| waits.join().unwrap());
    all_is_there(&machine, &config, what);
}

/// A client that reads what [`fill`] wrote, and may have to wait for the caching volume.
fn reading(mut nbd: Nbd) -> JoinHandle<std::io::Result<()>> {
    std::thread::spawn(move || (0..BLOCKS).try_for_each(|block| nbd.read(block * MIB, MIB as usize).map(drop)))
}

/// The next daemon finds what [`fill`] wrote, and that nothing was lost.
fn all_is_there(machine: &Machine, config: &Config, what: &str) {
    let daemon = Daemon::start(config.clone()).unwrap();
    find(&mut connect(machine, "data"), BLOCKS, 3);
    let told = status(&daemon, "data");
    assert_eq!((told.lost_bytes, told.lost_range_count), (0, 0), "{what}");
    stop(daemon, "the next one");
}

#[test]
fn a_stop_while_the_caching_volume_fails_ends_and_loses_nothing() {
    let fails = |kinds| Rule::always(kinds, Effect::Fail(Failure::Io));
    stopped_while("nothing answers", |faults| faults.add(fails(Kinds::Any)), "has failed");
    stopped_while("nothing can be read", |faults| faults.add(fails(Kinds::Reads)), "has failed");
    stopped_while("it has gone", Faults::vanish, "has been gone");
}

/// Nothing is noticed before the log is to be closed.
#[test]
fn a_stop_that_cannot_close_the_log_ends_and_loses_nothing() {
    let effects = [Effect::Fail(Failure::Io), Effect::FailAfter(Failure::Io), Effect::Short];
    for kinds in [Kinds::Flushes, Kinds::Writes, Kinds::Any] {
        for effect in effects {
            stopped_while(&format!("{kinds:?}: {effect:?}"), |faults| faults.add(Rule::always(kinds, effect)), "");
        }
    }
}

#[test]
fn a_stop_while_the_caching_volume_is_read_back_ends_and_loses_nothing() {
    let suffers = [
        ("cannot be read back", Effect::Fail(Failure::Io)),
        ("reading the caching volume back", Effect::Delay(Duration::from_millis(500))),
    ];
    for (noticed, effect) in suffers {
        let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
        let config = config(&machine);
        let daemon = Daemon::start(config.clone()).unwrap();
        boost(&daemon, "data");
        fill(&mut connect(&machine, "data"), BLOCKS, 3);
        stop(daemon, "dirty");
        // Opening it reads the superblocks.
        faults.add(Rule::always(Kinds::Reads, effect));
        let daemon = Daemon::start_with(config.clone(), on_caches(&faults)).unwrap();
        let waits = reading(connect(&machine, "data"));
        eventually(noticed, || status(&daemon, "data").reason.unwrap_or_default().contains(noticed));
        stop(daemon, noticed);
        let answered = waits.join().unwrap();
        assert!(answered.is_err() || noticed != "cannot be read back", "it was read");
        all_is_there(&machine, &config, noticed);
    }
}

#[test]
fn a_stop_while_the_caching_volume_is_lost_ends_and_loses_nothing() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let backing = machine.backing("backing", 32 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &slow_and_waits("1 s"));
    let daemon = Daemon::start_with(config.clone(), on_caches(&faults)).unwrap();
    boost(&daemon, "data");
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, BLOCKS, 3);
    let told = crate::common::failing::vanished(&daemon, &mut nbd, &faults);
    stop(daemon, "lost");
    // Nothing of what was lost is gone: it is read back.
    let daemon = Daemon::start(config.clone()).unwrap();
    eventually("everything is read back", || status(&daemon, "data").lost_bytes == 0);
    find(&mut connect(&machine, "data"), BLOCKS, 3);
    assert!(told.lost_bytes > 0);
    stop(daemon, "the next one");
}
