//! The daemon is killed without warning on the paths of a caching volume that fails: dropped clean, lost and read back, lost
//! and discarded. It starts again, also with a volume that will never be read again: nothing is lost that was not discarded,
//! the volume is deleted, and the device boosts again.
//!
//! The daemon runs in a child process, at the test `daemon_in_a_child` of this module; a file tells it what the caching volumes suffer.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::child::Running;
use crate::common::failing::{on_caches, slow_and_waits};
use crate::common::{MIB, Machine, Nbd, eventually, fill, images, pattern};
use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Request};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Faults};

const BLOCKS: u64 = 8;
/// For the child: the directory of its machine.
const MACHINE: &str = "SURGETANK_TEST_MACHINE";
const CRASH_AT: &str = "SURGETANK_CRASH_AT";

/// What the caching volumes suffer, as the file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suffers {
    Nothing,
    /// Writes fail: everything is drained, and the volume is dropped.
    Writes,
    /// Nothing can be read.
    Reads,
    /// It is pulled.
    Pulled,
}

impl Suffers {
    const ALL: [Self; 4] = [Self::Nothing, Self::Writes, Self::Reads, Self::Pulled];

    fn apply(self, faults: &Faults) {
        faults.clear();
        if self != Self::Pulled {
            faults.restore();
        }
        match self {
            Self::Nothing => {}
            Self::Writes => drop(faults.add(Rule::always(Kinds::Writes, Effect::Fail(Failure::Io)))),
            Self::Reads => drop(faults.add(Rule::always(Kinds::Reads, Effect::Fail(Failure::Io)))),
            Self::Pulled => faults.vanish(),
        }
    }
}

/// Not a test by itself: the daemon that the others kill.
#[test]
fn daemon_in_a_child() {
    let Some(root) = std::env::var_os(MACHINE).map(PathBuf::from) else { return };
    let faults = Faults::new(1).unwrap();
    let follow = {
        let (faults, file) = (faults.clone(), root.join("suffers"));
        let mut now = None;
        move || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let wanted = Suffers::ALL.into_iter().find(|suffers| format!("{suffers:?}") == text);
            if let Some(wanted) = wanted.filter(|wanted| now != Some(*wanted)) {
                wanted.apply(&faults);
                std::fs::write(file.with_extension("applied"), &text).unwrap();
                now = Some(wanted);
            }
        }
    };
    let mut following = follow;
    following();
    std::thread::spawn(move || {
        loop {
            following();
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let config = Config::load(&root.join("config.toml")).unwrap();
    let daemon = Daemon::start_with(config, on_caches(&faults)).unwrap_or_else(|error| panic!("{error}"));
    while !daemon.wait_stop(Duration::from_secs(600)) {}
    daemon.stop();
}

struct Trial {
    machine: Machine,
    context: String,
}

impl Trial {
    fn new(context: &str) -> Self {
        let machine = Machine::new();
        let backing = machine.backing("backing", 32 << 20);
        let text = machine.config_text(&[("data", backing.to_str().unwrap())], &slow_and_waits("1 s"));
        std::fs::write(machine.path("config.toml"), text).unwrap();
        let trial = Self { machine, context: context.to_owned() };
        std::fs::write(trial.machine.path("suffers"), format!("{:?}", Suffers::Nothing)).unwrap();
        trial
    }

    fn start(&self, crash_at: Option<&str>) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash_losses::daemon_in_a_child", "--nocapture", "--test-threads=1"]);
        command.env(MACHINE, self.machine.path("")).env_remove(CRASH_AT);
        if let Some(point) = crash_at {
            command.env(CRASH_AT, point);
        }
        Running::spawn(&self.machine, command)
    }

    /// What the volumes suffer from now on; waits until a running child knows, or has died of it.
    fn suffer(&self, suffers: Suffers, running: Option<&mut Running>) {
        let text = format!("{suffers:?}");
        // Replaced whole: the child must not read half a word.
        std::fs::write(self.machine.path("suffers.new"), &text).unwrap();
        std::fs::rename(self.machine.path("suffers.new"), self.machine.path("suffers")).unwrap();
        let applied = self.machine.path("suffers.applied");
        if let Some(running) = running {
            let there = || std::fs::read_to_string(&applied).is_ok_and(|there| there == text);
            eventually("the faults are there", || there() || running.dead());
        }
    }

    /// A boost with data that are not all on the backing volume yet.
    fn dirty(&self, running: &mut Running) {
        let mut nbd = running.nbd().unwrap();
        running.client.ask(&Request::boost("data")).unwrap();
        eventually("boost", || running.phase() == Some(DevicePhase::Boost));
        fill(&mut nbd, BLOCKS, 3);
        nbd.flush().unwrap();
    }

    fn killed(&self, running: &mut Running, meanwhile: impl Fn(&Running)) {
        eventually(&format!("{}: it is passed", self.context), || {
            meanwhile(running);
            running.dead()
        });
        assert!(running.was_killed(), "{}: the daemon ended otherwise: {}", self.context, self.machine.log());
    }

    /// The volume is deleted and the device boosts again. `whole`: nothing was discarded.
    fn goes_on(&self, whole: bool, meanwhile: impl Fn(&Running, &DeviceStatus)) {
        let context = &self.context;
        let mut running = self.start(None);
        let mut nbd = running.nbd().unwrap_or_else(|| panic!("{context}: it does not start: {}", self.machine.log()));
        eventually(&format!("{context}: the volume is deleted"), || {
            let status = running.client.status().unwrap().devices.remove(0);
            meanwhile(&running, &status);
            status.phase == DevicePhase::Idle && self.machine.rented() == 0
        });
        read_back(&mut nbd, whole, context);
        self.suffer(Suffers::Nothing, Some(&mut running));
        eventually(&format!("{context}: it boosts again"), || {
            let _ = running.client.ask(&Request::boost("data"));
            running.phase() == Some(DevicePhase::Boost)
        });
        running.client.ask(&Request::Drain { device: "data".into() }).unwrap();
        eventually(&format!("{context}: it ends"), || running.phase() == Some(DevicePhase::Idle));
        assert_eq!(self.machine.rented(), 0, "{context}");
        read_back(&mut nbd, whole, context);
        running.stop();
        if whole {
            self.check_file(&self.machine.path("backing"));
        }
    }

    fn check_file(&self, backing: &Path) {
        let bytes = std::fs::read(backing).unwrap();
        for block in 0..BLOCKS {
            let there = &bytes[(block * MIB) as usize..((block + 1) * MIB) as usize];
            assert!(there == pattern(block, 3, MIB as usize), "{}: block {block} of the backing volume", self.context);
        }
    }
}

fn read_back(nbd: &mut Nbd, whole: bool, context: &str) {
    for block in 0..BLOCKS {
        let bytes = nbd.read(block * MIB, MIB as usize).unwrap_or_else(|error| panic!("{context}: {block}: {error}"));
        assert!(!whole || bytes == pattern(block, 3, MIB as usize), "{context}: block {block} is not what was written");
    }
}

fn detach_with_loss(running: &Running) {
    let _ = running.client.ask(&Request::Detach { device: "data".into(), accept_loss: true });
}

/// What a volume passes that holds nothing any more, from the owner record on that says so (which of them that is), and
/// whether this is on record by then: nothing on the volume is needed any more.
fn deleted(record: u32) -> impl Iterator<Item = (String, bool)> {
    let recorded = [
        "dropped:before",
        "release:after",
        "clean:before",
        "clean:after",
        "detach:before",
        "detach:after",
        "delete:before",
        "delete:after",
    ];
    let owner = [("owner:before", false), ("owner:after", true)];
    let owner = owner.map(|(point, recorded)| (format!("{point}:{record}"), recorded));
    let recorded = ["owner-untag:before"].into_iter().chain(recorded).map(|point| (point.to_owned(), true));
    owner.into_iter().chain(recorded)
}

/// One that fails while everything on it can be drained.
#[test]
fn a_kill_while_a_failed_volume_is_dropped_loses_nothing_and_leaves_nothing() {
    for (point, recorded) in deleted(2).chain([("forget:before".to_owned(), true)]) {
        let trial = Trial::new(&format!("dropped, {point}"));
        let mut running = trial.start(Some(&point));
        trial.dirty(&mut running);
        trial.suffer(Suffers::Writes, Some(&mut running));
        let nbd = std::cell::RefCell::new(running.nbd());
        trial.killed(&mut running, |_| {
            if let Some(nbd) = &mut *nbd.borrow_mut() {
                let _ = nbd.write(16 * MIB, &pattern(16, 3, 4096));
            }
        });
        // What has not been recorded is read back once more: then it must be readable.
        trial.suffer(if recorded { Suffers::Reads } else { Suffers::Nothing }, None);
        trial.goes_on(true, |running, _| drop(running.client.ask(&Request::Drain { device: "data".into() })));
    }
}

/// What a volume passes that vanishes, is lost, comes back and is read back.
const RESTORED: &[&str] = &[
    "gone:before",
    "gone:after",
    "owner:before:2",
    "owner:after:2",
    "lost:before",
    "lost:after",
    "restore:before",
    "restore:after",
    "owner:before:3",
    "owner-untag:before",
    "owner:after:3",
    "dropped:before",
    "release:after",
    "clean:before",
    "clean:after",
    "detach:after",
    "delete:after",
];

#[test]
fn a_kill_while_a_lost_volume_is_read_back_loses_nothing_and_leaves_nothing() {
    for (index, point) in RESTORED.iter().enumerate() {
        let trial = Trial::new(&format!("restored, {point}"));
        let mut running = trial.start(Some(point));
        trial.dirty(&mut running);
        trial.suffer(Suffers::Pulled, Some(&mut running));
        if index >= RESTORED.iter().position(|point| *point == "restore:before").unwrap() {
            eventually("lost", || running.client.status().is_ok_and(|status| status.devices[0].lost_bytes > 0));
            trial.suffer(Suffers::Nothing, Some(&mut running));
        }
        trial.killed(&mut running, |_| ());
        // From the record on it need not be readable.
        let recorded = RESTORED.iter().position(|point| *point == "owner-untag:before").unwrap() <= index;
        trial.suffer(if recorded { Suffers::Reads } else { Suffers::Nothing }, None);
        trial.goes_on(true, |_, _| ());
    }
}

/// What a volume passes that is waited for and put back.
#[test]
fn a_kill_while_a_volume_is_put_back_loses_nothing_and_leaves_nothing() {
    for point in ["gone:after", "returned:before", "returned:after"] {
        let trial = Trial::new(&format!("put back, {point}"));
        let text = std::fs::read_to_string(trial.machine.path("config.toml")).unwrap();
        std::fs::write(trial.machine.path("config.toml"), text.replace("= \"1 s\"", "= \"1 min\"")).unwrap();
        let mut running = trial.start(Some(point));
        trial.dirty(&mut running);
        trial.suffer(Suffers::Pulled, Some(&mut running));
        let told = |status: &DeviceStatus| status.reason.as_ref().is_some_and(|why| why.contains("has been gone"));
        eventually("gone", || running.client.status().map_or(true, |status| told(&status.devices[0])));
        trial.suffer(Suffers::Nothing, Some(&mut running));
        trial.killed(&mut running, |_| ());
        trial.goes_on(true, |_, _| ());
    }
}

/// One that is kept for want of a proof, and that the user discards; from the record on nobody is asked again.
#[test]
fn a_kill_while_what_is_kept_is_discarded_leaves_nothing() {
    let points = ["discard-proof:before", "discard-proof:after", "detach:before", "detach:after", "delete:before"];
    let is_kept = |status: &DeviceStatus| status.reason.as_ref().is_some_and(|why| why.contains("is not deleted"));
    for (index, point) in points.iter().enumerate() {
        let (trial, recorded) = (Trial::new(&format!("kept, {point}")), index > 0);
        let mut running = trial.start(None);
        trial.dirty(&mut running);
        running.kill();
        // As a build left it that did not write down which attachment has ended; and nothing tells what is on the volume.
        std::fs::write(trial.machine.path("state/data/owner.json"), "{\"version\": 1, \"owner\": \"backing\"}")
            .unwrap();
        let image = images(&trial.machine.path("volumes")).pop().unwrap();
        std::fs::OpenOptions::new().write(true).open(image).unwrap().write_all_at(&[0; 8192], 0).unwrap();
        let mut running = trial.start(Some(point));
        trial.killed(&mut running, |running| {
            if running.client.status().is_ok_and(|status| is_kept(&status.devices[0])) {
                detach_with_loss(running);
            }
        });
        trial.goes_on(false, |running, status| {
            assert!(!recorded || !is_kept(status), "{point}: it was discarded: {:?}", status.reason);
            if is_kept(status) {
                detach_with_loss(running);
            }
        });
    }
}

/// One whose loss is accepted; from the record on it is not asked again.
#[test]
fn a_kill_while_a_loss_is_accepted_leaves_nothing() {
    let begins = ["accept-loss:before", "accept-loss:after"].map(|point| (point.to_owned(), false));
    for (point, recorded) in begins.into_iter().chain(deleted(3)).chain([("forget:after".to_owned(), true)]) {
        let trial = Trial::new(&format!("accepted, {point}"));
        let mut running = trial.start(Some(&point));
        trial.dirty(&mut running);
        trial.suffer(Suffers::Pulled, Some(&mut running));
        trial.killed(&mut running, |running| {
            if running.client.status().is_ok_and(|status| status.devices[0].lost_bytes > 0) {
                detach_with_loss(running);
            }
        });
        trial.suffer(Suffers::Pulled, None);
        trial.goes_on(false, |running, status| {
            assert!(status.lost_bytes == 0 || !recorded, "{point}: the loss was accepted: {:?}", status.reason);
            if status.lost_bytes > 0 {
                detach_with_loss(running);
            }
        });
    }
}
