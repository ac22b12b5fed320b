//! Which chunk goes to which column.

use super::{Column, Layout};

/// The columns of a layout in the order in which they take chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    round: Vec<u16>,
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
        Self { round }
    }

    /// The column that has a chunk of the group, by its place in [`Layout::columns`].
    #[must_use]
    pub fn column(&self, chunk: u64) -> usize {
        let at = chunk % self.round.len() as u64;
        usize::from(self.round[usize::try_from(at).unwrap_or_default()])
    }
}
