//! What benefactors say of the rows of a group with parity: which members each has, and what the others are.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_pool_core::benefactor::holdings::Entry;
use surgetank_pool_core::id::{BenefactorId, Incarnation};
use surgetank_pool_core::parity::{ELSEWHERE, Parity, is_own, needed};
use surgetank_pool_core::placement::{Layout, Place, Stripe};
use tokio::task::JoinSet;

use super::Manager;
use super::members::Member;
use crate::chunks::{Lost, NOBODY, TableOf};

/// See the module.
pub(super) struct Rows {
    parity: Parity,
    /// All members of which somebody knows.
    pub(super) known: BTreeMap<u32, Entry>,
    /// Who has them.
    at: BTreeMap<u32, u16>,
    /// Who has answered.
    pub(super) members: Vec<Member>,
    /// Who may have members, and does not say: they may at a later time.
    silent: BTreeSet<Place>,
}

impl Rows {
    /// Asks the places of a layout, but for one benefactor.
    pub(super) async fn read(
        manager: &Manager,
        of: TableOf,
        (layout, parity): (&Layout, Parity),
        except: Option<BenefactorId>,
    ) -> Self {
        let mut rows =
            Self { parity, known: BTreeMap::new(), at: BTreeMap::new(), members: Vec::new(), silent: BTreeSet::new() };
        let mut asked = JoinSet::new();
        for place in layout.places().into_iter().filter(|place| Some(place.id) != except) {
            match manager.members.holder(place) {
                Some(member) => drop(asked.spawn(async move { (place, member.has_table(of).await, member) })),
                None if manager.members.is_lost(place) => {}
                None => drop(rows.silent.insert(place)),
            }
        }
        while let Some(Ok((place, table, member))) = asked.join_next().await {
            let table = match table {
                Some(Some(table)) => table,
                Some(None) => continue,
                None => {
                    rows.silent.insert(place);
                    continue;
                }
            };
            let source = u16::try_from(rows.members.len()).unwrap_or(u16::MAX);
            rows.at.extend(table.keys().filter(|number| is_own(**number)).map(|number| (*number, source)));
            rows.known.extend(table.into_iter().map(|(number, entry)| (number & !ELSEWHERE, entry)));
            rows.members.push(member);
        }
        rows
    }

    /// Where the members are that benefactors have.
    pub(super) fn sources(&self) -> Vec<(String, Incarnation)> {
        let source = |member: &Member| (member.lends.address.clone(), member.lends.place.incarnation);
        self.members.iter().map(source).collect()
    }

    /// How a chunk is made of the others of its row; `None`: too few are there.
    pub(super) fn lost(&self, chunk: u32) -> Option<Lost> {
        let entry = *self.known.get(&chunk)?;
        let source = |number: &u32| self.at.get(number).copied().unwrap_or(NOBODY);
        let others = self.others(chunk);
        let needed = needed(others.iter().copied(), chunk);
        // What nobody has is of the row all the same: it is no zeros.
        let row: Vec<(u32, Entry, u16)> =
            others.iter().filter_map(|number| Some((*number, *self.known.get(number)?, source(number)))).collect();
        let there = row.iter().filter(|(.., source)| *source != NOBODY).count();
        (there >= needed).then_some(Lost { chunk, entry, row })
    }

    /// What a chunk is, and where it is.
    pub(super) fn source(&self, chunk: u32) -> Option<(Entry, u16)> {
        Some((*self.known.get(&chunk)?, *self.at.get(&chunk)?))
    }

    /// Whether somebody's table has a chunk, whole or damaged.
    pub(super) fn is_there(&self, chunk: u32) -> bool {
        self.at.contains_key(&chunk)
    }

    /// Whether everybody has told, or has nothing any more: there is nothing else.
    pub(super) fn are_all(&self) -> bool {
        self.silent.is_empty()
    }

    /// Whether too few of the others of a chunk's row are there now, and at any later time.
    pub(super) fn is_over(&self, chunk: u32, (layout, stripe): (&Layout, &Stripe)) -> bool {
        if !self.known.contains_key(&chunk) {
            return self.silent.is_empty();
        }
        let is_silent = |number: u32| stripe.places(layout, number).iter().any(|place| self.silent.contains(place));
        let others = self.others(chunk);
        let may_be = others.iter().filter(|number| self.at.contains_key(number) || is_silent(**number)).count();
        may_be < needed(others.into_iter(), chunk) && !is_silent(chunk)
    }

    /// The other members of a chunk's row.
    fn others(&self, chunk: u32) -> Vec<u32> {
        let row = self.parity.row(chunk);
        self.known.keys().copied().filter(|number| *number != chunk && self.parity.row(*number) == row).collect()
    }
}
