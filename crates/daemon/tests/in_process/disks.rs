//! Caching volumes that are disks of this machine and are found by their serial: ones that appear late, twice, never, or
//! as another disk. Loop devices stand for the disks, tables of our own for the kernel's.

#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::common::{Machine, Shape, eventually, pattern, status};
use surgetank_daemon::{Daemon, DevicePhase, Outlook, Overrides, Request};
use surgetank_device::discovery::Disks;
use surgetank_provider::local::{LocalConfig, LocalProvider};
use surgetank_provider::{
    Change, CreateVolume, DiskIdentity, Home, Lag, Provider, ProviderError, SystemClock, Transition, VolumeDescription,
    VolumeId, VolumeState,
};

const MIB: u64 = 1 << 20;
/// What the daemon rents, in bytes.
const SIZE: u64 = 32 * MIB;

/// How the disks of a guest appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appears {
    AtOnce,
    /// After this many further calls of the provider.
    Late(u32),
    Never,
    /// Two disks have the serial.
    Twice,
    /// The disk is larger than what was rented.
    Larger,
    /// Its serial is that of a disk that was there before.
    Before,
    /// Something is on it.
    Used,
}

/// A local provider whose volumes become disks of this machine when they are attached.
struct Plugging {
    local: LocalProvider,
    root: PathBuf,
    appears: Appears,
    plugged: Mutex<Vec<Plugged>>,
    /// A disk that was there before.
    before: Mutex<Option<Plugged>>,
}

/// A loop device that stands for a disk.
struct Plugged {
    id: VolumeId,
    device: String,
    /// Calls until it appears.
    calls_left: u32,
}

impl Drop for Plugged {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

fn attach_loop(image: &Path) -> Option<String> {
    let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
    made.status.success().then(|| String::from_utf8_lossy(&made.stdout).trim().to_owned())
}

impl Plugging {
    fn disks(&self) -> Disks {
        Disks::under(self.root.join("sys"), "/dev")
    }

    fn block(&self) -> PathBuf {
        self.root.join("sys/block")
    }

    /// Shows a disk in the tables.
    fn show(&self, plugged: &Plugged) {
        let name = plugged.device.strip_prefix("/dev/").unwrap();
        let place = self.block().join(name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("serial"), &plugged.id.0).unwrap();
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        let _ = symlink(format!("../../block/{name}"), self.root.join("sys/dev/block").join(number.trim()));
    }

    fn plug(&self, id: &VolumeId) {
        let image = self.local.describe(id).unwrap().device.unwrap();
        if self.appears == Appears::Larger {
            fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 * MIB).unwrap();
        }
        if self.appears == Appears::Used {
            use std::os::unix::fs::FileExt;
            fs::OpenOptions::new().write(true).open(&image).unwrap().write_all_at(b"mine", SIZE - 4).unwrap();
        }
        if self.appears == Appears::Before {
            return;
        }
        let calls_left = if let Appears::Late(calls) = self.appears { calls } else { 0 };
        let disks = if self.appears == Appears::Twice { 2 } else { 1 };
        for _ in 0..disks {
            let device = attach_loop(&image).expect("a loop device");
            let plugged = Plugged { id: id.clone(), device, calls_left };
            if calls_left == 0 && self.appears != Appears::Never {
                self.show(&plugged);
            }
            self.plugged.lock().unwrap().push(plugged);
        }
    }

    fn unplug(&self, id: &VolumeId) {
        self.plugged.lock().unwrap().retain(|plugged| {
            if plugged.id == *id {
                let _ = fs::remove_dir_all(self.block().join(plugged.device.strip_prefix("/dev/").unwrap()));
            }
            plugged.id != *id
        });
    }

    /// Disks vanish from the tables, and nobody has asked the provider for it.
    fn pull(&self) {
        for plugged in self.plugged.lock().unwrap().iter() {
            fs::remove_dir_all(self.block().join(plugged.device.strip_prefix("/dev/").unwrap())).unwrap();
        }
    }

    /// Says that its volumes are this disk.
    fn say_it_is(&self, disk: Plugged) {
        self.show(&disk);
        *self.before.lock().unwrap() = Some(disk);
    }

    /// They are back.
    fn push(&self) {
        self.plugged.lock().unwrap().iter().for_each(|plugged| self.show(plugged));
    }

    /// A disk that is late comes nearer.
    fn called(&self) {
        for plugged in self.plugged.lock().unwrap().iter_mut().filter(|plugged| plugged.calls_left > 0) {
            plugged.calls_left -= 1;
            if plugged.calls_left == 0 {
                self.show(plugged);
            }
        }
    }

    fn as_disk(&self, volume: VolumeDescription) -> VolumeDescription {
        let name = self.before.lock().unwrap().as_ref().map_or_else(|| volume.id.0.clone(), |disk| disk.id.0.clone());
        let disk = (volume.state == VolumeState::Attached).then_some(DiskIdentity::Serial(name));
        VolumeDescription { disk, ..volume }
    }
}

impl Provider for Plugging {
    fn home(&self) -> Home {
        Home::Disks
    }
    fn create_is_exclusive(&self) -> bool {
        self.local.create_is_exclusive()
    }
    fn lag(&self) -> Lag {
        self.local.lag()
    }
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.local.create(request)
    }
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        if transition == Transition::Detach {
            self.unplug(id);
        }
        let change = self.local.change_state(id, transition)?;
        if (transition, change) == (Transition::Attach, Change::Changed) {
            self.plug(id);
        }
        Ok(change)
    }
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.called();
        self.local.describe(id).map(|volume| self.as_disk(volume))
    }
    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        Ok(self.local.list(key, value)?.into_iter().map(|volume| self.as_disk(volume)).collect())
    }
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.local.set_tag(id, key, value)
    }
}

/// A disk of the right size, with nothing at its ends, and not in use.
fn somebodys(machine: &Machine) -> Plugged {
    let device = attach_loop(&machine.backing("before", SIZE)).expect("a loop device");
    Plugged { id: VolumeId("somebody's".to_owned()), device, calls_left: 0 }
}

/// A daemon over such a provider; `None` where there are no loop devices.
fn start(machine: &Machine, appears: Appears) -> Option<(Daemon, Arc<Plugging>)> {
    start_with(machine, appears, "throttle = false")
}

fn start_with(machine: &Machine, appears: Appears, section: &str) -> Option<(Daemon, Arc<Plugging>)> {
    let probe = machine.backing("probe", MIB);
    let Some(device) = attach_loop(&probe) else {
        eprintln!("skipped: no loop device can be had (needs root)");
        return None;
    };
    drop(Plugged { id: VolumeId(String::new()), device, calls_left: 0 });
    let shape = Shape {
        // It boosts when it is asked to, and not for what the test reads and writes.
        policy: Shape::default().policy.replace("\"20 ms\"", "\"200 ms\"")
            + "\nattach_timeout = \"500 ms\"\nforecast = false\nutilization_threshold = 1.0",
        device: section.to_owned(),
        ..Shape::default()
    };
    let config = machine.config(&[("data", "memory:64 MiB")], &shape);
    let root = machine.path("tables");
    for part in ["sys/block", "sys/dev/block"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    let local = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let provider = Plugging { local, root, appears, plugged: Mutex::default(), before: Mutex::default() };
    if appears == Appears::Before {
        provider.say_it_is(somebodys(machine));
    }
    let provider = Arc::new(provider);
    let disks = Some(provider.disks());
    let overrides = Overrides { provider: Some(provider.clone()), disks, ..Overrides::default() };
    Some((Daemon::start_with(config, overrides).unwrap(), provider))
}

fn boost(daemon: &Daemon) {
    daemon.handle(Request::boost("data")).unwrap();
}

/// A boost that finds its disk, with data that come back through the drain.
fn a_whole_life(appears: Appears) {
    let machine = Machine::new();
    let Some((daemon, provider)) = start(&machine, appears) else { return };
    let mut nbd = crate::common::connect(&machine, "data");
    for round in 0..3 {
        boost(&daemon);
        eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
        let name = provider.plugged.lock().unwrap()[0].device.clone();
        assert!(Path::new(&name).exists());
        nbd.write(round * MIB, &pattern(round, 3, MIB as usize)).unwrap();
        daemon.handle(Request::Drain { device: "data".into() }).unwrap();
        eventually("idle", || status(&daemon, "data").phase == DevicePhase::Idle);
        assert_eq!(nbd.read(round * MIB, MIB as usize).unwrap(), pattern(round, 3, MIB as usize));
        assert!(provider.plugged.lock().unwrap().is_empty(), "it was unplugged");
    }
    drop(daemon);
    assert_eq!(machine.rented(), 0);
}

/// A boost that finds no disk of its own: it is undone, the reason is told, and the device goes on without.
fn undone(appears: Appears, why: &str) {
    let machine = Machine::new();
    let Some((daemon, provider)) = start(&machine, appears) else { return };
    let mut nbd = crate::common::connect(&machine, "data");
    boost(&daemon);
    let until = Instant::now() + crate::common::TIMEOUT;
    let mut reason = String::new();
    while !reason.contains(why) {
        assert!(Instant::now() < until, "the reason is never told: {reason:?}");
        reason = status(&daemon, "data").reason.unwrap_or(reason);
        assert_ne!(status(&daemon, "data").phase, DevicePhase::Boost, "nothing is written to a disk that is not ours");
        nbd.write(0, &pattern(1, 2, 4096)).unwrap();
        assert_eq!(nbd.read(0, 4096).unwrap(), pattern(1, 2, 4096), "the device goes on");
    }
    eventually("everything is deleted", || {
        let idle = status(&daemon, "data").phase == DevicePhase::Idle;
        idle && machine.rented() == 0 && provider.plugged.lock().unwrap().is_empty()
    });
    drop(daemon);
    assert_eq!(machine.rented(), 0);
}

#[test]
fn a_disk_is_found_by_its_serial_used_and_unplugged() {
    a_whole_life(Appears::AtOnce);
}

#[test]
fn a_disk_that_appears_late_is_waited_for() {
    a_whole_life(Appears::Late(4));
}

#[test]
fn a_disk_that_never_appears_is_deleted() {
    undone(Appears::Never, "no disk with its serial has appeared");
}

#[test]
fn a_serial_that_two_disks_have_is_deleted() {
    undone(Appears::Twice, "both have the serial");
}

#[test]
fn a_disk_of_another_size_is_deleted() {
    undone(Appears::Larger, "bytes instead of");
}

#[test]
fn a_disk_that_was_there_before_is_not_the_volume() {
    undone(Appears::Before, "was in this machine before");
}

#[test]
fn a_disk_that_is_not_blank_is_not_the_volume() {
    undone(Appears::Used, "is not blank");
}

#[test]
fn a_disk_that_is_pulled_is_noticed_waited_for_and_used_again() {
    let machine = Machine::new();
    let Some((daemon, provider)) = start_with(&machine, Appears::AtOnce, "throttle = true") else { return };
    let mut nbd = crate::common::connect(&machine, "data");
    boost(&daemon);
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
    for block in 0..24 {
        nbd.write(block * MIB, &pattern(block, 3, MIB as usize)).unwrap();
    }
    provider.pull();
    let reason = || status(&daemon, "data").reason.unwrap_or_default();
    eventually("it is noticed and looked for", || reason().contains("its disk has not appeared"));
    assert_eq!((machine.rented(), status(&daemon, "data").lost_bytes), (1, 0));
    provider.push();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    for block in 0..24 {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 3, MIB as usize), "{block}");
    }
    drop(daemon);
}

#[test]
fn a_disk_that_is_pulled_is_not_replaced_by_another() {
    use std::os::unix::fs::MetadataExt;
    let machine = Machine::new();
    let Some((daemon, provider)) = start_with(&machine, Appears::AtOnce, "throttle = true") else { return };
    let mut nbd = crate::common::connect(&machine, "data");
    boost(&daemon);
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
    for block in 0..24 {
        nbd.write(block * MIB, &pattern(block, 3, MIB as usize)).unwrap();
    }
    provider.pull();
    provider.say_it_is(somebodys(&machine));
    let reason = || status(&daemon, "data").reason.unwrap_or_default();
    eventually("it is refused", || reason().contains("another disk or file than it was"));
    *provider.before.lock().unwrap() = None;
    assert_eq!(fs::metadata(machine.path("before")).unwrap().blocks(), 0, "it was written to");
    provider.push();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    for block in 0..24 {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 3, MIB as usize), "{block}");
    }
}

/// A file system on a loop device, until it is dropped.
struct Mounted {
    place: PathBuf,
    _disk: Plugged,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.place).status();
    }
}

fn mounted(machine: &Machine) -> Option<(Mounted, String)> {
    let image = machine.backing("image", 16 * MIB);
    let device = attach_loop(&image)?;
    let disk = Plugged { id: VolumeId(String::new()), device: device.clone(), calls_left: 0 };
    let place = machine.path("place");
    fs::create_dir(&place).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", &device]).status().is_ok_and(|status| status.success());
    let is_mounted =
        made && Command::new("mount").arg(&device).arg(&place).status().is_ok_and(|status| status.success());
    is_mounted.then(|| (Mounted { place, _disk: disk }, device))
}

#[test]
fn directories_of_the_daemon_on_its_own_device_are_refused() {
    let machine = Machine::new();
    let Some((mounted, device)) = mounted(&machine) else {
        eprintln!("skipped: nothing can be mounted (needs root)");
        return;
    };
    // As a daemon leaves it that was killed.
    fs::create_dir(machine.path("run")).unwrap();
    symlink(&device, machine.path("run/data")).unwrap();
    let config = || machine.config(&[("data", "memory:16 MiB")], &Shape::default());
    let state = surgetank_daemon::Config { state_directory: mounted.place.join("state"), ..config() };
    let mut volumes = config();
    volumes.providers.insert("local", Arc::new(LocalConfig::in_directory(mounted.place.join("volumes"))));
    for (config, what) in [(state, "the state directory"), (volumes, "the directory of the local provider")] {
        let error = Daemon::start(config).err().unwrap().to_string();
        assert!(error.starts_with(what) && error.contains("the device data that this daemon serves"), "{error}");
    }
    assert_eq!(fs::read_dir(&mounted.place).unwrap().count(), 1, "nothing but lost+found");
    Daemon::start(config()).unwrap().stop();
}

#[test]
fn a_check_refuses_a_mounted_disk_as_a_start_does() {
    let machine = Machine::new();
    let Some((mounted, device)) = mounted(&machine) else {
        eprintln!("skipped: nothing can be mounted (needs root)");
        return;
    };
    let shape = Shape { caching: "initial_size = \"16 MiB\"".to_owned(), ..Shape::default() };
    let config = machine.config(&[("data", &device)], &shape);
    let refused = Outlook::of(&config).refused;
    let place = mounted.place.display();
    assert!(refused[0].contains(&format!("{device} is mounted on {place}; unmount it first")), "{refused:?}");
    let error = Daemon::start(config.clone()).err().unwrap().to_string();
    assert_eq!(refused, [format!("device data: {error}")]);
    drop(mounted);
}
