//! Chunks at their benefactors: put, put again elsewhere, sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table};
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::meta::Group as Stored;
use surgetank_pool_core::placement::{Layout, Media, Place, Stripe};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::reader::read_chunk;
use super::super::{Error, Inner, LOOK, senseless};
use super::{Chunk, Group, Writer};
use crate::chunks::{self, Get, News, Reply, Seal};
use crate::manager;
use crate::span;

/// How long a benefactor may take for a request before it counts as gone.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a chunk that arrived damaged is sent again.
const DAMAGED: usize = 3;
/// The pause while a benefactor has no room.
const FULL: Duration = Duration::from_millis(20);

/// A chunk was put, or not.
pub(super) struct Put {
    group: u32,
    chunk: u32,
    place: Place,
    ended: PutEnded,
}

enum PutEnded {
    Stored(Instance),
    /// The benefactor does not answer, or is in another life.
    Gone,
    /// It had no room until the time was over.
    Full,
    UnknownSession,
}

impl Writer {
    /// A group's layout and table; a new one is placed.
    pub(super) async fn group(&mut self, index: u32) -> Result<(), Error> {
        match self.groups.get(&index) {
            Some(group) if group.known => return Ok(()),
            Some(_) => return self.learn(index).await,
            None => {}
        }
        let bytes = span::of_group(index).1;
        let layout = self.place(bytes, self.inner.copies, index, &[]).await?;
        let stripe = Stripe::new(&layout);
        let group = Group { layout, stripe, chunks: BTreeMap::new(), committed: None, known: true, changed: false };
        self.groups.insert(index, group);
        Ok(())
    }

    /// Where chunks are to go, with as many benefactors as there are copies in different domains, and in others than these.
    async fn place(&mut self, bytes: u64, copies: u32, index: u32, apart: &[BenefactorId]) -> Result<Layout, Error> {
        let until = self.inner.until();
        let mut without: Vec<Place> = self.gone.iter().copied().collect();
        loop {
            let spread = self.inode.0.rotate_left(20) ^ u64::from(index);
            let (media, apart) = (self.inner.media, apart.to_vec());
            let place = manager::Place { bytes, copies, media, spread, without: without.clone(), apart };
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
                    tokio::time::sleep(LOOK).await;
                }
                _ => return Err(senseless()),
            }
        }
    }

    /// Whether benefactors have every chunk of what is committed.
    pub(in crate::client) async fn knows_all(&mut self) -> bool {
        let indices: Vec<u32> = self.groups.keys().copied().collect();
        for index in indices {
            if self.learn_now(index).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Reads the tables of a committed group: which writing of each chunk every benefactor has.
    async fn learn(&mut self, index: u32) -> Result<(), Error> {
        let until = self.inner.until();
        loop {
            match self.learn_now(index).await {
                // They may begin anew, and are reached elsewhere then.
                Err((_, false)) if Instant::now() < until => {
                    self.inner.content(&self.path, self.inode).await?;
                    tokio::time::sleep(LOOK).await;
                }
                learnt => return learnt.map_err(|(error, _)| error),
            }
        }
    }

    /// The same from those that answer; with an error whether it is for ever.
    async fn learn_now(&mut self, index: u32) -> Result<(), (Error, bool)> {
        let mut forever = true;
        let Some(group) = self.groups.get(&index) else { return Ok(()) };
        let Some((version, by)) = group.committed else { return Ok(()) };
        let of = (GroupOf { inode: self.inode, group: index }, version, by);
        let ticket = self.inner.ticket(self.inode).await;
        let mut chunks: BTreeMap<u32, Chunk> = BTreeMap::new();
        for place in group.layout.places() {
            let get = Get { incarnation: place.incarnation, of, chunk: 0, ticket: ticket.clone() };
            match self.inner.ask_benefactor(place.id, chunks::Request::Table(get), ANSWER).await {
                Some(Reply::Table(table)) => {
                    for (number, entry) in table {
                        let chunk = chunks.entry(number).or_default();
                        (chunk.length, chunk.crc) = (entry.length, entry.crc);
                        chunk.at.insert(place.id, entry.instance);
                    }
                }
                answer => {
                    forever &= answer.is_some();
                    self.gone.insert(place);
                }
            }
        }
        let (first, room) = span::of_group(index);
        let bytes = self.size.saturating_sub(first).min(room);
        for number in 0..u32::try_from(bytes.div_ceil(chunks::CHUNK)).unwrap_or(u32::MAX) {
            if !chunks.contains_key(&number) {
                let (path, offset) = (self.path.clone(), first + u64::from(number) * chunks::CHUNK);
                let why = "no benefactor that has it answers".to_owned();
                return Err((Error::Unreadable { path, offset, why }, forever));
            }
        }
        if let Some(group) = self.groups.get_mut(&index) {
            (group.chunks, group.known) = (chunks, true);
        }
        Ok(())
    }

    /// What a chunk is now: written here, or committed.
    pub(super) async fn base(&mut self, begins: u64) -> Result<Bytes, Error> {
        let (index, chunk) = span::of_byte(begins);
        self.group(index).await?;
        self.bytes_of(index, chunk).await
    }

    async fn bytes_of(&self, index: u32, chunk: u32) -> Result<Bytes, Error> {
        let unreadable = |why: String| {
            let offset = span::of_group(index).0 + u64::from(chunk) * chunks::CHUNK;
            Error::Unreadable { path: self.path.clone(), offset, why }
        };
        let group = self.groups.get(&index).ok_or_else(|| unreadable("it was never written".to_owned()))?;
        if let Some(bytes) = group.chunks.get(&chunk).and_then(|chunk| chunk.bytes.clone()) {
            return Ok(bytes);
        }
        let Some((version, by)) = group.committed else { return Err(unreadable("it was never written".to_owned())) };
        let mut stored = Stored { layout: group.layout.clone(), bytes: 0, digest: 0, by };
        let until = self.inner.until();
        loop {
            let failed = match read_chunk(&self.inner, self.inode, (index, version, &stored), chunk).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => failed,
            };
            // All that have it may begin anew, with what is on their SSDs, and are reached elsewhere then.
            let newest = self.inner.content(&self.path, self.inode).await?.groups;
            let layout =
                newest.into_iter().find(|(of, at, _)| (*of, *at) == (index, version)).map(|(.., of)| of.layout);
            let is_moved = layout.as_ref().is_some_and(|layout| *layout != stored.layout);
            if Instant::now() >= until || failed.forever && !is_moved {
                return Err(unreadable(failed.why));
            }
            stored.layout = layout.unwrap_or(stored.layout);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Puts a chunk whose bytes are here where it is missing.
    pub(super) fn put_missing(&mut self, index: u32, number: u32) {
        let Some(group) = self.groups.get(&index) else { return };
        let Some(chunk) = group.chunks.get(&number) else { return };
        let Some(bytes) = &chunk.bytes else { return };
        self.put_to_column(index, number, chunk.clone(), bytes.clone());
    }

    fn put_to_column(&mut self, index: u32, number: u32, chunk: Chunk, bytes: Bytes) {
        let Some(group) = self.groups.get(&index) else { return };
        let column = group.layout.columns[group.stripe.column(number.into())].places.clone();
        for place in column {
            if chunk.at.contains_key(&place.id) || self.gone.contains(&place) {
                continue;
            }
            let instance =
                Instance { session: self.inner.session, number: self.inner.instances.fetch_add(1, Ordering::Relaxed) };
            let entry = Entry { instance, length: chunk.length, crc: chunk.crc };
            let put = chunks::Put { incarnation: place.incarnation, inode: self.inode, entry, bytes: bytes.clone() };
            let inner = Arc::clone(&self.inner);
            self.puts.spawn(async move {
                let ended = put_until(&inner, place, put).await;
                Put { group: index, chunk: number, place, ended }
            });
        }
    }

    /// Waits until so many puts are under way at most.
    pub(super) async fn settle(&mut self, under_way: usize) -> Result<(), Error> {
        while self.puts.len() > under_way {
            let Some(Ok(put)) = self.puts.join_next().await else { continue };
            match put.ended {
                PutEnded::Stored(instance) => {
                    let group = self.groups.get_mut(&put.group);
                    if let Some(chunk) = group.and_then(|group| group.chunks.get_mut(&put.chunk)) {
                        chunk.at.insert(put.place.id, instance);
                    }
                }
                PutEnded::Gone => drop(self.gone.insert(put.place)),
                PutEnded::Full => {
                    let why = format!("benefactor {} has no room until something is drained", put.place.id);
                    return Err(self.no_room(why));
                }
                PutEnded::UnknownSession => return Err(Error::SessionEnded(self.inner.config.mount.clone())),
            }
        }
        Ok(())
    }

    /// Every chunk of every changed group is where it is to be, in the place of benefactors that are gone at others.
    pub(super) async fn place_all(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            self.settle(0).await?;
            self.replace_gone().await?;
            let mut missing = Vec::new();
            for (index, group) in self.groups.iter().filter(|(_, group)| group.changed) {
                for (number, chunk) in &group.chunks {
                    let places = &group.layout.columns[group.stripe.column((*number).into())].places;
                    if places.iter().any(|place| !chunk.at.contains_key(&place.id)) {
                        missing.push((*index, *number, chunk.clone()));
                    }
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let why = format!("{} chunks have too few copies, since benefactors are gone", missing.len());
                return Err(self.no_room(why));
            }
            for (index, number, chunk) in missing {
                let bytes = self.bytes_of(index, number).await?;
                self.put_to_column(index, number, chunk, bytes);
                self.settle(self.inner.config.puts * self.inner.copies as usize).await?;
            }
        }
    }

    /// In the layouts of changed groups others take the places of benefactors that are gone.
    async fn replace_gone(&mut self) -> Result<(), Error> {
        let changed = self.groups.iter().filter(|(_, group)| group.changed && !group.chunks.is_empty());
        let indices: Vec<u32> = changed.map(|(index, _)| *index).collect();
        for index in indices {
            let Some(mut layout) = self.groups.get(&index).map(|group| group.layout.clone()) else { continue };
            let mut replaced = BTreeSet::new();
            for column in &mut layout.columns {
                while let Some(at) = column.places.iter().position(|place| self.gone.contains(place)) {
                    let former = column.places[at];
                    let others: Vec<BenefactorId> =
                        column.places.iter().filter(|place| !self.gone.contains(place)).map(|place| place.id).collect();
                    let found = self.place(chunks::CHUNK, 1, index, &others).await?;
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
                for chunk in group.chunks.values_mut() {
                    let is_left = |id: &BenefactorId| !stays.contains(id) || replaced.contains(id);
                    let (gone, at) = std::mem::take(&mut chunk.at).into_iter().partition(|(id, _)| is_left(id));
                    chunk.at = at;
                    if chunk.bytes.is_some() {
                        left.extend::<BTreeMap<_, _>>(gone);
                    }
                }
                group.layout = layout;
            }
            // Whoever is not dead after all need not keep it.
            self.withdraw(left);
        }
        Ok(())
    }

    /// Has the tables of all changed groups sealed; `false`: a benefactor is gone, or lacks chunks.
    pub(super) async fn seal_all(&mut self) -> bool {
        let mut seals = JoinSet::new();
        let version = self.version.next();
        for (index, group) in self.groups.iter().filter(|(_, group)| group.changed && !group.chunks.is_empty()) {
            let of = (GroupOf { inode: self.inode, group: *index }, version, self.inner.session);
            for place in group.layout.places() {
                let durable = self.inner.media == Media::Ssd;
                let seal = Seal { incarnation: place.incarnation, of, table: group.table(place.id), durable };
                let (inner, index) = (Arc::clone(&self.inner), *index);
                seals.spawn(async move {
                    let until = inner.until();
                    loop {
                        let request = chunks::Request::Seal(seal.clone());
                        match inner.ask_benefactor(place.id, request, ANSWER).await {
                            Some(Reply::NotYet) if Instant::now() < until => {}
                            answer => return (index, place, answer),
                        }
                    }
                });
            }
        }
        let mut all = true;
        while let Some(Ok((index, place, answer))) = seals.join_next().await {
            match answer {
                Some(Reply::Sealed) => {}
                Some(Reply::Missing(chunks)) => {
                    all = false;
                    if let Some(group) = self.groups.get_mut(&index) {
                        for chunk in chunks {
                            group.chunks.get_mut(&chunk).map(|chunk| chunk.at.remove(&place.id));
                        }
                    }
                }
                _ => {
                    all = false;
                    self.gone.insert(place);
                }
            }
        }
        all
    }

    /// The changed groups, as a commit names them.
    pub(super) fn changed_groups(&self) -> Vec<(u32, Stored)> {
        let changed = self.groups.iter().filter(|(_, group)| group.changed);
        let stored = changed.map(|(index, group)| {
            let (bytes, digest) = span::digest(group.chunks.values().map(|chunk| (chunk.length, chunk.crc)));
            // A group that the file was cut off before lies nowhere.
            let layout = if bytes == 0 { Layout { columns: Vec::new() } } else { group.layout.clone() };
            (*index, Stored { layout, bytes, digest, by: self.inner.session })
        });
        stored.collect()
    }

    /// These writings are named by tables now, or by nothing: they are drafts no longer. If that does not arrive, the session's end does.
    pub(super) fn withdraw(&self, drafts: Vec<(BenefactorId, Instance)>) {
        let mut news: BTreeMap<BenefactorId, News> = BTreeMap::new();
        for (id, instance) in drafts {
            news.entry(id).or_default().withdrawn.push(instance);
        }
        for (id, news) in news {
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move { inner.ask_benefactor(id, chunks::Request::Forget(news), ANSWER).await });
        }
    }
}

impl Group {
    /// What a benefactor is to have of it.
    fn table(&self, of: BenefactorId) -> Table {
        let entry = |(number, chunk): (&u32, &Chunk)| {
            let instance = *chunk.at.get(&of)?;
            Some((*number, Entry { instance, length: chunk.length, crc: chunk.crc }))
        };
        self.chunks.iter().filter_map(entry).collect()
    }
}

/// Puts a chunk, and waits while the benefactor has no room.
async fn put_until(inner: &Inner, place: Place, put: chunks::Put) -> PutEnded {
    let (until, mut damaged) = (inner.until(), 0);
    loop {
        let instance = put.entry.instance;
        match inner.ask_benefactor(place.id, chunks::Request::Put(put.clone()), ANSWER).await {
            Some(Reply::Stored(_)) => return PutEnded::Stored(instance),
            Some(Reply::Full) if Instant::now() >= until => return PutEnded::Full,
            Some(Reply::Full) => tokio::time::sleep(FULL).await,
            Some(Reply::UnknownSession) => return PutEnded::UnknownSession,
            Some(Reply::Corrupt) if damaged < DAMAGED => damaged += 1,
            _ => return PutEnded::Gone,
        }
    }
}
