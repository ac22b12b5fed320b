//! Whose chunks take the room: of each mount, and of files of which it is not known yet to which they belong.

use std::collections::{BTreeMap, BTreeSet};

use super::{Held, Holdings, Instance};
use crate::benefactor::sharing;
use crate::id::{Inode, MountId};
use crate::planted::{Bug, planted};

/// Bytes that a mount's chunks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Of memory.
    pub memory: u64,
    /// Of the SSD; what is being written there counts.
    pub ssd: u64,
    /// Of the SSD, once what is not there yet is; what is being written there counts, as it may not count in what is free there.
    pub to_ssd: u64,
}

impl Taken {
    const fn and(self, more: Self) -> Self {
        Self { memory: self.memory + more.memory, ssd: self.ssd + more.ssd, to_ssd: self.to_ssd + more.to_ssd }
    }

    /// Planted bugs end what is under way twice.
    const fn without(self, less: Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(less.memory),
            ssd: self.ssd.saturating_sub(less.ssd),
            to_ssd: self.to_ssd.saturating_sub(less.to_ssd),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Rooms {
    taken: BTreeMap<Option<MountId>, Taken>,
    /// All mounts' together.
    all: Taken,
    /// What is of no known mount.
    unknown: BTreeMap<Inode, BTreeSet<Instance>>,
}

impl Rooms {
    pub(super) const fn new() -> Self {
        Self { taken: BTreeMap::new(), all: Taken { memory: 0, ssd: 0, to_ssd: 0 }, unknown: BTreeMap::new() }
    }

    pub(super) fn of(&self, mount: Option<MountId>) -> Taken {
        self.taken.get(&mount).copied().unwrap_or_default()
    }

    pub(super) fn take(&mut self, mount: Option<MountId>, more: Taken) {
        let taken = self.taken.entry(mount).or_default();
        (*taken, self.all) = (taken.and(more), self.all.and(more));
    }

    pub(super) fn free_up(&mut self, mount: Option<MountId>, less: Taken) {
        if planted(Bug::ReturnedRoomCounts) {
            return;
        }
        let Some(taken) = self.taken.get_mut(&mount) else { return };
        (*taken, self.all) = (taken.without(less), self.all.without(less));
        if *taken == Taken::default() {
            self.taken.remove(&mount);
        }
    }

    /// A chunk has come.
    pub(super) fn came(&mut self, instance: Instance, held: &Held) {
        if held.mount.is_none() {
            self.unknown.entry(held.inode).or_default().insert(instance);
        }
    }

    /// A chunk has gone.
    pub(super) fn went(&mut self, instance: Instance, held: &Held) {
        if let Some(of) = self.unknown.get_mut(&held.inode) {
            of.remove(&instance);
            if of.is_empty() {
                self.unknown.remove(&held.inode);
            }
        }
    }
}

impl Holdings {
    /// Chunks that can be promised, to whichever mount.
    #[must_use]
    pub fn credits(&self) -> u64 {
        self.buffers.credits()
    }

    /// Chunks that can be promised to a mount and leave room for what others had and nobody has committed: of three benefactors of which one
    /// dies, each of the two gets half as much more as it has. What goes to an SSD with so many free bytes needs none.
    #[must_use]
    pub fn spare_credits(&self, mount: Option<MountId>, free_ssd: u64) -> u64 {
        let (has, free, chunk) = (self.rooms.of(mount).memory, self.buffers.free(), self.buffers.chunk());
        let passed_on = sharing::allowance(has, free, chunk, true).min(self.credits_on_ssd(mount, free_ssd));
        let may = sharing::allowance(has, free, chunk, false).max(passed_on).min(self.credits());
        let moves = free_ssd / self.chunk_on_ssd();
        may.saturating_sub((self.drafts_in_memory / 2).saturating_sub(moves))
    }

    /// Chunks of a mount for which an SSD has room of which so many bytes are free, beside all that is in memory.
    #[must_use]
    pub fn credits_on_ssd(&self, mount: Option<MountId>, free: u64) -> u64 {
        let Taken { ssd, to_ssd, .. } = self.rooms.of(mount);
        sharing::allowance(ssd + to_ssd, free.saturating_sub(self.rooms.all.to_ssd), self.chunk_on_ssd(), false)
    }

    fn chunk_on_ssd(&self) -> u64 {
        super::bytes_on_ssd(u32::try_from(self.buffers.chunk()).unwrap_or(u32::MAX))
    }

    /// Bytes of memory in no chunk.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.buffers.free()
    }

    /// What a mount's chunks take.
    #[must_use]
    pub fn taken(&self, mount: Option<MountId>) -> Taken {
        self.rooms.of(mount)
    }

    /// What the chunks of each mount take, as far as it is known whose they are.
    pub fn taken_by_mounts(&self) -> impl Iterator<Item = (MountId, Taken)> {
        self.rooms.taken.iter().filter_map(|(mount, taken)| Some(((*mount)?, *taken)))
    }

    /// Files of which it is not known to which mount they belong: for inventories.
    #[must_use]
    pub fn of_unknown_mounts(&self) -> BTreeSet<Inode> {
        self.rooms.unknown.keys().copied().collect()
    }

    /// A file belongs to that mount.
    pub fn is_of(&mut self, inode: Inode, mount: MountId) {
        for instance in self.rooms.unknown.remove(&inode).unwrap_or_default() {
            let Some(held) = self.held.get_mut(&instance) else { continue };
            held.mount = Some(mount);
            let taken = held.takes();
            if let Some(piece) = held.piece {
                self.buffers.is_of(piece, mount);
            }
            self.rooms.free_up(None, taken);
            self.rooms.take(Some(mount), taken);
        }
    }
}
