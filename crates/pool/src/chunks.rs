//! The service `Chunks` of a benefactor.

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table};
use surgetank_pool_core::benefactor::{scrub, segments};
use surgetank_pool_core::id::{Incarnation, Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::repair::{self, Of, Word};

use crate::rpc::Method;
use crate::security::token::Ticket;
use crate::wire::{wire_enum, wire_struct};

/// Bytes of a chunk, at most.
pub const CHUNK: u64 = surgetank_pool_core::placement::CHUNK.get();

/// Bytes that a mount lets a file have: each gibibyte of it is a record in the store. An ext4 has no longer files, but for a part of a chunk.
pub const FILE_MAX: u64 = (16 << 40) - CHUNK;

/// The bytes of a chunk that is a hole.
pub(crate) const fn zeros() -> Bytes {
    #[allow(clippy::cast_possible_truncation, reason = "a chunk is much smaller")]
    static ZEROS: [u8; CHUNK as usize] = [0; CHUNK as usize];
    Bytes::from_static(&ZEROS)
}

/// A table: of which group and version, and who sealed it.
pub type TableOf = (GroupOf, Version, SessionId);

/// A chunk to keep.
#[derive(Clone, Debug)]
pub struct Put {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// The file.
    pub inode: Inode,
    /// What it is.
    pub entry: Entry,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A chunk to read.
#[derive(Clone, Debug)]
pub struct Get {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// The table that names it.
    pub of: TableOf,
    /// Its number in the group.
    pub chunk: u32,
    /// Lets a session read the file; others need none.
    pub ticket: Ticket,
}

/// A chunk that its session has put and not committed, to read.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// The file.
    pub inode: Inode,
    /// What it is.
    pub entry: Entry,
}

/// A table to seal.
#[derive(Clone, Debug)]
pub struct Seal {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// What it is called.
    pub of: TableOf,
    /// What it says.
    pub table: Table,
    /// Greater than that of every earlier seal of the session: one that comes late changes nothing.
    pub order: u64,
    /// Table and chunks must survive a power cut before it counts.
    pub durable: bool,
}

/// What happened elsewhere, so that a benefactor can drop what nobody needs. It may be old.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Drafts that their session withdraws.
    pub withdrawn: Vec<Instance>,
    /// What the warden has found, and which of its messages that is.
    pub words: Option<(Fence, Vec<Word>)>,
}

/// The order of the wardens' messages: since which revision the role is its sender's, and the number among that one's. What a warden says
/// that was replaced, or before it had copies brought, does not count after a later message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub Revision, pub u64);

/// Chunks that a benefactor is to fetch from others.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// Whose message it is.
    pub fence: Fence,
    /// The mount of the file; `None`: the chunks are there already, and damaged.
    pub mount: Option<MountId>,
    /// The table that names them.
    pub of: TableOf,
    /// The chunks, by their numbers in the group, each with the source that has it.
    pub part: Vec<(u32, Entry, u16)>,
    /// The sources: their addresses and lives.
    pub sources: Vec<(String, Incarnation)>,
}

/// The place of a table's columns moves to a benefactor that has fetched their chunks.
#[derive(Clone, Debug)]
pub struct Adopt {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// Whose message it is.
    pub fence: Fence,
    /// The table.
    pub of: TableOf,
    /// What is to be in it.
    pub part: Table,
    /// The store's layout names the benefactor in this life already: it is added to the table that it has.
    pub named: bool,
    /// All of it must survive a power cut before it counts.
    pub durable: bool,
}

/// In the place of a source.
pub const NOBODY: u16 = u16::MAX;

/// A member of a row of which nobody has the bytes: it is made of the others.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Its number in the group.
    pub chunk: u32,
    /// What it is to be.
    pub entry: Entry,
    /// All other members, each with the source that has it, or [`NOBODY`].
    pub row: Vec<(u32, Entry, u16)>,
}

/// Chunks that a benefactor is to make of the other members of their rows, and to keep.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// Whose message it is.
    pub fence: Fence,
    /// The mount of the file; `None`: the chunks are there already, and damaged.
    pub mount: Option<MountId>,
    /// The table that names them.
    pub of: TableOf,
    /// How many members rows have.
    pub parity: Parity,
    /// The chunks.
    pub lost: Vec<Lost>,
    /// The sources: their addresses and lives.
    pub sources: Vec<(String, Incarnation)>,
}

/// Chunks that a benefactor is to make of the other members of their rows, and to write to the target.
#[derive(Clone, Debug)]
pub struct DrainLost {
    /// The table that names them.
    pub of: TableOf,
    /// How many members rows have.
    pub parity: Parity,
    /// The chunks.
    pub lost: Vec<Lost>,
    /// The sources: their addresses and lives.
    pub sources: Vec<(String, Incarnation)>,
    /// Where the group begins in the file, in bytes.
    pub offset: u64,
    /// The file to write into, which is there already.
    pub file: String,
}

/// Chunks to write to the target.
#[derive(Clone, Debug)]
pub struct DrainPart {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// The table that names them.
    pub of: TableOf,
    /// Their numbers in the group.
    pub chunks: Vec<u32>,
    /// Where the group begins in the file, in bytes.
    pub offset: u64,
    /// The file to write into, which is there already.
    pub file: String,
}

/// A part of an object to put together and to send to a store.
#[derive(Clone)]
pub struct SendPart {
    /// The life of the benefactor that is meant.
    pub incarnation: Incarnation,
    /// What it consists of, one behind the other.
    pub pieces: Vec<Piece>,
    /// Others that have chunks of it: their addresses and lives.
    pub sources: Vec<(String, Incarnation)>,
    /// The request, signed for some minutes: whoever has it may put this part.
    pub url: String,
}

impl std::fmt::Debug for SendPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendPart")
            .field("incarnation", &self.incarnation)
            .field("pieces", &self.pieces)
            .finish_non_exhaustive()
    }
}

/// A piece of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The chunk that it is: who has it, the benefactor itself or one of the sources from 1 on; its table, and its number. `None`: zeros.
    pub chunk: Option<(u16, TableOf, u32)>,
    /// Bytes, which are the chunk's first ones; behind its end they are zeros.
    pub length: u32,
}

/// A part that a store has.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What the store calls it.
    pub tag: String,
    /// Bytes and checksum of each chunk that it was put together of, in their order.
    pub chunks: Vec<(u32, u32)>,
}

/// What a benefactor is asked.
#[derive(Clone, Debug)]
pub enum Request {
    /// Keep a chunk.
    Put(Put),
    /// Read a chunk.
    Get(Get),
    /// Seal a table.
    Seal(Seal),
    /// Which chunks does a table name? The number of the chunk does not matter.
    Table(Get),
    /// Drop what nobody needs.
    Forget(News),
    /// What is here?
    Inventory,
    /// Write chunks to the target.
    DrainPart(DrainPart),
    /// Are you there?
    Probe,
    /// Fetch chunks from others.
    Copy(Copy),
    /// Take a place over.
    Adopt(Adopt),
    /// Read a chunk that is not committed.
    Draft(Draft),
    /// Make chunks of the rest of their rows.
    Rebuild(Rebuild),
    /// The same, and write them to the target.
    DrainLost(DrainLost),
    /// Send a part of an object to its store.
    SendPart(SendPart),
    /// An operator takes it out, and it takes nothing new; or that was taken back, or never was, and it is to join again.
    Leaving(bool),
}

/// What a benefactor has, so that what nobody needs is found.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Its life.
    pub incarnation: Incarnation,
    /// What it has.
    pub has: repair::Inventory,
    /// Chunks of it whose bytes are damaged.
    pub damaged: Vec<(TableOf, u32)>,
}

/// How a benefactor is.
#[derive(Clone, Debug)]
pub struct Alive {
    /// Its life.
    pub incarnation: Incarnation,
    /// Chunks that it has room for now.
    pub credits: u64,
    /// Chunks that it has room for when it is empty.
    pub of: u64,
    /// Chunks that clients have put in this life.
    pub puts: u64,
    /// Bytes of SSD that have room for chunks, some once the log is compacted, and all that it lends.
    pub ssd: (u64, u64),
    /// Chunks that were found damaged in this life.
    pub damaged: u64,
    /// It takes nothing new.
    pub leaving: bool,
    /// It was told that an operator takes it out.
    pub taken_out: bool,
    /// What scrubbing has come to.
    pub scrubbed: scrub::Report,
    /// How the SSD's log is.
    pub log: segments::Report,
    /// Bytes of memory and of SSD that the chunks of each mount take.
    pub taken: Vec<(MountId, u64, u64)>,
}

/// Chunks of a mount that a benefactor has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// In memory, beside what those that are not committed may need elsewhere.
    pub memory: u64,
    /// On its SSD, beside those in memory; `None`: it lends none.
    pub ssd: Option<u64>,
}

/// What a benefactor answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The chunk is kept.
    Stored(Spare),
    /// Another life is meant.
    Stale,
    /// No room until something is drained.
    Full,
    /// The bytes are not those that the checksum was made of.
    Corrupt,
    /// The session has ended.
    UnknownSession,
    /// The chunk, and its checksum.
    Chunk(u32, Bytes),
    /// No such table, or no such chunk in it.
    NotHere,
    /// The table is sealed.
    Sealed,
    /// What the table says.
    Table(Table),
    /// These chunks of the table are not here: nothing is sealed.
    Missing(Vec<u32>),
    /// Done.
    Done,
    /// What is here.
    Inventory(Box<Inventory>),
    /// These chunks are at the target, flushed: number, bytes and checksum of each.
    Drained(Vec<(u32, u32, u32)>),
    /// The target refused them, with this reason.
    NotDrained(String),
    /// A source does not have this chunk, or does not answer.
    NotCopied(u32),
    /// Not everything survives a power cut yet: ask again.
    NotYet,
    /// How it is.
    Alive(Box<Alive>),
    /// The store has the part.
    Sent(Sent),
}

wire_struct! {
    Spare { memory, ssd }
    Put { incarnation, inode, entry, bytes }
    Get { incarnation, of, chunk, ticket }
    Draft { incarnation, inode, entry }
    Seal { incarnation, of, table, order, durable }
    News { withdrawn, words }
    Fence { 0, 1 }
    Copy { incarnation, fence, mount, of, part, sources }
    Adopt { incarnation, fence, of, part, named, durable }
    Lost { chunk, entry, row }
    Rebuild { incarnation, fence, mount, of, parity, lost, sources }
    DrainLost { of, parity, lost, sources, offset, file }
    Of { group, version, by }
    repair::Inventory { tables, drafts, copies, withdrawn, of_unknown_mounts }
    DrainPart { incarnation, of, chunks, offset, file }
    SendPart { incarnation, pieces, sources, url }
    Piece { chunk, length }
    Sent { tag, chunks }
    Inventory { incarnation, has, damaged }
    Alive { incarnation, credits, of, puts, ssd, damaged, leaving, taken_out, scrubbed, log, taken }
    segments::Report { garbage, copied, written }
    scrub::Report { passes, chunks, bytes, damaged, last }
    scrub::Last { ended, chunks, damaged }
}

wire_enum! {
    Word {
        0 = Forgotten(inode),
        1 = InStore(group, versions),
        2 = ForgetTable(of),
        3 = Evicted(inode, version),
        4 = AbandonCopy(instance),
        5 = SessionEnded(session, never),
        6 = Obsolete(of),
        7 = IsOf(inode, mount),
    }
    Request {
        0 = Put(put),
        1 = Get(get),
        2 = Seal(seal),
        3 = Forget(news),
        4 = Inventory,
        5 = DrainPart(part),
        6 = Probe,
        7 = Table(get),
        8 = Copy(copy),
        9 = Adopt(adopt),
        10 = Draft(draft),
        11 = Rebuild(rebuild),
        12 = DrainLost(lost),
        13 = SendPart(part),
        14 = Leaving(is_so),
    }
    Reply {
        0 = Stored(spare),
        1 = Stale,
        2 = Full,
        3 = Corrupt,
        4 = UnknownSession,
        5 = Chunk(crc, bytes),
        6 = NotHere,
        7 = Sealed,
        8 = Missing(chunks),
        9 = Done,
        10 = Inventory(inventory),
        11 = Drained(chunks),
        12 = NotDrained(why),
        13 = Alive(alive),
        14 = Table(table),
        15 = NotCopied(chunk),
        16 = NotYet,
        17 = Sent(sent),
    }
}

impl Method for Request {
    fn method(&self) -> &'static str {
        match self {
            Self::Put(_) => "/surgetank.pool.Chunks/Put",
            Self::Get(_) => "/surgetank.pool.Chunks/Get",
            Self::Seal(_) => "/surgetank.pool.Chunks/Seal",
            Self::Table(_) => "/surgetank.pool.Chunks/Table",
            Self::Forget(_) => "/surgetank.pool.Chunks/Forget",
            Self::Inventory => "/surgetank.pool.Chunks/Inventory",
            Self::DrainPart(_) => "/surgetank.pool.Chunks/DrainPart",
            Self::Probe => "/surgetank.pool.Chunks/Probe",
            Self::Copy(_) => "/surgetank.pool.Chunks/Copy",
            Self::Adopt(_) => "/surgetank.pool.Chunks/Adopt",
            Self::Draft(_) => "/surgetank.pool.Chunks/Draft",
            Self::Rebuild(_) => "/surgetank.pool.Chunks/Rebuild",
            Self::DrainLost(_) => "/surgetank.pool.Chunks/DrainLost",
            Self::SendPart(_) => "/surgetank.pool.Chunks/SendPart",
            Self::Leaving(_) => "/surgetank.pool.Chunks/Leaving",
        }
    }
}
