//! Which subscription and resource group a daemon rents from: its `[provider.azure]` section.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::units::Span;
use surgetank_model::volume_type::{BilledTime, Performance, Provision};
use surgetank_model::{Catalog, VolumeType};

use super::AzureProvider;
use super::login::{is_id, is_part};
use crate::cloud::http::check_timeout;
use crate::cloud::{check_endpoint, check_url, command, metadata, rates};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Account, Provider, ProviderError};

/// The provider's name in the catalog of volume types.
pub(super) const NAME: &str = "azure";
/// The types that are rented, and what Azure calls them. The others are slower than what they would serve.
const TYPES: &[(&str, &str)] = &[
    ("premium-ssd-v2", "PremiumV2_LRS"),
    ("premium-ssd", "Premium_LRS"),
    ("ultra", "UltraSSD_LRS"),
    ("standard-ssd", "StandardSSD_LRS"),
];
/// Where the place is kept in the daemon's directory, if `place_file` names no other.
const PLACE_FILE: &str = "azure-place";
/// What Azure sells of bandwidth: a million bytes a second.
const MB: u64 = 1_000_000;

/// The configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AzureConfig {
    /// The subscription; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// The resource group of this machine, in which its disks are as well; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// The name of the virtual machine that this machine is; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Where Resource Manager is, if not where Azure has it: a private endpoint, for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Which of several managed identities of this machine counts; with `client_secret_file`, the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The tenant of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// A secret of the application: a file of one line, which only its owner may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_file: Option<PathBuf>,
    /// Where the application logs in.
    pub login_url: String,
    /// A program and its arguments, which print an access token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_command: Option<Vec<String>>,
    /// The metadata service, on this machine's link.
    pub metadata_url: String,
    /// What is bought with disks, by type.
    pub types: BTreeMap<String, Provision>,
    /// Grows disks in place. Not every size of disk can while it is attached.
    pub grow_in_place: bool,
    /// Who vouches for Azure under TLS: a file of certificates in PEM. Absent: whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Keeps the subscription and the resource group of the first use, also across restarts. Absent: `azure-place` in the daemon's
    /// state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place_file: Option<PathBuf>,
    /// How long an answer may take.
    pub timeout: Span,
    /// How many calls that read the daemon makes in a second.
    pub reads_per_s: u32,
    /// How many that change something.
    pub writes_per_s: u32,
}

impl Default for AzureConfig {
    fn default() -> Self {
        Self {
            subscription: None,
            resource_group: None,
            instance: None,
            endpoint: None,
            client_id: None,
            tenant: None,
            client_secret_file: None,
            login_url: "https://login.microsoftonline.com".to_owned(),
            credential_command: None,
            metadata_url: "http://169.254.169.254".to_owned(),
            types: BTreeMap::new(),
            grow_in_place: false,
            ca_file: None,
            place_file: None,
            timeout: Span(Duration::from_secs(60)),
            reads_per_s: 5,
            writes_per_s: 1,
        }
    }
}

impl AzureConfig {
    /// What is bought with a disk of this type.
    ///
    /// # Errors
    /// `Invalid`: there is no such type, or performance must be bought.
    pub(super) fn bought(&self, volume_type: &str) -> Result<Provision, ProviderError> {
        let known = known(volume_type).map_err(ProviderError::Invalid)?;
        let bought = self.types.get(volume_type).copied().unwrap_or_default();
        match &known.performance {
            Performance::Provisioned { iops, .. }
                if iops.included.is_none() && (bought.iops.is_none() || bought.bandwidth.is_none()) =>
            {
                Err(ProviderError::Invalid(format!(
                    "Azure sells {volume_type} with IOPS and bandwidth alone: write how much, as in [provider.azure.types.{volume_type}] iops = \"10000 IOPS\" and bandwidth = \"500 MB/s\""
                )))
            }
            _ => Ok(bought),
        }
    }

    /// Whether a disk of this type and size may have what is bought with it.
    ///
    /// # Errors
    /// `Invalid`, with a sentence.
    pub(super) fn check_disk(&self, volume_type: &str, size: surgetank_model::Bytes) -> Result<(), ProviderError> {
        let bought = self.bought(volume_type)?;
        known(volume_type).and_then(|known| known.check(size, &bought)).map_err(ProviderError::Invalid)
    }

    fn check_types(&self) -> Result<(), String> {
        for (name, bought) in &self.types {
            let known = known(name)?;
            // Whatever a size may have, the largest may.
            known.check(known.size.max, bought)?;
            if bought.bandwidth.is_some_and(|bandwidth| bandwidth.get() % MB != 0) {
                return Err(format!(
                    "Azure sells the bandwidth of {name} in whole MB/s: write one, such as \"500 MB/s\""
                ));
            }
        }
        Ok(())
    }

    fn check_login(&self) -> Result<(), String> {
        check_url("the login of Azure", &self.login_url, false)?;
        for (key, written) in [("tenant", &self.tenant), ("client_id", &self.client_id)] {
            if let Some(written) = written.as_deref().filter(|written| !is_id(written)) {
                return Err(format!(
                    "{key} is {written:?}: write its id, such as \"01234567-89ab-cdef-0123-456789abcdef\""
                ));
            }
        }
        let is_application = self.client_secret_file.is_some();
        if is_application && (self.tenant.is_none() || self.client_id.is_none()) {
            return Err(
                "client_secret_file is the secret of an application: write its client_id and its tenant as well"
                    .to_owned(),
            );
        }
        if let (Some(tenant), false) = (&self.tenant, is_application) {
            return Err(format!("tenant is {tenant:?}, of no application: write client_secret_file as well"));
        }
        if self.credential_command.is_some() && (is_application || self.client_id.is_some()) {
            return Err("credential_command and client_id both say who the daemon is: take one of them out".to_owned());
        }
        Ok(())
    }
}

/// A type that is rented.
///
/// # Errors
/// One sentence: there is no such type.
fn known(name: &str) -> Result<&'static VolumeType, String> {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    let names = || TYPES.iter().map(|(name, _)| *name);
    CATALOG.find(NAME, name).filter(|_| names().any(|there| there == name)).ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        format!("no disks of the type {name:?} are rented of Azure: write one of {}", names.join(", "))
    })
}

/// What Azure calls a type.
#[must_use]
pub(super) fn sku(volume_type: &str) -> Option<&'static str> {
    TYPES.iter().find(|(name, _)| *name == volume_type).map(|(_, sku)| *sku)
}

/// What we call it; what we do not rent, as Azure does.
#[must_use]
pub(super) fn type_of(sku: &str) -> &str {
    TYPES.iter().find(|(_, there)| there.eq_ignore_ascii_case(sku)).map_or(sku, |(name, _)| name)
}

impl ProviderConfig for AzureConfig {
    fn check(&self) -> Result<(), String> {
        metadata::check(&self.metadata_url)?;
        command::check(self.credential_command.as_ref())?;
        for (key, written, example) in [
            (
                "subscription",
                self.subscription.as_deref().filter(|id| !is_id(id)),
                "01234567-89ab-cdef-0123-456789abcdef",
            ),
            ("resource_group", self.resource_group.as_deref().filter(|name| !is_part(name)), "my-group"),
            ("instance", self.instance.as_deref().filter(|name| !is_part(name)), "my-machine"),
        ] {
            if let Some(written) = written {
                return Err(format!("{key} is {written:?}: write it as {example:?}"));
            }
        }
        if let Some(endpoint) = &self.endpoint {
            check_endpoint("Azure", endpoint, "as Azure has none")?;
        }
        rates::check("Azure", self.reads_per_s, self.writes_per_s)?;
        check_timeout(self.timeout.0)?;
        self.check_login()?;
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

    fn open(&self, state: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        let mut config = self.clone();
        config.place_file = config.place_file.or_else(|| state.map(|state| state.join(PLACE_FILE)));
        Ok(Arc::new(AzureProvider::open(config)?))
    }

    fn open_account(&self) -> Result<Option<Arc<dyn Account>>, ProviderError> {
        // What is rented is not remembered here, so neither is the place.
        Ok(Some(Arc::new(AzureProvider::open(AzureConfig { place_file: None, ..self.clone() })?)))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::{Bandwidth, Bytes, Iops};

    use super::*;

    const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";

    fn with(text: &str) -> AzureConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn section_of_a_file() {
        let whole = with(&format!(
            "subscription = \"{ID}\"\nresource_group = \"My_Group-(1)\"\ninstance = \"web-1\"\ntenant = \"{ID}\"\nclient_id = \"{ID}\"\n\
             client_secret_file = \"/s\"\n[types.premium-ssd-v2]\niops = \"20000 IOPS\"\nbandwidth = \"500 MB/s\""
        ));
        assert_eq!(whole.check(), Ok(()));
        let limits = whole.type_limits("premium-ssd-v2").unwrap();
        assert_eq!((limits.bandwidth, limits.iops), (Some(Bandwidth::new(500 * MB)), Some(Iops::new(20000))));
        assert_eq!(limits.sizes.0, Bytes::from_gib(40), "500 IOPS a GiB");
        let limits = with("").type_limits("premium-ssd-v2").unwrap();
        assert_eq!((limits.bandwidth, limits.iops), (Some(Bandwidth::new(125 * MB)), Some(Iops::new(3000))));
        assert_eq!(with("").type_limits("premium-ssd").unwrap().bandwidth, None, "it follows the size");
        assert_eq!(with("").billed_time("ultra").least(), Duration::from_secs(3600));
        assert_eq!(with(&format!("client_id = \"{ID}\"")).check(), Ok(()), "one of several identities");
        for (text, why) in [
            ("subscription = \"mine\"", "01234567-89ab"),
            ("resource_group = \"a/b\"", "my-group"),
            ("resource_group = \"a.\"", "my-group"),
            ("instance = \"\"", "my-machine"),
            ("endpoint = \"http://arm.example\"", "https://"),
            ("endpoint = \"https://arm.example/path\"", "without a path"),
            ("login_url = \"http://login.example\"", "https://"),
            ("metadata_url = \"http://metadata.example\"", "on this machine's link"),
            ("client_id = \"me\"", "write its id"),
            ("client_secret_file = \"/s\"", "its client_id and its tenant"),
            ("tenant = \"01234567-89ab-cdef-0123-456789abcdef\"", "client_secret_file as well"),
            (
                "credential_command = [\"/x\"]\nclient_id = \"01234567-89ab-cdef-0123-456789abcdef\"",
                "take one of them out",
            ),
            ("reads_per_s = 0", "reads_per_s is 0"),
            ("writes_per_s = 0", "writes_per_s is 0"),
            ("timeout = \"10 ms\"", "less than 1 s"),
            ("[types.standard-hdd]", "write one of premium-ssd-v2"),
            ("[types.premium-ssd]\niops = \"3000 IOPS\"", "leave them out"),
            ("[types.premium-ssd-v2]\nbandwidth = \"2000 MB/s\"", "with 3000 IOPS cannot have"),
            ("[types.premium-ssd-v2]\nbandwidth = \"128 MiB/s\"", "in whole MB/s"),
        ] {
            let error = with(text).check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for (volume_type, why) in [("fast", "write one of premium-ssd-v2"), ("ultra", "IOPS and bandwidth alone")] {
            let error = with("").type_limits(volume_type).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let ultra = with("[types.ultra]\niops = \"10000 IOPS\"\nbandwidth = \"500 MB/s\"");
        assert!(ultra.check_disk("ultra", Bytes::from_gib(16)).is_ok());
        assert!(ultra.check_disk("ultra", Bytes::from_gib(4)).is_err(), "1,000 IOPS a GiB");
    }

    #[test]
    fn types_have_the_names_of_azure() {
        for (name, written) in TYPES {
            assert_eq!((sku(name), type_of(written)), (Some(*written), *name));
            assert!(known(name).is_ok(), "{name}");
        }
        assert_eq!((sku("fast"), type_of("Standard_LRS")), (None, "Standard_LRS"));
    }
}
