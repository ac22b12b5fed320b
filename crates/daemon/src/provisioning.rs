//! The configuration of a provisioning service: `surgetank provider --config FILE`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use surgetank_provider::service::is_private;
use surgetank_provider::table::Served;
use surgetank_provider::{Provider, ProviderConfig, ProviderError};
use toml::Spanned;

use crate::providers;
use crate::toml_error::{ConfigError, Source, read};

/// Where a service listens unless it is told otherwise. Nobody else is known for this port.
const LISTEN: &str = "127.0.0.1:7420";
/// Where its token is.
const TOKEN_FILE: &str = "/var/lib/surgetank/provider.token";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its token, made if it is missing.
    pub token_file: PathBuf,
    /// What it proves itself with; absent: it speaks without TLS.
    pub tls: Option<TlsFiles>,
    /// Who rents volumes out.
    pub provider: Arc<dyn ProviderConfig>,
}

/// The files of a service's certificate and of its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority that the clients know.
    pub certificate: PathBuf,
    /// Its key, which only its owner may read.
    pub key: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawService {
    listen: Option<Spanned<String>>,
    #[serde(default)]
    allow_public: bool,
    #[serde(default)]
    allow_plain: bool,
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
    token_file: Option<PathBuf>,
    provider: Served,
}

impl ServiceConfig {
    /// Opens the provider.
    ///
    /// # Errors
    /// As [`ProviderConfig::open`]; and `Invalid` if others could change what is in its directory.
    pub fn open(&self) -> Result<Arc<dyn Provider>, ProviderError> {
        providers::open(&*self.provider, None)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::check(&read(file)?)
    }

    fn check(source: &Source) -> Result<Self, ConfigError> {
        let raw: RawService = source.parse()?;
        let provider = match &*raw.provider.sections() {
            [only] => only.config.clone(),
            [first, second, ..] => {
                let (first, written) = (first.name, second.name);
                let remedy = format!("a service has one provider: take out [provider.{first}] or [provider.{written}]");
                return Err(source.at(Some(second.span.clone()), remedy));
            }
            [] => {
                let remedy =
                    "has no provider: add a section such as [provider.qemu] with qmp = \"/run/guest/qmp.sock\"";
                return Err(source.at(None, remedy));
            }
        };
        let span = raw.listen.as_ref().map(Spanned::span);
        let text = raw.listen.map_or_else(|| LISTEN.to_owned(), Spanned::into_inner);
        let listen: SocketAddr = text.parse().map_err(|_| {
            let message = format!("listen is \"{text}\": write an address and a port, such as \"{LISTEN}\"");
            source.at(span.clone(), message)
        })?;
        let tls = match (raw.certificate, raw.key) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate: certificate.into_inner(), key: key.into_inner() })
            }
            (None, None) => None,
            (Some(one), None) => {
                return Err(source.at(Some(one.span()), "a certificate proves nothing without its key: add key"));
            }
            (None, Some(one)) => {
                return Err(source.at(Some(one.span()), "a key is of no use without its certificate: add certificate"));
            }
        };
        if !raw.allow_public && !is_private(listen.ip()) {
            let message = format!(
                "listen is \"{text}\", which others than this machine and private links may reach: write a loopback or \
                 private address, or allow_public = true if a firewall or a tunnel of your own keeps others out"
            );
            return Err(source.at(span, message));
        }
        if tls.is_none() && !raw.allow_plain && !listen.ip().is_loopback() {
            let message = format!(
                "listen is \"{text}\", and the token would go over the wire as it is: add a certificate and its key, or \
                 allow_plain = true if nobody else is on that wire"
            );
            return Err(source.at(span, message));
        }
        let token_file = raw.token_file.unwrap_or_else(|| TOKEN_FILE.into());
        Ok(Self { listen, token_file, tls, provider })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_error::each_mistake_is_told;

    const FILE: &str = "listen = \"127.0.0.1:0\"\ntoken_file = \"/t\"\n[provider.qemu]\nqmp = \"/run/qmp\"\n";

    fn load(text: &str) -> Result<ServiceConfig, String> {
        let source = Source { file: "p.toml".into(), text: text.to_owned() };
        ServiceConfig::check(&source).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_file_is_read() {
        let config = load(FILE).unwrap();
        assert_eq!((config.listen, config.token_file), ("127.0.0.1:0".parse().unwrap(), "/t".into()));
        assert!(format!("{:?}", config.provider).contains("qmp: \"/run/qmp\""));
        let config = load("[provider.local]\n").unwrap();
        assert_eq!(config.listen, LISTEN.parse().unwrap());
        let listen = |address: &str, more: &str| load(&FILE.replace("127.0.0.1:0\"", &format!("{address}\"\n{more}")));
        let tls = "certificate = \"/c\"\nkey = \"/k\"";
        for (address, more) in [
            ("[::1]:1", ""),
            ("10.0.0.1:1", "allow_plain = true"),
            ("10.0.0.1:1", tls),
            ("0.0.0.0:1", "allow_public = true\nallow_plain = true"),
            ("0.0.0.0:1", &format!("allow_public = true\n{tls}")),
        ] {
            let config = listen(address, more).unwrap();
            assert_eq!(config.tls.is_some(), more.contains("key"), "{address} {more}");
        }
        assert!(
            listen("0.0.0.0:1", &format!("allow_plain = true\n{tls}")).unwrap_err().contains("allow_public = true")
        );
    }

    #[test]
    fn every_mistake_has_a_place_and_a_remedy() {
        let mistakes = [
            ("127.0.0.1:0", "127.0.0.1", "p.toml:1:10: listen is \"127.0.0.1\": write an address and a port"),
            ("127.0.0.1:0", "0.0.0.0:7420", "p.toml:1:10: listen is \"0.0.0.0:7420\", which others"),
            ("127.0.0.1:0", "8.8.8.8:7420", "allow_public = true"),
            (
                "127.0.0.1:0",
                "10.0.0.1:7420",
                "p.toml:1:10: listen is \"10.0.0.1:7420\", and the token would go over the wire",
            ),
            ("127.0.0.1:0", "8.8.8.8:7420\"\nallow_public = true\n#", "or allow_plain = true"),
            (
                "token_file = \"/t\"",
                "certificate = \"/c\"",
                "p.toml:2:15: a certificate proves nothing without its key",
            ),
            ("token_file = \"/t\"", "key = \"/k\"", "p.toml:2:7: a key is of no use without its certificate"),
            ("qmp =", "qpm =", "p.toml:4:1: unknown setting \"qpm\": did you mean \"qmp\""),
            ("[provider.qemu]", "[provider.local]\n[provider.qemu]", "a service has one provider"),
            ("[provider.qemu]\nqmp = \"/run/qmp\"", "[provider]", "has no provider"),
        ];
        each_mistake_is_told(FILE, load, &mistakes);
    }
}
