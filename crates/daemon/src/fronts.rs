//! Opens the export of a device, the best that the machine offers.

use std::path::Path;

use surgetank_device::Front;
use surgetank_device::front::nbd::{Limits, NbdConfig, NbdFront};
use surgetank_device::front::{self};

use crate::config::{DeviceConfig, Export};
use crate::files;

/// An open export.
pub struct Opened {
    /// For the shard.
    pub front: Box<dyn Front>,
    /// `fuse` or `nbd`.
    pub kind: &'static str,
    /// What the user opens.
    pub address: String,
}

/// Opens an export of `size` bytes.
///
/// # Errors
/// One sentence with the mend.
pub fn open(name: &str, config: &DeviceConfig, size: u64, logical_block: u32) -> Result<Opened, String> {
    let export = front::Export { name: name.to_owned(), size, logical_block };
    match config.export {
        Export::Nbd | Export::Auto | Export::Fuse => nbd(export, &config.socket),
    }
}

fn nbd(export: front::Export, socket: &Path) -> Result<Opened, String> {
    if let Some(directory) = socket.parent() {
        files::make_directory(directory)
            .map_err(|error| format!("the directory {} cannot be made: {error}", directory.display()))?;
    }
    let config = NbdConfig { export, unix: Some(socket.to_owned()), tcp: None, limits: Limits::default() };
    let front = NbdFront::open(config).map_err(|error| error.to_string())?;
    let address = front.address();
    Ok(Opened { front: Box::new(front), kind: "nbd", address })
}
