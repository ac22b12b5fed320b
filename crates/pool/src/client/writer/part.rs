//! Commits a part of what is written, while benefactors have no room for the rest.
//!
//! What is committed can be drained, and makes room; what is not keeps it. If writers that wait for room held some that nobody can drain,
//! they might wait for each other for ever. So a chunk that does not get room for all its copies returns what it has, and everything
//! else is committed meanwhile. If nothing can be, since that chunk is the first, those behind it return what they have as well.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::placement::{Layout, Stripe};
use surgetank_pool_core::runs::Runs;

use super::super::Error;
use super::rows::Row;
use super::{Chunk, Group, Writer};
use crate::chunks::CHUNK;
use crate::planted::writers::{Bug, planted};
use crate::span;

/// A chunk as it is committed, while it is written over.
#[derive(Clone, Debug)]
pub(super) enum Former {
    /// The pool has it.
    Stored(Box<Chunk>),
    /// The file's base has it.
    Absent,
    /// It is zeros, and lies nowhere.
    Hole,
}

/// What is not committed with the rest.
#[derive(Default)]
struct Aside {
    chunks: Vec<((u32, u32), Chunk)>,
    /// Where their groups lie.
    placed: BTreeMap<u32, (Layout, Stripe)>,
    /// Those of each group behind the end of what is committed.
    holes: Vec<(u32, Runs)>,
    /// Parity of groups' rows.
    rows: Vec<(u32, u32, Row)>,
    /// Groups that stay as they are committed.
    groups: Vec<u32>,
    size: u64,
    uncommitted: u64,
}

impl Group {
    /// Whether all places of a chunk have it.
    pub(super) fn has_all(&self, number: u32, at: &BTreeMap<BenefactorId, super::Instance>) -> bool {
        self.placed.is_some() && self.lies_at(number).iter().all(|place| at.contains_key(&place.id))
    }

    /// Whether it can be committed without its chunks that do not have all their copies.
    fn is_whole_without(&self) -> bool {
        let rows_are = self.parity().is_none_or(|of| self.has_whole_rows(of, true));
        rows_are
            && self.chunks.iter().all(|(number, chunk)| match (chunk.draft, &chunk.former) {
                _ if self.has_all(*number, &chunk.at) => true,
                (true, Some(Former::Stored(former))) => self.has_all(*number, &former.at),
                (true, Some(Former::Absent | Former::Hole) | None) => true,
                (false, _) => false,
            })
    }
}

impl Writer {
    /// Chunks that do not have all their copies return what they have, if they are kept here; `all`: so do those that have, unless they can be
    /// committed only together with others.
    pub(super) fn return_room(&mut self, all: bool) {
        let mut drafts = Vec::new();
        for (index, group) in self.groups.iter_mut().filter(|(_, group)| group.changed) {
            let all = all && group.is_whole_without();
            let until_cut = span::chunks(self.cut.unwrap_or_default().saturating_sub(span::of_group(*index).0));
            let numbers: Vec<u32> = group.chunks.keys().copied().collect();
            for number in numbers {
                let all = all && number >= until_cut;
                let lacks = group.chunks.get(&number).is_some_and(|chunk| !group.is_safe(number, &chunk.at));
                let returns = |chunk: &&mut Chunk| (lacks || all && chunk.draft) && chunk.bytes.is_some();
                if let Some(chunk) = group.chunks.get_mut(&number).filter(returns) {
                    drafts.extend(std::mem::take(&mut chunk.at));
                }
            }
            drafts.extend(group.return_rows(all));
        }
        self.withdraw(drafts);
    }

    /// Commits all but the chunks that do not have all their copies, and what lies behind the first new one of them; whether there was any.
    pub(super) async fn commit_part(&mut self) -> Result<bool, Error> {
        loop {
            let mut done = Ok(false);
            if let Some(aside) = self.set_aside() {
                let is_any = self.groups.values().any(|group| group.changed);
                if is_any && self.seal_all().await {
                    done = self.commit_sealed(None).await;
                }
                self.put_back(aside, matches!(done, Ok(true)));
            }
            match done {
                // Chunks have left the pool. Benefactors lack them by now, or have copies of them in vain.
                Ok(false) if !planted(Bug::LeftUnseen) && self.look_again().await? => self.withdraw_restored(),
                // What was sealed names chunks that have left the pool, which keep their room until it is sealed without them.
                Err(Error::Refused(_, Refusal::Moved)) => drop(self.look_again().await?),
                Ok(false) => {
                    self.seal_nothing();
                    return Ok(false);
                }
                done => return done,
            }
        }
    }

    /// `None`: what would be committed is shorter than the file was cut off, or has rows without their parity.
    fn set_aside(&mut self) -> Option<Aside> {
        let mut aside = Aside { size: self.size, uncommitted: self.uncommitted, ..Aside::default() };
        let mut end = self.size;
        for (index, group) in self.groups.iter_mut().filter(|(_, group)| group.changed) {
            let first = span::of_group(*index).0;
            let whole = group.is_whole_without();
            let written: Vec<u32> =
                group.chunks.iter().filter(|(_, chunk)| chunk.draft).map(|(number, _)| *number).collect();
            // A row goes as a whole.
            let is_safe = |number: &u32| group.is_safe(*number, &group.chunks[number].at);
            let safe: BTreeSet<u32> = written.iter().copied().filter(is_safe).collect();
            for number in written {
                let Some(chunk) = group.chunks.get(&number) else { continue };
                if whole && safe.contains(&number) {
                    continue;
                }
                let begins = first + u64::from(number) * CHUNK;
                let length = match &chunk.former {
                    Some(Former::Stored(former)) => u64::from(former.length),
                    Some(Former::Absent) => CHUNK.min(self.committed.saturating_sub(begins)),
                    Some(Former::Hole) => CHUNK,
                    None => 0,
                };
                if length < u64::from(chunk.length) {
                    end = end.min(begins + length);
                }
                aside.take(group, (*index, number));
            }
        }
        for (index, group) in &mut self.groups {
            let first = span::of_group(*index).0;
            let behind: Vec<u32> = group
                .chunks
                .iter()
                .filter(|(number, chunk)| chunk.draft && first + u64::from(**number) * CHUNK >= end)
                .map(|(number, _)| *number)
                .collect();
            behind.into_iter().for_each(|number| aside.take(group, (*index, number)));
            let holes = group.holes.split_off(span::chunks(end.saturating_sub(first)));
            if !holes.is_empty() {
                aside.holes.push((*index, holes));
            }
            let is_extended = group.holes.find(span::chunks(self.committed.saturating_sub(first)), true).is_some();
            let stays = !group.is_cut && !is_extended;
            if group.changed && stays && group.chunks.values().all(|chunk| !chunk.draft) {
                group.changed = false;
                aside.groups.push(*index);
            }
            let rows = group.parity().map(|of| group.rows_aside(of)).unwrap_or_default();
            aside.rows.extend(rows.into_iter().map(|(number, row)| (*index, number, row)));
        }
        let lacks_rows =
            |group: &Group| group.changed && group.parity().is_some_and(|of| !group.has_whole_rows(of, false));
        if self.groups.values().any(lacks_rows) {
            self.put_back(aside, false);
            return None;
        }
        if self.cut.is_some_and(|cut| end < cut) {
            self.put_back(aside, false);
            return None;
        }
        self.size = end;
        Some(aside)
    }

    fn put_back(&mut self, aside: Aside, committed: bool) {
        let length: u64 = aside.chunks.iter().map(|(_, chunk)| u64::from(chunk.length)).sum();
        self.uncommitted = if committed { length } else { aside.uncommitted };
        self.size = aside.size;
        for (index, holes) in aside.holes {
            if let Some(group) = self.groups.get_mut(&index) {
                group.holes.add_all(&holes);
                group.changed = true;
            }
        }
        for ((index, number), mut chunk) in aside.chunks {
            let Some(group) = self.groups.get_mut(&index) else { continue };
            // A group of which nothing was committed has forgotten it.
            let placed = || aside.placed.get(&index).filter(|_| !planted(Bug::LayoutForgotten)).cloned();
            group.placed = group.placed.take().or_else(placed);
            chunk.former = match group.chunks.remove(&number) {
                Some(former) => Some(Former::Stored(Box::new(former))),
                None => group.take_former(number),
            };
            if committed && chunk.bytes.is_some() {
                self.kept.push_back((index, number));
            }
            group.chunks.insert(number, chunk);
            group.changed = true;
        }
        for (index, number, row) in aside.rows {
            if let Some(group) = self.groups.get_mut(&index) {
                group.put_row_back(number, row);
            }
        }
        for index in aside.groups {
            if let Some(group) = self.groups.get_mut(&index) {
                group.changed = true;
            }
        }
    }
}

impl Aside {
    /// A chunk is as it was committed.
    fn take(&mut self, group: &mut Group, (index, number): (u32, u32)) {
        let Some(mut chunk) = group.chunks.remove(&number) else { return };
        match chunk.former.take() {
            Some(Former::Stored(former)) => drop(group.chunks.insert(number, *former)),
            Some(Former::Absent) => group.absent.insert(number),
            Some(Former::Hole) => group.holes.insert(number),
            None => {}
        }
        if let Some(placed) = &group.placed {
            self.placed.entry(index).or_insert_with(|| placed.clone());
        }
        self.chunks.push(((index, number), chunk));
    }
}
