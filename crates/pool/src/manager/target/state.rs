//! Whether a target is the one that was taken over, and what it has at a name.

use std::io::{Error, Result};

use surgetank_pool_core::meta::value::{Change, Placed};

use super::super::objects::look::wait;
use super::{ASIDE, Target, found, is};

/// What a target has at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum AtName {
    Nothing,
    /// What the pool has put there last, as far as that is recorded.
    Recorded,
    Other,
}

impl Target {
    /// Whether it is the directory that a publisher has taken over: one without a place for files that have no name is another, and nothing is
    /// written there.
    pub(in crate::manager) fn is_taken_over(&self) -> Result<()> {
        if let Some(objects) = &self.objects {
            return wait(objects.is_taken_over());
        }
        if found(&self.directory.join(ASIDE))?.is_some() {
            return Ok(());
        }
        std::fs::metadata(&self.directory).map_err(|error| Error::other(error.to_string()))?;
        let sentence = "there is no `.surgetank` any more, since its file system is not mounted or the directory was replaced, and nothing is \
                        written there";
        Err(Error::other(sentence))
    }

    /// What is at the name of a publication, where the pool has put `was` last.
    pub(in crate::manager) fn at_name(&self, change: &Change, was: &[Option<Placed>]) -> Result<AtName> {
        if let Some(objects) = &self.objects {
            let Change::Publish { path, .. } = change else { return Ok(AtName::Other) };
            return wait(objects.at_name(path, was.first().copied().flatten()));
        }
        Ok(match found(&self.place(change))? {
            None => AtName::Nothing,
            Some(found) if is(&found, was.first().copied().flatten()) => AtName::Recorded,
            Some(_) => AtName::Other,
        })
    }

    /// Works on the directory that was taken over. What fails since that went away meanwhile is nobody's doing, and fails with it.
    pub(in crate::manager) fn own<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.is_taken_over()?;
        work(self).map_err(|error| self.is_taken_over().err().unwrap_or(error))
    }
}
