//! How a target is: whether it is the one that was taken over, and what is at names there.

use std::io::{Error, Result};

use surgetank_pool_core::meta::value::{Change, Placed};

use super::{ASIDE, Target, found, is};

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

    /// Whether nothing is at the names of a publication but what the pool has put there last: nobody has made it.
    pub(in crate::manager) fn is_as_left(&self, change: &Change, was: &[Option<Placed>]) -> Result<bool> {
        let (change, also) = match change {
            Change::Linked { change, also } => (&**change, &also[..]),
            change => (change, &[][..]),
        };
        let first = match change {
            Change::Publish { path, .. } => Some(path),
            _ => None,
        };
        for (at, path) in first.into_iter().chain(also).enumerate() {
            let was = was.get(at).copied().flatten();
            if found(&self.at(path))?.is_some_and(|there| !is(&there, was)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
