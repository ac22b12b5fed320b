//! Boosts of a daemon that rents from a fake of Azure, whose disks show the number of a logical unit and nothing else. The daemon is
//! killed again and again. QEMU has no disks as Azure's controllers show them: loop devices are the disks, in tables of our own.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use surgetank_provider::SystemClock;
use surgetank_provider::fakes::FakeAzure;

use crate::common::child::{Running, TABLES};
use crate::common::tables::{Loop, Tables};
use crate::common::{Ends, MIB, Machine, eventually};
use crate::hotplug::cycled;
use crate::hypervisor::{Hypervisor, section, settings};

/// Life cycles; `SURGETANK_HOTPLUGS` for more.
const CYCLES: u64 = 3;
fn configure(machine: &Machine, fake: &FakeAzure) {
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"2 s\"\n{}\
         [device.data]\nbacking = \"{}\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"1 GiB/s\"\n\
         [device.data.caching]\nbandwidth = \"2 GiB/s\"\nvolume_type = \"premium-ssd-v2\"\ninitial_size = \"1 GiB\"\nmax_size = \"1 GiB\"\n\
         [device.data.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"100 ms\"\nsize_grain = \"1 GiB\"\n\
         inactivity_delay = \"60 s\"\nboost_interval = \"0 s\"\nretry_first = \"200 ms\"\nretry_longest = \"1 s\"\n",
        section(fake),
        machine.backing("backing", 64 * MIB).display()
    );
    fs::write(machine.path("config.toml"), text).unwrap();
}

#[test]
fn a_daemon_finds_azures_disks_by_their_numbers_and_none_is_left() {
    let machine = Machine::new();
    if Loop::over(&machine.backing("probe", MIB)).is_none() {
        eprintln!("skipped: no loop device can be had (needs root)");
        return;
    }
    let fake = FakeAzure::start(Arc::new(SystemClock), settings(Duration::from_millis(300)));
    configure(&machine, &fake);
    let hypervisor = Hypervisor::new(&fake, Tables::new(machine.path(TABLES)), machine.path("images"));
    let cycles = std::env::var("SURGETANK_HOTPLUGS").map_or(CYCLES, |text| text.parse().unwrap());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| hypervisor.follow(&is_done));
        let _over = Ends(&is_done);
        let mut running = Running::start(&machine, None);
        assert!(!running.dead(), "the daemon does not start: {}", machine.log());
        let kills = cycled(&machine, &mut running, cycles, 13, || hypervisor.plugged());
        eventually("a sweep finds nothing", || {
            let swept = running.client.gc().unwrap();
            swept.deleted.is_empty() && swept.detached.is_empty() && swept.warnings.is_empty()
        });
        eprintln!("{cycles} life cycles over {} disks, {kills} kills of the daemon", hypervisor.count());
        assert!(hypervisor.count() as u64 >= cycles);
        running.stop();
    });
    assert_eq!(fake.disks(), 0, "disks are left");
    hypervisor.assert_no_foreign_disk_was_written_to();
}
