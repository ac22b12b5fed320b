//! What a local provider rents out and how it behaves: the daemon's `[provider.local]` section.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::units::Span;

use crate::clock::whole_ms;
use crate::faulty::FaultRates;
use crate::files::Settings;
use crate::files::catalog::{self, Catalog, FileType};

/// The local provider's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalConfig {
    /// Where volumes and their state live. Made if missing, but not the directory in which it lies.
    pub directory: PathBuf,
    /// The catalog, by name. `slow` (33 MiB/s) and `fast` (128 MiB/s) are there unless overridden by name.
    #[serde(deserialize_with = "catalog::over_the_defaults")]
    pub types: BTreeMap<String, FileType>,
    /// From the answer to `create` until the volume is available.
    pub create_latency: Span,
    /// From the answer to `attach` until the volume is attached.
    pub attach_latency: Span,
    /// From the answer to `detach` until the volume is available again.
    pub detach_latency: Span,
    /// From the answer to `delete` until the volume is no longer listed. Its space is free at once.
    pub delete_latency: Span,
    /// Whether volumes can grow in place; else it refuses that, as some clouds do.
    pub grows: bool,
    /// From the answer to `grow` until the volume is larger.
    pub grow_latency: Span,
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

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("/var/lib/surgetank/volumes"),
            types: catalog::default_types(),
            create_latency: Span::default(),
            attach_latency: Span::default(),
            detach_latency: Span::default(),
            delete_latency: Span::default(),
            grows: true,
            grow_latency: Span::default(),
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

    /// What all providers of files are made of.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            directory: self.directory.clone(),
            catalog: Catalog { provider: "local", types: self.types.clone() },
            create_latency_ms: whole_ms(self.create_latency.0),
            delete_latency_ms: whole_ms(self.delete_latency.0),
            quota_bytes: self.quota_bytes,
            quota_volumes: self.quota_volumes,
            attach_limit: self.attach_limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Bandwidth;

    use super::*;

    #[test]
    fn what_can_never_be_rented_is_told_without_asking() {
        use crate::ProviderConfig;
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| LocalConfig::in_directory(directory.path().join(path));
        let mut config = at("volumes");
        assert_eq!((config.would_open(), config.has_no_room_for(Bytes::from_mib(1))), (Ok(()), None));
        let why = config.has_no_room_for(Bytes::from_gib(1 << 30)).unwrap();
        assert!(why.starts_with("the file system of ") && why.ends_with(" MiB all in all"), "{why}");
        config.quota_bytes = Some(Bytes::from_mib(8));
        assert_eq!(config.has_no_room_for(Bytes::from_mib(8)), None);
        assert_eq!(config.has_no_room_for(Bytes::from_mib(9)).unwrap(), "quota_bytes of [provider.local] is 8 MiB");
        assert_eq!(config.rents_nothing(), None);
        let none = LocalConfig { quota_volumes: Some(0), ..config.clone() };
        assert_eq!(none.rents_nothing().unwrap(), "quota_volumes of [provider.local] is 0");
        let none = LocalConfig { quota_volumes: Some(1), attach_limit: Some(0), ..config };
        assert_eq!(none.rents_nothing().unwrap(), "attach_limit of [provider.local] is 0");
        assert!(at("missing/volumes").would_open().unwrap_err().to_string().contains("mount the disk that it is on"));
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert!(at("file").would_open().unwrap_err().to_string().contains("is no directory"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was made");
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
}
