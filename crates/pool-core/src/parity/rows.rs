//! What places of a layout have of rows, and which members a row has.

use std::collections::{BTreeMap, BTreeSet};

use super::{ELSEWHERE, Parity, is_parity};
use crate::benefactor::holdings::{Entry, Instance, Table};
use crate::placement::{Layout, Place, Stripe};
use crate::planted::{Bug, planted};

/// What a row's parity was computed of: its data chunks, and which writing each was. It is another row's, or that of an earlier version, unless this
/// is what the row has.
pub type Basis = BTreeMap<u32, Instance>;

/// Whether parity that was computed of some writings is that of what the row has now.
#[must_use]
pub fn is_current(computed: &Basis, now: &Basis) -> bool {
    computed == now || planted(Bug::StaleParity) && !computed.is_empty()
}

/// Whether a row may be committed: all that it has is stored, and so is the parity of that.
pub fn may_be_committed(of: Parity, row: u32, (computed, now): (&Basis, &Basis), stored: impl Fn(u32) -> bool) -> bool {
    let is_protected = || is_current(computed, now) && of.parity_of(row).all(&stored);
    let data = now.keys().all(|number| stored(*number));
    data && (now.is_empty() || planted(Bug::CommittedBeforeParity) || is_protected())
}

/// The members of a group whose data chunks are these: without parity they are its data chunks alone.
pub fn members(of: Option<Parity>, present: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = present.collect();
    if let Some(of) = of {
        let rows: BTreeSet<u32> = all.iter().map(|number| of.row(*number)).collect();
        all.extend(rows.into_iter().flat_map(|row| of.parity_of(row)));
    }
    all
}

/// What a place seals of a group whose members were written like that: what lies there, and, of rows with parity, what the other members are.
/// `at`: the writing that the place itself has of a member.
#[must_use]
pub fn table_of(
    (layout, stripe): (&Layout, &Stripe),
    place: Place,
    members: &Table,
    at: impl Fn(u32) -> Option<Instance>,
) -> Table {
    let mut table = Table::new();
    for (number, entry) in members {
        if stripe.places(layout, *number).contains(&place) {
            table.extend(at(*number).map(|instance| (*number, Entry { instance, ..*entry })));
        } else if layout.parity.is_some()
            && !planted(Bug::ElsewhereForgotten)
            && stripe.column_of(layout, *number).contains(&place)
        {
            table.insert(*number | ELSEWHERE, *entry);
        }
    }
    table
}

/// Of the members of a group those that lie at a place, in these columns, each with its column.
#[must_use]
pub fn lie_at(
    layout: &Layout,
    place: Place,
    columns: &BTreeSet<usize>,
    present: impl Iterator<Item = u32>,
) -> BTreeMap<u32, usize> {
    let stripe = Stripe::new(layout);
    let all = members(layout.parity, present).into_iter().map(|number| (number, stripe.column(number.into())));
    all.filter(|(number, column)| columns.contains(column) && stripe.places(layout, *number).contains(&place)).collect()
}

/// What the table says of a benefactor that takes over a place in these columns of a group, of whose members this is known: what lies there, and, of
/// rows with parity, what the others are, also in columns in which the place has none itself. `None`: some of them are not known.
#[must_use]
pub fn taken_over(
    layout: &Layout,
    place: Place,
    columns: &BTreeSet<usize>,
    present: impl Iterator<Item = u32>,
    known: &Table,
) -> Option<Table> {
    let stripe = Stripe::new(layout);
    let at_place = |number: u32| stripe.places(layout, number).contains(&place);
    let all: Vec<u32> = members(layout.parity, present)
        .into_iter()
        .filter(|number| columns.contains(&stripe.column((*number).into())))
        .collect();
    let has: BTreeSet<usize> =
        all.iter().filter(|number| at_place(**number)).map(|number| stripe.column((*number).into())).collect();
    let mut table = Table::new();
    for number in all {
        if planted(Bug::OthersForgotten) && !has.contains(&stripe.column(number.into())) {
            continue;
        }
        let entry = *known.get(&number)?;
        if at_place(number) {
            table.insert(number, entry);
        } else if layout.parity.is_some() {
            table.insert(number | ELSEWHERE, entry);
        }
    }
    Some(table)
}

/// How many members of a row are needed for one of it, by the numbers of the others: as many as the row has data chunks. Those that it lacks are known
/// to be zeros.
pub fn needed(others: impl Iterator<Item = u32>, wanted: u32) -> usize {
    { others }.filter(|number| !is_parity(*number)).count() + usize::from(!is_parity(wanted))
}

/// The members of rows, as a place's table names them, if it names this chunk: then it names all of that row. Otherwise another place is to be asked.
#[must_use]
pub fn rows_named(table: Table, chunk: u32) -> Option<Table> {
    let members: Table = table.into_iter().map(|(number, entry)| (number & !ELSEWHERE, entry)).collect();
    members.contains_key(&chunk).then_some(members)
}

/// Which chunks have left the pool once some were drained, of which these writings were: of those that it has, the ones that are still the same.
/// What nobody knows of is not.
pub fn still_the_same(
    drained: &BTreeMap<u32, Instance>,
    present: impl Iterator<Item = u32>,
    now: &Table,
) -> BTreeSet<u32> {
    let is_same = |number: &u32| {
        let of = (drained.get(number), now.get(number));
        matches!(of, (Some(drained), Some(now)) if *drained == now.instance)
    };
    { present }.filter(is_same).collect()
}

/// Of chunks that are to leave the pool those whose rows leave as a whole: the parity of a row is none of a part of it.
pub fn whole_rows(of: Parity, present: impl Iterator<Item = u32>, leave: &BTreeSet<u32>) -> BTreeSet<u32> {
    let stays: BTreeSet<u32> =
        { present }.filter(|number| !leave.contains(number)).map(|number| of.row(number)).collect();
    let may = |number: &u32| !stays.contains(&of.row(*number)) || planted(Bug::RowLeavesInPart);
    leave.iter().copied().filter(may).collect()
}

/// Whether every chunk of a group can be read, by which places have which of its members.
pub fn is_readable(layout: &Layout, present: impl Iterator<Item = u32>, has: impl Fn(Place, u32) -> bool) -> bool {
    if layout.columns.is_empty() {
        return true;
    }
    let stripe = Stripe::new(layout);
    let has = |number: u32| stripe.places(layout, number).iter().any(|place| has(*place, number));
    let Some(of) = layout.parity else { return { present }.all(has) };
    let mut lost: BTreeMap<u32, u32> = BTreeMap::new();
    { present }
        .filter(|number| !is_parity(*number) && !has(*number))
        .for_each(|number| *lost.entry(of.row(number)).or_default() += 1);
    lost.into_iter().all(|(row, lost)| of.parity_of(row).filter(|number| has(*number)).count() >= lost as usize)
}
