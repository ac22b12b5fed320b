//! The kernel's device mapper: block devices that map their requests straight to another one, and can be switched to a third
//! one under whoever uses them.
//!
//! The commands are few and stable, and are spoken here as they are (`docs/decisions/` has the reason). Every call may wait: a
//! switch waits for the requests in flight.

mod abi;
mod limits;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use self::abi::{Code, Command, Reply};
pub use self::limits::{Limits, Mismatch};

const CONTROL: &str = "/dev/mapper/control";
const DIRECTORY: &str = "/dev/mapper";
/// Where udev's rules are.
const RULES_DIRECTORIES: &[&str] =
    &["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"];
/// The rules without which nobody makes the nodes of mapped devices where udev runs: libdevmapper's own name, and Debian's.
const RULES: &[&str] = &["10-dm.rules", "55-dm.rules"];
const UDEV: &str = "/run/udev/control";

/// Why the device mapper did not do what it was asked. One sentence, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MapperError(pub(crate) String);

/// A table of one linear target: the device from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Bytes; a multiple of 512.
    pub size: u64,
    /// Major and minor number of what it maps to.
    pub device: (u32, u32),
}

/// A mapped device as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedDevice {
    /// Major and minor number.
    pub number: (u32, u32),
    /// Given by who made it, to be told from others of the same name.
    pub unique_name: String,
    /// Requests wait.
    pub is_suspended: bool,
    /// How often it is open: mounts count.
    pub open_count: u32,
    /// The table that counts, if it is one that this module makes.
    pub table: Option<Table>,
}

impl MappedDevice {
    /// Its node, also where nobody makes `/dev/mapper/NAME`.
    #[must_use]
    pub fn node(&self) -> PathBuf {
        PathBuf::from(format!("/dev/dm-{}", self.number.1))
    }
}

fn has_rules(directories: &[&str]) -> bool {
    directories.iter().any(|directory| RULES.iter().any(|rules| Path::new(directory).join(rules).exists()))
}

/// Speaks to the device mapper.
#[derive(Debug)]
pub struct Mapper {
    control: File,
}

impl Mapper {
    /// Opens its control device.
    ///
    /// # Errors
    /// This kernel has none, this user may not use it, or udev runs without the rules for it.
    pub fn open() -> Result<Self, MapperError> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL).map_err(|error| {
            MapperError(format!(
                "{CONTROL} cannot be opened ({error}): load the kernel's module dm_mod, and run as root"
            ))
        })?;
        if Path::new(UDEV).exists() && !has_rules(RULES_DIRECTORIES) {
            return Err(MapperError(
                "udev runs here without the device mapper's rules: install them (Debian's package dmsetup)".to_owned(),
            ));
        }
        Ok(Self { control })
    }

    /// The device of this name, if there is one.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn find(&self, name: &str) -> Result<Option<MappedDevice>, MapperError> {
        let status =
            Command { code: Code::TableStatus, name, unique_name: "", flags: abi::STATUS_TABLE, event: 0, table: None };
        let reply = match self.call(status) {
            Ok(reply) => reply,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
            Err(error) => return Err(refused("look at", name, &error)),
        };
        let Reply { flags, open_count, number, unique_name, table } = reply;
        let table = table.filter(|_| flags & abi::ACTIVE_PRESENT != 0 && flags & abi::BUFFER_FULL == 0);
        Ok(Some(MappedDevice { number, unique_name, is_suspended: flags & abi::SUSPEND != 0, open_count, table }))
    }

    /// Makes a device and its node. Mapping a disk holds it: whoever else wants it for itself is refused.
    ///
    /// # Errors
    /// The name is taken, or somebody holds what it would map to; nothing is left then.
    pub fn create(&self, name: &str, unique_name: &str, table: Table) -> Result<MappedDevice, MapperError> {
        let failed = |error: io::Error| refused("make", name, &error);
        self.call(Command { unique_name, ..command(Code::Create, name) }).map_err(failed)?;
        let made = self
            .call(Command { table: Some(table), ..command(Code::LoadTable, name) })
            .and_then(|_| self.resumed(name));
        if let Err(error) = made {
            let _ = self.call(command(Code::Remove, name));
            return Err(failed(error));
        }
        let device =
            self.find(name)?.ok_or_else(|| MapperError(format!("{name} is gone as soon as it is made: try again")))?;
        make_node(name, &device);
        Ok(device)
    }

    /// Prepares a switch: the next [`Mapper::resume`] goes to this table.
    ///
    /// # Errors
    /// Somebody holds what it would map to.
    pub fn load(&self, name: &str, table: Table) -> Result<(), MapperError> {
        let load = Command { table: Some(table), ..command(Code::LoadTable, name) };
        self.call(load).map(drop).map_err(|error| refused("change", name, &error))
    }

    /// Drops what was loaded.
    ///
    /// # Errors
    /// There is no such device.
    pub fn clear(&self, name: &str) -> Result<(), MapperError> {
        self.call(command(Code::ClearTable, name)).map(drop).map_err(|error| refused("change", name, &error))
    }

    /// Waits for the requests in flight and holds those that come.
    ///
    /// # Errors
    /// A signal came first.
    pub fn suspend(&self, name: &str) -> Result<(), MapperError> {
        let suspend = Command { flags: abi::SUSPEND | abi::SKIP_LOCKFS, ..command(Code::Suspend, name) };
        self.call(suspend).map(drop).map_err(|error| refused("suspend", name, &error))
    }

    /// Goes to the table that was loaded, if one was, and lets requests pass. A device that is not suspended waits for its
    /// requests in flight first, within this one call.
    ///
    /// # Errors
    /// The kernel does not take the table. The old one counts then, and requests pass.
    pub fn resume(&self, name: &str) -> Result<(), MapperError> {
        let resumed = self.resumed(name);
        if resumed.is_err() {
            // The kernel has dropped the new table, and may have left the device suspended.
            let _ = self.resumed(name);
        }
        resumed.map_err(|error| refused("switch", name, &error))
    }

    /// Removes a device that nobody has open.
    ///
    /// # Errors
    /// Somebody has.
    pub fn remove(&self, name: &str) -> Result<(), MapperError> {
        let remove = Command { event: abi::PRIMARY_SOURCE, ..command(Code::Remove, name) };
        self.call(remove).map_err(|error| refused("remove", name, &error))?;
        remove_node(name);
        Ok(())
    }

    fn resumed(&self, name: &str) -> io::Result<()> {
        let resume = Command { flags: abi::SKIP_LOCKFS, event: abi::PRIMARY_SOURCE, ..command(Code::Suspend, name) };
        self.call(resume).map(drop)
    }

    fn call(&self, command: Command<'_>) -> io::Result<Reply> {
        let mut bytes = command.encode().map_err(io::Error::other)?;
        loop {
            let request = libc::Ioctl::from(command.code.number());
            // SAFETY: the buffer is as long as it says in its header, and the kernel writes only to it. It outlives the call.
            let status = unsafe { libc::ioctl(self.control.as_raw_fd(), request, bytes.as_mut_ptr()) };
            if status == 0 {
                return Reply::decode(&bytes)
                    .ok_or_else(|| io::Error::other("the device mapper's answer has no sense"));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
            bytes = command.encode().map_err(io::Error::other)?;
        }
    }
}

/// A command without anything special.
fn command(code: Code, name: &str) -> Command<'_> {
    Command { code, name, unique_name: "", flags: 0, event: 0, table: None }
}

fn refused(what: &str, name: &str, error: &io::Error) -> MapperError {
    let remedy = match error.raw_os_error() {
        Some(libc::EBUSY) => "it, or the disk that it maps, is in use: see `dmsetup info` and `lsblk`",
        Some(libc::ENXIO) => "it was removed meanwhile: start the daemon again",
        _ => "see the kernel's log, or export with ublk, fuse or nbd",
    };
    MapperError(format!("the kernel does not {what} {DIRECTORY}/{name} ({error}): {remedy}"))
}

/// Where nobody else does: without udev the kernel makes `/dev/dm-N` alone.
fn make_node(name: &str, device: &MappedDevice) {
    let link = Path::new(DIRECTORY).join(name);
    if !Path::new(UDEV).exists() && fs::symlink_metadata(&link).is_err() {
        // Without it the device has its number.
        let _ = std::os::unix::fs::symlink(format!("../dm-{}", device.number.1), link);
    }
}

fn remove_node(name: &str) {
    let link = Path::new(DIRECTORY).join(name);
    if !Path::new(UDEV).exists() && fs::read_link(&link).is_ok_and(|target| target.starts_with("../")) {
        let _ = fs::remove_file(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_found_under_the_name_of_libdevmapper_and_under_debians() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        assert!(!has_rules(&["/nowhere", path]));
        for name in ["10-dm.rules", "55-dm.rules"] {
            let file = directory.path().join(name);
            fs::write(&file, "").unwrap();
            assert!(has_rules(&["/nowhere", path]), "{name}");
            fs::remove_file(&file).unwrap();
        }
    }
}
