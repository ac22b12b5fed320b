//! Boosts of a daemon in a guest that rents from a cloud on the host, and whose own QEMU is in the place of the cloud's hypervisor. In
//! life cycles the daemon is killed again and again; in the demonstration it serves a file system. This very program runs in the
//! guest, at its ignored tests.
//!
//! - `aws`: a fake of EC2;
//! - `demo`: the demonstration in the guest;
//! - `gce`: a fake of Compute Engine;
//! - `openstack`: Keystone, Cinder and Nova themselves;
//! - `plugging`: disks as hypervisors show them.

mod aws;
mod demo;
mod gce;
mod openstack;
mod plugging;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Disk, Interrupt, Lab, Plan, Unavailable};
use surgetank_model::Bytes;

use crate::common::child::Running;
use crate::common::{Machine, eventually};
use crate::hotplug::cycled;

/// Life cycles in the guest; `SURGETANK_HOTPLUGS` for more.
const CYCLES: u64 = 2;
/// Of the configuration, the provider's section, and what the section of caching volumes says of them.
const PROVIDER: &str = "SURGETANK_TEST_PROVIDER";
const CACHING: &str = "SURGETANK_TEST_CACHING";
/// Where a guest finds its host's loopback.
const HOST: &str = "10.0.2.2";

/// The host's side of a guest.
struct Host {
    lab: Lab,
    directory: tempfile::TempDir,
}

impl Host {
    /// `None`, after a word about it: no guest can be booted here.
    fn new() -> Option<Self> {
        let lab = match Lab::that_boots() {
            Ok(lab) => lab,
            Err(Unavailable(reason)) => {
                eprintln!("skipped: no guest can be booted here: {reason}");
                return None;
            }
        };
        let host = Self { lab, directory: tempfile::tempdir().unwrap() };
        fs::create_dir(host.path("images")).unwrap();
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn qemu(&self) -> plugging::GuestsQemu {
        plugging::GuestsQemu::new(self.path("qmp"), self.path("images"))
    }

    /// Boots a guest for life cycles, and waits until they are over and no disk is left.
    fn cycle(&self, section: &Section) {
        let cycles = std::env::var("SURGETANK_HOTPLUGS").map_or(CYCLES, |text| text.parse().unwrap());
        // Far more than they take.
        let timeout = Duration::from_secs(180 + 60 * cycles);
        let test = format!("export SURGETANK_HOTPLUGS={cycles}\nTEST=guest_life_cycles");
        self.run(&test, Disk::new("backing", Bytes::from_mib(64)), timeout, section);
    }

    /// Boots a guest for the demonstration, and waits until it is over and no disk is left.
    fn demonstrate(&self, section: &Section) {
        self.run("TEST=demo::guest_demonstration", demo::backing(), Duration::from_secs(600), section);
    }

    /// Boots a guest with a disk, for the ignored test that the first lines of its script name.
    fn run(&self, test: &str, disk: Disk, timeout: Duration, section: &Section) {
        for (name, text) in [("provider.toml", &*section.provider), ("caching.toml", section.caching)] {
            fs::write(self.path(name), text).unwrap();
        }
        let script = format!(
            "{test}\nexport {PROVIDER}={} {CACHING}={}\nexec {} --ignored --exact clouds::$TEST --nocapture --test-threads=1",
            self.path("provider.toml").display(),
            self.path("caching.toml").display(),
            std::env::current_exe().unwrap().display()
        );
        let plan = Plan {
            memory: Bytes::from_mib(768),
            qmp: Some(self.path("qmp")),
            results: Some(self.path("results")),
            timeout,
            ..Plan::new("cloud", script)
        };
        let mut guest = plan.disk(disk).boot(&self.lab, &Interrupt::default()).unwrap();
        let outcome = guest.wait(&Interrupt::default()).unwrap();
        eprintln!("{}", guest.stderr());
        assert!(outcome.passed(), "{}\n{}", outcome.describe(), guest.stdout());
        assert_eq!(fs::read_dir(self.path("images")).unwrap().count(), 0, "disks are left");
    }
}

/// Of the configuration in the guest.
struct Section {
    /// The provider's section.
    provider: String,
    /// What the section of caching volumes says of them.
    caching: &'static str,
}

/// Counts the calls of the one boost of a demonstration: it begins with so many at most. `marks`: those by which its volume is in use, is
/// detached, and is deleted.
fn check_calls<'a>(calls: impl IntoIterator<Item = &'a str>, marks: [&str; 3], begins_max: usize) {
    let calls: Vec<&str> = calls.into_iter().collect();
    let [begun, detached, deleted] =
        marks.map(|mark| calls.iter().position(|call| *call == mark).unwrap_or_else(|| panic!("no {mark}: {calls:?}")));
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    calls.iter().for_each(|call| *kinds.entry(call).or_default() += 1);
    let (begun, all, released) = (begun + 1, calls.len(), deleted - detached - 1);
    eprintln!(
        "calls: {begun} until the boost has begun, {all} in all, of these {released} while the guest releases the disk; {kinds:?}"
    );
    assert!(begun <= begins_max, "{calls:?}");
}

/// A device whose volumes have these bandwidths.
fn configure(machine: &Machine, export: &str, backing: &str, caching: &str, policy: &str) {
    let read = |name: &str| fs::read_to_string(std::env::var(name).unwrap()).unwrap();
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n{}\n\
         [device.data]\nbacking = \"/dev/lab/backing\"\nexport = \"{export}\"\nbacking_limits.bandwidth = \"{backing}\"\n\
         [device.data.caching]\nbandwidth = \"{caching}\"\n{}\n\
         [device.data.policy]\nsize_grain = \"1 GiB\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n{policy}",
        read(PROVIDER),
        read(CACHING)
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

/// The disks of this guest.
fn disks() -> BTreeSet<String> {
    let names = fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().file_name().into_string().unwrap());
    names.filter(|name| ["vd", "sd", "nvme"].iter().any(|kind| name.starts_with(kind))).collect()
}

/// A sweep of the daemon finds nothing.
fn nothing_is_left(running: &Running) {
    eventually("a sweep finds nothing", || {
        let swept = running.client.gc().unwrap();
        swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
    });
}

#[test]
#[ignore = "runs in a guest"]
fn guest_life_cycles() {
    assert!(Path::new("/lab").exists(), "this is no guest");
    let cycles: u64 = std::env::var("SURGETANK_HOTPLUGS").unwrap().parse().unwrap();
    let machine = Machine::new();
    // As in the other guest whose disks are plugged in: it boosts when it is asked to.
    let policy = "name = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\ninactivity_delay = \"60 s\"\nboost_interval = \"0 s\"";
    configure(&machine, "nbd", "1 GiB/s", "2 GiB/s", policy);
    let own = disks().len();
    let mut running = Running::start(&machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    let kills = cycled(&machine, &mut running, cycles, 13, || disks().len() - own);
    nothing_is_left(&running);
    eprintln!("{cycles} life cycles, {kills} kills of the daemon");
    running.stop();
}
