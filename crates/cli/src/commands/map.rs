//! `surgetank map` and `unmap`: devices that the kernel maps, without a daemon.

use std::path::PathBuf;

use clap::Args;
use surgetank_daemon::boot::{self, BootMap};
use surgetank_daemon::config::Config;
use surgetank_report::{Failure, output};

/// Flags of `map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank map
  surgetank map --config /etc/surgetank/surgetank.toml data

For boot, before the daemon: devices exported by the device mapper appear as /dev/mapper/NAME, straight to their \
backing volumes. A device whose newest data are on a caching volume is left to the daemon.")]
pub struct Map {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/surgetank/surgetank.toml")]
    config: PathBuf,
    /// Which devices; all of the configuration if none is named
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

impl Map {
    pub fn run(&self) -> Result<(), Failure> {
        let config = Config::load(&self.config).map_err(Failure::invalid)?;
        let mut refused = Vec::new();
        for (name, outcome) in boot::map(&config, &self.devices).map_err(Failure::Failed)? {
            let said = match outcome {
                BootMap::Straight => format!("/dev/mapper/{name}: mapped straight to its backing volume"),
                BootMap::AlreadyMapped => format!("/dev/mapper/{name}: is there already"),
                BootMap::OtherExport => format!("{name}: is exported by the daemon alone"),
                BootMap::LeftToDaemon(why) => format!("/dev/mapper/{name}: left to the daemon: {why}"),
                BootMap::Refused(why) => {
                    refused.push(format!("device {name}: {why}"));
                    continue;
                }
            };
            output::print(&said)?;
        }
        if refused.is_empty() { Ok(()) } else { Err(Failure::Failed(refused.join("; "))) }
    }
}

/// Flags of `unmap`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank unmap data

Removes /dev/mapper/DEVICE, once the daemon has stopped and nobody uses it; the backing volume is an ordinary disk \
again.")]
pub struct Unmap {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/surgetank/surgetank.toml")]
    config: PathBuf,
    /// Which device
    #[arg(value_name = "DEVICE")]
    device: String,
}

impl Unmap {
    pub fn run(&self) -> Result<(), Failure> {
        let config = Config::load(&self.config).map_err(Failure::invalid)?;
        boot::unmap(&config, &self.device).map_err(Failure::Failed)?;
        output::print(&format!("/dev/mapper/{} is gone", self.device))
    }
}
