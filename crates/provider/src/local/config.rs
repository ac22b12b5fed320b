//! What a local provider rents out and how it behaves: the daemon's `[provider.local]` section.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use surgetank_model::units::{Span, TIB};
use surgetank_model::{Bandwidth, Bytes, Iops};

use crate::ProviderError;
use crate::faulty::FaultRates;

/// Volumes' sizes are multiples of this, in bytes: what direct I/O needs on every file system in use.
pub const SIZE_GRAIN: Bytes = Bytes::new(4096);

/// The local provider's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalConfig {
    /// Where volumes and their state live. Made if missing, but not the directory in which it lies.
    pub directory: PathBuf,
    /// The catalog, by name. `slow` (33 MiB/s) and `fast` (128 MiB/s) are there unless overridden by name.
    #[serde(deserialize_with = "over_the_defaults")]
    pub types: BTreeMap<String, LocalType>,
    /// From the answer to `create` until the volume is available.
    pub create_latency: Span,
    /// From the answer to `attach` until the volume is attached.
    pub attach_latency: Span,
    /// From the answer to `detach` until the volume is available again.
    pub detach_latency: Span,
    /// From the answer to `delete` until the volume is no longer listed. Its space is free at once.
    pub delete_latency: Span,
    /// How many bytes may be rented together; absent: as many as the disk holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<Bytes>,
    /// How many volumes may be rented together; absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_volumes: Option<u32>,
    /// How many volumes may be attached together; absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach_limit: Option<u32>,
    /// Faults on demand, for demonstrations and tests; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultRates>,
}

/// A type of local volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalType {
    /// What its users throttle it to: a file itself has no limit.
    pub bandwidth: Bandwidth,
    /// What its users throttle it to; absent: no limit.
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

impl LocalType {
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
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("/var/lib/surgetank/volumes"),
            types: default_types(),
            create_latency: Span::default(),
            attach_latency: Span::default(),
            detach_latency: Span::default(),
            delete_latency: Span::default(),
            quota_bytes: None,
            quota_volumes: None,
            attach_limit: None,
            faults: None,
        }
    }
}

impl LocalConfig {
    /// The default configuration over this directory.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..Self::default() }
    }

    /// Looks a type up.
    ///
    /// # Errors
    /// `Invalid`, naming the nearest known type.
    pub fn volume_type(&self, name: &str) -> Result<&LocalType, ProviderError> {
        self.types.get(name).ok_or_else(|| {
            let nearest = self.types.keys().min_by_key(|known| edit_distance(known, name));
            ProviderError::Invalid(match nearest {
                Some(nearest) => format!(
                    "the local provider has no volume type {name:?}: did you mean {nearest:?}? (Others are added under \
                     [provider.local.types])"
                ),
                None => format!(
                    "the local provider has no volume type {name:?}: its catalog is empty, add one under \
                     [provider.local.types]"
                ),
            })
        })
    }

    /// Checks that a volume of this type may have this size.
    pub(super) fn check_size(&self, name: &str, size: Bytes) -> Result<&LocalType, ProviderError> {
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

fn default_types() -> BTreeMap<String, LocalType> {
    BTreeMap::from([
        ("slow".to_owned(), LocalType::with_bandwidth(Bandwidth::from_mib_s(33))),
        ("fast".to_owned(), LocalType::with_bandwidth(Bandwidth::from_mib_s(128))),
    ])
}

fn over_the_defaults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, LocalType>, D::Error> {
    let mut types = default_types();
    types.extend(BTreeMap::<String, LocalType>::deserialize(deserializer)?);
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
    fn section_of_a_file() {
        let config: LocalConfig = toml::from_str(
            r#"
            directory = "/tmp/x"
            attach_latency = "2 s"
            quota_bytes = "10 GiB"
            [types.fast]
            bandwidth = "200 MiB/s"
            iops = "3000 IOPS"
            [types.sparse]
            bandwidth = "1 GiB/s"
            preallocate = false
            [faults]
            seed = 7
            fail_after = 0.25
            "#,
        )
        .unwrap();
        assert_eq!(config.types.keys().map(String::as_str).collect::<Vec<_>>(), ["fast", "slow", "sparse"]);
        assert_eq!(config.types["fast"].bandwidth, Bandwidth::from_mib_s(200));
        assert!(config.types["fast"].preallocate && !config.types["sparse"].preallocate);
        assert_eq!(config.quota_bytes, Some(Bytes::from_gib(10)));
        assert_eq!(toml::from_str::<LocalConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert!(toml::from_str::<LocalConfig>("create_latency = 3").unwrap_err().to_string().contains("has no unit"));
        assert!(toml::from_str::<LocalConfig>("colour = 3").is_err());
        assert_eq!(toml::from_str::<LocalConfig>("").unwrap(), LocalConfig::default());
    }

    #[test]
    fn unknown_type_names_the_nearest() {
        let config = LocalConfig::default();
        let error = config.volume_type("fats").unwrap_err().to_string();
        assert!(error.contains("\"fast\"") && !error.contains("\"slow\""), "{error}");
    }
}
