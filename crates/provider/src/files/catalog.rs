//! The types of volumes that are files, by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
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
    pub fn volume_type(&self, name: &str) -> Result<&FileType, ProviderError> {
        find(self.provider, &self.types, name)
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

/// Looks a type up; `Invalid`, naming the nearest known type, if it is not there.
pub fn find<'a>(
    provider: &str,
    types: &'a BTreeMap<String, FileType>,
    name: &str,
) -> Result<&'a FileType, ProviderError> {
    types.get(name).ok_or_else(|| {
        let nearest = types.keys().min_by_key(|known| edit_distance(known, name));
        ProviderError::Invalid(match nearest {
            Some(nearest) => format!(
                "the {provider} provider has no volume type {name:?}: did you mean {nearest:?}? (Others are added under \
                 [provider.{provider}.types])"
            ),
            None => format!(
                "the {provider} provider has no volume type {name:?}: its catalog is empty, add one under \
                 [provider.{provider}.types]"
            ),
        })
    })
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

/// Levenshtein distance in characters, one row at a time. `to` is cut: nobody mistypes more than a line.
fn edit_distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().take(256).collect();
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (i, there) in to.chars().take(256).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, here) in from.iter().enumerate() {
            let replaced = diagonal + usize::from(*here != there);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[from.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_levenshtein() {
        for (a, b, distance) in
            [("", "", 0), ("fast", "fast", 0), ("fast", "fsat", 2), ("slow", "slower", 2), ("", "abc", 3)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a:?} {b:?}");
            assert_eq!(edit_distance(b, a), distance, "{b:?} {a:?}");
        }
    }

    #[test]
    fn unknown_type_names_the_nearest() {
        let error = find("qemu", &default_types(), "fats").unwrap_err().to_string();
        assert!(error.contains("\"fast\"") && !error.contains("\"slow\""), "{error}");
        assert!(error.contains("[provider.qemu.types]"), "{error}");
    }
}
