//! The warden: ends what nobody ends any more, and has benefactors drop what nobody needs.
//!
//! It rests on no message: it compares what benefactors have with what the store has, again and again. What it says is true for ever,
//! however late it arrives: an inode is used once, a session that has ended stays so, and a table that the store lacks although the file
//! has that version is never committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{Inode, Revision, SessionId, Version};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::{FileState, Key, Kind, Node, Prefix, Role, Value};

use super::Manager;
use super::members::Member;
use crate::benefactor::Benefactor;
use crate::chunks::{self, Inventory, News};
use crate::meta::Unavailable;

/// A benefactor is short of room if less than a part in this many is free.
const SHORT: u64 = 4;
/// How long a benefactor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Sweeps for ever, while this manager is the warden.
pub(super) async fn run(manager: &Arc<Manager>) {
    let mut seen = Revision(0);
    loop {
        tokio::time::sleep(manager.config.sweep).await;
        if !manager.holds(Role::Warden).await.unwrap_or(false) {
            seen = Revision(0);
            continue;
        }
        let swept = async {
            seen = files(manager, seen).await?;
            chunks(manager).await
        };
        if let Err(error) = swept.await {
            tracing::warn!("{error}");
        }
    }
}

/// Looks at all files if anything changed: files whose writers are gone, unlinked ones that nobody has open, and, if benefactors are short
/// of room, those that the target has.
async fn files(manager: &Manager, seen: Revision) -> Result<Revision, Unavailable> {
    let short =
        manager.members.all().iter().filter_map(|member| member.alive).any(|alive| alive.credits * SHORT < alive.of);
    let read = manager.store.read(&[], &[Prefix::Nodes, Prefix::AllWriters]).await?;
    if read.revision <= seen && !short {
        return Ok(seen);
    }
    let [nodes, writers] = &read.prefixes[..] else { return Ok(seen) };
    let written: BTreeSet<Inode> = writers
        .iter()
        .filter_map(|(key, _)| match key {
            Key::Writer(inode, _) => Some(*inode),
            _ => None,
        })
        .collect();
    let mut drained = Vec::new();
    for (key, stored) in nodes {
        let (Key::Node(inode), Value::Node(node)) = (key, &stored.value) else { continue };
        let inode = *inode;
        if !matches!(node.kind, Kind::File(_)) || written.contains(&inode) {
            continue;
        }
        let lost = node.version > node.journalled;
        match &node.at {
            Some(_) if lost => {
                let operation = Operation::WriterLost { inode, journal: manager.number()? };
                manager.commits.perform(&operation, None).await?;
            }
            Some(_) if node.kind == Kind::File(FileState::Drained) => drained.push((stored.modified, inode)),
            None if node.published >= node.journalled => {
                manager.commits.perform(&Operation::Forget { inode }, None).await?;
            }
            _ => {}
        }
    }
    if short {
        drained.sort_unstable();
        for (_, inode) in drained {
            manager.commits.perform(&Operation::Evict { inode }, None).await?;
        }
    }
    Ok(read.revision)
}

/// Has benefactors drop what nobody needs.
async fn chunks(manager: &Manager) -> Result<(), Unavailable> {
    let mut inventories = Vec::new();
    for member in manager.members.all() {
        if let Ok(chunks::Reply::Inventory(inventory)) =
            member.peer.ask::<Benefactor>(chunks::Request::Inventory, ANSWER).await
        {
            inventories.push((member, inventory));
        }
    }
    // Whoever is in an inventory had begun before it. One that is no session afterwards has ended, and commits nothing any more: what
    // is read of its files from now on is all that it ever committed.
    let read = manager.store.read(&[], &[Prefix::Sessions]).await?;
    let alive: BTreeSet<SessionId> = read
        .prefixes
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| match key {
            Key::Session(session) => Some(session),
            _ => None,
        })
        .collect();
    for (member, inventory) in inventories {
        let news = news(manager, &alive, &inventory).await?;
        tell(&member, news).await;
    }
    Ok(())
}

async fn tell(member: &Member, news: News) {
    if news.obsolete.is_empty() && news.ended.is_empty() && news.forgotten.is_empty() {
        return;
    }
    // If it does not arrive, the next inventory says the same.
    let _ = member.peer.ask::<Benefactor>(chunks::Request::Forget(news), ANSWER).await;
}

/// What a benefactor with this inventory need not keep.
async fn news(manager: &Manager, alive: &BTreeSet<SessionId>, inventory: &Inventory) -> Result<News, Unavailable> {
    let mut files: BTreeMap<Inode, Option<(Node, BTreeSet<chunks::TableOf>)>> = BTreeMap::new();
    let inodes = inventory.files.iter().copied().chain(inventory.tables.iter().map(|(of, ..)| of.inode));
    for inode in inodes.collect::<BTreeSet<Inode>>() {
        let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
        let committed = read.prefixes.into_iter().flatten().filter_map(|(key, stored)| match (key, stored.value) {
            (Key::Group(inode, group, version), Value::Group(of)) => Some((GroupOf { inode, group }, version, of.by)),
            _ => None,
        });
        let committed: BTreeSet<chunks::TableOf> = committed.collect();
        let node = read.keys.into_iter().next().flatten().map(|stored| stored.value);
        let file = match node {
            Some(Value::Node(node)) => Some((node, committed)),
            _ => None,
        };
        files.insert(inode, file);
    }
    let mut news = News::default();
    for (inode, file) in &files {
        if file.is_none() {
            news.forgotten.insert(*inode);
        }
    }
    for table in &inventory.tables {
        let (of, version, _) = table;
        if let Some(Some((node, committed))) = files.get(&of.inode)
            && *version <= node.version
            && !committed.contains(table)
        {
            news.obsolete.insert(*table);
        }
    }
    for session in inventory.sessions.iter().filter(|session| !alive.contains(session)) {
        let committed = files.values().flatten().flat_map(|(_, committed)| committed);
        let own = committed.filter(|(_, _, by)| by == session).map(|(of, version, _)| (*of, *version));
        news.ended.insert(*session, own.collect::<BTreeSet<(GroupOf, Version)>>());
    }
    Ok(news)
}
