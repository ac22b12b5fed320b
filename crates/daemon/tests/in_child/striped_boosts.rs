//! Boosts whose caching volume is a stripe over several volumes: they absorb, drain and leave nothing, also when a part of the
//! stripe is refused, fails, or was in the middle of a change when the daemon ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::child::Running;
use crate::common::{MIB, Machine, Shape, boost, connect, drain, eventually, fill, find, images, status};
use surgetank_daemon::opening::{Decorator, Purpose};
use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Overrides, Request};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Fault, Faults};
use surgetank_model::Bytes;
use surgetank_provider::{CreateVolume, LocalProvider, Provider, SystemClock, Tags};

const VOLUMES: usize = 4;
const BLOCKS: u64 = 16;

/// A slow device whose boosts are striped; `caching` is more of its caching section, `provider` of its provider's.
fn config_with(machine: &Machine, provider: &str, caching: &str) -> Config {
    striped(machine, provider, &format!("volumes = {VOLUMES}\n{caching}"))
}

fn striped(machine: &Machine, provider: &str, caching: &str) -> Config {
    let text = striped_text(machine, provider, caching);
    Config::from_text(std::path::Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn striped_text(machine: &Machine, provider: &str, caching: &str) -> String {
    let backing = machine.path("backing");
    if !backing.exists() {
        machine.backing("backing", 64 * MIB);
    }
    let mut shape = Shape { device: "throttle = true".to_owned(), provider: provider.to_owned(), ..Shape::default() };
    shape.caching += &format!("\n{caching}");
    machine.config_text(&[("data", backing.to_str().unwrap())], &shape)
}

const AUTO: &str = "volumes = \"auto\"";

fn config(machine: &Machine) -> Config {
    config_with(machine, "", "")
}

/// Faults of one member of the stripe that is opened first.
fn on_one_member(faults: &Faults) -> Overrides {
    let (faults, opened) = (faults.clone(), Arc::new(AtomicUsize::new(0)));
    let decorator: Decorator = Arc::new(move |purpose, volume| {
        if purpose == Purpose::Caching && opened.fetch_add(1, Ordering::Relaxed) == 1 {
            Box::new(Fault::new(volume, faults.clone()).unwrap())
        } else {
            volume
        }
    });
    Overrides { decorator: Some(decorator), ..Overrides::default() }
}

fn caching_volumes(status: &DeviceStatus) -> Option<(usize, usize)> {
    let caching = status.caching.as_ref()?;
    Some((caching.volumes as usize, caching.volume.split('+').count()))
}

#[test]
fn a_burst_is_absorbed_by_all_members_and_drained_and_nothing_is_left() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine)).unwrap();
    let mut nbd = connect(&machine, "data");
    for version in 1..3 {
        boost(&daemon, "data");
        assert_eq!(caching_volumes(&status(&daemon, "data")), Some((VOLUMES, VOLUMES)));
        assert_eq!(machine.rented(), VOLUMES);
        fill(&mut nbd, BLOCKS, version);
        nbd.flush().unwrap();
        find(&mut nbd, BLOCKS, version);
        let written = |path: &std::path::PathBuf| {
            // Sparse to `du`, but its middle is not zero.
            std::fs::read(path).unwrap().chunks(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count()
        };
        let written: Vec<usize> = images(&machine.path("volumes")).iter().map(written).collect();
        assert!(written.iter().all(|blocks| *blocks > 128), "every member takes its part: {written:?}");
        drain(&daemon, "data");
        assert_eq!(machine.rented(), 0);
        find(&mut nbd, BLOCKS, version);
    }
    let history = daemon.handle(Request::History { last: 9 }).unwrap();
    let boosts = history["devices"][0]["boosts"].as_array().unwrap();
    assert!(boosts.len() == 2 && boosts.iter().all(|boost| boost["volumes"] == VOLUMES), "{history}");
}

#[test]
fn what_is_dirty_at_a_stop_is_read_back_by_whoever_starts_next() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine)).unwrap();
    boost(&daemon, "data");
    fill(&mut connect(&machine, "data"), BLOCKS, 7);
    daemon.stop();
    assert_eq!(machine.rented(), VOLUMES);
    // As after a boot; and the next configuration rents plain volumes.
    std::fs::remove_dir_all(machine.path("run")).unwrap();
    let backing = machine.path("backing");
    let shape = Shape { device: "throttle = true".to_owned(), ..Shape::default() };
    let daemon = Daemon::start(machine.config(&[("data", backing.to_str().unwrap())], &shape)).unwrap();
    let mut nbd = connect(&machine, "data");
    find(&mut nbd, BLOCKS, 7);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
    find(&mut nbd, BLOCKS, 7);
    boost(&daemon, "data");
    assert_eq!(caching_volumes(&status(&daemon, "data")), Some((1, 1)));
}

#[test]
fn a_quota_that_is_reached_in_the_middle_leaves_nothing_and_is_told() {
    let machine = Machine::new();
    let daemon = Daemon::start(config_with(&machine, "quota_volumes = 2", "")).unwrap();
    let _ = daemon.handle(Request::boost("data"));
    eventually("the reason is told", || status(&daemon, "data").reason.is_some_and(|reason| reason.contains("quota")));
    eventually("nothing is left", || machine.rented() == 0);
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, BLOCKS, 1);
    find(&mut nbd, BLOCKS, 1);
    // The boost was asked for, so that another attempt follows each refusal: a stop amid one leaves its end to the next start.
    drain(&daemon, "data");
    eventually("nothing is left of the last attempt", || machine.rented() == 0);
    daemon.stop();
    assert_eq!(machine.rented(), 0);
}

#[test]
fn a_slot_that_is_missing_for_one_member_leaves_nothing() {
    let machine = Machine::new();
    let daemon = Daemon::start(config_with(&machine, "attach_limit = 3", "")).unwrap();
    let _ = daemon.handle(Request::boost("data"));
    eventually("the reason is told", || status(&daemon, "data").reason.is_some_and(|reason| reason.contains("attach")));
    eventually("nothing is left", || machine.rented() == 0);
    daemon.stop();
    assert_eq!(machine.rented(), 0);
}

/// What the other members hold is drained; what this one holds counts as lost until it can be read, and then no more.
#[test]
fn a_member_that_fails_for_a_while_costs_nothing() {
    let machine = Machine::new();
    let faults = Faults::new(1).unwrap();
    let daemon =
        Daemon::start_with(config_with(&machine, "", "outage_patience = \"1 min\""), on_one_member(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    boost(&daemon, "data");
    fill(&mut nbd, BLOCKS, 3);
    nbd.flush().unwrap();
    faults.add(Rule::always(Kinds::Any, Effect::Fail(Failure::Io)));
    eventually("it is noticed", || {
        let _ = nbd.read(3 * MIB, 4096);
        status(&daemon, "data").phase == DevicePhase::Degraded
    });
    faults.clear();
    eventually("it is drained and deleted", || {
        let _ = daemon.handle(Request::Drain { device: "data".into() });
        status(&daemon, "data").phase == DevicePhase::Idle && machine.rented() == 0
    });
    find(&mut nbd, BLOCKS, 3);
    assert_eq!(status(&daemon, "data").lost_bytes, 0);
}

/// Of one that fails for good, exactly what it alone held is lost; the stripe stays until the user decides.
#[test]
fn a_member_that_fails_for_good_loses_its_part_alone() {
    let machine = Machine::new();
    let faults = Faults::new(1).unwrap();
    let daemon =
        Daemon::start_with(config_with(&machine, "", "outage_patience = \"1 s\""), on_one_member(&faults)).unwrap();
    let mut nbd = connect(&machine, "data");
    boost(&daemon, "data");
    fill(&mut nbd, BLOCKS, 3);
    nbd.flush().unwrap();
    faults.add(Rule::always(Kinds::Any, Effect::Fail(Failure::Io)));
    eventually("the loss is known", || {
        let _ = nbd.read(3 * MIB, 4096);
        status(&daemon, "data").lost_bytes > 0
    });
    let lost = status(&daemon, "data").lost_bytes;
    assert!(lost < BLOCKS * MIB, "what the others hold is drained, {lost} bytes are lost");
    assert_eq!(machine.rented(), VOLUMES, "the stripe is kept");
    eventually("the user discards it", || {
        daemon.handle(Request::Detach { device: "data".into(), accept_loss: true }).is_ok()
    });
    eventually("nothing is left", || machine.rented() == 0);
    daemon.stop();
}

#[test]
fn a_stripe_of_which_a_member_is_missing_is_kept_and_told() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine)).unwrap();
    boost(&daemon, "data");
    fill(&mut connect(&machine, "data"), BLOCKS, 3);
    daemon.stop();
    let image = images(&machine.path("volumes")).remove(0);
    let away = machine.path("away");
    std::fs::rename(&image, &away).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    eventually("it is told", || status(&daemon, "data").reason.is_some_and(|reason| reason.contains("of the stripe")));
    assert_eq!(machine.rented(), VOLUMES - 1);
    daemon.stop();
    std::fs::rename(&away, &image).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    find(&mut connect(&machine, "data"), BLOCKS, 3);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
}

/// A machine that knows nothing of a stripe deletes a clean one, whole or not, and keeps a dirty one.
#[test]
fn sweeps_delete_stripes_that_no_device_knows_and_keep_what_may_be_dirty() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine)).unwrap();
    boost(&daemon, "data");
    fill(&mut connect(&machine, "data"), BLOCKS, 3);
    daemon.stop();
    let state = machine.path("state/data");
    let kept = machine.path("kept");
    std::fs::rename(&state, &kept).unwrap();
    let error = Daemon::start(config(&machine)).map(|daemon| {
        let status = status(&daemon, "data");
        let swept = daemon.handle(Request::Gc);
        daemon.stop();
        (status.reason, swept)
    });
    assert_eq!(machine.rented(), VOLUMES, "{:?}", error.map_err(|error| error.to_string()));
    std::fs::remove_dir_all(&state).ok();
    std::fs::rename(&kept, &state).unwrap();
    let daemon = Daemon::start(config(&machine)).unwrap();
    find(&mut connect(&machine, "data"), BLOCKS, 3);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
}

#[test]
fn auto_takes_as_many_volumes_as_the_limits_allow() {
    // What the provider takes; what the machine moves: 33 MiB/s of the backing volume and so many times 128; the sizes.
    let machine = |line: &str| format!("[machine]\n{line}\n[provider.local]");
    for (provider, machine_section, caching, volumes) in [
        ("attach_limit = 5", None, "", 4),
        ("quota_volumes = 3", None, "", 3),
        ("attach_limit = 1", None, "", 1),
        ("", Some(machine("bandwidth = \"300 MiB/s\"")), "", 3),
        ("", Some(machine("attachments = 9")), "", 8),
        ("", None, "", 16),
        ("", None, "max_size = \"32 MiB\"\nmin_size = \"32 MiB\"", 16),
    ] {
        let at = Machine::new();
        let mut text = striped_text(&at, provider, &format!("{AUTO}\n{caching}"));
        if let Some(section) = machine_section {
            text = text.replace("[provider.local]", &section);
        }
        let daemon = Daemon::start(Config::from_text(std::path::Path::new("test.toml"), &text).unwrap()).unwrap();
        let mut nbd = connect(&at, "data");
        boost(&daemon, "data");
        assert_eq!(caching_volumes(&status(&daemon, "data")), Some((volumes, volumes)), "{text}");
        assert_eq!(at.rented(), volumes);
        fill(&mut nbd, BLOCKS, 1);
        drain(&daemon, "data");
        assert_eq!(at.rented(), 0);
        find(&mut nbd, BLOCKS, 1);
    }
}

/// Somebody else has a part of the quota, which no configuration tells.
#[test]
fn where_so_many_are_refused_the_next_stripe_is_over_half() {
    let machine = Machine::new();
    let config = striped(&machine, "quota_volumes = 6", AUTO);
    let other = crate::common::local(&config);
    let others = LocalProvider::open(other, Arc::new(SystemClock)).unwrap();
    let request = CreateVolume {
        token: "other".to_owned(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_mib(1),
        tags: Tags::new(),
    };
    others.create(&request).unwrap();
    let daemon = Daemon::start(config).unwrap();
    let _ = daemon.handle(Request::boost("data"));
    eventually("it is tried again with fewer", || {
        let _ = daemon.handle(Request::boost("data"));
        status(&daemon, "data").phase == DevicePhase::Boost
    });
    assert_eq!(caching_volumes(&status(&daemon, "data")), Some((3, 3)));
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, BLOCKS, 2);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 1);
    find(&mut nbd, BLOCKS, 2);
}

/// What the volumes say counts, whatever the configuration says by then.
#[test]
fn a_stripe_is_adopted_after_a_kill_under_another_number_of_volumes() {
    let machine = Machine::new();
    for (before, held, after, next) in [
        (AUTO, 16, "volumes = 2", 2),
        ("volumes = 2", 2, AUTO, 16),
        (AUTO, 16, "volumes = 1", 1),
        ("volumes = 1", 1, AUTO, 16),
    ] {
        std::fs::write(machine.path("config.toml"), striped_text(&machine, "", before)).unwrap();
        let mut running = Running::start(&machine, None);
        running.client.ask(&Request::boost("data")).unwrap();
        eventually("the boost is there", || running.phase() == Some(DevicePhase::Boost));
        let mut nbd = running.nbd().unwrap();
        fill(&mut nbd, BLOCKS, held as u64);
        nbd.flush().unwrap();
        running.kill();
        assert_eq!(machine.rented(), held);
        let daemon = Daemon::start(striped(&machine, "", after)).unwrap();
        // Only the volumes that were rented before have it. They drain meanwhile, and another boost may begin.
        find(&mut connect(&machine, "data"), BLOCKS, held as u64);
        drain(&daemon, "data");
        assert_eq!(machine.rented(), 0);
        boost(&daemon, "data");
        assert_eq!(caching_volumes(&status(&daemon, "data")), Some((next, next)));
        drain(&daemon, "data");
        daemon.stop();
        assert_eq!(machine.rented(), 0);
    }
}
