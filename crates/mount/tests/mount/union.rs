//! A mount over a target that has files already: they are there, and whatever a program does with them is as in a plain directory.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::fixture::{MIB, Mounted, Pool, bytes, can_mount, pool, same, state, until, until_drained};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;

/// Names in a directory.
fn names(directory: &Path) -> BTreeSet<Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).filter(|name| name != b".surgetank").collect()
}

/// The target has seen everything.
fn settled(pool: &Pool) {
    crate::fixture::support::run(async {
        let client = pool.client(1).await;
        crate::fixture::support::until("the journal is empty", async || client.status().await.unwrap().journal == 0)
            .await;
        client.end().await.unwrap();
    });
}

#[test]
fn what_lies_at_the_target_is_seen_read_and_changed_through_the_mount() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 96);
    let target = |path: &str| pool.target().join(path);
    let whole = bytes(1, 3 * MIB + 77);
    std::fs::create_dir_all(target("d/deeper")).unwrap();
    std::fs::write(target("d/deeper/file"), &whole).unwrap();
    std::fs::write(target("top"), "top").unwrap();
    std::fs::write(target("d").join(std::ffi::OsStr::from_bytes(b"odd \xff\n")), "odd").unwrap();
    std::fs::set_permissions(target("top"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("deeper/file", target("d/link")).unwrap();
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(10));

    // Seen, with its attributes, and read; nothing of it is the pool's for that.
    assert_eq!(names(mounted.directory.path()), names(&pool.target()));
    assert_eq!(names(&mounted.at("d")), names(&target("d")));
    let (there, here) = (std::fs::metadata(target("top")).unwrap(), std::fs::metadata(mounted.at("top")).unwrap());
    assert_eq!((here.len(), here.mode(), here.uid()), (there.len(), there.mode(), there.uid()));
    assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()));
    assert_eq!(std::fs::read_link(mounted.at("d/link")).unwrap(), Path::new("deeper/file"));
    same("read", &std::fs::read(mounted.at("d/link")).unwrap(), &whole);
    assert_eq!(state(&mounted.at("top")), "drained");
    assert!(std::fs::metadata(mounted.at(".surgetank")).is_err(), "the pool's own directory is hidden");
    std::fs::write(target("top"), "changed by others").unwrap();
    until("a change at the target is seen", || std::fs::read(mounted.at("top")).unwrap() == b"changed by others");

    // What is in the way is in the way.
    let made = OpenOptions::new().write(true).create_new(true).open(mounted.at("top"));
    assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::create_dir(mounted.at("d")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::remove_dir(mounted.at("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(symlink("x", mounted.at("top")).unwrap_err().kind(), ErrorKind::AlreadyExists);

    // Appended to, overwritten in the middle, cut off, overwritten.
    let mut reader = File::open(mounted.at("d/deeper/file")).unwrap();
    let mut file = OpenOptions::new().append(true).open(mounted.at("d/deeper/file")).unwrap();
    file.write_all(b"appended").unwrap();
    drop(file);
    let mut expected = whole.clone();
    expected.extend_from_slice(b"appended");
    let mut file = OpenOptions::new().write(true).open(mounted.at("d/deeper/file")).unwrap();
    file.seek(SeekFrom::Start(MIB as u64 - 3)).unwrap();
    file.write_all(b"middle").unwrap();
    drop(file);
    expected[MIB - 3..MIB + 3].copy_from_slice(b"middle");
    same("changed", &std::fs::read(mounted.at("d/deeper/file")).unwrap(), &expected);
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    same("who had it open before", &found, &expected);
    drop(reader);
    until_drained(&mounted.at("d/deeper/file"));
    same("drained", &std::fs::read(target("d/deeper/file")).unwrap(), &expected);
    OpenOptions::new().write(true).open(mounted.at("d/deeper/file")).unwrap().set_len(5).unwrap();
    std::fs::write(mounted.at("top"), "overwritten").unwrap();
    std::fs::set_permissions(mounted.at("d"), std::fs::Permissions::from_mode(0o711)).unwrap();
    settled(&pool);
    same("cut off", &std::fs::read(target("d/deeper/file")).unwrap(), &expected[..5]);
    assert_eq!(std::fs::read(target("top")).unwrap(), b"overwritten");
    let there = std::fs::metadata(target("top")).unwrap();
    assert_eq!((there.mode() & 0o777, there.len()), (0o640, 11));
    assert_eq!(std::fs::metadata(target("d")).unwrap().mode() & 0o777, 0o711);

    // Moved and removed, also directories that the target alone has.
    std::fs::create_dir_all(target("old/below")).unwrap();
    std::fs::write(target("old/below/a"), "a").unwrap();
    std::fs::write(target("old/b"), "b").unwrap();
    until("it is seen", || mounted.at("old").exists());
    std::fs::rename(mounted.at("old"), mounted.at("new")).unwrap();
    assert!(!mounted.at("old").exists());
    assert_eq!(std::fs::read(mounted.at("new/below/a")).unwrap(), b"a");
    std::fs::rename(mounted.at("new/b"), mounted.at("d/b")).unwrap();
    std::fs::rename(mounted.at("d/b"), mounted.at("top")).unwrap();
    std::fs::write(mounted.at("new/below/own"), "own").unwrap();
    assert_eq!(names(&mounted.at("new/below")), [b"a".to_vec(), b"own".to_vec()].into());
    std::fs::remove_file(mounted.at("new/below/a")).unwrap();
    std::fs::remove_file(mounted.at("new/below/own")).unwrap();
    std::fs::remove_dir(mounted.at("new/below")).unwrap();
    assert!(names(&mounted.at("new")).is_empty());
    settled(&pool);
    assert!(!target("old").exists() && names(&target("new")).is_empty());
    assert_eq!(std::fs::read(target("top")).unwrap(), b"b");
    mounted.end();
}

#[test]
fn what_the_target_alone_has_gets_further_names_and_loses_each_by_itself() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 64);
    let target = |path: &str| pool.target().join(path);
    let number = |path: &Path| std::fs::symlink_metadata(path).unwrap().ino();
    std::fs::create_dir(target("d")).unwrap();
    for name in ["one", "d/theirs", "gone"] {
        std::fs::write(target(name), name).unwrap();
    }
    symlink("one", target("pointer")).unwrap();
    mknodat(CWD, target("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(10));
    let at = |path: &str| mounted.at(path);
    let links = |path: &str| std::fs::metadata(at(path)).unwrap().nlink();
    let is_there = |path: &str| std::fs::symlink_metadata(at(path)).is_ok();
    assert_eq!(links("one"), 1);

    // Linked, where nothing is in the way.
    let in_the_way = std::fs::hard_link(at("one"), at("d/theirs"));
    assert_eq!(in_the_way.unwrap_err().kind(), ErrorKind::AlreadyExists);
    std::fs::hard_link(at("one"), at("d/two")).unwrap();
    assert_eq!((links("one"), links("d/two"), number(&at("one"))), (2, 2, number(&at("d/two"))));
    std::fs::hard_link(at("pointer"), at("d/pointer2")).unwrap();
    settled(&pool);
    assert_eq!(number(&target("one")), number(&target("d/two")));
    assert_eq!(std::fs::read_link(target("d/pointer2")).unwrap(), Path::new("one"));
    std::fs::write(at("d/two"), "written").unwrap();
    assert_eq!(std::fs::read(at("one")).unwrap(), b"written");
    until_drained(&at("one"));
    for name in ["one", "d/two"] {
        assert_eq!(std::fs::read(target(name)).unwrap(), b"written");
    }

    // Each name goes by itself, and is gone at once.
    std::fs::remove_file(at("one")).unwrap();
    std::fs::remove_file(at("pointer")).unwrap();
    assert!(!is_there("one") && !is_there("pointer") && is_there("d/pointer2"));
    assert_eq!((links("d/two"), std::fs::read(at("d/two")).unwrap()), (1, b"written".to_vec()));
    std::fs::hard_link(at("gone"), at("stays")).unwrap();
    std::fs::rename(at("gone"), at("d/moved")).unwrap();
    std::fs::remove_file(at("d/moved")).unwrap();
    assert!(!is_there("gone") && !is_there("d/moved") && links("stays") == 1);
    std::fs::rename(at("d/two"), at("one")).unwrap();
    std::fs::remove_file(at("d/pointer2")).unwrap();

    // FIFOs are theirs or the pool's as well.
    assert!(std::fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    let made = mknodat(CWD, at("d/theirs"), FileType::Fifo, Mode::from_raw_mode(0o600), 0);
    assert_eq!(made, Err(Errno::EXIST));
    std::fs::set_permissions(at("fifo"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(at("fifo"), at("d/fifo")).unwrap();
    assert!(!is_there("fifo"));
    settled(&pool);
    assert_eq!(names(&pool.target()), ["d", "one", "stays"].map(|name| name.as_bytes().to_vec()).into());
    assert_eq!(names(&target("d")), ["fifo", "theirs"].map(|name| name.as_bytes().to_vec()).into());
    let fifo = std::fs::symlink_metadata(target("d/fifo")).unwrap();
    assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o777 == 0o600);
    assert_eq!(std::fs::read(target("stays")).unwrap(), b"gone");

    // What others have linked: one in the place of the other.
    std::fs::hard_link(target("stays"), target("linked")).unwrap();
    until("it is seen", || is_there("linked"));
    std::fs::rename(at("linked"), at("stays")).unwrap();
    settled(&pool);
    assert!(!is_there("linked") && !target("linked").exists());
    assert_eq!(std::fs::read(at("stays")).unwrap(), b"gone");
    mounted.end();
}

/// Runs a command in a directory; what it prints.
fn sh(directory: &Path, command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).current_dir(directory).output().expect("a shell");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Fails where two trees differ, in names, kinds, contents, modes or links, but for a directory.
fn are_alike(one: &Path, other: &Path, but: &str) {
    let list = format!(
        "find . -path ./.surgetank -prune -o -path {but} -prune -o -printf '%y %m %p %l\\n' -type f -exec cksum {{}} + \
         | LC_ALL=C sort"
    );
    assert_eq!(sh(one, &list), sh(other, &list), "{} and {}", one.display(), other.display());
}

/// What differs by the time at which it was made.
const BUT_GIT: &str = "./repository";
/// Nothing.
const WHOLE: &str = "./none";

const REPOSITORY: &str = "git init -q repository; cd repository; git config user.name n; git config user.email e; \
    mkdir sub; for i in 1 2 3 4 5 6 7 8; do echo $i > sub/$i; done; ln -s sub/1 link; git add .; git commit -qm first";

#[test]
fn programs_work_over_a_target_that_has_files() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 96);
    let plain = tempfile::tempdir().unwrap();
    for directory in [pool.target(), plain.path().to_owned()] {
        sh(&directory, REPOSITORY);
        sh(
            &directory,
            "mkdir -p tree/a/b tree/c; echo x > tree/a/x; echo y > tree/a/b/y; ln -s ../a tree/c/to; chmod 750 tree/a",
        );
    }
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(20));
    are_alike(mounted.directory.path(), &pool.target(), WHOLE);
    let here = mounted.directory.path();
    for command in [
        "tar --mtime=@0 --sort=name -cf tree.tar tree; mkdir untarred; tar xf tree.tar -C untarred",
        "cp -a tree copied; cp -a copied/a/. tree/c",
        "cd tree/a; mv b ../moved; echo more >> x; rm ../moved/y; rmdir ../moved; mkdir b; echo z > b/z",
        "mv tree/a renamed; mv renamed tree/back; rm -rf copied",
        "sed -i s/x/edited/ tree/back/x; touch -d 2001-02-03 tree/back/x",
        "rm -rf untarred/tree/a; mv untarred/tree/c untarred/tree/a; rm tree.tar",
    ] {
        [here, plain.path()].into_iter().for_each(|directory| drop(sh(directory, command)));
        are_alike(here, plain.path(), BUT_GIT);
    }
    let commit = "cd repository; git status --porcelain; echo changed > sub/1; git mv sub/2 moved; git rm -q sub/3; \
        git commit -qam second; git gc -q; git fsck --strict; git log --format=%s; git status --porcelain";
    assert_eq!(sh(here, commit), sh(plain.path(), commit));
    if Command::new("rsync").arg("--version").output().is_ok() {
        sh(plain.path(), "mkdir rsynced; cp -a tree/. rsynced");
        sh(
            here,
            &format!(
                "rsync -a --delete {}/rsynced/ tree/ && mkdir rsynced && rsync -a tree/ rsynced/",
                plain.path().display()
            ),
        );
        are_alike(&mounted.at("rsynced"), &plain.path().join("rsynced"), WHOLE);
    }
    settled(&pool);
    are_alike(here, &pool.target(), WHOLE);
    are_alike(&pool.target().join("tree"), &plain.path().join("tree"), WHOLE);
    sh(here, "rm -rf tree repository");
    assert!(!mounted.at("tree").exists() && !mounted.at("repository").exists());
    settled(&pool);
    assert!(!pool.target().join("tree").exists() && !pool.target().join("repository").exists());
    mounted.end();
}

#[test]
fn what_loses_its_name_at_the_target_stays_for_those_who_have_it_open() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 64);
    let target = |path: &str| pool.target().join(path);
    let content = bytes(1, 3 * MIB + 5);
    for name in ["unlinked", "replaced", "written"] {
        std::fs::write(target(name), &content).unwrap();
    }
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(10));
    let read = |file: &mut File| {
        let mut found = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut found).unwrap();
        found
    };
    let [mut unlinked, mut replaced] = ["unlinked", "replaced"].map(|name| File::open(mounted.at(name)).unwrap());
    let mut written = OpenOptions::new().read(true).write(true).open(mounted.at("written")).unwrap();
    std::fs::remove_file(mounted.at("unlinked")).unwrap();
    std::fs::remove_file(mounted.at("written")).unwrap();
    std::fs::write(mounted.at("new"), "new").unwrap();
    std::fs::rename(mounted.at("new"), mounted.at("replaced")).unwrap();
    settled(&pool);
    assert!(!target("unlinked").exists() && std::fs::read(target("replaced")).unwrap() == b"new");
    same("unlinked", &read(&mut unlinked), &content);
    same("replaced", &read(&mut replaced), &content);
    same("to be written", &read(&mut written), &content);
    written.seek(SeekFrom::Start(MIB as u64)).unwrap();
    written.write_all(b"part").unwrap();
    let expected = [&content[..MIB], b"part", &content[MIB + 4..]].concat();
    same("written", &read(&mut written), &expected);
    drop((unlinked, replaced, written));
    assert_eq!(std::fs::read(mounted.at("replaced")).unwrap(), b"new");
    mounted.end();
}

#[test]
fn what_others_have_changed_a_moment_ago_is_read_and_appended_to_as_it_is() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 64);
    let (one, other) = (Mounted::with_timeout(&pool, 1, Duration::from_secs(10)), Mounted::new(&pool, 1));
    let append = |path: &Path, text: &str| {
        OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    for (name, theirs) in [("target", pool.target()), ("mount", other.directory.path().to_owned())] {
        for (turn, what) in ["grown", "appended", "replaced"].into_iter().enumerate() {
            let (here, there) = (one.at(&format!("{name}-{what}")), theirs.join(format!("{name}-{what}")));
            std::fs::write(&there, "first").unwrap();
            // The kernel knows it now, and believes that for a second.
            assert_eq!(std::fs::metadata(&here).unwrap().len(), 5);
            append(&there, " and more");
            match turn {
                0 => assert_eq!(std::fs::read(&here).unwrap(), b"first and more"),
                1 => {
                    append(&here, " at the end");
                    assert_eq!(std::fs::read(&here).unwrap(), b"first and more at the end");
                }
                _ => {
                    std::fs::write(theirs.join("new"), "longer than it was").unwrap();
                    std::fs::rename(theirs.join("new"), &there).unwrap();
                    until("the new one is read", || std::fs::read(&here).unwrap() == b"longer than it was");
                }
            }
        }
    }
    one.end();
    other.end();
}

#[test]
fn who_stands_in_a_directory_of_the_target_never_ends_in_another_one() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 32);
    let (one, other) = (Mounted::with_timeout(&pool, 1, Duration::from_secs(10)), Mounted::new(&pool, 1));
    for name in ["moved", "stays", "theirs"] {
        std::fs::create_dir(pool.target().join(name)).unwrap();
    }
    let open = |name: &str| File::open(one.at(name)).unwrap();
    let [moved, stays, theirs] = ["moved", "stays", "theirs"].map(open);
    std::fs::rename(other.at("moved"), other.at("elsewhere")).unwrap();
    std::fs::create_dir(other.at("moved")).unwrap();
    std::fs::write(other.at("stays/first"), "imported").unwrap();
    std::fs::rename(pool.target().join("theirs"), pool.target().join("former")).unwrap();
    std::fs::create_dir(pool.target().join("theirs")).unwrap();
    let make =
        |directory: &File| rustix::fs::openat(directory, "made", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).map(drop);
    assert_eq!(make(&moved), Err(Errno::STALE));
    assert_eq!(make(&theirs), Err(Errno::STALE));
    assert_eq!(make(&stays), Ok(()));
    settled(&pool);
    assert_eq!(make(&moved), Err(Errno::STALE));
    assert!(!other.at("moved/made").exists() && !pool.target().join("theirs/made").exists());
    until("it is where it belongs", || other.at("stays/made").exists());
    drop((moved, stays, theirs));
    one.end();
    other.end();
}

#[test]
fn a_directory_of_fifty_thousand_entries_is_listed() {
    if !can_mount() {
        return;
    }
    let pool = pool(1, 32);
    let many = pool.target().join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..50_000 {
        File::create(many.join(format!("file-{number}"))).unwrap();
    }
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(20));
    std::fs::remove_file(mounted.at("many/file-7")).unwrap();
    std::fs::write(mounted.at("many/new"), "new").unwrap();
    let listed = names(&mounted.at("many"));
    assert_eq!(listed.len(), 50_000);
    assert!(!listed.contains(&b"file-7"[..]) && listed.contains(&b"new"[..]) && listed.contains(&b"file-49999"[..]));
    mounted.end();
}
