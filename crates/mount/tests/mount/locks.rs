//! Locks of files: between programs of one mount, between mounts, and over the end of a session.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::fixture::{ENDING, FUSE, Mounted, can_mount, pool, until, until_drained, until_waits};
use rustix::fs::{FlockOperation, flock};

/// A lock of bytes as `fcntl` has it; of the open file (OFD) if it says so.
fn fcntl(file: &File, of_file: bool, kind: i32, (first, length): (i64, i64), waits: bool) -> std::io::Result<()> {
    let command = match (of_file, waits) {
        (false, false) => libc::F_SETLK,
        (false, true) => libc::F_SETLKW,
        (true, false) => libc::F_OFD_SETLK,
        (true, true) => libc::F_OFD_SETLKW,
    };
    let lock = described(kind, first, length);
    // SAFETY: the descriptor is open, and the kernel reads the lock during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn described(kind: i32, first: i64, length: i64) -> libc::flock {
    // SAFETY: all of its fields are numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).expect("a small number");
    (lock.l_whence, lock.l_start, lock.l_len) = (libc::SEEK_SET as i16, first, length);
    lock
}

/// What `F_GETLK` says of locking these bytes alone: kind, first byte, length, process.
fn in_the_way(file: &File, first: i64, length: i64) -> (i32, i64, i64, i32) {
    let mut lock = described(libc::F_WRLCK, first, length);
    // SAFETY: the descriptor is open, and the kernel writes the lock during the call.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) }, 0);
    (lock.l_type.into(), lock.l_start, lock.l_len, lock.l_pid)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn code(result: std::io::Result<()>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn try_alone(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[test]
fn a_lock_of_one_mount_is_one_of_all_mounts() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let (one, other) = (Mounted::new(&pool, 1), Mounted::new(&pool, 1));
    std::fs::write(one.at("file"), vec![0; 4096]).unwrap();
    let (here, here_too, there) = (open(&one.at("file")), open(&one.at("file")), open(&other.at("file")));
    // Of whole files.
    flock(&here, FlockOperation::LockExclusive).unwrap();
    assert!(!try_alone(&here_too) && !try_alone(&there));
    assert_eq!(code(flock(&there, FlockOperation::NonBlockingLockShared).map_err(Into::into)), Some(libc::EWOULDBLOCK));
    flock(&here, FlockOperation::LockShared).unwrap();
    flock(&there, FlockOperation::LockShared).unwrap();
    flock(&here_too, FlockOperation::NonBlockingLockShared).unwrap();
    assert!(!try_alone(&here) && !try_alone(&there));
    flock(&there, FlockOperation::Unlock).unwrap();
    flock(&here_too, FlockOperation::Unlock).unwrap();
    assert!(try_alone(&here), "nobody else has it any more");
    drop(here);
    until("a close unlocks", || try_alone(&there));
    flock(&there, FlockOperation::Unlock).unwrap();
    for _ in 0..50 {
        // Within a mount at once.
        let closed = open(&one.at("file"));
        assert!(try_alone(&closed));
        drop(closed);
        assert!(try_alone(&here_too));
        flock(&here_too, FlockOperation::Unlock).unwrap();
    }
    drop((there, here_too));
    // Of bytes: of processes, of which there is one here for each mount, and of open files.
    let (here, there) = (open(&one.at("file")), open(&other.at("file")));
    let alone = |file: &File, of_file, bytes| fcntl(file, of_file, libc::F_WRLCK, bytes, false);
    alone(&here, false, (10, 10)).unwrap();
    alone(&there, false, (20, 10)).unwrap();
    for of_file in [false, true] {
        assert_eq!(code(alone(&there, of_file, (0, 11))), Some(libc::EAGAIN));
        assert_eq!(code(alone(&here, of_file, (29, 100))), Some(libc::EAGAIN));
        assert_eq!(code(fcntl(&there, of_file, libc::F_RDLCK, (0, 0), false)), Some(libc::EAGAIN));
    }
    alone(&there, true, (30, 5)).unwrap();
    assert_eq!(in_the_way(&there, 0, 15), (libc::F_WRLCK, 10, 10, 0));
    assert_eq!(in_the_way(&here, 0, 10).0, libc::F_UNLCK);
    assert_eq!(in_the_way(&here, 31, 100).0, libc::F_WRLCK);
    // The middle is unlocked: two ranges are left.
    fcntl(&here, false, libc::F_UNLCK, (13, 4), false).unwrap();
    alone(&there, false, (13, 4)).unwrap();
    assert_eq!(code(alone(&there, false, (12, 1))), Some(libc::EAGAIN));
    assert_eq!(code(alone(&there, false, (17, 1))), Some(libc::EAGAIN));
    // A process's locks end with the first of its descriptors that is closed, those of an open file with the last.
    drop(open(&one.at("file")));
    alone(&there, false, (10, 10)).unwrap();
    drop(open(&other.at("file")));
    assert_eq!(code(alone(&here, false, (32, 1))), Some(libc::EAGAIN));
    drop(there);
    until("the last close of an open file unlocks", || alone(&here, false, (0, 0)).is_ok());
    drop(here);
    one.end();
    other.end();
}

#[test]
fn a_lock_of_what_the_target_alone_has_is_one_of_all_mounts() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    std::fs::write(pool.target().join("file"), "content").unwrap();
    let (one, other) = (Mounted::new(&pool, 1), Mounted::new(&pool, 1));
    // Both have it from the target before anybody locks it.
    let (here, there) = (File::open(one.at("file")).unwrap(), File::open(other.at("file")).unwrap());
    let is_content = |file: &File| {
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 0).unwrap();
        &found == b"content"
    };
    assert!(is_content(&here) && is_content(&there));
    assert_eq!(in_the_way(&there, 0, 0).0, libc::F_UNLCK);
    flock(&there, FlockOperation::Unlock).unwrap();
    assert!(try_alone(&here) && !try_alone(&there));
    assert_eq!(in_the_way(&there, 0, 0).0, libc::F_WRLCK);
    assert!(is_content(&here) && is_content(&there));
    let writer = OpenOptions::new().write(true).open(one.at("file")).unwrap();
    writer.write_all_at(b"changed", 0).unwrap();
    drop(writer);
    flock(&here, FlockOperation::Unlock).unwrap();
    until("it is free", || try_alone(&there));
    let mut found = [0; 7];
    there.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"changed");
    assert!(!try_alone(&here));
    drop((here, there));
    one.end();
    other.end();
}

#[test]
fn who_waits_for_a_lock_gets_it_when_it_is_free_or_is_interrupted() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let (one, other) = (Mounted::new(&pool, 1), Mounted::new(&pool, 1));
    for waits_at in [&one, &other] {
        let holder = open(&one.at("file"));
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        let path = waits_at.at("file");
        let waiting = std::thread::spawn(move || flock(open(&path), FlockOperation::LockExclusive));
        // A program that waits ends when it is told to, also when it cannot refuse.
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
            let mut program = Command::new("flock").arg(waits_at.at("file")).arg("true").spawn().unwrap();
            until_waits(&program, FUSE);
            rustix::process::kill_process(rustix::process::Pid::from_child(&program), signal).unwrap();
            assert!(!program.wait().unwrap().success());
        }
        assert!(!waiting.is_finished());
        flock(&holder, FlockOperation::Unlock).unwrap();
        waiting.join().unwrap().unwrap();
        // Whoever was interrupted has nothing.
        until("nobody has it", || try_alone(&holder));
        let bytes = open(&waits_at.at("bytes"));
        fcntl(&bytes, true, libc::F_WRLCK, (0, 0), true).unwrap();
        let path = one.at("bytes");
        let waiting = std::thread::spawn(move || fcntl(&open(&path), true, libc::F_RDLCK, (5, 1), true));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        drop(bytes);
        waiting.join().unwrap().unwrap();
    }
    one.end();
    other.end();
}

#[test]
fn a_session_that_was_lost_has_lost_its_locks_and_its_handles_say_so() {
    if !can_mount() {
        return;
    }
    let mut pool = pool(2, 48).with_sessions_of(ENDING);
    let mounted = Mounted::new(&pool, 1);
    std::fs::write(mounted.at("file"), b"content").unwrap();
    let (locked, not_locked) = (open(&mounted.at("file")), File::open(mounted.at("file")).unwrap());
    flock(&locked, FlockOperation::LockShared).unwrap();
    // Nobody renews the session while there is no manager, and the store ends it.
    pool.managers[0].kill();
    std::thread::sleep(pool.session * 2);
    pool.restart_manager(0);
    let mut byte = [0];
    until("it is told", || code(locked.read_exact_at(&mut [0], 0)) == Some(libc::EIO));
    let other = Mounted::new(&pool, 1);
    assert!(try_alone(&open(&other.at("file"))));
    let again = flock(&locked, FlockOperation::NonBlockingLockShared).map_err(std::io::Error::from);
    assert_eq!(code(again), Some(libc::EIO));
    assert_eq!(code(locked.write_all_at(b"x", 0)), Some(libc::EIO));
    assert_eq!(code(locked.sync_all()), Some(libc::EIO));
    // SAFETY: the descriptor is the file's, which is forgotten.
    assert_eq!(unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(locked)) }, -1, "close says so as well");
    not_locked.read_exact_at(&mut byte, 0).unwrap();
    let again = open(&mounted.at("file"));
    until("it is free again", || try_alone(&again));
    again.write_all_at(b"after", 0).unwrap();
    drop((again, not_locked));
    other.end();
    mounted.end();
}

#[test]
fn whoever_gets_a_lock_sees_what_was_written_under_it_elsewhere() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounts = [Mounted::new(&pool, 1), Mounted::new(&pool, 1)];
    std::fs::write(mounts[0].at("count"), 0_u64.to_le_bytes()).unwrap();
    // Each adds to what it finds, and neither syncs: one reads through the kernel's pages as well.
    let add = |mounted: &Mounted| {
        let (file, reader) = (open(&mounted.at("count")), File::open(mounted.at("count")).unwrap());
        for _ in 0..25 {
            flock(&file, FlockOperation::LockExclusive).unwrap();
            let (mut count, mut again) = ([0; 8], [0; 8]);
            file.read_exact_at(&mut count, 0).unwrap();
            reader.read_exact_at(&mut again, 0).unwrap();
            assert_eq!(count, again);
            file.write_all_at(&(u64::from_le_bytes(count) + 1).to_le_bytes(), 0).unwrap();
            flock(&file, FlockOperation::Unlock).unwrap();
        }
    };
    std::thread::scope(|scope| mounts.iter().for_each(|mounted| drop(scope.spawn(|| add(mounted)))));
    let found = std::fs::read(mounts[0].at("count")).unwrap();
    assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), 50);
    mounts.into_iter().for_each(Mounted::end);
}

/// A script in a database of `sqlite3`; `None`: this machine has none.
fn sqlite(path: &Path, script: &str) -> Option<String> {
    let mut command = Command::new("sqlite3");
    command.args(["-bail", "-cmd", ".timeout 60000"]).arg(path).arg(script).stdin(Stdio::null());
    let output = command.output().ok()?;
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn sqlite_works_from_two_mounts() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 96);
    let mounts = [Mounted::new(&pool, 1), Mounted::new(&pool, 1)];
    let made = sqlite(
        &mounts[0].at("base"),
        "create table entries (mount, number, filler); create index of_mount on entries (mount);",
    );
    if made.is_none() {
        println!("skipped: sqlite3 is not installed");
        return;
    }
    // One after the other, then both at the same time.
    for step in 0..6 {
        let mounted = &mounts[step % 2];
        sqlite(&mounted.at("base"), &format!("insert into entries values (9, {step}, randomblob(5000));"));
        assert_eq!(
            sqlite(&mounted.at("base"), "select count(*) from entries;").unwrap().trim(),
            (step + 1).to_string()
        );
    }
    let work = |at: usize| {
        for number in 0..12 {
            let script = format!(
                "begin immediate; insert into entries values ({at}, {number}, randomblob(3000)); \
                 update entries set filler = randomblob(100) where mount = {at} and number = {number} - 3; commit;"
            );
            sqlite(&mounts[at].at("base"), &script);
        }
    };
    std::thread::scope(|scope| [0, 1].into_iter().for_each(|at| drop(scope.spawn(move || work(at)))));
    for mounted in &mounts {
        let script = "pragma integrity_check; select mount, count(*), sum(number) from entries group by mount;";
        assert_eq!(sqlite(&mounted.at("base"), script).unwrap(), "ok\n0|12|66\n1|12|66\n9|6|15\n");
    }
    until_drained(&mounts[0].at("base"));
    let script = "pragma integrity_check; select count(*) from entries;";
    assert_eq!(sqlite(&pool.target().join("base"), script).unwrap(), "ok\n30\n");
    mounts.into_iter().for_each(Mounted::end);
}

#[test]
fn locks_of_one_mount_alone_ask_nobody() {
    if !can_mount() {
        return;
    }
    let mut pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let (file, other) = (open(&mounted.at("file")), open(&mounted.at("file")));
    flock(&file, FlockOperation::LockExclusive).unwrap();
    // The managers are gone, and the locks of the file are this mount's.
    pool.managers[0].kill();
    for _ in 0..1000 {
        assert!(!try_alone(&other));
        flock(&file, FlockOperation::Unlock).unwrap();
        assert!(try_alone(&other));
        flock(&other, FlockOperation::Unlock).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
    }
    pool.restart_manager(0);
    drop((file, other));
    mounted.end();
}
