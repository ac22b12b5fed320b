//! Files with several names: hard links, or copies where the target's file system has none.

use std::fs::Metadata;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use surgetank_pool_core::meta::value::{self, Change, Placed};

use super::{Target, found, give_placed, have_same_bytes, is, placed, rename_new, theirs};

impl Target {
    /// Gives what the pool has put at one place another, where nothing is.
    pub(super) fn link(&self, from: &Path, to: &Path, was: Option<Placed>, maybe_done: bool) -> Result<Placed> {
        let (is_at, was) = match (found(from)?, was) {
            (Some(is_at), Some(was)) if is(&is_at, Some(was)) => (is_at, was),
            (Some(_), _) => return Err(theirs()),
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        match found(to)? {
            None => self.link_new(from, to, &is_at)?,
            Some(done) if maybe_done && is_same(from, &is_at, to, &done)? => {}
            Some(_) => return Err(theirs()),
        }
        Ok(placed(was.node, &std::fs::symlink_metadata(to)?))
    }

    /// A link, under a name that nothing has.
    fn link_new(&self, from: &Path, to: &Path, is_at: &Metadata) -> Result<()> {
        // Not what a symbolic link points at.
        match std::fs::hard_link(from, to) {
            Err(error) if !may_be_copied(&error) => Err(error),
            Err(_) if is_at.is_file() => {
                let aside = self.beside(&format_args!("copy"));
                copy(from, &aside, is_at)?;
                rename_new(&aside, to)
            }
            // What is neither a file nor can be linked stays under its first name alone.
            Err(error) => Err(Error::new(ErrorKind::AlreadyExists, format!("it cannot have another name: {error}"))),
            Ok(()) => Ok(()),
        }
    }

    /// Makes a change of what has further names; what the pool has at all of them afterwards.
    pub(super) fn change_all(
        &self,
        change: &Change,
        also: &[value::Path],
        (maybe_done, finished): (bool, Option<Placed>),
        was: &dyn Fn(usize) -> Option<Placed>,
    ) -> Result<Vec<Option<Placed>>> {
        match change {
            Change::Publish { inode, version, path } => {
                let from = self.publishes((*inode, *version), path, maybe_done, finished)?;
                let (first, is_from) = (self.at(path), std::fs::symlink_metadata(&from)?);
                // Nothing is replaced if one of them is somebody else's.
                if from != first {
                    self.replaces((&from, &is_from), &first, was(0), maybe_done)?;
                }
                let before: Vec<Option<Metadata>> = (1..)
                    .zip(also)
                    .map(|(at, path)| self.replaces((&from, &is_from), &self.at(path), was(at), maybe_done))
                    .collect::<Result<_>>()?;
                let mut placed_also = Vec::with_capacity(also.len());
                for (path, before) in also.iter().zip(before) {
                    let to = self.at(path);
                    match before {
                        Some(_) => self.link_over(&from, &to, &is_from)?,
                        None => self.link_new(&from, &to, &is_from)?,
                    }
                    self.flush_parent(path)?;
                    placed_also.push(Some(placed(*inode, &std::fs::symlink_metadata(&to)?)));
                }
                // The first one is the last: as long as it is not there, the file beside the names is.
                let mut all = self.change(change, (maybe_done, finished), &[was(0)])?;
                all.append(&mut placed_also);
                Ok(all)
            }
            Change::Attributes { owner, times, .. } => {
                let before: Vec<Option<Metadata>> =
                    also.iter().map(|path| found(&self.at(path))).collect::<Result<_>>()?;
                let mut all = self.change(change, (maybe_done, finished), &[was(0)])?;
                for ((at, path), before) in (1..).zip(also).zip(before) {
                    let to = self.at(path);
                    // What is somebody else's under a further name stays as it is, and is found when that name is changed.
                    all.push(match before {
                        Some(before) => {
                            give_placed(&to, &before, (*owner, *times), was(at), maybe_done).unwrap_or(was(at))
                        }
                        None => was(at),
                    });
                    self.flush_parent(path)?;
                }
                Ok(all)
            }
            other => self.change(other, (maybe_done, finished), &[was(0)]),
        }
    }

    /// A link in the place of what the pool has put there.
    fn link_over(&self, from: &Path, to: &Path, is_at: &Metadata) -> Result<()> {
        if std::fs::symlink_metadata(to)?.ino() == is_at.ino() {
            return Ok(());
        }
        let aside = self.beside(&format_args!("link"));
        remove(&aside)?;
        self.link_new(from, &aside, is_at)?;
        std::fs::rename(&aside, to)
    }
}

/// Whether what is at one place is what is at another, or has the same bytes.
pub(super) fn is_same(one: &Path, is_one: &Metadata, other: &Path, is_other: &Metadata) -> Result<bool> {
    let same = is_one.ino() == is_other.ino() && is_one.dev() == is_other.dev();
    Ok(same || is_one.is_file() && is_other.is_file() && have_same_bytes(one, other)?)
}

/// Whether a file system that refuses a link so may take a copy.
pub(super) fn may_be_copied(error: &Error) -> bool {
    use rustix::io::Errno;
    let refuses = [Errno::PERM, Errno::MLINK, Errno::XDEV, Errno::OPNOTSUPP, Errno::NOSYS];
    refuses.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

pub(super) fn remove(at: &Path) -> Result<()> {
    match std::fs::remove_file(at) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A copy with the same attributes, flushed.
fn copy(from: &Path, to: &Path, is_at: &Metadata) -> Result<()> {
    remove(to)?;
    // Its mode comes with its owner: until then it is the publisher's.
    let mut copy = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    std::io::copy(&mut std::fs::File::open(from)?, &mut copy)?;
    let owner = (is_at.mode(), is_at.uid(), is_at.gid());
    let accessed = super::nanoseconds(is_at.atime(), is_at.atime_nsec());
    super::give(to, owner, value::Times { accessed, modified: super::modified(is_at), changed: 0 })?;
    std::fs::File::open(to)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use surgetank_pool_core::id::{Inode, MountId, Revision, Version};
    use surgetank_pool_core::meta::Name;

    use super::*;

    #[test]
    fn where_the_file_system_has_no_links_a_copy_has_bytes_and_attributes() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("one"), "content").unwrap();
        let is_at = std::fs::symlink_metadata(at("one")).unwrap();
        copy(&at("one"), &at("other"), &is_at).unwrap();
        let copied = std::fs::symlink_metadata(at("other")).unwrap();
        assert_eq!(std::fs::read(at("other")).unwrap(), b"content");
        assert_eq!(
            (copied.mode(), copied.mtime(), copied.mtime_nsec()),
            (is_at.mode(), is_at.mtime(), is_at.mtime_nsec())
        );
        assert!(is_same(&at("one"), &is_at, &at("other"), &copied).unwrap());
        for errno in [libc_errno("EPERM"), libc_errno("EMLINK"), libc_errno("EXDEV")] {
            assert!(may_be_copied(&Error::from_raw_os_error(errno)));
        }
        assert!(!may_be_copied(&ErrorKind::StorageFull.into()));
    }

    fn libc_errno(name: &str) -> i32 {
        use rustix::io::Errno;
        match name {
            "EPERM" => Errno::PERM,
            "EMLINK" => Errno::MLINK,
            _ => Errno::XDEV,
        }
        .raw_os_error()
    }

    #[test]
    fn a_version_is_published_under_no_name_if_one_is_somebody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(PathBuf::from(directory.path()), MountId(1), Revision(1));
        let (inode, version) = (Inode(7), Version(1));
        target.take_over().unwrap();
        std::fs::write(target.aside(inode, version), "content").unwrap();
        let at = |name: &str| directory.path().join(name);
        let [path, also] = ["one", "other"].map(|name| value::Path(vec![Name::new(name.as_bytes()).unwrap()]));
        let change = Box::new(Change::Publish { inode, version, path });
        let linked = Change::Linked { change, also: vec![also] };
        std::fs::write(at("other"), "theirs").unwrap();
        for maybe_done in [false, true] {
            assert!(target.change(&linked, (maybe_done, None), &[None, None]).is_err());
            assert!(!at("one").exists(), "{maybe_done}");
            assert_eq!(std::fs::read(at("other")).unwrap(), b"theirs");
        }
        // What a publisher that has ended put there is taken for done.
        std::fs::write(at("other"), "content").unwrap();
        assert!(target.change(&linked, (false, None), &[None, None]).is_err());
        target.change(&linked, (true, None), &[None, None]).unwrap();
        let number = |name: &str| std::fs::metadata(at(name)).unwrap().ino();
        assert_eq!(number("one"), number("other"));
    }

    #[test]
    fn a_name_that_takes_the_place_of_another_of_the_same_file_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(PathBuf::from(directory.path()), MountId(1), Revision(1));
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("one"), "content").unwrap();
        std::fs::hard_link(at("one"), at("other")).unwrap();
        let was = [1, 2].map(|node| Some(placed(Inode(node), &std::fs::symlink_metadata(at("one")).unwrap())));
        let [from, to] = ["one", "other"].map(|name| value::Path(vec![Name::new(name.as_bytes()).unwrap()]));
        let change = Change::Rename { from, to };
        for maybe_done in [false, true] {
            assert_eq!(target.change(&change, (maybe_done, None), &was).unwrap(), [None, was[0]]);
            assert!(!at("one").exists());
            assert_eq!(std::fs::read(at("other")).unwrap(), b"content");
        }
    }

    #[test]
    fn a_link_to_what_is_somebody_elses_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(PathBuf::from(directory.path()), MountId(1), Revision(1));
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("ours"), "content").unwrap();
        let ours = placed(Inode(1), &std::fs::symlink_metadata(at("ours")).unwrap());
        target.link(&at("ours"), &at("also"), Some(ours), false).unwrap();
        assert_eq!(std::fs::metadata(at("also")).unwrap().ino(), ours.number);
        target.link(&at("ours"), &at("also"), Some(ours), true).unwrap();
        assert!(target.link(&at("ours"), &at("also"), Some(ours), false).is_err());
        std::fs::write(at("theirs"), "other").unwrap();
        assert!(target.link(&at("ours"), &at("theirs"), Some(ours), true).is_err());
        assert!(target.link(&at("theirs"), &at("more"), Some(ours), true).is_err());
        assert!(target.link(&at("theirs"), &at("more"), None, true).is_err());
    }
}
