//! Files that several sessions write at the same time.
//!
//! A commit is on top of the version that its writer knows. If another session has committed meanwhile, it is refused, and so is
//! whatever looks at the file in the store. Then the writer *catches up*: it takes the file as it is now, and lays upon it what was
//! written here and is not committed, byte range by byte range. What lies in a chunk between these ranges is that of the others; the file
//! is as long as the longer of both. Then the commit is tried again. Each time that one is refused another one has taken place.
//!
//! A cut below what is committed is committed at once ([`Writer::set_size`]), so that it comes before what others commit afterwards. A
//! file that is opened to be rewritten is cut off by the first commit, whoever makes it: by a session that opens the file meanwhile, if
//! it is faster (see [`Operation::OpenForWriting`](surgetank_pool_core::meta::operation::Operation::OpenForWriting)). So a cut that is
//! still to be committed when another session has committed is one that has been made.

use std::collections::BTreeSet;

use bytes::Bytes;
use surgetank_pool_core::id::{SessionId, Version};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::placement::{Layout, Stripe};
use surgetank_pool_core::written::Written;

use super::base::places;
use super::part::Former;
use super::rows::Row;
use super::{Chunk, Current, Error, Writer};
use crate::chunks::CHUNK;
use crate::manager::Content;
use crate::planted::holes;
use crate::planted::writers::{Bug, planted};
use crate::span;

/// Whether something was refused since another session has committed to the file.
pub(super) const fn is_behind(error: &Error) -> bool {
    matches!(error, Error::Refused(_, Refusal::Version(_)))
}

/// A chunk that is to be laid upon what others have committed.
pub(super) struct Pending {
    /// Which group, and which of its chunks.
    at: (u32, u32),
    pub(super) chunk: Chunk,
    /// What the group was when the chunk was written; `None`: not in the store, or cut off here.
    of: Option<(Version, SessionId)>,
    /// Where the group's chunks were to lie.
    placed: Option<(Layout, Stripe)>,
}

impl Pending {
    fn begins(&self) -> u64 {
        begins(self.at)
    }
}

fn begins((index, number): (u32, u32)) -> u64 {
    span::of_group(index).0 + u64::from(number) * CHUNK
}

fn number(of: u64) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl Chunk {
    /// Whether both are the same writing.
    fn is(&self, other: &Self) -> bool {
        let has = |(id, instance): (_, &_)| other.at.get(id) == Some(instance);
        (self.length, self.crc) == (other.length, other.crc) && self.at.iter().any(has)
    }
}

impl Writer {
    /// Which bytes of a chunk were written here and are not committed.
    pub(super) fn written_in(&self, begins: u64) -> Written {
        let (index, number) = span::of_byte(begins);
        let chunk = self.groups.get(&index).and_then(|group| group.chunks.get(&number));
        chunk.map(|chunk| chunk.written.clone()).unwrap_or_default()
    }

    /// The byte behind the last one that was written here and is not committed, or up to which the file was extended.
    pub(super) fn reach(&self) -> u64 {
        let end = |begins: u64, written: &Written| match written.is_empty() {
            true => 0,
            false => begins + u64::from(written.end()),
        };
        let of_groups = self.groups.iter().flat_map(|(index, group)| {
            group.chunks.iter().map(|(number, chunk)| end(begins((*index, *number)), &chunk.written))
        });
        let of_pending = self.pending.iter().map(|pending| end(pending.begins(), &pending.chunk.written));
        let of_current = self.current.iter().map(|current| end(current.begins, &current.written));
        of_groups.chain(of_pending).chain(of_current).max().unwrap_or(0).max(self.grown)
    }

    /// Goes on with what an earlier call could not finish.
    pub(super) async fn go_on(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() { Ok(()) } else { self.catch_up().await }
    }

    /// What was done, unless it was refused since another session has committed: then `None`, and it can be tried again on top of that.
    pub(super) async fn caught_up<T>(&mut self, done: Result<T, Error>) -> Result<Option<T>, Error> {
        match done {
            Err(error) if is_behind(&error) && !self.of_one_version => self.catch_up().await.map(|()| None),
            done => done.map(Some),
        }
    }

    /// Takes the file as the store has it, with what is written here upon that.
    pub(super) async fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            let content = self.inner.content(&self.path, self.inode).await?;
            if content.node.version == self.version && self.pending.is_empty() {
                self.looked(&content);
                return Ok(());
            }
            match self.lay_upon(content).await {
                Err(error) if is_behind(&error) => {}
                done => return done,
            }
        }
    }

    async fn lay_upon(&mut self, content: Content) -> Result<(), Error> {
        // What is under way would count as what is written afterwards.
        self.settle(0).await?;
        let reach = self.reach();
        self.take_all();
        self.begin_with(content);
        let size = self.size.max(reach);
        self.pending.sort_unstable_by_key(|pending| std::cmp::Reverse(pending.at));
        while let Some(next) = self.pending.last() {
            let begins = next.begins();
            // Of a gap theirs counts, or there is none any more.
            if next.chunk.written.is_empty() && (begins < self.committed || begins >= size) {
                self.drop_next();
                continue;
            }
            self.fill(begins).await?;
            self.stage_current().await?;
            let laid = self.lay_next(number((size - begins).min(CHUNK))).await?;
            self.stage_next(laid).await?;
        }
        self.fill(size).await
    }

    /// Everything that is written here and not committed is to be laid anew.
    fn take_all(&mut self) {
        if let Some(Current { begins, bytes, written }) = self.current.take() {
            let (index, number) = span::of_byte(begins);
            let group = self.groups.entry(index).or_default();
            let mut chunk = Chunk::draft(bytes.into(), written);
            match group.chunks.remove(&number) {
                Some(mut former) if former.draft => {
                    chunk.former = former.former.take();
                    self.withdrawn.extend(former.writings());
                }
                Some(former) => chunk.former = Some(Former::Stored(Box::new(former))),
                None => chunk.former = group.take_former(number),
            }
            group.chunks.insert(number, chunk);
        }
        for (index, group) in &mut self.groups {
            let written: Vec<u32> =
                group.chunks.iter().filter(|(_, chunk)| chunk.draft).map(|(number, _)| *number).collect();
            let rows = std::mem::take(&mut group.rows);
            self.withdrawn.extend(rows.values().flat_map(Row::drafts));
            group.rows = rows.into_iter().filter_map(|(number, row)| Some((number, row.into_former()?))).collect();
            for number in written {
                let Some(chunk) = group.chunks.remove(&number) else { continue };
                match &chunk.former {
                    Some(Former::Stored(former)) => drop(group.chunks.insert(number, former.as_ref().clone())),
                    Some(Former::Absent) => group.absent.insert(number),
                    Some(Former::Hole) => group.holes.insert(number),
                    None => {}
                }
                let of = group.committed.filter(|_| !group.is_cut);
                self.pending.push(Pending { at: (*index, number), chunk, of, placed: group.placed.clone() });
            }
        }
        let withdrawn = std::mem::take(&mut self.withdrawn);
        self.withdraw(withdrawn);
    }

    /// The file is what the store has of it.
    fn begin_with(&mut self, content: Content) {
        if content.node.version != self.version {
            // The warden has it dropped.
            self.sealed.clear();
        }
        (self.version, self.committed, self.size) = (content.node.version, content.node.size, content.node.size);
        (self.cut, self.read, self.uncommitted) = (None, None, 0);
        self.kept.clear();
        let known = std::mem::take(&mut self.groups);
        self.has(content);
        for (index, mut group) in known {
            let Some(fresh) = self.groups.get_mut(&index) else { continue };
            let layouts = [&group, fresh].map(|group| group.placed.as_ref().map(|(layout, _)| layout));
            let is_same = group.committed.is_some() && group.committed == fresh.committed && layouts[0] == layouts[1];
            // Its table need not be read again.
            if is_same && group.known && !group.is_cut && !fresh.known {
                group.chunks.retain(|number, _| !fresh.absent.contains(*number));
                (group.changed, group.absent) = (false, std::mem::take(&mut fresh.absent));
                if !holes::planted(holes::Bug::LostInCatchUp) {
                    group.holes = std::mem::take(&mut fresh.holes);
                }
                *fresh = group;
            }
        }
    }

    /// The bytes of the next chunk that is pending, of this length; `None`: they are as they were, and not kept here.
    async fn lay_next(&mut self, length: u32) -> Result<Option<Bytes>, Error> {
        let Some(next) = self.pending.last() else { return Ok(None) };
        let (begins, (index, chunk)) = (next.begins(), next.at);
        self.group(index).await?;
        let Some(next) = self.pending.last() else { return Ok(None) };
        let written = next.chunk.written.clone();
        let is_ours = written.covers(length) || planted(Bug::PartDropped);
        if next.chunk.bytes.is_none() && is_ours && next.chunk.length == length {
            return Ok(None);
        }
        let (draft, places) = (next.chunk.clone(), places(next.placed.as_ref()));
        let ours = self.bytes_of_draft(draft, places, begins).await?;
        let Some(next) = self.pending.last() else { return Ok(None) };
        if written.covers(length) || begins >= self.committed {
            return Ok(Some(written.lay(&ours, &[], length).into()));
        }
        let group = self.groups.get(&index);
        let is_same_group = next.of.is_some() && group.is_some_and(|group| group.committed == next.of);
        let is_same_chunk = match (&next.chunk.former, group.and_then(|group| group.chunks.get(&chunk))) {
            (Some(Former::Stored(former)), Some(theirs)) => former.is(theirs),
            _ => false,
        };
        if is_same_group || is_same_chunk {
            // Between the ranges is what is there still.
            let mut bytes = ours.to_vec();
            bytes.resize(length as usize, 0);
            return Ok(Some(bytes.into()));
        }
        let theirs = self.base(begins).await?;
        Ok(Some(written.lay(&ours, &theirs, length).into()))
    }

    /// The next chunk that is pending is this; copies of it stay where they are, if it is as it was.
    async fn stage_next(&mut self, laid: Option<Bytes>) -> Result<(), Error> {
        let Some(Pending { at: (index, number), mut chunk, placed, .. }) = self.pending.pop() else { return Ok(()) };
        let begins = begins((index, number));
        let former = places(placed.as_ref());
        let mut stays = BTreeSet::new();
        if let Some(group) = self.groups.get_mut(&index) {
            group.placed = group.placed.take().or(placed);
            if laid.is_none() || chunk.bytes == laid {
                stays.extend(group.lies_at(number).iter().map(|place| place.id));
            }
        }
        let mut gone = chunk.leave(|id| !stays.contains(&id), &former);
        chunk.former = None;
        if let Some(bytes) = laid.filter(|bytes| chunk.bytes.as_ref() != Some(bytes)) {
            let written = std::mem::take(&mut chunk.written);
            gone.extend(std::mem::replace(&mut chunk, Chunk::draft(bytes, written)).writings());
        }
        self.withdraw(gone);
        self.size = self.size.max(begins + u64::from(chunk.length));
        self.stage(begins, chunk).await
    }

    fn drop_next(&mut self) {
        if let Some(next) = self.pending.pop() {
            self.withdraw(next.chunk.writings().collect());
        }
    }
}
