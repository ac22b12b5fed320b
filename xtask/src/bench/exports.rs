//! Exports over an unthrottled memory volume against nbdkit's memory disk, on the same roads: a loop device over FUSE,
//! and NBD on a Unix socket.

use std::path::PathBuf;

use super::Bench;
use super::fio::{Amount, Load, Target};
use super::peers::{NbdFuse, Nbdkit};
use super::report::{Bar, Report, Row};
use super::surgetank::{Setting, Surgetank};
use crate::say;

const DISK_MIB: u64 = 1024;
/// Both sides are as fast as the cores, whose speed in a guest changes from second to second: many short turns.
const TURNS_PER_ROUND: u32 = 5;

/// The loads, and whether they have a bar.
const LOADS: [(&str, &str, &str, u32, bool); 4] = [
    ("1 MiB writes, depth 8", "write", "1m", 8, true),
    ("4 KiB random writes, depth 32", "randwrite", "4k", 32, true),
    ("1 MiB reads, depth 8", "read", "1m", 8, false),
    ("4 KiB random reads, depth 32", "randread", "4k", 32, false),
];

/// Measures and adds its rows.
///
/// # Errors
/// If something fails.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let memory = format!("memory:{DISK_MIB} MiB");
    let nbdkit = Nbdkit::start(&bench.interrupt, &bench.directory, DISK_MIB << 20)?;
    {
        let setting = Setting::passing("fuse", memory.clone(), "fuse");
        let surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, &setting)?;
        let nbdfuse = NbdFuse::start(&bench.interrupt, &bench.directory, &nbdkit)?;
        let ours = Target::Device(PathBuf::from(surgetank.export()));
        let theirs = Target::Device(nbdfuse.device().to_owned());
        compare(bench, report, "fuse export", &ours, &theirs, "nbdkit memory + nbdfuse + loop")?;
    }
    let setting = Setting::passing("nbd", memory, "nbd");
    let surgetank = Surgetank::serve(&bench.interrupt, &bench.directory, None, &setting)?;
    let (ours, theirs) = (Target::Nbd(surgetank.export().to_owned()), Target::Nbd(nbdkit.address()));
    compare(bench, report, "nbd export", &ours, &theirs, "nbdkit memory")
}

fn compare(
    bench: &Bench,
    report: &mut Report,
    export: &str,
    ours: &Target,
    theirs: &Target,
    peer: &str,
) -> anyhow::Result<()> {
    // Both disks' memory is touched before anything is measured: first writes pay for pages.
    let fill = Load { pattern: "write", block: "1m", depth: 8, amount: Amount::Bytes(DISK_MIB << 20) };
    for side in [ours, theirs] {
        fill.run(&bench.interrupt, None, side)?;
    }
    for (name, pattern, block, depth, has_bar) in LOADS {
        if bench.quick && !has_bar {
            continue;
        }
        let load = Load { pattern, block, depth, amount: Amount::Time(bench.time() / TURNS_PER_ROUND) };
        let is_random = pattern.starts_with("rand");
        let mut turns = Vec::new();
        for _ in 0..bench.rounds() * TURNS_PER_ROUND {
            let measure = |target| -> anyhow::Result<f64> {
                let measured = load.run(&bench.interrupt, None, target)?;
                Ok(if is_random { measured.iops } else { measured.mib_s })
            };
            turns.push([measure(ours)?, measure(theirs)?]);
        }
        let unit = if is_random { "IOPS" } else { "MiB/s" };
        let row = Row::paired(format!("{export}, {name}"), unit, &turns, peer);
        let row = if has_bar { row.bar(Bar::AtLeast(1.0)) } else { row };
        say(&format!("{}: {:.3}", row.name, row.ratio));
        report.rows.push(row);
    }
    Ok(())
}
