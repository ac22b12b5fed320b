//! The types of volumes that are files, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use surgetank_model::toml_error::nearest;
use surgetank_model::units::{GIB, TIB};
use surgetank_model::volume_type::{BandwidthBySize, CreditUnit, Credits, IopsBySize};
use surgetank_model::{Bandwidth, Bytes, Iops};

use crate::ProviderError;
use crate::table::TypeLimits;

/// Volumes' sizes are multiples of this, in bytes: what direct I/O needs on every file system in use.
pub const SIZE_GRAIN: Bytes = Bytes::new(4096);

/// A type of volume that is a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileType {
    /// What it moves: QEMU holds its volumes to it; of a local volume its users do, because a file itself has no limit.
    pub bandwidth: Bandwidth,
    /// The same, in requests; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<Iops>,
    /// The smallest volume.
    #[serde(default = "default_min_size")]
    pub min_size: Bytes,
    /// The largest volume.
    #[serde(default = "default_max_size")]
    pub max_size: Bytes,
    /// Whether the space is reserved when the volume is made, so that writing to it cannot meet a full disk.
    /// (File systems that copy on write do not keep that promise.)
    #[serde(default = "default_preallocate")]
    pub preallocate: bool,
    /// Credits for requests: `iops` holds while they last. Full at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_credits: Option<IopsCredits>,
    /// Credits for bytes: `bandwidth` holds while they last. Full at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_credits: Option<BandwidthCredits>,
}

/// Credits for requests, as the catalog's model `iops_credits` has them; each request costs one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IopsCredits {
    /// Sustained, and the rate at which credits refill.
    pub baseline: IopsBySize,
    /// Most credits.
    pub bucket: u64,
}

/// Credits for bytes, as the catalog's model `bandwidth_credits` has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthCredits {
    /// Sustained, and the rate at which credits refill.
    pub baseline: BandwidthBySize,
    /// Most credits for each GiB of the volume.
    pub bucket_per_gib: Bytes,
}

const fn default_min_size() -> Bytes {
    Bytes::from_mib(1)
}

const fn default_max_size() -> Bytes {
    Bytes::new(16 * TIB)
}

const fn default_preallocate() -> bool {
    true
}

impl FileType {
    /// A preallocated type of this bandwidth, without an IOPS limit, with the default size limits.
    #[must_use]
    pub const fn with_bandwidth(bandwidth: Bandwidth) -> Self {
        Self {
            bandwidth,
            iops: None,
            min_size: default_min_size(),
            max_size: default_max_size(),
            preallocate: default_preallocate(),
            iops_credits: None,
            bandwidth_credits: None,
        }
    }

    /// The buckets of burst credits of a volume of this size: they fill and empty independently.
    #[must_use]
    pub fn credits_at(&self, size: Bytes) -> Vec<Credits> {
        let operations = self.iops_credits.and_then(|credits| {
            let (unit, bucket) = (CreditUnit::Operations, credits.bucket);
            let baseline_per_s = credits.baseline.at(size)?.get();
            // Without a limit, the burst is as fast as the file is.
            let burst_per_s = self.iops.map_or(u64::MAX, Iops::get);
            Some(Credits { unit, baseline_per_s, burst_per_s, bucket })
        });
        let bytes = self.bandwidth_credits.and_then(|credits| {
            let bucket = u128::from(credits.bucket_per_gib.get()) * u128::from(size.get()) / u128::from(GIB);
            let (unit, bucket) = (CreditUnit::Bytes, u64::try_from(bucket).unwrap_or(u64::MAX));
            let (baseline_per_s, burst_per_s) = (credits.baseline.at(size)?.get(), self.bandwidth.get());
            Some(Credits { unit, baseline_per_s, burst_per_s, bucket })
        });
        operations.into_iter().chain(bytes).filter(|credits| credits.burst_per_s > credits.baseline_per_s).collect()
    }

    /// Whether its credits have a baseline. `name` is that of the type.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let operations = self.iops_credits.is_some_and(|credits| credits.baseline.at(self.min_size).is_none());
        let bytes = self.bandwidth_credits.is_some_and(|credits| credits.baseline.at(self.min_size).is_none());
        let key = match (operations, bytes) {
            (true, _) => "iops_credits",
            (_, true) => "bandwidth_credits",
            _ => return Ok(()),
        };
        Err(format!(
            "{key} of the type \"{name}\" have no baseline: write per_gib there, or max if it is the same at every size"
        ))
    }

    /// What is known of volumes of this type, which somebody holds to its limits.
    #[must_use]
    pub const fn limits(&self) -> TypeLimits {
        let (sizes, bandwidth) = ((self.min_size, self.max_size), Some(self.bandwidth));
        TypeLimits { sizes, bandwidth, iops: self.iops, throttle: false }
    }
}

/// The types of one provider.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The provider's name, for messages.
    pub provider: &'static str,
    /// The types, by name.
    pub types: BTreeMap<String, FileType>,
}

impl Catalog {
    /// Looks a type up.
    ///
    /// # Errors
    /// `Invalid`, with the nearest known type or all of them, if it is not there.
    pub fn volume_type(&self, name: &str) -> Result<&FileType, ProviderError> {
        self.types.get(name).ok_or_else(|| {
            let Self { provider, types } = self;
            let known = || types.keys().map(String::as_str);
            let remedy = match nearest(name, known()) {
                Some(nearest) => format!("did you mean {nearest:?}?"),
                None => format!("it has {}.", known().collect::<Vec<_>>().join(", ")),
            };
            ProviderError::Invalid(format!(
                "the {provider} provider has no volume type {name:?}: {remedy} (Others are added under \
                 [provider.{provider}.types])"
            ))
        })
    }

    /// Checks that a volume of this type may have this size.
    pub fn check_size(&self, name: &str, size: Bytes) -> Result<&FileType, ProviderError> {
        let volume_type = self.volume_type(name)?;
        let (min, max) = (volume_type.min_size, volume_type.max_size);
        if size < min || size > max {
            return Err(ProviderError::Invalid(format!(
                "a volume of type {name:?} cannot be {size}: its size is from {min} to {max}"
            )));
        }
        if !size.get().is_multiple_of(SIZE_GRAIN.get()) || size == Bytes::ZERO {
            return Err(ProviderError::Invalid(format!(
                "a volume cannot be {size}: its size is a multiple of {SIZE_GRAIN} above zero"
            )));
        }
        Ok(volume_type)
    }
}

/// `slow` (33 MiB/s) and `fast` (128 MiB/s), the papers' two.
#[must_use]
pub fn default_types() -> BTreeMap<String, FileType> {
    BTreeMap::from([
        ("slow".to_owned(), FileType::with_bandwidth(Bandwidth::from_mib_s(33))),
        ("fast".to_owned(), FileType::with_bandwidth(Bandwidth::from_mib_s(128))),
    ])
}

/// Reads types from a configuration, which add to the default ones or override them by name.
pub fn over_the_defaults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, FileType>, D::Error> {
    let mut types = default_types();
    types.extend(BTreeMap::<String, FileType>::deserialize(deserializer)?);
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_follow_the_size_as_in_the_catalog() {
        let text = r#"
            bandwidth = "128 MiB/s"
            iops = "3000 IOPS"
            iops_credits = { baseline = { per_gib = 3.0, min = "100 IOPS" }, bucket = 5400000 }
            bandwidth_credits = { baseline = { max = "40 MiB/s" }, bucket_per_gib = "1 GiB" }
        "#;
        let gp2_like: FileType = toml::from_str(text).unwrap();
        let credits = gp2_like.credits_at(Bytes::from_gib(50));
        let operations =
            Credits { unit: CreditUnit::Operations, baseline_per_s: 150, burst_per_s: 3000, bucket: 5_400_000 };
        let (baseline_per_s, burst_per_s) = (40 << 20, 128 << 20);
        let bytes = Credits { unit: CreditUnit::Bytes, baseline_per_s, burst_per_s, bucket: 50 << 30 };
        assert_eq!(credits, [operations, bytes]);
        // From where the baseline is the most, there is no burst.
        assert_eq!(gp2_like.credits_at(Bytes::from_gib(1000)).len(), 1);
        assert!(default_types()["fast"].credits_at(Bytes::from_gib(50)).is_empty());
        assert_eq!(toml::from_str::<FileType>(&toml::to_string(&gp2_like).unwrap()).unwrap(), gp2_like);
        assert_eq!(gp2_like.check("x"), Ok(()));
        let none: FileType = toml::from_str(&text.replace("max = \"40 MiB/s\"", "")).unwrap();
        assert!(none.check("x").unwrap_err().starts_with("bandwidth_credits of the type \"x\" have no baseline"));
    }

    #[test]
    fn an_unknown_type_is_told_with_the_nearest_or_all() {
        let catalog = Catalog { provider: "qemu", types: default_types() };
        let error = |name| catalog.volume_type(name).unwrap_err().to_string();
        let near = error("fats");
        assert!(near.contains("\"fast\"") && !near.contains("slow"), "{near}");
        assert!(near.contains("[provider.qemu.types]"), "{near}");
        assert!(error("premium").contains("it has fast, slow."));
    }
}
