//! The devices of a daemon start and stop at the same time: one that takes long holds up no other. What a killed daemon had
//! counted stays counted, and only what follows a crash is said to follow one.

use std::sync::{Arc, Condvar, Mutex};

use crate::common::child::Running;
use crate::common::failing::faults_on;
use crate::common::{MIB, Machine, Shape, TIMEOUT, boost, connect, eventually, fill, status};
use surgetank_daemon::opening::{Decorator, Purpose};
use surgetank_daemon::{Daemon, DevicePhase, Overrides, Request};
use surgetank_device::Faults;
use surgetank_device::volume::fault::{Effect, Kinds, Rule};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
fn devices_are_brought_up_at_the_same_time() {
    let machine = Machine::new();
    let config = machine.config(&NAMES.map(|name| (name, "memory:16 MiB")), &Shape::default());
    let arrived = Arc::new((Mutex::new((0, true)), Condvar::new()));
    let meeting = arrived.clone();
    // No device comes up before the others are on their way.
    let decorator: Decorator = Arc::new(move |_, volume| {
        let (state, changed) = &*meeting;
        let mut state = state.lock().unwrap();
        state.0 += 1;
        changed.notify_all();
        let waited = changed.wait_timeout_while(state, TIMEOUT / 2, |(count, _)| *count < NAMES.len()).unwrap();
        let (mut state, timeout) = waited;
        state.1 &= !timeout.timed_out();
        volume
    });
    let overrides = Overrides { decorator: Some(decorator), ..Overrides::default() };
    let daemon = Daemon::start_with(config, overrides).unwrap();
    assert_eq!(*arrived.0.lock().unwrap(), (NAMES.len(), true), "they waited for one another");
    for name in NAMES {
        assert_eq!(connect(&machine, name).read(0, 512).unwrap(), [0; 512], "{name}");
    }
    daemon.stop();
}

/// Three devices, and the faults of the first.
fn with_faults_on_the_first(machine: &Machine) -> (Daemon, Faults) {
    let backing = machine.backing("a", 16 * MIB);
    let devices = [("a", backing.to_str().unwrap()), ("b", "memory:16 MiB"), ("c", "memory:16 MiB")];
    let config = machine.config(&devices, &Shape::default());
    // Of `a` alone: the volumes in memory do not ask.
    let faults = Faults::new(1).unwrap();
    let slow = faults.clone();
    let decorator: Decorator = Arc::new(move |_, volume| match volume.descriptor() {
        Some(_) => Box::new(surgetank_device::Fault::new(volume, slow.clone()).unwrap()),
        None => volume,
    });
    let overrides = Overrides { decorator: Some(decorator), ..Overrides::default() };
    (Daemon::start_with(config, overrides).unwrap(), faults)
}

#[test]
fn a_device_that_takes_long_to_stop_holds_up_no_other() {
    let machine = Machine::new();
    let (daemon, faults) = with_faults_on_the_first(&machine);
    let mut clients = NAMES.map(|name| connect(&machine, name));
    clients[0].write(0, &[1; 4096]).unwrap();
    faults.add(Rule::always(Kinds::Flushes, Effect::Stuck));
    let stopping = std::thread::spawn(move || daemon.stop());
    for name in ["b", "c"] {
        let socket = machine.path(&format!("run/{name}.sock"));
        eventually("the others have stopped", || crate::common::nbd(&socket).is_err());
    }
    eventually("the last flush of the first is waited for", || faults.stuck() == 1);
    assert!(!stopping.is_finished(), "the first has not stopped");
    faults.release();
    faults.clear();
    stopping.join().unwrap();
}

#[test]
fn while_a_busy_device_stops_for_an_upgrade_the_others_are_served() {
    let machine = Machine::new();
    let (daemon, faults) = with_faults_on_the_first(&machine);
    let [mut busy, mut calm, _] = NAMES.map(|name| connect(&machine, name));
    faults.add(Rule::always(Kinds::Writes, Effect::Stuck));
    let writing = std::thread::spawn(move || busy.write(0, &[1; 4096]));
    eventually("a write is in flight", || faults.stuck() == 1);
    let stopping = std::thread::spawn(move || daemon.stop_for_upgrade());
    // The control socket goes before the devices do.
    let control = machine.path("run/control.sock");
    eventually("it is stopping", || !control.exists());
    for _ in 0..20 {
        assert_eq!(calm.read(0, 512).unwrap(), [0; 512]);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(faults.stuck(), 1);
    faults.clear();
    faults.release();
    stopping.join().unwrap();
    let _ = writing.join().unwrap();
    assert!(calm.read(0, 512).is_err(), "it has stopped as well");
}

#[test]
fn of_two_devices_on_one_volume_the_first_is_served() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 16 * MIB);
    std::os::unix::fs::symlink(&backing, machine.path("alias")).unwrap();
    let alias = machine.path("alias");
    let devices = [("b", backing.to_str().unwrap()), ("a", alias.to_str().unwrap())];
    let daemon = Daemon::start(machine.config(&devices, &Shape::default())).unwrap();
    assert_eq!(status(&daemon, "a").phase, DevicePhase::Idle);
    let refused = status(&daemon, "b");
    let reason = refused.reason.unwrap();
    assert!(reason.contains("is the backing volume of the device a already"), "{reason}");
    daemon.stop();
}

#[test]
fn a_boost_is_counted_however_the_daemon_ends() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 32 * MIB);
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &Shape::default());
    std::fs::write(machine.path("config.toml"), text).unwrap();
    let counted = |running: &Running| running.client.status().unwrap().devices[0].boosts;
    for boosts in 1..=3 {
        let mut running = Running::start(&machine, None);
        eventually("the last boost is over", || running.phase() == Some(DevicePhase::Idle));
        assert_eq!(counted(&running), boosts - 1);
        running.client.ask(&Request::boost("data")).unwrap();
        eventually("boost", || running.phase() == Some(DevicePhase::Boost));
        assert_eq!(counted(&running), boosts);
        running.kill();
    }
}

/// What the status says while the caching volume is read back.
fn said_while_reading_back(machine: &Machine, config: &surgetank_daemon::Config) -> String {
    let slow = Faults::new(1).unwrap();
    slow.add(Rule::always(Kinds::Reads, Effect::Stuck));
    let daemon = Daemon::start_with(config.clone(), faults_on(Purpose::Caching, &slow)).unwrap();
    let mut said = String::new();
    eventually("it is being read back", || {
        said = status(&daemon, "data").reason.unwrap_or_default();
        said.contains("reading the caching volume back")
    });
    slow.clear();
    slow.release();
    eventually("it is read back", || machine.rented() == 0);
    daemon.stop();
    said
}

#[test]
fn only_what_follows_a_crash_is_said_to_follow_one() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 32 * MIB);
    let device = [("data", backing.to_str().unwrap())];
    let config = machine.config(&device, &crate::common::failing::slow());
    let daemon = Daemon::start(config.clone()).unwrap();
    boost(&daemon, "data");
    fill(&mut connect(&machine, "data"), 8, 1);
    daemon.stop();
    let said = said_while_reading_back(&machine, &config);
    assert!(!said.contains("crash") && said.contains("the last stop left dirty data"), "{said}");

    std::fs::write(machine.path("config.toml"), machine.config_text(&device, &crate::common::failing::slow())).unwrap();
    let mut running = Running::start(&machine, None);
    // The last caching volume may still be being detached.
    eventually("it is asked", || running.client.ask(&Request::boost("data")).is_ok());
    eventually("boost", || running.phase() == Some(DevicePhase::Boost));
    fill(&mut running.nbd().unwrap(), 8, 2);
    running.kill();
    let said = said_while_reading_back(&machine, &config);
    assert!(said.contains("after a crash"), "{said}");
}
