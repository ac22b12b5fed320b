//! A benefactor that an operator takes out of the pool.
//!
//! What it has is moved before it goes. With the mark that it leaves its life ends in the store, though its process goes on ([`mark`]): no commit
//! names it from then on, so that what names it only becomes less, and writers put what they have there elsewhere. [`Repair`](crate::repair::Repair)
//! moves the rest. Once nothing names it, nothing ever will ([`may_go`]), unless the mark is taken back.

use std::collections::BTreeSet;

use surgetank_model::Bytes;

use crate::id::{BenefactorId, Domain};
use crate::meta::{Compare, Group, Key, Stored, Transaction, Value, Write};
use crate::placement::{Candidate, Layout, Media, Place};
use crate::planted::{Bug, planted};

/// Marks a benefactor that lends: `life` is what the store has of its life.
#[must_use]
pub fn mark(id: BenefactorId, life: &Stored) -> Transaction {
    let key = Key::Benefactor(id);
    let mut writes = vec![Write::Put(Key::Leaving(id), Value::Leaving)];
    if !planted(Bug::LeavingIsNamed) {
        writes.push(Write::Delete(key.clone()));
    }
    Transaction { compares: vec![Compare::Modified(key, life.modified)], writes }
}

/// What names a benefactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Versions of groups.
    pub groups: u64,
    /// About so many bytes of them lie there.
    pub bytes: Bytes,
}

impl Named {
    /// Counts groups of which a benefactor has a place. In which life does not matter: a later one may have the chunks on SSD.
    pub fn count<'a>(id: BenefactorId, groups: impl Iterator<Item = &'a Group>) -> Self {
        let is_it = |place: &Place| place.id == id;
        let mut named = Self::default();
        for group in groups.filter(|group| group.layout.places().iter().any(is_it)) {
            named.groups += 1;
            named.bytes = Bytes::new(named.bytes.get() + share(&group.layout, Bytes::new(group.staged()), id).get());
        }
        named
    }
}

/// About how much of a group lies at a benefactor.
fn share(layout: &Layout, staged: Bytes, id: BenefactorId) -> Bytes {
    let its = layout.columns.iter().filter(|column| column.places.iter().any(|place| place.id == id));
    part(layout, staged, its.map(|column| u64::from(column.weight)).sum())
}

/// What a place of columns of so much weight has.
fn part(layout: &Layout, staged: Bytes, weight: u64) -> Bytes {
    let all: u128 = layout.columns.iter().map(|column| u128::from(column.weight)).sum();
    let all = (all * layout.needed() as u128).max(1);
    let bytes = (u128::from(staged.get()) * u128::from(weight)).div_ceil(all);
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Whether a benefactor may go, by what the store has at one revision: it is marked, and nothing names it. What writers have there and have not
/// committed (`drafts`) may be all that there is of it.
#[must_use]
pub fn may_go(is_marked: bool, named: &Named, drafts: bool) -> bool {
    is_marked && !drafts && (named.groups == 0 || planted(Bug::GoesTooEarly))
}

/// What is to be moved away, of one column of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// About so much.
    pub bytes: Bytes,
    /// Where its other places are.
    pub beside: BTreeSet<Domain>,
    /// Where it must lie.
    pub media: Media,
}

/// What of a group is to be moved, column by column; `domain`: what a benefactor fails with.
pub fn moves<'a>(
    id: BenefactorId,
    (layout, staged, media): (&'a Layout, Bytes, Media),
    domain: impl Fn(BenefactorId) -> Option<Domain> + 'a,
) -> impl Iterator<Item = Move> + 'a {
    let of = layout.columns.iter().filter(move |column| column.places.iter().any(|place| place.id == id));
    of.map(move |column| {
        let others = column.places.iter().filter(|place| place.id != id);
        Move {
            bytes: part(layout, staged, column.weight.into()),
            beside: others.filter_map(|place| domain(place.id)).collect(),
            media,
        }
    })
}

/// Why a benefactor cannot leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Copies, or members of rows, would lie in one failure domain.
    #[error("it has chunks for which no other benefactor{} is in a failure domain of its own: let another one join first", media.text())]
    Domains {
        /// Where they must lie.
        media: Media,
    },
    /// The others have too little room.
    #[error(
        "it has {has} that no target has yet, and the others have room for {free}: wait until more is drained, or let another one join first"
    )]
    Room {
        /// What is to be moved.
        has: Bytes,
        /// What nobody uses.
        free: Bytes,
    },
}

/// Whether the others can take what a benefactor has.
///
/// # Errors
/// [`Refused`].
pub fn admit(moves: &[Move], others: &[Candidate]) -> Result<(), Refused> {
    let lends = |candidate: &Candidate, media: Media| match media {
        Media::Any => candidate.memory.is_some() || candidate.ssd.is_some(),
        Media::Ssd => candidate.ssd.is_some(),
    };
    for of in moves {
        let takes = |candidate: &Candidate| lends(candidate, of.media) && !of.beside.contains(&candidate.domain);
        if !others.iter().any(takes) {
            return Err(Refused::Domains { media: of.media });
        }
    }
    let sum = |all: &mut dyn Iterator<Item = Bytes>| Bytes::new(all.map(Bytes::get).fold(0, u64::saturating_add));
    let on_ssd = || others.iter().filter_map(|candidate| candidate.ssd).map(|lent| lent.free);
    let anywhere = on_ssd().chain(others.iter().filter_map(|candidate| candidate.memory).map(|lent| lent.free));
    // What must lie on SSD has no room elsewhere, and the rest shares what is left.
    let to_ssd = sum(&mut moves.iter().filter(|of| of.media == Media::Ssd).map(|of| of.bytes));
    let all = sum(&mut moves.iter().map(|of| of.bytes));
    for (has, free) in [(to_ssd, sum(&mut on_ssd())), (all, sum(&mut { anywhere }))] {
        if has > free {
            return Err(Refused::Room { has, free });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bandwidth;

    use super::*;
    use crate::id::Incarnation;
    use crate::placement::Lent;

    fn candidate(id: u32, memory: u64, ssd: Option<u64>) -> Candidate {
        let lent = |free: u64| Lent {
            free: Bytes::from_mib(free),
            of: Bytes::from_mib(100),
            rate: Bandwidth::from_mib_s(1),
            drain: None,
        };
        let place = Place { id: BenefactorId(id), incarnation: Incarnation(1) };
        Candidate { place, domain: Domain(id), memory: Some(lent(memory)), ssd: ssd.map(lent) }
    }

    fn moves(mib: u64, beside: &[u32], media: Media) -> Move {
        let beside = beside.iter().map(|domain| Domain(*domain)).collect();
        Move { bytes: Bytes::from_mib(mib), beside, media }
    }

    #[test]
    fn a_benefactor_leaves_only_if_the_others_have_room_in_domains_of_their_own() {
        let others = [candidate(1, 10, None), candidate(2, 10, Some(5))];
        assert_eq!(admit(&[], &[]), Ok(()), "nothing is to be moved");
        assert_eq!(admit(&[moves(20, &[1], Media::Any)], &others), Ok(()));
        let refused = admit(&[moves(1, &[1, 2], Media::Any)], &others).unwrap_err();
        assert_eq!(refused, Refused::Domains { media: Media::Any });
        assert!(refused.to_string().ends_with("let another one join first"), "{refused}");
        assert_eq!(admit(&[moves(1, &[2], Media::Ssd)], &others), Err(Refused::Domains { media: Media::Ssd }));
        let room = |has: u64, free: u64| Err(Refused::Room { has: Bytes::from_mib(has), free: Bytes::from_mib(free) });
        assert_eq!(admit(&[moves(6, &[], Media::Ssd)], &others), room(6, 5));
        assert_eq!(admit(&[moves(5, &[], Media::Ssd), moves(21, &[], Media::Any)], &others), room(26, 25));
    }
}
