//! Disks that are plugged into a guest's QEMU, as hypervisors of clouds show them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_model::Bytes;
use surgetank_provider::qemu::Qmp;

use crate::common::{Ends, eventually};

/// How often a disk that is released is looked for.
const LOOKS_MAX: u32 = 600;

/// As what a disk shows itself, and by what.
#[derive(Clone, Copy, Debug)]
pub enum Shows<'a> {
    /// A virtio disk: the guest sees 20 characters of the serial.
    Virtio(&'a str),
    /// A SCSI disk: the guest sees all of the serial.
    Scsi(&'a str),
    /// A SCSI disk of Google's, whose page 0x83 has the name.
    Google(&'a str),
    /// An NVMe disk, whose controller shows the serial.
    Nvme(&'a str),
}

/// The QEMU of a guest.
pub struct GuestsQemu {
    qmp: PathBuf,
    images: PathBuf,
    /// How many disks were ever plugged in.
    count: Mutex<usize>,
}

impl GuestsQemu {
    /// `qmp`: where QEMU answers; `images`: a directory for the disks' bytes.
    pub const fn new(qmp: PathBuf, images: PathBuf) -> Self {
        Self { qmp, images, count: Mutex::new(0) }
    }

    pub fn count(&self) -> usize {
        *self.count.lock().unwrap()
    }

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

    /// Plugs in what a cloud says is attached and unplugs what is not any more, while something else is done.
    pub fn follow<T>(
        &self,
        attached: impl Fn() -> BTreeSet<String> + Sync,
        plug: impl Fn(&str) + Sync,
        done: impl FnOnce() -> T,
    ) -> T {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut plugged = BTreeSet::new();
                while !is_done.load(Ordering::Relaxed) {
                    let now = attached();
                    plugged.difference(&now).for_each(|volume: &String| self.unplug(volume));
                    now.difference(&plugged).for_each(|volume| plug(volume));
                    plugged = now;
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let _over = Ends(&is_done);
            done()
        })
    }

    /// Plugs a blank disk in.
    pub fn plug(&self, volume: &str, size: Bytes, shows: Shows<'_>) {
        let image = self.images.join(volume);
        fs::File::create(&image).unwrap().set_len(size.get()).unwrap();
        let (controller, disk, node) = (part(volume, "scsi"), part(volume, "disk"), part(volume, "node"));
        let file = json!({ "driver": "file", "filename": image, "node-name": node, "discard": "unmap" });
        assert!(self.execute("blockdev-add", file), "{volume} is plugged in already");
        *self.count.lock().unwrap() += 1;
        match shows {
            Shows::Virtio(serial) => {
                self.on_a_port(&json!({ "driver": "virtio-blk-pci", "id": disk, "drive": node, "serial": serial }));
            }
            Shows::Nvme(serial) => {
                self.on_a_port(&json!({ "driver": "nvme", "id": disk, "drive": node, "serial": serial }));
            }
            Shows::Scsi(_) | Shows::Google(_) => {
                self.on_a_port(&json!({ "driver": "virtio-scsi-pci", "id": controller }));
                let bus = format!("{controller}.0");
                let mut disk = json!({ "driver": "scsi-hd", "id": disk, "drive": node, "bus": bus });
                if let Shows::Google(name) = shows {
                    (disk["vendor"], disk["product"], disk["device_id"]) =
                        (json!("Google"), json!("PersistentDisk"), json!(name));
                } else if let Shows::Scsi(serial) = shows {
                    disk["serial"] = json!(serial);
                }
                assert!(self.execute("device_add", disk));
            }
        }
    }

    /// Returns when the guest has released the disk.
    pub fn unplug(&self, volume: &str) {
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

/// What QEMU calls the parts of a volume: no name of it may be as long as a volume's.
fn part(volume: &str, kind: &str) -> String {
    format!("{kind}-{}", &volume[..volume.len().min(20)])
}
