//! Which chunks a benefactor holds, and for whom.
//!
//! Every writing of a chunk is an [`Instance`] of its own: nothing is overwritten in place, so that a reader of a commit reads what
//! that commit named. Before a commit, its session has every benefactor of the group *seal* a [`Table`]: which instance each chunk of
//! that version is. The commit itself takes place in the store, where the benefactor does not look; it hears of it afterwards, perhaps late.
//!
//! An instance is dropped only when nobody can ask for it any more:
//! - a draft that no table names, when its session has withdrawn it or has ended;
//! - one that tables name, when each of these is *obsolete*: the store has a later version of the group and not this one, or another
//!   session's table as this version; or its session ended without a commit; or the file is forgotten.
//!
//! What it hears of the store may be old: a group's versions only grow, so what was obsolete once is so for ever.

mod keeping;
mod rooms;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::benefactor::buffers::{Buffers, Piece};
use crate::benefactor::segments::BLOCK;
use crate::benefactor::sharing::Owner;
use crate::id::{Incarnation, Inode, MountId, SessionId, Version};
use crate::parity::is_own;
use crate::planted::{Bug, planted};

use self::rooms::Rooms;
pub use self::rooms::Taken;

/// One writing of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Who wrote it.
    pub session: SessionId,
    /// Its number among the session's.
    pub number: u64,
}

/// A group of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupOf {
    /// The file.
    pub inode: Inode,
    /// Which of its groups.
    pub group: u32,
}

/// A chunk's bytes, as a table names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Which writing.
    pub instance: Instance,
    /// Bytes.
    pub length: u32,
    /// CRC32C of them.
    pub crc: u32,
}

/// What a version's chunks are, of those that this benefactor has: by their number in the group. With [parity](crate::parity) also what others
/// have of the same rows, [`ELSEWHERE`](crate::parity::ELSEWHERE).
pub type Table = BTreeMap<u32, Entry>;

/// What a benefactor has itself of a table.
pub fn own(table: &Table) -> impl Iterator<Item = (&u32, &Entry)> {
    table.iter().filter(|(number, _)| is_own(**number))
}

/// The order of a session's seals: the newest instance that was written before, and the number among those of the same open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealOrder(pub u64, pub u64);

impl SealOrder {
    /// Of what repair brought: it was committed, so that no seal of its session comes after it.
    const ADOPTED: Self = Self(u64::MAX, u64::MAX);
}

/// A chunk that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The life of the benefactor that the sender means.
    pub incarnation: Incarnation,
    /// The file.
    pub inode: Inode,
    /// The mount whose room it takes; `None`: that is not known.
    pub mount: Option<MountId>,
    /// What it is.
    pub entry: Entry,
}

/// What becomes of a chunk that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its bytes go there; then [`Holdings::stored`].
    Room(Piece),
    /// It is here already: an answer was lost.
    Here,
    /// Its bytes are still coming.
    Coming,
    /// It means another life of this benefactor.
    Stale,
    /// The session has ended.
    UnknownSession,
    /// Its session has withdrawn it before it came.
    Withdrawn,
    /// No room until something is drained, or none for its mount: wait for credits.
    Full,
}

/// Where an instance's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In memory.
    Memory(Piece),
    /// On SSD.
    Ssd,
}

/// Bytes of an SSD that a chunk of so many bytes takes, at least: its record has a header and begins at a block.
#[must_use]
pub fn bytes_on_ssd(length: u32) -> u64 {
    u64::from(length).next_multiple_of(BLOCK) + BLOCK
}

#[derive(Clone, Debug)]
struct Held {
    inode: Inode,
    /// Whose room it takes.
    mount: Option<MountId>,
    length: u32,
    crc: u32,
    /// Its room in memory, while it has any.
    piece: Option<Piece>,
    /// Its bytes have come.
    complete: bool,
    /// It is being written from memory to SSD.
    moving: bool,
    on_ssd: bool,
    /// Its bytes were found to be others than those that came: nobody gets them.
    damaged: bool,
    /// Reads of it that are under way: neither its memory nor its room on SSD is used again before they end.
    reads: u32,
    /// Its session still may name it.
    draft: bool,
    /// Repair brings it, and has not sealed it.
    copying: bool,
    /// Tables that name it.
    named: u32,
}

impl Held {
    /// Somebody may read it, or name it, now or later.
    const fn is_wanted(&self) -> bool {
        self.draft || self.copying || self.named > 0
    }

    /// The room that it takes.
    fn takes(&self) -> Taken {
        let memory = if self.piece.is_some() { self.length.into() } else { 0 };
        let record = bytes_on_ssd(self.length);
        let when = |it: bool| if it { record } else { 0 };
        Taken { memory, ssd: when(self.on_ssd || self.moving), to_ssd: when(!self.on_ssd) }
    }

    /// Its session still may name what takes memory.
    const fn is_draft_in_memory(&self) -> bool {
        self.draft && self.piece.is_some()
    }

    /// Its bytes are there, and as they came for all that is known.
    fn is_readable(&self) -> bool {
        (self.complete || planted(Bug::ReadBeforeStored)) && !self.damaged
    }
}

/// What the driver has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write a chunk to SSD, then [`Holdings::moved`].
    Move(Instance, Piece),
    /// Free its room on SSD.
    FreeSsd(Instance),
}

/// Chunks that a table names and that are not here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} chunks of the table are not here", .0.len())]
pub struct Missing(pub Vec<u32>);

/// Why a benefactor does not take a place over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdopted {
    /// These chunks are not here, or not as the table has them.
    Missing(Missing),
    /// A table of the same version is here of which it is not known whether it counts.
    InTheWay,
}

/// See the module.
#[derive(Debug)]
pub struct Holdings {
    incarnation: Incarnation,
    buffers: Buffers,
    /// Whether there is an SSD to move to.
    ssd: bool,
    held: BTreeMap<Instance, Held>,
    /// What is in memory, by its place.
    at: BTreeMap<Piece, Instance>,
    tables: BTreeMap<(GroupOf, Version, SessionId), Table>,
    /// Which of its session's seals each table is.
    orders: BTreeMap<(GroupOf, Version, SessionId), SealOrder>,
    /// What the store had of a group when it was heard of last.
    stored: BTreeMap<GroupOf, BTreeSet<(Version, SessionId)>>,
    sessions_ended: BTreeSet<SessionId>,
    /// What sessions that go on have withdrawn and may still come.
    withdrawn: BTreeSet<Instance>,
    /// How many are in memory that their session still may name.
    drafts_in_memory: u64,
    rooms: Rooms,
    effects: VecDeque<Effect>,
    /// Tables that have ended, of which the SSD has a record.
    tables_over: VecDeque<(GroupOf, Version, SessionId)>,
}

impl Holdings {
    /// A benefactor's process that has just begun, with what it lends.
    #[must_use]
    pub const fn new(incarnation: Incarnation, buffers: Buffers, ssd: bool) -> Self {
        Self {
            incarnation,
            buffers,
            ssd,
            held: BTreeMap::new(),
            at: BTreeMap::new(),
            tables: BTreeMap::new(),
            orders: BTreeMap::new(),
            stored: BTreeMap::new(),
            sessions_ended: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            drafts_in_memory: 0,
            rooms: Rooms::new(),
            effects: VecDeque::new(),
            tables_over: VecDeque::new(),
        }
    }

    /// A chunk comes in; so many bytes of the SSD are free.
    pub fn put(&mut self, put: &Put, free_ssd: u64) -> Admission {
        let instance = put.entry.instance;
        if put.incarnation != self.incarnation {
            return Admission::Stale;
        }
        if self.sessions_ended.contains(&instance.session) {
            return Admission::UnknownSession;
        }
        if self.withdrawn.contains(&instance) && !planted(Bug::WithdrawnTaken) {
            return Admission::Withdrawn;
        }
        match self.held.get(&instance) {
            // Its session has it still, as long as it is not committed.
            Some(held) if held.damaged => self.replace_damaged(put, false, free_ssd),
            Some(held) if held.complete => Admission::Here,
            Some(_) => Admission::Coming,
            None => self.reserve(put, (true, false), false, free_ssd),
        }
    }

    /// Its bytes are there and have the checksum that was announced; or not, and then it never came.
    pub fn stored(&mut self, instance: Instance, intact: bool) {
        let Some(held) = self.held.get_mut(&instance).filter(|held| !held.complete) else { return };
        self.drafts_in_memory -= u64::from(held.is_draft_in_memory() && !intact);
        (held.complete, held.draft, held.copying) = (true, held.draft && intact, held.copying && intact);
        // Tables name it if it was to take the place of one that is damaged.
        held.damaged = !intact && !planted(Bug::FailedCopyCounts);
        if let Some(piece) = held.piece {
            self.buffers.stored(piece);
        }
        self.drop_if_unused(instance);
    }

    /// What this version of a group is to be, before it is committed. The session may seal it again, for other columns or after it has opened
    /// the file anew, or with nothing in it once that version is not to be; and its messages may come late: an earlier seal changes nothing
    /// after a later one.
    ///
    /// # Errors
    /// [`Missing`]: these chunks are not here, or not as the table has them; nothing is sealed.
    pub fn seal(
        &mut self,
        of: GroupOf,
        version: Version,
        session: SessionId,
        order: SealOrder,
        table: Table,
    ) -> Result<(), Missing> {
        let key = (of, version, session);
        if self.orders.get(&key).is_some_and(|latest| order < *latest) && !planted(Bug::LateSealCounts) {
            return Ok(());
        }
        let missing: Vec<u32> =
            own(&table).filter(|(_, entry)| !self.is_here(of.inode, entry)).map(|(index, _)| *index).collect();
        if !missing.is_empty() || self.sessions_ended.contains(&session) {
            return Err(Missing(missing));
        }
        if planted(Bug::SealedAgainDrops) {
            self.unseal(key);
        }
        self.orders.insert(key, order);
        self.name(key, table);
        self.sweep(of);
        Ok(())
    }

    /// A session withdraws what it wrote: a table names it by now, the write failed elsewhere, or it was overwritten.
    pub fn withdraw(&mut self, instance: Instance) {
        if let Some(held) = self.held.get_mut(&instance) {
            self.drafts_in_memory -= u64::from(held.is_draft_in_memory() && !planted(Bug::DraftStaysCounted));
            held.draft = false;
            self.drop_if_unused(instance);
        }
    }

    /// The same, of a session that puts no instance twice: if it has not come yet, it is not taken any more.
    pub fn withdraw_for_good(&mut self, instance: Instance) {
        match self.held.contains_key(&instance) {
            true => self.withdraw(instance),
            false if self.sessions_ended.contains(&instance.session) => {}
            false => drop(self.withdrawn.insert(instance)),
        }
    }

    /// The store has these versions of a group, each committed by that session: the newest, and those that the target still needs.
    pub fn in_store(&mut self, of: GroupOf, versions: &BTreeSet<(Version, SessionId)>) {
        let known = self.stored.get(&of).and_then(|known| known.last());
        if versions.last() >= known {
            self.stored.insert(of, versions.clone());
            self.sweep(of);
        }
    }

    /// A session is over in the store. What of its tables it had committed by then, `committed` knows; the others it never will.
    pub fn session_ended(&mut self, session: SessionId, committed: impl Fn(GroupOf, Version) -> bool) {
        self.sessions_ended.insert(session);
        self.withdrawn.retain(|instance| instance.session != session);
        let never: Vec<_> = self
            .tables
            .keys()
            .filter(|(of, version, by)| *by == session && (!committed(*of, *version) || planted(Bug::EndedDropsAll)))
            .copied()
            .collect();
        never.into_iter().for_each(|key| self.unseal(key));
        let drafts: Vec<Instance> = self.held.keys().filter(|instance| instance.session == session).copied().collect();
        drafts.into_iter().for_each(|instance| self.withdraw(instance));
    }

    /// A table that the store does not have, though the file has that version or a later one: it was replaced, evicted, or somebody else
    /// committed as that version. It never counts again.
    pub fn obsolete(&mut self, of: GroupOf, version: Version, by: SessionId) {
        self.unseal((of, version, by));
    }

    /// A file is no more: nobody has it open, and the target has what it is to have of it.
    pub fn forgotten(&mut self, inode: Inode) {
        let tables: Vec<_> = self.tables.keys().filter(|(of, ..)| of.inode == inode).copied().collect();
        tables.into_iter().for_each(|key| self.unseal(key));
        let instances: Vec<Instance> =
            self.held.iter().filter(|(_, held)| held.inode == inode).map(|(instance, _)| *instance).collect();
        for instance in instances {
            self.withdraw(instance);
            self.abandon_copy(instance);
        }
        self.stored.retain(|of, _| of.inode != inode);
    }

    /// Where a chunk of a version is, which this session committed, and what it must look like. Its bytes stay there until
    /// [`Holdings::read`].
    pub fn find(&mut self, of: GroupOf, version: Version, by: SessionId, chunk: u32) -> Option<(Entry, Location)> {
        let entry = *self.tables.get(&(of, version, by))?.get(&chunk).filter(|_| is_own(chunk))?;
        // One that takes the place of a damaged one may still be coming.
        let held = self.held.get_mut(&entry.instance).filter(|held| held.is_readable())?;
        held.reads += 1;
        Some((entry, held.piece.map_or(Location::Ssd, Location::Memory)))
    }

    /// Where a chunk is that its session has put, whether a table names it or not. Its bytes stay there until [`Holdings::read`].
    pub fn find_draft(&mut self, inode: Inode, entry: &Entry) -> Option<Location> {
        if !self.is_here(inode, entry) {
            return None;
        }
        let held = self.held.get_mut(&entry.instance)?;
        held.reads += 1;
        Some(held.piece.map_or(Location::Ssd, Location::Memory))
    }

    /// A read that [`Holdings::find`] or [`Holdings::find_draft`] has begun is over.
    pub fn read(&mut self, instance: Instance) {
        if let Some(held) = self.held.get_mut(&instance) {
            held.reads = held.reads.saturating_sub(1);
            self.drop_if_unused(instance);
        }
    }

    /// What to do next; `None` for `free`: nothing is moved. Else so many bytes of the SSD are free, of which each mount may take a part.
    pub fn next_effect(&mut self, free: Option<u64>) -> Option<Effect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        let free = free.filter(|_| self.ssd)?;
        let rooms = &self.rooms;
        let may = |owner: Owner| owner.may_take(rooms.of(owner.mount).ssd, free, false);
        let piece = self.buffers.next_drain(may)?;
        let instance = *self.at.get(&piece)?;
        let held = self.held.get_mut(&instance)?;
        self.rooms.free_up(held.mount, held.takes());
        held.moving = true;
        self.rooms.take(held.mount, held.takes());
        Some(Effect::Move(instance, piece))
    }

    /// A chunk is on SSD, as durable as that is; or could not be written.
    pub fn moved(&mut self, instance: Instance, done: bool) {
        let Some(held) = self.held.get_mut(&instance).filter(|held| held.moving) else { return };
        self.rooms.free_up(held.mount, held.takes());
        (held.moving, held.on_ssd) = (false, done);
        self.rooms.take(held.mount, held.takes());
        if !done {
            held.piece.into_iter().for_each(|piece| self.buffers.drain_failed(piece));
        }
        self.drop_if_unused(instance);
    }

    /// What is in the filling buffer is to be moved soon.
    pub fn close_filling(&mut self) {
        self.buffers.close_filling();
    }

    /// What a table says.
    #[must_use]
    pub fn table(&self, of: GroupOf, version: Version, by: SessionId) -> Option<&Table> {
        self.tables.get(&(of, version, by))
    }

    /// Files of which it holds chunks: for inventories.
    #[must_use]
    pub fn files(&self) -> BTreeSet<Inode> {
        self.held.values().map(|held| held.inode).collect()
    }

    /// Instances that are held: for inventories.
    pub fn instances(&self) -> impl Iterator<Item = Instance> {
        self.held.keys().copied()
    }

    /// Whether an instance is here, and as a table has it.
    fn is_here(&self, inode: Inode, entry: &Entry) -> bool {
        self.held.get(&entry.instance).is_some_and(|held| {
            let usable = (held.complete && held.is_wanted() && !held.damaged) || planted(Bug::SealedBeforeStored);
            usable && (held.inode, held.length, held.crc) == (inode, entry.length, entry.crc)
        })
    }

    /// Room for a chunk, for its session (`draft`) or for repair (`copying`); `repairs`: see [`Owner`].
    fn reserve(&mut self, put: &Put, (draft, copying): (bool, bool), repairs: bool, free_ssd: u64) -> Admission {
        let Entry { instance, length, crc } = put.entry;
        let mount = put.mount.or_else(|| self.held.get(&instance)?.mount);
        let owner = Owner { mount, repairs };
        let passes_on = self.ssd && self.credits_on_ssd(mount, free_ssd) > 0;
        if !owner.may_take(self.rooms.of(mount).memory, self.buffers.free(), passes_on) {
            // As where there is no room for anybody: what is there can be moved meanwhile.
            if self.ssd && !planted(Bug::RefusedWithoutClosing) {
                self.buffers.close_filling();
            }
            return Admission::Full;
        }
        let Some(piece) = self.buffers.reserve(length.into(), owner) else { return Admission::Full };
        let held = Held {
            inode: put.inode,
            mount,
            length,
            crc,
            piece: Some(piece),
            complete: false,
            moving: false,
            on_ssd: false,
            damaged: false,
            reads: 0,
            draft,
            copying,
            named: 0,
        };
        let replaced = self.held.remove(&instance);
        if let Some(replaced) = &replaced {
            self.rooms.free_up(replaced.mount, replaced.takes());
            self.rooms.went(instance, replaced);
        }
        self.rooms.take(mount, held.takes());
        self.rooms.came(instance, &held);
        self.held.insert(instance, held);
        self.drafts_in_memory += u64::from(draft);
        self.drafts_in_memory -= u64::from(replaced.is_some_and(|replaced| replaced.is_draft_in_memory()));
        self.at.insert(piece, instance);
        Admission::Room(piece)
    }

    /// Ends tables that are obsolete.
    fn sweep(&mut self, of: GroupOf) {
        let Some(stored) = self.stored.get(&of) else { return };
        let Some((newest, _)) = stored.last() else { return };
        let is_needed = |version: Version, by: SessionId| match planted(Bug::NeededIgnored) {
            false => stored.contains(&(version, by)),
            true => version == *newest,
        };
        let obsolete: Vec<_> = self
            .tables
            .range((of, Version::NONE, SessionId(0))..=(of, *newest, SessionId(u64::MAX)))
            .map(|(key, _)| *key)
            .filter(|(_, version, by)| !is_needed(*version, *by))
            .collect();
        obsolete.into_iter().for_each(|key| self.unseal(key));
    }

    /// A table names its chunks from now on, in the place of what it named.
    fn name(&mut self, key: (GroupOf, Version, SessionId), table: Table) {
        for (_, entry) in own(&table) {
            if let Some(held) = self.held.get_mut(&entry.instance) {
                (held.named, held.copying) = (held.named + 1, false);
            }
        }
        // The former one goes last: both may name the same chunks, and nobody else may.
        let former = self.tables.insert(key, table);
        self.release(former.unwrap_or_default());
    }

    fn unseal(&mut self, key: (GroupOf, Version, SessionId)) {
        self.orders.remove(&key);
        let table = self.tables.remove(&key);
        if table.is_some() && self.ssd {
            self.tables_over.push_back(key);
        }
        self.release(table.unwrap_or_default());
    }

    /// A table no longer names its chunks.
    fn release(&mut self, table: Table) {
        for (_, entry) in own(&table) {
            if let Some(held) = self.held.get_mut(&entry.instance) {
                held.named = held.named.saturating_sub(1);
            }
            self.drop_if_unused(entry.instance);
        }
    }

    /// Frees what an instance no longer needs: its memory once it is on SSD, and all of it once nobody can ask for it.
    fn drop_if_unused(&mut self, instance: Instance) {
        let Some(held) = self.held.get_mut(&instance) else { return };
        let busy = !held.complete
            || (held.moving && !planted(Bug::MemoryFreedBeforeMoved))
            || (held.reads > 0 && !planted(Bug::ReadersIgnored));
        if busy {
            return;
        }
        let unused = !held.is_wanted();
        self.drafts_in_memory -= u64::from(held.is_draft_in_memory() && (unused || held.on_ssd));
        self.rooms.free_up(held.mount, held.takes());
        if let Some(piece) = held.piece.take_if(|_| unused || held.on_ssd) {
            self.at.remove(&piece);
            self.buffers.gone(piece);
        }
        if !unused {
            self.rooms.take(held.mount, held.takes());
        } else if let Some(held) = self.held.remove(&instance) {
            self.rooms.went(instance, &held);
            if held.on_ssd {
                self.effects.push_back(Effect::FreeSsd(instance));
            }
        }
    }
}
