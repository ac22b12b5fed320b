//! What is on SSD survives whatever ends a pool.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::damage::damage;
use crate::place::{MIB, Place, Pool, bytes, can_mount, done, refused, signal, until};

/// What a program has written into a file, and how much of that was acknowledged.
struct Written {
    name: String,
    content: Vec<u8>,
    acknowledged: usize,
}

/// A program of its own that writes files piece by piece until it is told to end, and says how much of each was acknowledged. What fails is not
/// acknowledged, nor is anything after it in that file. (Had the process that starts pools such files open, closing them in a new process
/// would wait for the pool that is to be started.)
#[test]
fn a_program_that_writes_into_a_mount() {
    let Some(directory) = std::env::var_os(WRITES).map(PathBuf::from) else { return };
    let writer: u32 = std::env::var("WRITER").unwrap().parse().unwrap();
    for number in 0.. {
        if directory.with_file_name("end").exists() {
            break;
        }
        let (name, mut acknowledged) = (file_of(writer, number), 0);
        let mut write = || -> std::io::Result<()> {
            let file = fs::File::create(directory.join(&name))?;
            for piece in content_of(writer, number).chunks(700_000) {
                file.write_all_at(piece, acknowledged as u64)?;
                file.sync_all()?;
                acknowledged += piece.len();
            }
            Ok(())
        };
        let failed = write().err().map(|error| error.to_string()).unwrap_or_default();
        println!("{ACKNOWLEDGED}{acknowledged} {failed}");
    }
}

/// Tells the program that writes where.
const WRITES: &str = "SURGETANK_TEST_WRITES";
/// Begins what it says of each file.
const ACKNOWLEDGED: &str = "acknowledged: ";

fn file_of(writer: u32, number: u32) -> String {
    format!("writer{writer}.{number}")
}

fn content_of(writer: u32, number: u32) -> Vec<u8> {
    bytes(writer * 1000 + number, 3 * MIB + 77)
}

fn start_writer(directory: &Path, writer: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ssd::a_program_that_writes_into_a_mount", "--nocapture"])
        .env(WRITES, directory)
        .env("WRITER", writer.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What such a program has written, once it has ended.
fn written(program: Child, writer: u32) -> Vec<Written> {
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let acknowledged = said.lines().filter_map(|line| line.split_once(ACKNOWLEDGED)?.1.split(' ').next()?.parse().ok());
    let of = |(number, acknowledged)| Written {
        name: file_of(writer, number),
        content: content_of(writer, number),
        acknowledged,
    };
    (0..).zip(acknowledged).map(of).collect()
}

/// All that was acknowledged is there, and nothing that was not written.
#[track_caller]
fn is_whole(directory: &Path, files: &[Written]) {
    for Written { name, content, acknowledged } in files {
        let found = fs::read(directory.join(name)).unwrap_or_default();
        let is_well = found.len() >= *acknowledged && content.starts_with(&found);
        assert!(is_well, "{}: {name}: {} bytes of {acknowledged}", directory.display(), found.len());
    }
}

#[test]
fn a_pool_that_is_killed_amid_writes_loses_nothing_that_was_acknowledged_as_on_ssd() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let up = |listen: &str| Pool::up_with(&place.at("pool"), listen, "2", &["--ssd", "256 MiB"]);
    let mut pool = up("127.0.0.1:0");
    let listen = pool.address.strip_prefix("pool://").unwrap().to_owned();
    place.mount_durable(&pool, "mnt", "copies=2,media=ssd");
    let mount = place.at("mnt");
    let programs = [0, 1].map(|writer| start_writer(&mount, writer));
    for life in 0..3 {
        std::thread::sleep(Duration::from_millis(1000 + 300 * life));
        pool.child.kill().unwrap();
        pool.child.wait().unwrap();
        let (_, told) = std::mem::replace(&mut pool, up(&listen)).end();
        assert!(!told.contains("lost"), "{told}");
    }
    std::thread::sleep(Duration::from_millis(500));
    fs::write(place.at("end"), "").unwrap();
    let files: Vec<Written> = (0..).zip(programs).flat_map(|(writer, program)| written(program, writer)).collect();
    for Written { name, acknowledged, content } in &files {
        // Whoever waits for the next life sees nothing of the kill.
        assert_eq!(*acknowledged, content.len(), "{name}");
    }
    let acknowledged: usize = files.iter().map(|file| file.acknowledged).sum();
    assert!(acknowledged > 3 * MIB, "the kills came amid writes: {acknowledged} bytes");
    is_whole(&mount, &files);
    let status = pool.status();
    for benefactor in status["benefactors"].as_array().unwrap() {
        assert_eq!((&benefactor["class"], &benefactor["state"]), (&"ms".into(), &"joined".into()));
        assert_eq!(benefactor["ssd_gib"], 0.25);
    }
    done(&["umount", &place.text("mnt")]);
    signal(&pool.child, rustix::process::Signal::TERM);
    let (code, told) = pool.end();
    assert_eq!(code, Some(0), "everything is drained: {told}");
    assert!(!told.contains("lost"), "{told}");
    is_whole(&place.at("target"), &files);
}

#[test]
fn a_pool_that_ends_calls_nothing_lost_that_is_on_ssd() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let up = |listen: &str, more: &[&str]| Pool::up_with(&place.at("pool"), listen, "1", more);
    let pool = up("127.0.0.1:0", &["--ssd", "256 MiB"]);
    let listen = pool.address.strip_prefix("pool://").unwrap().to_owned();
    place.mount_durable(&pool, "mnt", "copies=1,media=ssd");
    // What is not closed is not drained.
    let open = fs::File::create(place.at("mnt/open")).unwrap();
    open.write_all_at(&bytes(1, 5 * MIB), 0).unwrap();
    open.sync_all().unwrap();
    until("it is seen on SSD", || pool.status()["benefactors"][0]["ssd_used_gib"].as_f64().unwrap() >= 5.0 / 1024.0);
    assert!(done(&["pool", "status", &pool.address, "--token", &pool.key]).contains(" ms "));
    let (code, told) = pool.end_without_waiting();
    let file = format!("  {} (5 MiB)", place.text("target/open"));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains(
            "1 file, not drained, but kept on SSD or at their targets: the next `pool up` with the same directories"
        ),
        "{told}"
    );
    assert!(told.contains(&file) && !told.contains("lost,"), "{told}");
    // The next run lends no SSD, and serves what is there.
    let pool = up(&listen, &[]);
    until("it is read", || fs::read(place.at("mnt/open")).is_ok_and(|found| found == bytes(1, 5 * MIB)));
    drop(open);
    done(&["pool", "wait", &place.text("mnt/open"), "--state", "drained"]);
    assert!(fs::read(place.at("target/open")).unwrap() == bytes(1, 5 * MIB));
    done(&["umount", &place.text("mnt")]);
    signal(&pool.child, rustix::process::Signal::TERM);
    let (code, told) = pool.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("1 file, not drained when the pool ended last, but kept on SSD or at their targets")
            && told.contains(&file),
        "{told}"
    );
}

#[test]
fn damage_at_rest_that_nobody_reads_is_found_shown_and_repaired() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let more = ["--ssd", "256 MiB", "--scrub", "1 s"];
    let pool = Pool::up_with(&place.at("pool"), "127.0.0.1:0", "2", &more);
    place.mount_durable(&pool, "mnt", "copies=2,media=ssd");
    // What is not closed is not drained.
    let open = fs::File::create(place.at("mnt/open")).unwrap();
    let content = bytes(1, 5 * MIB);
    open.write_all_at(&content, 0).unwrap();
    open.sync_all().unwrap();
    let of = |status: &serde_json::Value, at: usize| status["benefactors"][at].clone();
    until("all of it is verified", || {
        let status = pool.status();
        (0..2).all(|at| of(&status, at)["scrub"]["last"]["chunks"] == 5)
    });
    let status = pool.status();
    assert_eq!((&of(&status, 0)["damaged"], &of(&status, 0)["scrub"]["last"]["damaged"]), (&0.into(), &0.into()));
    damage(&place.at("pool/ssd/1"), &content[2 * MIB..2 * MIB + 64]);
    until("it is found and repaired", || {
        let benefactor = of(&pool.status(), 1);
        let last = &benefactor["scrub"]["last"];
        benefactor["damaged"] == 1 && last["damaged"] == 0 && last["chunks"] == 5
    });
    let status = pool.status();
    assert_eq!((&of(&status, 0)["damaged"], &of(&status, 1)["scrub"]["damaged"]), (&0.into(), &1.into()));
    let told = done(&["pool", "status", &pool.address, "--token", &pool.key]);
    assert!(told.contains("last scrubbed") && told.contains(" ago, 0 damaged"), "{told}");
    drop(open);
    done(&["pool", "wait", &place.text("mnt/open"), "--state", "drained"]);
    assert!(fs::read(place.at("target/open")).unwrap() == content);
    done(&["umount", &place.text("mnt")]);
    let (code, told) = refused(&["pool", "up", "--directory", &place.text("other"), "--scrub", "0 s"]);
    assert!(code == 2 && told.contains("name a second at least, such as \"24 h\", or \"off\""), "{told}");
}

#[test]
fn an_ssd_directory_that_cannot_be_used_gets_one_sentence() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let read_only = rustix::mount::MountFlags::RDONLY;
    for (point, flags, size) in
        [("mnt", read_only, c"size=1m"), ("mnt2", rustix::mount::MountFlags::empty(), c"size=64m")]
    {
        rustix::mount::mount("tmpfs", place.at(point), "tmpfs", flags, size).unwrap();
    }
    let (directory, up) =
        (place.text("pool"), ["pool", "up", "--listen", "127.0.0.1:0", "--memory", "12 MiB", "--benefactors", "1"]);
    let said = |ssd: &str, of: &str| {
        refused(&[&up[..], &["--directory", &directory, "--ssd", ssd, "--ssd-directory", of]].concat())
    };
    let (code, told) = said("256 MiB", &place.text("mnt"));
    assert!(
        code == 1 && told.contains("Read-only file system") && told.contains("name one that can be written"),
        "{told}"
    );
    let (code, told) = said("256 MiB", &place.text("mnt2"));
    assert!(code == 1 && told.contains("there is no room for 256 MiB: lend less, or make room"), "{told}");
    let (code, told) = said("100 MiB", &place.text("mnt2"));
    assert!(
        code == 2 && told.contains("--ssd: 100 MiB of SSD make no 4 segments of 64 MiB: lend at least 256 MiB"),
        "{told}"
    );
}
