//! The exports of devices. An export is a module here, with its [`Export`], and a row of [`KINDS`].

pub mod dm;
mod fuse;
mod nbd;
mod ublk;

use std::path::Path;
use std::sync::Arc;

use surgetank_device::Front;
use surgetank_device::front::{self, reclaim};
use surgetank_rental::mapping::Map;

use crate::config::{Config, DeviceConfig};
use crate::device::Until;
use crate::exports::dm::Mapped;
use crate::link::Link;

/// An export from its bring-up to its close, while the shard serves its front.
pub trait Export: Send + Sync {
    /// Whether it comes up only when its requests are answered.
    fn comes_up_when_answered(&self) -> bool {
        false
    }

    /// Requests are answered from now on.
    fn answers(&self) {}

    /// Waits until the export is up, and says where.
    ///
    /// # Errors
    /// One sentence with the remedy.
    fn address(&self) -> Result<String, String>;

    /// The device has `size` bytes: tells those clients that do not ask for themselves.
    ///
    /// # Errors
    /// One sentence with the remedy.
    fn grown(&self, _size: u64) -> Result<(), String> {
        Ok(())
    }

    /// Reads its certificates again, for the connections that come. False: it has none.
    ///
    /// # Errors
    /// One sentence with the remedy; those that it has stay in use.
    fn reload_certificates(&self) -> Result<bool, String> {
        Ok(false)
    }

    /// Whether its close disturbs nobody now.
    ///
    /// # Errors
    /// Who uses it.
    fn unused(&self) -> Result<(), String> {
        Ok(())
    }

    /// Takes the export down while the front is served.
    fn close(&self, device: &str, until: Until);
}

/// A kind of export.
#[derive(Debug)]
pub struct Kind {
    /// As configurations and reports name it.
    pub name: &'static str,
    /// Whether users find a block device.
    pub is_block_device: bool,
    /// For `auto`: whether this machine and these rights allow it; if not, why. `None`: only who asks for it gets it.
    possible: Option<fn() -> Result<(), String>>,
    /// `auto` tries the next kind if this one is possible and fails nevertheless.
    passed_over: bool,
    open: fn(Opening<'_>) -> Result<Opened, String>,
}

impl Kind {
    /// Whether the kernel serves it by itself while the device is calm.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.name == MAPPED
    }
}

/// All kinds, in the order in which `auto` tries them. A ublk device that an earlier daemon left is never passed over:
/// somebody may have it mounted.
pub static KINDS: &[Kind] = &[
    Kind { name: MAPPED, is_block_device: true, possible: None, passed_over: false, open: dm::open },
    Kind { name: "ublk", is_block_device: true, possible: Some(ublk::possible), passed_over: false, open: ublk::open },
    Kind { name: "fuse", is_block_device: true, possible: Some(fuse::possible), passed_over: true, open: fuse::open },
    Kind { name: "nbd", is_block_device: false, possible: Some(|| Ok(())), passed_over: false, open: nbd::open },
];

/// The kind that the kernel serves by itself while the device is calm: it is looked at before its backing volume is opened.
const MAPPED: &str = "dm";

/// The kind of this name.
#[must_use]
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// What an export is opened with.
#[derive(Clone)]
pub struct Opening<'a> {
    /// The device.
    pub export: front::Export,
    /// Its configuration.
    pub config: &'a DeviceConfig,
    /// Where links and sockets are made.
    pub run_directory: &'a Path,
    /// The state directory's random name.
    pub owner: &'a str,
    /// What [`look`] found, and the map to begin with.
    pub mapped: Option<(Arc<Mapped>, Map)>,
}

/// An open export.
pub struct Opened {
    /// For the shard.
    pub front: Box<dyn Front>,
    /// The name of its kind.
    pub kind: &'static str,
    /// To bring it up and down while the shard serves it.
    pub export: Arc<dyn Export>,
}

/// The device as the kernel maps it, if it is to: who asks for it gets it or an error, `auto` where it is possible.
///
/// # Errors
/// One sentence with the remedy.
pub fn look(name: &str, config: &DeviceConfig, run_directory: &Path, owner: &str) -> Result<Option<Mapped>, String> {
    match config.export {
        Some(kind) if kind.name == MAPPED => {}
        Some(_) => return Ok(None),
        // One that is there goes on.
        None if dm::is_ours(name) => {}
        None => {
            let possible = dm::possible(name, owner).and_then(|()| Mapped::look(name, config, run_directory, owner));
            return Ok(possible.inspect_err(|why| say_impossible(name, MAPPED, why)).ok());
        }
    }
    Mapped::look(name, config, run_directory, owner).map(Some)
}

/// Opens the export that the configuration names, or the first that this machine and these rights allow.
///
/// # Errors
/// One sentence with the remedy.
pub fn open(opening: Opening<'_>) -> Result<Opened, String> {
    if let Some(kind) = opening.config.export {
        return (kind.open)(opening);
    }
    if opening.mapped.is_some() {
        return dm::open(opening);
    }
    let mut reasons = Vec::new();
    for kind in KINDS {
        let Some(possible) = kind.possible else { continue };
        let opened = match possible() {
            Ok(()) => (kind.open)(opening.clone()),
            Err(why) => {
                say_impossible(&opening.export.name, kind.name, &why);
                reasons.push(why);
                continue;
            }
        };
        match opened {
            Err(why) if kind.passed_over => {
                say_impossible(&opening.export.name, kind.name, &why);
                reasons.push(why);
            }
            opened => return opened,
        }
    }
    Err(reasons.join("; "))
}

fn say_impossible(device: &str, kind: &str, why: &str) {
    tracing::info!(device, why, "cannot be exported over {kind} here");
}

/// Whether the certificates of all devices can be used as they are now.
///
/// # Errors
/// One sentence with the remedy.
pub fn check_certificates(config: &Config) -> Result<(), String> {
    config.devices.values().filter_map(DeviceConfig::certificates).try_for_each(nbd::check_certificates)
}

/// The name under which the kernel keeps a device for the next daemon: FNV-1a of the state directory's random name and
/// the device's own.
fn identity(owner: &str, device: &str) -> u64 {
    let bytes = owner.bytes().chain([0]).chain(device.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)).max(1)
}

/// Our pages may be needed to write other pages back.
fn lock_memory() {
    // Without the right to lock it works as well, unless memory is short.
    if let Err(error) = reclaim::lock_memory() {
        tracing::debug!(%error, "memory is not locked");
    }
}

/// Points the link of a device to it. Answers its path.
fn linked(link: &Link, device: &Path) -> String {
    if let Err(error) = link.point_to(device) {
        tracing::warn!(device = %device.display(), %error, "no link in the run directory leads to it");
    }
    // udev gives the device its other names by this link.
    if let Some(name) = device.file_name()
        && let Err(error) = std::fs::write(Path::new("/sys/class/block").join(name).join("uevent"), "change")
    {
        tracing::debug!(device = %device.display(), %error, "udev is not told of the device");
    }
    device.display().to_string()
}
