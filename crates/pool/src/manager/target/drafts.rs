//! Drafts: what files were drained into while somebody writes them. Each has a number of its own, and belongs to the file that rests on it,
//! whichever manager publishes.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use surgetank_pool_core::id::{Inode, MountId};
use surgetank_pool_core::meta::value::{Change, Placed};

use super::super::objects::look::wait;
use super::links::{may_be_copied, remove};
use super::{ASIDE, Owner, Target, found, give_owner, is, theirs};

/// What the names of drafts begin with; those of other files without a name begin with a number.
const DRAFT: &str = "draft";

/// The name of a draft beside the files that have no name yet.
pub(crate) fn draft_name(mount: MountId, inode: Inode, draft: u64) -> String {
    format!("{DRAFT}.{mount}.{inode}.{draft}")
}

impl Target {
    /// Where a draft is.
    pub(in crate::manager) fn draft(&self, inode: Inode, draft: u64) -> PathBuf {
        self.directory.join(ASIDE).join(draft_name(self.mount, inode, draft))
    }

    /// Makes a draft, readable by who may read the file.
    pub(in crate::manager) fn make_draft(&self, (inode, draft): (Inode, u64), owner: Owner) -> Result<()> {
        let at = self.draft(inode, draft);
        let file = OpenOptions::new().write(true).create_new(true).mode(owner.0 & 0o7777).open(&at)?;
        // Whoever fills it may not be its owner.
        give_owner(&at, (owner.0 | 0o600, owner.1, owner.2))?;
        file.sync_all()?;
        File::open(self.directory.join(ASIDE))?.sync_all()
    }

    /// Takes all bytes from a draft that nobody writes.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    pub(in crate::manager) fn empty(&self, draft: &Path) -> Result<()> {
        OpenOptions::new().write(true).open(draft)?.set_len(0)
    }

    /// Copies a file to the same places of another, flushed, but for ranges, which are in order.
    pub(in crate::manager) fn copy_but(&self, from: Option<&File>, to: &Path, but: &[(u64, u64)]) -> Result<()> {
        let Some(from) = from else { return Ok(()) };
        let (size, mut at, mut ranges) = (from.metadata()?.len(), 0, Vec::new());
        for (first, end) in but.iter().copied().chain([(size, size)]) {
            if at < first.min(size) {
                ranges.push((at, first.min(size)));
            }
            at = at.max(end);
        }
        self.copy(from, to, &ranges)
    }

    /// Makes the file for a version's bytes, which is its draft under another name, so that it stays if this publisher ends.
    pub(in crate::manager) fn begin_from(&self, part: &Path, (inode, draft): (Inode, u64), size: u64) -> Result<()> {
        let draft = self.draft(inode, draft);
        match std::fs::hard_link(&draft, part) {
            Err(error) if may_be_copied(&error) => std::fs::copy(&draft, part).map(|_| ())?,
            other => other?,
        }
        OpenOptions::new().write(true).open(part)?.set_len(size)
    }

    /// Opens what was published at the first name of a change; if that may have been made before, whatever file is there.
    pub(in crate::manager) fn open(&self, change: &Change, was: Option<Placed>, maybe_done: bool) -> Result<File> {
        let at = self.place(change);
        match found(&at)? {
            None => Err(ErrorKind::NotFound.into()),
            Some(there) if is(&there, was) || maybe_done && there.is_file() => File::open(&at),
            Some(_) => Err(theirs()),
        }
    }

    /// Copies ranges of a file to the same places of another, flushed. What is a hole in one is zeros in the other.
    pub(in crate::manager) fn copy(&self, from: &File, to: &Path, ranges: &[(u64, u64)]) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let (length, mut holes) = (from.metadata()?.len(), Vec::new());
        let mut file = OpenOptions::new().write(true).open(to)?;
        for (first, end) in ranges.iter().copied() {
            let mut at = first;
            while at < end.min(length) {
                let data = found_at(rustix::fs::seek(from, rustix::fs::SeekFrom::Data(at)), at, end);
                if at < data {
                    holes.push((at, data));
                }
                at = found_at(rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(data)), end, end).max(data);
                let mut from = from;
                from.seek(SeekFrom::Start(data))?;
                file.seek(SeekFrom::Start(data))?;
                let copied = std::io::copy(&mut std::io::Read::take(from, at - data), &mut file)?;
                if copied != at - data {
                    return Err(too_short(end));
                }
            }
            if length < end {
                return Err(too_short(end));
            }
        }
        self.zero(to, &holes)?;
        file.sync_data()
    }

    /// Fails if a file may not be so long.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    pub(in crate::manager) fn may_have(&self, at: &Path, size: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(at)?;
        let length = file.metadata()?.len();
        if length < size {
            file.set_len(size)?;
            file.set_len(length)?;
        }
        Ok(())
    }

    /// Has ranges of a file, which are in order, read as zeros: as holes, if its file system has some.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    pub(in crate::manager) fn zero(&self, at: &Path, ranges: &[(u64, u64)]) -> Result<()> {
        let Some((_, last)) = ranges.last() else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(at)?;
        let length = file.metadata()?.len();
        for (first, end) in ranges.iter().copied().filter(|(first, _)| *first < length) {
            let bytes = end.min(length) - first;
            match fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, first, bytes) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    (&file).seek(SeekFrom::Start(first))?;
                    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), &mut &file)?;
                }
                punched => punched?,
            }
        }
        if length < *last { file.set_len(*last) } else { Ok(()) }
    }

    /// The drafts that are there.
    pub(in crate::manager) fn drafts(&self) -> Result<Vec<(Inode, u64)>> {
        let mut drafts = Vec::new();
        if let Some(objects) = &self.objects {
            // No object is written before its file is closed; what else is of no use there is looked for as drafts are.
            wait(objects.end_left())?;
            return Ok(drafts);
        }
        let of_mount = format!("{DRAFT}.{}.", self.mount);
        for entry in std::fs::read_dir(self.directory.join(ASIDE))? {
            let name = entry?.file_name();
            let numbers = name.to_str().and_then(|name| name.strip_prefix(&of_mount)?.split_once('.'));
            if let Some((Ok(inode), Ok(draft))) = numbers.map(|(inode, draft)| (inode.parse(), draft.parse())) {
                drafts.push((Inode(inode), draft));
            }
        }
        Ok(drafts)
    }

    /// Removes a draft on which nothing rests.
    pub(in crate::manager) fn remove_draft(&self, inode: Inode, draft: u64) -> Result<()> {
        remove(&self.draft(inode, draft))
    }
}

/// Where data or a hole was found, before `end`; a file system that does not say where has it at `else_at`.
fn found_at(found: rustix::io::Result<u64>, else_at: u64, end: u64) -> u64 {
    match found {
        Ok(found) => found.min(end),
        // There is none behind.
        Err(Errno::NXIO) => end,
        Err(_) => else_at,
    }
}

fn too_short(end: u64) -> Error {
    Error::new(ErrorKind::UnexpectedEof, format!("what was published ends before byte {end}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use surgetank_pool_core::id::Revision;

    use super::*;

    #[test]
    fn a_copy_has_the_holes_of_what_is_copied() {
        const MIB: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(directory.path().to_owned(), MountId(1), Revision(1));
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        let file = File::create_new(&from).unwrap();
        file.write_all_at(b"in the middle", 40 * MIB + 5).unwrap();
        file.set_len(80 * MIB + 3).unwrap();
        std::fs::write(&to, vec![7; 3 << 20]).unwrap();
        let from = File::open(&from).unwrap();
        target.copy(&from, &to, &[(2 * MIB, 41 * MIB), (79 * MIB, 80 * MIB + 3)]).unwrap();
        let found = std::fs::read(&to).unwrap();
        let mut expected = vec![0; (80 << 20) + 3];
        expected[..2 << 20].fill(7);
        let at = (40 << 20) + 5;
        expected[at..at + 13].copy_from_slice(b"in the middle");
        assert!(found == expected);
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 <= 4 * MIB);
        let error = target.copy(&from, &to, &[(0, 90 * MIB)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
