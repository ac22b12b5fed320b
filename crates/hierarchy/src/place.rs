//! Where a block belongs: which part of a split share, and which second-level server.

use surgetank_allocation::hull::Hull;
use surgetank_allocation::{Hierarchy, MissCurve};

use crate::planted::{Bug, planted};

/// Blocks are below this, so that a key holds its application, too.
pub const BLOCKS_MAX: u64 = 1 << 48;

/// What stands for an application's block in a cache that others use.
pub(crate) fn key(application: usize, block: u64) -> u64 {
    (application as u64) << 48 | block
}

/// Whose block a key is, and which.
pub(crate) fn owner(key: u64) -> (usize, u64) {
    ((key >> 48) as usize, key % BLOCKS_MAX)
}

/// Spreads keys (the finalizer of SplitMix64, Steele et al. 2014). Curves sample by another hash: with the same one all sampled
/// blocks would be in one part.
pub(crate) fn spread(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

const BUCKETS: usize = 4096;

/// Which second-level server caches which of an application's blocks: as many of them as it has of the application's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routes {
    /// Servers by the lowest bits of a block's hash.
    buckets: Vec<u16>,
}

impl Routes {
    /// Over these servers, of which each has so much; as few blocks as possible change servers.
    pub fn new(shares: &[(usize, u64)], before: Option<&Self>) -> Self {
        let all: u64 = shares.iter().map(|(_, share)| share).sum();
        let mut quotas = vec![0_usize; shares.iter().map(|(server, _)| server + 1).max().unwrap_or(1)];
        let (mut sum, mut dealt) = (0_u64, 0);
        for (server, share) in shares {
            sum += share;
            // Rounded sums, so that all buckets are dealt.
            let until = (u128::from(sum) * BUCKETS as u128).checked_div(u128::from(all)).unwrap_or(0) as usize;
            quotas[*server] = until - dealt;
            dealt = until;
        }
        if let (0, Some((server, _))) = (all, shares.first()) {
            quotas[*server] = BUCKETS;
        }
        const OPEN: u16 = u16::MAX;
        let mut buckets = vec![OPEN; BUCKETS];
        if let Some(before) = before {
            for (bucket, server) in buckets.iter_mut().zip(&before.buckets) {
                if let Some(quota) = quotas.get_mut(usize::from(*server)).filter(|quota| **quota > 0) {
                    *quota -= 1;
                    *bucket = *server;
                }
            }
        }
        // The others in turns, so that neighbours of a bucket do not end at one server.
        let mut server = 0;
        for bucket in buckets.iter_mut().filter(|bucket| **bucket == OPEN) {
            while quotas.iter().any(|quota| *quota > 0) && quotas[server % quotas.len()] == 0 {
                server += 1;
            }
            let to = server % quotas.len();
            quotas[to] = quotas[to].saturating_sub(1);
            *bucket = to as u16;
            server += 1;
        }
        Self { buckets }
    }

    /// The server of a block with this hash.
    pub fn of(&self, hash: u64) -> usize {
        usize::from(self.buckets[hash as usize % BUCKETS])
    }
}

/// A part of an application's accesses, and the caches that it has to itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    /// The upper end of its hashes, as a part of all.
    pub until: f64,
    /// Blocks of the first level.
    pub first: u64,
    /// Blocks of the second level, on all servers together.
    pub second: u64,
}

/// The part of a hash: of bits that no bucket depends on.
pub(crate) fn part_of(parts: &[Part], hash: u64) -> usize {
    let at = (hash >> 12) as f64 / (1_u64 << 52) as f64;
    parts.iter().position(|part| at < part.until).unwrap_or(parts.len() - 1)
}

/// So many fewer accesses than the hull says go to the larger part of a split share: a loop that its cache only just holds must fit, though a few
/// more of its blocks than on average may hash there (BS15, 6.2, has a margin for that, too).
const SPARE: f64 = 0.02;

/// One level's split: how many accesses go to the smaller cache, and what both are like, in blocks.
#[derive(Clone, Copy, Debug)]
struct Halves {
    accesses: f64,
    small: f64,
    large: f64,
}

impl Halves {
    /// On the way to a split the larger cache is as large as it will be for the accesses that go to it: these become more, and what the others
    /// have becomes less. So a loop that the larger cache holds gains from the first step on.
    fn of(hull: Option<(&Hull, f64)>, size: f64, block: f64) -> Self {
        match hull.and_then(|(hull, far)| Some((hull.split(size * block)?, far))) {
            Some((split, far)) if !planted(Bug::HullNotSplit) => {
                let larger = (1.0 - split.accesses) * (1.0 - SPARE);
                let large = split.large / block / larger;
                let accesses = far * larger;
                Self { accesses: 1.0 - accesses, small: (size - accesses * large) / (1.0 - accesses), large }
            }
            _ => Self { accesses: 1.0, small: size, large: size },
        }
    }

    fn at(self, accesses: f64) -> f64 {
        if accesses < self.accesses { self.small } else { self.large }
    }
}

/// What a share of so many bytes misses that is split as far as that.
pub(crate) fn misses(curve: &MissCurve, hull: &Hull, far: f64, size: f64) -> f64 {
    let Halves { accesses, small, large } = Halves::of(Some((hull, far)), size, 1.0);
    accesses * curve.at(small) + (1.0 - accesses) * curve.at(large)
}

/// Which part of all accesses misses in such a share and hits in one cache of the other size, or the other way round.
pub(crate) fn differing(curve: &MissCurve, hull: Option<(&Hull, f64)>, size: f64, other: f64) -> f64 {
    let Halves { accesses, small, large } = Halves::of(hull, size, 1.0);
    let other = curve.at(other);
    accesses * (curve.at(small) - other).abs() + (1.0 - accesses) * (curve.at(large) - other).abs()
}

/// What it misses when it was split less far a moment ago: what goes to the larger cache now is not in it yet.
pub(crate) fn misses_on_the_way(curve: &MissCurve, hull: &Hull, (from, to): (f64, f64), size: f64) -> f64 {
    let (before, after) = (Halves::of(Some((hull, from)), size, 1.0), Halves::of(Some((hull, to)), size, 1.0));
    let moved = before.accesses - after.accesses;
    let missed_before = moved * curve.at(before.small) + (1.0 - before.accesses) * curve.at(before.large);
    missed_before + after.accesses * curve.at(after.small)
}

/// How shares of both levels are split, in blocks of so many bytes, to miss what the hull says: at most three parts. What a part has of the second level
/// makes its caches together what the hull wants at the sum of both shares (exclusive), or the second one alone (inclusive).
pub(crate) fn parts(shares: (u64, u64), hierarchy: Hierarchy, hull: Option<(&Hull, f64)>, block: f64) -> Vec<Part> {
    let (first, second) = (shares.0 as f64, shares.1 as f64);
    let front = Halves::of(hull, first, block);
    let behind = match hierarchy {
        Hierarchy::Exclusive => Halves::of(hull, first + second, block),
        Hierarchy::Inclusive => Halves::of(hull, second, block),
    };
    let mut ends = [front.accesses, behind.accesses, 1.0];
    ends.sort_by(f64::total_cmp);
    let mut parts: Vec<Part> = Vec::new();
    let mut from = 0.0;
    for until in ends {
        let accesses = until - from;
        if accesses < 1e-6 {
            continue;
        }
        let (of_first, of_behind) = (front.at(from), behind.at(from));
        let of_second = match hierarchy {
            Hierarchy::Exclusive => (of_behind - of_first).max(0.0),
            Hierarchy::Inclusive => of_behind,
        };
        let blocks = |size: f64| (accesses * size) as u64;
        parts.push(Part { until, first: blocks(of_first), second: blocks(of_second) });
        from = until;
    }
    if let Some(last) = parts.last_mut() {
        last.until = 1.0;
    }
    even_out(&mut parts, shares.0, |part| &mut part.first);
    even_out(&mut parts, shares.1, |part| &mut part.second);
    parts
}

/// Makes sizes sum up to the share: the largest part takes the difference, or others after it.
fn even_out(parts: &mut [Part], share: u64, of: impl Fn(&mut Part) -> &mut u64) {
    let mut sum: u64 = parts.iter_mut().map(|part| *of(part)).sum();
    while sum != share {
        let Some(largest) = parts.iter_mut().map(&of).max() else { return };
        let changed = if sum < share { *largest + (share - sum) } else { largest.saturating_sub(sum - share) };
        sum = sum - *largest + changed;
        *largest = changed;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_model::Bytes;

    use super::*;

    fn hull() -> Hull {
        let points = [(0, 1.0), (1000, 0.8), (5000, 0.8), (5100, 0.3), (20_000, 0.1)];
        Hull::of(&MissCurve::new(&points.map(|(size, ratio)| (Bytes::new(size), ratio))).unwrap())
    }

    /// How many of the buckets each server has, by its number.
    fn parts_of(routes: &Routes, servers: usize) -> Vec<f64> {
        let mut parts = vec![0.0; servers];
        for server in &routes.buckets {
            parts[usize::from(*server)] += 1.0 / BUCKETS as f64;
        }
        parts
    }

    proptest! {
        #[test]
        fn parts_have_the_share_and_all_accesses(first in 0u64..8000, second in 0u64..30_000, inclusive: bool) {
            let hierarchy = if inclusive { Hierarchy::Inclusive } else { Hierarchy::Exclusive };
            let parts = parts((first, second), hierarchy, Some((&hull(), 1.0)), 1.0);
            prop_assert!(parts.len() <= 3 && parts[parts.len() - 1].until == 1.0);
            prop_assert!(parts.windows(2).all(|pair| pair[0].until < pair[1].until));
            prop_assert_eq!(parts.iter().map(|part| part.first).sum::<u64>(), first);
            prop_assert_eq!(parts.iter().map(|part| part.second).sum::<u64>(), second);
        }

        #[test]
        fn routes_are_in_proportion_and_move_little(
            before in prop::collection::vec(0u64..100, 4), after in prop::collection::vec(0u64..100, 4),
        ) {
            let shares = |of: &[u64]| of.iter().copied().enumerate().collect::<Vec<_>>();
            let one = Routes::new(&shares(&before), None);
            let other = Routes::new(&shares(&after), Some(&one));
            for (routes, shares) in [(&one, &before), (&other, &after)] {
                let all: u64 = shares.iter().sum();
                for (part, share) in parts_of(routes, 4).iter().zip(shares) {
                    prop_assert!(all == 0 || (part - *share as f64 / all as f64).abs() < 1e-3);
                }
            }
            let moved = one.buckets.iter().zip(&other.buckets).filter(|(a, b)| a != b).count() as f64 / BUCKETS as f64;
            let least: f64 = parts_of(&one, 4).iter().zip(parts_of(&other, 4)).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0;
            prop_assert!((moved - least).abs() < 1e-9, "{moved} {least}");
        }
    }

    #[test]
    fn a_share_between_two_points_of_the_hull_is_split() {
        let between = parts((2550, 0), Hierarchy::Exclusive, Some((&hull(), 1.0)), 1.0);
        assert_eq!(between.len(), 2, "{between:?}");
        // Behaves as a cache of 5100 blocks, with a little to spare.
        let large = between[1];
        let accesses = 1.0 - between[0].until;
        assert!((5100.0..5300.0).contains(&(large.first as f64 / accesses)), "{between:?}");
        assert_eq!(parts((2550, 0), Hierarchy::Exclusive, None, 1.0).len(), 1);
    }

    #[test]
    fn a_share_differs_from_another_by_the_accesses_that_one_alone_holds() {
        let points = [(0, 1.0), (1000, 0.8), (5000, 0.8), (5100, 0.3), (20_000, 0.1)];
        let curve = MissCurve::new(&points.map(|(size, ratio)| (Bytes::new(size), ratio))).unwrap();
        let whole = |size: f64, other: f64| differing(&curve, None, size, other);
        assert!((whole(5100.0, 4000.0) - 0.5).abs() < 1e-12 && (whole(4000.0, 5100.0) - 0.5).abs() < 1e-12);
        assert_eq!(whole(2000.0, 4000.0), 0.0);
        // One part of a split hits more and the other one less, so that they differ by more than by how much they miss.
        let (hull, other) = (hull(), 5050.0);
        let less = curve.at(other) - misses(&curve, &hull, 1.0, 2550.0);
        let both = differing(&curve, Some((&hull, 1.0)), 2550.0, other);
        assert!(both > less.abs() + 0.1, "{both} of all accesses, {less} fewer misses");
    }
}
