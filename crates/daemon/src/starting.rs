//! The devices of a configuration are started and stopped at the same time: one that takes long holds up no other.
//!
//! A thread each, for as long as that lasts. A running device has three.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use crate::config::{Backing, Config};
use crate::device::{Common, Device};
use crate::opening::Identity;

/// Starts all devices of a configuration. Those that cannot be started are told apart from the others, and why.
pub fn start_all(config: &Config, common: &Common) -> BTreeMap<String, Result<Device, String>> {
    let mut shared = shared_backing(config);
    let names = config.devices.keys().map(|name| (name, shared.remove(name)));
    let started = Mutex::new(BTreeMap::new());
    at_once("start", names.collect(), |(name, refused)| {
        let device = refused.map_or_else(|| Device::start(name, config, common), Err);
        if let Err(reason) = &device {
            tracing::error!(device = name, "{reason}");
        }
        started.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), device);
    });
    let mut started = started.into_inner().unwrap_or_else(PoisonError::into_inner);
    for name in config.devices.keys() {
        // A bug of ours must not take the other devices along.
        let ended = || Err(format!("the start of device {name} ended without an answer: see the log"));
        started.entry(name.clone()).or_insert_with(ended);
    }
    started
}

/// The devices whose backing volume is that of an earlier one, by their names and why they are refused.
pub fn shared_backing(config: &Config) -> HashMap<String, String> {
    let mut served: HashMap<Identity, &str> = HashMap::new();
    let mut refused = HashMap::new();
    for (name, device) in &config.devices {
        let Backing::Path(path) = &device.backing else { continue };
        let Some(identity) = Identity::at(path) else { continue };
        if let Some(other) = served.insert(identity.clone(), name) {
            refused.insert(name.clone(), same_volume(path, other));
            served.insert(identity, other);
        }
    }
    refused
}

fn same_volume(path: &Path, other: &str) -> String {
    format!("{} is the backing volume of the device {other} already: give each device its own", path.display())
}

/// Does something with each of several things at the same time, on threads of this name; with those for which there are no
/// threads left it is done one after the other. Returns when all of it is done.
pub fn at_once<T: Send>(name: &str, things: Vec<T>, act: impl Fn(T) + Sync) {
    let things: Vec<_> = things.into_iter().map(|thing| Mutex::new(Some(thing))).collect();
    std::thread::scope(|scope| {
        let act = &act;
        let mut threads = Vec::new();
        for thing in &things {
            let now = move || {
                let taken = thing.lock().unwrap_or_else(PoisonError::into_inner).take();
                taken.into_iter().for_each(act);
            };
            match Builder::new().name(name.to_owned()).spawn_scoped(scope, now) {
                Ok(thread) => threads.push(thread),
                Err(_) => now(),
            }
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the devices (\"{name}\") panicked");
            }
        }
    });
}
