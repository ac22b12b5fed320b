//! Boosts over several caching volumes: a burst, and how long it takes until they absorb.
//!
//! Volumes are files in memory that the daemon holds to their limits: a disk that all of them share would be what is measured.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use crate::bar::{Bar, Limit, median};
use crate::bench::{Bench, Report};
use crate::fio::{Amount, Load, Target};
use crate::surgetank::{Elastic, Places, Rent, Surgetank};

const VOLUMES: u32 = 4;
const BACKING_MIB_S: u64 = 33;
const CACHING_MIB_S: u64 = 128;
const BURST_MIB: u64 = 2048;
/// Of Bb + 4 Bc.
const ABSORBED: f64 = 0.95;
/// Of what one volume takes.
const ATTACHED: f64 = 1.3;
/// The bursts. A piece of 1 MiB goes to the backing volume when more than 16 MiB are queued for the caching volumes, which takes them
/// as long: with 16 requests in flight there never are.
const WRITES: [(&str, &str, bool); 2] = [
    ("64 requests in flight", "--rw=write --bs=1m --iodepth=64", true),
    ("16 requests in flight", "--rw=write --bs=1m --iodepth=16", false),
];
const MEMORY: &str = "/dev/shm";

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let both = (BACKING_MIB_S + u64::from(VOLUMES) * CACHING_MIB_S) as f64;
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut rates: [Vec<f64>; WRITES.len()] = Default::default();
    for _ in 0..if bench.quick { 1 } else { 3 } {
        times[1].push(boosted(bench, 1, |_| Ok(()))?);
        for ((_, shape, _), rates) in WRITES.into_iter().zip(&mut rates) {
            times[0].push(boosted(bench, VOLUMES, |surgetank| {
                let target = Target::Nbd(surgetank.device()?.display().to_string());
                let load = Load { shape, amount: Amount::Bytes(BURST_MIB << 20) };
                rates.push(load.run(&bench.interrupt, Command::new("fio"), &target)?.mib_s());
                Ok(())
            })?);
        }
    }
    for ((depth, _, judged), rates) in WRITES.into_iter().zip(rates) {
        let name = format!("2 GiB burst over {VOLUMES} caching volumes, {depth}");
        let bar = Bar::new(name, "MiB/s", median(rates), (both, format!("Bb + {VOLUMES} Bc")));
        report.add(if judged { bar.must_be(Limit::AtLeast(ABSORBED)) } else { bar });
    }
    let [ours, one] = times.map(median);
    let bar = Bar::new(format!("until {VOLUMES} caching volumes absorb"), "s", ours, (one, "one caching volume"));
    report.add(bar.must_be(Limit::AtMost(ATTACHED)));
    Ok(())
}

/// The time until so many caching volumes absorb, in s; then the load.
fn boosted(bench: &Bench, volumes: u32, load: impl FnOnce(&Surgetank) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let memory = tempfile::Builder::new().prefix("surgetank-lab-").tempdir_in(MEMORY);
    let memory = memory.with_context(|| format!("cannot make volumes in {MEMORY}"))?;
    let disk = format!("memory:{} MiB", 2 * BURST_MIB);
    let elastic = Elastic {
        export: "nbd",
        throttle: true,
        split: Some(true),
        volumes,
        ..Elastic::steered("adaptive", Path::new(&disk), 3 * BURST_MIB, (BACKING_MIB_S, CACHING_MIB_S))
    };
    let files = memory.path().to_owned();
    let places = Places { rent: Rent::Late(files.join("volumes")), log: files.join("surgetank.log"), files };
    let mut surgetank = Surgetank::serve(Command::new(&bench.surgetank), &elastic, &places, &bench.interrupt)?;
    let begun = Instant::now();
    surgetank.boost()?;
    let attached = begun.elapsed().as_secs_f64();
    load(&surgetank)?;
    Ok(attached)
}
