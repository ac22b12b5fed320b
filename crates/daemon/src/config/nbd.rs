//! `[device.NAME.nbd]`: where else than on its Unix socket an NBD export listens.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use crate::exports::Kind;
use crate::toml_error::{ConfigError, Source};

/// An address on which an NBD export listens beside its Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTcp {
    /// Loopback, or anything with TLS.
    pub listen: SocketAddr,
    /// The directory of `ca-cert.pem`, `server-cert.pem` and `server-key.pem`: then only clients with a certificate of
    /// that authority are served, under TLS.
    pub tls_certificates: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNbd {
    listen: Option<Spanned<String>>,
    tls_certificates: Option<Spanned<PathBuf>>,
}

impl RawNbd {
    pub(super) fn check(self, source: &Source, export: Option<&Kind>) -> Result<Option<NbdTcp>, ConfigError> {
        let Some(listen) = self.listen else {
            return match self.tls_certificates {
                None => Ok(None),
                Some(unused) => {
                    let message =
                        "tls_certificates protects TCP alone: write listen = \"ADDRESS:PORT\" too, or leave it out";
                    Err(source.at(Some(unused.span()), message))
                }
            };
        };
        let (text, at) = (listen.get_ref(), Some(listen.span()));
        let address: SocketAddr = text.parse().map_err(|_| {
            let message = format!(
                "\"{text}\" is no address: write an IP address and a port, such as \"192.0.2.1:10809\" or \"[::1]:10809\""
            );
            source.at(at.clone(), message)
        })?;
        if export.is_none_or(|kind| kind.name != "nbd") {
            let message = "listen belongs to an NBD export: write export = \"nbd\" for this device, or leave it out";
            return Err(source.at(at, message));
        }
        if self.tls_certificates.is_none() && !address.ip().is_loopback() {
            let message = format!(
                "{address} can be reached from other machines, without encryption and by everybody: name a directory \
                 with tls_certificates, or listen on 127.0.0.1 or [::1]"
            );
            return Err(source.at(at, message));
        }
        Ok(Some(NbdTcp { listen: address, tls_certificates: self.tls_certificates.map(Spanned::into_inner) }))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn load(export: &str, section: &str) -> Result<Option<NbdTcp>, String> {
        let text = format!(
            "[device.data]\nbacking = \"/dev/vdb\"\nexport = \"{export}\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n\
             [device.data.nbd]\n{section}"
        );
        let config = Config::from_text(Path::new("s.toml"), &text).map_err(|error| error.to_string())?;
        Ok(config.devices["data"].nbd_tcp.clone())
    }

    #[test]
    fn nbd_listens_beyond_this_machine_only_with_tls() {
        assert_eq!(load("auto", ""), Ok(None));
        let local = NbdTcp { listen: "127.0.0.1:10809".parse().unwrap(), tls_certificates: None };
        assert_eq!(load("nbd", "listen = \"127.0.0.1:10809\""), Ok(Some(local)));
        let far = NbdTcp { listen: "[::]:10809".parse().unwrap(), tls_certificates: Some("/etc/surgetank/pki".into()) };
        assert_eq!(load("nbd", "listen = \"[::]:10809\"\ntls_certificates = \"/etc/surgetank/pki\""), Ok(Some(far)));
        for (export, section, expected) in [
            ("nbd", "listen = \"0.0.0.0:10809\"", "s.toml:6:10: 0.0.0.0:10809 can be reached from other machines"),
            ("nbd", "listen = \"localhost\"", "s.toml:6:10: \"localhost\" is no address"),
            ("auto", "listen = \"127.0.0.1:1\"", "s.toml:6:10: listen belongs to an NBD export"),
            ("nbd", "tls_certificates = \"/etc\"", "s.toml:6:20: tls_certificates protects TCP alone"),
            ("nbd", "lisetn = \"127.0.0.1:1\"", "did you mean \"listen\""),
        ] {
            let message = load(export, section).unwrap_err();
            assert!(message.contains(expected), "{message}\n expected {expected}");
        }
    }
}
