//! What the QEMU provider rents out, and to which guest: the `[provider.qemu]` section of a provisioning service.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::units::Span;

use crate::files::Settings;
use crate::files::catalog::{self, Catalog, FileType};

/// The configuration of the QEMU provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QemuConfig {
    /// The socket of QEMU's machine protocol (`-qmp unix:PATH,server=on,wait=off`), for us alone: QEMU talks to one
    /// client of a socket at a time.
    pub qmp: PathBuf,
    /// Where volumes and their state live. Made if missing, but not the directory in which it lies.
    #[serde(default = "default_directory")]
    pub directory: PathBuf,
    /// The catalog, by name. `slow` (33 MiB/s) and `fast` (128 MiB/s) are there unless overridden by name. QEMU holds
    /// every volume to its type's bandwidth and IOPS.
    #[serde(default = "catalog::default_types", deserialize_with = "catalog::over_the_defaults")]
    pub types: BTreeMap<String, FileType>,
    /// The ids of the guest's PCIe root ports to plug volumes into; empty: all that are free.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Whether QEMU opens images with `O_DIRECT`, beside the host's page cache.
    #[serde(default = "yes")]
    pub direct: bool,
    /// How many bytes may be rented together; absent: as many as the disk holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<Bytes>,
    /// How many volumes may be rented together; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_volumes: Option<u32>,
    /// How many volumes may be attached together; absent: as many as there are free ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_limit: Option<u32>,
    /// How long QEMU may take for one answer.
    #[serde(default = "default_patience")]
    pub patience: Span,
}

fn default_directory() -> PathBuf {
    PathBuf::from("/var/lib/surgetank/volumes")
}

const fn yes() -> bool {
    true
}

const fn default_patience() -> Span {
    Span(Duration::from_secs(5))
}

impl QemuConfig {
    /// The default configuration over this socket and directory.
    #[must_use]
    pub fn new(qmp: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        Self {
            qmp: qmp.into(),
            directory: directory.into(),
            types: catalog::default_types(),
            ports: Vec::new(),
            direct: yes(),
            quota_bytes: None,
            quota_volumes: None,
            attach_limit: None,
            patience: default_patience(),
        }
    }

    /// What all providers of files are made of.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            directory: self.directory.clone(),
            catalog: Catalog { provider: "qemu", types: self.types.clone() },
            create_latency_ms: 0,
            delete_latency_ms: 0,
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
    fn section_of_a_file() {
        let config: QemuConfig = toml::from_str(
            r#"
            qmp = "/run/vm/qmp.sock"
            ports = ["rp0"]
            direct = false
            patience = "1 s"
            [types.fast]
            bandwidth = "200 MiB/s"
            iops = "3000 IOPS"
            "#,
        )
        .unwrap();
        assert_eq!(config.types["fast"].bandwidth, Bandwidth::from_mib_s(200));
        assert_eq!(config.types["slow"].bandwidth, Bandwidth::from_mib_s(33));
        assert_eq!(toml::from_str::<QemuConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        let minimal: QemuConfig = toml::from_str("qmp = \"/q\"").unwrap();
        assert_eq!(minimal, QemuConfig::new("/q", "/var/lib/surgetank/volumes"));
        assert!(toml::from_str::<QemuConfig>("").unwrap_err().to_string().contains("qmp"));
        assert!(toml::from_str::<QemuConfig>("qmp = \"/q\"\ncolour = 1").is_err());
    }
}
