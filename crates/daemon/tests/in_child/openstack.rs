//! Boosts of a daemon in a guest that rents from OpenStack: Keystone, Cinder and Nova themselves on the host, and the guest's own QEMU
//! in the place of Nova's hypervisor. The daemon is killed again and again. This very program runs in the guest, at its ignored test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lab::{Disk, Interrupt, Lab, Plan, Unavailable};
use serde_json::{Value, json};
use surgetank_daemon::Request;
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_provider::qemu::Qmp;

use crate::cloud::cloud;
use crate::common::child::Running;
use crate::common::{MIB, Machine, eventually, pattern};
use crate::hotplug::{boosted, drained};
use crate::proxy::Hypervisor;

/// Life cycles in the guest; `SURGETANK_HOTPLUGS` for more.
const CYCLES: u64 = 6;
const CLOUDS: &str = "SURGETANK_TEST_CLOUDS";
const SERVER: &str = "SURGETANK_TEST_SERVER";
/// How often a disk that is released is looked for.
const LOOKS_MAX: u32 = 600;

/// The QEMU of the guest. Each second disk is a virtio one, of whose serial the guest sees 20 characters; the others are SCSI disks,
/// of which it sees all 36.
struct GuestsQemu {
    qmp: PathBuf,
    images: PathBuf,
    /// The names of the volumes that were ever plugged in, in that order.
    plugged: Mutex<Vec<String>>,
}

impl GuestsQemu {
    fn execute(&self, command: &str, arguments: Value) -> bool {
        let mut qmp = Qmp::connect(&self.qmp, Duration::from_secs(10)).unwrap();
        qmp.execute(command, arguments).is_ok()
    }

    fn has(&self, part: &str) -> bool {
        let mut qmp = Qmp::connect(&self.qmp, Duration::from_secs(10)).unwrap();
        let listed = qmp.execute("qom-list", json!({ "path": "/machine/peripheral" })).unwrap();
        listed.as_array().unwrap().iter().any(|child| child["name"] == part)
    }

    /// On the first port that is free.
    fn on_a_port(&self, device: &Value) {
        let on = |port: usize| {
            let mut device = device.clone();
            device["bus"] = json!(format!("port{port}"));
            self.execute("device_add", device)
        };
        assert!((0..8).any(on), "no port is free for {device}");
    }
}

/// What QEMU calls the parts of a volume: no name of it may be as long as a volume's.
fn part(volume: &str, kind: &str) -> String {
    format!("{kind}-{}", &volume[..13])
}

impl Hypervisor for GuestsQemu {
    fn plug(&self, volume: &str) {
        let image = self.images.join(volume);
        fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        let file =
            json!({ "driver": "file", "filename": image, "node-name": part(volume, "node"), "discard": "unmap" });
        assert!(self.execute("blockdev-add", file), "{volume} is plugged in already");
        let is_scsi = {
            let mut plugged = self.plugged.lock().unwrap();
            plugged.push(volume.to_owned());
            plugged.len() % 2 == 0
        };
        let (controller, disk, node) = (part(volume, "scsi"), part(volume, "disk"), part(volume, "node"));
        if is_scsi {
            self.on_a_port(&json!({ "driver": "virtio-scsi-pci", "id": controller }));
            let bus = format!("{controller}.0");
            let disk = json!({ "driver": "scsi-hd", "id": disk, "drive": node, "bus": bus, "serial": volume });
            assert!(self.execute("device_add", disk));
        } else {
            self.on_a_port(&json!({ "driver": "virtio-blk-pci", "id": disk, "drive": node, "serial": volume }));
        }
    }

    fn unplug(&self, volume: &str) {
        let parts = [part(volume, "disk"), part(volume, "scsi")];
        for part in parts.iter().filter(|part| self.has(part)) {
            for look in 0..LOOKS_MAX {
                // QEMU wants a pause between two requests.
                if look % 120 == 0 {
                    self.execute("device_del", json!({ "id": part }));
                }
                if !self.has(part) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(!self.has(part), "the guest does not release {part}");
        }
        let node = json!({ "node-name": part(volume, "node") });
        eventually("QEMU lets the image be closed", || {
            self.execute("blockdev-del", node.clone()) || !self.images.join(volume).exists()
        });
        let _ = fs::remove_file(self.images.join(volume));
    }
}

#[test]
fn openstacks_volumes_are_disks_of_a_guest_and_none_is_left() {
    let Some(cloud) = cloud() else { return };
    let lab = match Lab::that_boots() {
        Ok(lab) => lab,
        Err(Unavailable(reason)) => return eprintln!("skipped: no guest can be booted here: {reason}"),
    };
    let tenant = cloud.tenant_for("10.0.2.2");
    let host = tempfile::tempdir().unwrap();
    let (qmp, results, images) = (host.path().join("qmp"), host.path().join("results"), host.path().join("images"));
    fs::create_dir(&images).unwrap();
    let qemu = Arc::new(GuestsQemu { qmp: qmp.clone(), images: images.clone(), plugged: Mutex::default() });
    tenant.faults.lock().unwrap().hypervisor = Some(qemu.clone());
    let cycles = std::env::var("SURGETANK_HOTPLUGS").map_or(CYCLES, |text| text.parse().unwrap());
    let script = format!(
        "export SURGETANK_HOTPLUGS={cycles} {CLOUDS}={} {SERVER}={}\n\
         exec {} --ignored --exact openstack::guest_life_cycles --nocapture --test-threads=1",
        tenant.file.display(),
        tenant.server,
        std::env::current_exe().unwrap().display()
    );
    let plan = Plan {
        memory: Bytes::from_mib(768),
        qmp: Some(qmp),
        results: Some(results),
        // Far more than they take.
        timeout: Duration::from_secs(180 + 60 * cycles),
        ..Plan::new("openstack", script)
    };
    let mut guest = plan.disk(Disk::new("backing", Bytes::from_mib(64))).boot(&lab, &Interrupt::default()).unwrap();
    let outcome = guest.wait(&Interrupt::default()).unwrap();
    let plugged = qemu.plugged.lock().unwrap().len();
    eprintln!("{}{plugged} disks were plugged in", guest.stderr());
    assert!(outcome.passed(), "{}\n{}", outcome.describe(), guest.stdout());
    assert_eq!((tenant.volumes(), fs::read_dir(images).unwrap().count()), (0, 0), "volumes and disks that are left");
}

/// As in the other guest whose disks are plugged in: it boosts when it is asked to.
fn configure(machine: &Machine) {
    let of = |name: &str| std::env::var(name).unwrap();
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n\
         [provider.openstack]\nclouds_file = \"{}\"\ncloud = \"of-credential\"\nserver = \"{}\"\nreads_per_s = 1000\nwrites_per_s = 1000\n\
         [device.data]\nbacking = \"/dev/lab/backing\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
         [device.data.caching]\nvolume_type = \"__DEFAULT__\"\nbandwidth = \"2 GiB/s\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"\n\
         [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\nsize_grain = \"1 GiB\"\n\
         inactivity_delay = \"60 s\"\nboost_interval = \"0 s\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n",
        of(CLOUDS),
        of(SERVER)
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

/// How many disks this guest has.
fn disks() -> usize {
    let names = fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("vd") || name.starts_with("sd")).count()
}

#[test]
#[ignore = "runs in a guest"]
fn guest_life_cycles() {
    let cycles: u64 = std::env::var("SURGETANK_HOTPLUGS").unwrap().parse().unwrap();
    let machine = Machine::new();
    configure(&machine);
    let own = disks();
    let mut random = Random::from_seed(13);
    let mut running = Running::start(&machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    let mut kills = 0;
    for cycle in 0..cycles {
        boosted(&running);
        assert_eq!(disks(), own + 1, "the caching volume is a disk of this guest");
        let (offset, data) = (cycle % 32 * MIB, pattern(cycle, 5, MIB as usize));
        running.nbd().unwrap().write(offset, &data).unwrap();
        if random.chance(0.5) {
            // In a boost, or on the way out of it.
            if random.chance(0.5) {
                let _ = running.client.ask(&Request::Drain { device: "data".into() });
            }
            std::thread::sleep(Duration::from_millis(random.below(1500)));
            running.kill();
            running = Running::start(&machine, None);
            assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
            kills += 1;
        }
        drained(&running);
        assert_eq!(running.nbd().unwrap().read(offset, data.len()).unwrap(), data, "cycle {cycle}");
        eventually("the disk is gone", || disks() == own);
    }
    eventually("a sweep finds nothing", || {
        let swept = running.client.gc().unwrap();
        swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
    });
    assert!(Path::new("/lab").exists(), "this is no guest");
    eprintln!("{cycles} life cycles, {kills} kills of the daemon");
    running.stop();
}
