//! Exports over an unthrottled memory volume against nbdkit's memory disk, on the same roads: a loop device over FUSE,
//! and NBD on a Unix socket.

use std::path::Path;
use std::process::Command;

use super::nbdkit::{NbdFuse, Nbdkit};
use super::{Bench, Report};
use crate::bar::{Bar, Limit};
use crate::fio::{Amount, Load, Target};

const DISK_MIB: u64 = 1024;
/// Both sides are as fast as the cores, whose speed in a guest changes from second to second: many short turns.
const TURNS_PER_ROUND: u32 = 5;

/// The loads, and whether they have a bar.
const LOADS: [(&str, &str, bool); 4] = [
    ("1 MiB writes, depth 8", "--rw=write --bs=1m --iodepth=8", true),
    ("4 KiB random writes, depth 32", "--rw=randwrite --bs=4k --iodepth=32", true),
    ("1 MiB reads, depth 8", "--rw=read --bs=1m --iodepth=8", false),
    ("4 KiB random reads, depth 32", "--rw=randread --bs=4k --iodepth=32", false),
];

/// Measures and adds its rows.
pub fn run(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let memory = format!("memory:{DISK_MIB} MiB");
    let serve = |export| bench.pass(export, Command::new(&bench.surgetank), Path::new(&memory), export);
    let nbdkit = Nbdkit::start(&bench.interrupt, &bench.directory, DISK_MIB << 20)?;
    {
        let surgetank = serve("fuse")?;
        let nbdfuse = NbdFuse::start(&bench.interrupt, &bench.directory, &nbdkit)?;
        let sides = [surgetank.device()?, nbdfuse.device().to_owned()].map(Target::Device);
        compare(bench, report, "fuse export", &sides, "nbdkit memory + nbdfuse + loop")?;
    }
    let surgetank = serve("nbd")?;
    let sides = [surgetank.device()?.display().to_string(), nbdkit.address()].map(Target::Nbd);
    compare(bench, report, "nbd export", &sides, "nbdkit memory")
}

fn compare(
    bench: &Bench,
    report: &mut Report,
    export: &str,
    [ours, theirs]: &[Target; 2],
    peer: &str,
) -> anyhow::Result<()> {
    let run = |load: Load, target: &Target| load.run(&bench.interrupt, Command::new("fio"), target);
    // Both disks' memory is touched before anything is measured: first writes pay for pages.
    for side in [ours, theirs] {
        run(Load { shape: LOADS[0].1, amount: Amount::Bytes(DISK_MIB << 20) }, side)?;
    }
    for (name, shape, has_bar) in LOADS {
        if bench.quick && !has_bar {
            continue;
        }
        let load = Load { shape, amount: Amount::Time(bench.time() / TURNS_PER_ROUND) };
        let mut turns = Vec::new();
        for _ in 0..bench.rounds() * TURNS_PER_ROUND {
            turns.push([load.rate(&run(load, ours)?), load.rate(&run(load, theirs)?)]);
        }
        let bar = Bar::paired(format!("{export}, {name}"), load.unit(), &turns, peer);
        report.add(if has_bar { bar.must_be(Limit::AtLeast(1.0)) } else { bar });
    }
    Ok(())
}
