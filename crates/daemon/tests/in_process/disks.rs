//! Caching volumes that are disks of this machine and are found by their serial, their name or their number: ones that appear late,
//! twice, never, or as another disk. Loop devices stand for the disks, tables of our own for the kernel's.

#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::common::tables::{Loop, Tables};
use crate::common::{Machine, Shape, eventually, pattern, status};
use surgetank_daemon::{Config, Daemon, DevicePhase, Outlook, Overrides, Request};
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

/// By what they are told from one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Serial,
    /// As Google's SCSI disks.
    Name,
    /// As Azure's SCSI disks: the least number that is free.
    Lun,
}

const EACH: [By; 3] = [By::Serial, By::Name, By::Lun];

/// A local provider whose volumes become disks of this machine when they are attached.
struct Plugging {
    local: LocalProvider,
    tables: Tables,
    by: By,
    appears: Mutex<Appears>,
    plugged: Mutex<Vec<Plugged>>,
    /// A disk that was there before.
    before: Mutex<Option<Plugged>>,
}

struct Plugged {
    id: VolumeId,
    disk: Loop,
    /// Calls until it appears.
    calls_left: u32,
}

impl Plugging {
    fn appears(&self) -> Appears {
        *self.appears.lock().unwrap()
    }

    /// What tells a disk of this name.
    fn identity(&self, name: &VolumeId) -> DiskIdentity {
        match self.by {
            By::Serial => DiskIdentity::Serial(name.0.clone()),
            By::Name => DiskIdentity::Name(name.0.clone()),
            By::Lun => DiskIdentity::Lun(0),
        }
    }

    fn show(&self, plugged: &Plugged) {
        self.tables.show(&plugged.disk, &self.identity(&plugged.id));
    }

    fn plug(&self, id: &VolumeId) {
        let image = self.local.describe(id).unwrap().device.unwrap();
        let appears = self.appears();
        if appears == Appears::Larger {
            fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 * MIB).unwrap();
        }
        if appears == Appears::Used {
            use std::os::unix::fs::FileExt;
            fs::OpenOptions::new().write(true).open(&image).unwrap().write_all_at(b"mine", SIZE - 4).unwrap();
        }
        if appears == Appears::Before {
            return;
        }
        let calls_left = if let Appears::Late(calls) = appears { calls } else { 0 };
        let disks = if appears == Appears::Twice { 2 } else { 1 };
        for _ in 0..disks {
            let disk = Loop::over(&image).expect("a loop device");
            let plugged = Plugged { id: id.clone(), disk, calls_left };
            if calls_left == 0 && appears != Appears::Never {
                self.show(&plugged);
            }
            self.plugged.lock().unwrap().push(plugged);
        }
    }

    fn unplug(&self, id: &VolumeId) {
        self.plugged.lock().unwrap().retain(|plugged| {
            if plugged.id == *id {
                self.tables.hide(&plugged.disk);
            }
            plugged.id != *id
        });
    }

    /// Disks vanish from the tables, and nobody has asked the provider for it.
    fn pull(&self) {
        self.plugged.lock().unwrap().iter().for_each(|plugged| self.tables.hide(&plugged.disk));
    }

    /// Says that its volumes are this disk.
    fn say_it_is(&self, disk: Plugged) {
        self.show(&disk);
        *self.before.lock().unwrap() = Some(disk);
    }

    /// The disk of which it said so leaves the machine.
    fn say_no_more(&self) {
        if let Some(before) = self.before.lock().unwrap().take() {
            self.tables.hide(&before.disk);
        }
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
        let name = self.before.lock().unwrap().as_ref().map_or_else(|| volume.id.clone(), |disk| disk.id.clone());
        let disk = (volume.state == VolumeState::Attached).then(|| self.identity(&name));
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
    let disk = Loop::over(&machine.backing("before", SIZE)).expect("a loop device");
    Plugged { id: VolumeId("somebody's".to_owned()), disk, calls_left: 0 }
}

/// A daemon over such a provider; `None` where there are no loop devices.
fn start(machine: &Machine, by: By, appears: Appears) -> Option<(Daemon, Arc<Plugging>)> {
    start_with(machine, by, appears, "throttle = false")
}

fn start_with(machine: &Machine, by: By, appears: Appears, section: &str) -> Option<(Daemon, Arc<Plugging>)> {
    let (config, provider) = machine_with(machine, by, appears, section)?;
    Some((Daemon::start_with(config, overrides(&provider)).unwrap(), provider))
}

fn overrides(provider: &Arc<Plugging>) -> Overrides {
    Overrides { provider: Some(provider.clone()), disks: Some(provider.tables.disks()), ..Overrides::default() }
}

fn machine_with(machine: &Machine, by: By, appears: Appears, section: &str) -> Option<(Config, Arc<Plugging>)> {
    let probe = machine.backing("probe", MIB);
    if Loop::over(&probe).is_none() {
        eprintln!("skipped: no loop device can be had (needs root)");
        return None;
    }
    // Where it is waited for in vain, not for long.
    let patience = if matches!(appears, Appears::AtOnce | Appears::Late(_)) { "2 min" } else { "500 ms" };
    let shape = Shape {
        // It boosts when it is asked to, and not for what the test reads and writes.
        policy: Shape::default().policy.replace("\"20 ms\"", "\"200 ms\"")
            + &format!("\nattach_timeout = \"{patience}\"\nforecast = false\nutilization_threshold = 1.0"),
        device: section.to_owned(),
        ..Shape::default()
    };
    let backing = machine.backing("backing", 64 * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &shape);
    let tables = Tables::new(machine.path("tables"));
    let local = LocalProvider::open(crate::common::local(&config), Arc::new(SystemClock)).unwrap();
    let provider = Plugging {
        local,
        tables,
        by,
        appears: Mutex::new(appears),
        plugged: Mutex::default(),
        before: Mutex::default(),
    };
    if appears == Appears::Before {
        provider.say_it_is(somebodys(machine));
    }
    Some((config, Arc::new(provider)))
}

fn boost(daemon: &Daemon) {
    daemon.handle(Request::boost("data")).unwrap();
}

/// A boost that finds its disk, with data that come back through the drain.
fn a_whole_life(by: By, appears: Appears) {
    let machine = Machine::new();
    let Some((daemon, provider)) = start(&machine, by, appears) else { return };
    let mut nbd = crate::common::connect(&machine, "data");
    for round in 0..3 {
        boost(&daemon);
        eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
        assert!(provider.plugged.lock().unwrap()[0].disk.device.exists());
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
fn undone(by: By, appears: Appears, why: &str) {
    let machine = Machine::new();
    let Some((daemon, provider)) = start(&machine, by, appears) else { return };
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
fn a_disk_is_found_by_its_serial_its_name_or_its_number_used_and_unplugged() {
    EACH.into_iter().for_each(|by| a_whole_life(by, Appears::AtOnce));
}

#[test]
fn a_disk_that_appears_late_is_waited_for() {
    EACH.into_iter().for_each(|by| a_whole_life(by, Appears::Late(4)));
}

#[test]
fn a_disk_that_never_appears_is_deleted() {
    undone(By::Serial, Appears::Never, "no disk with its serial has appeared");
}

#[test]
fn a_serial_a_name_or_a_number_that_two_disks_have_is_deleted() {
    for (by, what) in EACH.into_iter().zip(["the serial", "the name", "the logical unit"]) {
        undone(by, Appears::Twice, &format!("both have {what}"));
    }
}

#[test]
fn a_disk_of_another_size_is_deleted() {
    undone(By::Serial, Appears::Larger, "bytes instead of");
}

#[test]
fn a_disk_that_was_there_before_is_not_the_volume() {
    EACH.into_iter().for_each(|by| undone(by, Appears::Before, "was in this machine before"));
}

#[test]
fn a_disk_that_is_not_blank_is_not_the_volume() {
    EACH.into_iter().for_each(|by| undone(by, Appears::Used, "is not blank"));
}

#[test]
fn a_disk_that_is_pulled_is_noticed_waited_for_and_used_again() {
    let machine = Machine::new();
    let Some((daemon, provider)) = start_with(&machine, By::Serial, Appears::AtOnce, "throttle = true") else { return };
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
    let Some((daemon, provider)) = start_with(&machine, By::Serial, Appears::AtOnce, "throttle = true") else { return };
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
    provider.say_no_more();
    assert_eq!(fs::metadata(machine.path("before")).unwrap().blocks(), 0, "it was written to");
    provider.push();
    eventually("it is deleted", || machine.rented() == 0 && status(&daemon, "data").phase == DevicePhase::Idle);
    for block in 0..24 {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 3, MIB as usize), "{block}");
    }
}

/// The volume stays attached while the daemon is away, and another disk has its name or its number when it comes back.
#[test]
fn a_disk_that_has_taken_a_name_or_a_number_is_not_written_to() {
    use std::os::unix::fs::MetadataExt;
    for by in [By::Name, By::Lun] {
        let machine = Machine::new();
        let Some((config, provider)) = machine_with(&machine, by, Appears::AtOnce, "throttle = true") else { return };
        let daemon = Daemon::start_with(config.clone(), overrides(&provider)).unwrap();
        let mut nbd = crate::common::connect(&machine, "data");
        boost(&daemon);
        eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
        for block in 0..24 {
            nbd.write(block * MIB, &pattern(block, 3, MIB as usize)).unwrap();
        }
        nbd.flush().unwrap();
        daemon.stop();
        assert_eq!(machine.rented(), 1, "what it has is needed");
        provider.pull();
        provider.say_it_is(somebodys(&machine));
        let daemon = Daemon::start_with(config, overrides(&provider)).unwrap();
        let reason = || status(&daemon, "data").reason.unwrap_or_default();
        eventually("it is refused", || reason().contains("does not bear the epoch"));
        provider.say_no_more();
        assert_eq!(fs::metadata(machine.path("before")).unwrap().blocks(), 0, "{by:?}: it was written to");
        provider.push();
        // Requests wait until it is read back.
        let mut nbd = crate::common::connect(&machine, "data");
        for block in 0..24 {
            assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 3, MIB as usize), "{block}");
        }
        drop(daemon);
    }
}

/// A file system on a loop device, until it is dropped.
struct Mounted {
    place: PathBuf,
    _disk: Loop,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.place).status();
    }
}

fn mounted(machine: &Machine) -> Option<(Mounted, String)> {
    let image = machine.backing("image", 16 * MIB);
    let disk = Loop::over(&image)?;
    let device = disk.device.to_str().unwrap().to_owned();
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
