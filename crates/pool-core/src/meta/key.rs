//! Keys of the store, and their order.

use std::fmt;
use std::sync::Arc;

use crate::id::{BenefactorId, Inode, MountId, SessionId, Version};

/// The name of an entry in a directory: no `/`, no zero byte, neither `.` nor `..`, 1 to 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// Why a name is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Longer than 255 bytes.
    #[error("a name has at most 255 bytes")]
    TooLong,
    /// Empty, a dot or two, or with a slash or a zero byte in it.
    #[error("a name is not empty, neither `.` nor `..`, and has neither `/` nor a zero byte")]
    Reserved,
}

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn new(bytes: &[u8]) -> Result<Self, BadName> {
        match bytes {
            [] | b"." | b".." => Err(BadName::Reserved),
            _ if bytes.len() > 255 => Err(BadName::TooLong),
            _ if bytes.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(BadName::Reserved),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(formatter)
    }
}

/// What only one process does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Publishes what a mount's journal has.
    Publisher(MountId),
    /// Watches the benefactors, and has lost copies made again.
    Warden,
}

/// A key of the store. The order is that of the variants, and within a variant that of its fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A benefactor's life: it is there as long as its lease.
    Benefactor(BenefactorId),
    /// What a benefactor lends, and where it is reached: beside its life, with the same lease.
    Lends(BenefactorId),
    /// A mount's life: it is there as long as its lease.
    Session(SessionId),
    /// A mount: its name, its target and its policy.
    Mount(MountId),
    /// A file, directory or symbolic link.
    Node(Inode),
    /// An entry of a directory.
    Entry(Inode, Name),
    /// A group of a file's chunks, as a version has it: the newest, and those that the target still needs.
    Group(Inode, u32, Version),
    /// A file that a session has open for writing; it is there as long as the session's lease.
    Writer(Inode, SessionId),
    /// Who has a file locked, or waits for that.
    Locks(Inode),
    /// What the target has not seen yet.
    Journal(MountId, u64),
    /// What the pool put last at a name of the target: in which directory, by the number that the target has for that.
    Placed(MountId, u64, Name),
    /// A name of a directory under which the target still has what an entry of the journal removes or moves: that is not seen.
    Hidden(Inode, Name),
    /// A directory that the target does not have yet: what is at its path there is not in it.
    Unseen(Inode),
    /// When something was last made, moved or removed in a directory: apart from its node, so that those who do that are not in each
    /// other's way. Without it the node's times count.
    Changed(Inode),
    /// Which of these an entry of the journal ends.
    Hides(MountId, u64),
    /// An entry of the journal that moves a directory: until it is replayed, the target has the directory under its former path.
    Moved(MountId, u64),
    /// Who has a role; it is there as long as its lease.
    Owner(Role),
    /// The number that tells the pool from any other.
    Pool,
    /// A token that was taken back, by its number.
    Revoked(u64),
    /// Which key managers have, and tokens are made of.
    Fingerprint,
    /// How much a user may have, by the number of the user; `None`: everybody of whom nothing is said.
    Quota(Option<u32>),
    /// What a benefactor lent when it joined last, for as long as it is expected to return.
    Record(BenefactorId),
    /// An operator takes a benefactor out of the pool: see [`crate::leaving`].
    Leaving(BenefactorId),
    /// That a transaction took place: of a manager's process, and its number there. It ends with the manager's lease.
    Receipt(u64, u64),
}

/// Keys that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// What all benefactors lend.
    Lends,
    /// What all benefactors lent that are expected.
    Records,
    /// The lives of all benefactors that commits may name.
    Lives,
    /// All benefactors that operators take out.
    Leaving,
    /// All sessions.
    Sessions,
    /// All tokens that were taken back.
    Revoked,
    /// What is said of users.
    Quotas,
    /// All mounts.
    Mounts,
    /// All files, directories and symbolic links.
    Nodes,
    /// Whoever writes any file.
    AllWriters,
    /// All entries of a directory.
    Entries(Inode),
    /// All groups of all files.
    AllGroups,
    /// All groups of a file.
    Groups(Inode),
    /// Whoever writes a file.
    Writers(Inode),
    /// The locks of all files.
    AllLocks,
    /// The journal of a mount.
    Journal(MountId),
    /// Names of a directory that are hidden.
    Hidden(Inode),
    /// Directories of a mount that the target has not moved yet.
    Moved(MountId),
}

impl Prefix {
    /// The first key that may have it.
    pub(crate) fn first(self) -> Key {
        match self {
            Self::Lends => Key::Lends(BenefactorId(0)),
            Self::Records => Key::Record(BenefactorId(0)),
            Self::Lives => Key::Benefactor(BenefactorId(0)),
            Self::Leaving => Key::Leaving(BenefactorId(0)),
            Self::Sessions => Key::Session(SessionId(0)),
            Self::Revoked => Key::Revoked(0),
            Self::Quotas => Key::Quota(None),
            Self::Mounts => Key::Mount(MountId(0)),
            Self::Nodes => Key::Node(Inode(0)),
            Self::AllWriters => Key::Writer(Inode(0), SessionId(0)),
            Self::Entries(inode) => Key::Entry(inode, Name(Arc::default())),
            Self::AllGroups => Key::Group(Inode(0), 0, Version::NONE),
            Self::Groups(inode) => Key::Group(inode, 0, Version::NONE),
            Self::Writers(inode) => Key::Writer(inode, SessionId(0)),
            Self::AllLocks => Key::Locks(Inode(0)),
            Self::Journal(mount) => Key::Journal(mount, 0),
            Self::Hidden(inode) => Key::Hidden(inode, Name(Arc::default())),
            Self::Moved(mount) => Key::Moved(mount, 0),
        }
    }

    /// Whether a key has it.
    #[must_use]
    pub fn has(self, key: &Key) -> bool {
        match (self, key) {
            (Self::Entries(of), Key::Entry(inode, _))
            | (Self::Hidden(of), Key::Hidden(inode, _))
            | (Self::Groups(of), Key::Group(inode, ..))
            | (Self::Writers(of), Key::Writer(inode, _)) => of == *inode,
            (Self::Journal(of), Key::Journal(mount, _)) | (Self::Moved(of), Key::Moved(mount, _)) => of == *mount,
            (Self::Lends, Key::Lends(_))
            | (Self::Records, Key::Record(_))
            | (Self::Lives, Key::Benefactor(_))
            | (Self::Leaving, Key::Leaving(_))
            | (Self::Sessions, Key::Session(_))
            | (Self::Revoked, Key::Revoked(_))
            | (Self::Quotas, Key::Quota(_))
            | (Self::Mounts, Key::Mount(_))
            | (Self::Nodes, Key::Node(_))
            | (Self::AllGroups, Key::Group(..))
            | (Self::AllWriters, Key::Writer(..))
            | (Self::AllLocks, Key::Locks(_)) => true,
            _ => false,
        }
    }
}
