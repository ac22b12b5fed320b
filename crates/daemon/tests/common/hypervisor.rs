//! A fake of Azure with the machine's disks. QEMU has no disks as Azure's controllers show them: loop devices are the disks, in tables of our
//! own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::DiskIdentity;
use surgetank_provider::fakes::azure::{GROUP, MACHINE, SUBSCRIPTION};
use surgetank_provider::fakes::{FakeAzure, Settings};

use crate::common::tables::{Loop, Tables};

/// What is rented.
const SIZE: Bytes = Bytes::from_gib(1);
/// The first number of a logical unit that no disk of ours has.
const FAR_UNIT: u32 = 1000;

/// The hypervisor of the machine.
pub struct Hypervisor<'a> {
    fake: &'a FakeAzure,
    tables: Tables,
    images: PathBuf,
    plugged: Mutex<BTreeMap<String, Loop>>,
    /// How many disks of ours there were.
    count: AtomicUsize,
}

impl<'a> Hypervisor<'a> {
    /// `images`: a directory that it makes, for what is on the disks.
    pub fn new(fake: &'a FakeAzure, tables: Tables, images: PathBuf) -> Self {
        fs::create_dir(&images).unwrap();
        Self { fake, tables, images, plugged: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// How many disks of ours there were.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn plugged(&self) -> usize {
        self.plugged.lock().unwrap().len()
    }

    fn disk(&self, name: &str) -> Loop {
        let image = self.images.join(name);
        fs::File::create(&image).unwrap().set_len(SIZE.get()).unwrap();
        Loop::over(&image).expect("a loop device")
    }

    /// What the cloud says is attached is plugged in, and what is not any more is unplugged. With each disk of ours comes
    /// somebody else's of the same size, a moment before it, and stays.
    pub fn follow(&self, is_done: &AtomicBool) {
        let mut foreign_disks = Vec::new();
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
                let (foreign, disk) = (self.disk(&format!("foreign-{number}")), self.disk(&name));
                self.tables.show(&foreign, &DiskIdentity::Lun(FAR_UNIT + u32::try_from(number).unwrap()));
                self.tables.show(&disk, &DiskIdentity::Lun(unit));
                foreign_disks.push(foreign);
                plugged.insert(name, disk);
            }
            drop(plugged);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn assert_no_foreign_disk_was_written_to(&self) {
        let images = fs::read_dir(&self.images).unwrap().map(|image| image.unwrap());
        let foreign_disks: Vec<_> = images.collect();
        assert_eq!(foreign_disks.len(), self.count(), "disks of ours are left");
        for foreign in foreign_disks {
            assert_eq!(foreign.metadata().unwrap().blocks(), 0, "{:?} was written to", foreign.file_name());
        }
    }
}

/// Everything takes this time.
pub fn settings(moment: Duration) -> Settings {
    Settings { create: moment, attach: moment, detach: moment, delete: moment, ..Settings::default() }
}

/// The section of a daemon that rents there.
pub fn section(fake: &FakeAzure) -> String {
    format!(
        "[provider.azure]\nsubscription = \"{SUBSCRIPTION}\"\nresource_group = \"{GROUP}\"\ninstance = \"{MACHINE}\"\n\
         endpoint = \"{}\"\ncredential_command = [\"/bin/echo\", \"{}\"]\nreads_per_s = 1000\nwrites_per_s = 1000\n",
        fake.url(),
        fake.token()
    )
}
