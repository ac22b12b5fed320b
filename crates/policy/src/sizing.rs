//! How large the next caching volume is, from how the last one was used.

use surgetank_model::{Bandwidth, Bytes};

/// How a boost used its caching volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Size of the caching volume.
    pub size: Bytes,
    /// Bytes of it that the cache could use (below `size` by the log's own overhead); zero if never seen.
    pub usable: Bytes,
    /// Most bytes of the cache in use at once.
    pub high_water: Bytes,
    /// Bytes that a larger cache would have taken.
    pub evicted: Bytes,
    /// Bytes written before it was attached, if the next boost is expected to be in time for them; else zero.
    pub missed: Bytes,
}

/// What a size may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Sizes are multiples of this; at least 1 byte.
    pub grain: Bytes,
    /// Smallest size.
    pub min: Bytes,
    /// Largest size; wins over `min` and `grain`.
    pub max: Bytes,
}

impl Bounds {
    /// The nearest allowed size that holds `size`, or the largest one.
    #[must_use]
    pub fn clamp(&self, size: Bytes) -> Bytes {
        size.max(self.min).min(self.max).round_up(Bytes::new(self.grain.get().max(1))).min(self.max)
    }
}

/// The papers' rule (NRK15, III-A.3): `evicted > 0 ? M + evicted : min(M, high water)`, rounded up to the grain.
#[must_use]
pub fn paper_next_size(usage: &Usage, grain: Bytes) -> Bytes {
    let next = if usage.evicted > Bytes::ZERO {
        Bytes::new(usage.size.get().saturating_add(usage.evicted.get()))
    } else {
        usage.size.min(usage.high_water)
    };
    next.round_up(Bytes::new(grain.get().max(1)))
}

/// The papers' rule for a split boost. Differs where the papers' assumptions do:
/// - what was spilled would, with a larger cache, have been split as well: only its share Bc/(Bb+Bc) needs room;
/// - as much of what was written before the cache was there, if next time it will be;
/// - the high water is in usable bytes, a size is not: the log's overhead, as seen in this boost, is added;
/// - a boost that absorbed nothing (the burst ended before it was attached) teaches nothing.
#[must_use]
pub fn split_next_size(usage: &Usage, grain: Bytes, backing: Bandwidth, caching: Bandwidth) -> Bytes {
    if usage.high_water == Bytes::ZERO && usage.evicted == Bytes::ZERO {
        return usage.size;
    }
    let share = |bytes: Bytes| {
        let sum = u128::from(backing.get()) + u128::from(caching.get());
        scaled(bytes, u128::from(caching.get()), sum)
    };
    let volume_for = |bytes: Bytes| {
        if usage.usable == Bytes::ZERO {
            bytes
        } else {
            scaled(bytes, usage.size.get().into(), usage.usable.get().into())
        }
    };
    let adjusted =
        Usage { high_water: volume_for(usage.high_water), evicted: volume_for(share(usage.evicted)), ..*usage };
    let missed = volume_for(share(usage.missed)).get();
    let in_use = if usage.evicted > Bytes::ZERO { usage.size } else { adjusted.high_water };
    let needed = in_use.get().saturating_add(adjusted.evicted.get()).saturating_add(missed);
    let next = paper_next_size(&adjusted, grain);
    if missed > 0 { next.max(Bytes::new(needed).round_up(Bytes::new(grain.get().max(1)))) } else { next }
}

/// `bytes` × `by` / `of`, rounded up.
fn scaled(bytes: Bytes, by: u128, of: u128) -> Bytes {
    let scaled = (u128::from(bytes.get()) * by).div_ceil(of.max(1));
    Bytes::new(u64::try_from(scaled).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(tenths: u64) -> Bytes {
        Bytes::new(tenths * (1 << 30) / 10)
    }

    fn usage(size: u64, high_water: u64, evicted: u64) -> Usage {
        Usage {
            size: gib(size),
            usable: gib(size),
            high_water: gib(high_water),
            evicted: gib(evicted),
            missed: Bytes::ZERO,
        }
    }

    #[test]
    fn the_papers_examples() {
        let grain = Bytes::from_gib(1);
        // Bonnie++ and CM1: a partly used 10 GB cache shrinks to what was used; CM1: 4 GB grows by what was evicted.
        assert_eq!(paper_next_size(&usage(100, 55, 0), grain), Bytes::from_gib(6));
        assert_eq!(paper_next_size(&usage(100, 40, 0), grain), Bytes::from_gib(4));
        assert_eq!(paper_next_size(&usage(40, 40, 13), grain), Bytes::from_gib(6));
        // Never larger without an eviction.
        assert_eq!(paper_next_size(&usage(40, 45, 0), grain), Bytes::from_gib(4));
    }

    #[test]
    fn a_split_boost_needs_room_for_its_share_only() {
        let (grain, slow, fast) = (Bytes::from_gib(1), Bandwidth::from_mib_s(32), Bandwidth::from_mib_s(96));
        assert_eq!(split_next_size(&usage(40, 40, 40), grain, slow, fast), Bytes::from_gib(7));
        assert_eq!(split_next_size(&usage(100, 0, 0), grain, slow, fast), Bytes::from_gib(10));
        let late = |missed| Usage { missed: gib(missed), ..usage(40, 29, 0) };
        assert_eq!(split_next_size(&late(0), grain, slow, fast), Bytes::from_gib(3));
        assert_eq!(split_next_size(&late(4), grain, slow, fast), Bytes::from_gib(4));
        let overhead = Usage { usable: gib(95), ..usage(100, 58, 0) };
        assert_eq!(split_next_size(&overhead, grain, slow, fast), Bytes::from_gib(7));
    }

    #[test]
    fn bounds_hold() {
        let bounds = Bounds { grain: Bytes::from_gib(1), min: Bytes::from_gib(2), max: gib(95) };
        assert_eq!(bounds.clamp(Bytes::ZERO), Bytes::from_gib(2));
        assert_eq!(bounds.clamp(gib(31)), Bytes::from_gib(4));
        assert_eq!(bounds.clamp(gib(93)), gib(95));
        assert_eq!(bounds.clamp(Bytes::new(u64::MAX)), gib(95));
    }
}
