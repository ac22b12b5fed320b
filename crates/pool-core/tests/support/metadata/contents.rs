//! What files contain: which bytes the pool has, which a draft has, which the target has. Each writing of a chunk has a number.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::{Operation, Taken};
use surgetank_pool_core::meta::value::{Base, Value};
use surgetank_pool_core::meta::{Group, Key, Node, Prefix, Role, Stored};
use surgetank_pool_core::placement::{CHUNK, Layout};
use surgetank_pool_core::publishing::Draft;
use surgetank_pool_core::runs::Runs;

use super::{MOUNT, World};

/// The writing of a hole.
const ZEROS: u64 = 0;
/// Chunks of each group.
pub(super) const CHUNKS: u32 = 3;

/// A chunk of a file.
type At = (u32, u32);
/// Which writing of each chunk somewhere is.
type Bytes = BTreeMap<At, u64>;

/// See the module.
#[derive(Default)]
pub(super) struct Contents {
    /// The writings of which each committed group consists, by its digest.
    of: BTreeMap<u32, Vec<u64>>,
    writings: u64,
    /// Writings that the pool was told to drop.
    left: BTreeSet<u64>,
    drafts: BTreeMap<(Inode, u64), Bytes>,
    published: BTreeMap<Inode, Bytes>,
    /// Which publisher has made a draft.
    made_by: BTreeMap<u64, u64>,
    /// What publishers that were replaced have had written, and is not yet.
    late: Vec<((Inode, u64), At, u64)>,
}

impl World {
    fn node(&self, inode: Inode) -> Option<Node> {
        match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => Some(node.clone()),
            _ => None,
        }
    }

    /// The groups of a version, as the store has them.
    fn stored(&self, inode: Inode, version: Version) -> BTreeMap<u32, (Version, Group)> {
        let groups = self.store.under(Prefix::Groups(inode)).filter_map(|(key, stored)| match (key, &stored.value) {
            (Key::Group(_, index, at), Value::Group(group)) if *at <= version => Some((*index, (*at, group.clone()))),
            _ => None,
        });
        // In the order of their versions: the newest stays.
        groups.collect()
    }

    fn at_base(&self, inode: Inode, base: Option<Base>, at: At) -> Option<u64> {
        let bytes = match base?.draft {
            Some(draft) => self.contents.drafts.get(&(inode, draft)),
            None => self.contents.published.get(&inode),
        };
        bytes?.get(&at).copied()
    }

    /// Gives a group that is to be committed its chunks: written anew, or as they are now, wherever they lie.
    pub(super) fn fill(&mut self, inode: Inode, index: u32, group: &mut Group) {
        let node = self.node(inode);
        let newest = node.as_ref().and_then(|node| self.stored(inode, node.version).remove(&index));
        let known = self.truth.content(inode).and_then(|(_, _, groups)| groups.get(&index).copied());
        let former = known.map(|digest| self.contents.of[&digest].clone());
        let mut writings = Vec::new();
        for chunk in 0..CHUNKS {
            let kept = former.as_ref().filter(|_| self.random.chance(0.4)).map(|former| former[chunk as usize]);
            let is_absent = newest.as_ref().is_none_or(|(_, newest)| newest.is_absent(chunk));
            if kept.is_some() && is_absent {
                group.absent.insert(chunk);
            } else if kept == Some(ZEROS) || kept.is_none() && self.random.chance(0.2) {
                // As a hole it replaces whatever the base has there.
                group.holes.insert(chunk);
                writings.push(ZEROS);
                continue;
            }
            self.contents.writings += 1;
            writings.push(kept.unwrap_or(self.contents.writings));
        }
        group.bytes = u64::from(CHUNKS) * CHUNK.get();
        if group.present().next().is_none() {
            if self.random.chance(0.5) {
                // Nothing of it is in the pool.
                (group.layout, group.absent) = (Layout::NONE, Runs::NONE);
            } else {
                group.absent.remove(0);
                group.holes.remove(0);
                self.contents.writings += 1;
                writings[0] = self.contents.writings;
            }
        }
        self.contents.of.insert(group.digest, writings);
    }

    /// The publisher writes what the pool has of a file into a draft, and records it.
    pub(super) fn drain_early(&mut self) {
        let publisher = self.publisher.0;
        let under_way = |operation: &Operation| matches!(operation, Operation::DrainedEarly { publisher: by, .. } if *by == publisher);
        // One after the other.
        if self.doing.values().any(|doing| under_way(&doing.operation)) {
            return;
        }
        let files = self.truth.files();
        let Some((inode, node)) = self.pick(&files).and_then(|inode| Some((inode, self.node(inode)?))) else { return };
        let former = node.rests_on();
        let own =
            former.and_then(|base| base.draft).filter(|draft| self.contents.made_by.get(draft) == Some(&publisher));
        if node.published < node.journalled {
            return;
        }
        let draft = match own {
            Some(draft) => draft,
            None => {
                let fresh = self.number();
                let bytes = match former.map(|base| base.draft) {
                    Some(Some(draft)) => self.contents.drafts.get(&(inode, draft)).cloned(),
                    Some(None) => self.contents.published.get(&inode).cloned(),
                    None => None,
                };
                self.contents.drafts.insert((inode, fresh), bytes.unwrap_or_default());
                self.contents.made_by.insert(fresh, publisher);
                fresh
            }
        };
        let mut taken = Vec::new();
        for (index, (version, group)) in self.stored(inode, node.version) {
            let present: BTreeSet<u32> = group.present().collect();
            for chunk in &present {
                let writing = self.contents.of[&group.digest][*chunk as usize];
                // Bytes of a former publisher may come when the next one has begun.
                match self.random.chance(0.1) && !self.calm {
                    true => self.contents.late.push(((inode, draft), (index, *chunk), writing)),
                    false => drop(self.draft_of(inode, draft).insert((index, *chunk), writing)),
                }
            }
            if !present.is_empty() {
                taken.push((index, version, Taken { chunks: present, digest: group.digest }));
            }
        }
        let late = self.contents.late.iter().any(|(of, ..)| *of == (inode, draft));
        if late {
            // It was not answered: nobody writes into that draft any more, and nothing is recorded.
            self.contents.made_by.remove(&draft);
            return;
        }
        if !taken.is_empty() {
            let (publisher, draft) = (publisher, (draft, self.number()));
            self.begin(Operation::DrainedEarly { publisher, mount: MOUNT, inode, former, draft, groups: taken });
        }
    }

    /// A publisher, or one that does not know yet that it was replaced, has seen a draft, and removes it if nothing rests on it.
    pub(super) fn remove_unused(&mut self) {
        let drafts: Vec<(Inode, u64)> = self.contents.drafts.keys().copied().collect();
        let Some((inode, draft)) = self.pick(&drafts) else { return };
        let own = self.publisher.0 - self.random.below(2);
        // A publisher records before it looks.
        let records =
            |operation: &Operation| matches!(operation, Operation::DrainedEarly { publisher, .. } if *publisher == own);
        if self.doing.values().any(|doing| records(&doing.operation)) {
            return;
        }
        let (node, owner) = (self.store.get(&Key::Node(inode)), self.store.get(&Key::Owner(Role::Publisher(MOUNT))));
        let value = |stored: Option<&'_ Stored>| stored.map(|stored| stored.value.clone());
        if Draft::of(draft, value(node).as_ref(), value(owner).as_ref(), own) == Draft::Unused {
            self.contents.drafts.remove(&(inode, draft));
        }
    }

    fn draft_of(&mut self, inode: Inode, draft: u64) -> &mut Bytes {
        self.contents.drafts.entry((inode, draft)).or_default()
    }

    pub(super) fn come_late(&mut self) {
        if let Some((of, at, writing)) = self.contents.late.pop() {
            self.draft_of(of.0, of.1).insert(at, writing);
        }
    }

    /// What has left the pool by an operation that took place.
    pub(super) fn leave(&mut self, operation: &Operation, before: &BTreeMap<u32, (Version, Group)>) {
        let mut left = Vec::new();
        match operation {
            Operation::DrainedEarly { groups, .. } => {
                for (index, _, taken) in groups {
                    if let Some((_, group)) = before.get(index) {
                        let writings = &self.contents.of[&group.digest];
                        left.extend(taken.chunks.iter().map(|chunk| writings[*chunk as usize]));
                    }
                }
            }
            Operation::Evict { .. } => {
                for (_, group) in before.values() {
                    left.extend(group.present().map(|chunk| self.contents.of[&group.digest][chunk as usize]));
                }
            }
            _ => {}
        }
        self.contents.left.extend(left);
    }

    /// The newest groups of the file that an operation takes chunks of.
    pub(super) fn taken_from(&self, operation: &Operation) -> BTreeMap<u32, (Version, Group)> {
        match operation {
            Operation::DrainedEarly { inode, .. } | Operation::Evict { inode, .. } => {
                self.stored(*inode, Version(u64::MAX))
            }
            _ => BTreeMap::new(),
        }
    }

    /// Every chunk of a version is where the store says that it is.
    pub(super) fn can_be_read(
        &self,
        inode: Inode,
        version: Version,
        digests: &BTreeMap<u32, u32>,
    ) -> Result<(), String> {
        let base = self.node(inode).and_then(|node| node.rests_on());
        let stored = self.stored(inode, version);
        for (index, digest) in digests {
            let group = stored.get(index).map(|(_, group)| group);
            if group.is_some_and(|group| group.digest != *digest) {
                return Err(format!("group {index} of {inode} is another: {group:?}"));
            }
            for chunk in 0..CHUNKS {
                let writing = self.contents.of[digest][chunk as usize];
                if let Some(group) = group.filter(|group| group.is_hole(chunk)) {
                    if writing != ZEROS {
                        return Err(format!("chunk {chunk} of {inode} {version:?} is a hole: {group:?}"));
                    }
                    continue;
                }
                match group.is_none_or(|group| group.is_absent(chunk)) {
                    true if self.at_base(inode, base, (*index, chunk)) != Some(writing) => {
                        return Err(format!(
                            "chunk {chunk} of group {index} of {inode} {version:?} is not in {base:?}"
                        ));
                    }
                    false if self.contents.left.contains(&writing) => {
                        return Err(format!("chunk {chunk} of group {index} of {inode} {version:?} has left the pool"));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A version has its name at the target.
    pub(super) fn has_name(&mut self, inode: Inode, digests: &BTreeMap<u32, u32>) {
        let chunks = digests.iter().flat_map(|(index, digest)| {
            let writings = self.contents.of[digest].iter().copied();
            (0..).zip(writings).map(|(chunk, writing)| ((*index, chunk), writing))
        });
        let bytes: Bytes = chunks.collect();
        self.contents.published.insert(inode, bytes);
    }
}
