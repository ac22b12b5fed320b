//! Tables of our own in the place of the kernel's, in which loop devices are the disks of a machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use surgetank_device::discovery::Disks;
use surgetank_provider::DiskIdentity;

/// A loop device, until it is dropped.
pub struct Loop {
    pub device: PathBuf,
}

impl Loop {
    /// `None` where none can be had, which needs root.
    pub fn over(image: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let device = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        made.status.success().then_some(Self { device })
    }

    fn name(&self) -> &str {
        self.device.file_name().and_then(|name| name.to_str()).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// What the kernel tells of disks.
pub struct Tables(PathBuf);

impl Tables {
    pub fn new(root: PathBuf) -> Self {
        for part in ["sys/block", "sys/dev/block"] {
            fs::create_dir_all(root.join(part)).unwrap();
        }
        Self(root)
    }

    /// What a daemon looks into.
    pub fn disks(&self) -> Disks {
        Disks::under(self.0.join("sys"), "/dev")
    }

    fn place(&self, disk: &Loop) -> PathBuf {
        self.0.join("sys/block").join(disk.name())
    }

    /// By a serial; by a name, as Google's SCSI disks; by a number, as Azure's.
    pub fn show(&self, disk: &Loop, identity: &DiskIdentity) {
        let place = self.place(disk);
        fs::create_dir_all(&place).unwrap();
        match identity {
            DiskIdentity::Serial(serial) => fs::write(place.join("serial"), serial).unwrap(),
            DiskIdentity::Name(name) => {
                let designator = [&[2, 0, 0, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
                fs::create_dir_all(place.join("device")).unwrap();
                fs::write(place.join("device/vendor"), "Google  \n").unwrap();
                fs::write(place.join("device/vpd_pg83"), [&[0, 0x83, 0, 0][..], &designator].concat()).unwrap();
            }
            DiskIdentity::Lun(lun) => {
                let controller = self.0.join("sys/devices/vmbus");
                let device = controller.join(format!("host3/target3:0:0/3:0:0:{lun}"));
                fs::create_dir_all(&device).unwrap();
                // It is of all disks: whoever looks meanwhile finds all of it.
                let id = controller.join("device_id");
                if !id.exists() {
                    fs::write(&id, "{f8b3781b-1e82-4818-a1c3-63d806ec15bb}\n").unwrap();
                }
                let _ = symlink(device, place.join("device"));
            }
        }
        let number = fs::read_to_string(Path::new("/sys/block").join(disk.name()).join("dev")).unwrap();
        let _ = symlink(Path::new("../../block").join(disk.name()), self.0.join("sys/dev/block").join(number.trim()));
    }

    /// It has left the machine.
    pub fn hide(&self, disk: &Loop) {
        let _ = fs::remove_dir_all(self.place(disk));
    }
}
