//! Which account and region a daemon rents from: its `[provider.aws]` section.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::units::{MIB, Span};
use surgetank_model::volume_type::{BilledTime, Performance, Provision};
use surgetank_model::{Catalog, VolumeType};

use super::credentials::Source;
use super::{AwsProvider, is_instance, is_region};
use crate::cloud::http::check_timeout;
use crate::cloud::{check_endpoint, command, metadata, rates};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Account, Provider, ProviderError};

/// The provider's name in the catalog of volume types.
pub(super) const NAME: &str = "aws";
/// The configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AwsConfig {
    /// The region; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Where EC2 is, if not where the region has it: an endpoint of a VPC, for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The instance that this machine is; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// A program and its arguments, which print the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_command: Option<Vec<String>>,
    /// A credentials file of AWS's own clients, which only its owner may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Which of its profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The metadata service, on this machine's link.
    pub metadata_url: String,
    /// What is bought with volumes, by type.
    pub types: BTreeMap<String, Provision>,
    /// Whether volumes are encrypted; `false`: as the account's default says.
    pub encrypted: bool,
    /// Grows volumes in place, which needs more rights, and can be done a few times a day.
    pub grow_in_place: bool,
    /// Who vouches for EC2 under TLS: a file of certificates in PEM. Absent: whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// How long an answer may take.
    pub timeout: Span,
    /// How many calls that read the daemon makes in a second.
    pub reads_per_s: u32,
    /// How many that change something.
    pub writes_per_s: u32,
}

impl Default for AwsConfig {
    fn default() -> Self {
        Self {
            region: None,
            endpoint: None,
            instance: None,
            credential_command: None,
            credentials_file: None,
            profile: None,
            metadata_url: "http://169.254.169.254".to_owned(),
            types: BTreeMap::new(),
            encrypted: true,
            grow_in_place: false,
            ca_file: None,
            timeout: Span(Duration::from_secs(60)),
            reads_per_s: 5,
            writes_per_s: 1,
        }
    }
}

impl AwsConfig {
    /// Where the credentials are: what is named, else the variables if there are any, else the role of the instance.
    pub(super) fn source(&self) -> Source {
        match (&self.credential_command, &self.credentials_file) {
            (Some(command), _) => Source::Command(command.clone()),
            (None, Some(path)) => Source::File { path: path.clone(), profile: self.profile.clone() },
            (None, None) if is_set(std::env::var_os("AWS_ACCESS_KEY_ID")) => Source::Environment,
            (None, None) => Source::Role,
        }
    }

    /// What is bought with a volume of this type.
    ///
    /// # Errors
    /// `Invalid`: there is no such type, or IOPS must be bought.
    pub(super) fn bought(&self, volume_type: &str) -> Result<Provision, ProviderError> {
        let known = known(volume_type).map_err(ProviderError::Invalid)?;
        let bought = self.types.get(volume_type).copied().unwrap_or_default();
        match &known.performance {
            Performance::Provisioned { iops, .. } if iops.included.is_none() && bought.iops.is_none() => {
                Err(ProviderError::Invalid(format!(
                    "EC2 sells {volume_type} with IOPS alone: write how many, as in [provider.aws.types.{volume_type}] iops = \"10000 IOPS\""
                )))
            }
            _ => Ok(bought),
        }
    }

    fn check_types(&self) -> Result<(), String> {
        for (name, bought) in &self.types {
            let known = known(name)?;
            // Whatever a size may have, the largest may.
            known.check(known.size.max, bought)?;
            if bought.bandwidth.is_some_and(|bandwidth| bandwidth.get() % MIB != 0) {
                return Err(format!(
                    "EC2 sells the bandwidth of {name} in whole MiB/s: write one, such as \"500 MiB/s\""
                ));
            }
        }
        Ok(())
    }
}

/// Whether a variable says something: units and containers clear variables by empty ones.
fn is_set(variable: Option<OsString>) -> bool {
    variable.is_some_and(|value| !value.is_empty())
}

/// A type of EC2's.
///
/// # Errors
/// One sentence: there is no such type.
fn known(name: &str) -> Result<&'static VolumeType, String> {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    CATALOG.find(NAME, name).ok_or_else(|| {
        let types = CATALOG.iter().filter(|there| there.provider == NAME);
        let names: Vec<&str> = types.map(|there| &*there.name).collect();
        format!("EC2 has no volumes of type {name:?}: write one of {}", names.join(", "))
    })
}

impl ProviderConfig for AwsConfig {
    fn check(&self) -> Result<(), String> {
        metadata::check(&self.metadata_url)?;
        command::check(self.credential_command.as_ref())?;
        if let Some(region) = self.region.as_deref().filter(|region| !is_region(region)) {
            return Err(format!("region is {region:?}: write it as \"eu-north-1\""));
        }
        if let Some(endpoint) = &self.endpoint {
            check_endpoint("EC2", endpoint, "as EC2 has none")?;
        }
        if let Some(instance) = self.instance.as_deref().filter(|instance| !is_instance(instance)) {
            return Err(format!(
                "instance is {instance:?}: write the id of this machine, such as \"i-0123456789abcdef0\""
            ));
        }
        if self.credential_command.is_some() && self.credentials_file.is_some() {
            return Err(
                "credential_command and credentials_file both say where the credentials are: take one of them out"
                    .to_owned(),
            );
        }
        if let (Some(profile), None) = (&self.profile, &self.credentials_file) {
            return Err(format!("profile is {profile:?}, of no file: write credentials_file as well"));
        }
        rates::check("EC2", self.reads_per_s, self.writes_per_s)?;
        check_timeout(self.timeout.0)?;
        self.check_types()
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError> {
        let bought = self.bought(volume_type)?;
        let known = known(volume_type).map_err(ProviderError::Invalid)?;
        Ok(TypeLimits::bought(known, &bought))
    }

    fn billed_time(&self, volume_type: &str) -> BilledTime {
        known(volume_type).map_or_else(|_| BilledTime::default(), |known| known.billing.time())
    }

    /// Opening it asks nobody.
    fn would_open(&self) -> Result<(), ProviderError> {
        command::would_start(self.credential_command.as_ref())?;
        self.open(None).map(drop)
    }

    fn open(&self, _: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        Ok(Arc::new(AwsProvider::open(self.clone())?))
    }

    fn open_account(&self) -> Result<Option<Arc<dyn Account>>, ProviderError> {
        Ok(Some(Arc::new(AwsProvider::open(self.clone())?)))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::{Bandwidth, Bytes, Iops};

    use super::*;

    fn with(text: &str) -> AwsConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_variable_that_is_empty_is_not_set() {
        assert_eq!([None, Some(""), Some("AKID")].map(|value| is_set(value.map(OsString::from))), [false, false, true]);
    }

    #[test]
    fn section_of_a_file() {
        let config = with(
            "region = \"eu-north-1\"\ncredentials_file = \"/c\"\nprofile = \"burst\"\n[types.gp3]\niops = \"16000 IOPS\"\nbandwidth = \"1000 MiB/s\"",
        );
        assert_eq!(config.check(), Ok(()));
        let file = |profile: &str| Source::File { path: "/c".into(), profile: Some(profile.to_owned()) };
        assert_eq!(config.source(), file("burst"));
        assert_eq!(with("credential_command = [\"/x\"]").source(), Source::Command(vec!["/x".to_owned()]));
        let limits = config.type_limits("gp3").unwrap();
        assert_eq!((limits.bandwidth, limits.iops), (Some(Bandwidth::from_mib_s(1000)), Some(Iops::new(16000))));
        assert_eq!(limits.sizes, (Bytes::from_gib(32), Bytes::from_gib(64 << 10)), "500 IOPS a GiB");
        let limits = with("").type_limits("gp3").unwrap();
        assert_eq!((limits.bandwidth, limits.iops), (Some(Bandwidth::from_mib_s(125)), Some(Iops::new(3000))));
        assert_eq!(limits.sizes.0, Bytes::from_gib(1));
        assert_eq!(with("").type_limits("gp2").unwrap().bandwidth, None, "it follows the size");
        for (text, why) in [
            ("region = \"North\"", "eu-north-1"),
            ("endpoint = \"http://ec2.example\"", "https://"),
            ("endpoint = \"https://ec2.example/path\"", "without a path"),
            ("instance = \"web-1\"", "i-0123456789abcdef0"),
            ("metadata_url = \"http://metadata.example\"", "on this machine's link"),
            ("credential_command = [\"/x\"]\ncredentials_file = \"/c\"", "take one of them out"),
            ("profile = \"site\"", "write credentials_file as well"),
            ("reads_per_s = 0", "reads_per_s is 0"),
            ("writes_per_s = 0", "writes_per_s is 0"),
            ("timeout = \"10 ms\"", "less than 1 s"),
            ("[types.fast]", "write one of gp2, gp3"),
            ("[types.gp2]\niops = \"3000 IOPS\"", "leave them out"),
            ("[types.io2]\nbandwidth = \"500 MiB/s\"", "does not sell bandwidth"),
            ("[types.gp3]\nbandwidth = \"1000 MiB/s\"", "with 3000 IOPS cannot have"),
            ("[types.gp3]\nbandwidth = \"204900 KiB/s\"", "in whole MiB/s"),
        ] {
            let error = with(text).check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for (volume_type, why) in [("fast", "write one of gp2"), ("io1", "with IOPS alone")] {
            let error = with("").type_limits(volume_type).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
