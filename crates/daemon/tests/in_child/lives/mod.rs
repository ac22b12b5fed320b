//! A group of devices whose daemon lives for a few tenths of a second at a time.

pub mod ground;
pub mod ledger;
pub mod log;
pub mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use surgetank_cache::Owner;
use surgetank_daemon::config::Timeouts;
use surgetank_daemon::journal::Journal;
use surgetank_daemon::owner::OwnerStore;
use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Overrides, Request};
use surgetank_model::random::Random;
use surgetank_provider::{CreateVolume, Provider, ProviderError, Tags, VolumeDescription, tag};
use surgetank_rental::RentalRecord;

use crate::cloud::Tenant;
use crate::common::child::TABLES;
use crate::common::tables::Tables;
use crate::common::{Directory, Machine, Nbd, TIMEOUT, eventually};
use crate::hypervisor::Plugs;
use ground::Pace;
use ledger::Ledger;
use log::{Contents, Log, Writer};
use witness::{TOKEN, Witness};

const GROUP: &str = "SURGETANK_TEST_GROUP";
const SEED: &str = "SURGETANK_TEST_SEED";
const MODE: &str = "SURGETANK_TEST_MODE";
const PLANT: &str = "SURGETANK_PLANT";
const CRASH_AT: &str = "SURGETANK_CRASH_AT";
/// What a child says when something is left.
const LEFT: &str = "left";

/// What a daemon is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Faults, but each call is carried out once at most, and lists are true.
    Strict,
    /// All faults.
    Wild,
    /// No faults: until nothing is rented.
    Settle,
    /// Faults as in `Strict`, no kill: three boosts a device, then the bill is compared.
    Bill,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Strict, Self::Wild, Self::Settle, Self::Bill];
}

/// How a daemon that was not killed ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing is rented.
    Settled,
    /// What is left or wrong.
    Left(String),
}

fn name(index: usize) -> String {
    format!("d{index:02}")
}

/// The backing volume of a device.
fn backing(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}.backing"))
}

/// State files are synced for every step: in memory that costs nothing.
fn machine() -> Machine {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Machine { directory: Directory::Temporary(directory.unwrap()) }
}

/// A directory with everything: state, volumes, the log.
pub struct Group {
    machine: Machine,
    bug: Option<String>,
    foreign: Vec<VolumeDescription>,
    pace: Pace,
}

impl Group {
    /// Rents from the local provider. `bug`: one to plant.
    pub fn new(bug: Option<&str>) -> Self {
        Self::made(bug, "local", ground::of_files)
    }

    /// Rents from OpenStack.
    pub fn of(tenant: &Tenant) -> Self {
        Self::of_a_cloud("openstack", None, |_| ground::section(tenant))
    }

    /// Rents from a fake of this cloud, whose disks are in tables of their own. `SURGETANK_PLANT` plants a bug, which has to be found.
    pub fn at<F: Plugs>(cloud: &str, fake: &F) -> Self {
        let bug = std::env::var(PLANT).ok();
        let group = Self::of_a_cloud(cloud, bug.as_deref(), |directory| fake.section(directory));
        drop(group.tables());
        group
    }

    fn of_a_cloud(cloud: &str, bug: Option<&str>, section: impl Fn(&Path) -> String) -> Self {
        let text = |machine: &Machine, devices: &[(&str, &str)]| {
            ground::of_a_cloud(machine, cloud, &section(machine.directory.path()), devices)
        };
        Self::made(bug, cloud, text)
    }

    fn made(bug: Option<&str>, provider: &str, text: impl Fn(&Machine, &[(&str, &str)]) -> String) -> Self {
        let (machine, pace) = (machine(), Pace::at(provider));
        let names: Vec<String> = (0..pace.devices).map(name).collect();
        let backings = names.iter().map(|name| backing(machine.directory.path(), name).display().to_string());
        let backings: Vec<String> = backings.collect();
        for path in &backings {
            std::fs::File::create(path).unwrap().set_len(4 << 20).unwrap();
        }
        let devices: Vec<(&str, &str)> =
            names.iter().map(String::as_str).zip(backings.iter().map(String::as_str)).collect();
        std::fs::write(machine.path("config.toml"), text(&machine, &devices)).unwrap();
        let mut group = Self { machine, bug: bug.map(str::to_owned), foreign: Vec::new(), pace };
        group.foreign = group.settlers();
        group
    }

    /// Volumes that are none of ours: of another daemon, even for a device of the same name, and of nobody.
    fn settlers(&self) -> Vec<VolumeDescription> {
        let provider = self.provider();
        let foreign = |token: &str, tags: &[(&str, &str)]| {
            let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Tags>();
            let request = CreateVolume {
                token: token.to_owned(),
                volume_type: self.pace.volume_type.to_owned(),
                size: self.pace.smallest,
                tags,
            };
            let mut made = None;
            // A busy machine's cloud may answer late.
            eventually("a volume that is none of ours", || {
                made = provider.create(&request).ok();
                made.is_some()
            });
            made.unwrap().0
        };
        let theirs = "5".repeat(32);
        vec![
            foreign("x", &[(tag::OWNER, &theirs), (tag::DEVICE, "d00"), (TOKEN, "x")]),
            foreign("y", &[(tag::DEVICE, "d01")]),
            foreign("z", &[]),
        ]
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    /// What the kernel tells of disks to the daemons.
    pub fn tables(&self) -> Tables {
        Tables::new(self.path(TABLES))
    }

    /// What becomes of the bytes of volumes that are deleted.
    pub fn ledger(&self) -> Ledger {
        Ledger::new(self.machine.directory.path(), self.pace.devices)
    }

    fn config(&self) -> Config {
        load(self.machine.directory.path())
    }

    /// The provider as it is, while no daemon runs.
    fn provider(&self) -> Arc<dyn Provider> {
        ground::open(&self.config())
    }

    fn ours(&self) -> Vec<VolumeDescription> {
        let Ok(owner) = std::fs::read_to_string(self.machine.path("state/owner-id")) else { return Vec::new() };
        self.provider().list(tag::OWNER, owner.trim()).unwrap()
    }

    fn rentals(&self) -> Vec<(String, RentalRecord)> {
        let of = |index| {
            let directory = self.machine.path("state").join(name(index));
            let journal = Journal::open(&directory).unwrap();
            Some((name(index), journal.state().rental.clone()?))
        };
        (0..self.pace.devices).filter_map(of).collect()
    }

    pub fn log(&self) -> Log {
        Log::read(&self.machine.path("calls"))
    }

    fn start(&self, mode: Mode, seed: u64, crash_at: Option<String>) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "lifecycles::daemon_in_a_child", "--nocapture", "--test-threads=1"]);
        command.env(GROUP, self.machine.directory.path()).env(SEED, seed.to_string()).env(MODE, format!("{mode:?}"));
        command.env_remove(CRASH_AT).env_remove(PLANT);
        command.envs(crash_at.map(|point| (CRASH_AT, point)));
        command.envs(self.bug.as_ref().map(|bug| (PLANT, bug)));
        let log = std::fs::File::create(self.machine.path("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// A daemon that is killed at some point: at a random moment, or between two calls.
    pub fn generation(&self, mode: Mode, seed: u64) {
        const POINTS: &[&str] = &[
            "create:before",
            "create:after",
            "created:after",
            "attach:before",
            "attach:after",
            "adopt:before",
            "adopt:after",
            "adopted:after",
            "owner:before",
            "owner:after",
            "owner-untag:before",
            "release:before",
            "release:after",
            "clean:before",
            "clean:after",
            "detach:before",
            "detach:after",
            "delete:before",
            "delete:after",
            "forget:before",
            "forget:after",
            "recover:before",
            "recover:after",
        ];
        let mut random = Random::from_seed(seed);
        let point = POINTS[random.below(POINTS.len() as u64) as usize];
        let crash_at = random.chance(0.8).then(|| format!("{point}:{}", 1 + random.below(self.pace.passes)));
        let (least, most) = self.pace.generation;
        let most = least + Duration::from_millis(random.below((most - least).as_millis() as u64));
        let logged = || std::fs::metadata(self.machine.path("calls")).map_or(0, |file| file.len());
        let before = logged();
        let mut child = self.start(mode, seed, crash_at);
        // From its first call that is logged on: on a busy machine it begins late.
        let (begun, mut called) = (Instant::now(), None);
        let mut ended = None;
        while ended.is_none() && called.unwrap_or(begun).elapsed() < if called.is_some() { most } else { TIMEOUT } {
            std::thread::sleep(Duration::from_millis(5));
            ended = child.try_wait().unwrap();
            called = called.or_else(|| (logged() > before).then(Instant::now));
        }
        let _ = child.kill();
        let status = child.wait().unwrap();
        assert!(!status.success() && status.code().is_none(), "it failed by itself: {}", self.said());
        let rentals = self.rentals();
        let mut line = vec!["killed"];
        line.extend(rentals.iter().map(|(_, rental)| rental.token.as_str()));
        Writer::open(&self.machine.path("calls")).line(&line);
    }

    /// Every volume that carries our name is the one that its device's journal speaks of.
    pub fn journals(&self) -> Result<(), String> {
        let rentals = self.rentals();
        for volume in self.ours() {
            let known = rentals.iter().any(|(device, rental)| {
                volume.tags.get(tag::DEVICE) == Some(device) && volume.tags.get(TOKEN) == Some(&rental.token)
            });
            if !known && volume.state != surgetank_provider::VolumeState::Deleting {
                return Err(format!("no journal knows the volume {} ({:?})", volume.id.0, volume.state));
            }
        }
        Ok(())
    }

    pub fn check_journals(&self) {
        assert_eq!(self.journals(), Ok(()), "{}", self.said());
    }

    /// Runs without faults until nothing is rented.
    pub fn settle(&self) -> End {
        self.whole(Mode::Settle, 0)
    }

    /// Runs with faults, without kills, and compares the bill.
    pub fn bill(&self, seed: u64) -> End {
        self.whole(Mode::Bill, seed)
    }

    fn whole(&self, mode: Mode, seed: u64) -> End {
        let mut child = self.start(mode, seed, None);
        // Longer than it takes to say what is left.
        let until = Instant::now() + self.pace.settle * 2;
        let mut status = None;
        while status.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            status = child.try_wait().unwrap();
        }
        let _ = child.kill();
        let _ = child.wait();
        assert!(status.is_some(), "the daemon does not end by itself: {}", self.said());
        let there: Vec<String> = self.ours().into_iter().map(|volume| volume.id.0).collect();
        let mut line = vec!["there"];
        line.extend(there.iter().map(String::as_str));
        Writer::open(&self.machine.path("calls")).line(&line);
        if status.is_some_and(|status| status.success()) {
            return End::Settled;
        }
        let said = self.said();
        match said.split_once(LEFT) {
            Some((_, what)) => {
                let what = what.lines().next().unwrap_or_default().trim();
                End::Left(format!("{what}; on record: {}", self.on_record()))
            }
            None => panic!("the daemon failed: {said}"),
        }
    }

    /// What the devices that rent have on record, for whoever looks for the cause.
    fn on_record(&self) -> String {
        let of = |(device, rental): (String, RentalRecord)| {
            let owner = OwnerStore::open(&self.machine.path("state").join(&device)).unwrap();
            format!("{device}: {rental:?}, {:?}", owner.record())
        };
        self.rentals().into_iter().map(of).collect::<Vec<_>>().join("; ")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.machine.path("log")).unwrap_or_default()
    }

    /// Nothing of ours is rented, all else is as it was, and the backing volumes have what was written.
    pub fn check_nothing_left(&self) {
        assert_eq!(self.ours(), []);
        assert_eq!(self.rentals(), []);
        for index in 0..self.pace.devices {
            let owner = OwnerStore::open(&self.machine.path("state").join(name(index))).unwrap();
            assert_eq!(owner.record().owner, Owner::Backing);
            let mut found = vec![0; log::WRITTEN];
            let file = std::fs::File::open(backing(self.machine.directory.path(), &name(index))).unwrap();
            file.read_exact_at(&mut found, 0).unwrap();
            let version = self.log().contents(&name(index)).version(&name(index), &found);
            assert!(
                version.is_some(),
                "the backing volume of {} has something else than what was written",
                name(index)
            );
        }
        let provider = self.provider();
        for volume in &self.foreign {
            let mut now = Err(ProviderError::Transient(String::new()));
            eventually("the cloud answers", || {
                now = provider.describe(&volume.id);
                !matches!(now, Err(ProviderError::Transient(_)))
            });
            let now = now.expect("a volume that is not ours was deleted");
            assert_eq!((&now.tags, now.device), (&volume.tags, None));
        }
    }

    /// How many volumes are not ours.
    pub fn foreign(&self) -> usize {
        self.foreign.len()
    }

    /// Those volumes that are ours, and the calls of the last daemons that name them.
    pub fn left_of(&self, there: BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
        let calls = std::fs::read_to_string(self.machine.path("calls")).unwrap_or_default();
        let ours = there.into_iter().filter(|id| self.foreign.iter().all(|volume| volume.id.0 != *id));
        let named = |id: &str| calls.lines().filter(|line| line.contains(id)).map(str::to_owned).collect();
        ours.map(|id| (id.clone(), named(&id))).collect()
    }

    /// How many volumes there are, as the local provider's directory says.
    pub fn records(&self) -> usize {
        self.machine.records().len()
    }
}

fn load(root: &Path) -> Config {
    let mut config = Config::load(&root.join("config.toml")).unwrap_or_else(|error| panic!("{error}"));
    let Pace { step, retry, .. } = Pace::of(&config);
    for device in config.devices.values_mut() {
        device.policy.retry = retry;
        device.policy.timeouts = Timeouts { create: step, attach: step, detach: step };
    }
    config
}

/// What the test `lifecycles::daemon_in_a_child` does: nothing, unless it was started by a [`Group`].
pub fn serve_if_asked() {
    let Some(root) = std::env::var_os(GROUP).map(PathBuf::from) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let mode = Mode::ALL.into_iter().find(|mode| format!("{mode:?}") == variable(MODE)).unwrap();
    let config = load(&root);
    let log = Arc::new(Writer::open(&root.join("calls")));
    let seed = variable(SEED).parse().unwrap();
    let (state, pace) = (config.state_directory.clone(), Pace::of(&config));
    let witness = Arc::new(Witness::over(ground::open(&config), log.clone(), state, mode, seed, pace));
    let (devices, tables) = (config.devices.len(), root.join(TABLES));
    let disks = tables.is_dir().then(|| Tables::new(tables).disks());
    let overrides = Overrides { provider: Some(witness.clone()), disks, ..Overrides::default() };
    let daemon = Daemon::start_with(config, overrides).unwrap_or_else(|error| panic!("{error}"));
    let before = Log::read(&root.join("calls"));
    let drovers = || (0..devices).map(|index| Drover::new(&root, index, &before, log.clone())).collect::<Vec<_>>();
    match mode {
        Mode::Strict | Mode::Wild => {
            let mut drovers = drovers();
            loop {
                drive(&daemon, &mut drovers, u32::MAX);
            }
        }
        Mode::Settle => settle(&daemon, &witness, pace),
        Mode::Bill => {
            let mut drovers = drovers();
            eventually("three boosts a device", || drive(&daemon, &mut drovers, 3));
            settle(&daemon, &witness, pace);
            compare(&daemon, &witness);
        }
    }
    daemon.stop();
}

/// Boosts one device, reads what was written before, writes to it, ends the boost; again and again.
struct Drover {
    name: String,
    socket: PathBuf,
    boosts: u32,
    written: bool,
    /// It was read in the life of this daemon.
    seen: bool,
    contents: Contents,
    log: Arc<Writer>,
}

impl Drover {
    fn new(root: &Path, index: usize, before: &Log, log: Arc<Writer>) -> Self {
        let name = name(index);
        let (socket, contents) = (root.join(format!("run/{name}.sock")), before.contents(&name));
        Self { socket, name, boosts: 0, written: false, seen: false, contents, log }
    }

    fn note(&self, what: &str, version: u64) {
        self.log.line(&[what, &self.name, &version.to_string()]);
    }

    /// Reads what was written before.
    fn read(&mut self) -> Nbd {
        // A device that recovers answers late.
        let mut nbd = crate::common::nbd(&self.socket).unwrap();
        let found = nbd.read(0, log::WRITTEN).unwrap();
        match self.contents.version(&self.name, &found) {
            Some(there) => {
                self.note("read", there);
                self.contents.is_flushed(there);
            }
            None => self.log.line(&["wrong", &self.name]),
        }
        nbd
    }

    fn write(&mut self) {
        let mut nbd = self.read();
        let version = self.contents.next();
        self.note("writes", version);
        self.contents.begins(version);
        nbd.write(0, &Contents::block(&self.name, version)).unwrap();
        nbd.flush().unwrap();
        self.note("wrote", version);
        self.contents.is_flushed(version);
    }

    /// False: it has had its boosts.
    fn step(&mut self, daemon: &Daemon, status: &DeviceStatus, most: u32) -> bool {
        let device = self.name.clone();
        let is_served = matches!(status.phase, DevicePhase::Idle | DevicePhase::Boost);
        if is_served && !std::mem::replace(&mut self.seen, true) {
            self.read();
        }
        match status.phase {
            DevicePhase::Idle if self.boosts == most => return false,
            // Refused while it cools down after a refusal: asked again.
            DevicePhase::Idle => drop(daemon.handle(Request::boost(&device))),
            DevicePhase::Boost if !self.written => {
                self.write();
                self.written = true;
            }
            DevicePhase::Boost => {
                self.written = false;
                self.boosts += 1;
                drop(daemon.handle(Request::Drain { device }));
            }
            _ => {}
        }
        true
    }
}

/// One round over all devices. True: all have had their boosts.
fn drive(daemon: &Daemon, drovers: &mut [Drover], most: u32) -> bool {
    let mut done = true;
    for status in daemon.status().devices {
        let drover = drovers.iter_mut().find(|drover| drover.name == status.name).unwrap();
        done &= !drover.step(daemon, &status, most);
    }
    std::thread::sleep(Duration::from_millis(1));
    done
}

/// Ends every boost and sweeps until nothing is rented; panics with what is left if that does not come.
fn settle(daemon: &Daemon, witness: &Witness, pace: Pace) {
    let owner = {
        let path = daemon.control_socket().parent().unwrap().parent().unwrap().join("state/owner-id");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };
    // A bug that leaves something is waited for at the local provider alone: an absence is believed at once there.
    let is_vain = std::env::var_os(PLANT).is_some() && pace.lag.is_none();
    let until = Instant::now() + if is_vain { Duration::from_secs(3) } else { pace.settle };
    loop {
        let devices = daemon.status().devices;
        for device in devices.iter().filter(|device| device.phase != DevicePhase::Idle) {
            let _ = daemon.handle(Request::Drain { device: device.name.clone() });
        }
        let idle = devices.iter().all(|device| device.phase == DevicePhase::Idle);
        let _ = daemon.handle(Request::Gc);
        let there = witness.list(tag::OWNER, &owner);
        if idle && there.as_ref().is_ok_and(Vec::is_empty) {
            return;
        }
        let busy: Vec<_> = devices.iter().map(|device| (&device.name, device.phase, &device.reason)).collect();
        assert!(Instant::now() < until, "{LEFT} {there:?}, devices {busy:?}");
        std::thread::sleep(pace.look);
    }
}

/// The daemon's bill covers every moment for which the provider charges, and ends.
fn compare(daemon: &Daemon, witness: &Witness) {
    let mut paid = 0.0;
    for DeviceStatus { name: device, .. } in daemon.status().devices {
        let report = daemon.report(&device).unwrap();
        let caching = report.rentals.iter().filter(|rental| rental.volume == "caching");
        let mut billed = 0.0;
        for rental in caching {
            let until =
                rental.until.unwrap_or_else(|| panic!("{LEFT} {device} is still billed for a volume: {rental:?}"));
            billed += rental.size.as_mib() * until.since(rental.from).as_secs_f64();
        }
        let stays = witness.stays().into_iter().filter(|stay| stay.device == device);
        let charged: f64 =
            stays.map(|stay| stay.mib * stay.until.unwrap().duration_since(stay.from).as_secs_f64()).sum();
        assert!(charged > 0.0 && billed >= charged, "{LEFT} {device} is billed {billed} of {charged} MiB s");
        paid += charged;
    }
    assert!(paid > 0.0);
}
