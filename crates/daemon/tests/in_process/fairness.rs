//! What one client asks for keeps no other waiting for long, and ends with the client.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Ends, MIB, Machine, Nbd, Shape, TIMEOUT, connect, pattern};
use surgetank_daemon::Daemon;
use surgetank_nbd::wire::command;

const GIB: u64 = 1 << 30;
/// The device's rate by [`Machine::config`].
const BYTES_PER_S: u64 = 33 * MIB;

fn throttled() -> Shape {
    let policy = "sampling = \"1 h\"".to_owned();
    Shape { device: "throttle = true".to_owned(), policy, ..Shape::default() }
}

/// A device of 4 GiB that is held to its rate: to zero it once takes two minutes.
fn start(machine: &Machine) -> Daemon {
    let backing = machine.backing("backing", 4 * GIB);
    assert!(4 * GIB / BYTES_PER_S > TIMEOUT.as_secs(), "whoever waits for that is not served in time");
    Daemon::start(machine.config(&[("data", backing.to_str().unwrap())], &throttled())).unwrap()
}

/// Seven KiB of requests: 256 times the whole device.
fn zero_everything(nbd: &mut Nbd) {
    for _ in 0..256 {
        nbd.send(command::WRITE_ZEROES, 0, 0, (4 * GIB - MIB) as u32, &[]).unwrap();
    }
}

#[test]
fn who_zeroes_the_whole_device_keeps_nobody_waiting() {
    let machine = Machine::new();
    let daemon = start(&machine);
    let mut hostile = connect(&machine, "data");
    zero_everything(&mut hostile);
    let mut good = connect(&machine, "data");
    let last = 4 * GIB - MIB;
    for version in 1..20 {
        good.write(last, &pattern(last, version, 4096)).unwrap();
        good.flush().unwrap();
        assert_eq!(good.read(last, 4096).unwrap(), pattern(last, version, 4096));
    }
    drop((hostile, good));
    daemon.stop();
}

#[test]
fn what_a_client_has_asked_for_ends_with_the_client() {
    let machine = Machine::new();
    let daemon = start(&machine);
    let mut good = connect(&machine, "data");
    good.write(GIB, &pattern(GIB, 1, 4096)).unwrap();
    good.flush().unwrap();
    let mut hostile = connect(&machine, "data");
    zero_everything(&mut hostile);
    drop(hostile);
    for _ in 0..64 {
        good.read(GIB, 4096).unwrap();
    }
    // A daemon carries out what clients have asked for before it stops, for a minute: two GiB at this rate.
    daemon.stop();
    let mut found = vec![0; 4096];
    File::open(machine.path("backing")).unwrap().read_exact_at(&mut found, GIB).unwrap();
    assert!(found == pattern(GIB, 1, 4096), "zeroed by a client that had gone");
}

#[test]
fn who_reads_a_lot_shares_with_who_reads_a_little() {
    let machine = Machine::new();
    let daemon = start(&machine);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = Ends(&ended);
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (mut reader, ended) = (connect(&machine, "data"), &ended);
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        reader.read(0, 32 << 20).unwrap();
                    }
                })
            })
            .collect();
        let mut good = connect(&machine, "data");
        // Each in its turn: behind the four others' requests these would take 256 times four seconds.
        for number in 0..256 {
            good.read(number * 4096, 4096).unwrap();
        }
        drop(is_over);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    daemon.stop();
}
