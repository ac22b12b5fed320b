//! Which cloud a daemon rents from: its `[provider.openstack]` section.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::units::{Span, TIB};

use super::credentials::Source;
use super::{OpenStackProvider, is_id};
use crate::cloud::http::check_timeout;
use crate::cloud::{command, metadata, rates};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Account, Provider, ProviderError};

/// The smallest volume of Cinder, and the largest that we ask for; the types' own limits only the cloud knows.
const SIZES: (Bytes, Bytes) = (Bytes::from_gib(1), Bytes::new(16 * TIB));
/// Where OpenStack's own clients look for all users of a machine.
const CLOUDS_FILE: &str = "/etc/openstack/clouds.yaml";

/// Where the place is kept in the daemon's directory, if `place_file` names no other.
const PLACE_FILE: &str = "openstack-place";

/// The configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenStackConfig {
    /// Which cloud of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud: Option<String>,
    /// A `clouds.yaml`, which only its owner may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clouds_file: Option<PathBuf>,
    /// A program and its arguments, which print the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_command: Option<Vec<String>>,
    /// The server that this machine is; absent: the metadata service tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The metadata service, on this machine's link.
    pub metadata_url: String,
    /// Where volumes are made; absent: where the cloud makes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// Who vouches for the cloud under TLS: a file of certificates in PEM. Absent: whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Keeps to which project, Cinder and Nova the first login has led, also across restarts. Absent: `openstack-place` in
    /// the daemon's state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place_file: Option<PathBuf>,
    /// Sends secrets to other machines without TLS, over a network that is private.
    pub allow_plain: bool,
    /// Grows volumes in place: where a driver fails at that, only the cloud's operator gets the volume out of the state that follows.
    pub grow_in_place: bool,
    /// How long an answer may take.
    pub timeout: Span,
    /// How many calls that read the daemon makes in a second.
    pub reads_per_s: u32,
    /// How many that change something.
    pub writes_per_s: u32,
}

impl Default for OpenStackConfig {
    fn default() -> Self {
        Self {
            cloud: None,
            clouds_file: None,
            credential_command: None,
            server: None,
            metadata_url: "http://169.254.169.254".to_owned(),
            availability_zone: None,
            ca_file: None,
            place_file: None,
            allow_plain: false,
            grow_in_place: false,
            // Nova answers an attach when the server's host has: its own limit for that is 60 s.
            timeout: Span(Duration::from_secs(60)),
            reads_per_s: 5,
            writes_per_s: 1,
        }
    }
}

impl OpenStackConfig {
    /// Where the credentials are: what is named, else the variables if there are any, else the file of the machine.
    pub(super) fn source(&self) -> Source {
        let Self { credential_command, clouds_file, cloud, .. } = self;
        match (credential_command, clouds_file, cloud) {
            (Some(command), _, _) => Source::Command(command.clone()),
            (None, None, None) if std::env::var_os("OS_AUTH_URL").is_some() => Source::Environment,
            (None, path, cloud) => {
                Source::File { path: path.clone().unwrap_or_else(|| PathBuf::from(CLOUDS_FILE)), cloud: cloud.clone() }
            }
        }
    }
}

impl ProviderConfig for OpenStackConfig {
    fn check(&self) -> Result<(), String> {
        metadata::check(&self.metadata_url)?;
        command::check(self.credential_command.as_ref())?;
        if let Some(server) = self.server.as_deref().filter(|server| !is_id(server)) {
            return Err(format!(
                "server is {server:?}: write the id of this machine, as `openstack server list` shows it"
            ));
        }
        if self.credential_command.is_some() && (self.clouds_file.is_some() || self.cloud.is_some()) {
            return Err("credential_command, clouds_file and cloud all say where the credentials are: take the command out, or the others".to_owned());
        }
        rates::check("the cloud", self.reads_per_s, self.writes_per_s)?;
        check_timeout(self.timeout.0)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn type_limits(&self, _: &str) -> Result<TypeLimits, ProviderError> {
        Ok(TypeLimits { sizes: SIZES, bandwidth: None, iops: None, throttle: false })
    }

    /// Opening it asks nobody.
    fn would_open(&self) -> Result<(), ProviderError> {
        command::would_start(self.credential_command.as_ref())?;
        self.open(None).map(drop)
    }

    fn open(&self, state: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        let mut config = self.clone();
        config.place_file = config.place_file.or_else(|| state.map(|state| state.join(PLACE_FILE)));
        Ok(Arc::new(OpenStackProvider::open(config)?))
    }

    fn open_account(&self) -> Result<Option<Arc<dyn Account>>, ProviderError> {
        // What is rented is not remembered here, so neither is the place.
        Ok(Some(Arc::new(OpenStackProvider::open(OpenStackConfig { place_file: None, ..self.clone() })?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_of_a_file() {
        let config: OpenStackConfig = toml::from_str("cloud = \"site\"").unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.source(), Source::File { path: CLOUDS_FILE.into(), cloud: Some("site".to_owned()) });
        let with = |text: &str| toml::from_str::<OpenStackConfig>(text).unwrap();
        assert_eq!(with("credential_command = [\"/x\"]").source(), Source::Command(vec!["/x".to_owned()]));
        for (text, why) in [
            ("server = \"web-1\"", "openstack server list"),
            ("metadata_url = \"http://metadata.example\"", "on this machine's link"),
            ("credential_command = [\"/x\"]\ncloud = \"site\"", "take the command out"),
            ("reads_per_s = 0", "reads_per_s is 0"),
            ("writes_per_s = 0", "writes_per_s is 0"),
            ("timeout = \"10 ms\"", "less than 1 s"),
        ] {
            let error = with(text).check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn credentials_are_looked_at_before_a_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = OpenStackConfig { clouds_file: Some(file.path().to_owned()), ..OpenStackConfig::default() };
        let with = |url: &str, config: &OpenStackConfig| {
            let auth = format!("{{auth_url: '{url}', application_credential_id: i, application_credential_secret: s}}");
            std::fs::write(file.path(), format!("clouds: {{c: {{auth: {auth}}}}}")).unwrap();
            config.would_open().map_err(|error| error.to_string())
        };
        assert_eq!(with("https://keystone.example/v3", &config), Ok(()));
        assert!(with("http://keystone.example/v3", &config).unwrap_err().contains("allow_plain = true"));
        assert_eq!(with("http://keystone.example/v3", &OpenStackConfig { allow_plain: true, ..config }), Ok(()));
    }
}
