//! Processes on two mounts write one file at the same time, each its own bytes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::Barrier;
use std::time::Duration;

use crate::fixture::{LONG, MIB, Mounted, bytes, can_mount, pool, same, until, until_drained};
use surgetank_model::random::Random;

/// A process that copies every `stride`th block of a file into another, from one on, and syncs each or only closes it.
fn copies(
    from: &std::path::Path,
    to: &std::path::Path,
    (first, stride): (usize, usize),
    block: usize,
    sync: bool,
) -> Child {
    let size = usize::try_from(fs::metadata(from).unwrap().len()).unwrap();
    let conv = if sync { "notrunc,fsync" } else { "notrunc" };
    let script = format!(
        "set -e; at={first}; while [ $((at * {block})) -lt {size} ]; do dd if=$1 of=$2 bs={block} skip=$at seek=$at count=1 \
         conv={conv} status=none; at=$((at + {stride})); done"
    );
    Command::new("sh").arg("-c").arg(script).arg("sh").arg(from).arg(to).spawn().unwrap()
}

#[test]
fn processes_on_two_mounts_that_write_parts_of_one_file_have_all_of_it() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 96);
    let (one, other) = (Mounted::new(&pool, 2), Mounted::new(&pool, 2));
    for (seed, block) in [(1, 299_999), (2, 65_536), (3, MIB)] {
        let content = bytes(seed, 5 * MIB + 333);
        let source = pool.directory.path().join("source");
        fs::write(&source, &content).unwrap();
        let name = format!("file{seed}");
        // It was there before, and the first of them opens it anew.
        fs::write(one.at(&name), bytes(seed + 10, 7 * MIB)).unwrap();
        drop(File::create(other.at(&name)).unwrap());
        let processes: Vec<Child> = (0..4)
            .map(|rank| {
                let mount = if rank % 2 == 0 { &one } else { &other };
                copies(&source, &mount.at(&name), (rank, 4), block, rank < 2)
            })
            .collect();
        for mut process in processes {
            assert!(process.wait().unwrap().success());
        }
        same("through one mount", &fs::read(one.at(&name)).unwrap(), &content);
        same("through the other", &fs::read(other.at(&name)).unwrap(), &content);
        until_drained(&one.at(&name));
        same("at the target", &fs::read(pool.target().join(&name)).unwrap(), &content);
    }
    one.end();
    other.end();
}

#[test]
fn handles_of_two_mounts_that_stay_open_share_a_file() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 96);
    let mounts = [Mounted::new(&pool, 2), Mounted::new(&pool, 2)];
    let (size, cell) = (4 * MIB, 10_007);
    let mut content = vec![0; size];
    File::create(mounts[0].at("file")).unwrap().set_len(size as u64).unwrap();
    let begin = Barrier::new(4);
    let parts: Vec<Vec<(usize, Vec<u8>)>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4_usize)
            .map(|rank| {
                let (mounts, begin) = (&mounts, &begin);
                scope.spawn(move || {
                    let mut random = Random::from_seed(rank as u64);
                    let open =
                        |mount: &Mounted| OpenOptions::new().read(true).write(true).open(mount.at("file")).unwrap();
                    let (file, elsewhere) = (open(&mounts[rank % 2]), &mounts[(rank + 1) % 2]);
                    begin.wait();
                    let mut written = Vec::new();
                    for round in 0..40_u64 {
                        let at = (usize::try_from(random.below((size / cell / 4) as u64)).unwrap() * 4 + rank) * cell;
                        let part = bytes(random.below(1 << 40), cell);
                        file.write_all_at(&part, at as u64).unwrap();
                        written.push((at, part.clone()));
                        if round % 8 == 0 {
                            file.sync_all().unwrap();
                            let mut found = vec![0; cell];
                            File::open(elsewhere.at("file")).unwrap().read_exact_at(&mut found, at as u64).unwrap();
                            same("what was synced is seen through the other mount", &found, &part);
                        }
                        let mut own = vec![0; cell];
                        file.read_exact_at(&mut own, at as u64).unwrap();
                        same("and through its own", &own, &part);
                    }
                    written
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (at, part) in parts.into_iter().flatten() {
        content[at..at + part.len()].copy_from_slice(&part);
    }
    for mount in &mounts {
        same("through a mount", &fs::read(mount.at("file")).unwrap(), &content);
    }
    until_drained(&mounts[0].at("file"));
    same("at the target", &fs::read(pool.target().join("file")).unwrap(), &content);
    for mount in mounts {
        mount.end();
    }
}

#[test]
fn what_nobody_syncs_is_seen_by_others_and_survives_a_client_after_a_while() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 96);
    let (one, other) = (Mounted::committing(&pool, 2, LONG, Duration::from_millis(400)), Mounted::new(&pool, 2));
    let mut content = bytes(1, 3 * MIB + 17);
    let log = File::create(one.at("log")).unwrap();
    log.write_all_at(&content, 0).unwrap();
    until("others see it", || fs::metadata(other.at("log")).unwrap().len() == content.len() as u64);
    same("through the other", &fs::read(other.at("log")).unwrap(), &content);
    // So is what comes behind it.
    let more = bytes(2, 100);
    log.write_all_at(&more, content.len() as u64).unwrap();
    content.extend(more);
    until("others see more", || fs::metadata(other.at("log")).unwrap().len() == content.len() as u64);
    drop(log);
    until_drained(&one.at("log"));
    same("at the target", &fs::read(pool.target().join("log")).unwrap(), &content);
    one.end();
    other.end();
}
