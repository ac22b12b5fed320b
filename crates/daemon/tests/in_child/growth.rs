//! A caching volume that fills up grows while it is in use, and whatever happens on the way, nothing is lost and nothing is left
//! behind.

use crate::common::child::Running;
use crate::common::{MIB, Machine, Nbd, Shape, connect, drain, eventually, find, pattern, status};
use surgetank_daemon::history::History;
use surgetank_daemon::{Daemon, DevicePhase, Request};

const BLOCKS: u64 = 96;

/// Boosts are asked for; a controller that would pay anything for time has them grow.
fn shape() -> Shape {
    let adaptive = "name = \"adaptive\"\nvalue_of_time = 1e9\n";
    Shape {
        provider: "grow_latency = \"50 ms\"".to_owned(),
        caching: "initial_size = \"16 MiB\"".to_owned(),
        policy: format!("{adaptive}{}", Shape::default().policy),
        ..Shape::default()
    }
}

/// Writes on, in one version after another, until this holds; the version that is whole, if any is.
fn write_until(nbd: &mut Nbd, mut holds: impl FnMut() -> bool) -> std::io::Result<u64> {
    for version in 1.. {
        for block in 0..BLOCKS {
            nbd.write(block * MIB, &pattern(block, version, MIB as usize))?;
        }
        if holds() {
            return Ok(version);
        }
    }
    unreachable!("there is always another version")
}

fn size_mib(daemon: &Daemon) -> u64 {
    status(daemon, "data").caching.map_or(0, |caching| (caching.size_gib * 1024.0).round() as u64)
}

#[test]
fn a_caching_volume_that_fills_up_grows_under_the_burst() {
    let machine = Machine::new();
    let backing = machine.backing("backing", BLOCKS * MIB);
    let config = machine.config(&[("data", backing.to_str().unwrap())], &shape());
    let daemon = Daemon::start(config).unwrap();
    crate::common::boost(&daemon, "data");
    assert_eq!(size_mib(&daemon), 16);
    let mut nbd = connect(&machine, "data");
    let version = write_until(&mut nbd, || size_mib(&daemon) > 16).unwrap();
    let image = &crate::common::images(&machine.path("volumes"))[0];
    eventually("the file is as large as the status says", || {
        std::fs::metadata(image).unwrap().len() == size_mib(&daemon) * MIB
    });
    find(&mut nbd, BLOCKS, version);
    drain(&daemon, "data");
    assert_eq!(machine.rented(), 0);
    find(&mut nbd, BLOCKS, version);
    daemon.stop();
    // The history tells the sizes, and what each of them cost for its time at 128 MiB/s.
    let (boosts, _) = History::of(&machine.path("state/data")).read(1).unwrap();
    let mean = boosts[0].mean_cache_gib.unwrap();
    assert_eq!(boosts[0].first_cache_gib, Some(1.0 / 64.0));
    assert!(mean > 1.0 / 64.0 && mean < boosts[0].cache_gib, "{boosts:?}");
    let cost = boosts[0].cost_agbs.unwrap();
    assert!((cost / (mean * 128.0 * boosts[0].rented_s) - 1.0).abs() < 1e-6, "{boosts:?}");
}

#[test]
fn a_kill_while_it_grows_loses_nothing_and_leaves_nothing() {
    for point in ["grow:before", "grow:after", "log-growth:before", "log-growth:after"] {
        let machine = Machine::new();
        let backing = machine.backing("backing", BLOCKS * MIB);
        let text = machine.config_text(&[("data", backing.to_str().unwrap())], &shape());
        std::fs::write(machine.path("config.toml"), text).unwrap();
        let mut running = Running::start(&machine, Some(point));
        running.client.ask(&Request::boost("data")).unwrap();
        eventually("boost", || running.phase() == Some(DevicePhase::Boost));
        let mut nbd = running.nbd().unwrap();
        let (mut written, mut version) = (0, 1);
        // Until the daemon dies: every block is of the version that was acknowledged last.
        while nbd.write(written * MIB, &pattern(written, version, MIB as usize)).is_ok() {
            written = (written + 1) % BLOCKS;
            version += u64::from(written == 0);
        }
        assert!(running.was_killed(), "{point}: {}", machine.log());
        let mut running = Running::start(&machine, None);
        let mut nbd = running.nbd().unwrap();
        for block in 0..BLOCKS {
            let of = |version: u64| pattern(block, version, MIB as usize);
            let found = nbd.read(block * MIB, MIB as usize).unwrap();
            let newest = if block < written { version } else { version - 1 };
            // That of the write that was not answered may be there in part.
            let sound = if newest == 0 { found.iter().all(|byte| *byte == 0) } else { found == of(newest) };
            assert!(sound || block == written, "{point}: block {block} is not of version {newest}");
        }
        eventually("the last boost is over", || {
            // On a slow machine the reads have begun another one, which would go on for as long as one may come again.
            if running.phase() == Some(DevicePhase::Boost) {
                let _ = running.client.ask(&Request::Drain { device: "data".into() });
            }
            running.phase() == Some(DevicePhase::Idle)
        });
        eventually("nothing is left behind", || machine.rented() == 0 && machine.records().is_empty());
        running.kill();
    }
}
