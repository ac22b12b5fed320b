//! Reads what is written, committed or not, has room for what becomes longer, and cuts files off.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::rows::Row;
use super::{Error, Writer, is_behind};
use crate::chunks::CHUNK;
use crate::client::quotas::ANSWER;
use crate::planted::writers::{Bug, planted};
use crate::span;

/// Groups that a commit may cut off.
const GROUPS_CUT: u32 = 16;

impl Writer {
    /// Reads bytes of the file as it is here, with what is not committed; fewer only at its end, and at the end of a chunk.
    ///
    /// # Errors
    /// [`Error`]; what is written is as it was.
    pub async fn read_at(&mut self, offset: u64, length: usize) -> Result<Bytes, Error> {
        self.is_well()?;
        self.go_on().await?;
        loop {
            let read = self.read_now(offset, length).await;
            if let Some(found) = self.caught_up(read).await? {
                return Ok(found);
            }
        }
    }

    /// The same as [`write_bytes_at`](Self::write_bytes_at) with bytes that somebody has taken already: no quota refuses them.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn write_back_at(&mut self, offset: u64, bytes: &Bytes) -> Result<(), Error> {
        self.is_well()?;
        self.count(self.size().max(offset.saturating_add(bytes.len() as u64))).await;
        self.write_taken(offset, bytes, Some(bytes)).await
    }

    /// Has room for a file of so many bytes in its user's quota, before anything is taken that makes it longer; what does not is refused never.
    ///
    /// # Errors
    /// [`Error::took_nothing`]: what is written is as it was, and nothing has failed.
    pub(super) async fn reserve(&mut self, size: u64) -> Result<(), Error> {
        let taken = self.size();
        if size <= taken {
            self.count(size).await;
            return Ok(());
        }
        if size <= self.reserved || self.of_one_version || !self.inner.has_quota(self.owner()).await {
            return Ok(());
        }
        if let Some(reserved) = self.inner.reserve(&self.path, self.inode, (taken, size)).await? {
            self.reserved = reserved;
        }
        Ok(())
    }

    /// The file counts so many bytes from now on, whatever the quota allows. Managers that do not hear of it learn it by the next commit.
    pub(super) async fn count(&mut self, size: u64) {
        if size <= self.reserved || self.of_one_version || !self.inner.has_quota(self.owner()).await {
            return;
        }
        let reserving = self.inner.reserve(&self.path, self.inode, (size, size));
        match tokio::time::timeout(ANSWER, reserving).await {
            Ok(Ok(reserved)) => self.reserved = reserved.unwrap_or(self.reserved),
            Ok(Err(_)) | Err(_) => self.reserved = size,
        }
    }

    fn owner(&self) -> u32 {
        self.node.as_ref().map_or(self.user, |node| node.owner.1)
    }

    async fn read_now(&mut self, offset: u64, length: usize) -> Result<Bytes, Error> {
        let begins = offset - offset % CHUNK;
        let end = self.size.min(offset.saturating_add(length as u64)).min(begins + CHUNK);
        if end <= offset {
            return Ok(Bytes::new());
        }
        let at = |place: u64| usize::try_from(place - begins).unwrap_or_default();
        if let Some(current) = self.current.as_ref().filter(|current| current.begins == begins) {
            return Ok(Bytes::copy_from_slice(&current.bytes[at(offset)..at(end)]));
        }
        let chunk = match self.read.as_ref().filter(|(read, _)| *read == begins) {
            Some((_, chunk)) => chunk.clone(),
            None => self.base(begins).await?,
        };
        self.read = Some((begins, chunk.clone()));
        Ok(chunk.slice(at(offset)..at(end)))
    }

    /// Cuts the file off, or fills it with zeros up to a size: whole chunks of them are holes, which take no room. What was committed is cut off
    /// at once, for every session: what others commit afterwards is on top of that.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.is_well()?;
        self.reserve(size).await?;
        let done = loop {
            match self.set_size_now(size).await {
                Err(error) if is_behind(&error) => {}
                done => break done,
            }
        };
        self.remember(done)
    }

    async fn set_size_now(&mut self, size: u64) -> Result<(), Error> {
        // What others have committed is cut off, too.
        self.catch_up().await?;
        if size >= self.size {
            self.grown = self.grown.max(size);
            return self.fill(size).await;
        }
        // One commit names no more groups than a transaction takes.
        while span::of_byte(self.size - 1).0 > span::of_byte(size).0 + GROUPS_CUT {
            let last = span::of_byte(self.size - 1).0;
            self.cut_off(span::of_group(last - GROUPS_CUT).0).await?;
            self.grown = self.size;
            self.commit_once(false, None).await?;
        }
        let is_committed = size < self.cut.map_or(self.committed, |cut| cut.min(self.committed));
        self.cut_off(size).await?;
        // However short what others commit.
        self.grown = size;
        if is_committed { self.commit_once(false, None).await.map(|_| ()) } else { Ok(()) }
    }

    /// Drops all that is committed, by what is committed next.
    pub(in super::super) async fn rewrite(&mut self) -> Result<(), Error> {
        self.cut_off(0).await
    }

    /// Drops all that is committed now; `false`: another session has committed meanwhile.
    pub(in super::super) async fn commit_empty(&mut self) -> Result<bool, Error> {
        self.cut_off(0).await?;
        match self.commit_once(false, None).await {
            Err(error) if is_behind(&error) => Ok(false),
            done => done.map(|_| true),
        }
    }

    async fn cut_off(&mut self, size: u64) -> Result<(), Error> {
        self.read = None;
        self.grown = self.grown.min(size);
        self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
        let begins = size - size % CHUNK;
        // What lies behind need not be written first.
        if self.current.as_ref().is_some_and(|current| current.begins >= size) {
            self.current = None;
        }
        self.stage_current().await?;
        // What is under way would count as written afterwards.
        self.settle(0).await?;
        let last = if begins < size { Some(self.base(begins).await?) } else { None };
        let mut written = self.written_in(begins);
        let first_behind = span::of_byte(begins).0;
        let of_base = (first_behind..).take_while(|index| self.in_base(*index).is_some());
        let behind: BTreeSet<u32> = self.groups.range(first_behind..).map(|(index, _)| *index).chain(of_base).collect();
        for index in behind {
            let first = span::of_group(index).0;
            let stay = u32::try_from(begins.saturating_sub(first) / CHUNK).unwrap_or(u32::MAX);
            if stay > 0 || !self.groups.contains_key(&index) {
                self.group(index).await?;
            }
            // The base would be taken for what a group has that was cut off before.
            let in_base = self.in_base(index).is_some();
            let Some(group) = self.groups.get_mut(&index) else { continue };
            let is_unknown = group.committed.is_some() && !group.known;
            group.known = true;
            let dropped = group.chunks.split_off(&stay);
            let left = [group.absent.split_off(stay), group.holes.split_off(stay)];
            let drops = !dropped.is_empty() || left.iter().any(|left| !left.is_empty());
            group.changed |= drops || is_unknown;
            group.is_cut |= group.committed.is_some() || group.of_base;
            for chunk in dropped.into_values().filter(|chunk| chunk.draft) {
                self.uncommitted -= u64::from(chunk.length);
                self.withdrawn.extend(chunk.writings());
            }
            let is_in_store = group.committed.is_some() || in_base;
            if group.chunks.is_empty() && group.absent.is_empty() && group.holes.is_empty() && !is_in_store {
                let rows = self.groups.remove(&index).map(|group| group.rows).unwrap_or_default();
                self.withdrawn.extend(rows.values().flat_map(Row::drafts));
            }
        }
        self.size = begins;
        match last {
            Some(last) => {
                let size = if planted(Bug::CutForgotten) { begins + CHUNK } else { size };
                let length = usize::try_from(size - begins).unwrap_or_default().min(last.len());
                self.write_part(begins, &last[..length], false).await?;
                written.cut(u32::try_from(length).unwrap_or(u32::MAX));
                if let Some(current) = &mut self.current {
                    current.written = written;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }
}
