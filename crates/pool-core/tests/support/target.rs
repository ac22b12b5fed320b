//! The target as a file system has it: what cannot be done there is a failure.

use std::collections::BTreeMap;

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::value::{Change, Path};

/// What is at each path: a version of a file, or `None`, a directory.
#[derive(Debug, Default)]
pub struct Target(pub BTreeMap<Path, Option<(Inode, Version)>>);

impl Target {
    /// Makes a change, `again` if it may have been made before. Whether all bytes of a version have come, `complete` knows.
    pub fn change(
        &mut self,
        change: &Change,
        again: bool,
        complete: &dyn Fn((Inode, Version)) -> bool,
    ) -> Result<(), String> {
        match change {
            Change::MakeDirectory(path) => {
                if !self.has_directory_of(path) || (self.0.contains_key(path) && !again) {
                    return Err(format!("{path:?} cannot be made"));
                }
                self.0.entry(path.clone()).or_insert(None);
            }
            Change::Publish { inode, version, path } => {
                if !complete((*inode, *version)) || !self.has_directory_of(path) || self.0.get(path) == Some(&None) {
                    return Err(format!("{inode} {version:?} cannot be published at {path:?}"));
                }
                self.0.insert(path.clone(), Some((*inode, *version)));
            }
            Change::Rename { from, to } => return self.rename(from, to, again),
            Change::MakeLink { path, .. } | Change::MakeSpecial { path, .. } => {
                return Err(format!("{path:?} cannot be made: only files are made here"));
            }
            Change::Link { from, to } => {
                let Some(Some(file)) = self.0.get(from).copied() else {
                    return Err(format!("{from:?} is no file that could have another name"));
                };
                if self.0.get(to).is_some_and(|other| !again || *other != Some(file)) || !self.has_directory_of(to) {
                    return Err(format!("{to:?} cannot be another name"));
                }
                self.0.insert(to.clone(), Some(file));
            }
            Change::Linked { change, also } => {
                self.change(change, again, complete)?;
                for path in also.iter().filter(|_| change.publishes().is_some()) {
                    if self.0.get(path) == Some(&None) || !self.has_directory_of(path) {
                        return Err(format!("{path:?} cannot be replaced"));
                    }
                    self.0.insert(path.clone(), change.publishes());
                }
            }
            Change::Attributes { path, .. } => {
                if !self.0.contains_key(path) && !again {
                    return Err(format!("{path:?} is not there to be changed"));
                }
            }
            Change::Remove(path) => {
                if self.0.remove(path).is_none() && !again {
                    return Err(format!("{path:?} is not there to be removed"));
                }
                if self.0.keys().any(|other| other.0.starts_with(&path.0)) {
                    return Err(format!("{path:?} is removed, and something is below it"));
                }
            }
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, again: bool) -> Result<(), String> {
        if !self.0.contains_key(from) {
            return if again { Ok(()) } else { Err(format!("{from:?} is not there to be renamed")) };
        }
        if !self.has_directory_of(to) {
            return Err(format!("the directory of {to:?} is not there"));
        }
        let is_below = |path: &Path| path.0.starts_with(&from.0);
        let moved: Vec<(Path, Option<(Inode, Version)>)> =
            self.0.iter().filter(|(path, _)| is_below(path)).map(|(path, what)| (path.clone(), *what)).collect();
        self.0.retain(|path, _| !is_below(path));
        for (path, what) in moved {
            let mut names = to.0.clone();
            names.extend_from_slice(&path.0[from.0.len()..]);
            self.0.insert(Path(names), what);
        }
        Ok(())
    }

    fn has_directory_of(&self, path: &Path) -> bool {
        let parent = Path(path.0[..path.0.len() - 1].to_vec());
        parent.0.is_empty() || self.0.get(&parent) == Some(&None)
    }
}
