//! Boosts of a daemon in a guest, whose caching volumes are hot-plugged by a provisioning service on the host, while both
//! the daemon and the service are killed again and again: this very program runs in the guest, at its ignored tests.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::child::Running;
use crate::common::{Machine, eventually, pattern};
use lab::{Disk, Guest, Interrupt, Lab, Plan, Unavailable};
use surgetank_daemon::provisioning::ServiceConfig;
use surgetank_daemon::{DevicePhase, Request};
use surgetank_device::volume::{Operation, Options};
use surgetank_device::{Buffer, Failure, FileVolume, Volume, VolumeIo};
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_provider::qemu::QemuConfig;
use surgetank_provider::service::{Secret, Service};
use surgetank_provider::{QemuProvider, SystemClock};

const MIB: u64 = 1 << 20;
/// Life cycles; `SURGETANK_HOTPLUGS` for more.
const CYCLES: u64 = 6;
/// For the service: its configuration.
const SERVICE: &str = "SURGETANK_TEST_SERVICE";
/// For the program in the guest: the service's URL and the token file.
const URL: &str = "SURGETANK_TEST_URL";
const TOKEN: &str = "SURGETANK_TEST_TOKEN";

/// Not a test by itself: the service on the host, which the other kills.
#[test]
fn service_in_a_child() {
    let Some(file) = std::env::var_os(SERVICE) else { return };
    let config = ServiceConfig::load(Path::new(&file)).unwrap();
    let secret = Secret::read_or_make(&config.token_file).unwrap();
    let service = Service::bind(config.listen, config.open().unwrap(), secret).unwrap();
    service.serve(|| std::thread::sleep(Duration::from_secs(3600))).unwrap();
}

/// The host's side: service, its directory, the guest's monitor.
struct Host {
    directory: tempfile::TempDir,
    service: Child,
}

impl Host {
    fn start() -> (Self, u16) {
        let directory = tempfile::tempdir().unwrap();
        // Free now, and nobody else asks for it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let root = directory.path().display();
        let text = format!(
            "listen = \"127.0.0.1:{port}\"\ntoken_file = \"{root}/token\"\n\
             [provider.qemu]\nqmp = \"{root}/qmp\"\ndirectory = \"{root}/volumes\"\n"
        );
        fs::write(directory.path().join("provider.toml"), text).unwrap();
        let service = serve(directory.path());
        (Self { directory, service }, port)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn kill(&mut self) {
        self.service.kill().unwrap();
        self.service.wait().unwrap();
    }

    /// Nothing of ours is in QEMU or in the directory.
    fn assert_empty(&self) {
        let config = QemuConfig::new(self.path("qmp"), self.path("volumes"));
        let provider = QemuProvider::open(config, std::sync::Arc::new(SystemClock)).unwrap();
        assert_eq!(provider.parts().unwrap(), Vec::<String>::new(), "left in QEMU");
        for name in ["volumes/volumes", "volumes/state"] {
            assert_eq!(fs::read_dir(self.path(name)).unwrap().count(), 0, "left in {name}");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

fn serve(directory: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hotplug::service_in_a_child", "--nocapture", "--test-threads=1"]);
    command.env(SERVICE, directory.join("provider.toml")).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn volumes_are_plugged_into_a_guest_and_none_is_left() {
    let lab = match Lab::that_boots() {
        Ok(lab) => lab,
        Err(Unavailable(reason)) => return eprintln!("skipped: no guest can be booted here: {reason}"),
    };
    let (mut host, port) = Host::start();
    let results = host.path("results");
    let cycles = std::env::var("SURGETANK_HOTPLUGS").ok().and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
    let script = format!(
        "export SURGETANK_HOTPLUGS={cycles} {URL}=http://10.0.2.2:{port} {TOKEN}={}\n\
         exec {} --ignored --exact hotplug::guest_life_cycles --nocapture --test-threads=1",
        host.path("token").display(),
        std::env::current_exe().unwrap().display()
    );
    let plan = Plan {
        memory: Bytes::from_mib(768),
        qmp: Some(host.path("qmp")),
        results: Some(results.clone()),
        // Far more than they take.
        timeout: Duration::from_secs(180 + 60 * cycles),
        ..Plan::new("hotplug", script)
    };
    let deadline = Instant::now() + plan.boot_timeout + plan.timeout;
    let mut guest = plan.disk(Disk::new("backing", Bytes::from_mib(64))).boot(&lab, &Interrupt::default()).unwrap();
    let came =
        |guest: &mut Guest, what: &str| guest.has_ended() || Instant::now() > deadline || results.join(what).exists();
    let mut random = Random::from_seed(7);
    let mut kills = 0;
    while !came(&mut guest, "cycled") {
        let pause = Instant::now() + Duration::from_millis(4000 + random.below(8000));
        while Instant::now() < pause && !came(&mut guest, "cycled") {
            std::thread::sleep(Duration::from_millis(20));
        }
        if results.join("begun").exists() && !results.join("cycled").exists() {
            host.kill();
            std::thread::sleep(Duration::from_millis(random.below(400)));
            host.service = serve(host.directory.path());
            kills += 1;
        }
    }
    while !came(&mut guest, "done") {
        std::thread::sleep(Duration::from_millis(20));
    }
    if results.join("done").exists() {
        host.assert_empty();
        fs::write(results.join("checked"), "").unwrap();
    }
    let outcome = guest.wait(&Interrupt::default()).unwrap();
    eprintln!("{}{kills} kills of the service", guest.stderr());
    assert!(outcome.passed(), "{}\n{}", outcome.describe(), guest.stdout());
}

/// A device that boosts when it is asked to and not by itself, which would leave a volume rented at the end: nothing here is as
/// fast as its backing volume is said to be.
fn configure(machine: &Machine) {
    let of = |name: &str| std::env::var(name).unwrap();
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n\
         [provider.host]\nurl = \"{}\"\nallow_plain = true\ntoken_file = \"{}\"\n\
         [device.data]\nbacking = \"/dev/lab/backing\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
         [device.data.caching]\nbandwidth = \"2 GiB/s\"\ninitial_size = \"32 MiB\"\nmax_size = \"32 MiB\"\n\
         [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\nsize_grain = \"32 MiB\"\n\
         inactivity_delay = \"60 s\"\nboost_interval = \"0 s\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n",
        of(URL),
        of(TOKEN)
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

/// Boosts until it does: the service may be away.
fn boosted(running: &Running) {
    eventually("boost", || {
        let phase = running.phase();
        if phase == Some(DevicePhase::Idle) {
            // Refused while it waits after a refusal.
            let _ = running.client.ask(&Request::boost("data"));
        }
        phase == Some(DevicePhase::Boost)
    });
}

fn drained(running: &Running) {
    eventually("idle", || {
        let status = running.client.status().ok().and_then(|mut status| status.devices.pop());
        let Some(status) = status else { return false };
        if status.phase == DevicePhase::Boost {
            let _ = running.client.ask(&Request::Drain { device: "data".into() });
        }
        status.phase == DevicePhase::Idle && status.caching.is_none()
    });
}

fn deleted(running: &Running, disks: impl Fn() -> usize) {
    eventually("the disk is gone", || {
        assert_ne!(running.phase(), Some(DevicePhase::Boost), "nobody asked for this boost");
        disks() == 0
    });
}

/// Boosts, writes, drains and reads so often, and kills the daemon now and then; how often. `disks`: how many caching volumes are disks of
/// this guest.
pub fn cycled(machine: &Machine, running: &mut Running, cycles: u64, seed: u64, disks: impl Fn() -> usize) -> usize {
    let mut random = Random::from_seed(seed);
    let mut kills = 0;
    for cycle in 0..cycles {
        boosted(running);
        assert_eq!(disks(), 1, "the caching volume is a disk of this guest");
        let (offset, data) = (cycle % 32 * MIB, pattern(cycle, 5, MIB as usize));
        running.nbd().unwrap().write(offset, &data).unwrap();
        if random.chance(0.5) {
            // In a boost, or on the way out of it.
            if random.chance(0.5) {
                let _ = running.client.ask(&Request::Drain { device: "data".into() });
            }
            std::thread::sleep(Duration::from_millis(random.below(1500)));
            running.kill();
            *running = Running::start(machine, None);
            assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
            kills += 1;
        }
        drained(running);
        assert_eq!(running.nbd().unwrap().read(offset, data.len()).unwrap(), data, "cycle {cycle}");
        deleted(running, &disks);
    }
    kills
}

/// Disks of ours in this guest.
fn disks() -> usize {
    let serials = fs::read_dir("/sys/block").unwrap().filter_map(Result::ok);
    serials
        .filter(|disk| fs::read_to_string(disk.path().join("serial")).is_ok_and(|serial| serial.starts_with("vol-")))
        .count()
}

/// How an input or output of the last block ends, which nobody else uses.
fn ends(volume: &mut FileVolume, operation: Operation) -> Result<(), Failure> {
    let (length, now) = (4096, surgetank_model::Instant::ZERO);
    let memory = [Buffer::zeroed(length).slice(0, length)].into_iter().collect();
    let offset = volume.size() - length as u64;
    volume.submit(now, VolumeIo { token: 0, operation, offset, length: length as u64, memory });
    let mut completions = Vec::new();
    while completions.is_empty() {
        volume.poll(now, &mut completions);
    }
    completions.remove(0).result
}

/// The disk of the caching volume leaves the kernel while data are on it, without a word to anybody, and comes back.
fn pulled_and_pushed(running: &mut Running) {
    const BLOCKS: u64 = 24;
    boosted(running);
    let mut nbd = running.nbd().unwrap();
    for block in 0..BLOCKS {
        nbd.write(block * MIB, &pattern(block, 6, MIB as usize)).unwrap();
    }
    let ours = |disk: &PathBuf| fs::read_to_string(disk.join("serial")).is_ok_and(|serial| serial.starts_with("vol-"));
    let disk = fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().path()).find(ours).unwrap();
    let disk = fs::canonicalize(disk).unwrap();
    let bus = disk.ancestors().find(|place| place.join("remove").exists()).expect("a PCI device");
    let node = Path::new("/dev").join(disk.file_name().unwrap());
    let mut beside = FileVolume::open(node, Options { exclusive: false, ..Options::default() }).unwrap();
    assert_eq!(ends(&mut beside, Operation::Read), Ok(()));
    fs::write(bus.join("remove"), "1").unwrap();
    assert_eq!(disks(), 0);
    for operation in [Operation::Read, Operation::Write { fua: false }] {
        assert_eq!(ends(&mut beside, operation), Err(Failure::Gone), "{operation:?}");
    }
    drop(beside);
    let mut told = String::new();
    eventually("it is noticed", || {
        let status = running.client.status().ok().and_then(|mut status| status.devices.pop());
        told = status.and_then(|status| status.reason).unwrap_or_default();
        told.contains("has been gone for")
    });
    eprintln!("pulled: {told}");
    fs::write("/sys/bus/pci/rescan", "1").unwrap();
    for block in 0..BLOCKS {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 6, MIB as usize), "block {block}");
    }
    drained(running);
    for block in 0..BLOCKS {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, 6, MIB as usize), "block {block}");
    }
    deleted(running, disks);
}

#[test]
#[ignore = "runs in a guest"]
fn guest_life_cycles() {
    let cycles: u64 = std::env::var("SURGETANK_HOTPLUGS").unwrap().parse().unwrap();
    let machine = Machine::new();
    configure(&machine);
    let mut running = Running::start(&machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    fs::write("/lab/begun", "").unwrap();
    let kills = cycled(&machine, &mut running, cycles, 11, disks);
    pulled_and_pushed(&mut running);
    fs::write("/lab/cycled", "").unwrap();
    // A request that was on its way when the daemon died may have been carried out after the next one had looked.
    let mut orphans = 0;
    eventually("a sweep finds nothing", || {
        let swept = running.client.gc().unwrap();
        orphans += swept.deleted.len();
        swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
    });
    eprintln!("{cycles} life cycles, {kills} kills of the daemon, {orphans} orphans in the last sweeps");
    running.stop();
    fs::write("/lab/done", "").unwrap();
    eventually("the host has looked", || Path::new("/lab/checked").exists());
}
