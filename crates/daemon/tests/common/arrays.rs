//! What tests of devices over an array share: the array `scratch` of a machine, made, looked at and deleted.

use std::time::{Duration, Instant};

use surgetank_daemon::arrays::status::{ArrayStatus, ArraysReport};
use surgetank_daemon::{Client, Config, OfflineArrays, Request};

use super::Machine;

pub const MEMBERS: usize = 3;

/// How long a copy may take to come to some share.
const AIM_TIMEOUT: Duration = Duration::from_secs(3);

/// As its file has it.
pub fn config(machine: &Machine) -> Config {
    Config::load(&machine.path("config.toml")).unwrap()
}

/// Creates the array without a daemon.
pub fn create(machine: &Machine) {
    let arrays = OfflineArrays::start(config(machine)).unwrap();
    arrays.handle(&Request::ArrayCreate { name: "scratch".to_owned() }).unwrap();
}

/// Deletes the array without a daemon: nothing of it may be left.
pub fn delete(machine: &Machine) {
    let arrays = OfflineArrays::start(config(machine)).unwrap();
    arrays.handle(&Request::ArrayDelete { name: "scratch".to_owned() }).unwrap();
    drop(arrays);
    assert_eq!((machine.rented(), machine.records()), (0, Vec::<String>::new()), "volumes are left");
    assert!(!machine.path("state/array:scratch").exists(), "a record is left");
}

pub fn of_report(report: serde_json::Value) -> ArrayStatus {
    let mut report: ArraysReport = serde_json::from_value(report).unwrap();
    report.arrays.pop().unwrap()
}

/// How the array stands; `None` if the daemon does not answer.
pub fn asked(client: &Client) -> Option<ArrayStatus> {
    client.ask(&Request::ArrayStatus { name: None }).ok().map(of_report)
}

pub fn rotate(slot: Option<u32>) -> Request {
    Request::ArrayRotate { name: "scratch".to_owned(), slot }
}

/// Whether nothing is replaced, and each slot has one volume.
pub fn is_calm(status: &ArrayStatus) -> bool {
    status.replacing.is_empty()
        && status.volumes.len() == MEMBERS
        && status.volumes.iter().all(|volume| volume.part == "active")
}

/// What of its copy the joining member has.
pub fn copied(status: &ArrayStatus) -> Option<f64> {
    status.volumes.iter().find_map(|volume| volume.copied_share.filter(|_| volume.part == "joining"))
}

/// Waits until a member is being copied and has more than such a share; whether that came in time.
pub fn copies_so_far(client: &Client, least: f64) -> bool {
    let until = Instant::now() + AIM_TIMEOUT;
    let copying = || asked(client).as_ref().and_then(copied).is_some_and(|share| share > least && share < 1.0);
    while Instant::now() < until {
        if copying() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}
