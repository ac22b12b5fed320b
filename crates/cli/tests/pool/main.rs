//! A staging pool and its mounts as processes of their own.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod access;
mod compaction;
#[path = "../../../pool/tests/pool/support/damage.rs"]
mod damage;
mod drain;
mod etcd;
#[allow(dead_code, reason = "a part is used here")]
#[path = "../../../pool/tests/pool/support/etcd_server.rs"]
mod etcd_server;
mod metrics;
mod objects;
mod place;
mod planned;
mod quota;
#[allow(dead_code, reason = "a part is used here")]
#[path = "../../../pool/tests/pool/support/s3.rs"]
mod s3;
mod ssd;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;

use crate::place::{MIB, Place, Pool, binary, bytes, can_mount, done, refused, run, signal, until};

#[test]
fn a_pool_comes_up_is_mounted_drains_and_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "3");
    place.mount(&pool, "mnt");
    let checkpoint = place.at("mnt/checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    for rank in 0..3 {
        fs::write(checkpoint.join(format!("rank{rank}")), bytes(rank, 5 * MIB + 3)).unwrap();
    }
    let path = checkpoint.display().to_string();
    done(&["pool", "wait", &path, "--state", "replicated"]);
    let waited: Value =
        serde_json::from_str(&done(&["pool", "wait", &path, "--state", "drained", "--timeout", "60 s", "--json"]))
            .unwrap();
    let expected = serde_json::json!({"state": "drained", "is_reached": true, "files": 3, "states": {"drained": 3}});
    assert_eq!(waited, expected);
    for rank in 0..3 {
        let name = format!("target/checkpoint/rank{rank}");
        assert!(fs::read(place.at(&name)).unwrap() == bytes(rank, 5 * MIB + 3), "{name}");
    }
    let status = pool.status();
    assert_eq!(status["files"]["drained"], 3);
    assert_eq!(status["benefactors"][0]["class"], "m");
    assert!(done(&["pool", "status", &pool.address, "--token", &pool.key]).contains("3 drained"));
    // A second mount on the same directory, a mount in use, and one that is none.
    let (code, told) =
        refused(&["mount", &pool.address, &place.text("mnt"), "--target", &place.text("target"), "--token", &pool.key]);
    assert_eq!(code, 2);
    assert!(told.contains("is mounted there already: take it away with `surgetank umount"), "{told}");
    let open = fs::File::open(checkpoint.join("rank0")).unwrap();
    let (code, told) = refused(&["umount", &place.text("mnt")]);
    assert_eq!(code, 2);
    assert!(told.contains("a program uses it"), "{told}");
    drop(open);
    until("it is unmounted", || run(&["umount", &place.text("mnt")]).status.success());
    assert!(refused(&["umount", &place.text("mnt")]).1.contains("nothing is mounted there"));
    signal(&pool.child, rustix::process::Signal::TERM);
    assert_eq!(pool.end(), (Some(0), String::new()), "everything is drained");
}

#[test]
fn a_killed_mount_loses_nothing_that_was_committed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "3");
    let mut mount = place.mount_in_front(&pool, "mnt");
    fs::write(place.at("mnt/closed"), bytes(1, 6 * MIB)).unwrap();
    let torn = fs::File::create(place.at("mnt/torn")).unwrap();
    torn.write_all_at(&bytes(2, 3 * MIB), 0).unwrap();
    torn.sync_all().unwrap();
    torn.write_all_at(&bytes(3, 2 * MIB), 3 * MIB as u64).unwrap();
    mount.0.kill().unwrap();
    mount.0.wait().unwrap();
    assert!(torn.write_all_at(b"more", 0).is_err(), "the mount is dead");
    drop(torn);
    place.mount(&pool, "mnt2");
    assert!(fs::read(place.at("mnt2/closed")).unwrap() == bytes(1, 6 * MIB));
    assert!(fs::read(place.at("mnt2/torn")).unwrap() == bytes(2, 3 * MIB), "as it was committed last");
    let (code, told) =
        refused(&["mount", &pool.address, &place.text("mnt"), "--target", &place.text("target"), "--token", &pool.key]);
    assert!(code == 2 && told.contains("surgetank umount"), "{told}");
    done(&["umount", &place.text("mnt")]);
    until("both reach the target", || place.at("target/closed").exists() && place.at("target/torn").exists());
    assert!(fs::read(place.at("target/closed")).unwrap() == bytes(1, 6 * MIB));
    assert!(fs::read(place.at("target/torn")).unwrap() == bytes(2, 3 * MIB));
    let (code, told) = refused(&["pool", "wait", &place.text("mnt2/torn"), "--state", "drained"]);
    assert_eq!(code, 1);
    assert!(told.contains("its writer ended before it closed the file"), "{told}");
    done(&["umount", &place.text("mnt2")]);
}

#[test]
fn a_mount_that_is_interrupted_before_a_manager_answers_leaves_no_process() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    // It takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (pool, point) = (format!("pool://{}", silent.local_addr().unwrap()), place.text("mnt"));
    let mut mount = binary();
    mount.args(["mount", &pool, &point, "--target", &place.text("target"), "--token", &place.key()]);
    mount.args(["--log-file", &place.text("log")]).process_group(0).stderr(Stdio::piped());
    let mut child = mount.spawn().unwrap();
    let _heard = silent.accept().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(
        said,
        format!(
            "surgetank: no manager at {} has said yet that {} can be mounted: it is waited for\n",
            &pool[7..],
            place.text("target")
        )
    );
    // As a terminal does it: both processes hear it.
    rustix::process::kill_process_group(Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    let log = || fs::read_to_string(place.at("log")).unwrap();
    until("the process in the background says so", || log().contains("interrupted; nothing is mounted"));
    let serves = |entry: fs::DirEntry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&point)
    };
    until("it has ended", || !fs::read_dir("/proc").unwrap().flatten().any(serves));
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&point));
}

#[test]
fn waiting_for_a_directory_goes_on_past_torn_files_and_names_them() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    place.mount(&pool, "mnt2");
    let mut mount = place.mount_in_front(&pool, "mnt");
    let torn = ["a", "b"].map(|name| {
        let file = fs::File::create(place.at("mnt").join(name)).unwrap();
        file.write_all_at(&bytes(1, 300_000), 0).unwrap();
        file
    });
    mount.0.kill().unwrap();
    mount.0.wait().unwrap();
    drop(torn);
    let open = fs::File::create(place.at("mnt2/open")).unwrap();
    open.write_all_at(&bytes(2, MIB), 0).unwrap();
    open.sync_all().unwrap();
    until("both are torn", || pool.status()["files"]["torn"] == 2);
    let directory = place.text("mnt2");
    let waits = std::thread::spawn(move || refused(&["pool", "wait", &directory, "--state", "drained"]));
    std::thread::sleep(Duration::from_secs(1));
    assert!(!waits.is_finished(), "one file is not drained yet");
    drop(open);
    let (code, told) = waits.join().unwrap();
    assert!(place.at("target/open").exists(), "{told}");
    assert_eq!(code, 1);
    let names = format!("2 of 3 files will not get there: 2 torn ({0}/a, {0}/b): ", place.text("mnt2"));
    assert!(told.contains(&names) && told.contains("write it again, or remove it (`rm`)"), "{told}");
    done(&["umount", &place.text("mnt")]);
    done(&["umount", &place.text("mnt2")]);
}

#[test]
fn the_locks_of_a_killed_mount_are_free_once_its_session_is_over() {
    use rustix::fs::{FlockOperation, flock};

    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "3");
    let mut mount = place.mount_in_front(&pool, "mnt");
    place.mount(&pool, "mnt2");
    let locked = fs::File::create(place.at("mnt/file")).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let other = fs::File::open(place.at("mnt2/file")).unwrap();
    let free = || flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(!free());
    mount.0.kill().unwrap();
    mount.0.wait().unwrap();
    assert!(!free(), "the pool does not know yet whether the mount is dead");
    // Who waits gets it.
    let waiting = fs::File::open(place.at("mnt2/file")).unwrap();
    flock(&waiting, FlockOperation::LockExclusive).unwrap();
    assert!(!free());
    drop(waiting);
    assert!(free());
    drop((locked, other));
    done(&["umount", &place.text("mnt")]);
    done(&["umount", &place.text("mnt2")]);
}

#[test]
fn a_pool_that_ends_names_what_is_not_drained() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    place.mount(&pool, "mnt");
    fs::write(place.at("mnt/drained"), bytes(1, MIB)).unwrap();
    done(&["pool", "wait", &place.text("mnt/drained"), "--state", "drained"]);
    // What is not closed is not drained.
    let open = fs::File::create(place.at("mnt/open")).unwrap();
    open.write_all_at(&bytes(2, MIB), 0).unwrap();
    open.sync_all().unwrap();
    let (code, told) = refused(&["pool", "wait", &place.text("mnt/open"), "--state", "drained", "--timeout", "1 s"]);
    assert_eq!(code, 1);
    assert!(told.contains("the time is over, and ") && told.contains(" is replicated"), "{told}");
    let address = pool.address.clone();
    let (code, told) = pool.end_without_waiting();
    assert_eq!(code, Some(1), "{told}");
    let name = place.text("target/open");
    assert!(
        told.contains("1 file, not drained yet") && told.contains("1 file, lost, since they were in memory"),
        "{told}"
    );
    assert!(told.contains(&format!("  {name} (1 MiB)")), "{told}");
    // The next run has the names, and says what is lost; what is drained is there.
    let listen = address.strip_prefix("pool://").unwrap();
    let pool = Pool::up(&place.at("pool"), listen, "2");
    assert!(fs::read(place.at("mnt/drained")).unwrap() == bytes(1, MIB));
    assert!(open.write_all_at(b"x", MIB as u64).is_ok() || open.sync_all().is_err(), "what was open fails or goes on");
    drop(open);
    // What the target alone has by now is written on.
    let drained = fs::OpenOptions::new().write(true).open(place.at("mnt/drained")).unwrap();
    drained.write_all_at(b"more", 100).unwrap();
    drop(drained);
    let expected = [&bytes(1, MIB)[..100], b"more", &bytes(1, MIB)[104..]].concat();
    done(&["pool", "wait", &place.text("mnt/drained"), "--state", "drained"]);
    assert!(fs::read(place.at("target/drained")).unwrap() == expected);
    let second = run(&["pool", "up", "--listen", "127.0.0.1:0", "--directory", &place.text("pool")]);
    let told = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(told.contains("another pool runs with it: stop that one, or name another directory"), "{told}");
    until("it is unmounted", || run(&["umount", &place.text("mnt")]).status.success());
    signal(&pool.child, rustix::process::Signal::INT);
    signal(&pool.child, rustix::process::Signal::INT);
    let (_, told) = pool.end();
    assert!(told.contains(&name), "{told}");
}

#[test]
fn a_file_of_somebody_else_at_the_target_stays_and_the_conflict_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    place.mount(&pool, "mnt");
    // It is put there while the file is written.
    let file = fs::File::create(place.at("mnt/results")).unwrap();
    file.write_all_at(&bytes(1, MIB), 0).unwrap();
    fs::write(place.at("target/results"), "of another job").unwrap();
    drop(file);
    let (code, told) = refused(&["pool", "wait", &place.text("mnt/results"), "--state", "drained"]);
    assert!(code == 1 && told.contains("somebody else has put or changed what is at its name at the target"), "{told}");
    let mut state = [0; 16];
    let length = rustix::fs::getxattr(place.at("mnt/results"), "user.surgetank.state", &mut state).unwrap();
    assert_eq!(&state[..length], b"conflict");
    let files = pool.status()["files"].clone();
    assert_eq!((&files["conflict"], &files["failed"], &files["drained"]), (&1.into(), &0.into(), &0.into()));
    assert!(done(&["pool", "status", &pool.address, "--token", &pool.key]).contains("1 in conflict"));
    assert_eq!(fs::read(place.at("target/results")).unwrap(), b"of another job");
    // A copy is drained, and the rest is discarded.
    fs::copy(place.at("mnt/results"), place.at("mnt/results.pool")).unwrap();
    fs::remove_file(place.at("mnt/results")).unwrap();
    done(&["pool", "wait", &place.text("mnt"), "--state", "drained"]);
    assert!(fs::read(place.at("target/results.pool")).unwrap() == bytes(1, MIB));
    done(&["umount", &place.text("mnt")]);
    signal(&pool.child, rustix::process::Signal::TERM);
    assert_eq!(pool.end(), (Some(0), String::new()), "nothing is left");
    assert_eq!(fs::read(place.at("target/results")).unwrap(), b"of another job");
}

#[test]
fn a_file_that_is_longer_than_its_target_takes_keeps_nothing_else_from_being_drained() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up_with_short_files(&place.at("pool"), 1 << 30);
    place.mount(&pool, "mnt");
    let made_long = |name: &str| fs::File::create(place.at(name)).unwrap().write_all_at(b"end", 2 << 30).unwrap();
    made_long("mnt/long");
    fs::write(place.at("mnt/other"), bytes(1, MIB)).unwrap();
    let (code, told) = refused(&["pool", "wait", &place.text("mnt/long"), "--state", "drained"]);
    assert!(code == 1 && told.contains("it is longer than a file at its target may be"), "{told}");
    done(&["pool", "wait", &place.text("mnt/other"), "--state", "drained", "--timeout", "60 s"]);
    assert!(fs::read(place.at("target/other")).unwrap() == bytes(1, MIB));
    assert!(!place.at("target/long").exists());
    // It is read here, and drained once it is shorter.
    let long = fs::OpenOptions::new().read(true).write(true).open(place.at("mnt/long")).unwrap();
    let mut end = [1; 5];
    long.read_exact_at(&mut end, (2 << 30) - 2).unwrap();
    assert_eq!(&end, b"\0\0end");
    long.set_len(7).unwrap();
    drop(long);
    done(&["pool", "wait", &place.text("mnt/long"), "--state", "drained", "--timeout", "60 s"]);
    assert_eq!(fs::read(place.at("target/long")).unwrap(), [0; 7]);
    // One that is removed is forgotten.
    made_long("mnt/removed");
    fs::remove_file(place.at("mnt/removed")).unwrap();
    done(&["pool", "wait", &place.text("mnt"), "--state", "drained", "--timeout", "60 s"]);
    done(&["umount", &place.text("mnt")]);
    signal(&pool.child, rustix::process::Signal::TERM);
    assert_eq!(pool.end().0, Some(0));
}

#[test]
fn bad_input_gets_one_sentence() {
    let place = Place::new();
    let (target, point, key) = (place.text("target"), place.text("mnt"), place.key());
    fs::write(place.at("file"), "").unwrap();
    let (file, none, log, pool) = (place.text("file"), place.text("none"), place.text("log"), "pool://127.0.0.1:1");
    let mut cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["pool", "status", pool, "--token", &none], 2, "ask whoever runs the pool for a token"),
        (vec!["pool", "status", pool, "--token", &key, "--certificates", &none], 2, "surgetank pool certificates"),
        (vec!["pool", "token", "--target", "here", "--directory", &none], 2, "full path of a directory"),
        (vec!["pool", "token", "--target", "/t", "--directory", &none], 2, "cannot be read"),
        (vec!["pool", "token", "--target", "/t/../u", "--directory", &none], 2, "without `..`"),
        (vec!["pool", "token", "--target", "/t", "--owner", "4294967295:0"], 2, "the numbers of a user and a group"),
        (vec!["pool", "certificates", &none, "--host", "a b"], 2, "no host's name"),
        (vec!["pool", "token", "--target", "/t", "--owner", "root"], 2, "the numbers of a user and a group"),
        (vec!["pool", "certificates", &none], 2, "name a machine at least"),
        (vec!["pool", "manager", "--listen", "0.0.0.0:0", "--directory", &none], 2, "is not a loopback address"),
        (
            vec![
                "pool",
                "benefactor",
                "--managers",
                "127.0.0.1:1",
                "--memory",
                "1 MiB",
                "--listen",
                "127.0.0.1:0",
                "--domain",
                "d",
            ],
            2,
            "a benefactor needs at least 3 MiB",
        ),
        (
            vec!["pool", "up", "--memory", "2 MiB", "--directory", &none],
            2,
            "a benefactor needs at least 3 MiB, three buffers",
        ),
        (vec!["pool", "up", "--memory", "256", "--directory", &none], 2, "unit"),
        (
            vec!["pool", "up", "--memory", "900 TiB", "--directory", &none],
            2,
            "3 × 900 TiB is more than this machine has",
        ),
        (vec!["pool", "token", "--target", "/t", "--valid", "0 s"], 2, "for a second at least"),
        (vec!["pool", "up", "--listen", "0.0.0.0:0", "--directory", &none], 2, "is not a loopback address"),
        (vec!["pool", "up", "--listen", "127.0.0.1:0", "--directory", &file], 1, "name one that can be written"),
        (
            vec!["pool", "status", pool, "--token", &key],
            1,
            "no pool answers at 127.0.0.1:1: start one with `surgetank pool up`",
        ),
        (vec!["pool", "status", "pool://0.0.0.0:1", "--token", &key], 2, "is not a loopback address"),
        (vec!["pool", "wait", &none, "--state", "drained"], 2, "name a file that is there"),
        (vec!["pool", "wait", &file, "--state", "drained"], 2, "is not in a mounted staging pool"),
        (vec!["mount", pool, &point, "--target", &target, "--durable", "twice"], 2, "is no durability: write copies=1"),
        (vec!["umount", &point], 2, "nothing is mounted there"),
    ];
    if Path::new("/dev/fuse").exists() {
        cases.extend([
            (vec!["mount", pool, &none, "--target", &target, "--token", &key], 2, "make it with `mkdir "),
            (vec!["mount", pool, &file, "--target", &target, "--token", &key], 2, "it is no directory"),
            (vec!["mount", pool, &point, "--target", &none, "--token", &key], 2, "make it, or name another directory"),
            (vec!["mount", pool, &point, "--target", &file, "--token", &key], 2, "it is no directory"),
            (vec!["mount", pool, &point, "--target", &point, "--token", &key], 2, "choose a mount point elsewhere"),
            (
                vec!["mount", pool, &point, "--target", &none, "--log-file", &log],
                2,
                "make it, or name another directory",
            ),
            (vec!["mount", pool, &point, "--target", &target, "--token", &key], 1, "no pool answers at 127.0.0.1:1"),
        ]);
    }
    for (arguments, status, part) in cases {
        let (code, told) = refused(&arguments);
        assert!(code == status && told.contains(part), "{arguments:?}: {code}: {told}");
    }
}
