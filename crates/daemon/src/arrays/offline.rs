//! The arrays of a configuration whose daemon does not run, for commands.

use std::fs::File;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use surgetank_device::discovery::Disks;

use super::status::ArrayStatus;
use super::{Arrays, Context};
use crate::clock::Clock;
use crate::config::{Backing, Config};
use crate::control::Request;
use crate::daemon::refuse_own_ground;
use crate::owner::OwnerStore;
use crate::providers::Providers;
use crate::{places, state_directory};

/// How long a command waits for a deletion, and how often it looks.
const DELETION: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Holds the state directory, so that no daemon uses it meanwhile.
pub struct OfflineArrays {
    config: Config,
    arrays: Arrays,
    _lock: File,
}

impl OfflineArrays {
    /// Looks after them until it is dropped.
    ///
    /// # Errors
    /// One sentence: a daemon runs, or a directory or a provider cannot be used.
    pub fn start(config: Config) -> Result<Self, String> {
        refuse_own_ground(&config).map_err(|error| error.to_string())?;
        places::check_all(&config)?;
        let lock = state_directory::lock(&config.state_directory)?;
        let owner_id = state_directory::owner_id(&config.state_directory)
            .map_err(|error| format!("{} cannot be used: {error}", config.state_directory.display()))?;
        let providers = Providers::open(&config, None)?;
        let context = Context {
            state_directory: config.state_directory.clone(),
            owner_id,
            clock: Clock::start(),
            disks: Disks::default(),
            decorator: None,
        };
        let arrays = Arrays::start(&config, &providers, context);
        Ok(Self { config, arrays, _lock: lock })
    }

    /// Answers a request as a daemon does, as far as it is about arrays.
    ///
    /// # Errors
    /// One sentence.
    pub fn handle(&self, request: &Request) -> Result<Value, String> {
        match request {
            Request::ArrayStatus { name } => {
                // What it goes on with ends with this process.
                self.await_deletion(name.as_deref());
                serde_json::to_value(self.arrays.status(name.as_deref())?).map_err(|error| error.to_string())
            }
            Request::ArrayCreate { name } => match self.arrays.create(name) {
                Ok(()) => Ok(json!({ "remarks": [] })),
                Err(why) => {
                    self.await_deletion(Some(name));
                    Err(why)
                }
            },
            Request::ArrayAssemble { name, id } => Ok(json!({ "remarks": self.arrays.assemble(name, id.as_deref())? })),
            Request::ArrayDelete { name } => {
                refuse_dirty(&self.config, name)?;
                self.arrays.delete(name)?;
                Ok(json!({ "deleted": name }))
            }
            _ => Err("no daemon runs: start one with `surgetank serve`".to_owned()),
        }
    }

    /// Waits until what is being deleted of an array, or of all, is gone: nobody does it once the command has ended. What takes
    /// longer, the next daemon or command goes on with.
    fn await_deletion(&self, name: Option<&str>) {
        let until = Instant::now() + DELETION;
        let is_under_way = || self.arrays.status(name).is_ok_and(|report| report.arrays.iter().any(is_being_deleted));
        while is_under_way() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// The array itself, or a volume that counts no more.
fn is_being_deleted(array: &ArrayStatus) -> bool {
    array.state == "deleting" || array.volumes.iter().any(|volume| volume.part == "leaving")
}

/// A device over the array may have its newest data on a caching volume, which would be drained to what is gone.
pub(crate) fn refuse_dirty(config: &Config, array: &str) -> Result<(), String> {
    for (name, device) in &config.devices {
        if device.backing != Backing::Array(array.to_owned()) {
            continue;
        }
        let store = OwnerStore::open(&config.state_directory.join(name)).map_err(|error| error.to_string())?;
        if store.record().owner != surgetank_cache::Owner::Backing {
            return Err(format!(
                "the device {name} over the array {array} has its newest data on a caching volume: start the daemon and drain it with \
                 `surgetank drain {name}`, then delete the array"
            ));
        }
    }
    Ok(())
}
