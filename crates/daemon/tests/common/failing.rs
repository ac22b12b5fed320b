//! Volumes that fail: where their faults come in, and devices with data on a caching volume that will.

use std::sync::Arc;

use surgetank_daemon::opening::{Decorator, Purpose};
use surgetank_daemon::{Config, Daemon, DeviceStatus, Overrides};
use surgetank_device::{Fault, Faults};

use super::{MIB, Machine, Nbd, Shape, boost, connect, eventually, fill, status};

/// Faults of one kind of volumes.
pub fn faults_on(victim: Purpose, faults: &Faults) -> Overrides {
    let faults = faults.clone();
    let decorator: Decorator =
        Arc::new(
            move |purpose, volume| {
                if purpose == victim { Box::new(Fault::new(volume, faults.clone()).unwrap()) } else { volume }
            },
        );
    Overrides { decorator: Some(decorator), ..Overrides::default() }
}

/// Faults of the caching volumes.
pub fn on_caches(faults: &Faults) -> Overrides {
    faults_on(Purpose::Caching, faults)
}

/// A device so slow that not everything is drained before it stops or its caching volume fails.
pub fn slow() -> Shape {
    Shape { device: "throttle = true".to_owned(), ..Shape::default() }
}

/// The same; it waits so long for a caching volume that has failed.
pub fn slow_and_waits(patience: &str) -> Shape {
    let mut shape = slow();
    shape.caching += &format!("\noutage_patience = \"{patience}\"");
    shape
}

/// The caching volume of the device `data` vanishes for longer than it is waited for: what is lost is known, and is told.
pub fn vanished(daemon: &Daemon, nbd: &mut Nbd, faults: &Faults) -> DeviceStatus {
    faults.vanish();
    eventually("the loss is known", || {
        // Only input and output notice.
        let _ = nbd.read(7 * MIB, 4096);
        status(daemon, "data").lost_bytes > 0
    });
    status(daemon, "data")
}

/// A device `data` whose caching volume has vanished for longer than it is waited for.
pub struct Vanished {
    pub config: Config,
    pub daemon: Daemon,
    pub nbd: Nbd,
    /// What is told of the loss.
    pub told: DeviceStatus,
}

impl Vanished {
    /// Version 3 of the first 8 MiB was written, and is not drained.
    pub fn new(machine: &Machine, faults: &Faults) -> Self {
        let backing = machine.backing("backing", 32 * MIB);
        let config = machine.config(&[("data", backing.to_str().unwrap())], &slow_and_waits("1 s"));
        let daemon = Daemon::start_with(config.clone(), on_caches(faults)).unwrap();
        let mut nbd = connect(machine, "data");
        boost(&daemon, "data");
        fill(&mut nbd, 8, 3);
        let told = vanished(&daemon, &mut nbd, faults);
        Self { config, daemon, nbd, told }
    }
}
