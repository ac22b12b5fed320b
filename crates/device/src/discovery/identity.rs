//! By what a disk can be told from the others: what the kernel shows of it under `/sys`, and what only the disk itself says.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use surgetank_model::volume::DiskIdentity;

use super::nvme;

/// The longest serial that a virtio disk shows, in bytes; longer ones are cut (VIRTIO 1.2, 5.2.6).
const VIRTIO_SERIAL_BYTES: usize = 20;
/// Where a disk's directory has its serial, after so many bytes: virtio has it at the disk, NVMe at the controller, and of SCSI the kernel
/// shows the whole page 0x80, which begins with its number and length (SPC-5, 7.7.17).
const SERIALS: &[(&str, usize)] = &[("serial", 0), ("device/serial", 0), ("device/vpd_pg80", 4)];
/// What Google's SCSI disks say who made them, and the model of its NVMe disks, all of which have one serial.
const GOOGLE_SCSI_VENDOR: &str = "Google";
const GOOGLE_NVME_MODEL: &str = "nvme_card-pd";
/// The model of Azure's NVMe disks, and the first namespace of a data disk: the one before is the system's.
const AZURE_NVME_MODEL: &str = "MSFT NVMe Accelerator v1.0";
const AZURE_NVME_FIRST: u32 = 2;
/// The controllers of Azure's SCSI data disks, as the virtual bus calls them. The first one, which ends its first part in `a`, is that of
/// the system's disk and the temporary one.
const AZURE_SCSI_CONTROLLERS: [&str; 3] = [
    "{f8b3781b-1e82-4818-a1c3-63d806ec15bb}",
    "{f8b3781c-1e82-4818-a1c3-63d806ec15bb}",
    "{f8b3781d-1e82-4818-a1c3-63d806ec15bb}",
];

/// A disk itself, which is asked only if it is one that tells what the kernel does not.
#[derive(Clone, Copy)]
pub(super) enum Itself<'a> {
    Node(&'a Path),
    Open(BorrowedFd<'a>),
}

/// A disk, and its directory of the kernel's.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub directory: &'a Path,
    pub disk: Itself<'a>,
}

/// What a disk has of a kind: nothing; something that cannot be read now; or this.
enum Has<T> {
    Nothing,
    Untold,
    This(T),
}

impl<T> Has<T> {
    fn of(told: Option<T>) -> Self {
        told.map_or(Self::Untold, Self::This)
    }

    fn told(self) -> Option<T> {
        match self {
            Self::This(told) => Some(told),
            Self::Nothing | Self::Untold => None,
        }
    }
}

impl Shown<'_> {
    /// All by which it could be meant; `None`: it has a name or a number that cannot be read now.
    pub fn identities(self) -> Option<Vec<DiskIdentity>> {
        let (name, lun) = (self.name(), self.lun());
        if matches!(name, Has::Untold) || matches!(lun, Has::Untold) {
            return None;
        }
        let shown = [self.serial().map(DiskIdentity::Serial), name.told().map(DiskIdentity::Name)];
        Some(shown.into_iter().flatten().chain(lun.told().map(DiskIdentity::Lun)).collect())
    }

    /// What it shows of the kind of `wanted`; `None`: nothing, or it is going.
    pub fn like(self, wanted: &DiskIdentity) -> Option<DiskIdentity> {
        match wanted {
            DiskIdentity::Serial(_) => self.serial().map(DiskIdentity::Serial),
            DiskIdentity::Name(_) => self.name().told().map(DiskIdentity::Name),
            DiskIdentity::Lun(_) => self.lun().told().map(DiskIdentity::Lun),
        }
    }

    /// Without the spaces that fill it up.
    fn serial(self) -> Option<String> {
        SERIALS.iter().find_map(|(place, head)| {
            let bytes = self.read(place)?;
            text(bytes.get(*head..).unwrap_or_default())
        })
    }

    /// The name under which Google's hypervisor attached it. Of SCSI disks it is a designator, of NVMe disks it lies in what the
    /// namespace says of itself.
    fn name(self) -> Has<String> {
        if self.is("device/vendor", GOOGLE_SCSI_VENDOR) {
            return Has::of(self.read("device/vpd_pg83").and_then(|page| vendors_designator(&page)));
        }
        if self.is("device/model", GOOGLE_NVME_MODEL) {
            return Has::of(self.vendors_part().and_then(|bytes| device_name(&bytes)));
        }
        Has::Nothing
    }

    fn vendors_part(self) -> Option<Vec<u8>> {
        match self.disk {
            Itself::Open(disk) => nvme::vendors_part(disk),
            Itself::Node(node) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                nvme::vendors_part(rustix::fs::open(node, flags, Mode::empty()).ok()?.as_fd())
            }
        }
    }

    /// The logical unit as which Azure attached it.
    fn lun(self) -> Has<u32> {
        if self.is("device/model", AZURE_NVME_MODEL) {
            let namespace = self.read("nsid").and_then(|bytes| text(&bytes)?.parse::<u32>().ok());
            return match namespace {
                Some(namespace) => namespace.checked_sub(AZURE_NVME_FIRST).map_or(Has::Nothing, Has::This),
                None => Has::Untold,
            };
        }
        // …/host3/target3:0:0/3:0:0:2, beneath the controller.
        let Ok(device) = fs::canonicalize(self.directory.join("device")) else { return Has::Nothing };
        let is_data = device.ancestors().skip(1).any(|above| {
            let id = fs::read(above.join("device_id")).ok().and_then(|id| text(&id));
            id.is_some_and(|id| AZURE_SCSI_CONTROLLERS.contains(&&*id))
        });
        if !is_data {
            return Has::Nothing;
        }
        let address = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Has::of(address.split(':').nth(3).and_then(|lun| lun.parse().ok()))
    }

    fn is(self, place: &str, wanted: &str) -> bool {
        self.read(place).and_then(|bytes| text(&bytes)).is_some_and(|there| there == wanted)
    }

    fn read(self, place: &str) -> Option<Vec<u8>> {
        match fs::read(self.directory.join(place)) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    tracing::debug!(disk = %self.directory.display(), %error, "{place} cannot be read");
                }
                None
            }
        }
    }
}

/// Without what fills it up; `None` if nothing is left.
fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The designator of SCSI's page 0x83 that is the vendor's own, in ASCII, of the logical unit (SPC-5, 7.7.6).
fn vendors_designator(page: &[u8]) -> Option<String> {
    const ASCII: u8 = 2;
    const VENDORS_OWN: u8 = 0;
    let mut rest = page.get(4..)?;
    while let [set, kind, _, length, after @ ..] = rest {
        let designator = after.get(..usize::from(*length))?;
        // The kind has the association in bits 4 and 5: 0 is the logical unit.
        if (set & 0x0f, kind & 0x3f) == (ASCII, VENDORS_OWN) {
            return text(designator);
        }
        rest = &after[designator.len()..];
    }
    None
}

/// `device_name` of a JSON object that a zero byte ends, or the end.
fn device_name(bytes: &[u8]) -> Option<String> {
    let object = bytes.split(|byte| *byte == 0).next()?;
    let object: serde_json::Value = serde_json::from_slice(object).ok()?;
    object["device_name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Whether a disk that shows `there` is the one that is `wanted`: virtio cuts long serials.
#[must_use]
pub fn is_same(there: &DiskIdentity, wanted: &DiskIdentity) -> bool {
    match (there, wanted) {
        (DiskIdentity::Serial(there), DiskIdentity::Serial(wanted)) => {
            let cut = there.len() == VIRTIO_SERIAL_BYTES && wanted.len() > VIRTIO_SERIAL_BYTES;
            there == wanted || (cut && wanted.starts_with(there.as_str()))
        }
        _ => there == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_from_what_disks_say() {
        let designator = |set: u8, kind: u8, value: &[u8]| [&[set, kind, 0, value.len() as u8], value].concat();
        let page = |designators: &[Vec<u8>]| [&[0, 0x83, 0, 0][..], &designators.concat()].concat();
        let naa = designator(1, 3, &[0x60; 16]);
        let of_port = designator(2, 0x10, b"port");
        let name = designator(2, 0, b"surgetank-0f  ");
        assert_eq!(vendors_designator(&page(&[naa.clone(), of_port.clone(), name])), Some("surgetank-0f".to_owned()));
        assert_eq!(vendors_designator(&page(&[naa, of_port])), None);
        assert_eq!(vendors_designator(&[]), None);
        let object = b"{\"device_name\":\"surgetank-0f\",\"disk_type\":\"PERSISTENT\"}\0\0\0";
        assert_eq!(device_name(object), Some("surgetank-0f".to_owned()));
        for other in [&b"\0\0"[..], b"{}", b"{\"device_name\":\"\"}", b"{\"device_name\":3}", b"{\"device_name\":\"x\""]
        {
            assert_eq!(device_name(other), None);
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_disk_says_is_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (vendors_designator(&bytes), device_name(&bytes), text(&bytes));
        }
    }
}
