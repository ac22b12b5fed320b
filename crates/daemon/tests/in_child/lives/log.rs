//! What the provider was asked, and what went wrong: lines appended by the child, read by the parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

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

/// The whole log.
#[derive(Debug, Default)]
pub struct Log {
    lives: BTreeMap<String, Life>,
    kills: usize,
}

impl Log {
    pub fn read(path: &Path) -> Self {
        let mut log = Self::default();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            log.take(&line.split(' ').collect::<Vec<_>>());
        }
        log
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
                        life.faults.insert("daemon killed".to_owned());
                    }
                }
            }
            other => panic!("a line of the log that nobody writes: {other:?}"),
        }
    }

    fn life(&mut self, token: &str) -> &mut Life {
        self.lives.entry(token.to_owned()).or_default()
    }

    pub fn lives(&self) -> &BTreeMap<String, Life> {
        &self.lives
    }

    pub fn faulted(&self) -> usize {
        self.lives.values().filter(|life| !life.faults.is_empty()).count()
    }

    pub fn kills(&self) -> usize {
        self.kills
    }
}
