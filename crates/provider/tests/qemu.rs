//! The QEMU provider against a real QEMU: the contract, faults, and many life cycles.

#![allow(clippy::print_stdout, reason = "tests say what they skip, and their counts")]

mod machine;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use machine::{Machine, Unplug, skip};
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject, request};
use surgetank_provider::qemu::QemuConfig;
use surgetank_provider::{
    Change, CreateVolume, DiskIdentity, ManualClock, Provider, ProviderError, QemuProvider, SystemClock, VolumeId,
    VolumeState,
};

/// Life cycles of the soak; `SURGETANK_HOTPLUGS` for more.
const HOTPLUGS: u64 = 100;

struct World {
    machine: Machine,
    clock: Arc<ManualClock>,
    tokens: AtomicU64,
}

impl World {
    fn new(unplug: Unplug, ports: usize) -> Self {
        let clock = Arc::new(ManualClock::at_ms(1_700_000_000_000));
        Self { machine: Machine::start(unplug, ports), clock, tokens: AtomicU64::new(0) }
    }

    fn config(&self) -> QemuConfig {
        QemuConfig {
            patience: Span(Duration::from_secs(20)),
            ..QemuConfig::new(self.machine.qmp(), self.machine.volumes())
        }
    }

    fn provider(&self) -> QemuProvider {
        QemuProvider::open(self.config(), self.clock.clone()).unwrap()
    }

    fn request(&self) -> CreateVolume {
        request(&format!("token-{}", self.tokens.fetch_add(1, Ordering::Relaxed)))
    }

    fn created(&self, provider: &QemuProvider) -> VolumeId {
        provider.create(&self.request()).unwrap().0.id
    }

    /// Nothing of ours is in QEMU, and nothing in the directory.
    fn assert_empty(&self, provider: &QemuProvider) {
        assert_eq!(provider.parts().unwrap(), Vec::<String>::new(), "nothing is left in QEMU");
        for name in ["volumes", "state"] {
            let left = std::fs::read_dir(self.machine.volumes().join(name)).unwrap().count();
            assert_eq!(left, 0, "nothing is left in {name}");
        }
    }
}

impl Subject for World {
    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider())
    }

    fn pass_time(&self) {
        self.clock.advance(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(1));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(1))
    }
}

fn state(provider: &QemuProvider, id: &VolumeId) -> VolumeState {
    provider.describe(id).unwrap().state
}

/// Detaches and waits until QEMU has released.
fn detach(provider: &QemuProvider, id: &VolumeId) {
    assert_eq!(provider.detach(id), Ok(Change::Changed));
    for _ in 0..5000 {
        if state(provider, id) == VolumeState::Available {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{id:?} is not released");
}

#[test]
fn contract_against_a_real_qemu() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 4);
    contract::run(&world);
    world.assert_empty(&world.provider());
}

#[test]
fn an_attached_volume_is_three_things_in_qemu_and_says_its_serial() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 1);
    let provider = world.provider();
    let id = world.created(&provider);
    assert_eq!(provider.attach(&id), Ok(Change::Changed));
    assert_eq!(provider.parts().unwrap(), [id.0.clone(), format!("{}-disk", id.0), format!("{}-limits", id.0)]);
    let volume = provider.describe(&id).unwrap();
    assert_eq!(volume.disk, Some(DiskIdentity::Serial(id.0.clone())), "its id fits into a virtio serial");
    assert_eq!(volume.device.unwrap().to_str().unwrap(), format!("/dev/disk/by-id/virtio-{}", id.0));
    detach(&provider, &id);
    provider.delete(&id).unwrap();
    world.assert_empty(&provider);
}

#[test]
fn ports_that_are_used_up_are_an_attachment_limit() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 2);
    let provider = world.provider();
    let ids: Vec<_> = (0..3).map(|_| world.created(&provider)).collect();
    provider.attach(&ids[0]).unwrap();
    provider.attach(&ids[1]).unwrap();
    match provider.attach(&ids[2]) {
        Err(ProviderError::AttachLimit(text)) => assert!(text.contains("port0, port1"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(state(&provider, &ids[2]), VolumeState::Available, "the refused one is as it was");
    assert_eq!(provider.parts().unwrap().len(), 6, "and left nothing behind");
    detach(&provider, &ids[0]);
    assert_eq!(provider.attach(&ids[2]), Ok(Change::Changed), "a free port is used again");
    let foreign = QemuConfig { ports: vec!["port7".to_owned()], ..world.config() };
    let foreign = QemuProvider::open(foreign, world.clock.clone()).unwrap();
    match foreign.attach(&ids[0]) {
        Err(ProviderError::AttachLimit(text)) => assert!(text.contains("no PCIe root port"), "{text}"),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_guest_that_does_not_release_it_is_asked_again_and_nothing_is_deleted() {
    if skip() {
        return;
    }
    let mut world = World::new(Unplug::Never, 1);
    let provider = world.provider();
    let id = world.created(&provider);
    provider.attach(&id).unwrap();
    assert_eq!(provider.detach(&id), Ok(Change::Changed));
    for _ in 0..3 {
        assert_eq!(state(&provider, &id), VolumeState::Detaching);
        assert_eq!(provider.detach(&id), Ok(Change::Identity));
        assert!(matches!(provider.delete(&id), Err(ProviderError::Conflict { .. })), "the guest may still use it");
        assert!(matches!(provider.attach(&id), Err(ProviderError::Conflict { .. })));
        world.clock.advance(Duration::from_secs(10));
    }
    // Another one finds no port, and says so.
    let other = world.created(&provider);
    assert!(matches!(provider.attach(&other), Err(ProviderError::AttachLimit(_))));
    world.machine.restart();
    assert_eq!(state(&provider, &id), VolumeState::Available, "a new QEMU has no disk of ours");
    for id in [id, other] {
        assert_eq!(provider.delete(&id), Ok(Change::Changed));
    }
    world.assert_empty(&provider);
}

#[test]
fn without_qemu_nothing_is_claimed_of_what_may_be_plugged_in() {
    if skip() {
        return;
    }
    let mut world = World::new(Unplug::AtOnce, 2);
    let provider = world.provider();
    let (plugged, idle) = (world.created(&provider), world.created(&provider));
    provider.attach(&plugged).unwrap();
    world.machine.kill();
    let unknown = |answer: ProviderError| {
        assert!(
            matches!(&answer, ProviderError::Transient(text) if text.contains("QEMU cannot be reached")),
            "{answer}"
        );
    };
    unknown(provider.describe(&plugged).unwrap_err());
    unknown(provider.attach(&plugged).unwrap_err());
    unknown(provider.detach(&plugged).unwrap_err());
    unknown(provider.delete(&plugged).unwrap_err());
    unknown(provider.list("k", "v").unwrap_err());
    unknown(provider.attach(&idle).unwrap_err());
    assert_eq!(state(&provider, &idle), VolumeState::Available, "what is not plugged in needs no QEMU");
    let third = world.created(&provider);
    for id in [&idle, &third] {
        assert_eq!(provider.delete(id), Ok(Change::Changed));
    }
    // Nor does a restart of ours.
    let provider = world.provider();
    unknown(provider.describe(&plugged).unwrap_err());
    world.machine.restart();
    assert_eq!(state(&provider, &plugged), VolumeState::Available);
    assert_eq!(provider.attach(&plugged), Ok(Change::Changed));
    detach(&provider, &plugged);
    provider.delete(&plugged).unwrap();
    world.assert_empty(&provider);
}

#[test]
fn a_qemu_that_hangs_is_an_error_that_may_pass() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 1);
    let config = QemuConfig { patience: Span(Duration::from_millis(300)), ..world.config() };
    let provider = QemuProvider::open(config, world.clock.clone()).unwrap();
    let id = world.created(&provider);
    provider.attach(&id).unwrap();
    world.machine.hang(true);
    match provider.detach(&id) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("has not answered for 0.3 s"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    world.machine.hang(false);
    let provider = world.provider();
    // The request may have reached it before it hung, or after.
    if state(&provider, &id) == VolumeState::Attached {
        detach(&provider, &id);
    }
    while state(&provider, &id) != VolumeState::Available {
        world.pass_time();
    }
    provider.delete(&id).unwrap();
    world.assert_empty(&provider);
}

#[test]
fn a_hundred_life_cycles_leave_nothing_behind() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 2);
    let count = std::env::var("SURGETANK_HOTPLUGS").ok().and_then(|text| text.parse().ok()).unwrap_or(HOTPLUGS);
    for _ in 0..count {
        let provider = world.provider();
        let id = world.created(&provider);
        assert_eq!(provider.attach(&id), Ok(Change::Changed));
        assert_eq!(state(&provider, &id), VolumeState::Attached);
        detach(&provider, &id);
        assert_eq!(provider.delete(&id), Ok(Change::Changed));
    }
    world.assert_empty(&world.provider());
    println!("{count} life cycles, nothing left");
}

/// Kills of the process that uses the provider.
const KILLS: u64 = 12;
/// For the child only: where QEMU and the volumes are.
const CHILD: &str = "SURGETANK_TEST_QEMU";

/// The child: life cycles until it is killed.
#[test]
#[ignore = "the child process of a_killed_service_leaves_nothing_behind"]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let directory = std::path::Path::new(&directory);
    let config = QemuConfig::new(directory.join("qmp"), directory.join("volumes"));
    let provider = QemuProvider::open(config, Arc::new(SystemClock)).unwrap();
    std::fs::write(directory.join("begun"), "").unwrap();
    // Bounded, should nobody kill it.
    for round in 0..100_000 {
        let id = provider.create(&request(&format!("{}-{round}", std::process::id()))).unwrap().0.id;
        // The one before it may hold a port for a moment.
        while provider.attach(&id).is_err() {}
        detach(&provider, &id);
        provider.delete(&id).unwrap();
    }
}

#[test]
fn a_killed_service_leaves_nothing_behind() {
    if skip() {
        return;
    }
    let world = World::new(Unplug::AtOnce, 2);
    let directory = world.machine.qmp().parent().unwrap().to_owned();
    let (mut parts, mut volumes) = (0, 0);
    for kill in 0..KILLS {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--test-threads=1"])
            .env(CHILD, &directory)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while std::fs::remove_file(directory.join("begun")).is_err() {
            assert_eq!(child.try_wait().unwrap(), None, "the child comes up");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(kill * 3517 % 20_000));
        assert_eq!(child.try_wait().unwrap(), None, "the child works until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        let provider = world.provider();
        parts += provider.parts().unwrap().len();
        // As the sweep does: what is there is detached, and deleted when it is available.
        loop {
            let listed = provider.list("k", "v").unwrap();
            if listed.is_empty() {
                break;
            }
            volumes += 1;
            for volume in listed {
                let _ = provider.detach(&volume.id);
                let _ = provider.delete(&volume.id);
            }
            world.pass_time();
        }
        world.assert_empty(&provider);
    }
    println!("{KILLS} kills: {parts} parts were left in QEMU by them, {volumes} looks until all was deleted");
}
