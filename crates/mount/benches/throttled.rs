//! A pool whose benefactors take in 128 MiB/s each: as many writers as benefactors, each with a file of its own; with `--target DIR`,
//! checkpoints straight to a slow file system and through a pool in front of it, the second of them while the first is drained; and, with
//! `--ssds DIR,DIR,DIR` and `--ssd-mib-s RATE`, a checkpoint into little memory and SSDs that take in that much each. One JSON document;
//! `make bench ARGS=pool` has the bars.
//!
//! The kernel throttles: the process has a network of its own, on whose loopback a token bucket (HTB) stands before each benefactor's
//! address. So it needs root, `ip` and `tc`.

#![expect(clippy::print_stdout, reason = "the answer")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Instant;

use support::{Pool, RATE_MIB_S, flag, in_memory, json, place, run, throttle, wait_drained, write_all};

/// Benefactors, at most.
const BENEFACTORS: u32 = 6;
/// Files of a checkpoint, and benefactors that take it in.
const RANKS: usize = 4;
const IN_FRONT: u32 = 3;
/// What each of them lends of memory where it has an SSD, in MiB: three buffers of 32.
const LITTLE_MIB: usize = 96;

/// As many writers as benefactors; bytes in a second, in MiB.
fn writers(count: u32, mib: usize, place: &Path) -> f64 {
    let (target, pool) = (in_memory(), Pool::start(count, mib * 2, place));
    let mounted = pool.mount(target.path(), 1);
    let took = write_all(count as usize, mib, mounted.path());
    wait_drained(mounted.path());
    mounted.end();
    took.mib_s(mib * count as usize)
}

/// Removes what a target has.
fn empty(target: &Path) {
    for entry in std::fs::read_dir(target).expect("it is read") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            std::fs::remove_file(path).expect("it is removed");
        }
    }
    run("sync");
}

/// Checkpoints to a slow file system, without a pool and with one.
fn checkpoints(mib: usize, target: &Path, place: &Path) -> String {
    let all = RANKS * mib;
    empty(target);
    let direct = write_all(RANKS, mib, target);
    empty(target);
    let pool = Pool::start(IN_FRONT, all, place);
    let mounted = pool.mount(target, 1);
    let first = write_all(RANKS, mib, mounted.path());
    let began = Instant::now();
    let second = mounted.path().join("second");
    std::fs::create_dir(&second).expect("it is made");
    let beside = write_all(RANKS, mib, &second);
    wait_drained(&second);
    for rank in 0..RANKS {
        wait_drained_file(mounted.path().join(format!("rank{rank}")));
    }
    let drained = began.elapsed().as_secs_f64();
    for rank in 0..RANKS {
        std::fs::remove_file(second.join(format!("rank{rank}"))).expect("it is unlinked");
    }
    std::fs::remove_dir(&second).expect("it is removed");
    mounted.end();
    json(&[
        ("direct_s", direct.wall),
        ("pool_s", first.wall),
        ("model_s", all as f64 / f64::from(RATE_MIB_S * IN_FRONT)),
        ("target", direct.mib_s(all)),
        ("first", first.mib_s(all)),
        ("beside", beside.mib_s(all)),
        ("drain", 2.0 * all as f64 / drained),
    ])
}

/// A checkpoint into memory that is too little for it, and SSDs. Its bound (seed 002): what memory does not take goes to the SSDs meanwhile,
/// and nothing is drained before it ends.
fn two_tiers(mib: usize, ssds: &[PathBuf], ssd_mib_s: usize, place: &Path) -> String {
    let ssds: Vec<PathBuf> = ssds.iter().map(|ssd| ssd.join("log")).collect();
    ssds.iter().filter(|ssd| ssd.is_dir()).for_each(|ssd| std::fs::remove_dir_all(ssd).expect("it is removed"));
    let (all, many) = ((RANKS * mib) as f64, f64::from(IN_FRONT));
    let (target, pool) = (in_memory(), Pool::with_ssds(IN_FRONT, LITTLE_MIB, &ssds, place));
    let mounted = pool.mount(target.path(), 1);
    let took = write_all(RANKS, mib, mounted.path());
    wait_drained(mounted.path());
    mounted.end();
    let taken_in = all / many / f64::from(RATE_MIB_S);
    let on_ssd = (all / many - LITTLE_MIB as f64).max(0.0) / ssd_mib_s as f64;
    json(&[("rate", took.mib_s(RANKS * mib)), ("bound", all / taken_in.max(on_ssd))])
}

fn wait_drained_file(path: PathBuf) {
    assert!(support::is_drained(path), "files are drained in the order in which they were closed");
}

/// The value behind a flag of this program.
fn value(name: &str) -> Option<String> {
    std::env::args().skip_while(|flag| flag != name).nth(1)
}

/// Only the checkpoint, beside peers that are throttled alike: into a directory of theirs, or a pool with so many copies. Its seconds.
fn checkpoint(mib: usize, place: &Path) -> Option<f64> {
    let copies = flag("--copies", 0);
    if let Some(directory) = value("--write") {
        let took = write_all(RANKS, mib, Path::new(&directory));
        return Some(took.wall);
    }
    if copies == 0 {
        return None;
    }
    let (target, pool) = (in_memory(), Pool::start(IN_FRONT, RANKS * mib, place));
    let mounted = pool.mount(target.path(), u8::try_from(copies).expect("a few copies"));
    let took = write_all(RANKS, mib, mounted.path());
    wait_drained(mounted.path());
    mounted.end();
    Some(took.wall)
}

fn main() {
    let (rounds, mib, place) = (flag("--rounds", 3), flag("--mib", 256), place());
    // Whoever runs peers has throttled the network of all.
    if let Some(seconds) = checkpoint(mib / 2, &place) {
        println!("{seconds:.3}");
        return;
    }
    throttle(BENEFACTORS);
    let scaled = (0..rounds).map(|_| {
        let each = (1..=BENEFACTORS).map(|count| format!("{:.2}", writers(count, mib, &place)));
        format!("[{}]", each.collect::<Vec<_>>().join(", "))
    });
    let scaled = scaled.collect::<Vec<_>>().join(", ");
    let target = value("--target");
    let checkpoints: Vec<String> = match &target {
        Some(target) => (0..rounds).map(|_| checkpoints(mib, Path::new(target), &place)).collect(),
        None => Vec::new(),
    };
    let tiers: Vec<String> = match value("--ssds") {
        Some(ssds) => {
            let ssds: Vec<PathBuf> = ssds.split(',').map(PathBuf::from).collect();
            (0..rounds).map(|_| two_tiers(mib, &ssds, flag("--ssd-mib-s", 64), &place)).collect()
        }
        None => Vec::new(),
    };
    println!(
        "{{\"mib\": {mib}, \"rate_mib_s\": {RATE_MIB_S}, \"writers\": [{scaled}], \"checkpoints\": [{}], \"tiers\": [{}]}}",
        checkpoints.join(", "),
        tiers.join(", ")
    );
}
