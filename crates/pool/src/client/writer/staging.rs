//! Chunks at their benefactors: put, put again elsewhere, sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table, own};
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::meta::Group as Stored;
use surgetank_pool_core::parity::is_parity;
use surgetank_pool_core::placement::{Layout, Media, Place, Protection};
use surgetank_pool_core::runs::Runs;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::reader::read_chunk;
use super::super::{Error, Inner, LOOK, senseless};
use super::base::placed;
use super::part::Former;
use super::{Chunk, Group, Writer};
use crate::chunks::{self, CHUNK, Get, News, Reply, Seal, Spare};
use crate::manager;
use crate::planted::writers::{Bug, planted};
use crate::span;

/// How long a benefactor may take for a request before it counts as gone.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a chunk that arrived damaged is sent again.
const DAMAGED: usize = 3;
/// The pause before a benefactor that did not answer is told again.
const UNHEARD: Duration = Duration::from_millis(200);
/// Chunks under way before a benefactor has said how much room it has.
const PUTS_MIN: usize = 4;
/// The pause while a benefactor has no room.
const FULL: Duration = Duration::from_millis(20);
/// How long a chunk waits for room before it returns what it has elsewhere.
const FULL_TIME: Duration = Duration::from_millis(200);

/// A chunk was put, or not.
pub(super) struct Put {
    group: u32,
    chunk: u32,
    place: Place,
    instance: Instance,
    ended: PutEnded,
}

enum PutEnded {
    /// It has it, and room for so many more of those that the mount wants there.
    Stored(u64),
    /// The benefactor does not answer, or is in another life.
    Gone,
    /// It had no room for a while.
    Full,
    UnknownSession,
}

impl Writer {
    /// A group's table.
    pub(super) async fn group(&mut self, index: u32) -> Result<(), Error> {
        match self.groups.get(&index) {
            Some(group) if group.known => return Ok(()),
            Some(_) => return self.learn(index).await,
            None => {}
        }
        let group = match self.in_base(index) {
            Some(bytes) => Group::of_base(bytes),
            None => Group { known: true, ..Group::default() },
        };
        self.groups.insert(index, group);
        Ok(())
    }

    /// Chooses where chunks of a group are to go, unless that was chosen before.
    pub(super) async fn placed(&mut self, index: u32) -> Result<(), Error> {
        if self.groups.get(&index).is_some_and(|group| group.placed.is_some()) {
            return Ok(());
        }
        let layout = self.place(span::of_group(index).1, self.inner.protection, index, &[]).await?;
        if let Some(group) = self.groups.get_mut(&index) {
            group.placed = placed(layout);
        }
        Ok(())
    }

    /// Where chunks are to go, with as many benefactors as there are copies in different domains, and in others than these.
    async fn place(
        &mut self,
        bytes: u64,
        protection: Protection,
        index: u32,
        apart: &[BenefactorId],
    ) -> Result<Layout, Error> {
        let until = self.inner.until();
        let mut without: Vec<Place> = self.gone.iter().copied().collect();
        loop {
            let spread = self.inode.0.rotate_left(20) ^ u64::from(index);
            let (media, apart) = (self.inner.media, apart.to_vec());
            let place = manager::Place { bytes, protection, media, spread, without: without.clone(), apart };
            match self.inner.ask(manager::Request::Place(place)).await? {
                manager::Reply::Placed(layout, addresses) => {
                    self.inner.learn(&addresses);
                    let places = layout.places();
                    self.gone.retain(|place| !places.contains(place));
                    return Ok(layout);
                }
                manager::Reply::NoRoom(why) if Instant::now() >= until => {
                    return Err(self.no_room(why));
                }
                // Without those that did not answer there are too few: managers reach some of them, perhaps.
                manager::Reply::NoRoom(_) => {
                    without.clear();
                    self.commit_part().await?;
                    tokio::time::sleep(LOOK).await;
                }
                _ => return Err(senseless()),
            }
        }
    }

    /// Reads the tables of a committed group: which writing of each chunk every benefactor has.
    async fn learn(&mut self, index: u32) -> Result<(), Error> {
        let until = self.inner.until();
        loop {
            // All of it has left the pool: no benefactor need have its table.
            if self.groups.get(&index).is_some_and(|group| group.known) {
                return Ok(());
            }
            match self.learn_now(index).await {
                Err(_) if self.is_in_base(index) => {
                    let of_base = Group::of_base(self.committed_in(index));
                    let committed = self.groups.get(&index).and_then(|group| group.committed);
                    self.groups.insert(index, Group { committed, of_base: false, ..of_base });
                    return Ok(());
                }
                // They may begin anew, and are reached elsewhere then.
                Err((_, false)) if Instant::now() < until => {
                    self.look_again().await?;
                    tokio::time::sleep(LOOK).await;
                }
                Err((error, true)) if !self.look_again().await? => return Err(error),
                Err((error, _)) if Instant::now() >= until => return Err(error),
                Err(_) => {}
                Ok(lacking) => {
                    // What another session has written over is dropped.
                    if !lacking.is_empty() {
                        self.look_again().await?;
                    }
                    self.gone.extend(lacking);
                    return Ok(());
                }
            }
        }
    }

    /// The same from those that answer; the others. With an error whether it is for ever.
    async fn learn_now(&mut self, index: u32) -> Result<Vec<Place>, (Error, bool)> {
        let (mut forever, mut lacking) = (true, Vec::new());
        let Some(group) = self.groups.get(&index) else { return Ok(lacking) };
        let Some((version, by)) = group.committed else { return Ok(lacking) };
        let of = (GroupOf { inode: self.inode, group: index }, version, by);
        let ticket = self.inner.ticket(self.inode).await;
        let (mut heard, mut elsewhere) = (Group::default(), group.absent.clone());
        elsewhere.add_all(&group.holes);
        for place in group.places() {
            let get = Get { incarnation: place.incarnation, of, chunk: 0, ticket: ticket.clone() };
            match self.inner.ask_benefactor(place.id, chunks::Request::Table(get), ANSWER).await {
                Some(Reply::Table(table)) => heard.heard(group.parity(), place.id, table),
                answer => {
                    forever &= answer.is_some();
                    lacking.push(place);
                }
            }
        }
        heard.heard_all(group.parity());
        let Group { mut chunks, mut rows, .. } = heard;
        // A table names what has left the pool until it is sealed again.
        chunks.retain(|number, _| !elsewhere.contains(*number));
        for number in 0..span::chunks(self.committed_in(index)) {
            if !chunks.contains_key(&number) && !elsewhere.contains(number) {
                let (path, offset) = (self.path.clone(), span::of_group(index).0 + u64::from(number) * CHUNK);
                let why = "no benefactor that has it answers".to_owned();
                return Err((Error::Unreadable { path, offset, why }, forever));
            }
        }
        if let Some(group) = self.groups.get_mut(&index) {
            rows.retain(|row, _| {
                group.parity().is_some_and(|of| of.data_of(*row).any(|number| chunks.contains_key(&number)))
            });
            (group.chunks, group.rows, group.known) = (chunks, rows, true);
        }
        Ok(lacking)
    }

    /// What a chunk is now: written here, or committed.
    pub(super) async fn base(&mut self, begins: u64) -> Result<Bytes, Error> {
        let (index, chunk) = span::of_byte(begins);
        // Also if nobody of its group can be reached.
        if self.groups.get(&index).is_some_and(|group| group.holes.contains(chunk)) {
            return Ok(chunks::zeros());
        }
        self.group(index).await?;
        self.bytes_of(index, chunk).await
    }

    /// Whether the base has what is committed of a group, whatever the pool has of it.
    fn is_in_base(&self, index: u32) -> bool {
        let committed = self.groups.get(&index).and_then(|group| group.committed);
        committed.zip(self.rests_on()).is_some_and(|((version, _), base)| version <= base.version)
    }

    pub(super) async fn bytes_of(&mut self, index: u32, chunk: u32) -> Result<Bytes, Error> {
        let begins = span::of_group(index).0 + u64::from(chunk) * CHUNK;
        let unreadable = |path: &str, why: String| Error::Unreadable { path: path.to_owned(), offset: begins, why };
        let never = || "it was never written".to_owned();
        let until = self.inner.until();
        let mut moved_to: Option<Layout> = None;
        loop {
            let group = self.groups.get(&index).ok_or_else(|| unreadable(&self.path, never()))?;
            if let Some(draft) = group.chunks.get(&chunk).filter(|chunk| chunk.draft) {
                let (draft, places) = (draft.clone(), group.places());
                return self.bytes_of_draft(draft, places, begins).await;
            }
            if group.absent.contains(chunk) {
                return self.read_base(begins).await;
            }
            let Some((version, by)) = group.committed else { return Err(unreadable(&self.path, never())) };
            let layout = moved_to.clone().or_else(|| group.placed.as_ref().map(|(layout, _)| layout.clone()));
            let Some(layout) = layout else { return Err(unreadable(&self.path, never())) };
            let stored = Stored { layout, bytes: 0, digest: 0, by, absent: Runs::NONE, holes: Runs::NONE };
            let failed = match read_chunk(&self.inner, self.inode, (index, version, &stored), chunk).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => failed,
            };
            if self.is_in_base(index) {
                return self.read_base(begins).await;
            }
            // It may have left the pool. Or all that have it begin anew, with what is on their SSDs, and are reached elsewhere then.
            let (has_left, newest) = self.look().await?;
            let found =
                newest.groups.into_iter().find(|(of, at, _)| (*of, *at) == (index, version)).map(|(.., of)| of.layout);
            let is_moved = found.as_ref().is_some_and(|found| *found != stored.layout);
            if Instant::now() >= until || failed.forever && !is_moved && !has_left {
                return Err(unreadable(&self.path, failed.why));
            }
            moved_to = found.filter(|found| !found.columns.is_empty()).or(moved_to);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Puts a chunk whose bytes are here where it is missing.
    pub(super) fn put_missing(&mut self, index: u32, number: u32) {
        let Some(group) = self.groups.get(&index) else { return };
        let Some(chunk) = group.member(number) else { return };
        let Some(bytes) = &chunk.bytes else { return };
        self.put_to_column(index, number, chunk.clone(), bytes.clone());
    }

    fn put_to_column(&mut self, index: u32, number: u32, chunk: Chunk, bytes: Bytes) {
        let column = self.groups.get(&index).map_or_else(Vec::new, |group| group.lies_at(number).to_vec());
        for place in column {
            if chunk.at.contains_key(&place.id) || self.gone.contains(&place) {
                continue;
            }
            let instance = Instance { session: self.inner.session, number: self.next_number() };
            let entry = Entry { instance, length: chunk.length, crc: chunk.crc };
            let put = chunks::Put { incarnation: place.incarnation, inode: self.inode, entry, bytes: bytes.clone() };
            self.sent.insert((place.id, instance));
            let inner = Arc::clone(&self.inner);
            self.puts.spawn(async move {
                let ended = put_until(&inner, place, put).await;
                Put { group: index, chunk: number, place, instance, ended }
            });
        }
    }

    /// Chunks for which the fullest benefactor had room; `None`: nobody has said yet.
    pub(super) fn room(&self) -> Option<u64> {
        self.room.values().min().copied()
    }

    /// How many puts may be under way: few where they would take what room there is, and keep what is written from being committed.
    pub(super) fn under_way(&self) -> usize {
        let room = self.room().map_or(PUTS_MIN, |room| usize::try_from(room / 2).unwrap_or(usize::MAX));
        // Each chunk with what protects it.
        let beside = match self.inner.protection {
            Protection::Copies(copies) => copies,
            Protection::Parity(of) => of.members().div_ceil(of.data()),
        };
        room.clamp(1, self.inner.config.puts) * beside as usize
    }

    /// Waits until so many puts are under way at most.
    pub(super) async fn settle(&mut self, under_way: usize) -> Result<(), Error> {
        loop {
            let put = match self.puts.try_join_next() {
                Some(put) => put,
                None if self.puts.len() > under_way => match self.puts.join_next().await {
                    Some(put) => put,
                    None => return Ok(()),
                },
                None => return Ok(()),
            };
            let Ok(put) = put else { continue };
            self.sent.remove(&(put.place.id, put.instance));
            match put.ended {
                PutEnded::Stored(room) => {
                    self.room.insert(put.place.id, room);
                    let group = self.groups.get_mut(&put.group);
                    match group.and_then(|group| group.member_mut(put.chunk)) {
                        Some(chunk) => {
                            if !chunk.draft && !planted(Bug::RestoredStays) {
                                self.restored.insert((put.place.id, put.instance), (put.group, put.chunk));
                            }
                            // Nobody counts on a former one.
                            if let Some(former) = chunk.at.insert(put.place.id, put.instance) {
                                self.withdraw(vec![(put.place.id, former)]);
                            }
                        }
                        // It has left the pool meanwhile.
                        None => self.withdraw(vec![(put.place.id, put.instance)]),
                    }
                }
                PutEnded::Gone => {
                    self.gone.insert(put.place);
                    // It may have it all the same.
                    self.withdraw(vec![(put.place.id, put.instance)]);
                }
                PutEnded::Full => self.full = Some(put.place.id),
                PutEnded::UnknownSession => return Err(Error::SessionEnded(self.inner.config.mount.clone())),
            }
        }
    }

    /// Every chunk of every changed group is where it is to be, in the place of benefactors that are gone at others.
    pub(super) async fn place_all(&mut self, until: Instant) -> Result<(), Error> {
        // Times, one after the other, that there was no room, and nothing that could be committed.
        let mut in_vain = 0_u32;
        loop {
            self.settle(0).await?;
            self.withdraw_restored();
            let full = self.full.take();
            if full.is_some() {
                self.return_room(false);
                in_vain = if self.commit_part().await? || planted(Bug::RoomKeptInVain) { 0 } else { in_vain + 1 };
                if in_vain > 1 {
                    self.return_room(true);
                }
                tokio::time::sleep(FULL).await;
            }
            self.replace_gone().await?;
            let unplaced = self.groups.iter().filter(|(_, group)| group.changed && group.placed.is_none());
            let unplaced: Vec<u32> =
                unplaced.filter(|(_, group)| !group.chunks.is_empty()).map(|(index, _)| *index).collect();
            for index in unplaced {
                self.placed(index).await?;
            }
            self.protect().await?;
            let mut missing = Vec::new();
            for (index, group) in self.groups.iter().filter(|(_, group)| group.changed && group.placed.is_some()) {
                missing.extend(group.missing().into_iter().map(|number| (*index, number)));
            }
            if missing.is_empty() {
                self.withdraw_spares();
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(self.no_room(match full {
                    Some(full) => format!("benefactor {full} has no room until something is drained"),
                    None => {
                        format!("{} chunks are not where they are to be, since benefactors are gone", missing.len())
                    }
                }));
            }
            // What waits for all of its room takes none elsewhere, until the first that can be committed has what it needs.
            let many = if full.is_some() && in_vain > 1 { self.first_of(&missing) } else { missing.len() };
            for (index, number) in missing.into_iter().take(many) {
                let bytes = match is_parity(number) {
                    true => self.groups.get(&index).and_then(|group| group.member(number)?.bytes.clone()),
                    false => Some(self.bytes_of(index, number).await?),
                };
                // What has left the pool need not return to it.
                let chunk = self.groups.get(&index).and_then(|group| group.member(number)).cloned();
                let Some((bytes, chunk)) = bytes.zip(chunk) else { continue };
                self.put_to_column(index, number, chunk, bytes);
                self.settle(self.under_way()).await?;
            }
        }
    }

    /// In the layouts of changed groups others take the places of benefactors that are gone.
    async fn replace_gone(&mut self) -> Result<(), Error> {
        let changed = self.groups.iter().filter(|(_, group)| group.changed && !group.chunks.is_empty());
        let indices: Vec<u32> = changed.map(|(index, _)| *index).collect();
        for index in indices {
            let placed = self.groups.get(&index).and_then(|group| group.placed.clone());
            let Some((mut layout, stripe)) = placed else { continue };
            let mut replaced = BTreeSet::new();
            for column in &mut layout.columns {
                while let Some(at) = column.places.iter().position(|place| self.gone.contains(place)) {
                    let former = column.places[at];
                    // Also those that are gone: one of them may be chosen again, and would have both copies.
                    let others: Vec<BenefactorId> =
                        column.places.iter().filter(|place| **place != former).map(|place| place.id).collect();
                    let found = self.place(CHUNK, Protection::Copies(1), index, &others).await?;
                    column.places[at] = found.columns[0].places[0];
                    // The same one in the same life has what it had; if not, it says so when it is to seal it.
                    if column.places[at] != former {
                        replaced.insert(former.id);
                    }
                }
            }
            let mut left = Vec::new();
            if let Some(group) = self.groups.get_mut(&index).filter(|_| !replaced.is_empty()) {
                let stays: BTreeSet<BenefactorId> = layout.places().iter().map(|place| place.id).collect();
                let former = group.places();
                for chunk in group.chunks.values_mut() {
                    let is_left = |id: BenefactorId| !stays.contains(&id) || replaced.contains(&id);
                    left.extend(chunk.leave(is_left, &former));
                    if let Some(Former::Stored(former)) = &mut chunk.former {
                        former.at.retain(|id, _| !is_left(*id));
                    }
                }
                for row in group.rows.values_mut() {
                    let is_left = |id: BenefactorId| !stays.contains(&id) || replaced.contains(&id);
                    left.extend(row.chunks.values_mut().flat_map(|chunk| chunk.leave(is_left, &former)));
                    for chunk in row.former.iter_mut().flat_map(|row| row.chunks.values_mut()) {
                        chunk.at.retain(|id, _| !is_left(*id));
                    }
                }
                group.placed = Some((layout, stripe));
                let numbers: Vec<u32> = group.chunks.keys().copied().collect();
                for number in numbers {
                    let places = group.lies_at(number).to_vec();
                    group.chunks.get_mut(&number).into_iter().for_each(|chunk| chunk.return_to(&places));
                }
            }
            // Whoever is not dead after all need not keep it.
            self.withdraw(left);
        }
        Ok(())
    }

    /// Has the tables of all changed groups sealed; `false`: a benefactor is gone, lacks chunks, or does not have them on its SSD
    /// yet.
    pub(super) async fn seal_all(&mut self) -> bool {
        let mut seals = JoinSet::new();
        for (index, group) in self.groups.iter().filter(|(_, group)| group.changed && !group.chunks.is_empty()) {
            for place in group.places() {
                let table = group.table(place);
                let seal = self.seal(*index, place, table.clone(), self.inner.media == Media::Ssd);
                // Whether it arrives or not.
                self.sealed.insert((*index, place), table);
                let (inner, index) = (Arc::clone(&self.inner), *index);
                seals.spawn(async move { (index, place, inner.ask_benefactor(place.id, seal, ANSWER).await) });
            }
        }
        let (mut all, mut missing) = (true, Vec::new());
        while let Some(Ok((index, place, answer))) = seals.join_next().await {
            match answer {
                Some(Reply::Sealed) => {}
                // Its SSD may have no room as long as this table names chunks that have left the pool meanwhile.
                Some(Reply::NotYet) => all = false,
                Some(Reply::Missing(chunks)) => {
                    all = false;
                    if let Some(group) = self.groups.get_mut(&index) {
                        for chunk in chunks {
                            let chunk = group.member_mut(chunk);
                            missing.extend(chunk.and_then(|chunk| chunk.at.remove_entry(&place.id)));
                        }
                    }
                }
                _ => {
                    all = false;
                    self.gone.insert(place);
                }
            }
        }
        // What is damaged there keeps its room until then. What another session has put is its own.
        missing.retain(|(_, instance)| instance.session == self.inner.session);
        self.withdraw(missing);
        all
    }

    /// Tables that were sealed for commits that have not taken place keep the room of what they name. Of those that name what is there no more
    /// nothing is sealed in their place, since nobody knows when they are sealed again.
    pub(super) fn seal_nothing(&mut self) {
        let (groups, mut over) = (&self.groups, Vec::new());
        self.sealed.retain(|(index, place), table| {
            let has = |(number, entry): (&u32, &Entry)| {
                let group = groups.get(index).filter(|group| group.lies_at(*number).contains(place));
                let chunk = group.and_then(|group| group.member(*number));
                chunk.is_some_and(|chunk| chunk.at.get(&place.id) == Some(&entry.instance))
            };
            let stays = own(table).all(has);
            over.extend((!stays).then_some((*index, *place)));
            stays
        });
        for (index, place) in over.into_iter().filter(|_| !planted(Bug::SealedStays)) {
            self.say(place.id, self.seal(index, place, Table::new(), false));
        }
    }

    /// A seal of the next version, after all others of the session.
    fn seal(&self, index: u32, place: Place, table: Table, durable: bool) -> chunks::Request {
        let of = (GroupOf { inode: self.inode, group: index }, self.version.next(), self.inner.session);
        chunks::Request::Seal(Seal { incarnation: place.incarnation, of, table, order: self.next_number(), durable })
    }

    /// A number that nothing else of the session has, greater than all before.
    pub(super) fn next_number(&self) -> u64 {
        self.inner.instances.fetch_add(1, Ordering::Relaxed)
    }

    /// The changed groups, as a commit names them.
    pub(super) fn changed_groups(&self) -> Vec<(u32, Stored)> {
        let changed = self.groups.iter().filter(|(_, group)| group.changed);
        let stored = changed.map(|(index, group)| {
            let (present, digest) = span::digest(group.chunks.values().map(|chunk| (chunk.length, chunk.crc)));
            let first = span::of_group(*index).0;
            let length = |(begins, ends): &(u32, u32)| {
                let end = (u64::from(*ends) * CHUNK).min(self.size.saturating_sub(first));
                end.saturating_sub(u64::from(*begins) * CHUNK)
            };
            let elsewhere = group.absent.runs().iter().map(length).sum::<u64>() + group.holes.len() * CHUNK;
            // What a group lacks lies nowhere, or in the base as a whole.
            let (layout, absent) = match &group.placed {
                Some((layout, _)) if !group.chunks.is_empty() => (layout.clone(), group.absent.clone()),
                _ => (Layout::NONE, Runs::NONE),
            };
            let (bytes, by, holes) = (present + elsewhere, self.inner.session, group.holes.clone());
            (*index, Stored { layout, bytes, digest, by, absent, holes })
        });
        stored.collect()
    }

    /// These writings are named by tables now, or by nothing: they are drafts no longer. It is said until it arrives, for as long as a
    /// request waits: their room is not free before.
    pub(super) fn withdraw(&self, drafts: Vec<(BenefactorId, Instance)>) {
        let mut news: BTreeMap<BenefactorId, News> = BTreeMap::new();
        for (id, instance) in drafts {
            news.entry(id).or_default().withdrawn.push(instance);
        }
        for (id, news) in news {
            self.say(id, chunks::Request::Forget(news));
        }
    }

    fn say(&self, to: BenefactorId, request: chunks::Request) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            let until = inner.until();
            while inner.ask_benefactor(to, request.clone(), ANSWER).await.is_none() {
                if Instant::now() >= until || inner.over.load(Ordering::Relaxed) {
                    return;
                }
                tokio::time::sleep(UNHEARD).await;
            }
        });
    }
}

/// Puts a chunk, and waits while the benefactor has no room.
async fn put_until(inner: &Inner, place: Place, put: chunks::Put) -> PutEnded {
    let (until, mut damaged) = (Instant::now() + FULL_TIME, 0);
    loop {
        match inner.ask_benefactor(place.id, chunks::Request::Put(put.clone()), ANSWER).await {
            Some(Reply::Stored(Spare { memory, ssd })) => {
                let on_ssd = ssd.filter(|_| inner.media == Media::Ssd);
                return PutEnded::Stored(on_ssd.map_or(memory, |ssd| ssd.min(memory)));
            }
            Some(Reply::Full) if Instant::now() >= until => return PutEnded::Full,
            Some(Reply::Full) => tokio::time::sleep(FULL).await,
            Some(Reply::UnknownSession) => return PutEnded::UnknownSession,
            Some(Reply::Corrupt) if damaged < DAMAGED => damaged += 1,
            _ => return PutEnded::Gone,
        }
    }
}
