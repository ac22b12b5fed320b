//! A staging pool and its mounts as processes of their own.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        println!("skipped: needs root and /dev/fuse");
    }
    can
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    command.env_remove("SURGETANK_LOG").env_remove("SURGETANK_POOL_TOKEN").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    binary().args(arguments).output().unwrap()
}

#[track_caller]
fn done(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The status and the one sentence of a command that fails.
#[track_caller]
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = run(arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told.trim_end().lines().count(), 1, "{told}");
    (output.status.code().unwrap(), told)
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, signal).unwrap();
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that differ from place to place.
fn bytes(seed: u32, length: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..length)
        .map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8
        })
        .collect()
}

/// A pool that runs.
struct Pool {
    child: Child,
    address: String,
    /// The file that has its key.
    key: String,
}

impl Pool {
    fn up(directory: &Path, listen: &str, benefactors: &str) -> Self {
        Self::up_with(directory, listen, benefactors, &[])
    }

    fn up_with(directory: &Path, listen: &str, benefactors: &str, more: &[&str]) -> Self {
        let mut child = binary()
            .args(["pool", "up", "--benefactors", benefactors, "--memory", "96 MiB", "--listen", listen, "--directory"])
            .arg(directory)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once(": ").unwrap_or_else(|| panic!("{line}")).0.to_owned();
        let key = directory.join("key").display().to_string();
        let pool = Self { child, address, key };
        until("all benefactors have joined", || {
            let status = pool.status();
            let joined = status["benefactors"].as_array().unwrap().iter().filter(|of| of["state"] == "joined");
            joined.count().to_string() == benefactors
        });
        pool
    }

    fn status(&self) -> Value {
        serde_json::from_str(&done(&["pool", "status", &self.address, "--token", &self.key, "--json"])).unwrap()
    }

    /// Its status and what it has said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let told = BufReader::new(self.child.stderr.take().unwrap()).lines().map(Result::unwrap);
        // But for the log.
        let told: Vec<String> = told.filter(|line| !line.contains(" INFO ") && !line.contains(" WARN ")).collect();
        (self.child.wait().unwrap().code(), told.join("\n"))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directories of a test; what is still mounted there is taken away.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        ["target", "mnt", "mnt2"].iter().for_each(|name| fs::create_dir(place.at(name)).unwrap());
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    fn mount(&self, pool: &Pool, point: &str) {
        self.mount_durable(pool, point, "copies=2");
    }

    fn mount_durable(&self, pool: &Pool, point: &str, durable: &str) {
        let (point, target) = (self.text(point), self.text("target"));
        done(&["mount", &pool.address, &point, "--target", &target, "--token", &pool.key, "--durable", durable]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["mnt", "mnt2"] {
            let _ = rustix::mount::unmount(self.at(name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

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
    assert_eq!((&waited["state"], &waited["files"]), (&"drained".into(), &3.into()));
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
    let mut child = binary()
        .args(["mount", &pool.address, &place.text("mnt"), "--target", &place.text("target"), "--token", &pool.key])
        .arg("--foreground")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("mounted on"), "{line}");
    fs::write(place.at("mnt/closed"), bytes(1, 6 * MIB)).unwrap();
    let torn = fs::File::create(place.at("mnt/torn")).unwrap();
    torn.write_all_at(&bytes(2, 3 * MIB), 0).unwrap();
    torn.sync_all().unwrap();
    torn.write_all_at(&bytes(3, 2 * MIB), 3 * MIB as u64).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
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
    let (address, child) = (pool.address.clone(), &pool.child);
    signal(child, rustix::process::Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    signal(child, rustix::process::Signal::INT);
    let (code, told) = pool.end();
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
        .args(["--exact", "a_program_that_writes_into_a_mount", "--nocapture"])
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
    assert!(done(&["pool", "status", &pool.address]).contains(" ms "));
    signal(&pool.child, rustix::process::Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    signal(&pool.child, rustix::process::Signal::INT);
    let (code, told) = pool.end();
    let file = format!("  {} (5 MiB)", place.text("target/open"));
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("1 file, not drained, but on SSD: the next `pool up` with the same directories"), "{told}");
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
        told.contains("1 file, not drained when the pool ended last, but on SSD") && told.contains(&file),
        "{told}"
    );
}

#[test]
fn a_file_of_somebody_else_at_the_target_stays_and_the_conflict_is_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    place.mount(&pool, "mnt");
    fs::write(place.at("target/results"), "of another job").unwrap();
    fs::write(place.at("mnt/results"), bytes(1, MIB)).unwrap();
    let (code, told) = refused(&["pool", "wait", &place.text("mnt/results"), "--state", "drained"]);
    assert!(code == 1 && told.contains("somebody else has put or changed what is at its name at the target"), "{told}");
    let mut state = [0; 16];
    let length = rustix::fs::getxattr(place.at("mnt/results"), "user.surgetank.state", &mut state).unwrap();
    assert_eq!(&state[..length], b"conflict");
    let files = pool.status()["files"].clone();
    assert_eq!((&files["conflict"], &files["failed"], &files["drained"]), (&1.into(), &0.into(), &0.into()));
    assert!(done(&["pool", "status", &pool.address]).contains("1 in conflict"));
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

#[test]
fn another_user_is_refused_and_a_token_lets_its_mounts_in() {
    const NOBODY: u32 = 65_534;
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let open = |path: &Path| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    open(place.0.path());
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    let as_nobody = |arguments: &[&str]| {
        use std::os::unix::process::CommandExt;
        binary().args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output()
    };
    let (target, point, out) = (place.text("target"), place.text("mnt"), place.text("run.token"));
    let directory = place.text("pool");
    let make =
        |more: &[&str]| run(&[&["pool", "token", "--target", &target, "--directory", &directory][..], more].concat());
    match as_nobody(&["pool", "status", &pool.address, "--token", &pool.key]) {
        Ok(output) => {
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && told.trim_end().lines().count() == 1, "{told}");
            assert!(
                told.contains("Permission denied") && told.contains("ask whoever runs the pool for a token"),
                "{told}"
            );
            let made = as_nobody(&["pool", "token", "--target", &target, "--directory", &directory]).unwrap();
            assert_eq!(made.status.code(), Some(2), "nor does another user make one");
        }
        Err(error) => println!("skipped in part: another user cannot start the program: {error}"),
    }
    assert!(make(&["--owner", "7:8", "--valid", "1 h", "--out", &out]).status.success());
    let again = String::from_utf8(make(&["--out", &out]).stderr).unwrap();
    assert!(again.contains("there is such a file: name another"), "{again}");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&out).unwrap()) & 0o777;
    assert_eq!(mode, 0o600);
    let (code, told) = refused(&["mount", &pool.address, &point, "--target", &place.text("mnt2"), "--token", &out]);
    assert!(code == 2 && told.contains("the token is for mounts that drain to "), "{told}");
    done(&["mount", &pool.address, &point, "--target", &target, "--token", &out]);
    let denied = fs::write(place.at("mnt/root"), "root's").unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()), "files are the owner's alone");
    done(&["umount", &point]);
    // In a variable, and for everybody's files.
    let text = String::from_utf8(make(&[]).stdout).unwrap();
    let mut command = binary();
    command.args(["mount", &pool.address, &point, "--target", &target]).env("SURGETANK_POOL_TOKEN", text.trim());
    assert!(command.output().unwrap().status.success());
    fs::write(place.at("mnt/file"), bytes(1, MIB)).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, MIB));
    until("it is unmounted", || run(&["umount", &point]).status.success());
    let bad = binary().args(["pool", "status", &pool.address]).env("SURGETANK_POOL_TOKEN", "none").output().unwrap();
    let told = String::from_utf8(bad.stderr).unwrap();
    assert!(told.contains("SURGETANK_POOL_TOKEN is no token") && told.lines().count() == 1, "{told}");
}

#[test]
fn a_manager_and_benefactors_in_processes_of_their_own_are_a_pool() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (directory, pki, key) = (place.text("pool"), place.text("pki"), place.text("pool/key"));
    done(&["pool", "certificates", &pki, "--host", "127.0.0.1", "--client", "login"]);
    let (served, called) = (place.text("pki/127.0.0.1"), place.text("pki/login"));
    let start = |arguments: &[&str]| {
        let mut child = Started(binary().args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{arguments:?} says nothing");
        (child, line)
    };
    let manager = ["pool", "manager", "--directory", &directory, "--listen", "127.0.0.1:0", "--certificates", &served];
    let (mut manager, line) = start(&manager);
    let address = line.split_once(": ").unwrap().0.to_owned();
    let at = address.strip_prefix("pool://").unwrap();
    let benefactor = |number: &'static str| {
        let arguments =
            ["pool", "benefactor", "--managers", at, "--memory", "64 MiB", "--listen", "127.0.0.1:0", "--domain"];
        let more = [number, "--id", number, "--key", &key, "--certificates", &served];
        start(&[&arguments[..], &more[..]].concat()).0
    };
    let mut benefactors = [benefactor("1"), benefactor("2")];
    let shown = ["--token", &key, "--certificates", &called];
    let status = || {
        let told = done(&[&["pool", "status", &address, "--json"][..], &shown[..]].concat());
        serde_json::from_str::<Value>(&told).unwrap()["benefactors"].as_array().unwrap().len()
    };
    until("both lend", || status() == 2);
    let (target, point) = (place.text("target"), place.text("mnt"));
    done(&[&["mount", &address, &point, "--target", &target][..], &shown[..]].concat());
    fs::write(place.at("mnt/file"), bytes(1, 5 * MIB)).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, 5 * MIB));
    until("it is unmounted", || run(&["umount", &point]).status.success());
    for process in benefactors.iter_mut().chain([&mut manager]) {
        signal(&process.0, rustix::process::Signal::TERM);
        assert_eq!(process.0.wait().unwrap().code(), Some(0));
    }
}

/// A process that does not outlive the test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bad_input_gets_one_sentence() {
    let place = Place::new();
    let (target, point) = (place.text("target"), place.text("mnt"));
    fs::write(place.at("file"), "").unwrap();
    let (file, none, pool) = (place.text("file"), place.text("none"), "pool://127.0.0.1:1");
    let key = place.text("key");
    let made = surgetank_pool::security::token::Key::generate().unwrap();
    surgetank_pool::security::files::write_private(Path::new(&key), &made.to_text()).unwrap();
    let mut cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["pool", "status", pool, "--token", &none], 2, "ask whoever runs the pool for a token"),
        (vec!["pool", "status", pool, "--token", &key, "--certificates", &none], 2, "surgetank pool certificates"),
        (vec!["pool", "token", "--target", "here", "--directory", &none], 2, "full path of a directory"),
        (vec!["pool", "token", "--target", "/t", "--directory", &none], 2, "cannot be read"),
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
            (vec!["mount", pool, &point, "--target", &target, "--token", &key], 1, "no pool answers at 127.0.0.1:1"),
        ]);
    }
    for (arguments, status, part) in cases {
        let (code, told) = refused(&arguments);
        assert!(code == status && told.contains(part), "{arguments:?}: {code}: {told}");
    }
}

/// An etcd that runs, on this machine alone.
struct Etcd {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Etcd {
    fn start() -> Option<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin/etcd");
        let program = std::env::var_os("SURGETANK_ETCD").map_or_else(|| PathBuf::from(program), PathBuf::from);
        if !program.exists() {
            println!(
                "skipped: there is no etcd at {}: `scripts/setup test` builds it where there is Go",
                program.display()
            );
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (address, peers) = (free(), free());
        let (clients, peers) = (format!("http://{address}"), format!("http://{peers}"));
        let child = Command::new(program)
            .arg("--data-dir")
            .arg(directory.path())
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("etcd listens", || std::net::TcpStream::connect(&address).is_ok());
        Some(Self { child, address, _directory: directory })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_pool_over_etcd_comes_up_once_for_each_name() {
    let Some(etcd) = Etcd::start() else { return };
    let place = tempfile::tempdir().unwrap();
    let store = |name: &str| format!("etcd://{}/{name}", etcd.address);
    let (one, other) = (store("one"), store("other"));
    let up = |store: &str| Pool::up_with(place.path(), "127.0.0.1:0", "2", &["--store", store]);
    let first = up(&one);
    // Its benefactors would have the numbers of the first one's.
    let (code, told) = refused(&["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--store", &one]);
    let expected = format!(
        "--store: pool `one` runs already in the etcd at {}: its benefactor 0 lends from 127.0.0.1:",
        etcd.address
    );
    assert!(code == 1 && told.contains(&expected), "{told}");
    let second = up(&other);
    for pool in [first, second] {
        signal(&pool.child, rustix::process::Signal::TERM);
        assert_eq!(pool.end(), (Some(0), String::new()));
    }
    // What ended without a word has leases for another moment: the next one waits for their end.
    drop(up(&one));
    drop(up(&one));
}

#[test]
fn a_store_that_is_none_gets_one_sentence() {
    let place = tempfile::tempdir().unwrap();
    let (none, file) = (place.path().join("none"), place.path().join("file"));
    fs::write(&file, "no certificate").unwrap();
    let (none, file) = (none.to_str().unwrap(), file.to_str().unwrap());
    let nobody = "etcd://127.0.0.1:1";
    let cases: [(&[&str], i32, &str); 7] = [
        (&["http://127.0.0.1:1"], 2, "`http://127.0.0.1:1` is no store: write etcd://HOST:PORT[,HOST:PORT…][/NAME]"),
        (&["etcd://127.0.0.1"], 2, "`127.0.0.1` is no address: write HOST:PORT, such as 127.0.0.1:2379"),
        (&["etcd://127.0.0.1:1/a/b"], 2, "`a/b` is no name of a pool"),
        (&["etcd://192.0.2.1:1"], 2, "is on another machine: it is called with TLS alone"),
        (&[nobody], 1, "see that it runs there, and whether it wants TLS"),
        (&[nobody, "--store-ca", none], 2, "name a file that can be read"),
        (&[nobody, "--store-ca", file], 1, "etcd at 127.0.0.1:1: "),
    ];
    for (store, status, part) in cases {
        let arguments = [&["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--store"], store].concat();
        let (code, told) = refused(&arguments);
        assert!(code == status && told.contains("--store") && told.contains(part), "{arguments:?}: {code}: {told}");
    }
}
