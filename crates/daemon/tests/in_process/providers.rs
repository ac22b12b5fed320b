//! A daemon with several providers: each device rents from its own, and sweeps look at all of them.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{MIB, Machine, Shape, boost, connect, drain, images, pattern, status};
use surgetank_daemon::sweep::Swept;
use surgetank_daemon::{Config, Daemon, DevicePhase, Request};
use surgetank_model::Bytes;
use surgetank_provider::local::{LocalConfig, LocalProvider};
use surgetank_provider::service::{Secret, Service};
use surgetank_provider::{CreateVolume, HostConfig, Provider, SystemClock, Tags, tag};

/// The devices `a`, which rents from files of this machine, and `b`, which rents from a service.
fn config(machine: &Machine, host: &HostConfig) -> Config {
    let [a, b] = ["a", "b"].map(|name| machine.path(name).display().to_string());
    let mut config = machine.config(&[("a", &a), ("b", &b)], &Shape::default());
    config.providers.insert("host", Arc::new(host.clone()));
    config.devices.get_mut("b").unwrap().caching.as_mut().unwrap().provider = "host";
    config
}

/// Backing volumes, and a service on this machine.
fn prepare(machine: &Machine) -> (Arc<LocalProvider>, HostConfig) {
    for name in ["a", "b"] {
        machine.backing(name, 64 * MIB);
    }
    let (files, token) = (machine.path("elsewhere"), machine.path("token"));
    let local = LocalProvider::open(LocalConfig::in_directory(&files), Arc::new(SystemClock)).unwrap();
    let (local, secret) = (Arc::new(local), Secret::read_or_make(&token).unwrap());
    let service = Service::bind("127.0.0.1:0".parse().unwrap(), local.clone(), secret).unwrap();
    let url = format!("http://{}", service.address().unwrap());
    // Until the test ends.
    std::thread::spawn(|| service.serve(|| std::thread::sleep(Duration::from_secs(3600))));
    (local, HostConfig { files: Some(files), ..HostConfig::new(url, token) })
}

#[test]
fn each_device_rents_from_its_own_provider() {
    let machine = Machine::new();
    let (_, host) = prepare(&machine);
    let rented = || [machine.rented(), images(&machine.path("elsewhere")).len()];
    let daemon = Daemon::start(config(&machine, &host)).unwrap();
    for (name, expected) in [("a", [1, 0]), ("b", [1, 1])] {
        boost(&daemon, name);
        assert_eq!(rented(), expected);
        connect(&machine, name).write(0, &pattern(0, 1, MIB as usize)).unwrap();
    }
    drop(daemon);
    // Its newest data is at one provider, and the configuration names the other.
    let mut moved = config(&machine, &host);
    moved.devices.get_mut("b").unwrap().caching.as_mut().unwrap().provider = "local";
    let daemon = Daemon::start(moved).unwrap();
    let refused = status(&daemon, "b").reason.unwrap();
    assert!(refused.contains("rented from \"host\": write provider = \"host\""), "{refused}");
    let error = daemon.handle(Request::Detach { device: "b".into(), accept_loss: true }).unwrap_err();
    assert!(error.contains("is there"), "{error}");
    drop(daemon);
    let daemon = Daemon::start(config(&machine, &host)).unwrap();
    for name in ["a", "b"] {
        drain(&daemon, name);
        // Little enough not to be a burst.
        assert_eq!(connect(&machine, name).read(0, 16 << 10).unwrap(), pattern(0, 1, 16 << 10));
    }
    assert_eq!(rented(), [0, 0]);
}

#[test]
fn a_sweep_looks_at_every_provider() {
    let machine = Machine::new();
    let (there, host) = prepare(&machine);
    let config = config(&machine, &host);
    let here = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let daemon = Daemon::start(config).unwrap();
    let owner = std::fs::read_to_string(machine.path("state/owner-id")).unwrap().trim().to_owned();
    let tags: Tags = [(tag::OWNER.to_owned(), owner)].into();
    let orphan = |provider: &dyn Provider| {
        let (token, size) = ("orphan".to_owned(), Bytes::new(MIB));
        let request = CreateVolume { token, size, volume_type: "fast".to_owned(), tags: tags.clone() };
        provider.create(&request).unwrap().0.id.0
    };
    let mut orphans = [orphan(&here), orphan(&*there)];
    let mut swept: Swept = serde_json::from_value(daemon.handle(Request::Gc).unwrap()).unwrap();
    swept.deleted.sort();
    orphans.sort();
    assert_eq!((swept.deleted, swept.warnings), (orphans.to_vec(), vec![]));
    assert_eq!(status(&daemon, "a").phase, DevicePhase::Idle);
}
