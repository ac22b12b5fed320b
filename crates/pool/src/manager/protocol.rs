//! The service `Manager`.

use bytes::Bytes;
use surgetank_pool_core::benefactor::{scrub, segments};
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, MountId, SessionId, Version};
use surgetank_pool_core::meta::operation::{self, Operation, Refusal};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::{Lends, Mount, Path, Placed};
use surgetank_pool_core::meta::{Durability, Group, Name, Node};
use surgetank_pool_core::placement::{self, Layout, Media, Protection};
use surgetank_pool_core::quota::{Limit, Quota, Used};

use crate::rpc::Method;
use crate::security::token::{Ticket, Token};
use crate::wire::{wire_enum, wire_struct};

/// A session of a mount to begin.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The mount's name.
    pub name: String,
    /// Where it is drained to and when a commit counts: made if there is no such mount.
    pub make: Option<(String, Durability)>,
}

/// A session that has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Which.
    pub session: SessionId,
    /// Its lease.
    pub lease: Lease,
    /// How long that lasts unless it is renewed, in milliseconds.
    pub millis: u64,
    /// The mount's number.
    pub mount: MountId,
    /// The mount.
    pub of: Mount,
    /// What the session shows from now on.
    pub token: Token,
}

/// Where chunks are to go.
#[derive(Clone, Debug)]
pub struct Place {
    /// Bytes, once.
    pub bytes: u64,
    /// What protects them.
    pub protection: Protection,
    /// Where each copy must lie.
    pub media: Media,
    /// Any number.
    pub spread: u64,
    /// Not there: the client does not reach them in this life.
    pub without: Vec<placement::Place>,
    /// Nor where one of these would fail with it.
    pub apart: Vec<BenefactorId>,
}

/// Room in the quota of a file's user that a session reserves.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    /// Which file.
    pub inode: Inode,
    /// Who writes it, and its lease.
    pub writer: (SessionId, Lease),
    /// Bytes of the file that were taken, or cannot be refused: these count whatever the quota allows.
    pub taken: u64,
    /// Bytes that the file is to have now.
    pub size: u64,
    /// Bytes that are of use.
    pub most: u64,
}

/// What a user has, and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserQuota {
    /// The number of the user.
    pub user: u32,
    /// What counts.
    pub used: Used,
    /// What is said of this user.
    pub said: Option<Quota>,
    /// Bytes at most; `None`: there is no limit.
    pub bytes: Option<u64>,
    /// Files at most.
    pub files: Option<u64>,
}

/// What is said of users, and what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaReport {
    /// What is said of everybody of whom nothing else is said.
    pub everybody: Option<Quota>,
    /// Users who have something, or of whom something is said; whoever asks may see them.
    pub users: Vec<UserQuota>,
}

/// What makes a repetition harmless.
#[derive(Clone, Copy, Debug)]
pub struct Once {
    /// Whose request.
    pub session: SessionId,
    /// The session's lease.
    pub lease: Lease,
    /// The request's number in the session.
    pub number: u64,
    /// It was sent before, and the answer did not come.
    pub again: bool,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// An earlier copy of it took place.
    Before,
    /// It took place.
    Reply(operation::Reply),
    /// It did not.
    Refused(Refusal),
}

/// What a file contains.
#[derive(Clone, Debug)]
pub struct Content {
    /// The file.
    pub node: Node,
    /// Its groups as of the newest version, each with the version that wrote it.
    pub groups: Vec<(u32, Version, Group)>,
    /// Where their benefactors are reached.
    pub addresses: Vec<(BenefactorId, String)>,
    /// Lets the session read its chunks.
    pub ticket: Ticket,
}

/// How a benefactor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It lends.
    Joined,
    /// It takes nothing new; what it has is drained.
    Leaving,
    /// It is gone, and expected to return with what is on its SSD.
    Dead,
}

/// How the pool is.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Benefactors that are alive: what they lend, and the chunks that they have room for.
    pub benefactors: Vec<(Lends, u64)>,
    /// How each of these is, and the bytes of SSD that are used; then those that are gone, with what they lent.
    pub states: Vec<(Lends, State, u64)>,
    /// Files in the states created, replicated, drained, evicted, failed, conflict; then torn ones of which nothing is to be drained any
    /// more, and replicated ones of which copies are missing. Each is counted once.
    pub files: Vec<u64>,
    /// Entries that targets have not seen.
    pub journal: u64,
    /// Bytes a second that the asked manager's drains bring to targets, over the last seconds.
    pub drain_bytes_s: u64,
    /// What the benefactors that are alive know of damage.
    pub integrity: Vec<(BenefactorId, Integrity)>,
    /// The store's room, if it has a quota.
    pub store: Option<StoreStatus>,
    /// How the SSDs' logs of the benefactors that are alive are.
    pub logs: Vec<(BenefactorId, segments::Report)>,
    /// All mounts.
    pub mounts: Vec<MountStatus>,
    /// Benefactors that operators take out, and how far that has come.
    pub leaving: Vec<(BenefactorId, Leaving)>,
    /// What users have, and may have.
    pub quotas: QuotaReport,
}

/// How far it has come that a benefactor is taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Versions of groups that name it: they are moved, or brought to their targets.
    pub groups: u64,
    /// About so many bytes of them lie there.
    pub bytes: u64,
    /// Writers have there what they have not committed, or it has not said yet whether they do.
    pub drafts: bool,
    /// Nobody needs it any more, and nobody ever will unless that is taken back.
    pub may_go: bool,
}

/// How a mount's target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountStatus {
    /// The mount's name.
    pub name: String,
    /// The directory.
    pub target: String,
    /// Entries of the journal that it has not seen.
    pub journal: u64,
    /// Bytes of memory that its chunks take, with all copies.
    pub memory: u64,
    /// Bytes of SSD.
    pub ssd: u64,
    /// Why it sees nothing at present, if the asked manager publishes for it.
    pub standstill: Option<Standstill>,
}

/// Why a target sees nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// What fails.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
    /// For how long attempts have failed, and none succeeded.
    pub seconds: u64,
}

/// What a benefactor knows of damage, in its present life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Integrity {
    /// Chunks that were found damaged, by whoever read them.
    pub damaged: u64,
    /// What scrubbing has come to.
    pub scrubbed: scrub::Report,
}

/// How full the store is, as the asked manager has heard last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Bytes of its file.
    pub size: u64,
    /// Bytes of its file that are in use.
    pub in_use: u64,
    /// Bytes at which it takes nothing more.
    pub quota: u64,
    /// Why new files are refused at present, if they are.
    pub refusal: Option<String>,
}

/// What a manager is asked.
#[derive(Clone, Debug)]
pub enum Request {
    /// A benefactor joins, in a new life or in the one that it names.
    Join(Lends),
    /// A lease is renewed.
    Renew(Lease),
    /// A session begins.
    Begin(Begin),
    /// A session ends.
    End(SessionId, Lease),
    /// Numbers that nobody else has.
    Numbers(Lease),
    /// What is at this path below that directory?
    Lookup(Inode, Path),
    /// What does a file contain?
    Content(Inode),
    /// What is in the directory at this path below that one? From behind this name on.
    ReadDir(Inode, Path, Option<Name>),
    /// Where are chunks to go?
    Place(Place),
    /// An operation.
    Do(Operation, Once),
    /// A session locks a file, or returns locks of it: [`Operation::Lock`].
    Lock(Operation),
    /// Of which of these files does another session than this one have locks, or wait for some?
    Locked(SessionId, Vec<Inode>),
    /// How is the pool?
    Status,
    /// A benefactor that is dead is expected no longer: what it alone had is lost.
    Leave(BenefactorId),
    /// What is at this path below that directory becomes the pool's, and so do the directories on the way, if the target alone has them.
    /// With a number: if it is that which the target calls so. Of files that the pool has by now this is not asked.
    Import(Inode, Path, Option<u64>),
    /// What has the pool put last at a name of a directory of the target on which a file is drained? By the number that the directory has there.
    Recorded(Inode, u64, Name),
    /// Where may the target still have a drained file that has this path now, or had it last?
    Before(Inode, Path),
    /// A token is taken back, by its number; it would have expired then.
    Revoke(u64),
    /// Which tokens were taken back?
    Revoked,
    /// Has each committed chunk of a file all its copies?
    Whole(Inode),
    /// Of how many files may benefactors have something that no target has: of those that are written or drained?
    Undrained,
    /// Bytes of this version of a file that its target, a bucket, has: from this offset on, so many.
    Fetch(Inode, Version, u64, u32),
    /// A benefactor is to hold nothing that is needed, and to be given nothing, so that it can go.
    TakeOut(BenefactorId),
    /// It stays.
    TakeBack(BenefactorId),
    /// How far has it come that a benefactor is taken out?
    Leaving(BenefactorId),
    /// Are bytes of this user limited?
    HasQuota(u32),
    /// Room in a quota is reserved.
    Reserve(Reserve),
    /// What do users have, and what may they have?
    Quotas,
    /// How much a user may have of bytes and of files, or everybody else: `None` stays as it is.
    SetQuota(Option<u32>, Option<Limit>, Option<Limit>),
}

/// What a manager answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The benefactor has joined.
    Joined {
        /// Its lease.
        lease: Lease,
        /// Its life.
        incarnation: Incarnation,
        /// How long the lease lasts unless it is renewed, in milliseconds.
        millis: u64,
        /// The pool's number.
        pool: u64,
    },
    /// Another process lends in its place.
    Replaced,
    /// Whether the lease lasts.
    Renewed(bool),
    /// The session has begun.
    Begun(Begun),
    /// Done.
    Done,
    /// Numbers, from the first: [`NUMBERS`] of them.
    Numbers(u64),
    /// It is this.
    Found(Inode, Node),
    /// It is refused.
    Refused(Refusal),
    /// What the file contains.
    Content(Content),
    /// What is in the directory, in the order of the names, and whether more is.
    Entries(Vec<Listed>, bool),
    /// There, and this is how they are reached.
    Placed(Layout, Vec<(BenefactorId, String)>),
    /// Nowhere at present, or the operation is not begun, with this reason.
    NoRoom(String),
    /// How the operation ended.
    Ended(Ended),
    /// Of these.
    Locked(Vec<Inode>),
    /// How the pool is.
    Status(Status),
    /// It lies at the target alone.
    AtTarget(AtTarget),
    /// This, as far as is on record.
    Recorded(Option<Placed>),
    /// At one of these, unless it has what there is by now.
    Before(Vec<Path>),
    /// The numbers of tokens that were taken back.
    Revoked(Vec<u64>),
    /// Whether no copy is missing.
    Whole(bool),
    /// Of so many.
    Undrained(u64),
    /// Bytes of an object.
    Fetched(Bytes),
    /// The bucket does not have them, or does not answer: the reason.
    NotFetched(String),
    /// So far; `None`: it is not taken out.
    Leaving(Option<Leaving>),
    /// Whether they are.
    HasQuota(bool),
    /// For a file of so many bytes; `None`: there is no limit.
    Reserved(Option<u64>),
    /// This.
    Quotas(QuotaReport),
}

/// What lies at a target alone.
#[derive(Clone, Debug)]
pub struct AtTarget {
    /// Where, now.
    pub path: Path,
    /// Its number there.
    pub number: u64,
    /// What the pool would have of it.
    pub node: Node,
}

/// What is in a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Under which name.
    pub name: Name,
    /// Its number: the pool's, or that which the target has for it.
    pub inode: Inode,
    /// What it is.
    pub node: Node,
    /// The target alone has it.
    pub at_target: bool,
}

/// Numbers of a block.
pub const NUMBERS: u64 = 1 << 24;

wire_struct! {
    operation::Taken { chunks, digest }
    Lease { 0 }
    Begin { name, make }
    Begun { session, lease, millis, mount, of, token }
    Place { bytes, protection, media, spread, without, apart }
    Once { session, lease, number, again }
    Content { node, groups, addresses, ticket }
    Reserve { inode, writer, taken, size, most }
    UserQuota { user, used, said, bytes, files }
    QuotaReport { everybody, users }
    Status { benefactors, states, files, journal, drain_bytes_s, integrity, store, logs, mounts, leaving, quotas }
    Leaving { groups, bytes, drafts, may_go }
    MountStatus { name, target, journal, memory, ssd, standstill }
    Standstill { why, remedy, seconds }
    Integrity { damaged, scrubbed }
    StoreStatus { size, in_use, quota, refusal }
    AtTarget { path, number, node }
    Listed { name, inode, node, at_target }
}

wire_enum! {
    State { 0 = Joined, 1 = Leaving, 2 = Dead, }
    operation::PublicationEnd { 0 = Done, 1 = Lost, 2 = Conflict, 3 = Removed, }
    operation::Reply { 0 = Done, 1 = Inode(inode), 2 = Version(version), 3 = Granted(granted), 4 = CutFirst(version), }
    operation::Granted { 0 = Whole, 1 = Ranges, 2 = Locked(range, lock), 3 = Recalled, }
    operation::Locking { 0 = Look, 1 = Ranges, 2 = Whole, 3 = Leave, }
    Operation {
        0 = Create { at, fresh, writer, owner },
        1 = OpenForWriting { inode, writer, rewrites },
        2 = MakeDirectory { at, fresh, journal, owner },
        3 = Commit { inode, session, on, size, groups, close },
        4 = Close { inode, session, journal },
        5 = WriterLost { inode, journal },
        6 = Rename { from, to, replace, journal },
        7 = Unlink { at, journal },
        8 = RemoveDirectory { at, journal },
        9 = Published { publisher, mount, journal, ended, placed, about },
        10 = Evict { inode, changes },
        11 = Forget { inode },
        12 = Relocate { warden, inode, group, from, to },
        13 = MakeLink { at, fresh, journal, owner, to },
        14 = SetAttributes { inode, attributes, journal },
        18 = MakeSpecial { at, fresh, journal, owner, special },
        17 = Link { inode, at, journal },
        16 = Lock { inode, session, number, ranges, how },
        15 = RelocateColumns { warden, inode, group, columns, from, to },
        19 = Import { at, fresh, node, placed },
        20 = DrainedEarly { publisher, mount, inode, former, draft, groups },
        21 = Prefetched { inode, session, of, times },
        22 = Reserve { inode, writer, user, counts, size },
    }
    Ended { 0 = Before, 1 = Reply(reply), 2 = Refused(refusal), }
    Request {
        0 = Join(lends),
        1 = Renew(lease),
        2 = Begin(begin),
        3 = End(session, lease),
        4 = Numbers(lease),
        5 = Lookup(directory, path),
        6 = Content(inode),
        7 = ReadDir(directory, path, after),
        8 = Place(place),
        9 = Do(operation, once),
        10 = Status,
        11 = Leave(id),
        12 = Lock(operation),
        13 = Locked(session, inodes),
        14 = Import(directory, path, number),
        15 = Recorded(inode, directory, name),
        16 = Revoke(token),
        17 = Revoked,
        18 = Whole(inode),
        19 = Undrained,
        20 = Before(inode, path),
        21 = Fetch(inode, version, offset, length),
        22 = TakeOut(id),
        23 = TakeBack(id),
        24 = Leaving(id),
        25 = HasQuota(user),
        26 = Reserve(reserve),
        27 = Quotas,
        28 = SetQuota(user, bytes, files),
    }
    Reply {
        0 = Joined { lease, incarnation, millis, pool },
        1 = Replaced,
        2 = Renewed(lasts),
        3 = Begun(begun),
        4 = Done,
        5 = Numbers(first),
        6 = Found(inode, node),
        7 = Refused(refusal),
        8 = Content(content),
        9 = Entries(entries, more),
        10 = Placed(layout, addresses),
        11 = NoRoom(why),
        12 = Ended(ended),
        13 = Status(status),
        14 = Locked(inodes),
        15 = AtTarget(found),
        16 = Recorded(placed),
        17 = Revoked(tokens),
        18 = Whole(is_so),
        19 = Undrained(files),
        20 = Before(paths),
        21 = Fetched(bytes),
        22 = NotFetched(why),
        23 = Leaving(how),
        24 = HasQuota(has),
        25 = Reserved(size),
        26 = Quotas(report),
    }
}

impl Method for Request {
    fn method(&self) -> &'static str {
        match self {
            Self::Join(_) => "/surgetank.pool.Manager/Join",
            Self::Renew(_) => "/surgetank.pool.Manager/Renew",
            Self::Begin(_) => "/surgetank.pool.Manager/Begin",
            Self::End(..) => "/surgetank.pool.Manager/End",
            Self::Numbers(_) => "/surgetank.pool.Manager/Numbers",
            Self::Lookup(..) => "/surgetank.pool.Manager/Lookup",
            Self::Content(_) => "/surgetank.pool.Manager/Content",
            Self::ReadDir(..) => "/surgetank.pool.Manager/ReadDir",
            Self::Place(_) => "/surgetank.pool.Manager/Place",
            Self::Do(..) => "/surgetank.pool.Manager/Do",
            Self::Lock(_) => "/surgetank.pool.Manager/Lock",
            Self::Locked(..) => "/surgetank.pool.Manager/Locked",
            Self::Status => "/surgetank.pool.Manager/Status",
            Self::Leave(_) => "/surgetank.pool.Manager/Leave",
            Self::Import(..) => "/surgetank.pool.Manager/Import",
            Self::Recorded(..) => "/surgetank.pool.Manager/Recorded",
            Self::Before(..) => "/surgetank.pool.Manager/Before",
            Self::Revoke(..) => "/surgetank.pool.Manager/Revoke",
            Self::Revoked => "/surgetank.pool.Manager/Revoked",
            Self::Whole(_) => "/surgetank.pool.Manager/Whole",
            Self::Undrained => "/surgetank.pool.Manager/Undrained",
            Self::Fetch(..) => "/surgetank.pool.Manager/Fetch",
            Self::TakeOut(_) => "/surgetank.pool.Manager/TakeOut",
            Self::TakeBack(_) => "/surgetank.pool.Manager/TakeBack",
            Self::Leaving(_) => "/surgetank.pool.Manager/Leaving",
            Self::HasQuota(_) => "/surgetank.pool.Manager/HasQuota",
            Self::Reserve(_) => "/surgetank.pool.Manager/Reserve",
            Self::Quotas => "/surgetank.pool.Manager/Quotas",
            Self::SetQuota(..) => "/surgetank.pool.Manager/SetQuota",
        }
    }
}
