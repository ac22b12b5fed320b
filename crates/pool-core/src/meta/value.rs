//! What the store's keys stand for.

use surgetank_model::Bytes;

use crate::id::{Domain, Inode, MountId, SessionId, Version};
use crate::locks::Ranges;
use crate::meta::key::Name;
use crate::meta::operation::Refusal;
use crate::parity::Parity;
use crate::placement::{CHUNK, Layout, Media, Place};
use crate::planted::{Bug, planted};
use crate::quota::Quota;
use crate::runs::Runs;

/// When a commit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// So many benefactors in different domains hold each chunk.
    Copies {
        /// How many.
        copies: u8,
        /// Where.
        media: Media,
    },
    /// The target has it, verified.
    Target,
    /// Every member of each row of chunks is at a benefactor, all in different domains.
    Parity(Parity),
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File(FileState),
    /// A directory.
    Directory,
    /// A symbolic link, and where it points.
    Link(Vec<u8>),
    /// A FIFO, a socket or a device.
    Special(Special),
}

/// What is neither a file nor a directory nor a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// What it is.
    pub what: SpecialKind,
    /// The number of a device, as the kernel has it; else zero.
    pub device: u64,
}

/// What a special node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device of characters.
    Characters,
    /// A device of blocks.
    Blocks,
}

impl Special {
    /// Whether making it takes privileges.
    #[must_use]
    pub const fn is_device(self) -> bool {
        matches!(self.what, SpecialKind::Characters | SpecialKind::Blocks)
    }
}

/// Where a file's newest commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing was committed yet.
    Created,
    /// The pool has it, as safe as its durability says; the target does not.
    Replicated,
    /// The target has it, and so has the pool.
    Drained,
    /// The target has it; the pool needed the room.
    Evicted,
    /// Some of its chunks are lost.
    Failed,
    /// Somebody else changed it at the target, where it stays as it is.
    Conflict,
}

/// Times of a node, in nanoseconds since 1970: those of the manager that carried out the operation, or what somebody has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// As somebody set it last: reading does not change it.
    pub accessed: u64,
    /// The newest commit of a file; the creation of anything else, of a directory also the newest change of its entries.
    pub modified: u64,
    /// The newest change of what the store has of the node.
    pub changed: u64,
}

impl Times {
    /// Something that begins now.
    #[must_use]
    pub const fn new(now: u64) -> Self {
        Self { accessed: now, modified: now, changed: now }
    }
}

/// What a program sets of a node: `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// User.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// When it was read last, in nanoseconds since 1970.
    pub accessed: Option<u64>,
    /// When it was changed last, in nanoseconds since 1970.
    pub modified: Option<u64>,
}

/// A further name of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardLink {
    /// Its directory, and its name there.
    pub at: (Inode, Name),
    /// The same as [`Node::covers`] of the first name.
    pub covers: bool,
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// The mount that it belongs to.
    pub mount: MountId,
    /// Its directory, and its name there: `None` for a root, and for what was unlinked.
    pub at: Option<(Inode, Name)>,
    /// Its other names, which are none without the first: hard links.
    pub links: Vec<HardLink>,
    /// Permissions and owner: mode, user, group.
    pub owner: (u32, u32, u32),
    /// When it was changed.
    pub times: Times,
    /// Bytes of a file, as committed.
    pub size: u64,
    /// The newest commit.
    pub version: Version,
    /// The newest version that was written to the journal; with [`Version::NONE`] the target never hears of the file.
    pub journalled: Version,
    /// The newest version that the target has, or will never have.
    pub published: Version,
    /// The target has something else at the path of its first name, which the file will take the place of.
    pub covers: bool,
    /// A writer ended without a word, with something that it had not committed.
    pub torn: bool,
    /// What the target has of the newest commit, if that is not all of it: see [`Node::rests_on`].
    pub base: Option<Base>,
}

/// A file at the target that has what the pool does not have of a file: chunks that a [`Group`] names as absent, and groups that begin
/// before its end and that the store does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The file beside the names into which an open file was drained; `None`: what was published last.
    pub draft: Option<u64>,
    /// Bytes of it that count.
    pub size: u64,
    /// It has all that was committed until this version, whatever the pool has of that.
    pub version: Version,
    /// Another number each time that chunks have left the pool: what is committed rests on what the writer knows of that. 0: none have.
    pub changes: u64,
}

impl Node {
    /// A new one, of which nothing was committed and the target has heard nothing.
    #[must_use]
    pub fn new(kind: Kind, mount: MountId, at: Option<(Inode, Name)>, owner: (u32, u32, u32)) -> Self {
        Self {
            kind,
            mount,
            at,
            links: Vec::new(),
            owner,
            times: Times::default(),
            size: 0,
            version: Version::NONE,
            journalled: Version::NONE,
            published: Version::NONE,
            covers: false,
            torn: false,
            base: None,
        }
    }
}

impl Node {
    /// Where what the pool does not have of the newest commit lies. Of a file that the target has, that is all of it.
    #[must_use]
    pub fn rests_on(&self) -> Option<Base> {
        match self.kind {
            Kind::File(FileState::Drained | FileState::Evicted) => {
                Some(Base { draft: None, size: self.size, version: self.version, changes: self.changes() })
            }
            _ => self.base,
        }
    }

    /// [`Base::changes`].
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.base.map_or(0, |base| base.changes)
    }

    /// All its names.
    pub fn names(&self) -> impl Iterator<Item = &(Inode, Name)> {
        self.at.iter().chain(self.links.iter().map(|link| &link.at))
    }

    /// A directory with the time at which its entries changed last, if that is kept apart from it.
    #[must_use]
    pub fn with_changed_entries(mut self, changed: Option<&Value>) -> Self {
        if let (Kind::Directory, Some(Value::Moment(changed))) = (&self.kind, changed) {
            self.times.modified = *changed;
            self.times.changed = self.times.changed.max(*changed);
        }
        self
    }

    /// How many names it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.names().count()).unwrap_or(u32::MAX)
    }

    /// Whether the target has something else at this name.
    pub(super) fn covers_at(&self, at: &(Inode, Name)) -> bool {
        match &self.at {
            Some(first) if first == at => self.covers,
            _ => self.links.iter().any(|link| link.at == *at && link.covers),
        }
    }

    /// It without a name.
    pub(super) fn without(mut self, at: &(Inode, Name)) -> Self {
        if planted(Bug::UnlinkDropsAllNames) {
            return Self { at: None, links: Vec::new(), ..self };
        }
        if self.at.as_ref() != Some(at) {
            self.links.retain(|link| link.at != *at);
            return self;
        }
        let mut links = std::mem::take(&mut self.links).into_iter();
        match links.next() {
            Some(HardLink { at, covers }) => Self { at: Some(at), covers, links: links.collect(), ..self },
            None => Self { at: None, ..self },
        }
    }

    /// It with another name instead of one that it has.
    pub(super) fn moved(mut self, from: &(Inode, Name), to: &(Inode, Name), covers: bool) -> Self {
        if self.at.as_ref() == Some(from) {
            return Self { at: Some(to.clone()), covers, ..self };
        }
        for link in self.links.iter_mut().filter(|link| link.at == *from) {
            *link = HardLink { at: to.clone(), covers };
        }
        self
    }
}

/// A group of a file's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where they are.
    pub layout: Layout,
    /// Bytes of the file that lie in it.
    pub bytes: u64,
    /// CRC32C of those that the pool has, one chunk after the other.
    pub digest: u32,
    /// Who committed it: benefactors know its table by that and the version.
    pub by: SessionId,
    /// Chunks that lie in the [`Base`] alone. Without columns in the layout all but the holes do.
    pub absent: Runs,
    /// Chunks that are zeros and lie nowhere, whatever the base has there. Each is a whole chunk of the file.
    pub holes: Runs,
}

impl Group {
    /// Chunks that it has, wherever they lie.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.bytes.div_ceil(CHUNK.get())).unwrap_or(u32::MAX)
    }

    /// Whether a chunk of it lies in the base alone.
    #[must_use]
    pub fn is_absent(&self, chunk: u32) -> bool {
        !self.is_hole(chunk) && (self.layout.columns.is_empty() || self.absent.contains(chunk))
    }

    /// Whether a chunk of it is zeros and lies nowhere.
    #[must_use]
    pub fn is_hole(&self, chunk: u32) -> bool {
        self.holes.contains(chunk)
    }

    /// Chunks that lie in the base alone.
    #[must_use]
    pub fn in_base(&self) -> Runs {
        if !self.layout.columns.is_empty() {
            return self.absent.clone();
        }
        let mut all = Runs::from(0..self.chunks());
        all.cut_all(&self.holes);
        all
    }

    /// Bytes of it that the pool has.
    #[must_use]
    pub fn staged(&self) -> u64 {
        let elsewhere = self.in_base().len() + self.holes.len();
        self.bytes.min(u64::from(self.chunks()).saturating_sub(elsewhere) * CHUNK.get())
    }

    /// Chunks that the pool has.
    pub fn present(&self) -> impl Iterator<Item = u32> {
        (0..self.chunks()).filter(|chunk| !self.is_absent(*chunk) && !self.is_hole(*chunk))
    }
}

/// A path below a mount's root, its directories first. The root's own is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<Name>);

/// What the target has to see, in the order of the revisions at which these were written. Paths are those of that revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A directory was made.
    MakeDirectory(Path),
    /// A version of a file is complete. It takes the place of what the target has there.
    Publish {
        /// Which.
        inode: Inode,
        /// Its version.
        version: Version,
        /// Where.
        path: Path,
    },
    /// What the target has at one path moves to another, in the place of what was there.
    Rename {
        /// Where from.
        from: Path,
        /// Where to.
        to: Path,
    },
    /// What the target has there was unlinked, or is a directory that was removed.
    Remove(Path),
    /// A symbolic link was made.
    MakeLink {
        /// Where.
        path: Path,
        /// Where it points.
        to: Vec<u8>,
    },
    /// A FIFO, a socket or a device was made.
    MakeSpecial {
        /// Where.
        path: Path,
        /// What.
        special: Special,
        /// Mode, user, group.
        owner: (u32, u32, u32),
    },
    /// What the target has at one path has another as well, which nothing is at.
    Link {
        /// Where it is.
        from: Path,
        /// Where it is to be as well.
        to: Path,
    },
    /// A publication or new attributes of what has further names.
    Linked {
        /// The change, of the first name.
        change: Box<Self>,
        /// The others.
        also: Vec<Path>,
    },
    /// What the target has there gets these attributes.
    Attributes {
        /// Where.
        path: Path,
        /// Mode, user, group.
        owner: (u32, u32, u32),
        /// Times.
        times: Times,
    },
}

impl Change {
    /// The version of a file that is published by it.
    #[must_use]
    pub fn publishes(&self) -> Option<(Inode, Version)> {
        match self {
            Self::Publish { inode, version, .. } => Some((*inode, *version)),
            Self::Linked { change, .. } => change.publishes(),
            _ => None,
        }
    }

    /// Whether it is about what is at a path, or about a directory above that.
    #[must_use]
    pub fn concerns(&self, at: &Path) -> bool {
        let is_above = |path: &Path| at.0.starts_with(&path.0);
        match self {
            Self::MakeDirectory(path) | Self::Remove(path) => is_above(path),
            Self::Publish { path, .. }
            | Self::MakeLink { path, .. }
            | Self::MakeSpecial { path, .. }
            | Self::Attributes { path, .. } => is_above(path),
            Self::Rename { from, to } | Self::Link { from, to } => is_above(from) || is_above(to),
            Self::Linked { change, also } => change.concerns(at) || also.iter().any(is_above),
        }
    }
}

/// What the pool put at a name of the target, as the target shows it. Anything else at that name is somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Which file of the pool it is; that of a symbolic link is nobody's.
    pub node: Inode,
    /// Bytes.
    pub size: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub modified: u64,
    /// Its number at the target.
    pub number: u64,
}

/// What a benefactor lends, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lends {
    /// Its life.
    pub place: Place,
    /// Host and port.
    pub address: String,
    /// What it fails with.
    pub domain: Domain,
    /// Memory; zero: none (class `s`).
    pub memory: Bytes,
    /// SSD; zero: none (class `m`).
    pub ssd: Bytes,
}

/// A mount: a tree of names with a target and a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its name in the pool.
    pub name: String,
    /// The directory that it is drained to, as the benefactors and managers see it.
    pub target: String,
    /// When a commit counts.
    pub durability: Durability,
    /// Its root directory.
    pub root: Inode,
}

/// What a session has of a file's locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// All of them, whatever its programs lock: nobody else has or gets any before it returns them.
    Whole,
    /// These; none: it waits for some, or had some.
    Ranges(Ranges),
}

/// A session that has locks of a file, or waits for some. It counts as long as the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locker {
    /// Which.
    pub session: SessionId,
    /// The newest request of it that counts.
    pub number: u64,
    /// What it has.
    pub held: Held,
}

/// A value of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Key::Benefactor`](super::Key::Benefactor): the life.
    Benefactor(Place),
    /// Of [`Key::Lends`](super::Key::Lends), [`Key::Record`](super::Key::Record).
    Lends(Lends),
    /// Of [`Key::Mount`](super::Key::Mount).
    Mount(Mount),
    /// Of [`Key::Session`](super::Key::Session), [`Key::Writer`](super::Key::Writer).
    Session(SessionId),
    /// Of [`Key::Writer`](super::Key::Writer): it has opened the file at this version, which is not to be in what it commits. It is as any
    /// other once there is a later version.
    Rewriter(SessionId, Version),
    /// Of [`Key::Writer`](super::Key::Writer) as well: it has room in the quota of the file's user for a file of so many bytes; with what
    /// [`Value::Rewriter`] has, if it is one.
    Reserved(SessionId, Option<Version>, u64),
    /// Of [`Key::Node`](super::Key::Node).
    Node(Node),
    /// Of [`Key::Entry`](super::Key::Entry).
    Entry(Inode),
    /// Of [`Key::Group`](super::Key::Group).
    Group(Group),
    /// Of [`Key::Journal`](super::Key::Journal), [`Key::Moved`](super::Key::Moved).
    Journal(Change),
    /// Of [`Key::Owner`](super::Key::Owner): who, in which life.
    Owner(u64),
    /// Of [`Key::Receipt`](super::Key::Receipt): it took place.
    Receipt,
    /// Of [`Key::Receipt`](super::Key::Receipt) as well: it was sent before and refused, and no copy of it takes place.
    Refused(Refusal),
    /// Of [`Key::Pool`](super::Key::Pool).
    Pool(u64),
    /// Of [`Key::Revoked`](super::Key::Revoked).
    Revoked,
    /// Of [`Key::Leaving`](super::Key::Leaving).
    Leaving,
    /// Of [`Key::Fingerprint`](super::Key::Fingerprint): a digest, from which nobody learns the key.
    Fingerprint(Vec<u8>),
    /// Of [`Key::Quota`](super::Key::Quota).
    Quota(Quota),
    /// Of [`Key::Locks`](super::Key::Locks).
    Locks(Vec<Locker>),
    /// Of [`Key::Placed`](super::Key::Placed).
    Placed(Placed),
    /// Of [`Key::Hidden`](super::Key::Hidden), [`Key::Unseen`](super::Key::Unseen): the entry of the journal that ends it.
    Hidden(u64),
    /// Of [`Key::Changed`](super::Key::Changed): in nanoseconds since 1970.
    Moment(u64),
    /// Of [`Key::Hides`](super::Key::Hides): a name of a directory, or the directory itself.
    Hides(Inode, Option<Name>),
}
