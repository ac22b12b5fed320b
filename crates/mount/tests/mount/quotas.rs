//! Programs of a user who has a quota.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use surgetank_pool::client::PoolClient;
use surgetank_pool_core::quota::Limit;

use crate::fixture::{MIB, Mounted, Pool, bytes, can_mount, pool, same, support, until_drained};

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
