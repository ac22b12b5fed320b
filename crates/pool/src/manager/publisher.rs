//! The publisher of a mount: has benefactors write what was closed into files without a name, verifies them, and makes the mount's changes at
//! the target in the order of the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{Inode, MountId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal};
use surgetank_pool_core::meta::value::{Change, Mount, Placed};
use surgetank_pool_core::meta::{Group, Key, Name, Node, Prefix, Role, Stored, Value};
use surgetank_pool_core::placement::{Column, Stripe};
use surgetank_pool_core::publishing::{self, Effect, Publisher};
use tokio::task::JoinSet;

use super::Manager;
use super::answers::groups;
use super::protocol::Ended;
use super::target::Target;
use crate::benefactor::Benefactor;
use crate::chunks::{self, CHUNK, DrainPart};
use crate::meta::Unavailable;
use crate::span;

/// Files that are drained at a time.
const DRAINS: usize = 4;
/// Chunks that a benefactor is asked for at a time.
const PART: usize = 64;
/// How long it may take to write them.
const PART_TIME: Duration = Duration::from_secs(120);
/// The pause before a target or benefactor is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two looks at the journal.
const LOOK: Duration = Duration::from_secs(1);

/// Publishes for every mount whose publisher this manager is.
pub(super) async fn run(manager: &Arc<Manager>) {
    let (mut known, mut tasks) = (BTreeSet::new(), JoinSet::new());
    loop {
        if let Ok(read) = manager.store.read(&[], &[Prefix::Mounts]).await {
            for (key, stored) in read.prefixes.into_iter().flatten() {
                if let (Key::Mount(id), Value::Mount(mount)) = (key, stored.value)
                    && known.insert(id)
                {
                    // A stuck target holds up its own mount only.
                    tasks.spawn(publish(Arc::clone(manager), id, mount));
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn publish(manager: Arc<Manager>, id: MountId, mount: Mount) {
    let target = Target::new(PathBuf::from(&mount.target), id, manager.tenure.manager());
    let mut work: Option<Work> = None;
    loop {
        if !manager.holds(Role::Publisher(id)).await.unwrap_or(false) {
            work = None;
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        if work.is_none() {
            match on_target(&target, Target::take_over).await {
                Ok(()) => {
                    work = Some(Work {
                        manager: Arc::clone(&manager),
                        id,
                        target: target.clone(),
                        publisher: Publisher::new(),
                        made: BTreeMap::new(),
                    })
                }
                Err(error) => tracing::warn!("mount `{}`: {}: {error}", mount.name, mount.target),
            }
        }
        let Some(present) = &mut work else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        match present.step().await {
            Ok(Step::Nothing(revision)) => {
                let _ = tokio::time::timeout(LOOK, manager.store.changed(revision)).await;
            }
            Ok(Step::Done) => {}
            Ok(Step::Later) => tokio::time::sleep(PAUSE).await,
            Ok(Step::NotThePublisher) => work = None,
            Err(error) => {
                tracing::warn!("mount `{}`: {error}", mount.name);
                // What was to be recorded may not be: it is looked at anew.
                work = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Works on a target, which may be slow or stuck, apart from everything else.
async fn on_target<T: Send + 'static>(
    target: &Target,
    work: impl FnOnce(&Target) -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let target = target.clone();
    tokio::task::spawn_blocking(move || work(&target)).await.unwrap_or_else(|error| Err(Error::other(error)))
}

/// How far a step has come.
enum Step {
    /// The journal was empty at this revision.
    Nothing(surgetank_pool_core::id::Revision),
    Done,
    /// A target or a benefactor does not answer, or refuses.
    Later,
    /// Another manager publishes.
    NotThePublisher,
}

/// How a drain ended.
enum Drain {
    Done,
    /// Chunks are lost for ever.
    Lost,
    Later,
}

struct Work {
    manager: Arc<Manager>,
    id: MountId,
    target: Target,
    publisher: Publisher,
    /// What is to be recorded of entries.
    made: BTreeMap<u64, Made>,
}

/// What a change came to.
#[derive(Clone, Default)]
struct Made {
    /// What the pool has at names of the target by it.
    placed: Vec<((u64, Name), Option<Placed>)>,
    /// The file that it is about.
    about: Option<Inode>,
}

impl Work {
    /// Makes a change at the target, unless somebody else has what it would replace, move or remove there.
    async fn make(&mut self, effect: &Effect) -> std::io::Result<()> {
        let (change, maybe_done) = (effect.change.clone(), effect.maybe_done);
        let names = on_target(&self.target, move |target| target.names(&change)).await?;
        let keys: Vec<Key> =
            names.iter().map(|(directory, name)| Key::Placed(self.id, *directory, name.clone())).collect();
        let read = self.manager.store.read(&keys, &[]).await.map_err(Error::other)?;
        let placed = |stored: Option<Stored>| match stored.map(|stored| stored.value) {
            Some(Value::Placed(placed)) => Some(placed),
            _ => None,
        };
        let was: Vec<Option<Placed>> = read.keys.into_iter().map(placed).collect();
        let about = was.first().copied().flatten().map(|placed| placed.node);
        let about = about.filter(|_| matches!(effect.change, Change::Rename { .. } | Change::Link { .. }));
        // Of what a rename leaves where it was, it may be the only copy: it is not the pool's to replace any more.
        let moves = matches!(effect.change, Change::Rename { .. });
        let left = about.filter(|_| moves).and_then(|_| names.first().cloned()).map(|name| (name, None));
        self.made.insert(effect.journal, Made { placed: left.into_iter().collect(), about });
        let change = effect.change.clone();
        let is = on_target(&self.target, move |target| target.change(&change, maybe_done, &was)).await?;
        self.made.insert(effect.journal, Made { placed: names.into_iter().zip(is).collect(), about });
        Ok(())
    }

    async fn step(&mut self) -> Result<Step, Unavailable> {
        let read = self.manager.store.read(&[], &[Prefix::Journal(self.id)]).await?;
        for (key, stored) in read.prefixes.into_iter().flatten() {
            if let (Key::Journal(_, number), Value::Journal(change)) = (key, stored.value) {
                self.publisher.journalled(stored.modified, number, change);
            }
        }
        if self.publisher.waiting() == 0 {
            return Ok(Step::Nothing(read.revision));
        }
        let drained = self.drain().await;
        let published = self.make_changes().await?;
        Ok(match (drained, published) {
            (_, Step::NotThePublisher) => Step::NotThePublisher,
            (true, Step::Done) => Step::Done,
            _ => Step::Later,
        })
    }

    /// Drains the most urgent files; whether all went well.
    async fn drain(&mut self) -> bool {
        let mut drains = JoinSet::new();
        for (inode, version) in self.publisher.wanted().take(DRAINS) {
            let (manager, target) = (Arc::clone(&self.manager), self.target.clone());
            drains.spawn(async move { ((inode, version), drain(&manager, &target, inode, version).await) });
        }
        let mut well = true;
        while let Some(Ok(((inode, version), ended))) = drains.join_next().await {
            match ended {
                Ok(Drain::Done) => self.publisher.drained(inode, version),
                Ok(Drain::Lost) => {
                    tracing::error!("file {inode}: chunks of version {version} are lost: it will not reach its target");
                    self.publisher.lost(inode, version);
                }
                Ok(Drain::Later) => well = false,
                Err(error) => {
                    tracing::warn!("file {inode}: {error}");
                    well = false;
                }
            }
        }
        well
    }

    /// Makes changes as far as bytes are there, and records them.
    async fn make_changes(&mut self) -> Result<Step, Unavailable> {
        loop {
            while let Some((journal, ended)) = self.publisher.next_record() {
                let (publisher, mount) = (self.manager.tenure.manager(), self.id);
                let Made { placed, about } = self.made.get(&journal).cloned().unwrap_or_default();
                let operation = Operation::Published { publisher, mount, journal, ended, placed, about };
                match self.manager.commits.perform(&operation).await? {
                    Ended::Refused(Refusal::NotThePublisher) => return Ok(Step::NotThePublisher),
                    _ => {
                        self.made.remove(&journal);
                        self.publisher.recorded(journal);
                    }
                }
            }
            if !self.manager.tenure.lasts() {
                return Ok(Step::NotThePublisher);
            }
            let Some(effect) = self.publisher.next_effect() else { return Ok(Step::Done) };
            let made = self.make(&effect).await;
            let outcome = outcome(&made);
            if let Err(error) = made {
                tracing::warn!("{}: {error}", self.target.place(&effect.change).display());
            }
            self.publisher.complete(effect.journal, outcome);
            if outcome == publishing::Outcome::Later {
                return Ok(Step::Later);
            }
        }
    }
}

/// What a change at the target came to: what cannot be done since something else is there than the pool left, was changed by somebody else.
fn outcome(made: &std::io::Result<()>) -> publishing::Outcome {
    match made {
        Ok(()) => publishing::Outcome::Done,
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::DirectoryNotEmpty => publishing::Outcome::Conflict,
            _ => publishing::Outcome::Later,
        },
    }
}

/// Has a version's bytes written at the target, and verifies them.
async fn drain(manager: &Arc<Manager>, target: &Target, inode: Inode, version: Version) -> Result<Drain, Unavailable> {
    let read = manager.store.read(&[Key::Node(inode)], &[Prefix::Groups(inode)]).await?;
    let node = match read.keys.into_iter().next().flatten().map(|stored| stored.value) {
        Some(Value::Node(node)) => node,
        // The journal has an entry of it, so that it cannot be forgotten.
        _ => return Ok(Drain::Later),
    };
    let known = groups(read.prefixes.into_iter().flatten(), version);
    let with_bytes = known.iter().filter(|(_, _, group)| group.bytes > 0);
    let size = with_bytes.map(|(index, _, group)| span::of_group(*index).0 + group.bytes).max().unwrap_or(0);
    let given = (node.owner, node.times);
    match write(manager, target, &node, (inode, version), &known).await {
        Ok(Drain::Done) => {}
        Ok(Drain::Lost) => {
            // Repair may have brought copies elsewhere meanwhile, of which only newer layouts know.
            let read = manager.store.read(&[], &[Prefix::Groups(inode)]).await?;
            let is_moved = groups(read.prefixes.into_iter().flatten(), version) != known;
            return Ok(if is_moved { Drain::Later } else { Drain::Lost });
        }
        Ok(other) => return Ok(other),
        Err(error) => {
            tracing::warn!("file {inode}: {error}");
            return Ok(Drain::Later);
        }
    }
    match on_target(target, move |target| target.finish(inode, version, size, given)).await {
        Ok(()) => Ok(Drain::Done),
        Err(error) => {
            tracing::warn!("file {inode}: {error}");
            Ok(Drain::Later)
        }
    }
}

async fn write(
    manager: &Arc<Manager>,
    target: &Target,
    node: &Node,
    (inode, version): (Inode, Version),
    groups: &[(u32, Version, Group)],
) -> std::io::Result<Drain> {
    let mode = node.owner.0;
    let aside = on_target(target, move |target| target.begin(inode, version, mode)).await?;
    let file = aside.into_os_string().into_string().map_err(|_| Error::other("the target's path is not UTF-8"))?;
    for (index, at, group) in groups {
        let of = (GroupOf { inode, group: *index }, *at, group.by);
        // The file was cut off before it.
        if group.bytes == 0 {
            continue;
        }
        let mut columns: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let stripe = Stripe::new(&group.layout);
        let count = u32::try_from(group.bytes.div_ceil(CHUNK)).map_err(Error::other)?;
        for chunk in 0..count {
            columns.entry(stripe.column(chunk.into())).or_default().push(chunk);
        }
        let mut parts = JoinSet::new();
        for (column, chunks) in columns {
            let column = group.layout.columns[column].clone();
            for chunks in chunks.chunks(PART) {
                let incarnation = surgetank_pool_core::id::Incarnation(0);
                let offset = span::of_group(*index).0;
                let part = DrainPart { incarnation, of, chunks: chunks.to_vec(), offset, file: file.clone() };
                parts.spawn(write_part(Arc::clone(manager), column.clone(), part));
            }
        }
        let mut drained = BTreeMap::new();
        while let Some(ended) = parts.join_next().await {
            match ended.map_err(Error::other)? {
                Ok(chunks) => drained.extend(chunks.into_iter().map(|(chunk, length, crc)| (chunk, (length, crc)))),
                Err(other) => return Ok(other),
            }
        }
        let (bytes, digest) = span::digest(drained.values().copied());
        if drained.len() != count as usize || (bytes, digest) != (group.bytes, group.digest) {
            let sentence = format!("group {index} reached the target with other bytes than were committed");
            return Err(Error::other(sentence));
        }
    }
    Ok(Drain::Done)
}

/// Has one of a column's benefactors write chunks: whichever can.
async fn write_part(manager: Arc<Manager>, column: Column, part: DrainPart) -> Result<Vec<(u32, u32, u32)>, Drain> {
    let mut lost = true;
    for place in column.places {
        // A later life has what is on its SSD.
        let newest = manager.members.newest(place.id);
        let Some(member) = newest.filter(|member| member.lends.place.incarnation >= place.incarnation) else {
            manager.members.suspect(place);
            lost &= manager.members.is_over(place) && !manager.members.may_return(place.id);
            continue;
        };
        let part = DrainPart { incarnation: member.lends.place.incarnation, ..part.clone() };
        match member.peer.ask::<Benefactor>(chunks::Request::DrainPart(part), PART_TIME).await {
            Ok(chunks::Reply::Drained(chunks)) => {
                manager.rate.drained(chunks.iter().map(|(_, length, _)| u64::from(*length)).sum());
                return Ok(chunks);
            }
            // Its life is over, or it never had them: it has them at no later time either.
            Ok(chunks::Reply::Stale | chunks::Reply::NotHere | chunks::Reply::Corrupt) => {}
            Ok(chunks::Reply::NotDrained(why)) => {
                tracing::warn!("{why}");
                return Err(Drain::Later);
            }
            Ok(_) | Err(_) => lost = false,
        }
    }
    Err(if lost { Drain::Lost } else { Drain::Later })
}
