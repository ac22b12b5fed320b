//! The flushes that were answered in a guest: a line each, in a file of the host's, which outlives the guest.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use super::oracle::Stretch;
use crate::messages::SHARE;

const FILE: &str = "acks";

/// Tells the host, from the guest.
#[derive(Debug)]
pub struct Acks(File);

impl Acks {
    /// In the guest.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn in_guest() -> anyhow::Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(Path::new(SHARE).join(FILE))?))
    }

    /// The flush that follows this operation of a stretch was answered.
    ///
    /// # Errors
    /// If the host cannot be told.
    pub fn flushed(&mut self, stretch: usize, operation: u64) -> anyhow::Result<()> {
        Ok(self.0.write_all(format!("{stretch} {operation}\n").as_bytes())?)
    }
}

/// Takes what a guest has told in this directory, and forgets it. A line that is not whole does not count.
pub fn take(directory: &Path, stretches: &mut [Stretch]) {
    let file = directory.join(FILE);
    let acks = fs::read_to_string(&file).unwrap_or_default();
    for line in acks.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        if let (Some(index), Some(number)) = (numbers.next(), numbers.next())
            && let Some(stretch) = stretches.get_mut(index as usize)
        {
            stretch.flushed(number);
        }
    }
    let _ = fs::remove_file(file);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_whole_must_be_found() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "1 9\n7 3\n0 2\n1 1").unwrap();
        let mut stretches = [Stretch::new(1, 0, 64), Stretch::new(2, 64, 64)];
        take(directory.path(), &mut stretches);
        assert_eq!(stretches.clone().map(|stretch| stretch.begins), [3, 10]);
        take(directory.path(), &mut stretches);
        assert_eq!(stretches.map(|stretch| stretch.begins), [3, 10]);
    }
}
