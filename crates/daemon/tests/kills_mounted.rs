//! The daemon is killed again and again under a mounted ext4 on its block device. After each kill the file system is
//! unmounted, the daemon started, the journal replayed: every file that was synced is there, and e2fsck finds nothing.

mod common;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use common::child::{self, Running};
use common::mounted::{self, Mounted};
use common::rounds::{self, Histogram, Seen};
use common::{Machine, pattern};
use surgetank_model::random::Random;

const SIZE: u64 = 96 << 20;
const WRITERS: u64 = 3;
/// Files of one writer.
const FILES: u64 = 24;

/// Not a test by itself: the daemon that the others kill.
#[test]
fn daemon_in_a_child() {
    child::serve_if_asked();
}

/// What a file holds: the version and how many bytes of it. Version 0: there is no such file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    version: u64,
    length: usize,
}

/// A file that was synced, and what may have replaced it when the daemon died.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    synced: Content,
    uncertain: Option<Content>,
}

struct Writer {
    number: u64,
    random: Random,
    marks: [Mark; FILES as usize],
    version: u64,
    synced: u64,
    checked: u64,
}

impl Writer {
    fn new(number: u64) -> Self {
        let random = Random::from_seed(number);
        Self { number, random, marks: [Mark::default(); FILES as usize], version: 0, synced: 0, checked: 0 }
    }

    fn directory(&self, mount: &Path) -> PathBuf {
        mount.join(self.number.to_string())
    }

    fn bytes(&self, file: u64, content: Content) -> Vec<u8> {
        pattern(self.number << 48 | file << 32, content.version, content.length)
    }

    /// Writes files, syncs them and puts them in place of older ones, until an error says that the device is gone.
    ///
    /// What a directory's fsync answers after the device's death counts for nothing: jbd2 finds no transaction to
    /// wait for once its commit has failed, and ext4 calls that a success.
    fn work(&mut self, mount: &Path, seen: &Seen) -> io::Result<()> {
        let directory = self.directory(mount);
        loop {
            let file = self.random.below(FILES);
            self.version += 1;
            let most = 1 << (6 + self.random.below(13));
            let length = 1 + self.random.below(most) as usize;
            let content = Content { version: self.version, length };
            let (path, new) = (directory.join(file.to_string()), directory.join("new"));
            let mut written = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
            written.write_all(&self.bytes(file, content))?;
            written.sync_all()?;
            drop(written);
            let mark = &mut self.marks[file as usize];
            if mark.synced.version > 0 && self.random.chance(0.2) {
                mark.uncertain = Some(Content::default());
                std::fs::remove_file(&path)?;
                File::open(&directory)?.sync_all()?;
                if seen.killing() {
                    return Ok(());
                }
                *mark = Mark::default();
            } else {
                mark.uncertain = Some(content);
                std::fs::rename(&new, &path)?;
                File::open(&directory)?.sync_all()?;
                if seen.killing() {
                    return Ok(());
                }
                *mark = Mark { synced: content, uncertain: None };
            }
            self.synced += 1;
        }
    }

    /// Every mark is there; what is found in place of an uncertain one is certain from then on.
    fn check(&mut self, mount: &Path) {
        std::fs::create_dir_all(self.directory(mount)).unwrap();
        for file in 0..FILES {
            let path = self.directory(mount).join(file.to_string());
            let mut bytes = Vec::new();
            match File::open(&path) {
                Ok(mut file) => _ = file.read_to_end(&mut bytes).unwrap(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", path.display()),
            }
            let mark = self.marks[file as usize];
            let holds = |content: &Content| bytes == self.bytes(file, *content) && (bytes.is_empty() != path.exists());
            let found = [mark.uncertain, Some(mark.synced)].into_iter().flatten().find(holds);
            let found = found.unwrap_or_else(|| {
                let length = bytes.len();
                let is =
                    |(file, version): &(u64, u64)| bytes == self.bytes(*file, Content { version: *version, length });
                let all = (0..FILES).flat_map(|file| (1..=self.version).map(move |version| (file, version)));
                panic!("{}: {length} bytes of {:?} are not {mark:?}", path.display(), all.into_iter().find(is))
            });
            self.marks[file as usize] = Mark { synced: found, uncertain: None };
            self.checked += u64::from(found.version > 0);
        }
    }
}

/// Starts, replays the journal, checks, lets everybody work and kills.
fn round(machine: &Machine, writers: &mut [Writer], random: &mut Random, number: usize, moments: &mut Histogram) {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
    let device = mounted::device(&running);
    let mount = machine.path("mnt");
    let mut file_system = Mounted::mount(&device, &mount);
    writers.iter_mut().for_each(|writer| writer.check(&mount));
    if number.is_multiple_of(2) {
        file_system.unmount();
        mounted::check_ext4(&device);
        file_system = Mounted::mount(&device, &mount);
    }
    let seen = Seen::default();
    let moment = std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let (mount, seen) = (&mount, &seen);
            // It ends with an error, of one kind or another.
            scope.spawn(move || drop(writer.work(mount, seen)));
        }
        let moment = rounds::kill_at(machine, &running, &seen, random, rounds::aim(number));
        // The threads that wait for the device go on only when the process is gone.
        mounted::see_it_die(machine, &mut running);
        moment
    });
    moments.add(moment);
    file_system.abandon();
}

#[test]
#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kills_under_a_mounted_file_system_keep_everything_that_was_synced() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    rounds::configure(&machine, &backing, "adaptive", "32 MiB", "fuse");
    let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(&backing).stdout(Stdio::null()).status();
    assert!(made.unwrap().success());
    let mut random = Random::from_seed(21);
    let mut writers: Vec<Writer> = (0..WRITERS).map(Writer::new).collect();
    let (mut moments, kills, began) = (Histogram::default(), rounds::kills(30), Instant::now());
    for number in 0..kills {
        round(&machine, &mut writers, &mut random, number, &mut moments);
    }
    let running = Running::start(&machine, None);
    let mount = machine.path("mnt");
    let file_system = Mounted::mount(&mounted::device(&running), &mount);
    writers.iter_mut().for_each(|writer| writer.check(&mount));
    file_system.unmount();
    rounds::deletes_everything(&machine, &running);
    running.stop();
    mounted::check_ext4(&backing);
    let (synced, checked) = writers.iter().fold((0, 0), |sum, writer| (sum.0 + writer.synced, sum.1 + writer.checked));
    eprintln!(
        "ext4: survived {kills}/{kills} kills in {:.0?}; at the kill: {moments}; {synced} marks made, {checked} checked",
        began.elapsed()
    );
    moments.are_telling();
    assert!(synced > kills as u64, "hardly anything was written");
}
