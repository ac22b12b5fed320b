//! Read caches of two devices share what the machine has: whoever has a hot spot gets more of it, whoever scans less, and together they
//! never have more on disk.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::common::{Ends, MIB, Machine, connect, pattern, status};
use surgetank_daemon::read_caches::status::ShareStatus;
use surgetank_daemon::{Config, Daemon};
use surgetank_model::random::Random;

/// Of each device.
const SIZE: u64 = 64 * MIB;
/// What the machine has for both: an equal part is smaller than a hot spot.
const CACHE: u64 = 24 * MIB;
const HOT: u64 = 16 * MIB;
const BLOCK: u64 = 16 << 10;
/// Of the hot spot, until it is in the cache: more than ten times what it takes. How long they take is the machine's.
const READS_MAX: u64 = 1 << 15;
/// Of each backing volume, a second: so few that a read of it takes longer than one of the cache on the busiest machine. Else nobody has
/// anything of a larger part.
const IOPS: u32 = 200;

/// Of both second levels together, if there are any.
const SECOND: u64 = 32 * MIB;

/// With read caches of so many levels.
fn config(machine: &Machine, levels: usize) -> Config {
    let root = machine.directory.path().display();
    let level2 = if levels == 2 { "level2 = \"32 MiB\"\n" } else { "" };
    let mut text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n[allocation]\ncache = \"24 MiB\"\ninterval = \"1 s\"\nslo = 1.0\n{level2}\
         [provider.local]\ndirectory = \"{root}/volumes\"\n\
         [provider.local.types.tiny]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n"
    );
    for name in ["a", "b"] {
        let backing = machine.path(name);
        let file = std::fs::File::create(&backing).unwrap();
        for at in (0..SIZE).step_by(BLOCK as usize) {
            file.write_all_at(&pattern(at, 1, BLOCK as usize), at).unwrap();
        }
        text += &format!(
            "[device.{name}]\nbacking = \"{root}/{name}\"\nexport = \"nbd\"\nthrottle = true\n\
             backing_limits = {{ bandwidth = \"400 MiB/s\", iops = \"{IOPS} IOPS\" }}\n\
             [device.{name}.read_cache]\nvolume_type = \"tiny\"\nmembers = 1\nmember_size = \"32 MiB\"\nthrottle = false\n"
        );
        if levels == 2 {
            text += &format!(
                "[device.{name}.read_cache.level2]\nvolume_type = \"tiny\"\nmembers = 1\nmember_size = \"32 MiB\"\nthrottle = false\n"
            );
        }
    }
    Config::from_text(Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn second_share(daemon: &Daemon, device: &str) -> ShareStatus {
    let second = status(daemon, device).read_cache.and_then(|cache| cache.level2);
    second.and_then(|cache| cache.share).unwrap_or_default()
}

fn share(daemon: &Daemon, device: &str) -> ShareStatus {
    status(daemon, device).read_cache.and_then(|cache| cache.share).unwrap_or_default()
}

/// Reads a device until it is over, and counts: all of it in turn, or at random a part that comes from the number of bytes.
fn read(machine: &Machine, device: &str, (hot, reads): (&AtomicU64, &AtomicU64), over: &AtomicBool) {
    let (mut nbd, mut random, mut turn) = (connect(machine, device), Random::from_seed(7), 0);
    while !over.load(Ordering::Relaxed) {
        let at = match hot.load(Ordering::Relaxed) {
            0 => {
                turn = (turn + BLOCK) % SIZE;
                turn
            }
            hot => random.below(hot / BLOCK) * BLOCK,
        };
        assert!(
            nbd.read(at, BLOCK as usize).unwrap() == pattern(at, 1, BLOCK as usize),
            "{device} reads something else"
        );
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// One for each device.
fn readers<'scope>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine,
    (hot, reads): (&'scope [AtomicU64; 2], &'scope [AtomicU64; 2]),
    over: &'scope AtomicBool,
) -> Vec<ScopedJoinHandle<'scope, ()>> {
    let of = ["a", "b"].into_iter().zip(hot.iter().zip(reads));
    of.map(|(device, of)| scope.spawn(move || read(machine, device, of, over))).collect()
}

#[test]
fn the_share_of_a_cache_follows_the_hot_spot() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine, 1)).unwrap();
    let fair = share(&daemon, "a");
    assert_eq!((fair.size_gib * 1024.0, fair.fair_gib * 1024.0), (12.0, 12.0));
    let (over, hot, reads) = (AtomicBool::new(false), [HOT, 0].map(AtomicU64::new), [0, 0].map(AtomicU64::new));
    std::thread::scope(|scope| {
        let _over = Ends(&over);
        let readers = readers(scope, &machine, (&hot, &reads), &over);
        for (most, least) in [("a", "b"), ("b", "a")] {
            let of = |name| hot[usize::from(name == "b")].store(if name == most { HOT } else { 0 }, Ordering::Relaxed);
            ["a", "b"].into_iter().for_each(of);
            let so_far = || reads[usize::from(most == "b")].load(Ordering::Relaxed);
            let begun = so_far();
            loop {
                let (larger, smaller) = (share(&daemon, most), share(&daemon, least));
                let together = (larger.size_gib + smaller.size_gib) * 1024.0;
                // They are asked one after the other, and may change meanwhile.
                let stands = share(&daemon, most).size_gib == larger.size_gib;
                assert!(together <= 24.0 || !stands, "{larger:?} {smaller:?}");
                let on_disk = machine.on_disk();
                assert!(on_disk <= CACHE, "{on_disk} bytes are on disk");
                if larger.size_gib * 1024.0 >= 15.0 && larger.slo_met.is_some() {
                    break;
                }
                assert!(!readers.iter().any(ScopedJoinHandle::is_finished), "a reader has ended");
                assert!(so_far() - begun < READS_MAX, "{most} does not get most of the cache: {larger:?} {smaller:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    daemon.stop();
}

#[test]
fn both_levels_are_shared_and_the_hot_spot_is_in_one_of_them() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine, 2)).unwrap();
    let mib = |share: ShareStatus| (share.size_gib * 1024.0, share.fair_gib * 1024.0);
    for device in ["a", "b"] {
        assert_eq!((mib(share(&daemon, device)), mib(second_share(&daemon, device))), ((12.0, 12.0), (16.0, 16.0)));
    }
    // More than the fair share of either level.
    let hot = 20 * MIB;
    let (over, hot, reads) = (AtomicBool::new(false), [hot, 0].map(AtomicU64::new), [0, 0].map(AtomicU64::new));
    std::thread::scope(|scope| {
        let _over = Ends(&over);
        let readers = readers(scope, &machine, (&hot, &reads), &over);
        loop {
            for (of, budget) in [(share as fn(&Daemon, &str) -> ShareStatus, CACHE), (second_share, SECOND)] {
                let [a, b] = ["a", "b"].map(|device| mib(of(&daemon, device)).0);
                // They are asked one after the other, and may change meanwhile.
                let stands = mib(of(&daemon, "a")).0 == a;
                assert!((a + b) * MIB as f64 <= budget as f64 || !stands, "{a} MiB and {b} MiB of {budget}");
            }
            let on_disk = machine.on_disk();
            assert!(on_disk <= CACHE + SECOND, "{on_disk} bytes are on disk");
            let (first, second) = (share(&daemon, "a"), second_share(&daemon, "a"));
            if first.size_gib.max(second.size_gib) * 1024.0 >= 19.0 && first.slo_met.is_some() {
                break;
            }
            assert!(!readers.iter().any(ScopedJoinHandle::is_finished), "a reader has ended");
            let so_far = reads[0].load(Ordering::Relaxed);
            assert!(so_far < READS_MAX, "neither level gets room for the hot spot: {first:?} {second:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    daemon.stop();
}
