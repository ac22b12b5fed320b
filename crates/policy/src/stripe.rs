//! Over how many equal caching volumes a boost is striped.
//!
//! Providers limit volumes one by one, and a stripe is as fast as its volumes together. Which number pays best depends on the bursts;
//! where those are described, the planner weighs it. Where they are not, [`volumes`] takes what the limits allow.

use surgetank_model::{Bandwidth, Bytes, Catalog, VolumeType};

/// Most volumes of a stripe where it is unknown how many a machine takes.
pub const VOLUMES_MAX: u32 = 16;

/// The machine that volumes are attached to, as far as it limits them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// What all its volumes move together; `None`: not limited.
    pub bandwidth: Option<Bandwidth>,
    /// How many volumes it takes beside its root; `None`: as many as the catalog says of the provider.
    pub attachments: Option<u32>,
}

impl Machine {
    /// Of the rate `all` of some volumes, what is left while the backing volume moves what it can, and while it rests.
    #[must_use]
    pub fn passes(&self, all: Bandwidth, backing: Bandwidth) -> (Bandwidth, Bandwidth) {
        let Some(most) = self.bandwidth else { return (all, all) };
        let beside = Bandwidth::new(most.get().saturating_sub(backing.get()).max(1));
        (all.min(beside), all.min(most))
    }

    /// The most caching volumes of a type that it takes beside the backing volume, and that give more than fewer.
    #[must_use]
    pub fn volumes_max(&self, catalog: &Catalog, known: Option<&VolumeType>) -> u32 {
        // Together they give no more than one.
        if known.is_some_and(|known| known.limits_per_machine) {
            return 1;
        }
        let provider = known.and_then(|known| catalog.provider(&known.provider));
        let said = provider.and_then(|provider| provider.attachments.as_ref()).map(|attachments| attachments.most);
        self.attachments.or(said).map_or(VOLUMES_MAX, |most| most.saturating_sub(1)).max(1)
    }
}

/// What limits a stripe whose bursts are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The machine.
    pub machine: Machine,
    /// Volumes that machine and provider take beside all that are in use anyway; `None`: unknown.
    pub free: Option<u32>,
    /// What the backing volume moves.
    pub backing: Bandwidth,
    /// What each volume of the stripe moves.
    pub each: Bandwidth,
    /// The size of the first stripe, and of the largest.
    pub first: Bytes,
    /// See `first`.
    pub largest: Bytes,
    /// The least that a volume has: sizes of stripes are multiples of this for each volume.
    pub unit: Bytes,
}

/// So many volumes that one more would not be attached, would move nothing more, or would make caches larger than they are wanted. It
/// is a power of two or three times one, so that half as many divide the same sizes; see [`fewer`]. At least 1.
///
/// - They are no more than the machine takes, or [`VOLUMES_MAX`] where that is unknown.
/// - All but the last move less than the machine does beside the backing volume.
/// - Each has at least the unit; what rounding up to that adds to the first stripe is at most a third of it.
#[must_use]
pub fn volumes(limits: &Limits) -> u32 {
    let beside = limits.machine.passes(Bandwidth::new(u64::MAX), limits.backing).0;
    let enough = beside.get().div_ceil(limits.each.get().max(1));
    let most = u64::from(limits.free.unwrap_or(VOLUMES_MAX)).min(enough);
    let fits = |volumes: &u32| {
        let least = limits.unit.get().max(1).saturating_mul(u64::from(*volumes));
        let first = limits.first.round_up(Bytes::new(least)).get();
        let wanted = limits.first.get();
        u64::from(*volumes) <= most && first <= limits.largest.get().min(wanted.saturating_add(wanted / 3))
    };
    [32, 24, 16, 12, 8, 6, 4, 3, 2].into_iter().find(fits).unwrap_or(1)
}

/// The number of volumes to try where a provider refuses so many. `None`: there are no fewer.
#[must_use]
pub const fn fewer(volumes: u32) -> Option<u32> {
    if volumes > 1 { Some(volumes / 2) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        machine: Machine { bandwidth: None, attachments: None },
        free: None,
        backing: Bandwidth::from_mib_s(33),
        each: Bandwidth::from_mib_s(128),
        first: Bytes::from_gib(64),
        largest: Bytes::from_gib(1024),
        unit: Bytes::from_gib(1),
    };

    fn machine(mib_s: u64) -> Machine {
        Machine { bandwidth: Some(Bandwidth::from_mib_s(mib_s)), attachments: None }
    }

    #[test]
    fn each_limit_counts() {
        assert_eq!(volumes(&LIMITS), VOLUMES_MAX, "nothing is known of the machine");
        for (free, expected) in [(64, 32), (31, 24), (10, 8), (7, 6), (5, 4), (3, 3), (1, 1), (0, 1)] {
            assert_eq!(volumes(&Limits { free: Some(free), ..LIMITS }), expected, "{free}");
        }
        // 1033 − 33 = 7.8 × 128, 545 − 33 = 4 × 128, and one volume is more than the machine moves.
        for (mib_s, expected) in [(1033, 8), (545, 4), (546, 4), (100, 1), (10, 1)] {
            assert_eq!(volumes(&Limits { machine: machine(mib_s), ..LIMITS }), expected, "{mib_s}");
        }
        for (first, expected) in [(16, 16), (10, 12), (9, 12), (5, 6), (4, 4), (3, 4), (2, 2), (1, 1)] {
            assert_eq!(volumes(&Limits { first: Bytes::from_gib(first), ..LIMITS }), expected, "{first} GiB");
        }
        assert_eq!(volumes(&Limits { largest: Bytes::from_gib(64), first: Bytes::from_gib(64), ..LIMITS }), 16);
        assert_eq!(volumes(&Limits { largest: Bytes::from_gib(5), first: Bytes::from_gib(5), ..LIMITS }), 1);
    }

    proptest! {
        #[test]
        fn half_as_many_divide_the_same_sizes_and_no_limit_is_passed(
            free in prop::option::of(0u32..100),
            mib_s in prop::option::of(1u64..10_000),
            each in 0u64..3000,
            (first, more, unit) in (1u64..2000, 0u64..2000, 1u64..64),
        ) {
            let limits = Limits {
                machine: mib_s.map_or(LIMITS.machine, machine),
                free,
                each: Bandwidth::from_mib_s(each),
                first: Bytes::from_gib(first),
                largest: Bytes::from_gib(first + more),
                unit: Bytes::from_gib(unit),
                ..LIMITS
            };
            let found = volumes(&limits);
            prop_assert!((1..=free.unwrap_or(VOLUMES_MAX).max(1)).contains(&found));
            let size = limits.first.round_up(Bytes::new(limits.unit.get() * u64::from(found)));
            prop_assert!(found == 1 || size <= limits.largest);
            let mut tried = Some(found);
            while let Some(volumes) = tried {
                prop_assert!(size.get().is_multiple_of(u64::from(volumes) * limits.unit.get()) || found == 1);
                tried = fewer(volumes);
            }
            if let (Some(most), true) = (limits.machine.bandwidth, found > 1) {
                let all_but_one = limits.each.get() * u64::from(found - 1);
                prop_assert!(all_but_one < most.get().saturating_sub(limits.backing.get()).max(1));
            }
        }
    }
}
