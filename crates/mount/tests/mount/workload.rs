//! Random work through a mount beside the same in a plain directory, several programs at a time, and processes that end in the middle of it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::fixture::{MIB, Mounted, bytes, can_mount, pool, same, state, until, until_drained};
use surgetank_model::random::Random;

/// A file of the model.
struct Open {
    mounted: File,
    plain: File,
}

/// The same at two places.
struct Work {
    random: Random,
    mounted: std::path::PathBuf,
    plain: tempfile::TempDir,
    open: BTreeMap<String, Open>,
}

impl Work {
    fn name(&mut self) -> String {
        let directory = ["", "a/", "a/b/"][self.random.below(3) as usize];
        format!("{directory}file{}", self.random.below(4))
    }

    fn both<T: PartialEq + std::fmt::Debug>(&self, what: &str, work: impl Fn(&Path) -> std::io::Result<T>) {
        let plain = work(self.plain.path()).map_err(|error| error.raw_os_error());
        let mounted = work(&self.mounted).map_err(|error| error.raw_os_error());
        assert_eq!(mounted, plain, "{what}");
    }

    fn step(&mut self) {
        let name = self.name();
        match self.random.below(20) {
            0..=7 => self.write(&name),
            8 | 9 => self.truncate(&name),
            10 | 11 => self.read(&name),
            12 => {
                if let Some(open) = self.open.get(&name) {
                    open.mounted.sync_all().unwrap();
                    assert_eq!(state(&self.mounted.join(&name)), "replicated");
                }
            }
            13 | 14 => drop(self.open.remove(&name)),
            15 => {
                self.open.remove(&name);
                self.both(&format!("unlink {name}"), |at| fs::remove_file(at.join(&name)));
            }
            16 => {
                let to = self.name();
                if self.open.contains_key(&to) {
                    self.read(&to);
                    self.open.remove(&to);
                }
                let moved = self.open.remove(&name);
                self.both(&format!("rename {name} {to}"), |at| fs::rename(at.join(&name), at.join(&to)));
                if let Some(moved) = moved {
                    self.open.insert(to, moved);
                }
            }
            17 => {
                let content = bytes(self.random.below(1000), self.random.below(3 * MIB as u64) as usize);
                self.open.remove(&name);
                self.both(&format!("write {name} anew"), |at| fs::write(at.join(&name), &content));
            }
            18 => self.both("lengths", |at| fs::metadata(at.join(&name)).map(|found| found.len())),
            _ => {
                self.open.clear();
                self.both("a directory moves", |at| fs::rename(at.join("a"), at.join("c")));
                self.both("and back", |at| fs::rename(at.join("c"), at.join("a")));
            }
        }
    }

    fn opened(&mut self, name: &str) -> &Open {
        let open = |at: &Path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(at.join(name)).unwrap()
        };
        if !self.open.contains_key(name) {
            let opened = Open { mounted: open(&self.mounted), plain: open(self.plain.path()) };
            self.open.insert(name.to_owned(), opened);
        }
        &self.open[name]
    }

    fn write(&mut self, name: &str) {
        let (seed, length) = (self.random.below(1000), 1 + self.random.below(400_000) as usize);
        let offset = self.random.below(3 * MIB as u64);
        let content = bytes(seed, length);
        let open = self.opened(name);
        open.mounted.write_all_at(&content, offset).unwrap();
        open.plain.write_all_at(&content, offset).unwrap();
    }

    fn truncate(&mut self, name: &str) {
        let size = self.random.below(4 * MIB as u64);
        let open = self.opened(name);
        open.mounted.set_len(size).unwrap();
        open.plain.set_len(size).unwrap();
        assert_eq!(open.mounted.metadata().unwrap().len(), size);
    }

    fn read(&mut self, name: &str) {
        self.both(&format!("{name} is there"), |at| fs::metadata(at.join(name)).map(|found| found.len()));
        if let Ok(plain) = fs::read(self.plain.path().join(name)) {
            same(name, &fs::read(self.mounted.join(name)).unwrap(), &plain);
        }
    }
}

/// Every file below a directory, with its bytes.
fn tree(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![at.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".surgetank") {
                continue;
            }
            if path.is_dir() {
                directories.push(path.clone());
            }
            let name = path.strip_prefix(at).unwrap().display().to_string();
            found.insert(name, if path.is_dir() { Vec::new() } else { fs::read(&path).unwrap() });
        }
    }
    found
}

#[test]
fn random_work_is_as_in_a_plain_directory_and_reaches_the_target() {
    if !can_mount() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SURGETANK_FIRST").unwrap_or(0);
    for seed in first..first + 3 * number("SURGETANK_TIMES").unwrap_or(1) {
        let pool = pool(3, 96);
        let mounted = Mounted::new(&pool, 2);
        let plain = tempfile::tempdir().unwrap();
        let at = mounted.directory.path().to_owned();
        let mut work = Work { random: Random::from_seed(seed), mounted: at, plain, open: BTreeMap::new() };
        work.both("directories", |at| fs::create_dir_all(at.join("a/b")));
        for _ in 0..150 {
            work.step();
        }
        work.open.clear();
        let expected = tree(work.plain.path());
        let same_trees = |what: &str, found: &BTreeMap<String, Vec<u8>>| {
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "run {seed}: {what}");
            expected
                .iter()
                .for_each(|(name, content)| same(&format!("run {seed}: {what}: {name}"), &found[name], content));
        };
        same_trees("mounted", &tree(mounted.directory.path()));
        for name in expected.keys().filter(|name| mounted.at(name).is_file()) {
            until_drained(&mounted.at(name));
        }
        until("the target follows", || tree(&pool.target()).keys().eq(expected.keys()));
        same_trees("at the target", &tree(&pool.target()));
        mounted.end();
    }
}

#[test]
fn several_writers_of_one_file_in_one_mount_share_it() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    let path = mounted.at("shared");
    File::create(&path).unwrap().set_len(8 * MIB as u64).unwrap();
    let content = bytes(7, 8 * MIB);
    // Pieces that border on each other inside of chunks, written by turns.
    let writers: Vec<_> = (0..4_usize)
        .map(|writer| {
            let (path, content) = (path.clone(), content.clone());
            std::thread::spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                let piece = 100_000;
                for number in (writer..content.len().div_ceil(piece)).step_by(4) {
                    let (from, to) = (number * piece, content.len().min((number + 1) * piece));
                    file.write_all_at(&content[from..to], from as u64).unwrap();
                    if number % 5 == 0 {
                        file.sync_data().unwrap();
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    same("shared", &fs::read(&path).unwrap(), &content);
    until_drained(&path);
    same("at the target", &fs::read(pool.target().join("shared")).unwrap(), &content);
    mounted.end();
}

#[test]
fn a_benefactor_that_dies_under_writers_of_a_mount_loses_nothing_with_two_copies() {
    if !can_mount() {
        return;
    }
    let mut pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    let paths: Vec<_> = (0..4).map(|rank| mounted.at(&format!("rank{rank}"))).collect();
    let (killed, go_on) = (std::sync::Barrier::new(5), std::sync::Barrier::new(5));
    std::thread::scope(|scope| {
        for (seed, path) in (0..).zip(&paths) {
            let (killed, go_on) = (&killed, &go_on);
            scope.spawn(move || {
                let content = bytes(seed, 12 * MIB);
                let file = File::create(path).unwrap();
                file.write_all_at(&content[..5 * MIB], 0).unwrap();
                file.sync_all().unwrap();
                file.write_all_at(&content[5 * MIB..7 * MIB], 5 * MIB as u64).unwrap();
                killed.wait();
                go_on.wait();
                file.write_all_at(&content[7 * MIB..], 7 * MIB as u64).unwrap();
                file.sync_all().unwrap();
            });
        }
        killed.wait();
        pool.benefactors[1].kill();
        go_on.wait();
    });
    for (seed, path) in (0..).zip(&paths) {
        same("mounted", &fs::read(path).unwrap(), &bytes(seed, 12 * MIB));
        until_drained(path);
        let name = path.file_name().unwrap();
        same("at the target", &fs::read(pool.target().join(name)).unwrap(), &bytes(seed, 12 * MIB));
    }
    mounted.end();
}

#[test]
fn what_is_synced_or_closed_is_seen_by_another_mount() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 96);
    let (one, other) = (Mounted::new(&pool, 2), Mounted::new(&pool, 2));
    let (path, seen) = (one.at("file"), other.at("file"));
    let file = File::create(&path).unwrap();
    file.write_all_at(&bytes(1, 2 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    same("synced", &fs::read(&seen).unwrap(), &bytes(1, 2 * MIB));
    file.write_all_at(&bytes(2, MIB), 2 * MIB as u64).unwrap();
    drop(file);
    let expected = [bytes(1, 2 * MIB), bytes(2, MIB)].concat();
    until("the new size is seen", || fs::metadata(&seen).unwrap().len() == 3 * MIB as u64);
    same("closed", &fs::read(&seen).unwrap(), &expected);
    // Twice, so that the kernel's pages serve: then written over, and seen again.
    same("again", &fs::read(&seen).unwrap(), &expected);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&bytes(3, 1000), 500).unwrap();
    drop(file);
    let expected = [&expected[..500], &bytes(3, 1000), &expected[1500..]].concat();
    until("the change is seen", || fs::read(&seen).unwrap() == expected);
    fs::rename(&seen, other.at("moved")).unwrap();
    until("the rename is seen", || !path.exists() && one.at("moved").exists());
    // A name that another mount has given is no longer there to be made.
    fs::write(other.at("taken"), b"x").unwrap();
    assert_eq!(File::create_new(one.at("taken")).err().and_then(|error| error.raw_os_error()), Some(libc::EEXIST));
    one.end();
    other.end();
}

#[test]
fn a_file_that_loses_its_name_stays_for_those_who_have_it_open() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let content = bytes(1, MIB + 5);
    fs::write(mounted.at("read"), &content).unwrap();
    let reader = File::open(mounted.at("read")).unwrap();
    let writer = File::options().read(true).write(true).create_new(true).open(mounted.at("written")).unwrap();
    fs::remove_file(mounted.at("read")).unwrap();
    fs::remove_file(mounted.at("written")).unwrap();
    writer.write_all_at(&content, 0).unwrap();
    writer.sync_all().unwrap();
    // Wardens look every 100 ms here: they leave alone what somebody has open.
    fs::write(mounted.at("later"), b"x").unwrap();
    until_drained(&mounted.at("later"));
    for file in [&reader, &writer] {
        let mut found = vec![0; content.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        same("unlinked", &found, &content);
    }
    drop((reader, writer));
    until("the target has neither", || !pool.target().join("read").exists() && !pool.target().join("written").exists());
    mounted.end();
}

#[test]
fn what_has_left_the_pool_is_read_from_the_target() {
    if !can_mount() {
        return;
    }
    // Each benefactor has room for 24 chunks, and all files take 64.
    let pool = pool(2, 24);
    let mounted = Mounted::new(&pool, 2);
    let path = |number: u64| mounted.at(&format!("file{number}"));
    (0..8).for_each(|number| fs::write(path(number), bytes(number, 8 * MIB)).unwrap());
    for number in 0..8 {
        same("mounted", &fs::read(path(number)).unwrap(), &bytes(number, 8 * MIB));
        until_drained(&path(number));
    }
    let file = OpenOptions::new().append(true).open(path(0)).unwrap();
    file.write_all_at(b"more", 0).unwrap();
    drop(file);
    same("appended", &fs::read(path(0)).unwrap(), &[&bytes(0, 8 * MIB)[..], b"more"].concat());
    // What is cut off at its beginning is not read for that.
    fs::write(path(1), b"new").unwrap();
    assert_eq!(fs::read(path(1)).unwrap(), b"new");
    fs::rename(path(2), mounted.at("moved")).unwrap();
    same("moved", &fs::read(mounted.at("moved")).unwrap(), &bytes(2, 8 * MIB));
    mounted.end();
}

#[test]
fn a_program_that_is_started_meanwhile_closes_nothing() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let file = File::create(mounted.at("file")).unwrap();
    file.write_all_at(b"half", 0).unwrap();
    file.sync_all().unwrap();
    // It inherits the file, and closes it.
    assert!(Command::new("true").status().unwrap().success());
    fs::write(mounted.at("later"), b"x").unwrap();
    until_drained(&mounted.at("later"));
    assert_eq!(state(&mounted.at("file")), "replicated");
    assert!(!pool.target().join("file").exists());
    file.write_all_at(b" and half", 4).unwrap();
    drop(file);
    until_drained(&mounted.at("file"));
    assert_eq!(fs::read(pool.target().join("file")).unwrap(), b"half and half");
    mounted.end();
}

#[test]
fn a_shell_publishes_no_empty_file() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let target = pool.target();
    // Whoever looks at the target sees what a command wrote, never the file as the shell has opened it.
    let watch = std::thread::spawn(move || {
        loop {
            if let Ok(found) = fs::read(target.join("output")) {
                return found;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let script = "{ sleep 1; echo one; } > output; : > empty; echo two >> output; mv empty done";
    let ended = Command::new("sh").args(["-c", script]).current_dir(mounted.directory.path()).status().unwrap();
    assert!(ended.success());
    assert!(watch.join().unwrap().starts_with(b"one\n"));
    assert_eq!(fs::read(mounted.at("output")).unwrap(), b"one\ntwo\n");
    until_drained(&mounted.at("output"));
    until_drained(&mounted.at("done"));
    assert_eq!(fs::read(pool.target().join("done")).unwrap(), b"");
    mounted.end();
}

#[test]
fn a_file_that_is_open_under_another_number_is_not_closed() {
    if !can_mount() {
        return;
    }
    let pool = pool(2, 48);
    let mounted = Mounted::new(&pool, 1);
    let file = File::create(mounted.at("file")).unwrap();
    let other = file.try_clone().unwrap();
    other.write_all_at(b"half", 0).unwrap();
    drop(other);
    // What the shell itself writes, and what a program of it does.
    let script =
        "exec 9>output; echo one >&9; sh -c 'echo two' >&9; echo three >&9; echo x > later; read wait; echo four >&9";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(mounted.directory.path()).stdin(std::process::Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    until("the shell is so far", || mounted.at("later").exists());
    until_drained(&mounted.at("later"));
    for open in ["file", "output"] {
        assert_eq!(state(&mounted.at(open)), "replicated", "{open}");
        assert!(!pool.target().join(open).exists(), "{open} is at the target");
    }
    assert_eq!(fs::read(mounted.at("output")).unwrap(), b"one\ntwo\nthree\n", "others see what was closed");
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    file.write_all_at(b" and half", 4).unwrap();
    drop(file);
    for (name, written) in [("file", &b"half and half"[..]), ("output", b"one\ntwo\nthree\nfour\n")] {
        until_drained(&mounted.at(name));
        assert_eq!(fs::read(pool.target().join(name)).unwrap(), written);
    }
    mounted.end();
}

#[test]
fn a_handle_that_failed_stays_failed_and_the_file_goes_on() {
    if !can_mount() {
        return;
    }
    // This one is larger than the pool, and the target is gone.
    let pool = pool(2, 12);
    let mounted = Mounted::with_timeout(&pool, 1, Duration::from_secs(5));
    let path = mounted.at("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(&bytes(1, MIB), 0).unwrap();
    file.sync_all().unwrap();
    let away = pool.directory.path().join("away");
    fs::rename(pool.target(), &away).unwrap();
    let code = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let mut written = (1..60_u64).map(|number| file.write_all_at(&bytes(number, MIB), number * MIB as u64));
    let failed = written.find(Result::is_err).expect("there is no room for all of it");
    assert_eq!(code(failed), Some(libc::ENOSPC));
    assert_eq!(code(file.write_all_at(b"x", 0)), Some(libc::ENOSPC));
    assert_eq!(code(file.sync_all()), Some(libc::ENOSPC));
    // SAFETY: the descriptor is the file's, which is forgotten.
    assert_eq!(unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) }, -1, "close says so as well");
    // With little room it was committed on the way.
    let expected: Vec<u8> = std::iter::once(1).chain(1..60).flat_map(|number| bytes(number, MIB)).collect();
    let found = fs::read(&path).unwrap();
    assert!(found.len() >= MIB);
    same("as it was committed", &found, &expected[..found.len()]);
    fs::rename(&away, pool.target()).unwrap();
    until("there is room again", || {
        let again = OpenOptions::new().append(true).open(&path);
        again.is_ok_and(|again| again.write_all_at(b"more", 0).is_ok() && again.sync_all().is_ok())
    });
    let found = fs::read(&path).unwrap();
    same("it goes on", &found[..MIB], &expected[..MIB]);
    assert!(found.ends_with(b"more"));
    until_drained(&path);
    mounted.end();
}
