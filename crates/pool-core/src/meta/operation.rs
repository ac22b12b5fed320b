//! What clients and drains ask for, as transactions.
//!
//! [`attempt`] is a function of the operation and of what was read. It says what else it must read, or which transaction to commit
//! and what to answer once that took place. The transaction compares everything that the answer rests on, also of a refusal: if it
//! is refused, somebody was faster, and the operation is attempted again with fresh reads. So each operation takes place, or is
//! refused, at one revision, as if it had been alone.
//!
//! Entries of a directory are compared one by one, and the directory itself only by its creation, so that many files are created in
//! one directory at the same time. What ends a directory compares that nothing is in it.

mod content;
mod locking;
mod moves;
mod names;
mod recorder;
mod reserving;

use std::collections::BTreeSet;

use crate::id::{Inode, MountId, SessionId, Version};
use crate::locks::{Lock, Range, Ranges};
use crate::meta::key::{Key, Name, Prefix};
use crate::meta::store::{Lease, Transaction};
use crate::meta::value::{Attributes, Base, Group, Node, Placed, Special, Times};
use crate::placement::Place;
use crate::quota::Resource;

pub use self::recorder::Reads;
use self::recorder::Recorder;

/// A directory and a name in it.
pub type At = (Inode, Name);

/// What is asked for. Numbers that must be new (`fresh`) come from the driver: each is used once in the life of a pool, for an inode
/// or for an entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Make an empty file and open it for writing.
    Create {
        /// Where.
        at: At,
        /// Its number.
        fresh: u64,
        /// Who writes it, and its lease.
        writer: (SessionId, Lease),
        /// Mode, user, group.
        owner: (u32, u32, u32),
    },
    /// Open a file for writing.
    OpenForWriting {
        /// Which.
        inode: Inode,
        /// Who writes it, and its lease.
        writer: (SessionId, Lease),
        /// What it has is not to be in what this session commits first.
        rewrites: bool,
    },
    /// Make an empty directory.
    MakeDirectory {
        /// Where.
        at: At,
        /// Its number.
        fresh: u64,
        /// The number of its entry in the journal.
        journal: u64,
        /// Mode, user, group.
        owner: (u32, u32, u32),
    },
    /// Make a symbolic link.
    MakeLink {
        /// Where.
        at: At,
        /// Its number.
        fresh: u64,
        /// The number of its entry in the journal.
        journal: u64,
        /// Mode, user, group.
        owner: (u32, u32, u32),
        /// Where it points.
        to: Vec<u8>,
    },
    /// Make a FIFO, a socket or a device.
    MakeSpecial {
        /// Where.
        at: At,
        /// Its number.
        fresh: u64,
        /// The number of its entry in the journal.
        journal: u64,
        /// Mode, user, group.
        owner: (u32, u32, u32),
        /// What.
        special: Special,
    },
    /// Set permissions, owner or times.
    SetAttributes {
        /// Of which file, directory or symbolic link.
        inode: Inode,
        /// Which.
        attributes: Attributes,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// What was written counts.
    Commit {
        /// Which file.
        inode: Inode,
        /// Who wrote it.
        session: SessionId,
        /// The version that it was written on top of, and what its writer knows of chunks that have left the pool
        /// ([`Base::changes`](crate::meta::value::Base::changes)).
        on: (Version, u64),
        /// The file's bytes.
        size: u64,
        /// Groups that are new or have changed.
        groups: Vec<(u32, Group)>,
        /// The session's last handle for writing is closed with it: the number of an entry in the journal, as of
        /// [`Operation::Close`].
        close: Option<u64>,
    },
    /// A session has room in the quota of a file's user, so that it may make the file so long.
    Reserve {
        /// Which file.
        inode: Inode,
        /// Who writes it, and its lease.
        writer: (SessionId, Lease),
        /// Whose it was when the room was given.
        user: u32,
        /// Bytes that it counted then: what it counts beyond that was given.
        counts: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A session's last handle for writing is closed; with the last writer's, the file is published.
    Close {
        /// Which file.
        inode: Inode,
        /// Who.
        session: SessionId,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// A session that had a file open for writing is over: its key is gone.
    WriterLost {
        /// Which file.
        inode: Inode,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// Move a file or directory.
    Rename {
        /// Where from.
        from: At,
        /// Where to.
        to: At,
        /// In the place of what is there; else that is in the way.
        replace: bool,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// Give a file or symbolic link another name.
    Link {
        /// Which.
        inode: Inode,
        /// Where.
        at: At,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// Unlink a file or symbolic link: the last name takes it along.
    Unlink {
        /// Where.
        at: At,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// Remove a directory in which nothing is.
    RemoveDirectory {
        /// Where.
        at: At,
        /// The number of an entry in the journal.
        journal: u64,
    },
    /// A session has these locks of a file from now on, instead of those that it had.
    Lock {
        /// Which file.
        inode: Inode,
        /// Who.
        session: SessionId,
        /// Greater than that of every earlier request of the session for the file: a late copy of one changes nothing.
        number: u64,
        /// All that it is to have.
        ranges: Ranges,
        /// How.
        how: Locking,
    },
    /// The target has seen an entry of the journal, or will never see it.
    Published {
        /// The publisher, as [`Key::Owner`] has it.
        publisher: u64,
        /// Of which mount.
        mount: MountId,
        /// The entry's number.
        journal: u64,
        /// How it ended.
        ended: PublicationEnd,
        /// What the target has by it at names of directories, by their numbers there; `None`: nothing of the pool's.
        placed: Vec<((u64, Name), Option<Placed>)>,
        /// The file that a conflict is about, if the entry does not name it.
        about: Option<Inode>,
    },
    /// What somebody else has put at the target becomes the pool's, as it was seen there: whatever is found there later that is
    /// different is somebody else's again.
    Import {
        /// Where.
        at: At,
        /// Its number.
        fresh: u64,
        /// What it is: the target has all of it.
        node: Node,
        /// The number that the target has for the directory, and what it has there; `None`: a directory, which is nobody's.
        placed: Option<(u64, Placed)>,
    },
    /// Nobody has an unlinked file open any more: it ends.
    Forget {
        /// Which.
        inode: Inode,
    },
    /// A place of a group is replaced by another, which has the same chunks and table: its copies were made again, or it is the same
    /// benefactor in a new life, with all of it on SSD.
    Relocate {
        /// Who watches the benefactors, as [`Key::Owner`] has it.
        warden: u64,
        /// Of which file.
        inode: Inode,
        /// Which group, and of which version.
        group: (u32, Version),
        /// What does not count any more.
        from: Place,
        /// What does.
        to: Place,
    },
    /// [`Operation::Relocate`] of some columns alone: no single benefactor is apart from the other places of all of them.
    RelocateColumns {
        /// Who watches the benefactors, as [`Key::Owner`] has it.
        warden: u64,
        /// Of which file.
        inode: Inode,
        /// Which group, and of which version.
        group: (u32, Version),
        /// Which columns, by their places in the layout.
        columns: Vec<u32>,
        /// What does not count any more.
        from: Place,
        /// What does.
        to: Place,
    },
    /// A file whose newest version is at the target leaves the pool: its name and attributes stay, its bytes are at the target. What is
    /// written into it afterwards rests on these.
    Evict {
        /// Which.
        inode: Inode,
        /// A number that no other eviction or early drain of the file has had.
        changes: u64,
    },
    /// A session has brought back what the target alone had of a file, and has committed that: the target has the newest version already. The
    /// session writes the file no more.
    Prefetched {
        /// Which file.
        inode: Inode,
        /// Who.
        session: SessionId,
        /// The version that the target has.
        of: Version,
        /// The file's times, which are as they were.
        times: Times,
    },
    /// Chunks of a file that somebody writes lie in its draft at the target, flushed: they leave the pool.
    DrainedEarly {
        /// The publisher, as [`Key::Owner`] has it.
        publisher: u64,
        /// Of which mount.
        mount: MountId,
        /// Which file.
        inode: Inode,
        /// What it rested on when its draft was made or filled further.
        former: Option<Base>,
        /// Which draft, and a number that no other eviction or early drain of the file has had.
        draft: (u64, u64),
        /// Groups, each in the version that was drained.
        groups: Vec<(u32, Version, Taken)>,
    },
}

/// What leaves the pool of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The chunks.
    pub chunks: BTreeSet<u32>,
    /// CRC32C of those that stay, one after the other.
    pub digest: u32,
}

/// How a session locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// It asks what is in the way, and gets nothing.
    Look,
    /// It gets the ranges.
    Ranges,
    /// It gets all locks of the file if nobody else has or wants any, else the ranges.
    Whole,
    /// It returns what it has, and no copy of an earlier request is under way.
    Leave,
}

/// What a session has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// All locks of the file.
    Whole,
    /// The ranges.
    Ranges,
    /// Nothing: this is in the way.
    Locked(Range, Lock),
    /// Nothing yet: another session has all locks of the file, and returns what its programs do not have.
    Recalled,
}

/// How an entry of the journal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicationEnd {
    /// The target has it.
    Done,
    /// Chunks of it are lost.
    Lost,
    /// Somebody else changed what the target has at its path.
    Conflict,
    /// It was removed before the target had it, which never sees it.
    Removed,
}

/// What an operation that took place answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// Done: this is it.
    Inode(Inode),
    /// Done: the file has this version now.
    Version(Version),
    /// Looked at: this is what became of it.
    Granted(Granted),
    /// Done: the file has this version, and is to be committed empty on top of that before anything else is: this session rewrites it
    /// while others have it open for writing, or another one does that has committed nothing yet.
    CutFirst(Version),
}

/// Why an operation did not take place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// ENOENT.
    #[error("there is no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("there is such an entry already")]
    Exists,
    /// ENOTDIR.
    #[error("that is no directory")]
    NotADirectory,
    /// EISDIR.
    #[error("that is a directory")]
    IsADirectory,
    /// ENOTEMPTY.
    #[error("the directory has entries")]
    NotEmpty,
    /// EINVAL.
    #[error("a directory cannot move into itself")]
    IntoItself,
    /// EIO, and the handle stays failed.
    #[error("the session has ended, or does not have the file open for writing")]
    NotTheWriter,
    /// A file that has a name does not end.
    #[error("the file still has a name")]
    Named,
    /// Somebody has the unlinked file open, or the target has not seen all of it.
    #[error("a session has the file open, or the target has not seen all of it")]
    InUse,
    /// Somebody else committed meanwhile: what was written is to be committed on top of that.
    #[error("the file has version {} by now", .0)]
    Version(Version),
    /// These are not in the life any more in which they acknowledged: their chunks are to be written again, elsewhere.
    #[error("{} benefactors have left the life in which they acknowledged", .0.len())]
    Benefactors(Vec<Place>),
    /// Another process publishes this mount now.
    #[error("another process publishes this mount")]
    NotThePublisher,
    /// Another process watches the benefactors now.
    #[error("another process watches the benefactors")]
    NotTheWarden,
    /// EPERM.
    #[error("the token does not allow it")]
    NotAllowed,
    /// EMLINK.
    #[error("a file has a thousand names at most beside its first")]
    TooManyLinks,
    /// What is to leave the pool is not at the target.
    #[error("the target does not have the file's newest version")]
    NotDrained,
    /// EDQUOT.
    #[error("the user whose file it is has as many {0} as the quota allows")]
    OverQuota(Resource),
    /// Chunks of the file have left the pool of which its writer did not know.
    #[error("chunks of the file have left the pool meanwhile")]
    Moved,
}

impl Operation {
    /// Where it makes a node, and which.
    #[must_use]
    pub const fn makes(&self) -> Option<(&At, Inode)> {
        match self {
            Self::Create { at, fresh, .. }
            | Self::MakeDirectory { at, fresh, .. }
            | Self::MakeLink { at, fresh, .. }
            | Self::MakeSpecial { at, fresh, .. } => Some((at, Inode(*fresh))),
            _ => None,
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// More is to be read: keys, and all keys of these prefixes.
    Read(Vec<Key>, Vec<Prefix>),
    /// The answer, if this transaction takes place. One without writes and with a single compare needs none: the read was one step.
    Commit(Transaction, Result<Reply, Refusal>),
}

/// Attempts an operation; see the module.
#[must_use]
pub fn attempt(operation: &Operation, reads: &Reads) -> Attempt {
    let mut recorder = Recorder::new(reads);
    let reply = match operation {
        Operation::Create { at, fresh, writer, owner } => recorder.create(at, *fresh, *writer, *owner),
        Operation::OpenForWriting { inode, writer, rewrites } => recorder.open_for_writing(*inode, *writer, *rewrites),
        Operation::MakeDirectory { at, fresh, journal, owner } => recorder.make_directory(at, *fresh, *journal, *owner),
        Operation::Commit { inode, session, on, size, groups, close } => {
            recorder.commit((*inode, *session), *on, *size, groups, *close)
        }
        Operation::Reserve { inode, writer, user, counts, size } => {
            recorder.reserve(*inode, *writer, (*user, *counts), *size)
        }
        Operation::Close { inode, session, journal } => recorder.close(*inode, *session, *journal),
        Operation::WriterLost { inode, journal } => recorder.writer_lost(*inode, *journal),
        Operation::Rename { from, to, replace, journal } => recorder.rename(from, to, *replace, *journal),
        Operation::MakeLink { at, fresh, journal, owner, to } => recorder.make_link(at, *fresh, *journal, *owner, to),
        Operation::MakeSpecial { at, fresh, journal, owner, special } => {
            recorder.make_special(at, *fresh, *journal, *owner, *special)
        }
        Operation::SetAttributes { inode, attributes, journal } => {
            recorder.set_attributes(*inode, attributes, *journal)
        }
        Operation::Link { inode, at, journal } => recorder.link(*inode, at, *journal),
        Operation::Unlink { at, journal } => recorder.unlink(at, *journal),
        Operation::RemoveDirectory { at, journal } => recorder.remove_directory(at, *journal),
        Operation::Lock { inode, session, number, ranges, how } => {
            recorder.lock(*inode, (*session, *number), ranges, *how)
        }
        Operation::Published { publisher, mount, journal, ended, placed, about } => {
            recorder.published((*publisher, *mount), *journal, *ended, placed, *about)
        }
        Operation::Import { at, fresh, node, placed } => recorder.import(at, *fresh, node, *placed),
        Operation::Forget { inode } => recorder.forget(*inode),
        Operation::Relocate { warden, inode, group, from, to } => {
            recorder.relocate(*warden, *inode, *group, None, (*from, *to))
        }
        Operation::RelocateColumns { warden, inode, group, columns, from, to } => {
            recorder.relocate(*warden, *inode, *group, Some(columns), (*from, *to))
        }
        Operation::Evict { inode, changes } => recorder.evict(*inode, *changes),
        Operation::Prefetched { inode, session, of, times } => recorder.prefetched((*inode, *session), *of, *times),
        Operation::DrainedEarly { publisher, mount, inode, former, draft, groups } => {
            recorder.drained_early((*publisher, *mount), *inode, *former, *draft, groups)
        }
    };
    recorder.end(reply)
}
