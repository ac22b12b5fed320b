//! Finding disks by their serial: over tables of our own making, with announcements of our own, and against a real
//! block device.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use surgetank_device::discovery::{DiscoveryError, Disks, Watch, is_about_a_disk};
use surgetank_device::{FileVolume, Options, Volume};
use surgetank_model::volume::DiskIdentity;
use tempfile::TempDir;

/// Tables as the kernel has them.
struct Tables(TempDir);

impl Tables {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        for part in ["sys/block", "sys/dev/block", "dev"] {
            fs::create_dir_all(directory.path().join(part)).unwrap();
        }
        Self(directory)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn disks(&self) -> Disks {
        Disks::under(self.path("sys"), self.path("dev"))
    }

    /// A disk appears, without a node in `/dev`.
    fn appears(&self, name: &str, serial: Option<&str>) {
        let place = self.path("sys/block").join(name);
        fs::create_dir_all(&place).unwrap();
        if let Some(serial) = serial {
            fs::write(place.join("serial"), serial).unwrap();
        }
    }

    fn node(&self, name: &str) {
        fs::write(self.path("dev").join(name), "").unwrap();
    }

    fn goes(&self, name: &str) {
        fs::remove_dir_all(self.path("sys/block").join(name)).unwrap();
        fs::remove_file(self.path("dev").join(name)).unwrap();
    }
}

const SERIAL: &str = "vol-0123456789abcdef";

fn serial(serial: &str) -> DiskIdentity {
    DiskIdentity::Serial(serial.to_owned())
}

#[test]
fn a_disk_is_found_when_it_has_appeared_with_its_node() {
    let tables = Tables::new();
    let disks = tables.disks();
    tables.appears("vda", None);
    tables.appears("vdb", Some("vol-0000000000000000\n"));
    tables.node("vdb");
    assert_eq!(disks.find(&serial(SERIAL)), Ok(None), "never, for all we know");
    tables.appears("vdc", Some(SERIAL));
    assert_eq!(disks.find(&serial(SERIAL)), Ok(None), "its node comes later");
    tables.node("vdc");
    assert_eq!(disks.find(&serial(SERIAL)), Ok(Some(tables.path("dev/vdc"))));
    tables.goes("vdc");
    assert_eq!(disks.find(&serial(SERIAL)), Ok(None));
    // It comes back under another name.
    tables.appears("vdd", Some(SERIAL));
    tables.node("vdd");
    assert_eq!(disks.find(&serial(SERIAL)), Ok(Some(tables.path("dev/vdd"))));
}

#[test]
fn a_disk_that_appears_twice_is_not_chosen() {
    let tables = Tables::new();
    for name in ["vdc", "vdb"] {
        tables.appears(name, Some(SERIAL));
        tables.node(name);
    }
    let error = tables.disks().find(&serial(SERIAL)).unwrap_err();
    let (first, second) = ("vdb".to_owned(), "vdc".to_owned());
    assert_eq!(error, DiscoveryError::Twice { identity: serial(SERIAL), first, second });
    assert!(error.to_string().contains("detach the one that is not"), "{error}");
}

#[test]
fn serials_that_are_padded_cut_or_kept_elsewhere() {
    let tables = Tables::new();
    fs::create_dir_all(tables.path("sys/block/nvme1n1/device")).unwrap();
    fs::write(tables.path("sys/block/nvme1n1/device/serial"), "vol0123456789abcdef0\n").unwrap();
    tables.node("nvme1n1");
    assert_eq!(tables.disks().find(&serial("vol0123456789abcdef0")), Ok(Some(tables.path("dev/nvme1n1"))), "NVMe");
    fs::create_dir_all(tables.path("sys/block/sdb/device")).unwrap();
    fs::write(tables.path("sys/block/sdb/device/vpd_pg80"), b"\0\x80\0\x08vol-scsi").unwrap();
    tables.node("sdb");
    assert_eq!(tables.disks().find(&serial("vol-scsi")), Ok(Some(tables.path("dev/sdb"))), "SCSI");
    tables.appears("sda", Some("  padded \0\0"));
    tables.node("sda");
    assert_eq!(tables.disks().find(&serial("padded")), Ok(Some(tables.path("dev/sda"))));
    assert_eq!(tables.disks().find(&serial("")), Ok(None), "no serial is not an empty one");
    let long = "0f9be4a2-8b1c-4a3d-9b65-2f1d7c0e5a77";
    tables.appears("vdz", Some(&long[..20]));
    tables.node("vdz");
    assert_eq!(tables.disks().find(&serial(long)), Ok(Some(tables.path("dev/vdz"))), "virtio shows 20 bytes");
    assert_eq!(tables.disks().find(&serial(&long[..25])), Ok(Some(tables.path("dev/vdz"))));
    assert_eq!(tables.disks().find(&serial(&long[..19])), Ok(None), "but a shorter one is another");
    tables.appears("vdy", Some(&long[..19]));
    assert_eq!(tables.disks().find(&serial(long)), Ok(Some(tables.path("dev/vdz"))), "nor is one that was not cut");
    fs::create_dir_all(tables.path("dev/cciss")).unwrap();
    tables.appears("cciss!c0d0", Some("old"));
    tables.node("cciss/c0d0");
    assert_eq!(tables.disks().find(&serial("old")), Ok(Some(tables.path("dev/cciss/c0d0"))), "a name with a slash");
}

#[test]
fn names_and_numbers_are_those_of_their_makers_disks_alone() {
    let tables = Tables::new();
    let write = |disk: &str, file: &str, bytes: &[u8]| {
        let path = tables.path("sys/block").join(disk).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        tables.node(disk);
    };
    let page = b"\0\x83\0\x08\x02\0\0\x04disk";
    let (name, lun) = (DiskIdentity::Name("disk".to_owned()), DiskIdentity::Lun);
    write("sda", "device/vendor", b"ATA     \n");
    write("sda", "device/vpd_pg83", page);
    assert_eq!(tables.disks().find(&name), Ok(None), "another maker's");
    write("sdb", "device/vendor", b"Google  \n");
    assert!(tables.disks().identities().is_err(), "it has a name, and does not tell");
    write("sdb", "device/vpd_pg83", page);
    assert_eq!(tables.disks().find(&name), Ok(Some(tables.path("dev/sdb"))));
    // Azure's: the first namespace is the system's.
    for (disk, model, namespace) in [
        ("nvme0n1", "MSFT NVMe Accelerator v1.0", "1"),
        ("nvme0n3", "MSFT NVMe Accelerator v1.0", "3"),
        ("nvme1n2", "Other", "2"),
    ] {
        write(disk, "device/model", model.as_bytes());
        write(disk, "nsid", namespace.as_bytes());
    }
    // A path of a disk that has several.
    write("nvme0c0n3", "device/model", b"MSFT NVMe Accelerator v1.0");
    write("nvme0c0n3", "nsid", b"3");
    write("nvme0c0n3", "hidden", b"1\n");
    assert_eq!(tables.disks().find(&lun(1)), Ok(Some(tables.path("dev/nvme0n3"))));
    assert_eq!(tables.disks().find(&lun(0)), Ok(None));
    let all = tables.disks().identities().unwrap();
    assert!(all.contains(&name) && all.contains(&lun(1)) && all.len() == 2, "{all:?}");
}

#[test]
fn numbers_are_those_of_disks_beneath_a_controller_of_data_disks() {
    let tables = Tables::new();
    // Of the first controller one is the system's, and one the temporary disk.
    for (disk, controller, address) in
        [("sda", 'a', "0:0:0:1"), ("sdb", 'b', "1:0:0:2"), ("sdc", 'c', "2:0:0:3"), ("sdd", 'd', "3:0:0:4")]
    {
        let above = tables.path("sys/devices").join(disk);
        let device = above.join("host").join(address);
        fs::create_dir_all(&device).unwrap();
        fs::write(above.join("device_id"), format!("{{f8b3781{controller}-1e82-4818-a1c3-63d806ec15bb}}\n")).unwrap();
        let shown = tables.path("sys/block").join(disk);
        fs::create_dir_all(&shown).unwrap();
        symlink(device, shown.join("device")).unwrap();
        tables.node(disk);
    }
    for (lun, disk) in [(1, None), (2, Some("dev/sdb")), (3, Some("dev/sdc")), (4, Some("dev/sdd"))] {
        assert_eq!(tables.disks().find(&DiskIdentity::Lun(lun)), Ok(disk.map(|disk| tables.path(disk))), "{lun}");
    }
}

#[test]
fn tables_that_cannot_be_read_are_an_error_and_a_file_is_no_disk() {
    let tables = Tables::new();
    let nowhere = Disks::under(tables.path("nowhere"), tables.path("dev"));
    assert!(matches!(nowhere.find(&serial(SERIAL)), Err(DiscoveryError::Unreadable(_))));
    let file = fs::File::create(tables.path("file")).unwrap();
    let error = tables.disks().verify(file.as_fd(), &serial(SERIAL), 0).unwrap_err();
    assert!(error.to_string().contains("no block device"), "{error}");
}

/// A loop device over a file, detached when it is dropped.
struct Loop(String);

impl Loop {
    fn over(file: &std::path::Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        made.status.success().then(|| Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn what_was_opened_is_verified_and_not_what_was_found() {
    let tables = Tables::new();
    let image = tables.path("image");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let Some(device) = Loop::over(&image) else {
        println!("skipped: no loop device can be had (needs root)");
        return;
    };
    let name = device.0.strip_prefix("/dev/").unwrap();
    let disks = Disks::under(tables.path("sys"), "/dev");
    let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
    tables.appears(name, Some(SERIAL));
    symlink(format!("../../block/{name}"), tables.path("sys/dev/block").join(number.trim())).unwrap();
    let found = disks.find(&serial(SERIAL)).unwrap().unwrap();
    assert_eq!(found, PathBuf::from(&device.0));
    let volume = FileVolume::open(&found, Options::default()).unwrap();
    assert_eq!(volume.size(), 1 << 20);
    assert_eq!(disks.verify(volume.as_fd(), &serial(SERIAL), 1 << 20), Ok(()));
    let says = |size, expected: &str| {
        let error = disks.verify(volume.as_fd(), &serial(SERIAL), size).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    says(1 << 21, "has 1048576 bytes instead of 2097152");
    // Between the look and the opening the disk went, and another came under its name.
    fs::write(tables.path("sys/block").join(name).join("serial"), "vol-fedcba9876543210").unwrap();
    says(1 << 20, "has the serial \"vol-fedcba9876543210\" instead of");
    fs::remove_file(tables.path("sys/block").join(name).join("serial")).unwrap();
    says(1 << 20, "has none any more");
}

/// As the kernel writes them.
const ADDED: &[u8] = b"add@/devices/pci0000:00/0000:00:04.0/0000:01:00.0/virtio3/block/vdb\0ACTION=add\0DEVPATH=/devices/pci0000:00/0000:00:04.0/0000:01:00.0/virtio3/block/vdb\0SUBSYSTEM=block\0MAJOR=254\0MINOR=16\0DEVNAME=vdb\0DEVTYPE=disk\0DISKSEQ=9\0SEQNUM=1312\0";
const PARTITION: &[u8] = b"add@/devices/x/block/vdb/vdb1\0ACTION=add\0SUBSYSTEM=block\0DEVTYPE=partition\0";
const OTHER: &[u8] = b"add@/devices/x\0ACTION=add\0SUBSYSTEM=pci\0";

#[test]
fn announcements_of_disks_are_told_from_others() {
    assert!(is_about_a_disk(ADDED));
    for other in [PARTITION, OTHER, b"", b"\0", b"SUBSYSTEM=block\0DEVTYPE=disk\0", b"libudev\0\xfe\xed\xca\xfe"] {
        assert!(!is_about_a_disk(other), "{:?}", String::from_utf8_lossy(other));
    }
}

proptest! {
    #[test]
    fn no_announcement_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0..ADDED.len()) {
        let _ = is_about_a_disk(&bytes);
        let _ = is_about_a_disk(&ADDED[..cut]);
    }
}

#[test]
fn a_watch_tells_of_disks_alone_and_ends() {
    let (kernel, ours) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (tell, told) = mpsc::channel();
    let watch = Watch::over(OwnedFd::from(ours), move || tell.send(()).unwrap()).unwrap();
    kernel.send(OTHER).unwrap();
    kernel.send(PARTITION).unwrap();
    kernel.send(ADDED).unwrap();
    told.recv_timeout(Duration::from_secs(60)).expect("it tells of the disk");
    kernel.send(&[0; 20_000]).unwrap();
    kernel.send(OTHER).unwrap();
    kernel.send(ADDED).unwrap();
    told.recv_timeout(Duration::from_secs(60)).expect("it goes on after odd ones");
    drop(watch);
    assert!(told.recv().is_err(), "nothing else, and the thread has ended");
}

#[test]
fn the_kernel_is_listened_to_where_it_speaks() {
    match Watch::start(|| {}) {
        Ok(watch) => drop(watch),
        Err(error) => println!("skipped: no uevents here: {error}"),
    }
}
