//! Drains files that somebody writes, when room is short: what is committed of them goes to a draft at the target, and leaves the pool. So a
//! file may be larger than the pool, and who writes it is slowed down to what the target takes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance};
use surgetank_pool_core::id::{Inode, MountId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal, Taken};
use surgetank_pool_core::meta::value::{self, Base, Change};
use surgetank_pool_core::meta::{FileState, Group, Key, Kind, Node, Prefix, Role, Value};
use surgetank_pool_core::parity::{ELSEWHERE, still_the_same, whole_rows};
use surgetank_pool_core::placement::Stripe;
use surgetank_pool_core::publishing;
use tokio::time::Instant;

use super::Manager;
use super::answers::{groups, values};
use super::drain::{Drain, Of, open_base, write_group};
use super::protocol::Ended;
use super::publisher::on_target;
use super::target::Target;
use crate::chunks::CHUNK;
use crate::meta::Unavailable;
use crate::span;

/// Groups that are drained at a time: they are recorded in one transaction.
const GROUPS: usize = 16;
/// Files that are read from the store at a time.
const FILES: usize = 64;
/// How often a record is attempted that somebody's commit was faster than.
const ATTEMPTS: usize = 4;

/// Drafts that nobody else writes: this process made them, and everything that it had written there was answered. Into any other, old bytes may
/// come late.
#[derive(Default)]
pub(super) struct Own {
    /// Those on which files rest.
    pub(super) of: BTreeMap<Inode, u64>,
    /// Those of files of which nothing has left the pool by them yet: the next attempt goes on with them.
    pub(super) begun: BTreeMap<Inode, Begun>,
}

/// See [`Own::begun`].
#[derive(Clone, Copy)]
pub(super) struct Begun {
    draft: u64,
    /// What the file rested on then.
    on: Option<Base>,
    /// The draft has what the base alone has.
    copied: bool,
}

/// Drains of the file that has most to drain, of those that are written; of another if nothing can leave the pool of that. Whether something
/// left it.
pub(super) async fn drain(
    manager: &Arc<Manager>,
    mount: MountId,
    target: &Target,
    own: &mut Own,
) -> Result<bool, Unavailable> {
    let files = largest_first(manager, mount).await?;
    own.begun.retain(|inode, _| files.contains(inode));
    for inode in files {
        let Some((node, known)) = open_file(manager, mount, inode).await? else { continue };
        if drain_file(manager, (mount, target), (inode, node, known), own).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn drain_file(
    manager: &Arc<Manager>,
    (mount, target): (MountId, &Target),
    (inode, node, known): (Inode, Node, Vec<Of>),
    own: &mut Own,
) -> Result<bool, Unavailable> {
    let former = node.rests_on();
    let of = with_tables(manager, inode, chosen(&node, known)).await;
    if of.is_empty() {
        // A draft would be made in vain.
        return Ok(false);
    }
    let place = path(manager, &node).await?.map(|path| target.at(&path));
    let since = Instant::now();
    let Draft { mut begun, file, base } = match draft(manager, target, (inode, &node), own).await? {
        Ok(draft) => draft,
        Err(error) => {
            manager.troubles.of(target, place.as_deref(), &format_args!("a draft: {error}"));
            return Ok(false);
        }
    };
    let (drained, answered) = fill(manager, (target, place.as_deref()), &file, inode, of).await;
    if !drained.is_empty() && !begun.copied {
        // Only now: what cannot be drained costs no copy of a large file.
        let (written, at) = (ranges(&drained), file.clone());
        match on_target(target, move |target| target.copy_but(base.as_ref(), &at, &written)).await {
            Ok(()) => begun.copied = true,
            Err(error) => {
                manager.troubles.of(target, place.as_deref(), &format_args!("what its draft is to have: {error}"))
            }
        }
    }
    if answered && !begun.copied {
        // Others may need the room.
        let at = file.clone();
        if let Err(error) = on_target(target, move |target| target.empty(&at)).await {
            manager.troubles.of(target, place.as_deref(), &format_args!("a draft of which nothing counts: {error}"));
        }
    }
    let recorded = match drained.is_empty() || !begun.copied {
        true => false,
        false => record(manager, (mount, inode), former, begun.draft, &drained).await?,
    };
    match recorded {
        true => manager.rate.ended(inode),
        false => manager.rate.failed(inode, since),
    }
    let rests = recorded || former.and_then(|base| base.draft) == Some(begun.draft);
    match (answered, rests) {
        (true, true) => drop(own.of.insert(inode, begun.draft)),
        (true, false) => drop(own.begun.insert(inode, begun)),
        (false, true) => {}
        // What the store has of it is asked when it is removed: the answer to the record may be lost.
        (false, false) => drop(remove_unused(manager, (mount, target), own).await?),
    }
    Ok(recorded)
}

/// Removes drafts on which nothing rests, but for those that the next attempt goes on with; whether none is left.
pub(super) async fn remove_unused(
    manager: &Manager,
    (mount, target): (MountId, &Target),
    own: &Own,
) -> Result<bool, Unavailable> {
    let drafts = match on_target(target, Target::drafts).await {
        Ok(drafts) => drafts,
        Err(error) => {
            manager.troubles.of(target, None, &format_args!("drafts: {error}"));
            return Ok(false);
        }
    };
    let mut left = false;
    for (inode, draft) in drafts {
        if own.begun.get(&inode).is_some_and(|begun| begun.draft == draft) {
            left = true;
            continue;
        }
        let keys = [Key::Node(inode), Key::Owner(Role::Publisher(mount))];
        let read = manager.store.read(&keys, &[]).await?;
        let (node, owner) = match &values(&read)[..] {
            [node, owner] => (*node, *owner),
            _ => (None, None),
        };
        match publishing::Draft::of(draft, node, owner, manager.tenure.manager()) {
            publishing::Draft::OfAnother => return Ok(false),
            publishing::Draft::Needed => left = true,
            publishing::Draft::Unused => {
                if let Err(error) = on_target(target, move |target| target.remove_draft(inode, draft)).await {
                    let text = format_args!("a draft of file {inode} on which nothing rests: {error}");
                    manager.troubles.of(target, None, &text);
                    left = true;
                }
            }
        }
    }
    Ok(!left)
}

/// The files of a mount that are written and can be drained, that of which the pool has most first.
async fn largest_first(manager: &Manager, mount: MountId) -> Result<Vec<Inode>, Unavailable> {
    let read = manager.store.read(&[], &[Prefix::AllWriters]).await?;
    let written: BTreeSet<Inode> = read
        .prefixes
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| match key {
            Key::Writer(inode, _) => Some(inode),
            _ => None,
        })
        .collect();
    let written: Vec<Inode> = written.into_iter().collect();
    let mut files: Vec<(usize, Inode)> = Vec::new();
    for part in written.chunks(FILES) {
        let keys: Vec<Key> = part.iter().copied().map(Key::Node).collect();
        let prefixes: Vec<Prefix> = part.iter().copied().map(Prefix::Groups).collect();
        let read = manager.store.read(&keys, &prefixes).await?;
        for ((inode, node), of) in part.iter().zip(read.keys).zip(read.prefixes) {
            let Some(Value::Node(node)) = node.map(|stored| stored.value) else { continue };
            let known = groups(of.into_iter(), node.version);
            let present: usize = known.iter().map(|(.., group)| group.present().count()).sum();
            if is_open(&node, mount) && present > 0 {
                files.push((present, *inode));
            }
        }
    }
    files.sort_unstable_by_key(|(present, _)| Reverse(*present));
    Ok(files.into_iter().map(|(_, inode)| inode).collect())
}

/// Whether a file that is written can be drained: nothing of it waits to be published.
fn is_open(node: &Node, mount: MountId) -> bool {
    node.mount == mount && node.kind == Kind::File(FileState::Replicated) && node.published >= node.journalled
}

/// Such a file as the store has it now.
async fn open_file(manager: &Manager, mount: MountId, inode: Inode) -> Result<Option<(Node, Vec<Of>)>, Unavailable> {
    let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
    let Some(Value::Node(node)) = read.keys.into_iter().next().flatten().map(|stored| stored.value) else {
        return Ok(None);
    };
    let known = groups(read.prefixes.into_iter().flatten(), node.version);
    Ok(is_open(&node, mount).then_some((node, known)))
}

/// Its groups of which the pool has something, those that were written longest ago first: the newest may be written on at this moment, and is
/// drained when nothing else is left.
fn chosen(node: &Node, known: Vec<Of>) -> Vec<Of> {
    let mut present: Vec<Of> = known.into_iter().filter(|(.., group)| group.present().next().is_some()).collect();
    if present.iter().any(|(_, version, _)| *version < node.version) {
        present.retain(|(_, version, _)| *version < node.version);
    }
    present.sort_unstable_by_key(|(index, version, _)| (*version, *index));
    present.truncate(GROUPS);
    present
}

/// A draft that is to be filled.
struct Draft {
    begun: Begun,
    file: PathBuf,
    /// What the draft does not have yet of what the file rests on.
    base: Option<File>,
}

/// The draft on which a file rests, or one that is begun.
async fn draft(
    manager: &Arc<Manager>,
    target: &Target,
    (inode, node): (Inode, &Node),
    own: &mut Own,
) -> Result<std::io::Result<Draft>, Unavailable> {
    let (on, of, earlier) = (node.rests_on(), own.of.remove(&inode), own.begun.remove(&inode));
    let with = |begun: Begun, base| Draft { begun, file: target.draft(inode, begun.draft), base };
    if let Some(draft) = on.and_then(|base| base.draft).filter(|draft| of == Some(*draft)) {
        return Ok(Ok(with(Begun { draft, on, copied: true }, None)));
    }
    let earlier = earlier.filter(|begun| begun.on == on);
    if let Some(begun) = earlier.filter(|begun| begun.copied) {
        return Ok(Ok(with(begun, None)));
    }
    let base = match on {
        Some(base) => {
            let path = path(manager, node).await?;
            if path.is_none() && base.draft.is_none() {
                return Ok(Err(std::io::Error::other("what was published has no name any more")));
            }
            // As if it were to be published there: a rename that waits leaves it elsewhere until then.
            let change = Change::Publish { inode, version: node.version, path: path.unwrap_or_default() };
            match open_base(manager, target, (node.mount, inode), base, (&change, false)).await? {
                Ok(file) => Some(file),
                Err(error) => return Ok(Err(error)),
            }
        }
        None => None,
    };
    if let Some(begun) = earlier {
        return Ok(Ok(with(begun, base)));
    }
    let (draft, owner) = (manager.number()?, node.owner);
    let made = on_target(target, move |target| target.make_draft((inode, draft), owner)).await;
    Ok(made.map(|()| with(Begun { draft, on, copied: false }, base)))
}

/// Where chunks lie in their file, in order.
fn ranges(drained: &[Drained]) -> Vec<(u64, u64)> {
    let chunks = drained.iter().flat_map(|of| {
        let first = span::of_group(of.group.0).0;
        of.chunks.keys().map(move |chunk| first + u64::from(*chunk) * CHUNK)
    });
    let mut ranges: Vec<_> = chunks.map(|first| (first, first + CHUNK)).collect();
    ranges.sort_unstable();
    ranges
}

/// Where a file is, by its first name.
pub(super) async fn path(manager: &Manager, node: &Node) -> Result<Option<value::Path>, Unavailable> {
    let (mut names, mut at) = (Vec::new(), node.at.clone());
    if at.is_none() {
        return Ok(None);
    }
    while let Some((directory, name)) = at {
        names.push(name);
        let read = manager.store.read(&[Key::Node(directory)], &[]).await?;
        let Some(Value::Node(above)) = read.keys.into_iter().next().flatten().map(|stored| stored.value) else {
            return Ok(None);
        };
        at = above.at;
    }
    names.reverse();
    Ok(Some(value::Path(names)))
}

/// A group that was drained: with which writings.
struct Drained {
    group: Of,
    chunks: BTreeMap<u32, Instance>,
}

/// Those of some groups whose tables benefactors have, with these: what is drained is compared with what is there afterwards by the writings
/// that they name.
async fn with_tables(manager: &Manager, inode: Inode, of: Vec<Of>) -> Vec<(Of, BTreeMap<u32, Entry>)> {
    let mut all = Vec::new();
    for (index, at, group) in of {
        if let Some(table) = table(manager, inode, (index, at, &group)).await {
            all.push(((index, at, group), table));
        }
    }
    all
}

/// Has groups written into a draft; those of which all was written and verified, and whether all that was asked for was answered.
async fn fill(
    manager: &Arc<Manager>,
    (target, place): (&Target, Option<&Path>),
    file: &Path,
    inode: Inode,
    of: Vec<(Of, BTreeMap<u32, Entry>)>,
) -> (Vec<Drained>, bool) {
    let (mut all, mut answered) = (Vec::new(), true);
    for ((index, at, group), table) in of {
        let written = write_group(manager, file, inode, (&index, &at, &group), group.present()).await;
        let written = match written {
            Ok(written) => {
                answered &= written.answered;
                match written.chunks {
                    Ok(chunks) => chunks,
                    Err(why) => {
                        if let Drain::Refused(why) = why {
                            manager.troubles.of(target, place, &why);
                        }
                        continue;
                    }
                }
            }
            Err(error) => {
                manager.troubles.of(target, place, &error);
                answered = false;
                continue;
            }
        };
        let (_, digest) = span::digest(written.values().copied());
        let is_whole = group.present().all(|chunk| written.contains_key(&chunk) && table.contains_key(&chunk));
        if is_whole && digest == group.digest {
            let chunks = written.keys().map(|chunk| (*chunk, table[chunk].instance)).collect();
            all.push(Drained { group: (index, at, group), chunks });
        }
    }
    (all, answered)
}

/// What the benefactors' tables say of the chunks that the pool has of a group; `None`: they do not say it of all.
async fn table(
    manager: &Manager,
    inode: Inode,
    (index, at, group): (u32, Version, &Group),
) -> Option<BTreeMap<u32, Entry>> {
    let of = (GroupOf { inode, group: index }, at, group.by);
    let mut columns: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    if !group.layout.columns.is_empty() {
        let stripe = Stripe::new(&group.layout);
        for chunk in group.present() {
            columns.entry(stripe.column(chunk.into())).or_default().insert(chunk);
        }
    }
    let mut all = BTreeMap::new();
    for (column, mut unknown) in columns {
        for place in &group.layout.columns.get(column)?.places {
            if unknown.is_empty() {
                break;
            }
            let Some(member) = manager.members.newest(place.id) else { continue };
            for (number, entry) in member.table(of).await.into_iter().flatten() {
                let number = number & !ELSEWHERE;
                if unknown.remove(&number) {
                    all.insert(number, entry);
                }
            }
        }
        if !unknown.is_empty() {
            return None;
        }
    }
    Some(all)
}

/// Has the store say that chunks have left the pool, as far as nobody has written over them meanwhile.
async fn record(
    manager: &Manager,
    (mount, inode): (MountId, Inode),
    former: Option<Base>,
    draft: u64,
    drained: &[Drained],
) -> Result<bool, Unavailable> {
    for _ in 0..ATTEMPTS {
        let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
        let Some(Value::Node(node)) = read.keys.into_iter().next().flatten().map(|stored| stored.value) else {
            return Ok(false);
        };
        if node.published < node.journalled || node.rests_on() != former {
            return Ok(false);
        }
        let mut left = Vec::new();
        for (index, at, group) in groups(read.prefixes.into_iter().flatten(), node.version) {
            let Some(of) = drained.iter().find(|of| of.group.0 == index) else { continue };
            if let Some(taken) = taken(manager, inode, of, (index, at, &group)).await {
                left.push((index, at, taken));
            }
        }
        if left.is_empty() {
            return Ok(false);
        }
        let (publisher, draft) = (manager.tenure.manager(), (draft, manager.number()?));
        let operation = Operation::DrainedEarly { publisher, mount, inode, former, draft, groups: left };
        match manager.commits.perform(&operation).await? {
            Ended::Reply(_) | Ended::Before => return Ok(true),
            Ended::Refused(Refusal::Version(_)) => {}
            Ended::Refused(refusal) => {
                tracing::debug!("file {inode}: {refusal}");
                return Ok(false);
            }
        }
    }
    Ok(false)
}

/// What leaves the pool of a group as it is now.
async fn taken(
    manager: &Manager,
    inode: Inode,
    drained: &Drained,
    (index, at, group): (u32, Version, &Group),
) -> Option<Taken> {
    if at == drained.group.1 {
        return Some(Taken { chunks: drained.chunks.keys().copied().collect(), digest: 0 });
    }
    let now = table(manager, inode, (index, at, group)).await?;
    let chunks = still_the_same(&drained.chunks, group.present(), &now);
    // What stays of a row has to be protected by its parity.
    let chunks = match group.layout.parity {
        Some(of) => whole_rows(of, group.present(), &chunks),
        None => chunks,
    };
    let stay = now.iter().filter(|(chunk, _)| !chunks.contains(chunk));
    let (_, digest) = span::digest(stay.map(|(_, entry)| (entry.length, entry.crc)));
    (!chunks.is_empty()).then_some(Taken { chunks, digest })
}
