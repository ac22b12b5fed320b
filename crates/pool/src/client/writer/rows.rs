//! The parity of rows that are written: see [`surgetank_pool_core::parity`].
//!
//! A row is protected as soon as all of it was written, and the others when they are committed: whatever has changed in them since, their parity is
//! computed of what they are then. So a row's parity is never told that a chunk was written, cut off or dug out: it knows of which writings it was
//! computed, and is stale when the row has others. Bytes that were not committed are kept here until they are; what else a row has is read.

use std::collections::BTreeMap;

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, Instance, Table};
use surgetank_pool_core::id::BenefactorId;
use surgetank_pool_core::parity::{
    self, Basis, ELSEWHERE, Parity, code, is_own, is_parity, may_be_committed, table_of,
};
use surgetank_pool_core::placement::Place;

use super::super::Error;
use super::part::Former;
use super::{Chunk, Group, Writer};

/// The parity of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Of what it was computed.
    basis: Basis,
    pub(super) chunks: BTreeMap<u32, Chunk>,
    /// What it is as long as it is not committed; `None`: nothing, or it is committed.
    pub(super) former: Option<Box<Self>>,
}

/// Chunks of a row that was committed before all of it was written: its next parity is computed of them as well.
#[derive(Default)]
pub(super) struct Tail {
    at: (u32, u32),
    chunks: BTreeMap<u32, (Option<Instance>, Bytes)>,
}

impl Row {
    fn is_draft(&self) -> bool {
        self.chunks.values().any(|chunk| chunk.draft)
    }

    /// The writings of it that no commit names.
    pub(super) fn drafts(&self) -> impl Iterator<Item = (BenefactorId, Instance)> {
        self.chunks.values().filter(|chunk| chunk.draft).flat_map(|chunk| chunk.clone().writings())
    }

    /// It as it is committed.
    pub(super) fn into_former(self) -> Option<Self> {
        if self.is_draft() { self.former.map(|former| *former) } else { Some(self) }
    }

    /// It is committed; the writings that were drafts.
    pub(super) fn committed(&mut self) -> Vec<(BenefactorId, Instance)> {
        let drafts = self.drafts().collect();
        self.former = None;
        for chunk in self.chunks.values_mut() {
            (chunk.draft, chunk.bytes) = (false, None);
        }
        drafts
    }
}

impl Group {
    /// The parity of its rows; `None`: its chunks have copies, or it lies nowhere yet.
    pub(super) fn parity(&self) -> Option<Parity> {
        self.placed.as_ref().and_then(|(layout, _)| layout.parity)
    }

    /// A chunk of it, data or parity.
    pub(super) fn member(&self, number: u32) -> Option<&Chunk> {
        match is_parity(number) {
            true => self.rows.get(&self.parity()?.row(number))?.chunks.get(&number),
            false => self.chunks.get(&number),
        }
    }

    pub(super) fn member_mut(&mut self, number: u32) -> Option<&mut Chunk> {
        match is_parity(number) {
            true => {
                let row = self.parity()?.row(number);
                self.rows.get_mut(&row)?.chunks.get_mut(&number)
            }
            false => self.chunks.get_mut(&number),
        }
    }

    /// All its chunks, data and parity.
    pub(super) fn members(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        let of_rows = self.rows.values().flat_map(|row| &row.chunks);
        self.chunks.iter().chain(of_rows).map(|(number, chunk)| (*number, chunk))
    }

    /// What its rows have now.
    fn bases(&self, of: Parity) -> BTreeMap<u32, Basis> {
        let mut bases: BTreeMap<u32, Basis> = BTreeMap::new();
        for (number, chunk) in &self.chunks {
            // What is not known is none that parity was computed of.
            let Some(id) = chunk.id else { continue };
            bases.entry(of.row(*number)).or_default().insert(*number, id);
        }
        bases
    }

    /// What a place is to have of it.
    pub(super) fn table(&self, of: Place) -> Table {
        let entry = |(number, chunk): (u32, &Chunk)| {
            let (length, crc) = (chunk.length, chunk.crc);
            let instance = match self.parity() {
                None => *chunk.at.get(&of.id)?,
                Some(_) => *chunk.at.get(&self.lies_at(number).first()?.id)?,
            };
            Some((number, Entry { instance, length, crc }))
        };
        let all: Table = self.members().filter_map(entry).collect();
        match &self.placed {
            Some((layout, stripe)) if layout.parity.is_some() => {
                table_of((layout, stripe), of, &all, |number| Some(all.get(&number)?.instance))
            }
            _ => all,
        }
    }

    /// Whether a row has parity of what it has, and all of both is where it is to be.
    pub(super) fn is_row_whole(&self, of: Parity, row: u32) -> bool {
        let numbers = of.data_of(row).filter_map(|number| Some((number, self.chunks.get(&number)?.id?)));
        let now: Basis = numbers.collect();
        let has = |number: u32| self.member(number).is_some_and(|chunk| self.has_all(number, &chunk.at));
        let none = Basis::new();
        let computed = self.rows.get(&row).map_or(&none, |row| &row.basis);
        may_be_committed(of, row, (computed, &now), has)
    }

    /// Parity of rows that are not whole, or of all, returns the room that it has.
    pub(super) fn return_rows(&mut self, all: bool) -> Vec<(BenefactorId, Instance)> {
        let Some(of) = self.parity() else { return Vec::new() };
        let rows: Vec<u32> = self.rows.keys().copied().filter(|row| all || !self.is_row_whole(of, *row)).collect();
        let mut drafts = Vec::new();
        for row in rows {
            let chunks = self.rows.get_mut(&row).into_iter().flat_map(|row| row.chunks.values_mut());
            let returns = |chunk: &&mut Chunk| chunk.draft && chunk.bytes.is_some();
            drafts.extend(chunks.filter(returns).flat_map(|chunk| std::mem::take(&mut chunk.at)));
        }
        drafts
    }

    /// Drops the parity of rows of which nothing is left; the writings of it that no commit names.
    pub(super) fn drop_rows(&mut self) -> Vec<(BenefactorId, Instance)> {
        let (of, mut drafts) = (self.parity(), Vec::new());
        let chunks = &self.chunks;
        self.rows.retain(|number, row| {
            let is_any = of.is_some_and(|of| of.data_of(*number).any(|number| chunks.contains_key(&number)));
            if !is_any {
                drafts.extend(row.drafts());
            }
            is_any
        });
        drafts
    }

    /// Its chunks that are not where they are to be, row by row.
    pub(super) fn missing(&self) -> Vec<u32> {
        let lacks = |(number, chunk): &(u32, &Chunk)| !self.has_all(*number, &chunk.at);
        let missing = self.members().filter(lacks).map(|(number, _)| number);
        let Some(of) = self.parity() else { return missing.collect() };
        let mut missing: Vec<u32> = missing.filter(|number| !self.is_row_whole(of, of.row(*number))).collect();
        missing.sort_unstable_by_key(|number| (of.row(*number), *number));
        missing
    }

    /// Whether a chunk is as safe as it is to be.
    pub(super) fn is_safe(&self, number: u32, at: &BTreeMap<BenefactorId, Instance>) -> bool {
        self.has_all(number, at) && self.parity().is_none_or(|of| self.is_row_whole(of, of.row(number)))
    }

    /// Whether all its rows are whole, as they are or as they are committed.
    pub(super) fn has_whole_rows(&self, of: Parity, may_be_former: bool) -> bool {
        let rows = self.bases(of);
        rows.keys().all(|row| self.is_row_whole(of, *row) || may_be_former && self.was_row_whole(of, *row))
    }

    /// The same of a row as it is committed.
    fn was_row_whole(&self, of: Parity, row: u32) -> bool {
        let mut basis = Basis::new();
        for number in of.data_of(row) {
            let chunk = match self.chunks.get(&number) {
                Some(Chunk { draft: true, former: Some(Former::Stored(former)), .. }) => former.as_ref(),
                Some(chunk) if !chunk.draft => chunk,
                Some(_) | None => continue,
            };
            if !self.has_all(number, &chunk.at) {
                return false;
            }
            basis.extend(chunk.id.map(|id| (number, id)));
        }
        let former = self.rows.get(&row).and_then(|row| if row.is_draft() { row.former.as_deref() } else { Some(row) });
        let has =
            |row: &Row| row.basis == basis && row.chunks.iter().all(|(number, chunk)| self.has_all(*number, &chunk.at));
        basis.is_empty() || former.is_some_and(has)
    }

    /// Rows are as they are committed, unless that is what they are; those that were not.
    pub(super) fn rows_aside(&mut self, of: Parity) -> Vec<(u32, Row)> {
        let bases = self.bases(of);
        let is_other = |number: &u32, row: &Row| row.is_draft() && bases.get(number) != Some(&row.basis);
        let aside: Vec<u32> =
            self.rows.iter().filter(|(number, row)| is_other(number, row)).map(|(at, _)| *at).collect();
        let take = |number: u32| {
            let row = self.rows.remove(&number)?;
            let former = row.former.as_deref().cloned();
            self.rows.extend(former.map(|former| (number, former)));
            Some((number, row))
        };
        aside.into_iter().filter_map(take).collect()
    }

    /// The opposite.
    pub(super) fn put_row_back(&mut self, number: u32, mut row: Row) {
        row.former = self.rows.remove(&number).map(Box::new);
        self.rows.insert(number, row);
    }

    /// A benefactor's table says this of it, beside what others say.
    pub(super) fn heard(&mut self, of: Option<Parity>, from: BenefactorId, table: Table) {
        for (number, entry) in table {
            let (own, number) = (is_own(number), number & !ELSEWHERE);
            let chunk = match of.filter(|_| is_parity(number)) {
                Some(of) => self.rows.entry(of.row(number)).or_default().chunks.entry(number).or_default(),
                None => self.chunks.entry(number).or_default(),
            };
            (chunk.length, chunk.crc, chunk.id) = (entry.length, entry.crc, Some(entry.instance));
            if own {
                chunk.at.insert(from, entry.instance);
            }
        }
    }

    /// All tables were heard: what a commit has sealed as the parity of a row is that of what it has sealed as the row.
    pub(super) fn heard_all(&mut self, of: Option<Parity>) {
        let Some(of) = of else { return };
        let mut bases = self.bases(of);
        for (number, row) in &mut self.rows {
            row.basis = bases.remove(number).unwrap_or_default();
        }
    }
}

impl Writer {
    /// How many of those that are missing belong to the first: the rest of its row.
    pub(super) fn first_of(&self, missing: &[(u32, u32)]) -> usize {
        let Some((first, number)) = missing.first() else { return 0 };
        let Some(of) = self.groups.get(first).and_then(Group::parity) else { return 1 };
        missing.iter().take_while(|(index, other)| index == first && of.row(*other) == of.row(*number)).count()
    }

    /// A chunk was written: if all of its row is here now, so is its parity.
    pub(super) fn protect_full(&mut self, index: u32, number: u32) {
        let Some(group) = self.groups.get(&index) else { return };
        let Some(of) = group.parity() else { return };
        let row = of.row(number);
        let is_full = of
            .data_of(row)
            .all(|number| group.chunks.get(&number).is_some_and(|chunk| chunk.draft && chunk.bytes.is_some()));
        // Puts of the former parity that are under way would count as the new one's.
        if !is_full || group.rows.get(&row).is_some_and(Row::is_draft) {
            return;
        }
        let bytes = of.data_of(row).filter_map(|number| Some((number, group.chunks[&number].bytes.clone()?)));
        let bytes = bytes.collect();
        self.protect_with(index, row, &bytes);
        of.parity_of(row).for_each(|number| self.put_missing(index, number));
    }

    /// Every row of a changed group has parity of what it has.
    pub(super) async fn protect(&mut self) -> Result<(), Error> {
        let changed = |group: &&Group| group.changed && group.parity().is_some();
        let changed: Vec<u32> =
            self.groups.iter().filter(|(_, group)| changed(group)).map(|(index, _)| *index).collect();
        for index in changed {
            while let Some((of, row)) = self.stale(index) {
                let Some(basis) = self.groups.get(&index).and_then(|group| group.bases(of).remove(&row)) else {
                    continue;
                };
                let mut bytes = BTreeMap::new();
                for (number, id) in &basis {
                    let kept = self.kept_of((index, row), *number, *id);
                    let found = match kept {
                        Some(found) => found,
                        None => self.bytes_of(index, *number).await?,
                    };
                    bytes.insert(*number, found);
                }
                // Chunks may have left the pool meanwhile.
                let group = self.groups.get(&index);
                if group.is_some_and(|group| group.bases(of).get(&row) == Some(&basis)) {
                    self.protect_with(index, row, &bytes);
                }
            }
        }
        Ok(())
    }

    /// A row of a group that has no parity of what it has, or not where it is to be and not here either. Parity of rows that are over is dropped.
    fn stale(&mut self, index: u32) -> Option<(Parity, u32)> {
        let group = self.groups.get_mut(&index)?;
        let of = group.parity()?;
        let bases = group.bases(of);
        self.withdrawn.extend(group.drop_rows());
        let group = self.groups.get(&index)?;
        let lacks = |(number, chunk): (&u32, &Chunk)| !group.has_all(*number, &chunk.at) && chunk.bytes.is_none();
        let is_current = |row: &u32, basis: &Basis| {
            group.rows.get(row).is_some_and(|row| {
                parity::is_current(&row.basis, basis)
                    && row.chunks.len() == of.parity() as usize
                    && !row.chunks.iter().any(lacks)
            })
        };
        bases.iter().find(|(row, basis)| !is_current(row, basis)).map(|(row, _)| (of, *row))
    }

    /// The row's parity is that of these chunks.
    fn protect_with(&mut self, index: u32, row: u32, bytes: &BTreeMap<u32, Bytes>) {
        let Some(group) = self.groups.get(&index) else { return };
        let Some(of) = group.parity() else { return };
        let data: Vec<&[u8]> =
            of.data_of(row).map(|number| bytes.get(&number).map_or(&[][..], |bytes| &bytes[..])).collect();
        let coded = code::encode(of, &data);
        let chunks = of.parity_of(row).zip(coded);
        let chunks = chunks.map(|(number, bytes)| (number, Chunk::draft(bytes.into(), super::Written::default())));
        let basis = group.bases(of).remove(&row).unwrap_or_default();
        let mut fresh = Row { basis, chunks: chunks.collect(), former: None };
        let Some(group) = self.groups.get_mut(&index) else { return };
        if let Some(former) = group.rows.remove(&row) {
            self.withdrawn.extend(former.drafts());
            fresh.former = former.into_former().map(Box::new);
        }
        group.rows.insert(row, fresh);
    }

    /// A chunk's bytes, if they are here.
    fn kept_of(&self, at: (u32, u32), number: u32, id: Instance) -> Option<Bytes> {
        let chunk = self.groups.get(&at.0)?.chunks.get(&number)?;
        let of_tail = self.tail.chunks.get(&number).filter(|(of, _)| self.tail.at == at && *of == Some(id));
        chunk.bytes.clone().or_else(|| of_tail.map(|(_, bytes)| bytes.clone()))
    }

    /// What was written last is committed: the bytes of a row that goes on are kept.
    pub(super) fn keep_tail(&mut self) {
        let mut changed = self.groups.iter().rev().filter(|(_, group)| group.changed);
        let last =
            |(index, group): (&u32, &'_ Group)| Some((*index, group.parity()?, *group.chunks.keys().next_back()?));
        let Some((index, of, number)) = changed.find_map(last) else { return };
        let Some(group) = self.groups.get(&index) else { return };
        let row = of.row(number);
        let is_full = of.at(number) + 1 == of.data();
        let former = std::mem::take(&mut self.tail);
        if is_full {
            return;
        }
        let mut chunks = BTreeMap::new();
        for number in of.data_of(row) {
            let Some(chunk) = group.chunks.get(&number) else { continue };
            let of_former = former.chunks.get(&number).filter(|(id, _)| former.at == (index, row) && *id == chunk.id);
            let bytes = chunk.bytes.clone().or_else(|| of_former.map(|(_, bytes)| bytes.clone()));
            chunks.extend(bytes.map(|bytes| (number, (chunk.id, bytes))));
        }
        self.tail = Tail { at: (index, row), chunks };
    }
}
