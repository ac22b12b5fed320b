//! A writer that replaces files as editors do: a new one is written and synced, renamed over the old one, and the
//! directory synced. After a power cut each name holds one of its versions, whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::cuts::oracle::Stretch;

/// Versions go round these many names.
const NAMES: u64 = 4;

fn file(directory: &Path, version: u64) -> PathBuf {
    directory.join(format!("file-{}", version % NAMES))
}

/// Replaces one file after the other until told to stop, from version `next` on, which is the one that failed if one does.
/// `durable` is told of each version that is. A version's content is what the stretch's operation of that number writes.
pub fn write(
    directory: &Path,
    stretch: &Stretch,
    next: &mut u64,
    over: &AtomicBool,
    mut durable: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while !over.load(Ordering::Relaxed) {
        let new = directory.join("new");
        let mut content = File::create(&new).context("cannot make a file")?;
        content.write_all(&stretch.data(*next)).context("cannot write a file")?;
        content.sync_all().context("cannot sync a file")?;
        fs::rename(&new, file(directory, *next)).context("cannot rename a file")?;
        File::open(directory)?.sync_all().context("cannot sync a directory")?;
        durable(*next)?;
        *next += 1;
    }
    Ok(())
}

/// What is wrong with the files, if all versions up to `durable` were durable and those from `ends` on never begun.
pub fn judge(directory: &Path, stretch: &Stretch, durable: u64, ends: u64) -> Vec<String> {
    (0..NAMES).filter_map(|name| fault(&file(directory, name), stretch, name, durable, ends)).collect()
}

fn fault(file: &Path, stretch: &Stretch, name: u64, durable: u64, ends: u64) -> Option<String> {
    // The newest version of this name that must be there; 0: none.
    let least = (1..=durable).rev().take(NAMES as usize).find(|version| version % NAMES == name).unwrap_or(0);
    let found = match fs::read(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return (least > 0).then(|| format!("file {name} is gone, but its version {least} was synced"));
        }
        Err(error) => return Some(format!("file {name} cannot be read: {error}")),
    };
    let version = found.first_chunk().map_or(0, |version| u64::from_le_bytes(*version));
    if version == 0 || version >= ends || version % NAMES != name || found != stretch.data(version) {
        return Some(format!("file {name} is none of its versions: it begins as version {version}"));
    }
    (version < least).then(|| format!("file {name} is of version {version}, but {least} was synced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_from_the_synced_one_on_will_do_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("files");
        let stretch = Stretch::new(3, 0, 1024);
        let over = AtomicBool::new(false);
        let (mut next, mut told) = (1, 0);
        fs::create_dir(&directory).unwrap();
        let durable = |version| {
            told = version;
            over.store(version >= 10, Ordering::Relaxed);
            Ok(())
        };
        write(&directory, &stretch, &mut next, &over, durable).unwrap();
        assert_eq!((next, told), (11, 10));
        let judge = |durable, ends| judge(&directory, &stretch, durable, ends);
        assert_eq!(judge(10, 11), Vec::<String>::new());
        assert_eq!(judge(7, 11), Vec::<String>::new());
        // Version 14 should have replaced 10, 13 should have replaced 9, and so on.
        assert_eq!(judge(12, 13).len(), 2);
        assert_eq!(judge(14, 15).len(), 4);
        assert!(judge(10, 10)[0].contains("none of its versions"));
        fs::remove_file(file(&directory, 8)).unwrap();
        assert_eq!(judge(10, 11), ["file 0 is gone, but its version 8 was synced"]);
        assert_eq!(judge(3, 11), Vec::<String>::new());
        let mut torn = stretch.data(7);
        torn[300] ^= 1;
        fs::write(file(&directory, 7), torn).unwrap();
        assert!(judge(3, 11)[0].contains("file 3 is none of its versions"));
    }
}
