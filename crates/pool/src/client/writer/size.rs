//! Reads what is written, committed or not, and cuts files off.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Error, Writer};
use crate::chunks::CHUNK;
use crate::span;

impl Writer {
    /// Reads bytes of the file as it is here, with what is not committed; fewer only at its end, and at the end of a chunk.
    ///
    /// # Errors
    /// [`Error`]; what is written is as it was.
    pub async fn read_at(&mut self, offset: u64, length: usize) -> Result<Bytes, Error> {
        self.is_well()?;
        let begins = offset - offset % CHUNK;
        let end = self.size.min(offset.saturating_add(length as u64)).min(begins + CHUNK);
        if end <= offset {
            return Ok(Bytes::new());
        }
        let at = |place: u64| usize::try_from(place - begins).unwrap_or_default();
        if let Some((_, current)) = self.current.as_ref().filter(|(current, _)| *current == begins) {
            return Ok(Bytes::copy_from_slice(&current[at(offset)..at(end)]));
        }
        let chunk = match self.read.as_ref().filter(|(read, _)| *read == begins) {
            Some((_, chunk)) => chunk.clone(),
            None => self.base(begins).await?,
        };
        self.read = Some((begins, chunk.clone()));
        Ok(chunk.slice(at(offset)..at(end)))
    }

    /// Cuts the file off, or fills it with zeros up to a size.
    ///
    /// # Errors
    /// [`Error`]; all later calls fail with the same.
    pub async fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.is_well()?;
        let done = match size < self.size {
            true => self.cut_off(size).await,
            false => self.write_parts(size, &[], None).await,
        };
        self.remember(done)
    }

    async fn cut_off(&mut self, size: u64) -> Result<(), Error> {
        self.read = None;
        self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
        let begins = size - size % CHUNK;
        // What lies behind need not be written first.
        if self.current.as_ref().is_some_and(|(current, _)| *current >= size) {
            self.current = None;
        }
        self.stage_current().await?;
        // What is under way would count as written afterwards.
        self.settle(0).await?;
        let last = if begins < size { Some(self.base(begins).await?) } else { None };
        let first_behind = span::of_byte(begins).0;
        let of_base = (first_behind..).take_while(|index| self.in_base(*index).is_some());
        let behind: BTreeSet<u32> = self.groups.range(first_behind..).map(|(index, _)| *index).chain(of_base).collect();
        for index in behind {
            let first = span::of_group(index).0;
            let stay = u32::try_from(begins.saturating_sub(first) / CHUNK).unwrap_or(u32::MAX);
            if stay > 0 || !self.groups.contains_key(&index) {
                self.group(index).await?;
            }
            let Some(group) = self.groups.get_mut(&index) else { continue };
            group.known = true;
            let dropped = group.chunks.split_off(&stay);
            let left = group.absent.split_off(&stay);
            group.changed |= !dropped.is_empty() || !left.is_empty() || group.committed.is_some();
            group.is_cut |= group.committed.is_some() || group.of_base;
            for chunk in dropped.into_values().filter(|chunk| chunk.bytes.is_some()) {
                self.uncommitted -= u64::from(chunk.length);
                self.withdrawn.extend(chunk.at);
            }
            let is_in_store = group.committed.is_some() || group.of_base;
            if group.chunks.is_empty() && group.absent.is_empty() && !is_in_store {
                self.groups.remove(&index);
            }
        }
        self.size = begins;
        match last {
            Some(last) => {
                let length = usize::try_from(size - begins).unwrap_or_default().min(last.len());
                self.write_part(begins, &last[..length]).await
            }
            None => Ok(()),
        }
    }
}
