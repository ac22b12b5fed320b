//! Which chunk goes to which column.

use super::{Column, Layout, Place};
use crate::parity::Parity;

/// The columns of a layout in the order in which they take chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    round: Vec<u16>,
    parity: Option<Parity>,
}

impl Stripe {
    /// The round of a layout: as many passes as the largest weight, in which a column of a smaller one is passed over at equal
    /// distances, and never in the last.
    ///
    /// # Panics
    /// If the layout has no columns, or more than 65,536; a layout from [`place`](super::place) has neither.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let passes = layout.columns.iter().map(|column| column.weight.max(1)).max().expect("a layout has columns");
        let takes = |pass: u8, column: &Column| {
            let until = |pass: u8| u32::from(pass) * u32::from(column.weight.max(1)) / u32::from(passes);
            until(pass + 1) > until(pass)
        };
        let columns = || (0..).zip(&layout.columns);
        let round = (0..passes)
            .flat_map(|pass| columns().filter(move |(_, column)| takes(pass, column)))
            .map(|(at, _): (usize, _)| u16::try_from(at).expect("a group has no more columns than chunks"))
            .collect();
        Self { round, parity: layout.parity }
    }

    /// The column that has a chunk of the group, by its place in [`Layout::columns`]. Chunks go round the columns one by one; with parity rows do,
    /// each with all its members.
    #[must_use]
    pub fn column(&self, chunk: u64) -> usize {
        let chunk = self.parity.map_or(chunk, |of| u32::try_from(chunk).map_or(chunk, |chunk| of.row(chunk).into()));
        let at = chunk % self.round.len() as u64;
        usize::from(self.round[usize::try_from(at).unwrap_or_default()])
    }

    /// The places of the column that has a chunk.
    #[must_use]
    pub fn column_of<'a>(&self, layout: &'a Layout, chunk: u32) -> &'a [Place] {
        layout.columns.get(self.column(chunk.into())).map_or(&[], |column| &column.places)
    }

    /// The places that have a chunk: all of its column, or with parity one of them.
    #[must_use]
    pub fn places<'a>(&self, layout: &'a Layout, chunk: u32) -> &'a [Place] {
        let column = self.column_of(layout, chunk);
        let at = |of: Parity| column.get(of.at(chunk) as usize).map_or(&[][..], std::slice::from_ref);
        self.parity.map_or(column, at)
    }
}
