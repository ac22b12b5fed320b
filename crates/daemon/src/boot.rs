//! What maps devices before the daemon runs, so that a boot does not wait for it; and takes maps away for good.

use surgetank_rental::mapping::{self, Map};

use crate::config::Config;
use crate::exports;
use crate::owner::OwnerStore;
use crate::places;
use crate::state_directory;

/// What became of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootMap {
    /// The kernel maps it straight to its backing volume.
    Straight,
    /// The kernel had it mapped already.
    AlreadyMapped,
    /// It is exported in another way, which takes the daemon.
    OtherExport,
    /// The daemon maps it: why nobody else may.
    LeftToDaemon(String),
    /// Why it cannot be mapped. One sentence with the remedy.
    Refused(String),
}

/// Maps devices straight to their backing volumes, where the owner record says that nothing newer is elsewhere. `names`: which of
/// the configuration; none: all of them.
///
/// # Errors
/// One sentence with the remedy: a daemon runs, or a name is unknown.
pub fn map(config: &Config, names: &[String]) -> Result<Vec<(String, BootMap)>, String> {
    let names = known(config, names)?;
    let _lock = state_directory::lock(&config.state_directory)?;
    let owner_id = owner_id(config)?;
    let mapped = names.into_iter().map(|name| {
        let outcome = map_one(config, &owner_id, &name).unwrap_or_else(BootMap::Refused);
        (name, outcome)
    });
    Ok(mapped.collect())
}

fn map_one(config: &Config, owner_id: &str, name: &str) -> Result<BootMap, String> {
    let device = &config.devices[name];
    let Some(mapped) = exports::look(name, device, &config.run_directory, owner_id)? else {
        return Ok(BootMap::OtherExport);
    };
    if mapped.found().is_some() {
        return Ok(BootMap::AlreadyMapped);
    }
    let store = match OwnerStore::open(&config.state_directory.join(name)) {
        Ok(store) => store,
        Err(error) => return Ok(BootMap::LeftToDaemon(error.to_string())),
    };
    if store.is_missing() {
        // It was never served, or somebody removed the record: a caching volume's tag may know more.
        return Ok(BootMap::LeftToDaemon("it has no owner record yet".to_owned()));
    }
    if !mapping::straight_at_boot(store.record()) {
        return Ok(BootMap::LeftToDaemon("its newest data are on a caching volume".to_owned()));
    }
    mapped.begin(Map::Straight)?;
    places::make(&config.run_directory)?;
    mapped.announce()?;
    Ok(BootMap::Straight)
}

/// Takes away the map of a device that nobody uses, so that its backing volume is an ordinary disk again.
///
/// # Errors
/// One sentence with the remedy: a daemon runs, the device is in use, or its newest data are elsewhere.
pub fn unmap(config: &Config, name: &str) -> Result<(), String> {
    let names = known(config, &[name.to_owned()])?;
    let _lock = state_directory::lock(&config.state_directory)?;
    let owner_id = owner_id(config)?;
    let mapped = names.first().map(|name| exports::look(name, &config.devices[name], &config.run_directory, &owner_id));
    let Some(mapped) = mapped.transpose()?.flatten() else {
        return Err(format!("the device {name} is not exported by the device mapper: there is nothing to take away"));
    };
    match mapped.found().map(|found| found.map) {
        None => Err(format!("/dev/mapper/{name} does not exist: there is nothing to take away")),
        Some(Map::Straight) => mapped.remove(),
        Some(Map::Served) => Err(format!(
            "/dev/mapper/{name} waits for the daemon, which has its newest data: start the daemon, drain the device \
             (surgetank detach {name} --wait), stop the daemon and try again"
        )),
    }
}

fn known(config: &Config, names: &[String]) -> Result<Vec<String>, String> {
    if let Some(unknown) = names.iter().find(|name| !config.devices.contains_key(*name)) {
        return Err(format!("there is no device \"{unknown}\" in this configuration"));
    }
    Ok(if names.is_empty() { config.devices.keys().cloned().collect() } else { names.to_vec() })
}

fn owner_id(config: &Config) -> Result<String, String> {
    let directory = &config.state_directory;
    state_directory::owner_id(directory).map_err(|error| format!("{} cannot be used: {error}", directory.display()))
}
