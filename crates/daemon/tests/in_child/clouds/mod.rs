//! Boosts of a daemon in a guest that rents from a cloud on the host, and whose own QEMU is in the place of the cloud's hypervisor. The
//! daemon is killed again and again. This very program runs in the guest, at its ignored test.
//!
//! - `aws`: a fake of EC2;
//! - `gce`: a fake of Compute Engine;
//! - `openstack`: Keystone, Cinder and Nova themselves;
//! - `plugging`: disks as hypervisors show them.

mod aws;
mod gce;
mod openstack;
mod plugging;

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

    /// Boots a guest, and waits until its life cycles are over and no disk is left.
    fn run(&self, provider: &str, caching: &str) {
        for (name, text) in [("provider.toml", provider), ("caching.toml", caching)] {
            fs::write(self.path(name), text).unwrap();
        }
        let cycles = std::env::var("SURGETANK_HOTPLUGS").map_or(CYCLES, |text| text.parse().unwrap());
        let script = format!(
            "export SURGETANK_HOTPLUGS={cycles} {PROVIDER}={} {CACHING}={}\n\
             exec {} --ignored --exact clouds::guest_life_cycles --nocapture --test-threads=1",
            self.path("provider.toml").display(),
            self.path("caching.toml").display(),
            std::env::current_exe().unwrap().display()
        );
        let plan = Plan {
            memory: Bytes::from_mib(768),
            qmp: Some(self.path("qmp")),
            results: Some(self.path("results")),
            // Far more than they take.
            timeout: Duration::from_secs(180 + 60 * cycles),
            ..Plan::new("cloud", script)
        };
        let plan = plan.disk(Disk::new("backing", Bytes::from_mib(64)));
        let mut guest = plan.boot(&self.lab, &Interrupt::default()).unwrap();
        let outcome = guest.wait(&Interrupt::default()).unwrap();
        eprintln!("{}", guest.stderr());
        assert!(outcome.passed(), "{}\n{}", outcome.describe(), guest.stdout());
        assert_eq!(fs::read_dir(self.path("images")).unwrap().count(), 0, "disks are left");
    }
}

/// As in the other guest whose disks are plugged in: it boosts when it is asked to.
fn configure(machine: &Machine) {
    let read = |name: &str| fs::read_to_string(std::env::var(name).unwrap()).unwrap();
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n{}\n\
         [device.data]\nbacking = \"/dev/lab/backing\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
         [device.data.caching]\nbandwidth = \"2 GiB/s\"\n{}\n\
         [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\nsize_grain = \"1 GiB\"\n\
         inactivity_delay = \"60 s\"\nboost_interval = \"0 s\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n",
        read(PROVIDER),
        read(CACHING)
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

/// How many disks this guest has.
fn disks() -> usize {
    let names = fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().file_name().into_string().unwrap());
    names.filter(|name| ["vd", "sd", "nvme"].iter().any(|kind| name.starts_with(kind))).count()
}

#[test]
#[ignore = "runs in a guest"]
fn guest_life_cycles() {
    assert!(Path::new("/lab").exists(), "this is no guest");
    let cycles: u64 = std::env::var("SURGETANK_HOTPLUGS").unwrap().parse().unwrap();
    let machine = Machine::new();
    configure(&machine);
    let own = disks();
    let mut running = Running::start(&machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    let kills = cycled(&machine, &mut running, cycles, 13, || disks() - own);
    eventually("a sweep finds nothing", || {
        let swept = running.client.gc().unwrap();
        swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
    });
    eprintln!("{cycles} life cycles, {kills} kills of the daemon");
    running.stop();
}
