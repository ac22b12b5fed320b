//! Has copies made again that a benefactor's death took: [`Repair`] decides which, one at a time few of them, and none while the
//! membership holds.
//!
//! A copy is fetched by the benefactor that takes the place, from one that has the chunks. It counts once a transaction has named the new
//! place in the group's layout, which compares that this manager is the warden and that the benefactor is in the life that fetched it.
//! What has parity is made again instead: see [`parity`].

mod parity;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Table};
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, MountId, Revision};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::{Durability, Group, Key, Node, Prefix, Value};
use surgetank_pool_core::placement::{Media, Place, Stripe};
use surgetank_pool_core::repair::{Job, Of, Repair};
use tokio::task::JoinSet;

use super::Manager;
use super::members::Member;
use super::protocol;
use crate::benefactor::Benefactor;
use crate::chunks::{self, Adopt, CHUNK, Copy, Fence};
use crate::meta::Unavailable;

/// Chunks that a benefactor is asked to fetch at a time.
const BATCH: usize = 8;
/// How long it may take for them.
const BATCH_TIME: Duration = Duration::from_secs(60);
/// The pause while a benefactor has no room.
const FULL: Duration = Duration::from_millis(100);
/// How long some chunks wait for room before what was fetched before them is dropped: others may need that room, and wait as well.
const FULL_TIME: Duration = Duration::from_secs(5);
/// How long a benefactor may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// What a warden knows, from the moment at which it became one.
pub(super) struct Repairs {
    fence: Revision,
    numbers: Arc<AtomicU64>,
    repair: Repair,
    groups: BTreeMap<Of, Group>,
    /// The store's revision at which the groups were read.
    seen: Revision,
    lives: BTreeMap<BenefactorId, Option<Incarnation>>,
    jobs: JoinSet<Ended>,
    /// Damaged chunks that were to be fetched anew.
    refetches: u64,
    /// What is being brought, and to whom.
    brought: BTreeMap<u64, Vec<(Of, BenefactorId)>>,
}

impl Repairs {
    /// Of a warden who has the role since that revision.
    pub(super) fn new(fence: Revision, config: surgetank_pool_core::repair::Config) -> Self {
        Self {
            fence,
            numbers: Arc::default(),
            repair: Repair::new(config),
            groups: BTreeMap::new(),
            seen: Revision(0),
            lives: BTreeMap::new(),
            jobs: JoinSet::new(),
            refetches: 0,
            brought: BTreeMap::new(),
        }
    }

    /// Since when its warden has the role.
    pub(super) const fn since(&self) -> Revision {
        self.fence
    }

    /// A message's place among all wardens' messages. It is taken before what the message rests on is read.
    pub(super) fn fence(&self) -> Fence {
        Fence(self.fence, self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// What is being brought, and to whom: it counts as named until the store has answered.
    pub(super) fn brought(&self) -> BTreeSet<(Of, BenefactorId)> {
        self.brought.values().flatten().copied().collect()
    }

    /// Files of which benefactors have something that are taken out.
    pub(super) fn on_leaving(&self, manager: &Manager) -> BTreeSet<Inode> {
        let leaving = manager.members.leaving();
        leaving.iter().flat_map(|id| self.repair.on(*id)).map(|of| of.group.inode).collect()
    }

    /// Waits until a copy is made, or could not be made.
    pub(super) async fn ended(&mut self, manager: &Manager) {
        let Some(ended) = self.jobs.join_next().await else { return std::future::pending().await };
        if let Ok(Ended { number, done, moved }) = ended {
            self.brought.remove(&number);
            manager.counts.repaired(done);
            self.repair.ended(manager.members.lives().now, number, done);
            for Moved { of, columns, from, to } in moved {
                self.moved(of, &columns, from, to);
            }
        }
    }

    /// The store names another place in these columns.
    fn moved(&mut self, of: Of, columns: &BTreeSet<usize>, from: Place, to: Place) {
        let Some(group) = self.groups.get_mut(&of) else { return };
        let moved = group.layout.columns.iter_mut().enumerate().filter(|(at, _)| columns.contains(at));
        let places = moved.flat_map(|(_, column)| &mut column.places);
        places.filter(|place| **place == from).for_each(|place| *place = to);
        self.repair.group(of, &group.layout, Bytes::new(group.staged()));
    }

    /// Has damaged chunks of a benefactor fetched anew, from other copies.
    pub(super) fn refetch(&mut self, manager: &Arc<Manager>, to: &Member, damaged: &[(chunks::TableOf, u32)]) {
        let mut of_groups: BTreeMap<Of, BTreeSet<u32>> = BTreeMap::new();
        for ((group, version, by), chunk) in damaged {
            of_groups.entry(Of { group: *group, version: *version, by: *by }).or_default().insert(*chunk);
        }
        for (of, chunks) in of_groups {
            // Until it is named in this life, its table is one that repair may replace.
            let named = |group: &&Group| group.layout.places().contains(&to.lends.place);
            let Some(group) = self.groups.get(&of).filter(named).cloned() else { continue };
            let id = to.lends.place.id;
            if self.brought.values().flatten().any(|bringing| *bringing == (of, id)) {
                continue;
            }
            let stripe = Stripe::new(&group.layout);
            let wanted = chunks.into_iter().map(|chunk| (chunk, stripe.column(chunk.into()))).collect();
            let work = self.work(manager, to.clone(), (None, group), to.lends.ssd > Bytes::ZERO);
            // Jobs have small numbers.
            self.refetches += 1;
            let number = u64::MAX - self.refetches;
            self.brought.insert(number, vec![(of, id)]);
            self.jobs.spawn(async move {
                let done = work.fetch(of, &wanted, Some(id), Need::Damaged).await;
                match &done {
                    Ok(lacking) if lacking.is_empty() => {
                        tracing::info!("{} damaged chunks of benefactor {id} are whole again", wanted.len());
                    }
                    Ok(lacking) => tracing::warn!(
                        "{} damaged chunks of benefactor {id} are whole again, and {} have no whole copy",
                        wanted.len() - lacking.len(),
                        lacking.len()
                    ),
                    Err(why) => tracing::warn!("damaged chunks of benefactor {id}: {why}"),
                }
                Ended { number, done: done.is_ok(), moved: Vec::new() }
            });
        }
    }

    /// Looks at groups and benefactors, and begins what is to be done.
    pub(super) async fn look(&mut self, manager: &Arc<Manager>) -> Result<(), Unavailable> {
        if !manager.members.looked() {
            return Ok(());
        }
        self.look_at_groups(manager).await?;
        self.go_on(manager).await
    }

    /// Looks at benefactors, and begins what is to be done.
    pub(super) async fn go_on(&mut self, manager: &Arc<Manager>) -> Result<(), Unavailable> {
        let now = self.look_at_lives(manager).await;
        self.rename(manager).await?;
        while let Some(job) = self.repair.next_job(now) {
            let Some(group) = self.groups.get(&job.of).cloned() else {
                self.repair.ended(now, job.id, false);
                continue;
            };
            let (mount, media) = match media(manager, &job).await {
                Ok(found) => found,
                Err(error) => {
                    self.repair.ended(now, job.id, false);
                    return Err(error);
                }
            };
            let parts = substitutes(manager, &job, &group, media);
            if parts.is_empty() {
                self.repair.ended(now, job.id, false);
                continue;
            }
            self.brought.insert(job.id, parts.iter().map(|(to, _)| (job.of, to.lends.place.id)).collect());
            let parts: Vec<_> = parts
                .into_iter()
                .map(|(to, columns)| (self.work(manager, to, (mount, group.clone()), media == Media::Ssd), columns))
                .collect();
            self.jobs.spawn(async move {
                let (mut moved, mut done) = (Vec::new(), true);
                for (work, columns) in parts {
                    match work.bring(&job, &columns).await {
                        Ok(()) => {
                            let (from, to) = (job.instead_of, work.to.lends.place);
                            moved.push(Moved { of: job.of, columns, from, to });
                        }
                        Err(why) => {
                            tracing::warn!(
                                "a copy of file {}, group {}: {why}",
                                job.of.group.inode,
                                job.of.group.group
                            );
                            done = false;
                        }
                    }
                }
                Ended { number: job.id, done, moved }
            });
        }
        Ok(())
    }

    async fn look_at_groups(&mut self, manager: &Manager) -> Result<(), Unavailable> {
        let read = manager.store.read(&[], &[Prefix::AllGroups]).await?;
        if read.revision == self.seen {
            return Ok(());
        }
        self.seen = read.revision;
        let groups = read.prefixes.into_iter().flatten().filter_map(|(key, stored)| match (key, stored.value) {
            (Key::Group(inode, group, version), Value::Group(of)) => {
                Some((Of { group: GroupOf { inode, group }, version, by: of.by }, of))
            }
            _ => None,
        });
        let groups: BTreeMap<Of, Group> = groups.collect();
        for of in self.groups.keys().filter(|of| !groups.contains_key(of)) {
            self.repair.group_gone(*of);
        }
        for (of, group) in &groups {
            if self.groups.get(of).is_none_or(|known| known.layout != group.layout) {
                // One that is not known may have died before this manager began.
                group.layout.places().into_iter().for_each(|place| manager.members.suspect(place));
                self.repair.group(*of, &group.layout, Bytes::new(group.staged()));
            }
        }
        self.groups = groups;
        Ok(())
    }

    async fn look_at_lives(&mut self, manager: &Manager) -> Instant {
        let lives = manager.members.lives();
        self.repair.hold(lives.holds);
        self.repair.leave(lives.leaving);
        if let Some(written) = lives.written {
            self.repair.foreground(written);
        }
        for (id, life) in lives.of {
            if self.lives.insert(id, life) == Some(life) {
                continue;
            }
            match life {
                Some(incarnation) => self.repair.alive(id, incarnation),
                None => self.repair.died(id),
            }
        }
        let unasked: Vec<Place> = self.repair.unasked().collect();
        for place in unasked {
            let Some(member) = manager.members.get(place) else { continue };
            let asked = member.peer.ask::<Benefactor>(chunks::Request::Inventory, ANSWER).await;
            if let Ok(chunks::Reply::Inventory(inventory)) = asked
                && inventory.incarnation == place.incarnation
            {
                self.repair.inventory(place, &inventory.has.tables);
            }
        }
        lives.now
    }

    /// Whoever has returned with all of a place on SSD is named in the new life.
    async fn rename(&mut self, manager: &Manager) -> Result<(), Unavailable> {
        while let Some((of, from, to)) = self.repair.next_renamed() {
            let Some(group) = self.groups.get(&of) else { return Ok(()) };
            let all: BTreeSet<usize> = (0..group.layout.columns.len()).collect();
            if !relocate(manager, of, None, from, to).await? {
                // Somebody else has changed it: the next look at the groups shows what.
                self.seen = Revision(0);
                return Ok(());
            }
            self.moved(of, &all, from, to);
        }
        Ok(())
    }

    fn work(
        &self,
        manager: &Arc<Manager>,
        to: Member,
        (mount, group): (Option<MountId>, Group),
        durable: bool,
    ) -> Work {
        let (tenure, numbers) = (self.fence, Arc::clone(&self.numbers));
        Work { manager: Arc::clone(manager), tenure, numbers, to, mount, group, durable }
    }
}

/// A copy is made, or could not be made.
struct Ended {
    number: u64,
    done: bool,
    /// What the store names by now.
    moved: Vec<Moved>,
}

/// A place in columns of a group is another's.
struct Moved {
    of: Of,
    columns: BTreeSet<usize>,
    from: Place,
    to: Place,
}

/// The mount of the job's file, and where each copy of it must lie.
async fn media(manager: &Manager, job: &Job) -> Result<(Option<MountId>, Media), Unavailable> {
    let read = manager.store.read(&[Key::Node(job.of.group.inode)], &[Prefix::Mounts]).await?;
    let node = read.keys.into_iter().next().flatten().map(|stored| stored.value);
    let Some(Value::Node(Node { mount, .. })) = node else { return Ok((None, Media::Any)) };
    let durability = read.prefixes.into_iter().flatten().find_map(|(key, stored)| match stored.value {
        Value::Mount(of) if key == Key::Mount(mount) => Some(of.durability),
        _ => None,
    });
    let media = match durability {
        Some(Durability::Copies { media, .. }) => media,
        Some(Durability::Target | Durability::Parity(_)) | None => Media::Any,
    };
    Ok((Some(mount), media))
}

/// Who takes the job's place, and in which columns: one benefactor, if one is apart from all the other places, else for each column another.
/// Nobody does who is to keep a place of the layout in a life that is over, since a table of these columns alone would be taken for one with
/// those of the former life as well. In the layout's own life it has a table to which they are added.
fn substitutes(manager: &Manager, job: &Job, group: &Group, media: Media) -> Vec<(Member, BTreeSet<usize>)> {
    let mut over = job.layout.places();
    over.retain(|place| manager.members.get(*place).is_none());
    let substitute = |of: &BTreeSet<usize>, without: &[Place]| {
        let bytes = wanted(job, group, of).len() as u64 * CHUNK;
        let beside: Vec<BenefactorId> = columns(job)
            .filter(|(at, _)| of.contains(at))
            .flat_map(|(_, places)| places.iter())
            .filter(|place| **place != job.instead_of)
            .map(|place| place.id)
            .collect();
        manager.members.substitute(bytes, media, &beside, without)
    };
    let all: BTreeSet<usize> = columns(job).map(|(at, _)| at).collect();
    let others: Vec<Place> = over.iter().copied().filter(|place| *place != job.instead_of).collect();
    if let Some(one) = substitute(&all, &others) {
        return vec![(one, all)];
    }
    let mut parts: BTreeMap<BenefactorId, (Member, BTreeSet<usize>)> = BTreeMap::new();
    for at in all {
        if let Some(member) = substitute(&BTreeSet::from([at]), &over) {
            parts.entry(member.lends.place.id).or_insert((member, BTreeSet::new())).1.insert(at);
        }
    }
    parts.into_values().collect()
}

/// The columns in which the job's place is, with all their places.
fn columns(job: &Job) -> impl Iterator<Item = (usize, &[Place])> {
    let columns = job.layout.columns.iter().map(|column| &column.places[..]).enumerate();
    columns.filter(|(_, places)| places.contains(&job.instead_of))
}

/// The chunks of columns, each with its column.
fn wanted(job: &Job, group: &Group, of: &BTreeSet<usize>) -> BTreeMap<u32, usize> {
    surgetank_pool_core::parity::lie_at(&job.layout, job.instead_of, of, group.present())
}

/// Records that a place of a group, in these columns or in all, is another's; `false`: it was refused.
async fn relocate(
    manager: &Manager,
    of: Of,
    columns: Option<&BTreeSet<usize>>,
    from: Place,
    to: Place,
) -> Result<bool, Unavailable> {
    let (warden, inode, group) = (manager.tenure.manager(), of.group.inode, (of.group.group, of.version));
    let operation = match columns {
        Some(columns) => {
            let columns = columns.iter().filter_map(|at| u32::try_from(*at).ok()).collect();
            Operation::RelocateColumns { warden, inode, group, columns, from, to }
        }
        None => Operation::Relocate { warden, inode, group, from, to },
    };
    Ok(matches!(manager.commits.perform(&operation).await?, protocol::Ended::Reply(_)))
}

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
enum NotBrought {
    #[error("nobody who has it answers")]
    NoSource,
    #[error("benefactor {0} has no room")]
    NoRoom(BenefactorId),
    #[error("benefactor {0} did not take it")]
    NotTaken(BenefactorId),
    #[error("the group has changed meanwhile")]
    Changed,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// What chunks are brought for.
#[derive(Clone, Copy, Debug)]
enum Need<'a> {
    /// A place is taken over in these columns: all of its chunks are brought, or none. It may have them itself.
    Place { place: Place, columns: &'a BTreeSet<usize>, is_there: bool },
    /// Damaged ones are to be whole again: those of which no copy is whole are left.
    Damaged,
}

/// A chunk that is to be fetched, and which sources have it, each as a writing of its own.
type Wanted = (u32, VecDeque<(Entry, u16)>);

/// Chunks of a group, each with its sources, and where these are: [`Copy`].
type Part = (Vec<Wanted>, Vec<(String, Incarnation)>);

/// One copy that is being made.
struct Work {
    manager: Arc<Manager>,
    tenure: Revision,
    numbers: Arc<AtomicU64>,
    to: Member,
    /// Whose room the copy takes.
    mount: Option<MountId>,
    group: Group,
    /// The copy must survive a power cut before it counts.
    durable: bool,
}

impl Work {
    fn fence(&self) -> Fence {
        Fence(self.tenure, self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Has the chunks of the job's place in these columns fetched, and the new place recorded.
    async fn bring(&self, job: &Job, columns: &BTreeSet<usize>) -> Result<(), NotBrought> {
        let (place, is_there) = (job.instead_of, job.is_there);
        let (wanted, need) = (wanted(job, &self.group, columns), Need::Place { place, columns, is_there });
        let lacking = self.fetch(job.of, &wanted, (!is_there).then_some(place.id), need).await?;
        debug_assert!(lacking.is_empty(), "nobody takes a place over with less than all of it");
        match relocate(&self.manager, job.of, Some(columns), job.instead_of, self.to.lends.place).await? {
            true => Ok(()),
            false => Err(NotBrought::Changed),
        }
    }

    /// Has chunks of a group, each of that column, fetched from others than that one; those of which no copy is whole.
    async fn fetch(
        &self,
        of: Of,
        wanted: &BTreeMap<u32, usize>,
        except: Option<BenefactorId>,
        need: Need<'_>,
    ) -> Result<Vec<u32>, NotBrought> {
        if let Some(parity) = self.group.layout.parity {
            return self.rebuild(of, parity, wanted, need).await;
        }
        let (part, sources) = self.part(of, wanted, except).await?;
        let of = (of.group, of.version, of.by);
        let (mut brought, mut lacking) = (Table::new(), Vec::new());
        for batch in part.chunks(BATCH) {
            let bytes = batch.iter().filter_map(|(_, from)| Some(u64::from(from.front()?.0.length))).sum();
            let next = tokio::time::Instant::now() + self.rate().time_for(bytes);
            let copied = self.copy(of, batch.to_vec(), &sources).await?;
            lacking.extend(batch.iter().map(|(chunk, _)| *chunk).filter(|chunk| !copied.contains_key(chunk)));
            if matches!(need, Need::Place { .. }) && !lacking.is_empty() {
                return Err(NotBrought::NoSource);
            }
            brought.extend(copied);
            tokio::time::sleep_until(next).await;
        }
        if brought.is_empty() && !lacking.is_empty() {
            return Err(NotBrought::NoSource);
        }
        self.adopt(of, brought).await.map(|()| lacking)
    }

    /// Has chunks fetched, each from the first source that has it whole; those that were.
    async fn copy(
        &self,
        of: chunks::TableOf,
        mut batch: Vec<Wanted>,
        sources: &[(String, Incarnation)],
    ) -> Result<Table, NotBrought> {
        let (incarnation, id) = (self.to.lends.place.incarnation, self.to.lends.place.id);
        let mut full_since = None;
        loop {
            batch.retain(|(_, from)| !from.is_empty());
            let first = |(chunk, from): &Wanted| from.front().map(|(entry, source)| (*chunk, *entry, *source));
            let part: Vec<(u32, Entry, u16)> = batch.iter().filter_map(first).collect();
            let copied = part.iter().map(|(chunk, entry, _)| (*chunk, *entry)).collect();
            if part.is_empty() {
                return Ok(copied);
            }
            let (mount, sources) = (self.mount, sources.to_vec());
            let copy = Copy { incarnation, fence: self.fence(), mount, of, part, sources };
            match self.to.peer.ask::<Benefactor>(chunks::Request::Copy(copy), BATCH_TIME).await {
                Ok(chunks::Reply::Done) => return Ok(copied),
                // What is there already is not fetched again.
                Ok(chunks::Reply::Full) => self.wait_for_room(&mut full_since).await?,
                Ok(chunks::Reply::NotCopied(missed)) => {
                    full_since = None;
                    let of_missed = batch.iter_mut().find(|(chunk, _)| *chunk == missed);
                    of_missed.ok_or(NotBrought::NotTaken(id))?.1.pop_front();
                }
                _ => return Err(NotBrought::NotTaken(id)),
            }
        }
    }

    /// Has a place taken over, once all of it is as durable as it must be.
    async fn adopt(&self, of: chunks::TableOf, part: Table) -> Result<(), NotBrought> {
        let place = self.to.lends.place;
        let (incarnation, named) = (place.incarnation, self.group.layout.places().contains(&place));
        let adopt = Adopt { incarnation, fence: self.fence(), of, part, named, durable: self.durable };
        let until = tokio::time::Instant::now() + BATCH_TIME;
        loop {
            match self.to.peer.ask::<Benefactor>(chunks::Request::Adopt(adopt.clone()), BATCH_TIME).await {
                Ok(chunks::Reply::Sealed) => return Ok(()),
                Ok(chunks::Reply::NotYet) if tokio::time::Instant::now() < until => {}
                _ => return Err(NotBrought::NotTaken(place.id)),
            }
        }
    }

    /// Waits a little for a benefactor that has no room, and has had none since then.
    async fn wait_for_room(&self, since: &mut Option<tokio::time::Instant>) -> Result<(), NotBrought> {
        if since.get_or_insert_with(tokio::time::Instant::now).elapsed() >= FULL_TIME {
            return Err(NotBrought::NoRoom(self.to.lends.place.id));
        }
        tokio::time::sleep(FULL).await;
        Ok(())
    }

    /// How fast chunks are copied now.
    fn rate(&self) -> Bandwidth {
        let (config, lives) = (&self.manager.config.repair, self.manager.members.lives());
        let busy = lives.written.is_some_and(|at| lives.now.since(at) < config.foreground_for);
        if busy { config.beside } else { config.idle }
    }

    /// Chunks of a group, as the places of their columns have them, and where.
    async fn part(
        &self,
        of: Of,
        wanted: &BTreeMap<u32, usize>,
        except: Option<BenefactorId>,
    ) -> Result<Part, NotBrought> {
        let (mut part, mut sources) = (Vec::new(), Vec::new());
        let columns: BTreeSet<usize> = wanted.values().copied().collect();
        for at in columns {
            let mut found: BTreeMap<u32, VecDeque<(Entry, u16)>> = BTreeMap::new();
            let places = &self.group.layout.columns[at].places;
            for place in places.iter().filter(|place| Some(place.id) != except) {
                let Some(member) = self.manager.members.newest(place.id) else { continue };
                let Some(table) = member.table((of.group, of.version, of.by)).await else { continue };
                let source = u16::try_from(sources.len()).map_err(|_| NotBrought::NoSource)?;
                sources.push((member.lends.address.clone(), member.lends.place.incarnation));
                for (chunk, _) in wanted.iter().filter(|(_, column)| **column == at) {
                    if let Some(entry) = table.get(chunk) {
                        found.entry(*chunk).or_default().push_back((*entry, source));
                    }
                }
            }
            if wanted.iter().any(|(chunk, column)| *column == at && !found.contains_key(chunk)) {
                return Err(NotBrought::NoSource);
            }
            part.extend(found);
        }
        Ok((part, sources))
    }
}
