//! What the device mapper's control device and its users say to each other (linux/dm-ioctl.h), as plain data in the kernel's
//! layout.

use super::{MapperError, Table};

/// Bytes of `struct dm_ioctl`.
pub(super) const HEADER: usize = 312;
/// Bytes of `struct dm_target_spec`, which the target's text follows.
const TARGET: usize = 40;
/// Bytes of a buffer that has room for one target's status.
pub(super) const BUFFER: usize = 4096;
/// Longest name and longest unique name, in bytes, without the zero at the end.
pub(super) const NAME_MAX: usize = 127;
pub(super) const UNIQUE_NAME_MAX: usize = 128;
/// The version of the interface that has all we use (Linux 2.6.16).
const VERSION: [u32; 3] = [4, 6, 0];
const LINEAR: &[u8] = b"linear";
/// Bytes of a sector, as a power of two.
const SECTOR_SHIFT: u32 = 9;

/// Commands of `/dev/mapper/control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Create = 3,
    Remove = 4,
    Suspend = 6,
    LoadTable = 9,
    ClearTable = 10,
    TableStatus = 12,
}

impl Code {
    /// `_IOWR(0xfd, code, struct dm_ioctl)`.
    pub(super) const fn number(self) -> u32 {
        const BOTH: u32 = 3;
        BOTH << 30 | (HEADER as u32) << 16 | 0xfd << 8 | self as u32
    }
}

/// `DM_*_FLAG`: what is asked of a command, and what is answered.
pub(super) const SUSPEND: u32 = 1 << 1;
pub(super) const STATUS_TABLE: u32 = 1 << 4;
pub(super) const ACTIVE_PRESENT: u32 = 1 << 5;
pub(super) const BUFFER_FULL: u32 = 1 << 8;
/// Leave a file system on the device alone: what it has not written yet may stay so.
pub(super) const SKIP_LOCKFS: u32 = 1 << 10;

/// In the upper half of an event's number: the event comes from who manages the device, so that udev's rules believe it
/// (`DM_UDEV_PRIMARY_SOURCE_FLAG`). The lower half would name a semaphore that udev raises in the end; nobody waits for one.
pub(super) const PRIMARY_SOURCE: u32 = 0x40 << 16;

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    pub(super) code: Code,
    pub(super) name: &'a str,
    /// For a device that is created.
    pub(super) unique_name: &'a str,
    pub(super) flags: u32,
    pub(super) event: u32,
    /// For a table that is loaded.
    pub(super) table: Option<Table>,
}

impl Command<'_> {
    /// The buffer for the kernel, with room for its answer.
    ///
    /// # Errors
    /// If a name is too long, or has a zero in it.
    pub(super) fn encode(&self) -> Result<Vec<u8>, MapperError> {
        for (name, most) in [(self.name, NAME_MAX), (self.unique_name, UNIQUE_NAME_MAX)] {
            if name.len() > most || name.contains(['\0', '/']) {
                return Err(MapperError(format!(
                    "the device mapper takes no name like {name:?}: choose a shorter, plain one"
                )));
            }
        }
        let mut bytes = vec![0; BUFFER];
        for (index, number) in VERSION.into_iter().enumerate() {
            bytes[4 * index..4 * index + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes[12..16].copy_from_slice(&(BUFFER as u32).to_ne_bytes());
        bytes[16..20].copy_from_slice(&(HEADER as u32).to_ne_bytes());
        bytes[20..24].copy_from_slice(&u32::from(self.table.is_some()).to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.event.to_ne_bytes());
        bytes[48..48 + self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes[176..176 + self.unique_name.len()].copy_from_slice(self.unique_name.as_bytes());
        if let Some(Table { size, device: (major, minor) }) = self.table {
            let text = format!("{major}:{minor} 0\0");
            let target = &mut bytes[HEADER..];
            target[8..16].copy_from_slice(&(size >> SECTOR_SHIFT).to_ne_bytes());
            target[20..24].copy_from_slice(&((TARGET + text.len()).next_multiple_of(8) as u32).to_ne_bytes());
            target[24..24 + LINEAR.len()].copy_from_slice(LINEAR);
            target[TARGET..TARGET + text.len()].copy_from_slice(text.as_bytes());
        }
        Ok(bytes)
    }
}

/// What the kernel answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) flags: u32,
    pub(super) open_count: u32,
    pub(super) number: (u32, u32),
    pub(super) unique_name: String,
    /// The table, if it was asked for and is one linear target from a device's beginning.
    pub(super) table: Option<Table>,
}

impl Reply {
    /// `None` for what no kernel says.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER)?;
        let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let device = u64::from_ne_bytes(header[40..48].try_into().ok()?);
        let unique_name = header[176..305].split(|byte| *byte == 0).next()?;
        let targets = number(20)?;
        let start = number(16)? as usize;
        Some(Self {
            flags: number(28)?,
            open_count: number(24)?,
            // `huge_encode_dev`: twelve bits of the major number between the minor number's eight and twelve.
            number: ((device >> 8 & 0xfff) as u32, (device & 0xff | device >> 12 & 0xfff00) as u32),
            unique_name: String::from_utf8_lossy(unique_name).into_owned(),
            table: if targets == 1 { bytes.get(start..).and_then(decode_table) } else { None },
        })
    }
}

/// A target's `struct dm_target_spec` with its text.
fn decode_table(target: &[u8]) -> Option<Table> {
    let number = |at: usize| Some(u64::from_ne_bytes(target.get(at..at + 8)?.try_into().ok()?));
    let kind = target.get(24..TARGET)?.split(|byte| *byte == 0).next()?;
    let text = target.get(TARGET..)?.split(|byte| *byte == 0).next()?;
    let (device, offset) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    if number(0)? != 0 || kind != LINEAR || offset.trim() != "0" {
        return None;
    }
    Some(Table { size: number(8)?.checked_mul(1 << SECTOR_SHIFT)?, device: (major.parse().ok()?, minor.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_are_those_of_the_kernel() {
        // From the macros of linux/dm-ioctl.h, by hand.
        assert_eq!(Code::Create.number(), 0xc138_fd03);
        assert_eq!(Code::Suspend.number(), 0xc138_fd06);
        assert_eq!(Code::TableStatus.number(), 0xc138_fd0c);
    }

    #[test]
    fn a_command_lies_where_the_kernel_looks() {
        let table = Table { size: 1 << 20, device: (254, 16) };
        let command = Command {
            code: Code::LoadTable,
            name: "data",
            unique_name: "SURGETANK-1",
            flags: SUSPEND,
            event: PRIMARY_SOURCE,
            table: Some(table),
        };
        let bytes = command.encode().unwrap();
        assert_eq!(&bytes[..12], [4u32, 6, 0].map(u32::to_ne_bytes).concat());
        assert_eq!(&bytes[48..53], b"data\0");
        assert_eq!(&bytes[176..188], b"SURGETANK-1\0");
        assert_eq!(&bytes[336..343], b"linear\0");
        assert_eq!(&bytes[352..361], b"254:16 0\0");
        assert_eq!(Reply::decode(&bytes).unwrap().table, Some(table), "the kernel lays out its answer alike");
    }

    #[test]
    fn a_name_that_the_kernel_would_cut_is_refused() {
        fn taken(name: &str) -> bool {
            let command = Command { code: Code::TableStatus, name, unique_name: "", flags: 0, event: 0, table: None };
            command.encode().is_ok()
        }
        assert!(taken(&"x".repeat(127)));
        for name in ["x".repeat(128), "a\0b".to_owned(), "a/b".to_owned()] {
            assert!(!taken(&name), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn a_device_number_is_read_as_the_kernel_writes_it(major in 0u64..1 << 12, minor in 0u64..1 << 20) {
            let mut bytes = vec![0; HEADER];
            let encoded = minor & 0xff | major << 8 | (minor & !0xff) << 12;
            bytes[40..48].copy_from_slice(&encoded.to_ne_bytes());
            let number = Reply::decode(&bytes).unwrap().number;
            prop_assert_eq!((u64::from(number.0), u64::from(number.1)), (major, minor));
        }

        #[test]
        fn no_answer_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..500), start in 300u32..520) {
            let _ = Reply::decode(&bytes);
            if bytes.len() >= HEADER {
                bytes[16..20].copy_from_slice(&start.to_ne_bytes());
                bytes[20..24].copy_from_slice(&1u32.to_ne_bytes());
                let _ = Reply::decode(&bytes);
            }
        }
    }
}
