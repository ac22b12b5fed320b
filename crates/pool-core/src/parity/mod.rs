//! Parity: `p` chunks beside every `d` chunks of a group, so that any `p` of their benefactors may be lost.
//!
//! The chunks of a group are cut into *rows* of `d` that follow each other. A row's *members* are its data chunks and its `p` parity chunks,
//! and each column of the group's layout has `d + p` places in different failure domains: one for each member of its rows. So every
//! benefactor has data of some columns and parity of others. What a row lacks, since the file ends in it, or the chunk is a hole or lies at the
//! target alone, counts as zeros: no row is too short to be protected.
//!
//! Nothing is written in place. A row that changes gets new parity, under a writing of its own, and the commit names both: whoever reads a version
//! never meets parity of another one. For that a table also names the members of its rows that lie *elsewhere* ([`ELSEWHERE`]): who is left of a
//! row knows which writings the others were, their length and their checksum. What is made again is compared with that.

pub mod code;
mod gather;
mod rows;

use std::fmt;
use std::str::FromStr;

pub use self::gather::{Gather, NotGathered};
pub use self::rows::{
    Basis, is_current, is_readable, lie_at, may_be_committed, members, needed, rows_named, still_the_same, table_of,
    taken_over, whole_rows,
};

/// Data chunks of a row, at most.
pub const DATA_MAX: u8 = 32;
/// Parity chunks of a row, at most.
pub const PARITY_MAX: u8 = 8;
/// In the number of a chunk: it is a parity chunk.
pub const PARITY: u32 = 1 << 30;
/// In the number of a chunk of a table: it lies at another place, and the table says which writing it is there.
pub const ELSEWHERE: u32 = 1 << 31;
/// Bits of a parity chunk's number that say which of its row it is.
const AT_BITS: u32 = 8;

/// How many data and parity chunks a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parity {
    data: u8,
    parity: u8,
}

/// It is no such pair of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "parity is d+p, with 1 to {DATA_MAX} data chunks and 1 to {PARITY_MAX} parity chunks: write such as parity=4+1"
)]
pub struct BadParity;

impl Parity {
    /// So many data and parity chunks a row.
    ///
    /// # Errors
    /// [`BadParity`]: there are too few of either, or too many.
    pub const fn new(data: u8, parity: u8) -> Result<Self, BadParity> {
        match data >= 1 && data <= DATA_MAX && parity >= 1 && parity <= PARITY_MAX {
            true => Ok(Self { data, parity }),
            false => Err(BadParity),
        }
    }

    /// Data chunks of a row.
    #[must_use]
    pub const fn data(self) -> u32 {
        self.data as u32
    }

    /// Parity chunks of a row: so many of its members may be lost.
    #[must_use]
    pub const fn parity(self) -> u32 {
        self.parity as u32
    }

    /// Members of a row, and places of a column.
    #[must_use]
    pub const fn members(self) -> u32 {
        self.data() + self.parity()
    }

    /// The row that a chunk is a member of.
    #[must_use]
    pub const fn row(self, number: u32) -> u32 {
        let number = number & !ELSEWHERE;
        match number & PARITY {
            0 => number / self.data(),
            _ => (number & !PARITY) >> AT_BITS,
        }
    }

    /// Which member of its row a chunk is: data first. The place of its column that has it is as far from the first one.
    #[must_use]
    pub const fn at(self, number: u32) -> u32 {
        let number = number & !ELSEWHERE;
        match number & PARITY {
            0 => number % self.data(),
            _ => self.data() + (number & ((1 << AT_BITS) - 1)),
        }
    }

    /// The number of a member of a row.
    #[must_use]
    pub const fn number(self, row: u32, at: u32) -> u32 {
        match at < self.data() {
            true => row * self.data() + at,
            false => PARITY | row << AT_BITS | (at - self.data()),
        }
    }

    /// The numbers of a row's parity chunks.
    pub fn parity_of(self, row: u32) -> impl Iterator<Item = u32> {
        (self.data()..self.members()).map(move |at| self.number(row, at))
    }

    /// The numbers of a row's data chunks, also behind the end of the group.
    pub fn data_of(self, row: u32) -> impl Iterator<Item = u32> {
        (0..self.data()).map(move |at| self.number(row, at))
    }
}

/// Whether a chunk of a table is a parity chunk.
#[must_use]
pub const fn is_parity(number: u32) -> bool {
    number & PARITY != 0
}

/// Whether a table has the chunk of one of its numbers itself.
#[must_use]
pub const fn is_own(number: u32) -> bool {
    number & ELSEWHERE == 0
}

impl fmt::Display for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl FromStr for Parity {
    type Err = BadParity;

    fn from_str(text: &str) -> Result<Self, BadParity> {
        let (data, parity) = text.split_once('+').ok_or(BadParity)?;
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().map_err(|_| BadParity),
            false => Err(BadParity),
        };
        Self::new(number(data)?, number(parity)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_of_a_row_has_a_number_of_its_own() {
        for of in [Parity::new(4, 1), Parity::new(1, 1), Parity::new(32, 8), Parity::new(5, 2)].map(Result::unwrap) {
            let mut seen = std::collections::BTreeSet::new();
            for row in 0..1024 / of.data() {
                for at in 0..of.members() {
                    let number = of.number(row, at);
                    assert!(seen.insert(number), "{of}: {number} is that of two members");
                    for number in [number, number | ELSEWHERE] {
                        assert_eq!((of.row(number), of.at(number)), (row, at), "{of}");
                    }
                    assert_eq!(is_parity(number), at >= of.data());
                }
            }
        }
    }

    #[test]
    fn a_parity_is_two_numbers_within_their_limits() {
        assert_eq!("4+1".parse(), Parity::new(4, 1));
        assert_eq!("32+8".parse::<Parity>().map(|of| of.to_string()), Ok("32+8".to_owned()));
        for wrong in ["", "4", "4+", "+1", "0+1", "4+0", "33+1", "4+9", "4+1+1", "+4+1", "4 + 1", "4-1", "999+1"] {
            assert_eq!(wrong.parse::<Parity>(), Err(BadParity), "{wrong}");
        }
    }
}
