//! Which provisioning service a daemon rents from: its `[provider.host]` section.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;
use surgetank_model::units::{Span, TIB};

use super::HostProvider;
use crate::table::{ProviderConfig, TypeLimits};
use crate::{Provider, ProviderError};

/// The smallest and the largest volume of a type that only the service knows.
const SIZES: (Bytes, Bytes) = (Bytes::from_mib(1), Bytes::new(16 * TIB));

/// The client's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Where the service listens: `https://HOST:PORT`, or `http://` on this machine.
    pub url: String,
    /// The file with the service's token, which only its owner may read.
    pub token_file: PathBuf,
    /// Who vouches for the service under TLS: a file of certificates in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Sends the token to another machine without TLS, over a link that is private.
    #[serde(default)]
    pub allow_plain: bool,
    /// Beneath which directory of this machine the volumes lie, of a service that rents out files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<PathBuf>,
    /// How long an answer may take.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
}

const fn default_timeout() -> Span {
    Span(Duration::from_secs(15))
}

impl HostConfig {
    /// A service at this URL, whose volumes are disks.
    #[must_use]
    pub fn new(url: impl Into<String>, token_file: impl Into<PathBuf>) -> Self {
        let (url, token_file) = (url.into(), token_file.into());
        Self { url, token_file, ca_file: None, allow_plain: false, files: None, timeout: default_timeout() }
    }
}

impl ProviderConfig for HostConfig {
    fn check(&self) -> Result<(), String> {
        let url = &self.url;
        let wrong = |why: &str| {
            Err(format!(
                "the url {url:?} {why}: write where the provisioning service listens, such as \"https://10.0.2.2:7420\""
            ))
        };
        let uri: ureq::http::Uri = match url.parse() {
            Ok(uri) => uri,
            Err(error) => return wrong(&format!("does not do ({error})")),
        };
        let more = uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some();
        let plain = match uri.scheme_str() {
            Some("http") => true,
            Some("https") => false,
            _ => return wrong("does not begin with https:// or http://"),
        };
        if more || uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
            return wrong("is more than a host and a port");
        }
        if plain && !self.allow_plain && !uri.host().is_some_and(is_loopback) {
            return Err(format!(
                "the url {url:?} sends the token over a wire as it is: give the service a certificate and write https:// and \
                 a ca_file, or allow_plain = true if nobody else is on that wire"
            ));
        }
        match &self.ca_file {
            None if !plain => Err(format!(
                "the url {url:?} asks for TLS, and who vouches for the service is not said: add ca_file = \"/the/authority.pem\""
            )),
            Some(_) if plain => Err(format!(
                "the url {url:?} asks for no TLS, for which there is a ca_file: write https://, or take ca_file out"
            )),
            _ => match &self.files {
                Some(files) if !files.is_absolute() => Err(format!(
                    "files is {files:?}: write the whole path of the directory where the service's volumes lie"
                )),
                _ => Ok(()),
            },
        }
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn type_limits(&self, _: &str) -> Result<TypeLimits, ProviderError> {
        Ok(TypeLimits { sizes: SIZES, bandwidth: None, iops: None, throttle: false })
    }

    /// Opening it asks nobody.
    fn would_open(&self) -> Result<(), ProviderError> {
        self.open(None).map(drop)
    }

    fn open(&self, _: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        Ok(Arc::new(HostProvider::open(self.clone())?))
    }
}

/// Whether a URL's host is this machine, whatever answers for names.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_of_a_file() {
        let config: HostConfig = toml::from_str("url = \"http://127.0.0.1:7420\"\ntoken_file = \"/t\"").unwrap();
        assert_eq!(config, HostConfig::new("http://127.0.0.1:7420", "/t"));
        assert_eq!(config.check(), Ok(()));
        for (url, why) in [
            ("10.0.2.2:7420", "does not begin with http"),
            ("ftp://10.0.2.2:7420", "does not begin with http"),
            ("http://user:secret@127.0.0.1", "is more than"),
            ("http://127.0.0.1/path", "is more than"),
            ("http://127.0.0.1/?q", "is more than"),
            ("http://a b", "does not do"),
            ("", "does not do"),
        ] {
            let error = HostConfig { url: url.to_owned(), ..config.clone() }.check().unwrap_err();
            assert!(error.contains(why) && error.contains("https://10.0.2.2:7420"), "{error}");
        }
        let error = HostConfig { files: Some("volumes".into()), ..config.clone() }.check().unwrap_err();
        assert!(error.contains("write the whole path"), "{error}");
        assert_eq!(HostConfig { files: Some("/volumes".into()), ..config }.check(), Ok(()));
    }

    #[test]
    fn the_token_leaves_the_machine_under_tls_or_by_name_only() {
        let with = |url: &str, ca_file: Option<&str>, allow_plain| {
            HostConfig { ca_file: ca_file.map(Into::into), allow_plain, ..HostConfig::new(url, "/t") }.check()
        };
        for url in ["http://127.0.0.1:1", "http://127.8.9.1", "http://[::1]:7420", "http://localhost:7420"] {
            assert_eq!(with(url, None, false), Ok(()));
        }
        for url in [
            "http://10.0.2.2:7420",
            "http://8.8.8.8:1",
            "http://host.example",
            "http://[fd00::1]:1",
            "http://localhost.example",
        ] {
            let error = with(url, None, false).unwrap_err();
            assert!(error.contains("https://") && error.contains("allow_plain = true"), "{error}");
            assert_eq!(with(url, None, true), Ok(()));
        }
        assert!(with("https://10.0.2.2:1", None, true).unwrap_err().contains("add ca_file"));
        assert!(with("http://127.0.0.1:1", Some("/ca"), false).unwrap_err().contains("write https://"));
        assert_eq!(with("https://10.0.2.2:1", Some("/ca"), false), Ok(()));
    }
}
