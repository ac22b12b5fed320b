//! Which project and zone a daemon rents from: its `[provider.gce]` section.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bandwidth;
use surgetank_model::catalog::Catalog;
use surgetank_model::units::Span;
use surgetank_model::volume_type::{BilledTime, SizeLimits};

use super::GceProvider;
use super::disk::is_name;
use super::login::is_part;
use crate::cloud::http::check_timeout;
use crate::cloud::{check_endpoint, command, metadata, rates};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Account, Provider, ProviderError};

/// The provider's name in the catalog of volume types.
pub(super) const NAME: &str = "gcp";
/// What disks of a type move whatever their size, if nothing more is bought.
const BANDWIDTHS: &[(&str, Bandwidth)] = &[("hyperdisk-balanced", Bandwidth::from_mib_s(140))];
/// The types that are rented: of the others performance has to be bought, or is less than that of what they would serve.
const TYPES: &[&str] = &["pd-ssd", "pd-balanced", "hyperdisk-balanced"];
/// Where the place is kept in the daemon's directory, if `place_file` names no other.
const PLACE_FILE: &str = "gce-place";

/// The configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GceConfig {
    /// The project; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The zone of this machine; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The name of the instance that this machine is; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Where Compute Engine is, if not where Google has it: a private endpoint, for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// A program and its arguments, which print an access token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_command: Option<Vec<String>>,
    /// The metadata service, on this machine's link.
    pub metadata_url: String,
    /// Grows disks in place, which needs another right, and can be done once in 4 hours with a Hyperdisk.
    pub grow_in_place: bool,
    /// Who vouches for Compute Engine under TLS: a file of certificates in PEM. Absent: whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Keeps the project and the zone of the first use, also across restarts. Absent: `gce-place` in the daemon's state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place_file: Option<PathBuf>,
    /// How long an answer may take.
    pub timeout: Span,
    /// How many calls that read the daemon makes in a second.
    pub reads_per_s: u32,
    /// How many that change something.
    pub writes_per_s: u32,
}

impl Default for GceConfig {
    fn default() -> Self {
        Self {
            project: None,
            zone: None,
            instance: None,
            endpoint: None,
            credential_command: None,
            metadata_url: "http://169.254.169.254".to_owned(),
            grow_in_place: false,
            ca_file: None,
            place_file: None,
            timeout: Span(Duration::from_secs(60)),
            reads_per_s: 5,
            writes_per_s: 1,
        }
    }
}

/// The sizes of a type.
///
/// # Errors
/// `Invalid`: there is no such type.
pub(super) fn known(name: &str) -> Result<SizeLimits, ProviderError> {
    let catalog = Catalog::builtin();
    let known = catalog.find(NAME, name).filter(|_| TYPES.contains(&name));
    known.map(|known| known.size).ok_or_else(|| {
        ProviderError::Invalid(format!(
            "no disks of the type {name:?} are rented of Compute Engine: write one of {}",
            TYPES.join(", ")
        ))
    })
}

impl ProviderConfig for GceConfig {
    fn check(&self) -> Result<(), String> {
        metadata::check(&self.metadata_url)?;
        command::check(self.credential_command.as_ref())?;
        for (key, written, example) in [
            ("project", self.project.as_deref().filter(|name| !is_part(name)), "my-project"),
            ("zone", self.zone.as_deref().filter(|name| !is_name(name)), "europe-west1-b"),
            ("instance", self.instance.as_deref().filter(|name| !is_part(name)), "my-machine"),
        ] {
            if let Some(written) = written {
                return Err(format!("{key} is {written:?}: write its name, such as {example:?}"));
            }
        }
        if let Some(endpoint) = &self.endpoint {
            check_endpoint("Compute Engine", endpoint, "which is /compute/v1 always")?;
        }
        rates::check("the project's quota", self.reads_per_s, self.writes_per_s)?;
        check_timeout(self.timeout.0)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError> {
        let sizes = known(volume_type)?;
        let bandwidth = BANDWIDTHS.iter().find(|(name, _)| *name == volume_type).map(|(_, bandwidth)| *bandwidth);
        Ok(TypeLimits { sizes: (sizes.min, sizes.max), bandwidth, iops: None, throttle: false })
    }

    fn billed_time(&self, volume_type: &str) -> BilledTime {
        Catalog::builtin().find(NAME, volume_type).map_or_else(BilledTime::default, |known| known.billing.time())
    }

    /// Opening it asks nobody.
    fn would_open(&self) -> Result<(), ProviderError> {
        command::would_start(self.credential_command.as_ref())?;
        self.open(None).map(drop)
    }

    fn open(&self, state: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        let mut config = self.clone();
        config.place_file = config.place_file.or_else(|| state.map(|state| state.join(PLACE_FILE)));
        Ok(Arc::new(GceProvider::open(config)?))
    }

    fn open_account(&self) -> Result<Option<Arc<dyn Account>>, ProviderError> {
        // What is rented is not remembered here, so neither is the place.
        Ok(Some(Arc::new(GceProvider::open(GceConfig { place_file: None, ..self.clone() })?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_of_a_file() {
        let with = |text: &str| toml::from_str::<GceConfig>(text).unwrap();
        let whole = with("project = \"example.com:p-1\"\nzone = \"europe-west1-b\"\ninstance = \"web-1.example\"");
        assert_eq!(whole.check(), Ok(()));
        assert_eq!(with("").type_limits("hyperdisk-balanced").unwrap().bandwidth, Some(Bandwidth::from_mib_s(140)));
        assert_eq!(with("").type_limits("pd-ssd").unwrap().bandwidth, None, "it follows the size");
        for (text, why) in [
            ("project = \"../p\"", "my-project"),
            ("project = \"\"", "my-project"),
            ("zone = \"europe/west\"", "europe-west1-b"),
            ("instance = \"a b\"", "my-machine"),
            ("endpoint = \"http://compute.example\"", "https://"),
            ("endpoint = \"https://compute.example/compute/v1\"", "without a path"),
            ("metadata_url = \"http://metadata.example\"", "on this machine's link"),
            ("reads_per_s = 0", "reads_per_s is 0"),
            ("writes_per_s = 0", "writes_per_s is 0"),
            ("timeout = \"10 ms\"", "less than 1 s"),
        ] {
            let error = with(text).check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for volume_type in ["fast", "pd-extreme", "../pd-ssd"] {
            let error = with("").type_limits(volume_type).unwrap_err().to_string();
            assert!(error.contains("write one of pd-ssd, pd-balanced, hyperdisk-balanced"), "{error}");
        }
    }
}
