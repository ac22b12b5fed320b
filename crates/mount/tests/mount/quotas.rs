//! Programs of a user who has a quota.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use surgetank_pool::client::PoolClient;
use surgetank_pool_core::quota::{Limit, Used};

use crate::fixture::{MIB, Mounted, Pool, bytes, can_mount, pool, same, support, until, until_drained};

const USER: u32 = 7;

fn limit(pool: &Pool, bytes: usize, files: u64) {
    let (bytes, files) = (Some(Limit::AtMost(bytes as u64)), Some(Limit::AtMost(files)));
    support::run(async {
        PoolClient::set_quota(&pool.config(1), Some(USER), bytes, files).await.expect("a manager answers");
    });
}

fn is_over(done: std::io::Result<impl Sized>) -> bool {
    match done.err() {
        Some(error) => {
            assert_eq!((error.raw_os_error(), error.kind()), (Some(libc::EDQUOT), ErrorKind::QuotaExceeded));
            true
        }
        None => false,
    }
}

#[test]
fn a_program_gets_edquot_from_write_and_creat_and_its_file_goes_on() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 96);
    let mounted = Mounted::new(&pool, 2);
    fs::create_dir(mounted.at("d")).unwrap();
    chown(mounted.at("d"), Some(USER), Some(USER)).unwrap();
    // The directory, and two files of a program that runs as the user.
    limit(&pool, 10 * MIB, 3);
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(mounted.at("d")).uid(USER).gid(USER);
        command.output().unwrap()
    };
    let made = sh("echo 1 > one && dd if=/dev/zero of=two bs=1M count=2 2>/dev/null");
    assert!(made.status.success(), "{made:?}");
    until_drained(&mounted.at("d/one"));
    let open = || OpenOptions::new().write(true).open(mounted.at("d/two")).unwrap();
    let content = bytes(1, 10 * MIB);
    let mut file = open();
    file.write_all(&content[..8 * MIB]).unwrap();
    assert!(is_over(file.write_at(&content[..MIB], 10 * MIB as u64 - 1)));
    assert!(is_over(file.set_len(11 * MIB as u64)));
    let (from, length) = (7 * MIB as u64, 4 * MIB as u64);
    let zeroed = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::ZERO_RANGE, from, length);
    assert!(is_over(zeroed.map_err(Into::into)));
    assert_eq!(file.metadata().unwrap().len(), 8 << 20, "nothing of these was taken");
    file.write_all_at(&content[8 * MIB..], 8 * MIB as u64).unwrap();
    file.sync_all().unwrap();
    assert!(is_over(file.write_at(b"x", 10 * MIB as u64)));
    drop(file);
    until_drained(&mounted.at("d/two"));
    same("at the target", &fs::read(pool.target().join("d/two")).unwrap(), &content);
    // Directories count, and so do files that the target has.
    for (script, what) in
        [("> three", "creat"), ("mkdir e", "mkdir"), ("ln -s one three", "symlink"), ("mkfifo f", "mknod")]
    {
        let denied = sh(script);
        let told = String::from_utf8(denied.stderr).unwrap();
        assert!(!denied.status.success() && told.contains("Disk quota exceeded"), "{what}: {told}");
    }
    assert!(sh("ln one again && rm two && > three").status.success());
    assert!(!sh("> four").status.success());
    // Whoever writes into the user's file, and of what is root's there is no limit.
    fs::write(mounted.at("d/of root"), &content).unwrap();
    let mut file = OpenOptions::new().append(true).open(mounted.at("d/three")).unwrap();
    assert!(is_over(file.write_all(&bytes(2, 11 * MIB))), "the kernel cuts it into parts");
    let taken = file.metadata().unwrap().len();
    assert!((9 << 20..=10 << 20).contains(&taken), "all parts for which there is room were taken: {taken}");
    drop(file);
    mounted.end();
}

/// A pool, and a mount of it, in which a directory is a user's who has a quota of so many MiB.
fn limited(most: usize) -> (Pool, Mounted) {
    let pool = pool(2, 96);
    limit(&pool, most * MIB, 100);
    let mounted = Mounted::new(&pool, 1);
    fs::create_dir(mounted.at("d")).unwrap();
    chown(mounted.at("d"), Some(USER), Some(USER)).unwrap();
    (pool, mounted)
}

/// The user's shell makes something.
fn sh(mounted: &Mounted, script: &str) {
    let mut command = Command::new("sh");
    let ended = command.args(["-c", script]).current_dir(mounted.at("d")).uid(USER).gid(USER).output().unwrap();
    assert!(ended.status.success(), "{script}: {ended:?}");
}

/// A program in Python: how it has ended.
fn python(mounted: &Mounted, script: &str) -> std::io::Result<()> {
    let ended = Command::new("python3").args(["-c", script]).current_dir(mounted.at("d")).output()?;
    match ended.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&ended.stderr).contains("Disk quota exceeded") => {
            Err(std::io::Error::from_raw_os_error(libc::EDQUOT))
        }
        false => panic!("{ended:?}"),
    }
}

fn used(pool: &Pool) -> Used {
    let mut used = Used::NONE;
    support::run(async {
        let report = PoolClient::ask_quotas(&pool.config(1)).await.expect("a manager answers");
        used = report.users.into_iter().find(|of| of.user == USER).map_or(Used::NONE, |of| of.used);
    });
    used
}

#[test]
fn a_truncation_that_is_refused_leaves_nothing_open() {
    if !can_mount() {
        return;
    }
    let (pool, mounted) = limited(4);
    for name in ["one", "two"] {
        sh(&mounted, &format!("head -c 2000000 /dev/urandom > {name}"));
        until_drained(&mounted.at(&format!("d/{name}")));
        // Without a handle, as `truncate(2)` does it.
        assert!(is_over(python(&mounted, &format!("import os; os.truncate('{name}', 5 << 20)"))));
    }
    // The target sees what another mount writes and closes,
    let other = Mounted::new(&pool, 1);
    let content = bytes(3, MIB);
    fs::write(other.at("d/one"), &content).unwrap();
    until_drained(&other.at("d/one"));
    same("at the target", &fs::read(pool.target().join("d/one")).unwrap(), &content);
    // and what is unlinked counts no more.
    fs::remove_file(mounted.at("d/two")).unwrap();
    until("it counts no more", || used(&pool) == Used { bytes: 0, files: 2 });
    other.end();
    mounted.end();
}

#[test]
fn what_makes_a_file_no_longer_is_refused_never() {
    if !can_mount() {
        return;
    }
    let (pool, mounted) = limited(4);
    sh(&mounted, "head -c 3000000 /dev/zero > file");
    until_drained(&mounted.at("d/file"));
    sh(&mounted, "head -c 2000000 /dev/zero > other");
    limit(&pool, MIB, 100);
    assert!(is_over(open_for_append(&mounted, "d/other").set_len(3 * MIB as u64)));
    until_drained(&mounted.at("d/other"));
    // As long as somebody writes it, it is not drained once more.
    let file = OpenOptions::new().write(true).open(mounted.at("d/file")).unwrap();
    file.write_all_at(b"over", 100).unwrap();
    // A page is written back after the descriptor is closed, into a file that the target has.
    let script = "import mmap, os
f = os.open('file', os.O_RDWR)
m = mmap.mmap(f, 3000000)
os.close(f)
m[:4] = b'page'
m[2999990:2999994] = b'page'
m.flush()
m.close()";
    python(&mounted, script).unwrap();
    assert!(used(&pool).bytes >= 3_000_000, "all of it counts");
    assert!(is_over(file.write_at(b"longer", 2_999_999)));
    file.set_len(2_999_999).unwrap();
    file.sync_all().unwrap();
    drop(file);
    OpenOptions::new().write(true).open(mounted.at("d/other")).unwrap().set_len(1_500_000).unwrap();
    until_drained(&mounted.at("d/file"));
    let mut content = vec![0; 2_999_999];
    content[..4].copy_from_slice(b"page");
    content[2_999_990..2_999_994].copy_from_slice(b"page");
    content[100..104].copy_from_slice(b"over");
    same("at the target", &fs::read(pool.target().join("d/file")).unwrap(), &content);
    mounted.end();
}

fn open_for_append(mounted: &Mounted, name: &str) -> File {
    OpenOptions::new().append(true).open(mounted.at(name)).unwrap()
}
