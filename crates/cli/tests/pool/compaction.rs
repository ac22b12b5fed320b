//! A small SSD under an open file that is larger and is written over at random: its segments are compacted.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::place::{MIB, Place, Pool, bytes, can_mount, done};

/// Tells the program where to write, and how many MiB.
const OVERWRITES: &str = "SURGETANK_TEST_OVERWRITES";
/// Writes over of a MiB, for each four that the file has.
const PART: usize = 4;

/// A MiB of the file in a version: each differs from all others.
fn block(base: &[u8], at: usize, version: u32) -> Vec<u8> {
    let mut block = base.to_vec();
    for (number, part) in block.chunks_mut(4096).enumerate() {
        let text = format!("block {at} version {version} part {number} ");
        part[..text.len()].copy_from_slice(text.as_bytes());
    }
    block
}

/// Which blocks are written over, in this order.
fn overwritten(blocks: usize) -> impl Iterator<Item = usize> {
    let mut word = 12345_u32;
    (0..blocks / PART).map(move |_| {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (word >> 8) as usize % blocks
    })
}

/// The program itself: it keeps the file open from its beginning to its end.
#[test]
fn a_program_that_writes_over_a_file() {
    let Ok(what) = std::env::var(OVERWRITES) else { return };
    let (blocks, path) = what.split_once(' ').unwrap();
    let (blocks, base) = (blocks.parse::<usize>().unwrap(), bytes(7, MIB));
    let file = fs::File::create(path).unwrap();
    let mut versions = vec![1; blocks];
    for at in 0..blocks {
        file.write_all_at(&block(&base, at, 1), (at * MIB) as u64).unwrap();
        if at % 16 == 15 {
            file.sync_all().unwrap();
        }
    }
    for (number, at) in overwritten(blocks).enumerate() {
        versions[at] += 1;
        file.write_all_at(&block(&base, at, versions[at]), (at * MIB) as u64).unwrap();
        if number % 4 == 3 {
            file.sync_all().unwrap();
        }
    }
    file.sync_all().unwrap();
}

fn start(path: &Path, blocks: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "compaction::a_program_that_writes_over_a_file", "--nocapture"])
        .env(OVERWRITES, format!("{blocks} {}", path.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What is at the target is what the program wrote last.
fn check(path: &Path, blocks: usize) {
    let (file, base) = (fs::File::open(path).unwrap(), bytes(7, MIB));
    let mut versions = vec![1; blocks];
    overwritten(blocks).for_each(|at| versions[at] += 1);
    assert_eq!(file.metadata().unwrap().len(), (blocks * MIB) as u64);
    let mut found = vec![0; MIB];
    for (at, version) in versions.into_iter().enumerate() {
        file.read_exact_at(&mut found, (at * MIB) as u64).unwrap();
        assert!(found == block(&base, at, version), "block {at}: {}", String::from_utf8_lossy(&found[..32]));
    }
}

fn copied(pool: &Pool) -> f64 {
    pool.status()["benefactors"][0]["ssd_copied_gib"].as_f64().unwrap_or(0.0)
}

fn up(directory: PathBuf, listen: &str) -> Pool {
    Pool::up_with(&directory, listen, "1", &["--ssd", "256 MiB"])
}

#[test]
#[ignore = "it keeps the disk busy for minutes, from which other tests suffer: `make lab` runs it"]
fn an_open_file_of_five_times_the_ssd_is_written_over_at_random_without_enospc() {
    if !can_mount() {
        return;
    }
    let (place, blocks) = (Place::new(), 5 * 256);
    let pool = up(place.at("pool"), "127.0.0.1:0");
    place.mount_durable(&pool, "mnt", "copies=1,media=ssd");
    let mut program = start(&place.at("mnt/file"), blocks);
    assert!(program.wait().unwrap().success());
    println!("{:.0} MiB copied", copied(&pool) * 1024.0);
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    check(&place.at("target/file"), blocks);
    let told = done(&["pool", "status", &pool.address, "--token", &pool.key]);
    assert!(told.contains("garbage"), "{told}");
    done(&["umount", &place.text("mnt")]);
}

#[test]
#[ignore = "it keeps the disk busy for minutes, from which other tests suffer: `make lab` runs it"]
fn a_benefactor_that_is_killed_amid_compaction_loses_nothing() {
    if !can_mount() {
        return;
    }
    let (place, blocks) = (Place::new(), 2 * 256);
    let mut pool = up(place.at("pool"), "127.0.0.1:0");
    let listen = pool.address.strip_prefix("pool://").unwrap().to_owned();
    place.mount_durable(&pool, "mnt", "copies=1,media=ssd");
    let mut program = start(&place.at("mnt/file"), blocks);
    let mut kills = 0;
    let mut known = 0.0;
    while program.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        let now = copied(&pool);
        if now > known && kills < 4 {
            kills += 1;
            pool.child.kill().unwrap();
            pool.child.wait().unwrap();
            pool = up(place.at("pool"), &listen);
        }
        known = copied(&pool);
    }
    assert!(program.wait().unwrap().success());
    println!("{kills} kills");
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    check(&place.at("target/file"), blocks);
    done(&["umount", &place.text("mnt")]);
}
