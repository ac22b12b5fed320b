//! Parity 4+1 beside one copy: writers, the memory that both take, reads without a benefactor, and how fast what it had is made again. One JSON
//! document; [docs/measurements](../../../docs/measurements) has results.
//!
//! With `--throttled`, as root, a token bucket stands before each benefactor as in the bench `throttled`, so that the network decides and not this
//! machine's processors.

#![expect(clippy::print_stdout, reason = "the answer")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::{LONG, Mounted, Pool, flag, in_memory, json, place, read, throttle, write_all};
use surgetank_model::Bandwidth;
use surgetank_pool::client::PoolClient;
use surgetank_pool::manager;
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::Media;

/// Files that are written at a time.
const RANKS: usize = 4;
/// How fast what is lost is to be made again, in MiB/s.
const PACE_MIB_S: u64 = 64;
const ONE_COPY: Durability = Durability::Copies { copies: 1, media: Media::Any };

/// A target that takes nothing, so that the pool alone is measured.
fn stuck() -> tempfile::TempDir {
    let target = in_memory();
    std::fs::write(target.path().join(".surgetank"), "in the way").expect("it is written");
    target
}

/// Writes a checkpoint; its MiB/s, and MiB of memory that a MiB of it takes.
fn written(pool: &Pool, mounted: &Mounted, mib: usize) -> (f64, f64) {
    let taken = || pool.free().iter().sum::<u64>() as f64;
    let before = taken();
    let took = write_all(RANKS, mib, mounted.path());
    std::thread::sleep(Duration::from_secs(1));
    (took.mib_s(RANKS * mib), (before - taken()) / (RANKS * mib) as f64)
}

/// Reads all of a checkpoint, one file after the other; MiB/s.
fn read_all(mounted: &Mounted, mib: usize) -> f64 {
    let wall: f64 = (0..RANKS).map(|rank| read(&mounted.path().join(format!("rank{rank}")), mib).wall).sum();
    (RANKS * mib) as f64 / wall
}

/// Writers and readers, with all benefactors and without one.
fn rates(durability: Durability, benefactors: u32, mib: usize, place: &Path, dies: bool) -> (f64, f64, f64) {
    let (target, mut pool) = (stuck(), Pool::start(benefactors, mib * 3, place));
    let mounted = pool.mount_with(target.path(), durability);
    let (rate, memory) = written(&pool, &mounted, mib);
    if dies {
        pool.kill(1);
    }
    let read = read_all(&mounted, mib);
    std::fs::remove_file(target.path().join(".surgetank")).expect("it is removed");
    mounted.end();
    (rate, memory, read)
}

/// How fast the part of a benefactor that has ended is made again, in MiB/s, and how many files are not whole in the end.
fn rebuilt(parity: Durability, mib: usize, place: &Path) -> (f64, usize) {
    let mut of_manager = manager::Config::default();
    (of_manager.repair.idle, of_manager.repair.beside) =
        (Bandwidth::from_mib_s(PACE_MIB_S), Bandwidth::from_mib_s(PACE_MIB_S));
    let (target, mut pool) = (stuck(), Pool::with(6, mib * 3, &[], place, of_manager));
    let mounted = pool.mount_with(target.path(), parity);
    let _ = write_all(RANKS, mib, mounted.path());
    // The last write is some time ago.
    std::thread::sleep(Duration::from_secs(3));
    pool.kill(1);
    let left = || pool.free().iter().sum::<u64>();
    let until = Instant::now() + LONG;
    while pool.free().len() > 5 {
        assert!(Instant::now() < until, "its death is noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (before, mut begins, mut ends, mut now) = (left(), None, Instant::now(), left());
    while Instant::now() < until {
        let next = left();
        if next < before {
            begins.get_or_insert_with(Instant::now);
        }
        if next != now {
            (now, ends) = (next, Instant::now());
        }
        if begins.is_some() && ends.elapsed() > Duration::from_secs(4) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let seconds = begins.map_or(f64::INFINITY, |begins| ends.duration_since(begins).as_secs_f64());
    let config = pool.config(target.path().to_str().expect("its name is text"));
    let lacking = pool.runtime.block_on(async {
        let client = PoolClient::begin(config).await.expect("the mount is there");
        let mut lacking = 0;
        for rank in 0..RANKS {
            let path = format!("rank{rank}");
            let inode = client.stat(&path).await.expect("it is there").inode;
            lacking += usize::from(!client.is_whole(inode, &path).await.expect("it answers"));
        }
        lacking
    });
    // The second is bare of what the first had.
    pool.kill(2);
    let _ = read_all(&mounted, mib);
    std::fs::remove_file(target.path().join(".surgetank")).expect("it is removed");
    mounted.end();
    ((before - now) as f64 / seconds, lacking)
}

fn main() {
    if std::env::args().any(|argument| argument == "--throttled") {
        throttle(6);
    }
    let (mib, rounds) = (flag("--mib", 256), flag("--rounds", 1));
    let parity = Durability::Parity(Parity::new(4, 1).expect("it is a parity"));
    let place = place();
    let mut all = Vec::new();
    for _ in 0..rounds {
        let one = rates(ONE_COPY, 5, mib, &place, false);
        let whole = rates(parity, 5, mib, &place, false);
        let without = rates(parity, 5, mib, &place, true);
        let (rebuilt, lacking) = rebuilt(parity, mib, &place);
        all.push(json(&[
            ("one_copy", one.0),
            ("parity", whole.0),
            ("memory", whole.1),
            ("read_one_copy", one.2),
            ("read", whole.2),
            ("read_without_one", without.2),
            ("rebuilt", rebuilt),
            ("pace", PACE_MIB_S as f64),
            ("files_lacking", lacking as f64),
        ]));
    }
    println!("[{}]", all.join(", "));
}
