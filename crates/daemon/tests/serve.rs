//! A daemon in this process, over files and memory, with NBD clients.

mod common;

use common::{Machine, Nbd, Shape, eventually, pattern, status};
use surgetank_daemon::{Client, Daemon, Phase, Request};

const MIB: u64 = 1 << 20;

#[test]
fn a_device_in_memory_passes_through() {
    let machine = Machine::new();
    let daemon = Daemon::start(machine.config(&[("data", "memory:16 MiB")], &Shape::default())).unwrap();
    let mut nbd = Nbd::connect(&machine.path("run/data.sock")).unwrap();
    assert_eq!(nbd.size, 16 * MIB);
    for (offset, length) in [(0, 4096), (512, 512), (MIB, 1 << 20), (16 * MIB - 512, 512)] {
        nbd.write(offset, &pattern(offset, 1, length)).unwrap();
        assert_eq!(nbd.read(offset, length).unwrap(), pattern(offset, 1, length), "{offset}");
    }
    nbd.flush().unwrap();
    nbd.trim(MIB, 8192).unwrap();
    nbd.write_zeroes(MIB + 8192, 4096).unwrap();
    assert_eq!(nbd.read(MIB, 12288).unwrap(), vec![0; 12288]);
    let status = status(&daemon, "data");
    assert_eq!((status.phase, status.export.as_str()), (Phase::Idle, "nbd"));
    daemon.stop();
    assert!(nbd.read(0, 512).is_err());
}

#[test]
fn a_boost_on_request_absorbs_drains_and_gives_everything_back() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 64 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
    let socket = config.control_socket.clone();
    let daemon = Daemon::start(config).unwrap();
    let client = Client::new(socket);
    let mut nbd = Nbd::connect(&machine.path("run/data.sock")).unwrap();
    client.ask(&Request::Boost { device: "data".into() }).unwrap();
    eventually("boost", || status(&daemon, "data").phase == Phase::Boost);
    assert_eq!(machine.rented(), 1);
    for offset in (0..16 * MIB).step_by(MIB as usize) {
        nbd.write(offset, &pattern(offset, 1, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    client.ask(&Request::Drain { device: "data".into() }).unwrap();
    eventually("idle", || status(&daemon, "data").phase == Phase::Idle);
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
