//! Upgrade in place: on SIGUSR2 the binary at the daemon's path takes over, in the same process, under load and in every
//! phase of a boost. Nothing acknowledged is lost, and what cannot take over does not.

#[path = "../../daemon/tests/common/mod.rs"]
mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::child::Running;
use common::mounted::{self, Mounted};
use common::rounds::{self, Histogram, Seen};
use common::writers::{Counts, Writer};
use common::{Machine, TIMEOUT, eventually, pattern};
use surgetank_daemon::{DevicePhase, Request};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

/// A daemon that was started as systemd does it, from a binary that can be replaced.
struct Service {
    running: Running,
    systemd: UnixDatagram,
    binary: PathBuf,
}

impl Service {
    fn start(machine: &Machine) -> Self {
        let (binary, notify) = (machine.path("surgetank"), machine.path("notify"));
        std::fs::copy(env!("CARGO_BIN_EXE_surgetank"), &binary).unwrap();
        let systemd = UnixDatagram::bind(&notify).unwrap();
        systemd.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut command = Command::new(&binary);
        command.args(["serve", "--config"]).arg(machine.path("config.toml")).env("NOTIFY_SOCKET", notify);
        command.env_remove("SURGETANK_LOG").stdin(Stdio::null());
        let running = Running::spawn(machine, command);
        let service = Self { running, systemd, binary };
        service.hears("READY=1");
        service
    }

    #[track_caller]
    fn hears(&self, expected: &str) {
        let mut message = [0; 64];
        let length = self.systemd.recv(&mut message).unwrap();
        assert_eq!(std::str::from_utf8(&message[..length]).unwrap(), expected);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals our own child, which is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.running.child.id() as i32, signal) }, 0);
    }

    fn upgrade(&self) {
        self.signal(libc::SIGUSR2);
        self.hears("RELOADING=1");
        self.hears("READY=1");
    }

    /// Puts other bytes in the binary's place, as a package manager does.
    fn install(&self, bytes: &[u8]) {
        let new = self.binary.with_extension("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(new, &self.binary).unwrap();
    }

    fn stop(mut self) {
        self.signal(libc::SIGTERM);
        self.hears("STOPPING=1");
        assert!(self.running.child.wait().unwrap().success(), "a clean stop");
    }
}

fn machine(export: &str, more: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    rounds::configure(&machine, &backing, "adaptive", "24 MiB", export);
    let file = machine.path("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("throttle = true\n", &format!("throttle = true\n{more}\n"))).unwrap();
    (machine, backing)
}

#[test]
#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn upgrades_under_load_lose_nothing_in_any_phase() {
    let (machine, backing) = machine("nbd", "");
    let service = Service::start(&machine);
    let mut writers = Writer::several(4, SIZE, 31);
    let (mut moments, seen, mut random) = (Histogram::default(), Seen::default(), Random::from_seed(31));
    let upgrades = std::env::var("SURGETANK_UPGRADES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    std::thread::scope(|scope| {
        for writer in &mut writers {
            let (socket, seen) = (&service.running.socket, &seen);
            scope.spawn(move || {
                while !seen.over() {
                    writer.serve_itself(socket, || seen.over());
                }
            });
        }
        let aims = (0..upgrades).map(rounds::aim);
        rounds::act_at(&machine, &service.running.client, &seen, &mut random, aims, |moment| {
            service.upgrade();
            moments.add(moment);
        });
    });
    let mut nbd = common::nbd(&service.running.socket).unwrap();
    let mut counts = Counts::default();
    for writer in &mut writers {
        writer.check(&mut nbd).unwrap();
        counts.add(&writer.counts);
    }
    rounds::deletes_everything(&machine, &service.running);
    service.stop();
    let log = machine.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR")).collect();
    assert!(warnings.is_empty(), "what is planned warns of nothing: {warnings:#?}");
    assert!(log.contains("data: a boost begins: ") && log.contains("data: served at nbd+unix://"), "{log}");
    writers.iter_mut().for_each(|writer| writer.check_file(&backing));
    eprintln!(
        "{upgrades} upgrades in place, asked for in: {moments}; {} writes, {} MiB checked, {} requests in flight",
        counts.writes,
        counts.checked_bytes >> 20,
        counts.in_flight
    );
}

#[test]
fn the_binary_at_the_path_takes_over_unless_it_refuses() {
    // What is configured for a stop does not hold for an upgrade.
    let (machine, _) = machine("nbd", "on_stop = \"drain\"");
    let service = Service::start(&machine);
    let client = &service.running.client;
    client.ask(&Request::boost("data")).unwrap();
    eventually("boost", || service.running.phase() == Some(DevicePhase::Boost));
    let mut nbd = common::nbd(&service.running.socket).unwrap();
    for block in 0..8 {
        nbd.write(block * MIB, &pattern(block, 1, MIB as usize)).unwrap();
    }
    let volume = || client.status().unwrap().devices[0].caching.as_ref().unwrap().volume.clone();
    let rented = volume();

    service.install(b"#!/bin/sh\necho it will not >&2\nexit 3\n");
    service.signal(libc::SIGUSR2);
    eventually("the refusal is told", || machine.log().contains("no upgrade, this daemon goes on"));
    assert!(machine.log().contains("it will not"), "{}", machine.log());
    assert_eq!(nbd.read(0, MIB as usize).unwrap(), pattern(0, 1, MIB as usize), "the connection lives on");

    service.install(&std::fs::read(env!("CARGO_BIN_EXE_surgetank")).unwrap());
    service.upgrade();
    let running = std::fs::metadata(format!("/proc/{}/exe", service.running.child.id())).unwrap();
    assert_eq!(running.ino(), std::fs::metadata(&service.binary).unwrap().ino());
    assert_eq!(volume(), rented, "nothing was drained for it");
    let mut nbd = common::nbd(&service.running.socket).unwrap();
    for block in 0..8 {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 1, MIB as usize), "{block}");
    }
    service.stop();
    assert_eq!(machine.rented(), 0, "a stop drains");
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_mounted_device_is_not_upgraded() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let (machine, backing) = machine("fuse", "");
    mounted::must("mkfs.ext4", &["-q", backing.to_str().unwrap()]);
    let service = Service::start(&machine);
    let place = machine.path("mnt");
    let file_system = Mounted::mount(Path::new(&mounted::device(&service.running)), &place);
    std::fs::write(place.join("file"), pattern(0, 1, 4096)).unwrap();
    service.signal(libc::SIGUSR2);
    eventually("the refusal is told", || machine.log().contains("is in use by the mount"));
    std::fs::write(place.join("another"), pattern(1, 1, 4096)).unwrap();
    file_system.unmount();
    service.upgrade();
    let file_system = Mounted::mount(Path::new(&mounted::device(&service.running)), &place);
    assert_eq!(std::fs::read(place.join("another")).unwrap(), pattern(1, 1, 4096));
    file_system.unmount();
    service.stop();
    mounted::check_ext4(&backing);
}
