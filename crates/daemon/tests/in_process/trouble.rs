//! Things that go wrong: providers that refuse, caching volumes that fail, missing owners, second daemons.

use std::sync::Arc;
use std::time::Duration;

use crate::common::failing::{Vanished, on_caches, slow};
use crate::common::{MIB, Machine, Shape, boost, connect, drain, eventually, fill, find, pattern, status};
use surgetank_daemon::opening::Decorator;
use surgetank_daemon::sweep::Swept;
use surgetank_daemon::{Daemon, DevicePhase, Overrides, Request, accept_loss_offline};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Faults, Volume, VolumeIo};
use surgetank_provider::local::LocalProvider;
use surgetank_provider::{
    CreateVolume, Fault as ProviderFault, FaultRates, Faulty, LocalConfig, Provider, ProviderError, SystemClock, Tags,
    Verb, tag,
};

fn faulty(config: &LocalConfig) -> Arc<Faulty<LocalProvider>> {
    let clock = Arc::new(SystemClock);
    Arc::new(Faulty::new(LocalProvider::open(config.clone(), clock.clone()).unwrap(), clock))
}

#[test]
fn a_refused_volume_leaves_pass_through_and_a_reason_and_is_tried_again() {
    let machine = Machine::new();
    let config = machine.config(&[("data", "memory:64 MiB")], &Shape::default());
    let provider = faulty(&crate::common::local(&config));
    for _ in 0..3 {
        provider.script(Verb::Create, ProviderFault::Before(ProviderError::Quota("none left".into())));
    }
    provider.script(Verb::Attach, ProviderFault::Before(ProviderError::AttachLimit("no slot".into())));
    let overrides = Overrides { provider: Some(provider.clone()), ..Overrides::default() };
    let daemon = Daemon::start_with(config, overrides).unwrap();
    let mut nbd = connect(&machine, "data");
    let mut reasons = std::collections::BTreeSet::new();
    // A steady burst, so that the controller wants to boost by itself.
    let mut offset = 0;
    eventually("boost in spite of refusals", || {
        nbd.write(offset % (32 * MIB), &pattern(offset, 7, MIB as usize)).unwrap();
        offset += MIB;
        let status = status(&daemon, "data");
        reasons.extend(status.reason);
        status.phase == DevicePhase::Boost
    });
    assert!(reasons.iter().any(|reason| reason.contains("quota")), "{reasons:?}");
    assert!(provider.faults() >= 4);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
}

#[test]
fn a_provider_that_fails_by_chance_leaves_nothing_behind() {
    for seed in 0..6 {
        let machine = Machine::new();
        let backing = machine.backing("backing", 32 * MIB);
        let config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
        let clock = Arc::new(SystemClock);
        let local = LocalProvider::open(crate::common::local(&config), clock.clone()).unwrap();
        let rates = FaultRates {
            seed,
            at_most: Some(20),
            fail_before: 0.2,
            fail_after: 0.2,
            slow: 0.2,
            twice: 0.1,
            slow_for: surgetank_model::units::Span(Duration::from_millis(30)),
            ..FaultRates::default()
        };
        let provider = Arc::new(Faulty::new(local, clock).with_rates(rates));
        let overrides = Overrides { provider: Some(provider.clone()), ..Overrides::default() };
        let daemon = Daemon::start_with(config, overrides).unwrap();
        let mut nbd = connect(&machine, "data");
        for round in 0..3 {
            eventually("a boost is begun", || {
                let idle = status(&daemon, "data").phase == DevicePhase::Idle;
                if idle {
                    daemon.handle(Request::boost("data")).unwrap();
                }
                status(&daemon, "data").phase == DevicePhase::Boost
            });
            nbd.write(round * MIB, &pattern(round, seed, MIB as usize)).unwrap();
            drain(&daemon, "data");
            assert_eq!(nbd.read(round * MIB, 16 << 10).unwrap(), pattern(round, seed, 16 << 10));
        }
        // What a repeated call left behind is found by the sweep.
        eventually("nothing is rented", || {
            daemon.handle(Request::Gc).unwrap();
            machine.rented() == 0
        });
        drop(daemon);
    }
}

#[test]
fn several_devices_boost_side_by_side_and_one_that_cannot_start_does_not_hinder() {
    let machine = Machine::new();
    let missing = machine.path("missing");
    let devices = [("a", "memory:64 MiB"), ("b", "memory:64 MiB"), ("c", missing.to_str().unwrap())];
    let daemon = Daemon::start(machine.config(&devices, &Shape::default())).unwrap();
    let refused = status(&daemon, "c");
    assert_eq!(refused.phase, DevicePhase::Degraded);
    assert!(refused.reason.unwrap().contains("does not exist"));
    assert!(daemon.handle(Request::boost("c")).unwrap_err().contains("does not exist"));
    assert!(daemon.handle(Request::boost("d")).unwrap_err().contains("there is no device \"d\""));
    for name in ["a", "b"] {
        boost(&daemon, name);
    }
    assert_eq!(machine.rented(), 2, "{:?}", daemon.status());
    for (name, version) in [("a", 1), ("b", 2)] {
        let mut nbd = connect(&machine, name);
        nbd.write(0, &pattern(0, version, MIB as usize)).unwrap();
        drain(&daemon, name);
        // Little enough not to be a burst.
        assert_eq!(nbd.read(0, 16 << 10).unwrap(), pattern(0, version, 16 << 10));
    }
    assert_eq!(machine.rented(), 0);
}

#[test]
fn a_second_daemon_is_refused() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 8 * MIB);
    let device = [("data", backing.to_str().unwrap())];
    let daemon = Daemon::start(machine.config(&device, &Shape::default())).unwrap();
    let error = Daemon::start(machine.config(&device, &Shape::default())).err().unwrap().to_string();
    assert!(error.contains("another surgetank daemon uses the state directory"), "{error}");
    let mut other = machine.config(&device, &Shape::default());
    other.state_directory = machine.path("other");
    let error = refusal(&other);
    assert!(error.contains("another surgetank daemon answers at"), "{error}");
    other.control_socket = machine.path("other.sock");
    let error = refusal(&other);
    assert!(error.contains("is in use by"), "{error}");
    assert!(!machine.path("other.sock").exists());
    daemon.stop();
    Daemon::start(machine.config(&device, &Shape::default())).unwrap().stop();
}

/// A device that was stopped with dirty data on its caching volume.
fn stopped_dirty(machine: &Machine, shape: &Shape) -> surgetank_daemon::Config {
    let backing = machine.backing("backing", 32 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], shape);
    let daemon = Daemon::start(config.clone()).unwrap();
    boost(&daemon, "data");
    let mut nbd = connect(machine, "data");
    fill(&mut nbd, 8, 1);
    daemon.stop();
    config
}

#[test]
fn dirty_data_survives_a_stop_on_its_caching_volume() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    assert_eq!(machine.rented(), 1);
    let daemon = Daemon::start(config).unwrap();
    let mut nbd = connect(&machine, "data");
    find(&mut nbd, 8, 1);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
    daemon.stop();
    let bytes = std::fs::read(machine.path("backing")).unwrap();
    assert!(bytes[7 * MIB as usize..8 * MIB as usize] == pattern(7, 1, MIB as usize));
}

#[test]
fn a_device_drains_before_it_stops_if_asked_to() {
    let machine = Machine::new();
    let mut shape = slow();
    shape.device += "\non_stop = \"drain\"";
    stopped_dirty(&machine, &shape);
    assert_eq!(machine.rented(), 0);
    let bytes = std::fs::read(machine.path("backing")).unwrap();
    assert!(bytes[7 * MIB as usize..8 * MIB as usize] == pattern(7, 1, MIB as usize));
}

#[test]
fn a_device_whose_newest_data_is_missing_is_refused_until_the_loss_is_accepted() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    std::fs::remove_dir_all(machine.path("volumes")).unwrap();
    let error = Daemon::start(config.clone()).err().unwrap().to_string();
    assert!(error.contains("which is missing") && error.contains("surgetank detach data --accept-loss"), "{error}");
    accept_loss_offline(&config, "data").unwrap();
    assert!(accept_loss_offline(&config, "data").unwrap_err().contains("nothing is lost"));
    let daemon = Daemon::start(config).unwrap();
    eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
    connect(&machine, "data").read(0, 4096).unwrap();
}

#[test]
fn a_missing_owner_can_be_discarded_while_other_devices_are_served() {
    let machine = Machine::new();
    stopped_dirty(&machine, &slow());
    std::fs::remove_dir_all(machine.path("volumes")).unwrap();
    let backing = machine.path("backing");
    let config = machine.config(&[("data", backing.to_str().unwrap()), ("more", "memory:16 MiB")], &slow());
    let daemon = Daemon::start(config).unwrap();
    assert!(status(&daemon, "data").reason.unwrap().contains("which is missing"));
    connect(&machine, "more").write(0, &[1; 4096]).unwrap();
    daemon.handle(Request::Detach { device: "data".into(), accept_loss: true }).unwrap();
    eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
    connect(&machine, "data").read(0, 4096).unwrap();
}

#[test]
fn a_caching_volume_that_fails_while_clean_is_dropped_invisibly() {
    let machine = Machine::new();
    let faults = Faults::new(1).unwrap();
    let config = machine.config(&[("data", "memory:64 MiB")], &Shape::default());
    let daemon = Daemon::start_with(config, on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    boost(&daemon, "data");
    faults.vanish();
    fill(&mut nbd, 8, 3);
    nbd.flush().unwrap();
    eventually("the volume is deleted", || machine.rented() == 0);
    find(&mut nbd, 8, 3);
    let status = status(&daemon, "data");
    assert_eq!(status.lost_bytes, 0);
}

#[test]
fn a_caching_volume_that_fails_while_dirty_reports_what_is_lost() {
    let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
    let Vanished { config, daemon, mut nbd, told } = Vanished::new(&machine, &faults);
    assert_eq!(told.phase, DevicePhase::Degraded);
    assert_eq!(told.lost_ranges.iter().map(|range| range.length_bytes).sum::<u64>(), told.lost_bytes);
    assert!(told.reason.unwrap().contains("--accept-loss"));
    for range in &told.lost_ranges {
        assert!(nbd.read(range.offset_bytes, 4096).is_err(), "lost data is never answered");
    }
    assert_eq!(machine.rented(), 1, "nothing is detached while a loss stands");
    // It stands over a restart, while the volume cannot be read.
    daemon.stop();
    let daemon = Daemon::start_with(config, on_caches(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    assert_eq!(status(&daemon, "data").lost_bytes, told.lost_bytes);
    assert_eq!(status(&daemon, "data").phase, DevicePhase::Degraded);
    assert!(nbd.read(told.lost_ranges[0].offset_bytes, 4096).is_err());
    assert!(daemon.handle(Request::Detach { device: "data".into(), accept_loss: false }).is_err());
    daemon.handle(Request::Detach { device: "data".into(), accept_loss: true }).unwrap();
    eventually("the volume is deleted", || machine.rented() == 0);
    nbd.read(told.lost_ranges[0].offset_bytes, 4096).unwrap();
}

#[test]
fn caches_that_fail_some_writes_lose_nothing_that_was_acknowledged() {
    let machine = Machine::new();
    let faults = Faults::new(5).unwrap();
    let daemon =
        Daemon::start_with(machine.config(&[("data", "memory:64 MiB")], &Shape::default()), on_caches(&faults))
            .unwrap();
    let mut nbd = connect(&machine, "data");
    boost(&daemon, "data");
    faults.add(Rule { after: 6, ..Rule::always(Kinds::Writes, Effect::Fail(Failure::Io)) });
    fill(&mut nbd, 24, 4);
    nbd.flush().unwrap();
    eventually("the volume is deleted", || machine.rented() == 0);
    find(&mut nbd, 24, 4);
}

#[test]
fn the_sweep_deletes_orphans_and_keeps_what_may_hold_data() {
    let machine = Machine::new();
    let config = machine.config(&[("data", "memory:16 MiB")], &Shape::default());
    let provider = faulty(&crate::common::local(&config));
    let overrides = Overrides { provider: Some(provider.clone()), ..Overrides::default() };
    let daemon = Daemon::start_with(config, overrides).unwrap();
    let owner = std::fs::read_to_string(machine.path("state/owner-id")).unwrap().trim().to_owned();
    let make = |token: &str, owner: &str, dirty: bool| {
        let mut tags =
            Tags::from([(tag::OWNER.to_owned(), owner.to_owned()), (tag::DEVICE.to_owned(), "data".to_owned())]);
        if dirty {
            tags.insert(tag::DIRTY_EPOCH.to_owned(), "00".repeat(16));
        }
        let request = CreateVolume {
            token: token.to_owned(),
            volume_type: "fast".to_owned(),
            size: surgetank_model::Bytes::from_mib(1),
            tags,
        };
        provider.create(&request).unwrap().0.id
    };
    let (orphan, dirty, foreign) = (make("1", &owner, false), make("2", &owner, true), make("3", "somebody", false));
    let swept: Swept = serde_json::from_value(daemon.handle(Request::Gc).unwrap()).unwrap();
    assert_eq!(swept.deleted, [orphan.0]);
    assert!(swept.warnings[0].contains(&dirty.0), "{:?}", swept.warnings);
    assert!(provider.describe(&dirty).is_ok() && provider.describe(&foreign).is_ok());
    assert_eq!(daemon.status().warnings, swept.warnings);
}

fn refusal(config: &surgetank_daemon::Config) -> String {
    Daemon::start(config.clone()).err().unwrap().to_string()
}

/// Starts, and finds what [`stopped_dirty`] wrote.
fn nothing_is_lost(machine: &Machine, config: &surgetank_daemon::Config) {
    let daemon = Daemon::start(config.clone()).unwrap();
    let mut nbd = connect(machine, "data");
    find(&mut nbd, 8, 1);
    drain(&daemon, "data");
}

#[test]
fn records_of_dirty_data_hold_for_their_device_and_its_backing_volume_alone() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    let other = machine.backing("other", 32 * MIB);
    let error = refusal(&machine.config(&[("data", other.to_str().unwrap())], &slow()));
    assert!(error.contains("name the former one as its backing"), "{error}");
    let backing = machine.path("backing");
    let error = refusal(&machine.config(&[("renamed", backing.to_str().unwrap())], &slow()));
    assert!(error.contains("put [device.data] back and drain it"), "{error}");
    let file = std::fs::OpenOptions::new().write(true).open(&backing).unwrap();
    file.set_len(24 * MIB).unwrap();
    let error = refusal(&config);
    assert!(error.contains("shrank from 33554432 to 25165824 bytes"), "{error}");
    file.set_len(40 * MIB).unwrap();
    drop(file);
    nothing_is_lost(&machine, &config);
    // Idle, the records speak of no data, and any backing volume does.
    Daemon::start(machine.config(&[("data", other.to_str().unwrap())], &slow())).unwrap().stop();
}

#[test]
fn a_lost_state_directory_is_noticed_by_the_tag_of_the_dirty_volume() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    std::fs::rename(machine.path("state"), machine.path("away")).unwrap();
    let error = refusal(&config);
    assert!(error.contains("restore the state directory") && error.contains("--accept-loss"), "{error}");
    std::fs::remove_dir_all(machine.path("state")).unwrap();
    std::fs::rename(machine.path("away"), machine.path("state")).unwrap();
    std::fs::rename(machine.path("state/owner-id"), machine.path("owner-id")).unwrap();
    std::fs::write(machine.path("state/owner-id"), "torn").unwrap();
    let error = refusal(&config);
    assert!(error.contains("its owner-id is not 32 hex digits"), "{error}");
    std::fs::rename(machine.path("owner-id"), machine.path("state/owner-id")).unwrap();
    nothing_is_lost(&machine, &config);

    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    std::fs::remove_dir_all(machine.path("state")).unwrap();
    refusal(&config);
    accept_loss_offline(&config, "data").unwrap();
    Daemon::start(config).unwrap().stop();
}

#[test]
fn a_lost_owner_record_is_noticed_by_the_tag_of_the_dirty_volume() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    let (record, away) = (machine.path("state/data/owner.json"), machine.path("owner.json"));
    std::fs::rename(&record, &away).unwrap();
    let error = refusal(&config);
    assert!(error.contains("restore the state directory") && error.contains("--accept-loss"), "{error}");
    std::fs::rename(&away, &record).unwrap();
    nothing_is_lost(&machine, &config);

    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    std::fs::remove_file(machine.path("state/data/owner.json")).unwrap();
    refusal(&config);
    accept_loss_offline(&config, "data").unwrap();
    let daemon = Daemon::start(config).unwrap();
    eventually("the volume is deleted", || machine.rented() == 0);
    daemon.stop();
}

#[test]
fn data_that_is_there_is_not_discarded() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    let error = accept_loss_offline(&config, "data").unwrap_err();
    assert!(error.contains("start the daemon and drain"), "{error}");
    // Nor while the device is refused for another reason.
    let backing = machine.path("backing");
    std::fs::rename(&backing, machine.path("away")).unwrap();
    let devices = [("data", backing.to_str().unwrap()), ("more", "memory:16 MiB")];
    let daemon = Daemon::start(machine.config(&devices, &slow())).unwrap();
    let error = daemon.handle(Request::Detach { device: "data".into(), accept_loss: true }).unwrap_err();
    assert!(error.contains("start the daemon and drain"), "{error}");
    daemon.stop();
    std::fs::rename(machine.path("away"), &backing).unwrap();
    nothing_is_lost(&machine, &config);
}

#[test]
fn records_of_the_previous_version_are_taken_over_and_those_of_a_newer_one_refused() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    let journal = machine.path("state/data/journal.json");
    let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    let seconds = |milliseconds: Option<serde_json::Value>| milliseconds.unwrap().as_u64().unwrap() / 1000;
    let written = state.as_object_mut().unwrap();
    written.insert("version".into(), 99.into());
    std::fs::write(&journal, serde_json::to_vec(written).unwrap()).unwrap();
    let error = refusal(&config);
    assert!(error.contains("was written by a newer surgetank (its version is 99"), "{error}");
    written.insert("version".into(), 1.into());
    let saved = seconds(written.remove("saved_unix_ms"));
    written.insert("saved_unix_s".into(), saved.into());
    written.remove("unbooked");
    let rental = written["rental"].as_object_mut().unwrap();
    let started = seconds(rental.remove("started_unix_ms"));
    rental.insert("started_unix_s".into(), started.into());
    std::fs::write(&journal, serde_json::to_vec(written).unwrap()).unwrap();
    nothing_is_lost(&machine, &config);
    assert_eq!(machine.rented(), 0);
}

#[test]
fn volumes_are_billed_while_the_daemon_is_away() {
    let machine = Machine::new();
    let config = stopped_dirty(&machine, &slow());
    let journal = machine.path("state/data/journal.json");
    let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    for time in ["/saved_unix_ms", "/rental/started_unix_ms"] {
        let time = state.pointer_mut(time).unwrap();
        *time = (time.as_u64().unwrap() - 1_000_000).into();
    }
    std::fs::write(&journal, state.to_string()).unwrap();
    let daemon = Daemon::start(config).unwrap();
    let cost = status(&daemon, "data").cost_agbs;
    // 32 MiB each, at 128 and at 33 MiB/s.
    assert!(cost >= 1000.0 / 32.0 * (128.0 + 33.0), "{cost}");
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    assert!(!state["learned"]["rentals"].as_array().unwrap().is_empty(), "the budget knows of it, too");
}

#[test]
fn a_device_that_stops_while_it_is_written_to_drains_and_does_not_boost_again() {
    let machine = Machine::new();
    let backing = machine.backing("backing", 32 * MIB);
    let mut shape = slow();
    shape.device += "\non_stop = \"drain\"";
    let daemon = Daemon::start(machine.config(&[("data", backing.to_str().unwrap())], &shape)).unwrap();
    boost(&daemon, "data");
    let mut nbd = connect(&machine, "data");
    nbd.write(0, &pattern(0, 1, MIB as usize)).unwrap();
    let writer = std::thread::spawn(move || {
        // Until the export closes: a burst as far as the controller is concerned.
        let mut block = 0;
        while nbd.write(block % 32 * MIB, &pattern(block, 2, MIB as usize)).is_ok() {
            block += 1;
        }
    });
    daemon.stop();
    writer.join().unwrap();
    assert_eq!(machine.rented(), 0);
}

/// A volume whose first I/O ends its thread.
struct Bug(Box<dyn Volume>);

impl Volume for Bug {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn logical_block(&self) -> u32 {
        self.0.logical_block()
    }

    fn submit(&mut self, _: surgetank_model::Instant, _: VolumeIo) {
        panic!("a bug in a test");
    }

    fn poll(&mut self, now: surgetank_model::Instant, completions: &mut Vec<surgetank_device::volume::Completion>) {
        self.0.poll(now, completions);
    }

    fn next_deadline(&self) -> Option<surgetank_model::Instant> {
        self.0.next_deadline()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.descriptor()
    }
}

#[test]
fn a_device_whose_thread_has_died_says_so() {
    let machine = Machine::new();
    let decorator: Decorator = Arc::new(|_, volume| Box::new(Bug(volume)));
    let overrides = Overrides { decorator: Some(decorator), ..Overrides::default() };
    let config = machine.config(&[("data", "memory:16 MiB")], &Shape::default());
    let daemon = Daemon::start_with(config, overrides).unwrap();
    assert!(connect(&machine, "data").read(0, 4096).is_err());
    eventually("it is degraded", || status(&daemon, "data").phase == DevicePhase::Degraded);
    assert!(status(&daemon, "data").reason.unwrap().contains("restart the daemon"));
    daemon.stop();
}
