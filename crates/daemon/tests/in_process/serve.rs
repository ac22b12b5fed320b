//! A daemon in this process, over files and memory, with NBD clients and as a block device.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Ends, Machine, Shape, eventually, pattern, status};
use surgetank_daemon::{Client, Config, Daemon, DevicePhase, Request};

const MIB: u64 = 1 << 20;

#[test]
fn a_device_in_memory_passes_through() {
    let machine = Machine::new();
    // Looked at too seldom to be boosted by itself.
    let shape = Shape { policy: "sampling = \"1 h\"".to_owned(), ..Shape::default() };
    let daemon = Daemon::start(machine.config(&[("data", "memory:16 MiB")], &shape)).unwrap();
    let mut nbd = crate::common::connect(&machine, "data");
    assert_eq!(nbd.size(), 16 * MIB);
    for (offset, length) in [(0, 4096), (512, 512), (MIB, 1 << 20), (16 * MIB - 512, 512)] {
        nbd.write(offset, &pattern(offset, 1, length)).unwrap();
        assert_eq!(nbd.read(offset, length).unwrap(), pattern(offset, 1, length), "{offset}");
    }
    nbd.flush().unwrap();
    nbd.trim(MIB, 8192).unwrap();
    nbd.write_zeroes(MIB + 8192, 4096).unwrap();
    assert_eq!(nbd.read(MIB, 12288).unwrap(), vec![0; 12288]);
    let status = status(&daemon, "data");
    assert_eq!((status.phase, status.export.as_str()), (DevicePhase::Idle, "nbd"));
    daemon.stop();
    assert!(nbd.read(0, 512).is_err());
}

#[test]
fn a_boost_on_request_absorbs_drains_and_deletes_everything() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 64 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
    let socket = config.control_socket.clone();
    let daemon = Daemon::start(config).unwrap();
    let client = Client::new(socket);
    let mut nbd = crate::common::connect(&machine, "data");
    client.ask(&Request::boost("data")).unwrap();
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
    assert_eq!(machine.rented(), 1);
    for offset in (0..16 * MIB).step_by(MIB as usize) {
        nbd.write(offset, &pattern(offset, 1, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    client.ask(&Request::Drain { device: "data".into() }).unwrap();
    eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
    assert_eq!(machine.rented(), 0);
    let report = daemon.report("data").unwrap();
    assert_eq!(report.boosts.len(), 1);
    assert!(report.boosts[0].drain_s.is_some() && report.cost_agbs > 0.0);
    daemon.stop();
    let bytes = std::fs::read(backing).unwrap();
    for offset in (0..16 * MIB).step_by(MIB as usize) {
        assert!(bytes[offset as usize..][..MIB as usize] == pattern(offset, 1, MIB as usize), "{offset}");
    }
}

#[test]
fn a_burst_boosts_by_itself_and_calm_ends_it() {
    let machine = Machine::new();
    let mut shape = Shape { device: "throttle = true".to_owned(), ..Shape::default() };
    shape.policy = shape.policy.replace("30 s", "200 ms");
    let config = machine.config(&[("data", "memory:64 MiB")], &shape);
    let daemon = Daemon::start(config).unwrap();
    let mut nbd = crate::common::connect(&machine, "data");
    let mut offset = 0;
    eventually("a boost", || {
        nbd.write(offset % (32 * MIB), &pattern(offset, 1, MIB as usize)).unwrap();
        offset += MIB;
        status(&daemon, "data").boosts == 1
    });
    eventually("idle again", || status(&daemon, "data").phase == DevicePhase::Idle);
    let status = status(&daemon, "data");
    assert_eq!((status.boosts, status.caching), (1, None));
    assert!(status.cost_agbs > 0.0 && status.next_cache_gib.is_some());
    assert!(daemon.report("data").unwrap().activity.iter().any(|sample| sample.app_written_bytes > 0));
}

/// An application that rewrites what is being drained, faster than it is drained, does not hold on to the volume: its
/// writes wait when the budget asks for it, and all of them are answered.
#[test]
fn a_budget_ends_a_boost_that_is_rewritten_all_the_time() {
    let machine = Machine::new();
    let mut shape = Shape { device: "throttle = true".to_owned(), ..Shape::default() };
    // 4 AGBs a second; the reserve for deleting the volume is a minute.
    shape.policy += "\nbudget.agbs_per_hour = 256";
    let config = machine.config(&[("data", "memory:64 MiB")], &shape);
    let daemon = Daemon::start(config).unwrap();
    let mut nbd = crate::common::connect(&machine, "data");
    let ended = AtomicBool::new(false);
    let mut waited = false;
    std::thread::scope(|scope| {
        let ended = &ended;
        let is_over = Ends(ended);
        let writer = scope.spawn(move || {
            let mut versions = [0; 24];
            for number in 1.. {
                let place = number * 7 % 24;
                versions[place as usize] = number;
                nbd.write(place * MIB, &pattern(place * MIB, number, MIB as usize)).unwrap();
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
            (nbd, versions)
        });
        eventually("a boost", || status(&daemon, "data").boosts == 1);
        eventually("the end of the boost", || {
            let status = status(&daemon, "data");
            waited |= status.reason.is_some_and(|why| why.contains("writes over what is not drained yet wait"));
            status.phase == DevicePhase::Idle
        });
        drop(is_over);
        let (mut nbd, versions) = writer.join().unwrap();
        for (place, version) in (0..).zip(versions) {
            assert!(nbd.read(place * MIB, MIB as usize).unwrap() == pattern(place * MIB, version, MIB as usize));
        }
    });
    assert!(waited, "the drain ended by itself");
    assert_eq!(machine.rented(), 0);
    assert_eq!(status(&daemon, "data").boosts, 1);
}

#[test]
fn a_block_device_is_boosted_under_its_user() {
    let forbidden = |path: &str| OpenOptions::new().read(true).write(true).open(path).is_err();
    if forbidden("/dev/fuse") || forbidden("/dev/loop-control") {
        skipped("no rights on /dev/fuse or /dev/loop-control");
        return;
    }
    let machine = Machine::new();
    let backing = machine.backing("backing", 64 * MIB);
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &Shape::default());
    let config = Config::from_text("test.toml".as_ref(), &text.replace("\"nbd\"", "\"fuse\"")).unwrap();
    let daemon = Daemon::start(config.clone()).unwrap();
    let address = daemon.address("data").unwrap();
    assert!(address.starts_with("/dev/loop"), "{address}");
    let device = OpenOptions::new().read(true).write(true).open(&address).unwrap();
    daemon.handle(Request::boost("data")).unwrap();
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
    for offset in (0..16 * MIB).step_by(MIB as usize) {
        device.write_all_at(&pattern(offset, 2, MIB as usize), offset).unwrap();
    }
    device.sync_all().unwrap();
    drop(device);
    daemon.stop();
    // Dirty or not when it stopped: another daemon shows the same bytes, and deletes the volume.
    let daemon = Daemon::start(config).unwrap();
    let device = OpenOptions::new().read(true).open(daemon.address("data").unwrap()).unwrap();
    let mut bytes = vec![0; MIB as usize];
    for offset in (0..16 * MIB).step_by(MIB as usize) {
        device.read_exact_at(&mut bytes, offset).unwrap();
        assert!(bytes == pattern(offset, 2, MIB as usize), "{offset}");
    }
    drop(device);
    daemon.handle(Request::Drain { device: "data".into() }).unwrap();
    eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
    assert_eq!(machine.rented(), 0);
    daemon.stop();
}

#[test]
fn a_device_grows_with_its_backing_volume() {
    let machine = Machine::new();
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/loop-control").is_ok();
    for export in if fuse { &["nbd", "fuse"][..] } else { &["nbd"] } {
        let backing = machine.backing("backing", 16 * MIB);
        let text = machine.config_text(&[("data", backing.to_str().unwrap())], &Shape::default());
        let text = text.replace("\"nbd\"", &format!("\"{export}\""));
        let daemon = Daemon::start(Config::from_text("test.toml".as_ref(), &text).unwrap()).unwrap();
        OpenOptions::new().write(true).open(&backing).unwrap().set_len(24 * MIB).unwrap();
        let answer = daemon.handle(Request::Resize { device: "data".into() }).unwrap();
        assert_eq!(answer["size_bytes"], 24 * MIB);
        if *export == "nbd" {
            let mut nbd = crate::common::connect(&machine, "data");
            assert_eq!(nbd.size(), 24 * MIB);
            nbd.write(20 * MIB, &[7; 4096]).unwrap();
        } else {
            let device = OpenOptions::new().read(true).write(true).open(daemon.address("data").unwrap()).unwrap();
            device.write_all_at(&[7; 4096], 20 * MIB).unwrap();
            device.sync_all().unwrap();
        }
        daemon.stop();
        assert_eq!(std::fs::read(&backing).unwrap()[20 * MIB as usize..][..4096], [7; 4096]);
    }
}

#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
