//! The warden: ends what nobody ends any more, has benefactors drop what nobody needs, and has lost copies made again ([`Repairs`]).
//!
//! It rests on no message: it compares what benefactors have with what the store has, again and again. Almost all that it says is true for
//! ever, however late it arrives: an inode is used once, a session that has ended stays so, and a version that a later one has replaced never
//! comes back. Which benefactors a layout names may change, though: a benefactor drops nothing for not being named if a warden has had
//! something brought to it since that was read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{BenefactorId, Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::{FileState, Key, Kind, Node, Prefix, Role, Stored, Value};
use surgetank_pool_core::repair::{InStore, Inventory, Of, Word, reconcile};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::repair::Repairs;
use super::{Manager, locks};
use crate::benefactor::Benefactor;
use crate::chunks::{self, News};
use crate::meta::Unavailable;

/// How long a benefactor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Sweeps for ever, and has copies made again, while this manager is the warden.
pub(super) async fn run(manager: &Arc<Manager>) {
    let (mut seen, mut repairs) = (Revision(0), None);
    // Who would replace the key sees from now on that a manager runs.
    if let Err(error) = manager.holds(Role::Warden).await {
        tracing::warn!("{error}");
    }
    loop {
        tokio::time::sleep(manager.config.sweep).await;
        let Some(since) = manager.holds_since(Role::Warden).await.unwrap_or(None) else {
            // What is under way ends with it: nothing of it would be recorded any more.
            (seen, repairs) = (Revision(0), None);
            continue;
        };
        if repairs.as_ref().is_none_or(|repairs: &Repairs| repairs.since() != since) {
            repairs = Some(Repairs::new(since, manager.config.repair));
        }
        let Some(repairs) = &mut repairs else { continue };
        let swept = async {
            seen = files(manager, seen, &repairs.on_leaving(manager)).await?;
            locks::sweep(manager).await?;
            chunks(manager, repairs).await?;
            repairs.look(manager).await
        };
        if let Err(error) = swept.await {
            tracing::warn!("{error}");
        }
        // The next copy begins when one has ended, not with the next sweep.
        let until = Instant::now() + manager.config.sweep;
        while tokio::time::timeout_at(until, repairs.ended(manager)).await.is_ok() {
            if let Err(error) = repairs.go_on(manager).await {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Files that somebody has open for writing.
pub(super) fn written(writers: &[(Key, Stored)]) -> BTreeSet<Inode> {
    let of = |(key, _): &(Key, Stored)| match key {
        Key::Writer(inode, _) => Some(*inode),
        _ => None,
    };
    writers.iter().filter_map(of).collect()
}

/// Looks at all files if anything changed: files whose writers are gone, unlinked ones that nobody has open, and, if benefactors are short
/// of room, those that the target has; so do those that lie at benefactors which are taken out (`leaving`).
async fn files(manager: &Manager, seen: Revision, leaving: &BTreeSet<Inode>) -> Result<Revision, Unavailable> {
    let short = manager.members.are_short();
    let read = manager.store.read(&[], &[Prefix::Nodes, Prefix::AllWriters]).await?;
    if read.revision <= seen && !short && leaving.is_empty() {
        return Ok(seen);
    }
    let [nodes, writers] = &read.prefixes[..] else { return Ok(seen) };
    let written = written(writers);
    let mut drained = Vec::new();
    for (key, stored) in nodes {
        let (Key::Node(inode), Value::Node(node)) = (key, &stored.value) else { continue };
        let inode = *inode;
        let written = written.contains(&inode);
        if node.kind == Kind::File(FileState::Drained) && node.at.is_some() {
            drained.push((written, stored.modified, inode));
        }
        if !matches!(node.kind, Kind::File(_)) || written {
            continue;
        }
        // Of a file without a version nothing was committed: it is torn, and the target does not see it.
        let lost = node.version > node.journalled || (node.version == Version::NONE && !node.torn);
        match &node.at {
            Some(_) if lost => {
                let operation = Operation::WriterLost { inode, journal: manager.number()? };
                manager.commits.perform(&operation).await?;
            }
            None if node.published >= node.journalled => {
                manager.commits.perform(&Operation::Forget { inode }).await?;
            }
            _ => {}
        }
    }
    drained.retain(|(.., inode)| short || leaving.contains(inode));
    if !drained.is_empty() {
        drained.sort_unstable();
        for (.., inode) in drained {
            manager.commits.perform(&Operation::Evict { inode, changes: manager.number()? }).await?;
        }
    }
    Ok(read.revision)
}

/// Has benefactors drop what nobody needs.
async fn chunks(manager: &Arc<Manager>, repairs: &mut Repairs) -> Result<(), Unavailable> {
    let fence = repairs.fence();
    let mut asked = JoinSet::new();
    for member in manager.members.all() {
        asked.spawn(async move {
            let inventory = member.peer.ask::<Benefactor>(chunks::Request::Inventory, ANSWER).await;
            (member, inventory)
        });
    }
    let mut inventories = Vec::new();
    while let Some(Ok((member, answer))) = asked.join_next().await {
        if let Ok(chunks::Reply::Inventory(inventory)) = answer {
            repairs.refetch(manager, &member, &inventory.damaged);
            inventories.push((member, inventory.has));
        }
    }
    // Whoever is in an inventory had begun before it. One that is no session afterwards has ended, and commits nothing any more: what
    // is read of its files from now on is all that it ever committed.
    let read = manager.store.read(&[], &[Prefix::Sessions]).await?;
    let sessions: BTreeSet<SessionId> = read
        .prefixes
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| match key {
            Key::Session(session) => Some(session),
            _ => None,
        })
        .collect();
    let mut files = BTreeMap::new();
    for (_, inventory) in &inventories {
        for inode in inodes(inventory) {
            if let Entry::Vacant(vacant) = files.entry(inode) {
                vacant.insert(file(manager, inode).await?);
            }
        }
    }
    // What is being brought stays so until this manager looks again.
    let brought = repairs.brought();
    let mut told = JoinSet::new();
    for (member, inventory) in inventories {
        let view = View { of: member.lends.place.id, sessions: &sessions, files: &files, brought: &brought };
        let words: Vec<Word> =
            reconcile(&inventory, &view).into_iter().filter(|word| matters(word, &inventory)).collect();
        if !words.is_empty() {
            let news = News { withdrawn: Vec::new(), words: Some((fence, words)) };
            // If it does not arrive, the next inventory says the same.
            told.spawn(async move { member.peer.ask::<Benefactor>(chunks::Request::Forget(news), ANSWER).await });
        }
    }
    told.join_all().await;
    Ok(())
}

fn inodes(inventory: &Inventory) -> BTreeSet<Inode> {
    let tables = inventory.tables.iter().map(|of| of.group.inode);
    let drafts = inventory.drafts.iter().map(|(_, inode)| *inode);
    let copies = inventory.copies.iter().map(|(_, inode)| *inode);
    tables.chain(drafts).chain(copies).chain(inventory.of_unknown_mounts.iter().copied()).collect()
}

/// Whether a word changes anything at a benefactor with this inventory.
fn matters(word: &Word, inventory: &Inventory) -> bool {
    match word {
        Word::InStore(group, versions) => {
            inventory.tables.iter().any(|of| of.group == *group && !versions.contains(&(of.version, of.by)))
        }
        Word::Evicted(inode, version) => {
            inventory.tables.iter().any(|of| of.group.inode == *inode && of.version <= *version)
        }
        Word::SessionEnded(session, never) => {
            let has_draft = inventory.drafts.iter().any(|(other, _)| other == session);
            has_draft || !never.is_empty() || inventory.withdrawn.contains(session)
        }
        Word::Forgotten(_) | Word::ForgetTable(_) | Word::Obsolete(_) | Word::AbandonCopy(_) | Word::IsOf(..) => true,
    }
}

/// What the store has of a file.
#[derive(Default)]
struct File {
    node: Option<Node>,
    groups: BTreeMap<GroupOf, BTreeMap<(Version, SessionId), BTreeSet<BenefactorId>>>,
}

async fn file(manager: &Manager, inode: Inode) -> Result<File, Unavailable> {
    let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
    let node = match read.keys.into_iter().next().flatten().map(|stored| stored.value) {
        Some(Value::Node(node)) => Some(node),
        _ => None,
    };
    let mut file = File { node, ..File::default() };
    for (key, stored) in read.prefixes.into_iter().flatten() {
        if let (Key::Group(inode, group, version), Value::Group(of)) = (key, stored.value) {
            let named = of.layout.places().into_iter().map(|place| place.id).collect();
            file.groups.entry(GroupOf { inode, group }).or_default().insert((version, of.by), named);
        }
    }
    Ok(file)
}

/// The store, as one benefactor's inventory is compared with it.
struct View<'a> {
    of: BenefactorId,
    sessions: &'a BTreeSet<SessionId>,
    files: &'a BTreeMap<Inode, File>,
    brought: &'a BTreeSet<(Of, BenefactorId)>,
}

impl InStore for View<'_> {
    fn version(&self, inode: Inode) -> Option<Version> {
        self.files.get(&inode)?.node.as_ref().map(|node| node.version)
    }

    fn mount(&self, inode: Inode) -> Option<MountId> {
        self.files.get(&inode)?.node.as_ref().map(|node| node.mount)
    }

    fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    /// Sessions put what they write: wardens alone have copies fetched.
    fn is_copied(&self, inode: Inode) -> bool {
        self.brought.iter().any(|(of, to)| of.group.inode == inode && *to == self.of)
    }

    fn evicted(&self, inode: Inode) -> Option<Version> {
        let node = self.files.get(&inode)?.node.as_ref()?;
        (node.kind == Kind::File(FileState::Evicted)).then_some(node.version)
    }

    fn versions(&self, group: GroupOf) -> BTreeMap<(Version, SessionId), bool> {
        let stored = self.files.get(&group.inode).and_then(|file| file.groups.get(&group));
        let named = |(version, by): &(Version, SessionId), places: &BTreeSet<BenefactorId>| {
            let of = Of { group, version: *version, by: *by };
            places.contains(&self.of) || self.brought.contains(&(of, self.of))
        };
        stored.into_iter().flatten().map(|(key, places)| (*key, named(key, places))).collect()
    }
}
