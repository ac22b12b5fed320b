//! What programs are promised of files and directories of a mounted pool.

use std::fs::{self, File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use crate::fixture::{MIB, Mounted, bytes, can_mount, pool, same, state, until, until_drained};
use rustix::fs::{CWD, RenameFlags, renameat_with};

fn code(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn what_is_written_is_read_back_and_reaches_the_target() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    for (seed, size) in (0..).zip([0, 1, 4095, MIB - 1, MIB, MIB + 1, 3 * MIB + 17, 66 * MIB + 5]) {
        let (path, content) = (mounted.at(&format!("file{size}")), bytes(seed, size));
        fs::write(&path, &content).unwrap();
        same("read back", &fs::read(&path).unwrap(), &content);
        assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
        until_drained(&path);
        same("at the target", &fs::read(pool.target().join(format!("file{size}"))).unwrap(), &content);
    }
    mounted.end();
}

#[test]
fn names_are_as_posix_has_them() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let at = |path: &str| mounted.at(path);
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("a/b")).unwrap();
    fs::write(at("a/b/file"), b"one").unwrap();
    assert_eq!(code(fs::create_dir(at("a"))), Some(libc::EEXIST));
    assert_eq!(code(fs::remove_dir(at("a"))), Some(libc::ENOTEMPTY));
    assert_eq!(code(fs::remove_dir(at("a/b/file"))), Some(libc::ENOTDIR));
    assert_eq!(code(fs::remove_file(at("a/b"))), Some(libc::EISDIR));
    assert_eq!(code(File::open(at("none"))), Some(libc::ENOENT));
    assert_eq!(code(File::open(at("a/b/file/below"))), Some(libc::ENOTDIR));
    assert_eq!(code(File::create_new(at("a/b/file"))), Some(libc::EEXIST));
    assert_eq!(code(fs::rename(at("a"), at("a/b/inside"))), Some(libc::EINVAL));
    // A rename takes the place of what is there, if it may.
    fs::write(at("other"), b"two").unwrap();
    let kept = |from: &str, to: &str| renameat_with(CWD, at(from), CWD, at(to), RenameFlags::NOREPLACE);
    assert_eq!(kept("other", "a/b/file").unwrap_err().raw_os_error(), libc::EEXIST);
    let exchanged = renameat_with(CWD, at("other"), CWD, at("a/b/file"), RenameFlags::EXCHANGE);
    assert_eq!(exchanged.unwrap_err().raw_os_error(), libc::EINVAL);
    fs::rename(at("other"), at("a/b/file")).unwrap();
    assert_eq!(fs::read(at("a/b/file")).unwrap(), b"two");
    assert!(!at("other").exists());
    kept("a/b/file", "moved").unwrap();
    fs::create_dir(at("empty")).unwrap();
    assert_eq!(code(fs::rename(at("moved"), at("empty"))), Some(libc::EISDIR));
    assert_eq!(code(fs::rename(at("empty"), at("moved"))), Some(libc::ENOTDIR));
    fs::rename(at("a"), at("empty")).unwrap();
    assert!(at("empty/b").is_dir());
    // Directories are listed, and a listing is fresh when it begins anew.
    for number in 0..300 {
        fs::write(at(&format!("empty/b/{number:03}")), b"").unwrap();
    }
    let names = || {
        let mut names: Vec<String> = fs::read_dir(at("empty/b"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(), (0..300).map(|number| format!("{number:03}")).collect::<Vec<_>>());
    fs::remove_dir_all(at("empty")).unwrap();
    assert!(!at("empty").exists());
    // What lies beside the files at the target has a name that no file of a mount has.
    assert_eq!(code(File::create(at(".surgetank"))), Some(libc::EPERM));
    assert_eq!(code(fs::create_dir(at(".surgetank"))), Some(libc::EPERM));
    assert_eq!(code(fs::rename(at("moved"), at(".surgetank"))), Some(libc::EPERM));
    assert_eq!(code(symlink("moved", at(".surgetank"))), Some(libc::EPERM));
    // What the pool does not have is refused at once.
    let value = rustix::fs::setxattr(at("moved"), "user.other", b"x", rustix::fs::XattrFlags::empty());
    assert_eq!(value.unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
    let long = "x".repeat(256);
    assert_eq!(code(File::create(at(&long))), Some(libc::ENAMETOOLONG));
    symlink("moved", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap().to_str(), Some("moved"));
    assert_eq!(fs::read(at("link")).unwrap(), b"two");
    until("the target has the link", || {
        fs::read_link(pool.target().join("link")).is_ok_and(|to| to.ends_with("moved"))
    });
    fs::remove_file(at("link")).unwrap();
    until("the target has it no more", || fs::symlink_metadata(pool.target().join("link")).is_err());
    mounted.end();
    let mut left: Vec<_> = fs::read_dir(pool.target()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".surgetank", "moved"], "the target has what the mount had");
}

#[test]
fn attributes_are_kept_and_reach_the_target() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let (path, target) = (mounted.at("file"), pool.target().join("file"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path).unwrap();
    file.write_all(b"content").unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(then).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), then, "a close after it changes nothing");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    until_drained(&path);
    let found = fs::metadata(&target).unwrap();
    assert_eq!((found.modified().unwrap(), found.permissions().mode() & 0o7777), (then, 0o640));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12, 34, 0o604));
    until("the target has them", || {
        let found = fs::metadata(&target).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777) == (12, 34, 0o604)
    });
    // Written again, it keeps them, and is newer.
    fs::write(&path, b"more").unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12, 34, 0o604));
    assert!(found.modified().unwrap() > then);
    assert_eq!(found.blksize(), 1 << 20);
    fs::create_dir(mounted.at("directory")).unwrap();
    fs::set_permissions(mounted.at("directory"), fs::Permissions::from_mode(0o700)).unwrap();
    until("the directory has its mode", || {
        fs::metadata(pool.target().join("directory")).is_ok_and(|found| found.mode() & 0o7777 == 0o700)
    });
    assert!(!File::open(&path).unwrap().is_terminal());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    let other = rustix::fs::getxattr(&path, "user.other", &mut [0_u8; 8]);
    assert_eq!(other.unwrap_err().raw_os_error(), libc::ENODATA);
    mounted.end();
}

#[test]
fn a_directory_is_as_new_as_what_last_happened_in_it() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let (mounted, other) = (Mounted::new(&pool, 1), Mounted::new(&pool, 1));
    let at = |path: &str| mounted.at(path);
    let times = |path: &str| {
        let found = fs::metadata(at(path)).unwrap();
        ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()))
    };
    let newer = |what: &str, directories: &[&str], act: &dyn Fn()| {
        let before: Vec<_> = directories.iter().map(|path| times(path)).collect();
        act();
        for (path, before) in directories.iter().zip(before) {
            let after = times(path);
            assert!(after.0 > before.0 && after.1 > before.1, "{what}: {path} has {after:?} after {before:?}");
        }
    };
    let same_modified = |what: &str, path: &str, act: &dyn Fn()| {
        let before = times(path).0;
        act();
        assert_eq!(times(path).0, before, "{what}");
    };
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    newer("a directory is made", &[".", "a"], &|| {
        fs::create_dir(at("a/d")).unwrap();
        fs::create_dir(at("e")).unwrap();
    });
    newer("a file is made", &["a"], &|| fs::write(at("a/file"), b"one").unwrap());
    newer("a link is made", &["a"], &|| symlink("file", at("a/link")).unwrap());
    newer("a name is added", &["b"], &|| fs::hard_link(at("a/file"), at("b/name")).unwrap());
    newer("a file moves", &["a", "b"], &|| fs::rename(at("a/file"), at("b/moved")).unwrap());
    newer("a directory replaces one", &[".", "a"], &|| fs::rename(at("e"), at("a/d")).unwrap());
    newer("a name is taken away", &["b"], &|| fs::remove_file(at("b/name")).unwrap());
    newer("a directory is removed", &["a"], &|| fs::remove_dir(at("a/d")).unwrap());
    same_modified("what is written is no entry", "b", &|| fs::write(at("b/moved"), b"more").unwrap());
    same_modified("permissions are none", "b", &|| {
        fs::set_permissions(at("b"), fs::Permissions::from_mode(0o700)).unwrap();
    });
    same_modified("what is refused changes nothing", "b", &|| assert!(fs::create_dir(at("b/moved")).is_err()));
    // What a program sets counts until something happens, also if it lies ahead.
    for set in [1_000_000_000, 4_000_000_000] {
        let directory = File::open(at("b")).unwrap();
        directory.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(set)).unwrap();
        assert_eq!(times("b").0, (i64::try_from(set).unwrap(), 0));
        fs::write(at(&format!("b/after{set}")), b"").unwrap();
        let seconds = times("b").0.0;
        assert!(seconds > 1_000_000_000 && seconds < 4_000_000_000, "{seconds}");
    }
    // Another mount sees it, by the directory's name and in a listing.
    let seen = || fs::metadata(other.at("b")).unwrap().modified().unwrap();
    let listed = || {
        let mut entries = fs::read_dir(other.at(".")).unwrap().map(Result::unwrap);
        entries.find(|entry| entry.file_name() == "b").unwrap().metadata().unwrap().modified().unwrap()
    };
    fs::write(at("b/last"), b"").unwrap();
    let modified = fs::metadata(at("b")).unwrap().modified().unwrap();
    until("another mount sees it", || seen() == modified && listed() == modified);
    mounted.end();
    other.end();
}

#[test]
fn files_are_written_over_cut_off_and_appended_to() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 96);
    let mounted = Mounted::new(&pool, 2);
    let path = mounted.at("file");
    let mut content = bytes(1, 3 * MIB + 1000);
    fs::write(&path, &content).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // Over a border of chunks, and read back before anything is committed.
    file.write_all_at(&bytes(2, 5000), MIB as u64 - 2500).unwrap();
    content[MIB - 2500..MIB + 2500].copy_from_slice(&bytes(2, 5000));
    let mut part = vec![0; 10_000];
    file.read_exact_at(&mut part, MIB as u64 - 5000).unwrap();
    same("over a border", &part, &content[MIB - 5000..MIB + 5000]);
    assert_eq!(state(&path), "staged");
    file.sync_all().unwrap();
    assert_eq!(state(&path), "replicated");
    for size in [2 * MIB + 5, 2 * MIB, 2 * MIB + 7777, 5000, 3 * MIB, 0, 10] {
        file.set_len(size as u64).unwrap();
        content.resize(size, 0);
        assert_eq!(file.metadata().unwrap().len(), size as u64);
        same("cut off", &fs::read(&path).unwrap(), &content);
    }
    // A gap reads as zeros.
    file.write_all_at(b"end", 2 * MIB as u64 + 3).unwrap();
    content.resize(2 * MIB + 3, 0);
    content.extend_from_slice(b"end");
    same("with a gap", &fs::read(&path).unwrap(), &content);
    drop(file);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b" and more").unwrap();
    drop(file);
    content.extend_from_slice(b" and more");
    same("appended", &fs::read(&path).unwrap(), &content);
    until_drained(&path);
    same("at the target", &fs::read(pool.target().join("file")).unwrap(), &content);
    // By its path, closed: the target follows.
    let by_path = File::options().write(true).open(&path).unwrap();
    drop(by_path);
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a string with a zero byte at its end.
    assert_eq!(unsafe { libc::truncate(name.as_ptr(), 100) }, 0);
    content.truncate(100);
    same("by path", &fs::read(&path).unwrap(), &content);
    until("the target follows", || fs::read(pool.target().join("file")).is_ok_and(|found| found == content));
    fs::write(&path, b"short").unwrap();
    until("the target follows", || fs::read(pool.target().join("file")).is_ok_and(|found| found == b"short"));
    mounted.end();
}

#[test]
fn whole_chunks_replace_parts_of_them_and_are_read_in_any_order() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    let path = mounted.at("file");
    let size = 12 * MIB + 100;
    for seed in 0..2 {
        let expected = bytes(seed, size);
        let file = File::create(&path).unwrap();
        file.write_all_at(&bytes(9, 300), 0).unwrap();
        file.write_all_at(&expected[..2 * MIB], 0).unwrap();
        file.write_all_at(&expected[5 * MIB..], (5 * MIB) as u64).unwrap();
        file.write_all_at(&expected[2 * MIB - 5..5 * MIB + 7], (2 * MIB - 5) as u64).unwrap();
        same("while it is written", &fs::read(&path).unwrap(), &expected);
        drop(file);
        // What was fetched ahead of a reader of the former version is none of this one's.
        let file = File::open(&path).unwrap();
        for step in [100_000, MIB, 3 * MIB + 1] {
            let starts: Vec<usize> = (0..size).step_by(step).collect();
            for from in starts.iter().chain(starts.iter().rev()) {
                let mut found = vec![0; step.min(size - from)];
                file.read_exact_at(&mut found, *from as u64).unwrap();
                same(&format!("{step} bytes at {from}"), &found, &expected[*from..*from + found.len()]);
            }
        }
        until_drained(&path);
        same("at the target", &fs::read(pool.target().join("file")).unwrap(), &expected);
    }
    mounted.end();
}
