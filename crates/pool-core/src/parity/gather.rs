//! A member of a row that is made again from the others.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{decode, encode};
use super::{Parity, is_parity, needed};
use crate::benefactor::holdings::Entry;
use crate::placement::CHUNK;
use crate::planted::{Bug, planted};

/// Why a member was not made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotGathered {
    /// Too few other members can be had.
    #[error("too few members of its row can be read")]
    TooFew,
    /// What was made has other bytes than were written.
    #[error("what its row gives has other bytes than were written")]
    Damaged,
}

/// See the module. It asks for as many members as are needed, and for others in the place of those that cannot be had or are not what the row is
/// made of; data first, since parity has to be computed with.
#[derive(Debug)]
pub struct Gather<B> {
    of: Parity,
    /// The member that is wanted.
    wanted: u32,
    entry: Entry,
    /// What the row has: its other members as they were written.
    row: BTreeMap<u32, Entry>,
    asked: BTreeSet<u32>,
    failed: BTreeSet<u32>,
    has: BTreeMap<u32, B>,
}

impl<B: AsRef<[u8]>> Gather<B> {
    /// For a member that was written like that, of a row whose other members were written like these.
    #[must_use]
    pub fn new(of: Parity, (wanted, entry): (u32, Entry), row: impl IntoIterator<Item = (u32, Entry)>) -> Self {
        let same = |number: u32| of.row(number) == of.row(wanted) && number != wanted;
        let row = row.into_iter().filter(|(number, _)| same(*number)).collect();
        Self { of, wanted, entry, row, asked: BTreeSet::new(), failed: BTreeSet::new(), has: BTreeMap::new() }
    }

    /// Which members are to be asked for now, beside those that were; [`Gather::got`] has the answers.
    pub fn more(&mut self) -> Vec<u32> {
        let coming = self.asked.len().saturating_sub(self.failed.len());
        let lacking = needed(self.row.keys().copied(), self.wanted).saturating_sub(coming);
        // In the order of their numbers data comes first.
        let next: Vec<u32> =
            self.row.keys().copied().filter(|number| !self.asked.contains(number)).take(lacking).collect();
        self.asked.extend(&next);
        next
    }

    /// A member came, or cannot be had.
    pub fn got(&mut self, number: u32, bytes: Option<B>) {
        let is_same = |bytes: &B| {
            let bytes = bytes.as_ref();
            let same = |entry: &Entry| entry.length as usize == bytes.len() && crc32c::crc32c(bytes) == entry.crc;
            self.row.get(&number).is_some_and(same) || planted(Bug::MemberUnverified)
        };
        match bytes.filter(is_same) {
            Some(bytes) => drop(self.has.insert(number, bytes)),
            None => drop(self.failed.insert(number)),
        }
    }

    /// The member, once nothing more is to be asked for and all answers have come.
    ///
    /// # Errors
    /// [`NotGathered`].
    pub fn finish(&self) -> Result<Vec<u8>, NotGathered> {
        let (of, row) = (self.of, self.of.row(self.wanted));
        if self.has.len() < needed(self.row.keys().copied(), self.wanted) && !planted(Bug::DecodedOfTooFew) {
            return Err(NotGathered::TooFew);
        }
        let parity = self.row.iter().chain([(&self.wanted, &self.entry)]).find(|(number, _)| is_parity(**number));
        let bytes = parity.map_or(0, |(_, entry)| entry.length as usize);
        if bytes as u64 > CHUNK.get() {
            return Err(NotGathered::Damaged);
        }
        let lacks = of.data_of(row).filter(|number| *number != self.wanted && !self.row.contains_key(number));
        let zeros = lacks.map(|number| (of.at(number), &[][..]));
        let members = self.has.iter().map(|(number, bytes)| (self.place(*number), bytes.as_ref()));
        let data = decode(of, bytes, &zeros.chain(members).collect::<Vec<_>>()).map_err(|_| NotGathered::TooFew)?;
        let at = of.at(self.wanted);
        let mut made = match at < of.data() {
            true => data.into_iter().nth(at as usize).unwrap_or_default(),
            false => {
                let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
                encode(of, &data).into_iter().nth((at - of.data()) as usize).unwrap_or_default()
            }
        };
        made.truncate(self.entry.length as usize);
        let is_same = made.len() == self.entry.length as usize && crc32c::crc32c(&made) == self.entry.crc;
        if is_same { Ok(made) } else { Err(NotGathered::Damaged) }
    }

    /// Which member of the row a number is.
    fn place(&self, number: u32) -> u32 {
        let at = self.of.at(number);
        // The first two are taken for each other.
        if planted(Bug::WrongMember) && at < 2 && self.of.data() > 1 { 1 - at } else { at }
    }
}
