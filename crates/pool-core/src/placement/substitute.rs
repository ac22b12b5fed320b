//! One more place for a column.

use surgetank_model::Bytes;

use super::{Candidate, Media, Place, Tier};
use crate::id::Domain;

/// The benefactor that has the largest share of a tier free, in a domain in which none of a column's other places is (`beside`: their
/// domains, and the benefactors that are not to be chosen again); `None`: there is none with room for so much.
#[must_use]
pub fn substitute(
    bytes: Bytes,
    media: Media,
    beside: &[Domain],
    without: &[Place],
    candidates: &[Candidate],
) -> Option<(Place, Tier)> {
    let free = |candidate: &Candidate| {
        let memory = candidate.memory.filter(|_| media == Media::Any).map(|lent| (lent, Tier::Memory));
        let tiers = memory.into_iter().chain(candidate.ssd.map(|lent| (lent, Tier::Ssd)));
        tiers.filter(|(lent, _)| lent.free >= bytes && lent.of > Bytes::ZERO).map(|(lent, tier)| {
            let share = u128::from(lent.free.get()) * 1024 / u128::from(lent.of.get());
            (tier == Tier::Memory, share, tier)
        })
    };
    let may = |candidate: &&Candidate| {
        !beside.contains(&candidate.domain) && !without.iter().any(|place| place.id == candidate.place.id)
    };
    let all =
        candidates.iter().filter(may).flat_map(|candidate| free(candidate).map(move |rank| (rank, candidate.place)));
    // Of equal ones the first.
    let best = all.max_by_key(|((is_memory, share, _), place)| (*is_memory, *share, std::cmp::Reverse(*place)));
    best.map(|((.., tier), place)| (place, tier))
}
