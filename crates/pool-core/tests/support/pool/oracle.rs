//! What was promised, by what the world saw: transactions of the store, answers of clients, and what benefactors physically have.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_pool_core::benefactor::holdings::{GroupOf, Table};
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::store::{Transaction, Write};
use surgetank_pool_core::meta::value::{Group, Value};
use surgetank_pool_core::meta::{Key, Prefix};
use surgetank_pool_core::placement::{Media, Place, Stripe};

use super::nodes::ToNode;
use super::{Event, World};

/// How durable a file is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub copies: u32,
    pub media: Media,
}

/// What is known of a file.
pub struct File {
    pub policy: Policy,
    /// The newest version of which a client heard.
    pub acknowledged: Version,
}

/// A read that is under way: what the store had when it began.
pub struct Reading {
    pub inode: Inode,
    pub version: Version,
    pub groups: BTreeMap<u32, (Version, Group)>,
}

/// What a read found.
pub enum Content {
    All(BTreeMap<u32, BTreeMap<u32, u64>>),
    /// Nobody has the chunks of this group.
    Failed(u32),
    /// It is not what was committed.
    Wrong(String),
}

/// See the module.
pub struct Oracle {
    pub policies: Vec<Policy>,
    pub files: BTreeMap<Inode, File>,
    /// Tables that were committed, by the digest of the group.
    pub tables: Vec<Table>,
    /// Which table each group of a version has.
    history: BTreeMap<(Inode, Version), BTreeMap<u32, usize>>,
    /// Files that may have lost something.
    pub lossable: BTreeSet<Inode>,
    pub any_lost: bool,
    pub evicted: BTreeSet<Inode>,
    pub published: BTreeSet<(Inode, Version)>,
    pub unlinks: BTreeSet<Inode>,
}

impl Oracle {
    pub fn new(policies: Vec<Policy>) -> Self {
        Self {
            policies,
            files: BTreeMap::new(),
            tables: Vec::new(),
            history: BTreeMap::new(),
            lossable: BTreeSet::new(),
            any_lost: false,
            evicted: BTreeSet::new(),
            published: BTreeSet::new(),
            unlinks: BTreeSet::new(),
        }
    }

    pub fn opened(&mut self, inode: Inode, policy: Policy) {
        self.files.entry(inode).or_insert(File { policy, acknowledged: Version::NONE });
    }

    /// So many benefactors have lost their memory at once: files with no more copies may be lost, unless they are on SSD.
    pub fn memory_lost(&mut self, at_once: u32) {
        for (inode, file) in &self.files {
            if file.policy.media == Media::Any && file.policy.copies <= at_once {
                self.lossable.insert(*inode);
                self.any_lost = true;
            }
        }
    }

    /// The chunks of a version.
    pub fn chunks_of(&self, inode: Inode, version: Version) -> BTreeMap<(u32, u32), u64> {
        let groups = self.history.get(&(inode, version)).into_iter().flatten();
        groups
            .flat_map(|(group, table)| {
                self.tables[*table].iter().map(move |(chunk, entry)| ((*group, *chunk), entry.instance.number))
            })
            .collect()
    }
}

impl World {
    /// Which places of the layouts that a transaction commits are in the life that it names, by the store.
    pub(super) fn places_registered(&self, transaction: &Transaction) -> BTreeSet<Place> {
        let groups = transaction.writes.iter().filter_map(|write| match write {
            Write::Put(Key::Group(..), Value::Group(group)) => Some(group.layout.places()),
            _ => None,
        });
        groups.flatten().filter(|place| self.is_registered(*place)).collect()
    }

    /// A transaction took place in the store.
    pub(super) fn took_place(
        &mut self,
        transaction: &Transaction,
        before: &BTreeMap<Key, Option<Value>>,
        registered: BTreeSet<Place>,
    ) {
        let mut told = BTreeSet::new();
        for write in &transaction.writes {
            match write {
                Write::Put(Key::Group(inode, index, version), Value::Group(group)) => {
                    told.insert(GroupOf { inode: *inode, group: *index });
                    let former = match before.get(write.key()) {
                        Some(Some(Value::Group(former))) => Some(former),
                        _ => None,
                    };
                    match former {
                        Some(former) => self.relocated((*inode, *index, *version), former, group, &registered),
                        None => self.committed((*inode, *index, *version), group, &registered),
                    }
                }
                Write::Delete(Key::Group(inode, index, _)) => {
                    told.insert(GroupOf { inode: *inode, group: *index });
                }
                _ => {}
            }
        }
        for write in &transaction.writes {
            if let Write::Put(Key::Node(inode), Value::Node(node)) = write {
                self.look_at_node(*inode, node.version);
            }
        }
        self.tell(told);
    }

    /// A group of a new version.
    fn committed(
        &mut self,
        (inode, index, version): (Inode, u32, Version),
        group: &Group,
        registered: &BTreeSet<Place>,
    ) {
        self.report.commits += 1;
        let previous = self.oracle.history.range((inode, Version::NONE)..(inode, version)).next_back();
        let inherited = previous.map(|(_, groups)| groups.clone()).unwrap_or_default();
        let digest = group.digest as usize;
        self.oracle.history.entry((inode, version)).or_insert(inherited).insert(index, digest);
        let Some(policy) = self.oracle.files.get(&inode).map(|file| file.policy) else { return };
        let stripe = Stripe::new(&group.layout);
        let table = self.oracle.tables[digest].clone();
        for (at, column) in (0..).zip(&group.layout.columns) {
            let domains: BTreeSet<_> = column.places.iter().map(|place| self.nodes[&place.id].domain).collect();
            if domains.len() != policy.copies as usize {
                self.wrong(format!(
                    "{inode} {version:?} is committed with {:?} for {} copies",
                    column.places, policy.copies
                ));
            }
            for place in &column.places {
                if !registered.contains(place) {
                    self.wrong(format!("{inode} {version:?} is committed with {place:?}, which is not in that life"));
                }
                let node = &self.nodes[&place.id];
                let is_here = node.holdings.is_some() && node.place() == *place;
                let part = table.iter().filter(|(chunk, _)| stripe.column((**chunk).into()) == at);
                let lacks = |number: u64| !node.has(number, policy.media == Media::Ssd);
                let missing = part.map(|(_, entry)| entry.instance.number).find(|number| is_here && lacks(*number));
                if let Some(number) = missing {
                    self.wrong(format!("{inode} {version:?} is committed with {place:?}, which has no chunk {number}"));
                }
            }
        }
    }

    /// A place of a version is replaced.
    fn relocated(
        &mut self,
        (inode, index, version): (Inode, u32, Version),
        former: &Group,
        group: &Group,
        registered: &BTreeSet<Place>,
    ) {
        let fresh: Vec<Place> =
            group.layout.places().into_iter().filter(|place| !former.layout.places().contains(place)).collect();
        for place in fresh {
            if !registered.contains(&place) {
                self.wrong(format!("{inode} {version:?} moves to {place:?}, which is not in that life"));
                continue;
            }
            let stripe = Stripe::new(&group.layout);
            let table = &self.oracle.tables[group.digest as usize];
            let node = &self.nodes[&place.id];
            if node.holdings.is_none() || node.place() != place {
                continue;
            }
            let mine = |chunk: u32| group.layout.columns[stripe.column(chunk.into())].places.contains(&place);
            let part = table.iter().filter(|(chunk, _)| mine(**chunk));
            let missing = part.map(|(_, entry)| entry.instance.number).find(|number| !node.has(*number, false));
            if let Some(number) = missing {
                self.wrong(format!(
                    "group {index} of {inode} {version:?} moves to {place:?}, which has no chunk {number}"
                ));
            }
        }
    }

    /// What a file's node says, its groups must have, or the target.
    fn look_at_node(&mut self, inode: Inode, version: Version) {
        let Some(history) = self.oracle.history.get(&(inode, version)) else { return };
        let groups = self.groups_at(inode, version);
        let has: BTreeMap<u32, usize> =
            groups.iter().map(|(index, (_, group))| (*index, group.digest as usize)).collect();
        if has == *history {
            return;
        }
        self.oracle.evicted.insert(inode);
        self.report.evicted += 1;
        if !self.oracle.published.contains(&(inode, version)) {
            self.wrong(format!("{inode} {version:?} has left the pool, and the target does not have it"));
        }
    }

    /// The groups of a version that the store still has.
    pub(super) fn groups_at(&self, inode: Inode, version: Version) -> BTreeMap<u32, (Version, Group)> {
        let groups = self.store.under(Prefix::Groups(inode)).filter_map(|(key, stored)| match (key, &stored.value) {
            (Key::Group(_, index, of), Value::Group(group)) if *of <= version => Some((*index, (*of, group.clone()))),
            _ => None,
        });
        groups.collect()
    }

    /// Benefactors hear of what has become of groups.
    fn tell(&mut self, groups: BTreeSet<GroupOf>) {
        for of in groups {
            let all =
                self.store.under(Prefix::Groups(of.inode)).filter_map(|(key, stored)| match (key, &stored.value) {
                    (Key::Group(_, index, version), Value::Group(group)) if *index == of.group => {
                        Some((*version, group.clone()))
                    }
                    _ => None,
                });
            let all: Vec<(Version, Group)> = all.collect();
            let versions: BTreeSet<_> = all.iter().map(|(version, group)| (*version, group.by)).collect();
            let places: BTreeSet<Place> = all.iter().flat_map(|(_, group)| group.layout.places()).collect();
            for place in places {
                self.send(|| Event::ToNode(place.id, 0, ToNode::InStore(of, versions.clone())));
            }
        }
    }

    /// A client was told that a version counts, with at least these chunks of a group.
    pub(super) fn acknowledged(&mut self, inode: Inode, version: Version, group: u32, covered: &BTreeMap<u32, u64>) {
        self.report.acknowledged += 1;
        let chunks = self.oracle.chunks_of(inode, version);
        for (chunk, number) in covered {
            // What was written later may count already.
            if chunks.get(&(group, *chunk)).is_none_or(|has| has < number) {
                self.wrong(format!("{inode} {version:?} is acknowledged without chunk {number}: {chunks:?}"));
                return;
            }
        }
        if let Some(file) = self.oracle.files.get_mut(&inode) {
            file.acknowledged = file.acknowledged.max(version);
        }
    }

    /// What the store has of a file: its newest version, or the one that the target is to have.
    pub(super) fn snapshot(&mut self, inode: Inode, of: Option<Version>) -> Option<Reading> {
        let version = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node.version,
            _ => return None,
        };
        let acknowledged = self.oracle.files.get(&inode).map_or(Version::NONE, |file| file.acknowledged);
        if version < acknowledged {
            self.wrong(format!("{inode} has {version:?}, and {acknowledged:?} was acknowledged"));
        }
        let version = of.unwrap_or(version);
        Some(Reading { inode, version, groups: self.groups_at(inode, version) })
    }

    /// Reads what the benefactors have of it, whatever life they are in.
    pub(super) fn read_content(&mut self, reading: &Reading) -> Content {
        let Reading { inode, version, groups } = reading;
        let mut all = BTreeMap::new();
        for (index, (of_version, group)) in groups {
            let of = GroupOf { inode: *inode, group: *index };
            let stripe = Stripe::new(&group.layout);
            let mut chunks = BTreeMap::new();
            for (at, column) in (0..).zip(&group.layout.columns) {
                let read = column.places.iter().find_map(|place| {
                    let node = self.nodes.get_mut(&place.id)?;
                    let table = node.holdings.as_ref()?.tables_of(of).remove(&(*of_version, group.by))?;
                    let part = table.keys().filter(|chunk| stripe.column((**chunk).into()) == at);
                    let mut read = BTreeMap::new();
                    for chunk in part {
                        let (entry, location) = node.holdings.as_mut()?.find(of, *of_version, group.by, *chunk)?;
                        // A checksum refuses what is not what the table says.
                        let content =
                            node.content(entry.instance, location).filter(|number| *number as u32 == entry.crc);
                        node.holdings.as_mut()?.read(entry.instance);
                        read.insert(*chunk, content?);
                    }
                    Some(read)
                });
                match read {
                    Some(read) => chunks.extend(read),
                    None => return Content::Failed(*index),
                }
            }
            let expected = self.oracle.history.get(&(*inode, *version)).and_then(|groups| groups.get(index));
            let expected: BTreeMap<u32, u64> = expected
                .map(|table| {
                    self.oracle.tables[*table].iter().map(|(chunk, entry)| (*chunk, entry.instance.number)).collect()
                })
                .unwrap_or_default();
            if chunks != expected {
                return Content::Wrong(format!("{chunks:?} as group {index} of {inode} {version:?}, not {expected:?}"));
            }
            all.insert(*index, chunks);
        }
        Content::All(all)
    }

    /// Ends a read; `must`: all is calm, so that only what may be lost may fail.
    pub(super) fn check_read(&mut self, reading: &Reading, must: bool) {
        self.report.reads += 1;
        match self.read_content(reading) {
            Content::Wrong(what) => self.wrong(format!("a read has {what}")),
            Content::Failed(index) if must && !self.oracle.lossable.contains(&reading.inode) => {
                let Reading { inode, version, groups } = reading;
                let group = groups.get(&index);
                let of = GroupOf { inode: *inode, group: index };
                let has: Vec<_> = self
                    .nodes
                    .values()
                    .map(|node| {
                        let tables = node.holdings.as_ref().map(|holdings| holdings.tables_of(of));
                        let chunks = node.ssd.values().filter(|(of, ..)| of == inode);
                        (node.place(), tables, chunks.map(|(_, _, number)| *number).collect::<Vec<_>>())
                    })
                    .filter(|(_, tables, chunks)| !chunks.is_empty() || tables.iter().any(|tables| !tables.is_empty()))
                    .collect();
                let what = format!("group {index} of {inode} {version:?} is lost: {group:?}; benefactors have {has:?}");
                self.wrong(what);
            }
            _ => {}
        }
    }

    /// Reads every file that has a name.
    pub(super) fn read_all(&mut self) -> Result<(), String> {
        let inodes: Vec<Inode> = self.oracle.files.keys().copied().collect();
        for inode in inodes {
            if let Some(reading) = self.snapshot(inode, None) {
                self.check_read(&reading, true);
            }
        }
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// Whether everything that was promised has all its copies, by what those that the layouts name physically have, in whatever life. What
    /// others have, left of attempts, nobody finds.
    pub(super) fn census(&self) -> Result<(), String> {
        for (key, stored) in super::all_keys(&self.store) {
            let (Key::Group(inode, index, version), Value::Group(group)) = (key, &stored.value) else { continue };
            let Some(policy) = self.oracle.files.get(inode).map(|file| file.policy) else { continue };
            if self.oracle.lossable.contains(inode) {
                continue;
            }
            let of = GroupOf { inode: *inode, group: *index };
            let stripe = Stripe::new(&group.layout);
            for (chunk, entry) in &self.oracle.tables[group.digest as usize] {
                let places = &group.layout.columns[stripe.column((*chunk).into())].places;
                let nodes = places.iter().map(|place| &self.nodes[&place.id]);
                let number = entry.instance.number;
                let has = nodes.filter(|node| {
                    let table = node.holdings.as_ref().and_then(|holdings| holdings.table(of, *version, group.by));
                    let names = table.and_then(|table| table.get(chunk)) == Some(entry);
                    names && node.has(number, policy.media == Media::Ssd)
                });
                let domains: BTreeSet<_> = has.map(|node| node.domain).collect();
                if domains.len() < policy.copies as usize {
                    return Err(format!("chunk {number} of {of:?} {version:?} has {} copies", domains.len()));
                }
            }
        }
        Ok(())
    }
}
