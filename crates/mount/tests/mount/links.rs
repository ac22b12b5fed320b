//! Hard links, FIFOs, sockets and devices of a mounted pool, and what the target has of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::fixture::{Mounted, bytes, can_mount, pool, same, state, until, until_drained};
use rustix::fs::{CWD, FileType, Mode, mknodat};

fn code(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn each_name_of_a_file_is_its_own_and_the_target_has_hard_links_too() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 64);
    let mounted = Mounted::new(&pool, 1);
    let at = |path: &str| mounted.at(path);
    let target = |path: &str| pool.target().join(path);
    let names = |path: &str| fs::metadata(at(path)).unwrap().nlink();
    let number = |path: PathBuf| fs::symlink_metadata(path).unwrap().ino();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("one"), bytes(1, 70_000)).unwrap();
    fs::hard_link(at("one"), at("d/two")).unwrap();
    assert_eq!((names("one"), names("d/two"), number(at("one"))), (2, 2, number(at("d/two"))));
    assert_eq!(code(fs::hard_link(at("one"), at("d/two"))), Some(libc::EEXIST));
    assert_eq!(code(fs::hard_link(at("d"), at("e"))), Some(libc::EPERM));
    assert_eq!(code(fs::hard_link(at("none"), at("e"))), Some(libc::ENOENT));
    // What is written by one name is read by the other, here and at the target.
    until_drained(&at("one"));
    until("the target has both names", || target("d/two").exists());
    assert_eq!(number(target("one")), number(target("d/two")));
    for (seed, by) in [(2, "d/two"), (3, "one")] {
        fs::write(at(by), bytes(seed, 90_000)).unwrap();
        same("by the other name", &fs::read(at("one")).unwrap(), &bytes(seed, 90_000));
        same("by the other name", &fs::read(at("d/two")).unwrap(), &bytes(seed, 90_000));
        until_drained(&at("one"));
        same("at the target", &fs::read(target("one")).unwrap(), &bytes(seed, 90_000));
        same("at the target", &fs::read(target("d/two")).unwrap(), &bytes(seed, 90_000));
        assert_eq!(number(target("one")), number(target("d/two")));
    }
    fs::set_permissions(at("d/two"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(at("one")).unwrap().mode() & 0o7777, 0o600);
    until("the target has it", || fs::metadata(target("one")).unwrap().mode() & 0o7777 == 0o600);
    // One that is open, and has no name at the target yet.
    let open = File::create(at("late")).unwrap();
    open.write_all_at(b"late", 0).unwrap();
    fs::hard_link(at("late"), at("later")).unwrap();
    drop(open);
    until("both are at the target", || target("late").exists() && target("later").exists());
    assert_eq!(number(target("late")), number(target("later")));
    // A name that goes leaves the other, the last one takes the file along.
    fs::remove_file(at("one")).unwrap();
    assert_eq!(names("d/two"), 1);
    same("by the name that is left", &fs::read(at("d/two")).unwrap(), &bytes(3, 90_000));
    until("the target has one name", || !target("one").exists());
    same("at the target", &fs::read(target("d/two")).unwrap(), &bytes(3, 90_000));
    // Renames: to another name of the same file, which changes nothing, and over a name of another file.
    fs::hard_link(at("d/two"), at("three")).unwrap();
    fs::rename(at("three"), at("d/two")).unwrap();
    assert_eq!((names("three"), names("d/two")), (2, 2));
    fs::rename(at("d/two"), at("late")).unwrap();
    assert_eq!((names("three"), names("late"), names("later")), (2, 2, 1));
    assert_eq!(fs::read(at("later")).unwrap(), b"late");
    fs::rename(at("d"), at("moved")).unwrap();
    fs::hard_link(at("three"), at("moved/four")).unwrap();
    fs::write(at("three"), b"the end").unwrap();
    symlink("three", at("pointer")).unwrap();
    fs::hard_link(at("pointer"), at("pointer2")).unwrap();
    until_drained(&at("three"));
    for path in ["three", "late", "moved/four"] {
        until("the target follows", || fs::read(target(path)).is_ok_and(|found| found == b"the end"));
        assert_eq!(state(&at(path)), "drained");
    }
    until("the target follows", || fs::read_link(target("pointer2")).is_ok_and(|to| to.ends_with("three")));
    assert_eq!(fs::read(target("later")).unwrap(), b"late");
    for path in ["three", "late", "moved/four", "later", "pointer", "pointer2"] {
        fs::remove_file(at(path)).unwrap();
    }
    until("nothing is left at the target", || {
        fs::read_dir(target("moved")).unwrap().count() == 0 && fs::read_dir(pool.target()).unwrap().count() == 2
    });
    mounted.end();
}

#[test]
fn somebody_elses_file_at_the_place_of_a_further_name_stays() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    // Both names are new, and somebody takes the second one before the target sees the file.
    let open = File::create(mounted.at("one")).unwrap();
    open.write_all_at(b"content", 0).unwrap();
    fs::hard_link(mounted.at("one"), mounted.at("two")).unwrap();
    fs::write(pool.target().join("two"), b"theirs").unwrap();
    drop(open);
    until("the conflict is told", || state(&mounted.at("two")) == "conflict");
    assert!(!pool.target().join("one").exists());
    assert_eq!(fs::read(pool.target().join("two")).unwrap(), b"theirs");
    fs::write(mounted.at("one"), b"more").unwrap();
    until("the conflict is told", || state(&mounted.at("one")) == "conflict");
    assert_eq!(fs::read(pool.target().join("two")).unwrap(), b"theirs");
    fs::remove_file(pool.target().join("two")).unwrap();
    fs::write(mounted.at("one"), b"and more").unwrap();
    until_drained(&mounted.at("one"));
    assert_eq!(fs::read(pool.target().join("two")).unwrap(), b"and more");
    mounted.end();
}

#[test]
fn fifos_sockets_and_devices_are_made_here_and_at_the_target() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let (at, target) = (|path: &str| mounted.at(path), |path: &str| pool.target().join(path));
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o620), 0).unwrap();
    let writer = {
        let fifo = at("fifo");
        std::thread::spawn(move || fs::write(fifo, b"through the pipe"))
    };
    assert_eq!(fs::read(at("fifo")).unwrap(), b"through the pipe");
    writer.join().unwrap().unwrap();
    let socket = UnixListener::bind(at("socket")).unwrap();
    std::os::unix::net::UnixStream::connect(at("socket")).unwrap();
    drop(socket);
    // The kernel's null device, which a pool's mount does not open.
    mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), rustix::fs::makedev(1, 3)).unwrap();
    assert_eq!(fs::metadata(at("null")).unwrap().rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(code(File::open(at("null"))), Some(libc::EACCES));
    let kind = |path: PathBuf| fs::symlink_metadata(path).map(|found| found.file_type());
    until("the target has them", || ["fifo", "socket", "null"].iter().all(|name| kind(target(name)).is_ok()));
    for place in [mounted.directory.path().to_owned(), pool.target()] {
        assert!(kind(place.join("fifo")).unwrap().is_fifo() && kind(place.join("socket")).unwrap().is_socket());
        assert!(kind(place.join("null")).unwrap().is_char_device());
        until("it has its mode", || fs::metadata(place.join("fifo")).unwrap().mode() & 0o7777 == 0o620 & !umask());
    }
    fs::set_permissions(at("fifo"), fs::Permissions::from_mode(0o666)).unwrap();
    until("the target has it", || fs::metadata(target("fifo")).unwrap().mode() & 0o7777 == 0o666);
    fs::hard_link(at("fifo"), at("fifo2")).unwrap();
    fs::rename(at("socket"), at("renamed")).unwrap();
    until("the target follows", || {
        kind(target("fifo2")).is_ok_and(|kind| kind.is_fifo()) && target("renamed").exists()
    });
    for name in ["fifo", "fifo2", "renamed", "null"] {
        fs::remove_file(at(name)).unwrap();
    }
    until("nothing is left at the target", || fs::read_dir(pool.target()).unwrap().count() == 1);
    mounted.end();
}

fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
