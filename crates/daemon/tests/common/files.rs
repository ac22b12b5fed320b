//! Writers of files on a mounted file system, who know what every file may hold, whenever the daemon below it dies.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use surgetank_model::random::Random;

use super::pattern;
use super::rounds::Seen;

/// Files of one writer.
const FILES: u64 = 24;

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

/// Writes files of its own and knows what each may hold, whenever the daemon dies.
pub struct Writer {
    number: u64,
    random: Random,
    marks: [Mark; FILES as usize],
    version: u64,
    /// Files that were put in place or removed durably.
    pub synced: u64,
    /// Of them, found as they were.
    pub checked: u64,
}

impl Writer {
    pub fn new(number: u64) -> Self {
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
    pub fn work(&mut self, mount: &Path, seen: &Seen) -> io::Result<()> {
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
    pub fn check(&mut self, mount: &Path) {
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
