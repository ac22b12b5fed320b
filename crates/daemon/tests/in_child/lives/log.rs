//! What the provider was asked, and what went wrong: lines appended by the child, read by the parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::pattern;

/// The fault of a life in which the daemon was killed.
const KILLED: &str = "daemon killed";

/// Writes lines. A line is written whole or not at all, whenever the process dies.
pub struct Writer(File);

impl Writer {
    pub fn open(path: &Path) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(path).unwrap())
    }

    pub fn line(&self, words: &[&str]) {
        let line = words.join(" ") + "\n";
        (&self.0).write_all(line.as_bytes()).unwrap();
    }
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The volume absorbed a burst and was deleted.
    Used,
    /// It was deleted, or never made, before it was of use.
    Unused,
    /// It is still there.
    Leaked,
}

/// One caching volume from the first call of `create` on, by its client token.
#[derive(Debug, Default)]
pub struct Life {
    pub faults: BTreeSet<String>,
    /// It was tagged dirty: the engine was about to use it.
    used: bool,
    /// Volumes of this token that are there.
    there: BTreeSet<String>,
}

impl Life {
    pub fn outcome(&self) -> Outcome {
        match (self.there.is_empty(), self.used) {
            (false, _) => Outcome::Leaked,
            (true, true) => Outcome::Used,
            (true, false) => Outcome::Unused,
        }
    }
}

/// What is written to a device, in bytes, each time.
pub const WRITTEN: usize = 16 << 10;

/// What was written to a device: in version 0 it is zeroes.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The version that was read, or flushed, last.
    flushed: u64,
    /// The last one after that which was begun, and may be there.
    begun: Option<u64>,
    /// The last one of all: none is written twice.
    last: u64,
}

impl Contents {
    /// What is written to the device of this name.
    pub fn block(device: &str, version: u64) -> Vec<u8> {
        // Those of other devices differ.
        let seed = device.bytes().fold(0, |seed, byte| seed << 8 | u64::from(byte));
        if version == 0 { vec![0; WRITTEN] } else { pattern(seed, version, WRITTEN) }
    }

    /// Which version a device has, unless it has one that it must not have.
    pub fn version(&self, device: &str, found: &[u8]) -> Option<u64> {
        let may_be_there = [Some(self.flushed), self.begun];
        may_be_there.into_iter().flatten().find(|version| Self::block(device, *version) == found)
    }

    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// The version that was flushed last.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    pub fn begins(&mut self, version: u64) {
        (self.begun, self.last) = (Some(version), version);
    }

    pub fn is_flushed(&mut self, version: u64) {
        (self.flushed, self.begun) = (version, None);
    }
}

/// The whole log.
#[derive(Debug, Default)]
pub struct Log {
    lives: BTreeMap<String, Life>,
    contents: BTreeMap<String, Contents>,
    kills: usize,
    /// Deletions of a volume of which the owner record said that it has the newest data.
    dirty: usize,
    /// Reads of a device that had something else than what was written.
    wrong: usize,
    /// How much of the file was read, in bytes.
    read: u64,
}

impl Log {
    pub fn read(path: &Path) -> Self {
        let mut log = Self::default();
        log.read_on(path);
        log
    }

    /// Reads what came since the last time.
    pub fn read_on(&mut self, path: &Path) {
        let Ok(file) = File::open(path) else { return };
        let mut text = vec![0; usize::try_from(file.metadata().unwrap().len() - self.read).unwrap()];
        file.read_exact_at(&mut text, self.read).unwrap();
        self.read += text.len() as u64;
        for line in String::from_utf8(text).unwrap().lines() {
            self.take(&line.split(' ').collect::<Vec<_>>());
        }
    }

    fn take(&mut self, words: &[&str]) {
        match words {
            // Nobody's: a call of the sweep, or of a daemon that starts.
            [_, "-", ..] => {}
            ["asked", token] => {
                self.life(token);
            }
            ["fault", token, what] => {
                self.life(token).faults.insert((*what).to_owned());
            }
            ["made", token, id] => {
                self.life(token).there.insert((*id).to_owned());
            }
            ["used", token] => self.life(token).used = true,
            ["dirty", _] => self.dirty += 1,
            ["wrong", _] => self.wrong += 1,
            ["writes", device, version] => self.device(device).begins(version.parse().unwrap()),
            ["wrote" | "read", device, version] => self.device(device).is_flushed(version.parse().unwrap()),
            ["there", ids @ ..] => {
                // What there is in truth, seen by the parent when no daemon runs.
                for life in self.lives.values_mut() {
                    life.there.retain(|id| ids.contains(&id.as_str()));
                }
            }
            ["killed", tokens @ ..] => {
                self.kills += 1;
                for token in tokens {
                    if let Some(life) = self.lives.get_mut(*token) {
                        life.faults.insert(KILLED.to_owned());
                    }
                }
            }
            other => panic!("a line of the log that nobody writes: {other:?}"),
        }
    }

    fn life(&mut self, token: &str) -> &mut Life {
        self.lives.entry(token.to_owned()).or_default()
    }

    fn device(&mut self, name: &str) -> &mut Contents {
        self.contents.entry(name.to_owned()).or_default()
    }

    /// What was written to a device.
    pub fn contents(&self, device: &str) -> Contents {
        self.contents.get(device).cloned().unwrap_or_default()
    }

    pub fn lives(&self) -> &BTreeMap<String, Life> {
        &self.lives
    }

    pub fn faulted(&self) -> usize {
        self.lives.values().filter(|life| !life.faults.is_empty()).count()
    }

    /// How many lives the daemon was killed in.
    pub fn cut(&self) -> usize {
        self.lives.values().filter(|life| life.faults.contains(KILLED)).count()
    }

    pub fn kills(&self) -> usize {
        self.kills
    }

    /// What data was lost, if any was.
    pub fn lost(&self) -> Option<String> {
        let lost = format!(
            "{} volumes were deleted with newest data, and {} devices had something else than what was written",
            self.dirty, self.wrong
        );
        (self.dirty + self.wrong > 0).then_some(lost)
    }
}
