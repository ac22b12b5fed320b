//! Boosts of a daemon that rents from a fake of Azure, whose disks show the number of a logical unit and nothing else. The daemon is
//! killed again and again. QEMU has no disks as Azure's controllers show them: loop devices are the disks, in tables of our own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::fakes::azure::{GROUP, MACHINE, SUBSCRIPTION};
use surgetank_provider::fakes::{FakeAzure, Settings};
use surgetank_provider::{DiskIdentity, SystemClock};

use crate::common::child::{Running, TABLES};
use crate::common::tables::{Loop, Tables};
use crate::common::{Ends, Machine, eventually};
use crate::hotplug::cycled;

/// Life cycles; `SURGETANK_HOTPLUGS` for more.
const CYCLES: u64 = 3;
/// What is rented.
const SIZE: Bytes = Bytes::from_gib(1);
/// The first number of a logical unit that no disk of ours has.
const FAR_UNIT: u32 = 1000;

/// The hypervisor of the machine.
struct Hypervisor<'a> {
    fake: &'a FakeAzure,
    tables: Tables,
    images: PathBuf,
    plugged: Mutex<BTreeMap<String, Loop>>,
    /// How many disks of ours there were.
    count: AtomicUsize,
}

impl Hypervisor<'_> {
    fn plugged(&self) -> usize {
        self.plugged.lock().unwrap().len()
    }

    fn disk(&self, name: &str) -> Loop {
        let image = self.images.join(name);
        fs::File::create(&image).unwrap().set_len(SIZE.get()).unwrap();
        Loop::over(&image).expect("a loop device")
    }

    /// What the cloud says is attached is plugged in, and what is not any more is unplugged. With each disk of ours comes
    /// somebody else's of the same size, a moment before it, and stays.
    fn follow(&self, is_done: &AtomicBool) {
        let mut strangers = Vec::new();
        while !is_done.load(Ordering::Relaxed) {
            let attached = self.fake.attached();
            let mut plugged = self.plugged.lock().unwrap();
            plugged.retain(|name, disk| {
                let stays = attached.contains_key(name);
                if !stays {
                    self.tables.hide(disk);
                    fs::remove_file(self.images.join(name)).unwrap();
                }
                stays
            });
            for (name, unit) in attached {
                if plugged.contains_key(&name) {
                    continue;
                }
                let number = self.count.fetch_add(1, Ordering::Relaxed);
                let (stranger, disk) = (self.disk(&format!("stranger-{number}")), self.disk(&name));
                self.tables.show(&stranger, &DiskIdentity::Lun(FAR_UNIT + u32::try_from(number).unwrap()));
                self.tables.show(&disk, &DiskIdentity::Lun(unit));
                strangers.push(stranger);
                plugged.insert(name, disk);
            }
            drop(plugged);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn assert_no_stranger_was_written_to(&self) {
        let images = fs::read_dir(&self.images).unwrap().map(|image| image.unwrap());
        let strangers: Vec<_> = images.collect();
        assert_eq!(strangers.len(), self.count.load(Ordering::Relaxed), "disks of ours are left");
        for stranger in strangers {
            assert_eq!(stranger.metadata().unwrap().blocks(), 0, "{:?} was written to", stranger.file_name());
        }
    }
}

fn configure(machine: &Machine, fake: &FakeAzure) {
    let root = machine.directory.path().display();
    let backing = machine.backing("backing", 64 << 20);
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n\
         [provider.azure]\nsubscription = \"{SUBSCRIPTION}\"\nresource_group = \"{GROUP}\"\ninstance = \"{MACHINE}\"\n\
         endpoint = \"{}\"\ncredential_command = [\"/bin/echo\", \"{}\"]\nreads_per_s = 1000\nwrites_per_s = 1000\n\
         [device.data]\nbacking = \"{}\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
         [device.data.caching]\nbandwidth = \"2 GiB/s\"\nvolume_type = \"premium-ssd-v2\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"\n\
         [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\nsize_grain = \"1 GiB\"\n\
         inactivity_delay = \"60 s\"\nboost_interval = \"0 s\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n",
        fake.url(),
        fake.token(),
        backing.display()
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

#[test]
fn a_daemon_finds_azures_disks_by_their_numbers_and_none_is_left() {
    let machine = Machine::new();
    if Loop::over(Path::new(&machine.backing("probe", 1 << 20))).is_none() {
        eprintln!("skipped: no loop device can be had (needs root)");
        return;
    }
    let moment = Duration::from_millis(300);
    let settings =
        Settings { create: moment, attach: moment, detach: moment, delete: moment, ..Settings::default() };
    let fake = FakeAzure::start(Arc::new(SystemClock), settings);
    configure(&machine, &fake);
    let images = machine.path("images");
    fs::create_dir(&images).unwrap();
    let hypervisor = Hypervisor {
        fake: &fake,
        tables: Tables::new(machine.path(TABLES)),
        images,
        plugged: Mutex::default(),
        count: AtomicUsize::new(0),
    };
    let cycles = std::env::var("SURGETANK_HOTPLUGS").map_or(CYCLES, |text| text.parse().unwrap());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| hypervisor.follow(&is_done));
        let _over = Ends(&is_done);
        let mut running = Running::start(&machine, None);
        assert!(!running.dead(), "the daemon does not start: {}", machine.log());
        let kills = cycled(&machine, &mut running, cycles, 13, || hypervisor.plugged());
        eventually("a sweep finds nothing", || {
            let swept = running.client.gc().unwrap();
            swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
        });
        let disks = hypervisor.count.load(Ordering::Relaxed);
        eprintln!("{cycles} life cycles over {disks} disks, {kills} kills of the daemon");
        assert!(disks as u64 >= cycles);
        running.stop();
    });
    assert_eq!(fake.disks(), 0, "disks are left");
    hypervisor.assert_no_stranger_was_written_to();
}
