//! What the writer of a run does: it puts members of rows, computes parity, and commits.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::holdings::{Admission, Entry, Instance, Put, SealOrder, Table};
use surgetank_pool_core::id::Version;
use surgetank_pool_core::parity::{
    Basis, ELSEWHERE, Parity, code, is_current, is_own, is_parity, may_be_committed, table_of,
};
use surgetank_pool_core::placement::{CHUNK, Layout, Media, Place, Protection, Request, Stripe, place, substitute};
use surgetank_pool_core::repair::Of;

use super::{Committed, GROUP, SESSION, World, Writer, Written, crc, number};

impl World {
    pub(super) fn write(&mut self) {
        let (chunk, id) = (number(self.random.below(14)), self.number());
        let length = 1 + self.random.below(16);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
        self.next.insert(chunk, bytes.clone());
        let entry = Entry { instance: id, length: number(length), crc: crc(&bytes) };
        self.writer.chunks.insert(chunk, Written { entry, id, bytes: Some(bytes), stored: false });
        self.writer.changed = true;
    }

    /// Some chunks are holes now.
    pub(super) fn cut(&mut self) {
        let from = number(self.random.below(14));
        let to = if self.random.chance(0.5) { u32::MAX } else { from + number(self.random.below(3)) };
        self.next.retain(|chunk, _| !(from..=to).contains(chunk));
        self.writer.chunks.retain(|chunk, _| !(from..=to).contains(chunk));
        self.writer.changed = true;
    }

    fn put(&mut self, place: Place, entry: Entry, bytes: &[u8]) -> bool {
        if !self.is_alive(place) {
            return false;
        }
        let Some(holder) = self.benefactors.get_mut(&place.id) else { return false };
        let Some(holdings) = &mut holder.holdings else { return false };
        let put = Put { incarnation: place.incarnation, inode: GROUP.inode, mount: None, entry };
        match holdings.put(&put, 0) {
            Admission::Room(_) => {
                holder.bytes.insert(entry.instance, bytes.to_vec());
                holdings.stored(entry.instance, true);
                true
            }
            Admission::Here => true,
            other => panic!("{other:?}: there is room for all"),
        }
    }

    /// A session goes on with what tables say.
    pub(super) fn forget_writer(&mut self) {
        let Some(committed) = self.store.clone().filter(|_| !self.writer.changed) else { return };
        let of = self.of;
        let mut writer = Writer { layout: Some(committed.layout.clone()), ..Writer::default() };
        for place in committed.layout.places() {
            for (number, entry) in self.table(place, committed.version).unwrap_or_default() {
                let (own, number) = (is_own(number), number & !ELSEWHERE);
                let all = match is_parity(number) {
                    true => &mut writer.rows.entry(of.row(number)).or_default().1,
                    false => &mut writer.chunks,
                };
                let fresh = Written { entry, id: entry.instance, bytes: None, stored: false };
                all.entry(number).or_insert(fresh).stored |= own;
            }
        }
        for (number, chunk) in &writer.chunks {
            writer.rows.entry(of.row(*number)).or_default().0.insert(*number, chunk.id);
        }
        // What has left the pool, tables name still.
        writer.chunks.retain(|number, _| committed.present.contains(number));
        self.writer = writer;
    }

    /// The bytes of a chunk of the writer's.
    fn bytes_of(&mut self, number: u32) -> Result<Vec<u8>, String> {
        if let Some(bytes) = self.writer.chunks.get(&number).and_then(|chunk| chunk.bytes.clone()) {
            return Ok(bytes);
        }
        let committed = self.store.clone().ok_or("nothing was committed")?;
        self.read(&committed, number)
    }

    /// Others take the places of those that are gone; `false`: there are too few.
    fn replace_gone(&mut self) -> bool {
        let Some(mut layout) = self.writer.layout.clone() else { return false };
        let stripe = Stripe::new(&layout);
        let mut replaced = BTreeSet::new();
        for (at, column) in layout.columns.clone().into_iter().enumerate() {
            for (role, former) in column.places.iter().enumerate() {
                if self.is_alive(*former) {
                    continue;
                }
                let places = layout.columns[at].places.clone();
                let beside = self.domains(places.iter().copied().filter(|place| place != former));
                let others: Vec<Place> = places.iter().copied().filter(|place| place != former).collect();
                let found = substitute(CHUNK, Media::Any, &beside, &others, &self.candidates());
                let Some((found, _)) = found else { return false };
                layout.columns[at].places[role] = found;
                replaced.insert((at, role));
            }
        }
        let of = self.of;
        let is_replaced = |number: u32| replaced.contains(&(stripe.column(number.into()), of.at(number) as usize));
        let chunks = self.writer.chunks.iter_mut().chain(self.writer.rows.values_mut().flat_map(|row| &mut row.1));
        chunks.filter(|(number, _)| is_replaced(**number)).for_each(|(_, chunk)| chunk.stored = false);
        self.writer.layout = Some(layout);
        true
    }

    /// Every row has parity of what it has.
    fn protect(&mut self) -> Result<(), String> {
        let of = self.of;
        let bases = bases(of, &self.writer);
        self.writer.rows.retain(|row, _| bases.contains_key(row));
        for (row, basis) in bases {
            let lacks = |chunk: &Written| !chunk.stored && chunk.bytes.is_none();
            let current = self.writer.rows.get(&row).is_some_and(|(computed, chunks)| {
                let whole = chunks.len() == of.parity() as usize && !chunks.values().any(lacks);
                is_current(computed, &basis) && whole
            });
            if current {
                continue;
            }
            let mut bytes = BTreeMap::new();
            for number in basis.keys() {
                bytes.insert(*number, self.bytes_of(*number)?);
            }
            let data: Vec<&[u8]> =
                of.data_of(row).map(|number| bytes.get(&number).map_or(&[][..], Vec::as_slice)).collect();
            let mut chunks = BTreeMap::new();
            for (number, bytes) in of.parity_of(row).zip(code::encode(of, &data)) {
                let id = self.number();
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let entry = Entry { instance: id, length, crc: crc(&bytes) };
                chunks.insert(number, Written { entry, id, bytes: Some(bytes), stored: false });
            }
            self.writer.rows.insert(row, (basis, chunks));
        }
        Ok(())
    }

    fn may_be_committed(&self, row: u32, now: &Basis) -> bool {
        let none = Basis::new();
        let computed = self.writer.rows.get(&row).map_or(&none, |(computed, _)| computed);
        let stored = |number: u32| self.member(number).is_some_and(|chunk| chunk.stored);
        may_be_committed(self.of, row, (computed, now), stored)
    }

    fn member(&self, number: u32) -> Option<&Written> {
        match is_parity(number) {
            true => self.writer.rows.get(&self.of.row(number))?.1.get(&number),
            false => self.writer.chunks.get(&number),
        }
    }

    /// Puts members where they are to be and are not.
    fn put_missing(&mut self, of_parity: bool) -> Result<(), String> {
        let of = self.of;
        let Some(layout) = self.writer.layout.clone() else { return Ok(()) };
        let stripe = Stripe::new(&layout);
        let open: BTreeSet<u32> = bases(of, &self.writer)
            .into_iter()
            .filter(|(row, basis)| !self.may_be_committed(*row, basis))
            .map(|(row, _)| row)
            .collect();
        let chunks = self.writer.chunks.iter().chain(self.writer.rows.values().flat_map(|row| &row.1));
        let missing: Vec<u32> = chunks
            .filter(|(number, chunk)| {
                !chunk.stored && is_parity(**number) == of_parity && open.contains(&of.row(**number))
            })
            .map(|(number, _)| *number)
            .collect();
        for number in missing {
            if self.random.chance(0.02) {
                self.lose();
            }
            let bytes = match self.member(number).and_then(|chunk| chunk.bytes.clone()) {
                Some(bytes) => bytes,
                None => self.bytes_of(number)?,
            };
            let Some(mut entry) = self.member(number).map(|chunk| chunk.entry) else { continue };
            entry.instance = self.number();
            let stored = self.put(stripe.places(&layout, number)[0], entry, &bytes);
            let member = match is_parity(number) {
                true => self.writer.rows.get_mut(&of.row(number)).and_then(|row| row.1.get_mut(&number)),
                false => self.writer.chunks.get_mut(&number),
            };
            if let Some(member) = member.filter(|_| stored) {
                (member.entry, member.stored) = (entry, true);
            }
        }
        Ok(())
    }

    /// Commits what is written, if there are benefactors enough.
    pub(super) fn commit(&mut self) -> Result<(), String> {
        if !self.writer.changed {
            return Ok(());
        }
        if self.writer.layout.is_none() {
            let bytes = Bytes::new(CHUNK.get() * (1 + self.random.below(14)));
            let protection = Protection::Parity(self.of);
            let request =
                Request { bytes, protection, media: Media::Any, width_max: 64, spread: self.random.next_u64() };
            match place(&request, &self.candidates()) {
                Ok(layout) => self.writer.layout = Some(layout),
                Err(_) => return Ok(()),
            }
        }
        'again: for _ in 0..20 {
            if !self.replace_gone() {
                return Ok(());
            }
            self.protect()?;
            self.put_missing(false)?;
            self.put_missing(true)?;
            let bases = bases(self.of, &self.writer);
            if !bases.iter().all(|(row, basis)| self.may_be_committed(*row, basis)) {
                continue;
            }
            if self.random.chance(0.1) {
                self.lose();
            }
            let Some(layout) = self.writer.layout.clone() else { return Ok(()) };
            let (stripe, next) = (Stripe::new(&layout), self.store.as_ref().map_or(Version(1), |of| of.version.next()));
            let chunks = self.writer.chunks.iter().chain(self.writer.rows.values().flat_map(|row| &row.1));
            let all: Table =
                chunks.filter(|(_, chunk)| chunk.stored).map(|(number, chunk)| (*number, chunk.entry)).collect();
            for place in layout.places() {
                let table = table_of((&layout, &stripe), place, &all, |number| Some(all.get(&number)?.instance));
                if !self.is_alive(place) {
                    continue 'again;
                }
                let order = SealOrder(self.numbers, 0);
                self.numbers += 1;
                let holder = self.benefactors.get_mut(&place.id).and_then(|of| of.holdings.as_mut());
                let Some(holdings) = holder else { continue 'again };
                if let Err(missing) = holdings.seal(GROUP, next, SESSION, order, table) {
                    // What is damaged is made or sent anew.
                    for number in missing.0 {
                        let member = match is_parity(number) {
                            true => {
                                self.writer.rows.get_mut(&self.of.row(number)).and_then(|row| row.1.get_mut(&number))
                            }
                            false => self.writer.chunks.get_mut(&number),
                        };
                        member.into_iter().for_each(|member| member.stored = false);
                    }
                    continue 'again;
                }
            }
            if self.random.chance(0.1) {
                self.lose();
            }
            if !layout.places().into_iter().all(|place| self.is_alive(place)) {
                continue;
            }
            self.committed(layout, next);
            return Ok(());
        }
        Ok(())
    }

    fn committed(&mut self, layout: Layout, version: Version) {
        let key = Of { group: GROUP, version, by: SESSION };
        if let Some(former) = self.store.as_ref().map(|former| former.version) {
            self.repair.group_gone(Of { group: GROUP, version: former, by: SESSION });
        }
        self.repair.group(key, &layout, Bytes::from_mib(self.writer.chunks.len() as u64));
        // Of a group that others were committed beside, absent chunks stay where they are.
        let present = self.writer.chunks.keys().copied().collect();
        self.content = self.next.clone();
        self.content.retain(|chunk, _| self.writer.chunks.contains_key(chunk));
        self.store = Some(Committed { version, layout, present });
        // What was damaged and is named no more counts no longer; every member is whole again but for that.
        for benefactor in self.benefactors.values_mut() {
            if let Some(holdings) = &mut benefactor.holdings {
                holdings.in_store(GROUP, &BTreeSet::from([(version, SESSION)]));
                let held: BTreeSet<Instance> = holdings.instances().collect();
                benefactor.bytes.retain(|instance, _| held.contains(instance));
            }
        }
        let chunks =
            self.writer.chunks.values_mut().chain(self.writer.rows.values_mut().flat_map(|row| row.1.values_mut()));
        for chunk in chunks {
            chunk.bytes = None;
            for benefactor in self.benefactors.values_mut() {
                benefactor.holdings.iter_mut().for_each(|holdings| holdings.withdraw(chunk.entry.instance));
            }
        }
        self.writer.changed = false;
        self.damaged.retain(|(id, instance)| {
            let of = self.benefactors.get(id).and_then(|of| of.holdings.as_ref());
            of.is_some_and(|holdings| holdings.instances().any(|held| held == *instance))
        });
        // Nothing lies where it was lost.
        self.lost.clear();
    }
}

/// What the rows have that are written.
fn bases(of: Parity, writer: &Writer) -> BTreeMap<u32, Basis> {
    let mut bases: BTreeMap<u32, Basis> = BTreeMap::new();
    for (number, chunk) in &writer.chunks {
        bases.entry(of.row(*number)).or_default().insert(*number, chunk.id);
    }
    bases
}
