//! Whether a target is the one that was taken over.

use std::io::{Error, Result};

use super::{ASIDE, Target, found};

impl Target {
    /// Whether it is the directory that a publisher has taken over: one without a place for files that have no name is another, and nothing is
    /// written there.
    pub(in crate::manager) fn is_taken_over(&self) -> Result<()> {
        if found(&self.directory.join(ASIDE))?.is_some() {
            return Ok(());
        }
        std::fs::metadata(&self.directory).map_err(|error| Error::other(error.to_string()))?;
        let sentence = "there is no `.surgetank` any more, since its file system is not mounted or the directory was replaced, and nothing is \
                        written there";
        Err(Error::other(sentence))
    }

    /// Works on the directory that was taken over. What fails since that went away meanwhile is nobody's doing, and fails with it.
    pub(in crate::manager) fn own<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.is_taken_over()?;
        work(self).map_err(|error| self.is_taken_over().err().unwrap_or(error))
    }
}
