//! Volumes whose performance is raised in place, and lowered again: what that gives, and what it costs.

use std::time::Duration;

use serde::Deserialize;

use crate::bucket::Limits;
use crate::catalog::Catalog;
use crate::units::{Bandwidth, Bytes, MIB, Span};
use crate::volume_type::VolumeType;

/// How a provider's volumes can be changed in place.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modification {
    /// In words, for people.
    pub says: String,
    /// Names of the types whose performance can be raised and lowered.
    #[serde(default)]
    pub types: Vec<String>,
    /// Time from one change of performance to the next, as often as a volume may be changed for ever.
    pub again_after: Option<Span>,
    /// From where.
    pub source: String,
    /// Date of the source; absent: undated.
    pub as_of: Option<String>,
    /// How sure it is.
    pub confidence: String,
}

/// A volume that moves more for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InPlace {
    /// What it moves then.
    pub bandwidth: Bandwidth,
    /// USD an hour that it costs more.
    pub usd_per_hour: f64,
    /// It stays so for so long at least: it cannot be changed back earlier.
    pub least: Duration,
}

impl Catalog {
    /// A volume of this type and size, raised from what it moves `now` to what is `wanted`, or as near to that as its limits
    /// allow. `None`: it cannot be raised, or it is not known how often, or at what price.
    #[must_use]
    pub fn raised(&self, known: &VolumeType, size: Bytes, now: Bandwidth, wanted: Bandwidth) -> Option<InPlace> {
        let modification = self.provider(&known.provider)?.modification.as_ref()?;
        let least = modification.again_after.filter(|_| modification.types.contains(&known.name))?.0;
        // A size only grows.
        let kept = known.size.fit(size)?;
        let usd_per_hour = |bandwidth: Bandwidth| {
            let offer = known.cheapest_with(kept, &Limits { bandwidth: Some(bandwidth), iops: None })?;
            let hours = f64::from(known.billing.hours_per_month.max(1));
            offer.usd_month.filter(|_| offer.size == kept).map(|usd| usd / hours)
        };
        let before = usd_per_hour(now)?;
        let (mut has, mut has_not) = (now.get() / MIB, wanted.get().div_ceil(MIB) + 1);
        // What a volume cannot give, it cannot give more of.
        while has + 1 < has_not {
            let middle = has + (has_not - has) / 2;
            if usd_per_hour(Bandwidth::from_mib_s(middle)).is_some() {
                has = middle;
            } else {
                has_not = middle;
            }
        }
        let bandwidth = Bandwidth::from_mib_s(has).min(wanted);
        let usd_per_hour = (usd_per_hour(bandwidth)? - before).max(0.0);
        (bandwidth > now).then_some(InPlace { bandwidth, usd_per_hour, least })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_raised_as_far_as_its_type_allows_and_no_further() {
        let catalog = Catalog::builtin();
        let raised = |name: &str, now: u64, wanted: u64| {
            let (provider, name) = name.split_once('/')?;
            let known = catalog.find(provider, name)?;
            catalog.raised(known, Bytes::from_gib(100), Bandwidth::from_mib_s(now), Bandwidth::from_mib_s(wanted))
        };
        // Each MiB/s above 125 costs 0.04 USD a month, from one change to the next.
        let gp3 = raised("aws/gp3", 125, 225).unwrap();
        assert_eq!((gp3.bandwidth, gp3.least), (Bandwidth::from_mib_s(225), Duration::from_secs(6 * 3600)));
        assert!((gp3.usd_per_hour - 100.0 * 0.04 / 730.0).abs() < 1e-9, "{gp3:?}");
        // What is included costs nothing more.
        assert_eq!(raised("aws/gp3", 33, 125).unwrap().usd_per_hour, 0.0);
        let most = raised("aws/gp3", 125, 100_000).unwrap().bandwidth;
        assert!(most > Bandwidth::from_mib_s(225) && most < Bandwidth::from_mib_s(100_000), "{most}");
        for refused in ["aws/st1", "gcp/pd-ssd", "openstack/cinder-qos", "local/slow"] {
            assert_eq!(raised(refused, 33, 66), None, "{refused}");
        }
        assert_eq!(raised("aws/gp3", 225, 225), None);
    }
}
