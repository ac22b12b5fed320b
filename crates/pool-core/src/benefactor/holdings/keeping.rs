//! What a benefactor has besides what sessions write: copies that repair brings, and what its SSD had when its process began.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Admission, Effect, Entry, GroupOf, Held, Holdings, Instance, Location, Missing, NotAdopted, Put, SealOrder, Table,
    own,
};
use crate::benefactor::buffers::Buffers;
use crate::id::{Incarnation, Inode, SessionId, Version};
use crate::planted::{Bug, planted};

impl Holdings {
    /// A process that begins with what the SSD of its former life has: chunks, and the tables that it sealed. A table of which a chunk was
    /// in memory alone is gone, and so is every chunk that no table names: no session may name it any more, since a session
    /// names what this life has acknowledged.
    #[must_use]
    pub fn restored(
        incarnation: Incarnation,
        buffers: Buffers,
        chunks: impl IntoIterator<Item = (Inode, Entry)>,
        tables: impl IntoIterator<Item = ((GroupOf, Version, SessionId), Table)>,
    ) -> Self {
        let mut holdings = Self::new(incarnation, buffers, true);
        let held = |inode, entry: &Entry| Held {
            inode,
            mount: None,
            length: entry.length,
            crc: entry.crc,
            piece: None,
            complete: true,
            moving: false,
            on_ssd: true,
            damaged: false,
            reads: 0,
            draft: false,
            copying: false,
            named: 0,
        };
        holdings.held = chunks.into_iter().map(|(inode, entry)| (entry.instance, held(inode, &entry))).collect();
        for (instance, held) in &holdings.held {
            holdings.rooms.take(None, held.takes());
            holdings.rooms.came(*instance, held);
        }
        for (key, table) in tables {
            if own(&table).all(|(_, entry)| holdings.held.contains_key(&entry.instance)) {
                for (_, entry) in own(&table) {
                    if let Some(held) = holdings.held.get_mut(&entry.instance) {
                        held.named += 1;
                    }
                }
                holdings.tables.insert(key, table);
            } else {
                holdings.tables_over.push_back(key);
            }
        }
        let all: Vec<Instance> = holdings.held.keys().copied().collect();
        all.into_iter().for_each(|instance| holdings.drop_if_unused(instance));
        holdings
    }

    /// A copy of a chunk comes in from another benefactor, for a version that the store has. Its session may have ended. So many
    /// bytes of the SSD are free.
    pub fn put_copy(&mut self, put: &Put, free_ssd: u64) -> Admission {
        if put.incarnation != self.incarnation {
            return Admission::Stale;
        }
        let instance = put.entry.instance;
        if self.held.get(&instance).is_some_and(|held| held.damaged) {
            return self.replace_damaged(put, true, free_ssd);
        }
        if let Some(held) = self.held.get_mut(&instance) {
            // One that came damaged goes, and comes anew.
            if held.complete && !held.is_wanted() {
                return Admission::Full;
            }
            held.copying = true;
            return if held.complete { Admission::Here } else { Admission::Coming };
        }
        self.reserve(put, (false, true), true, free_ssd)
    }

    /// A place of a version of a group moves here: these are the chunks that it has. They are added to the table of that version if what
    /// that has was committed: `named`, the version's layout names this benefactor in this life already, or repair brought it. Any
    /// other table is in the way until its warden knows whether it counts: a session may have sealed it for a commit that named other
    /// benefactors and never took place, or a former life may have left it and a layout that is newer than what its warden knows may
    /// name it. No later seal changes what was adopted.
    ///
    /// # Errors
    /// [`NotAdopted`]; nothing changes.
    pub fn adopt(
        &mut self,
        (of, version, by): (GroupOf, Version, SessionId),
        part: &Table,
        named: bool,
    ) -> Result<(), NotAdopted> {
        let missing: Vec<u32> =
            own(part).filter(|(_, entry)| !self.is_here(of.inode, entry)).map(|(index, _)| *index).collect();
        if !missing.is_empty() {
            return Err(NotAdopted::Missing(Missing(missing)));
        }
        let key = (of, version, by);
        let mut table = part.clone();
        if let Some(former) = self.tables.get(&key) {
            // Whatever repair brought before, by whichever watcher, is of what was committed as well.
            let counts = named || self.orders.get(&key) == Some(&SealOrder::ADOPTED);
            if !counts && !planted(Bug::AdoptedBesideSealed) {
                return Err(NotAdopted::InTheWay);
            }
            for (index, entry) in former {
                table.entry(*index).or_insert(*entry);
            }
        }
        self.orders.insert(key, SealOrder::ADOPTED);
        self.name(key, table);
        self.sweep(of);
        Ok(())
    }

    /// A chunk's bytes are others than those that came: nobody gets them from now on. `false`: that was known.
    pub fn damaged(&mut self, instance: Instance) -> bool {
        let held = self.held.get_mut(&instance).filter(|held| held.complete && !held.damaged);
        held.map(|held| held.damaged = true).is_some()
    }

    /// The chunks that are damaged, with the tables that name them: they are to be fetched from others.
    #[must_use]
    pub fn all_damaged(&self) -> Vec<((GroupOf, Version, SessionId), u32)> {
        let is_damaged = |entry: &Entry| self.held.get(&entry.instance).is_some_and(|held| held.damaged);
        if !self.held.values().any(|held| held.damaged) {
            return Vec::new();
        }
        let tables = self.tables.iter();
        tables
            .flat_map(|(key, table)| own(table).map(move |(index, entry)| (*key, *index, entry)))
            .filter(|(.., entry)| is_damaged(entry))
            .map(|(key, index, _)| (key, index))
            .collect()
    }

    /// The same writing comes again in the place of one that is damaged.
    pub(super) fn replace_damaged(&mut self, put: &Put, copying: bool, free_ssd: u64) -> Admission {
        let instance = put.entry.instance;
        let Some(held) = self.held.get(&instance) else { return Admission::Full };
        // Whoever reads or moves it still uses its former room.
        if held.reads > 0 || held.moving {
            return Admission::Full;
        }
        let former = held.clone();
        let admission = self.reserve(put, (former.draft, former.copying || copying), true, free_ssd);
        if !matches!(admission, Admission::Room(_)) {
            return admission;
        }
        if let Some(piece) = former.piece {
            self.at.remove(&piece);
            self.buffers.gone(piece);
        }
        if former.on_ssd {
            self.effects.push_back(Effect::FreeSsd(instance));
        }
        if let Some(held) = self.held.get_mut(&instance) {
            held.named = former.named;
        }
        admission
    }

    /// What is here and somebody may ask for, now or later, with its bytes: for scrubbing.
    pub fn wanted(&self) -> impl Iterator<Item = (Instance, u32)> {
        let all = self.held.iter().filter(|(_, held)| held.is_wanted() && held.is_readable());
        all.map(|(instance, held)| (*instance, held.length))
    }

    /// Where an instance is, if somebody may ask for it, and what it must look like. Its bytes stay there until [`Holdings::read`].
    pub fn find_instance(&mut self, instance: Instance) -> Option<(Entry, Location)> {
        let held = self.held.get_mut(&instance)?;
        if !held.is_wanted() || !held.is_readable() {
            return None;
        }
        held.reads += 1;
        let entry = Entry { instance, length: held.length, crc: held.crc };
        Some((entry, held.piece.map_or(Location::Ssd, Location::Memory)))
    }

    /// Whether something may be moved to SSD, or is over there.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        self.ssd && (!self.effects.is_empty() || !self.tables_over.is_empty() || self.buffers.has_full())
    }

    /// Whether the filling buffer has as much as is moved together, so that an SSD that has nothing else to do need not wait.
    #[must_use]
    pub fn fills_batch(&self) -> bool {
        self.ssd && self.buffers.fills_batch()
    }

    /// Bytes that are moved together, at most.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.buffers.batch()
    }

    /// A table whose record on SSD is over. One of the same name may have been sealed since.
    pub fn next_table_over(&mut self) -> Option<(GroupOf, Version, SessionId)> {
        self.tables_over.pop_front()
    }

    /// A copy that repair brought is not needed after all.
    pub fn abandon_copy(&mut self, instance: Instance) {
        if let Some(held) = self.held.get_mut(&instance) {
            held.copying = false;
            self.drop_if_unused(instance);
        }
    }

    /// The store has this version, and its layout does not name this benefactor: it has the table in vain.
    pub fn forget_table(&mut self, of: GroupOf, version: Version, by: SessionId) {
        self.unseal((of, version, by));
    }

    /// The file has left the pool with this version, or a later one: the target has it.
    pub fn evicted(&mut self, inode: Inode, version: Version) {
        let tables: Vec<_> =
            self.tables.keys().filter(|(of, at, _)| of.inode == inode && *at <= version).copied().collect();
        tables.into_iter().for_each(|key| self.unseal(key));
    }

    /// Whether a chunk is on SSD: one that must survive a power cut counts from then on.
    #[must_use]
    pub fn is_on_ssd(&self, instance: Instance) -> bool {
        self.held.get(&instance).is_some_and(|held| held.on_ssd && !held.damaged)
    }

    /// The record of a chunk that the SSD's log has beside its bytes: the file, and what it is.
    #[must_use]
    pub fn record(&self, instance: Instance) -> Option<(Inode, Entry)> {
        let held = self.held.get(&instance)?;
        Some((held.inode, Entry { instance, length: held.length, crc: held.crc }))
    }

    /// The tables that it has, for inventories.
    pub fn tables(&self) -> impl Iterator<Item = (&(GroupOf, Version, SessionId), &Table)> {
        self.tables.iter()
    }

    /// Drafts of sessions, for inventories.
    pub fn drafts(&self) -> impl Iterator<Item = (Instance, Inode)> {
        self.held.iter().filter(|(_, held)| held.draft).map(|(instance, held)| (*instance, held.inode))
    }

    /// Sessions that have withdrawn what may still come, for inventories.
    #[must_use]
    pub fn withdrawn_by(&self) -> BTreeSet<SessionId> {
        self.withdrawn.iter().map(|instance| instance.session).collect()
    }

    /// Copies that no table names yet, for inventories.
    pub fn copies(&self) -> impl Iterator<Item = (Instance, Inode)> {
        self.held.iter().filter(|(_, held)| held.copying).map(|(instance, held)| (*instance, held.inode))
    }

    /// The tables of a group, by their versions and who sealed them.
    #[must_use]
    pub fn tables_of(&self, of: GroupOf) -> BTreeMap<(Version, SessionId), Table> {
        let all = (of, Version::NONE, SessionId(0))..=(of, Version(u64::MAX), SessionId(u64::MAX));
        self.tables.range(all).map(|((_, version, by), table)| ((*version, *by), table.clone())).collect()
    }
}
