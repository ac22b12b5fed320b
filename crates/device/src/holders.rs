//! What the kernel itself uses a block device for: mounts, swap, and devices on top of it, of the whole disk or of one of
//! its partitions.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::mountinfo::{self, Mount, unescape};

/// Devices on top of devices that are looked at.
const STACKED_MAX: usize = 8;

/// Where the kernel's tables are.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    sys: PathBuf,
    /// Mounts, and `/proc/swaps` as text: one look sees one state.
    mounts: Vec<Mount>,
    swaps: String,
}

/// Something that holds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A mount.
    Mount {
        /// The disk or partition.
        part: String,
        /// Where.
        place: String,
    },
    /// A mounted file system whose mount is not to be seen from here.
    FileSystem {
        /// The disk or partition.
        part: String,
        /// Its UUID.
        uuid: String,
    },
    /// Swap.
    Swap {
        /// The disk or partition, as it was named when it was turned on.
        path: String,
    },
    /// Another block device.
    Stacked {
        /// The disk or partition.
        part: String,
        /// What is on top of it.
        holder: Holder,
        /// What that is used for.
        above: Option<Box<Use>>,
    },
}

/// A block device on top of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    kind: Kind,
    /// As users name it.
    device: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A logical volume of this group.
    Lvm(String),
    /// An encrypted device of this name.
    Crypt(String),
    /// Another device of the device mapper, of this name.
    Mapped(String),
    Raid,
    Other,
}

/// A disk or partition, by its directory in sysfs.
struct Part {
    directory: PathBuf,
    /// The kernel's name.
    name: String,
    /// `major:minor`.
    number: String,
}

impl Tables {
    /// Those of this machine, as they are now.
    pub(crate) fn read() -> Self {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        Self { sys: "/sys".into(), mounts: mountinfo::read().unwrap_or_default(), swaps }
    }

    /// What the block device with this number is used for.
    pub(crate) fn uses_of(&self, device: u64) -> Vec<Use> {
        self.uses(&self.sys.join(format!("dev/block/{}:{}", major(device), minor(device))))
    }

    /// What the block device with this directory in sysfs is used for.
    pub(crate) fn uses(&self, directory: &Path) -> Vec<Use> {
        self.uses_below(directory, STACKED_MAX)
    }

    /// Where the block device with this directory in sysfs is mounted.
    pub(crate) fn mounted_on(&self, directory: &Path) -> Option<String> {
        self.uses(directory).into_iter().find_map(|found| match found {
            Use::Mount { place, .. } => Some(place),
            _ => None,
        })
    }

    fn uses_below(&self, directory: &Path, depth: usize) -> Vec<Use> {
        let mut uses = Vec::new();
        let partitions = entries(directory).filter(|entry| entry.join("partition").exists());
        for part in std::iter::once(directory.to_owned()).chain(partitions).filter_map(Part::at) {
            uses.extend(self.mounts_of(&part));
            let swap = self.swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescape);
            uses.extend(swap.filter(|path| part.is(path)).map(|path| Use::Swap { path: path.display().to_string() }));
            if depth == 0 {
                continue;
            }
            for holder in entries(&part.directory.join("holders")) {
                let above = self.uses_below(&holder, depth - 1).into_iter().next().map(Box::new);
                uses.extend(Holder::at(&holder).map(|holder| Use::Stacked { part: part.shown(), holder, above }));
            }
        }
        uses
    }

    /// A mount's number is that of its device, unless the file system may have several devices (btrfs): those have numbers
    /// of their own, and name one of their devices as the source.
    fn mounts_of(&self, part: &Part) -> Vec<Use> {
        let (uuid, members) = self.btrfs_with(part).unzip();
        let members = members.unwrap_or_default();
        let is_member = |source: &Path| part.is(source) || members.iter().any(|member| member.is(source));
        let is_it = |mount: &&Mount| match mount.number.starts_with("0:") {
            false => mount.number == part.number,
            true => mount.source.starts_with("/dev") && is_member(&mount.source),
        };
        let mounts = self.mounts.iter().filter(is_it);
        let mut uses: Vec<Use> =
            mounts.map(|mount| Use::Mount { part: part.shown(), place: mount.point.display().to_string() }).collect();
        if let (true, Some(uuid)) = (uses.is_empty(), uuid) {
            uses.push(Use::FileSystem { part: part.shown(), uuid });
        }
        uses
    }

    /// The mounted btrfs that a device belongs to: its UUID, and all of its devices.
    fn btrfs_with(&self, part: &Part) -> Option<(String, Vec<Part>)> {
        entries(&self.sys.join("fs/btrfs")).find_map(|file_system| {
            let members: Vec<Part> = entries(&file_system.join("devices")).filter_map(Part::at).collect();
            let uuid = file_system.file_name()?.to_string_lossy().into_owned();
            members.iter().any(|member| member.number == part.number).then_some((uuid, members))
        })
    }
}

impl Part {
    fn at(directory: PathBuf) -> Option<Self> {
        let number = fs::read_to_string(directory.join("dev")).ok()?.trim().to_owned();
        let name = fs::canonicalize(&directory).ok()?.file_name()?.to_string_lossy().into_owned();
        Some(Self { directory, name, number })
    }

    fn shown(&self) -> String {
        node(&self.name)
    }

    /// Whether a name in `/dev` is this device's.
    fn is(&self, path: &Path) -> bool {
        let has_its_number = || {
            let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
            Some(format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev())) == self.number)
        };
        path == Path::new(&self.shown()) || path.starts_with("/dev") && has_its_number() == Some(true)
    }
}

impl Holder {
    fn at(directory: &Path) -> Option<Self> {
        let name = fs::canonicalize(directory).ok()?.file_name()?.to_string_lossy().into_owned();
        let text = |name: &str| Some(fs::read_to_string(directory.join(name)).ok()?.trim_end().to_owned());
        let Some(mapped) = text("dm/name") else {
            let kind = if directory.join("md").exists() { Kind::Raid } else { Kind::Other };
            return Some(Self { kind, device: node(&name) });
        };
        let uuid = text("dm/uuid").unwrap_or_default();
        let device = format!("/dev/mapper/{mapped}");
        let kind = match uuid.split('-').next() {
            Some("LVM") => Kind::Lvm(group_of(&mapped)),
            Some("CRYPT") => Kind::Crypt(mapped),
            _ => Kind::Mapped(mapped),
        };
        Some(Self { kind, device })
    }

    /// What it is, for sentences.
    fn shown(&self) -> String {
        let what = match self.kind {
            Kind::Lvm(_) => "the LVM volume",
            Kind::Crypt(_) => "the encrypted device",
            Kind::Mapped(_) => "the mapped device",
            Kind::Raid => "the RAID",
            Kind::Other => "the device",
        };
        format!("{what} {}", self.device)
    }

    /// The command that ends it, if there is one.
    fn remedy(&self) -> Option<String> {
        match &self.kind {
            Kind::Lvm(group) => Some(format!("vgchange -an {group}")),
            Kind::Crypt(name) => Some(format!("cryptsetup close {name}")),
            Kind::Mapped(name) => Some(format!("dmsetup remove {name}")),
            Kind::Raid => Some(format!("mdadm --stop {}", self.device)),
            Kind::Other => None,
        }
    }
}

impl Use {
    /// What the device is used for, and the remedy: the end of a sentence that begins with its path.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Mount { part, place } => {
                format!("is in use: {part} is mounted on {place}; unmount it first (umount {place})")
            }
            Self::FileSystem { part, uuid } => format!(
                "is in use: {part} belongs to the btrfs file system {uuid}, which is mounted where it cannot be seen from \
                 here; unmount it there first"
            ),
            Self::Swap { path } => format!("is in use as swap; turn that off first (swapoff {path})"),
            Self::Stacked { part, holder, .. } => {
                let commands = self.commands().join("; ");
                let remedy =
                    if commands.is_empty() { "end that first".into() } else { format!("end that first ({commands})") };
                format!("is in use: {part} is part of {}{}; {remedy}", holder.shown(), self.said_above())
            }
        }
    }

    fn said_above(&self) -> String {
        let Self::Stacked { above: Some(above), .. } = self else { return String::new() };
        match &**above {
            Self::Mount { place, .. } => format!(", which is mounted on {place}"),
            Self::FileSystem { uuid, .. } => format!(", which belongs to the btrfs file system {uuid}"),
            Self::Swap { .. } => ", which is swap".to_owned(),
            Self::Stacked { holder, .. } => format!(", which is part of {}{}", holder.shown(), above.said_above()),
        }
    }

    /// What ends it, from the top.
    fn commands(&self) -> Vec<String> {
        match self {
            Self::Mount { place, .. } => vec![format!("umount {place}")],
            Self::Swap { path } => vec![format!("swapoff {path}")],
            Self::FileSystem { .. } => Vec::new(),
            Self::Stacked { holder, above, .. } => {
                let above = above.as_ref().map(|above| above.commands()).unwrap_or_default();
                above.into_iter().chain(holder.remedy()).collect()
            }
        }
    }

    /// Who uses the device, for a list.
    pub(crate) fn user(&self) -> String {
        match self {
            Self::Mount { place, .. } => format!("the mount {place}"),
            Self::FileSystem { uuid, .. } => format!("the btrfs file system {uuid}, mounted out of sight"),
            Self::Swap { .. } => "swap".to_owned(),
            Self::Stacked { holder, .. } => format!("{}{}", holder.shown(), self.said_above()),
        }
    }
}

/// The volume group in the device mapper's name of a logical volume: hyphens within names are doubled.
fn group_of(mapped: &str) -> String {
    const HYPHEN: &str = "\u{0}";
    let single = mapped.replace("--", HYPHEN);
    single.split('-').next().unwrap_or_default().replace(HYPHEN, "-")
}

/// The node of a device with this name of the kernel's.
fn node(name: &str) -> String {
    format!("/dev/{}", name.replace('!', "/"))
}

pub(crate) fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries.into_iter()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs of our own, and the texts of the other tables.
    struct Machine {
        root: tempfile::TempDir,
        mounts: String,
        swaps: String,
    }

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            Self { root, mounts: String::new(), swaps: "Filename Type Size Used Priority\n".into() }
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A disk with this name and number.
        fn disk(&self, name: &str, number: &str) {
            self.put(&format!("block/{name}/dev"), &format!("{number}\n"));
            fs::create_dir_all(self.root.path().join("dev/block")).unwrap();
            symlink(format!("../../block/{name}"), self.root.path().join("dev/block").join(number)).unwrap();
        }

        fn hold(&self, below: &str, holder: &str) {
            let holders = self.root.path().join("block").join(below).join("holders");
            fs::create_dir_all(&holders).unwrap();
            let up = if below.contains('/') { "../../.." } else { "../.." };
            symlink(format!("{up}/{holder}"), holders.join(holder)).unwrap();
        }

        fn mapped(&self, number: &str, name: &str, uuid: &str) -> String {
            let directory = format!("dm-{}", number.split(':').nth(1).unwrap());
            self.disk(&directory, number);
            self.put(&format!("block/{directory}/dm/name"), &format!("{name}\n"));
            self.put(&format!("block/{directory}/dm/uuid"), &format!("{uuid}\n"));
            directory
        }

        fn btrfs(&self, uuid: &str, devices: &[&str]) {
            let directory = self.root.path().join("fs/btrfs").join(uuid).join("devices");
            fs::create_dir_all(&directory).unwrap();
            for device in devices {
                let name = device.rsplit('/').next().unwrap();
                symlink(format!("../../../../block/{device}"), directory.join(name)).unwrap();
            }
        }

        fn sentence(&self, disk: &str) -> Option<String> {
            let tables = Tables {
                sys: self.root.path().to_owned(),
                mounts: mountinfo::parse(&self.mounts),
                swaps: self.swaps.clone(),
            };
            tables.uses(&self.root.path().join("block").join(disk)).first().map(Use::sentence)
        }
    }

    #[test]
    fn a_plain_mount_is_found_by_its_number_and_a_free_disk_is_free() {
        let mut machine = Machine::new();
        machine.disk("zz1", "252:1");
        machine.put("block/zz1/zz1p2/dev", "252:3\n");
        machine.put("block/zz1/zz1p2/partition", "2\n");
        machine.mounts =
            "22 1 252:9 / / rw shared:1 - ext4 /dev/zz9 rw\nnonsense\n30 22 0:5 / /dev rw - tmpfs tmpfs rw\n".into();
        assert_eq!(machine.sentence("zz1"), None);
        machine.mounts += "31 22 252:3 / /srv/a\\040place rw - ext4 /dev/root rw\n";
        let expected = "is in use: /dev/zz1p2 is mounted on /srv/a place; unmount it first (umount /srv/a place)";
        assert_eq!(machine.sentence("zz1").unwrap(), expected);
    }

    #[test]
    fn a_btrfs_is_found_by_each_of_its_devices() {
        let mut machine = Machine::new();
        for (disk, number) in [("zz1", "252:1"), ("zz2", "252:2"), ("zz3", "252:3")] {
            machine.disk(disk, number);
        }
        machine.mounts = "31 22 0:45 /sub /srv/b rw,noatime shared:9 - btrfs /dev/zz1 rw\n".into();
        let expected = |disk| format!("is in use: /dev/{disk} is mounted on /srv/b; unmount it first (umount /srv/b)");
        assert_eq!(machine.sentence("zz1"), Some(expected("zz1")), "its source names it");
        assert_eq!(machine.sentence("zz2"), None);
        machine.btrfs("11-22", &["zz1", "zz2"]);
        assert_eq!(machine.sentence("zz2"), Some(expected("zz2")), "a file system of two devices");
        assert_eq!(machine.sentence("zz3"), None);
        machine.mounts.clear();
        assert!(
            machine.sentence("zz2").unwrap().contains("belongs to the btrfs file system 11-22"),
            "another namespace"
        );
    }

    #[test]
    fn swap_is_found_by_its_path() {
        let mut machine = Machine::new();
        machine.disk("zz1", "252:1");
        machine.swaps += "/swapfile file 1 0 -2\n/dev/zz10 partition 1 0 -2\n";
        assert_eq!(machine.sentence("zz1"), None);
        machine.swaps += "/dev/zz1 partition 1 0 -2\n";
        let expected = "is in use as swap; turn that off first (swapoff /dev/zz1)";
        assert_eq!(machine.sentence("zz1").unwrap(), expected);
    }

    #[test]
    fn devices_on_top_are_named_as_users_know_them_with_what_they_are_used_for() {
        let mut machine = Machine::new();
        machine.disk("zz1", "252:1");
        let volume = machine.mapped("253:0", "my--group-data--1", "LVM-abc");
        machine.hold("zz1", &volume);
        machine.mounts = "31 22 253:0 / /srv/c rw - ext4 /dev/mapper/my--group-data--1 rw\n".into();
        assert_eq!(
            machine.sentence("zz1").unwrap(),
            "is in use: /dev/zz1 is part of the LVM volume /dev/mapper/my--group-data--1, which is mounted on /srv/c; end that \
             first (umount /srv/c; vgchange -an my-group)"
        );
        // Encryption on RAID, for swap.
        machine.disk("zz2", "252:2");
        machine.disk("md7", "9:7");
        machine.put("block/md7/md/level", "raid1\n");
        machine.hold("zz2", "md7");
        let secret = machine.mapped("253:1", "secret", "CRYPT-LUKS2-abc-secret");
        machine.hold("md7", &secret);
        machine.swaps += "/dev/dm-1 partition 1 0 -2\n";
        assert_eq!(
            machine.sentence("zz2").unwrap(),
            "is in use: /dev/zz2 is part of the RAID /dev/md7, which is part of the encrypted device /dev/mapper/secret, which \
             is swap; end that first (swapoff /dev/dm-1; cryptsetup close secret; mdadm --stop /dev/md7)"
        );
        machine.disk("zz3", "252:3");
        let mapped = machine.mapped("253:2", "plain", "");
        machine.hold("zz3", &mapped);
        let expected =
            "is in use: /dev/zz3 is part of the mapped device /dev/mapper/plain; end that first (dmsetup remove plain)";
        assert_eq!(machine.sentence("zz3").unwrap(), expected);
        machine.disk("zz4", "252:4");
        machine.disk("bcache0", "251:0");
        machine.hold("zz4", "bcache0");
        assert_eq!(
            machine.sentence("zz4").unwrap(),
            "is in use: /dev/zz4 is part of the device /dev/bcache0; end that first"
        );
    }

    #[test]
    fn devices_that_hold_each_other_end() {
        let machine = Machine::new();
        machine.disk("zz1", "252:1");
        machine.disk("zz2", "252:2");
        machine.hold("zz1", "zz2");
        machine.hold("zz2", "zz1");
        assert!(machine.sentence("zz1").is_some());
    }

    #[test]
    fn hyphens_of_volume_groups() {
        assert_eq!(["vg-lv", "my--vg-lv", "a----b-c--d", "plain"].map(group_of), ["vg", "my-vg", "a--b", "plain"]);
    }
}
