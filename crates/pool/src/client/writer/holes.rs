//! Whole chunks that are zeros and lie nowhere: what a file was extended over, and what was punched out of it.
//!
//! A hole that comes about by an extension is nobody's: what others have committed there meanwhile counts. One that is punched is
//! committed at once, as a cut is, so that it comes before what others commit afterwards. So no hole that is not committed has to win over
//! anything when a writer catches up: it is made again if it is still wanted.

use super::part::Former;
use super::{Error, Group, Writer, is_behind};
use crate::chunks::CHUNK;
use crate::planted::holes::{Bug, planted};
use crate::span;

impl Group {
    /// What a chunk is that is neither written here nor in the pool; it is written over.
    pub(super) fn take_former(&mut self, number: u32) -> Option<Former> {
        match self.absent.remove(number) {
            true => Some(Former::Absent),
            false => self.holes.remove(number).then_some(Former::Hole).filter(|_| !planted(Bug::FormerForgotten)),
        }
    }
}

impl Writer {
    /// Fills it with zeros up to a size.
    pub(super) async fn fill(&mut self, size: u64) -> Result<(), Error> {
        while self.size < size {
            let zeros = (size - self.size).min(CHUNK - self.size % CHUNK);
            if zeros < CHUNK {
                self.write_part(self.size, &vec![0; usize::try_from(zeros).unwrap_or_default()], false).await?;
                continue;
            }
            self.stage_current().await?;
            self.size = self.dig(self.size, size - size % CHUNK).await?;
            if self.is_wide() {
                self.commit_once(false, None).await?;
            }
        }
        Ok(())
    }

    /// Makes the chunks of a group from one place on holes, up to another or to the group's end; where that is.
    async fn dig(&mut self, from: u64, to: u64) -> Result<u64, Error> {
        self.read = None;
        let (index, chunk) = span::of_byte(from);
        let (first, room) = span::of_group(index);
        let to = to.min(first + room);
        self.group(index).await?;
        if let Some(group) = self.groups.get_mut(&index) {
            let end = span::chunks(to - first);
            if group.holes.find(chunk, false).is_none_or(|other| other >= end) {
                return Ok(to);
            }
            group.absent.cut(chunk, end);
            let mut dug = group.chunks.split_off(&chunk);
            group.chunks.append(&mut dug.split_off(&end));
            for former in dug.into_values().filter(|former| former.draft) {
                self.uncommitted -= u64::from(former.length);
                self.withdrawn.extend(former.writings());
            }
            group.holes.add(chunk, end);
            group.changed = true;
            group.is_cut |= from < self.committed;
        }
        Ok(to)
    }

    /// Where the next hole begins from an offset on, or the next chunk that is none; the end of the file is a hole. `None`: the file ends before.
    #[must_use]
    pub fn seek(&self, offset: u64, wants_hole: bool) -> Option<u64> {
        let found = span::seek((self.size(), offset), wants_hole, |index| Some(&self.groups.get(&index)?.holes));
        // What is being written lies over a hole until it goes to its benefactors.
        match self.current.as_ref().map(|current| current.begins) {
            Some(begins) if wants_hole && found.is_some_and(|found| found - found % CHUNK == begins) => {
                self.seek(begins + CHUNK, true).or(Some(self.size()))
            }
            Some(begins) if !wants_hole && begins + CHUNK > offset && found.is_none_or(|found| begins < found) => {
                (offset < self.size()).then_some(begins.max(offset))
            }
            _ => found,
        }
    }

    /// Writes zeros over a range, as far as the file has it. Its whole chunks become holes, which take no room; they are committed at
    /// once, for every session: what others commit afterwards is on top of that.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn punch(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        self.is_well()?;
        self.count(self.size()).await;
        let done = loop {
            match self.punch_now(offset, length).await {
                Err(error) if is_behind(&error) => {}
                done => break done,
            }
        };
        self.remember(done)
    }

    async fn punch_now(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        // The file is as long as others have made it.
        self.catch_up().await?;
        let end = self.size.min(offset.saturating_add(length));
        let (first, last) = (offset.saturating_add(CHUNK - 1) / CHUNK * CHUNK, end - end % CHUNK);
        if first >= last {
            return self.write_zeros(offset, end).await;
        }
        if end > self.committed {
            // What was written there counts no more, but how far.
            self.grown = self.grown.max(end);
        }
        self.write_zeros(offset, first).await?;
        self.write_zeros(last, end).await?;
        self.stage_current().await?;
        // What is under way would count as written afterwards.
        self.settle(0).await?;
        let mut at = first;
        while at < last {
            at = self.dig(at, last).await?;
            if self.is_wide() {
                self.commit_once(false, None).await?;
            }
        }
        if planted(Bug::PunchWaits) {
            return Ok(());
        }
        self.commit_once(false, None).await.map(|_| ())
    }

    /// Writes zeros from one place to another, but for chunks that are holes.
    async fn write_zeros(&mut self, mut from: u64, to: u64) -> Result<(), Error> {
        while from < to {
            let begins = from - from % CHUNK;
            let (part, (index, chunk)) = ((begins + CHUNK).min(to) - from, span::of_byte(begins));
            let is_here = self.current.as_ref().is_some_and(|current| current.begins == begins);
            let is_hole = self.groups.get(&index).is_some_and(|group| group.holes.contains(chunk));
            if is_here || !is_hole {
                let zeros = vec![0; usize::try_from(part).unwrap_or_default()];
                self.write_parts(from, &zeros, None).await?;
            }
            from += part;
        }
        Ok(())
    }
}
