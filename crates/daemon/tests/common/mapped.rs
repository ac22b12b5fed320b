//! A device that the kernel of a guest maps.

use std::path::Path;

use surgetank_daemon::Config;

use super::child::Running;
use super::{Machine, eventually, mounted, rounds};

/// The backing volume: a disk of the guest.
pub const SLOW: &str = "/dev/lab/slow";
pub const MAPPED: &str = "/dev/mapper/data";
/// A bandwidth of the backing volume that no load here comes near: only people begin a boost.
pub const CALM: &str = "\"8 GiB/s\"";

/// Writes the configuration, with a backing volume of this bandwidth as far as the daemon knows.
pub fn configure(machine: &Machine, cache: &str, bandwidth: &str) {
    rounds::configure(machine, Path::new(SLOW), "adaptive", cache, "dm");
    let path = machine.path("config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut text = text.replace("throttle = true\n", "").replace("\"64 MiB/s\"", bandwidth);
    if bandwidth == CALM {
        text += "\nutilization_threshold = 1.0\n";
    }
    std::fs::write(path, text).unwrap();
}

pub fn config(machine: &Machine) -> Config {
    Config::load(&machine.path("config.toml")).unwrap()
}

/// A daemon whose device is there.
pub fn start(machine: &Machine) -> Running {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    eventually("the device is served", || mounted::device(&running) == Path::new(MAPPED));
    running
}

pub fn map(running: &Running) -> String {
    running.client.status().unwrap().devices[0].map.clone().unwrap_or_default()
}

/// Ends the boost, until nothing is rented and the daemon is out of the way.
pub fn calm(machine: &Machine, running: &Running) {
    rounds::deletes_everything(machine, running);
    eventually("the kernel serves alone", || map(running) == "straight");
}
