//! The types of volumes that are files, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use surgetank_model::toml_error::nearest;
use surgetank_model::units::TIB;
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
        }
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
    fn an_unknown_type_is_told_with_the_nearest_or_all() {
        let catalog = Catalog { provider: "qemu", types: default_types() };
        let error = |name| catalog.volume_type(name).unwrap_err().to_string();
        let near = error("fats");
        assert!(near.contains("\"fast\"") && !near.contains("slow"), "{near}");
        assert!(near.contains("[provider.qemu.types]"), "{near}");
        assert!(error("premium").contains("it has fast, slow."));
    }
}
