//! Which etcd, and how it is reached.

use std::net::ToSocketAddrs;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// The name of a pool unless it is said.
const POOL: &str = "surgetank";
/// Bytes of a name at most.
const NAME_MAX: usize = 64;

/// An etcd, and a pool's name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its members' addresses: HOST:PORT.
    pub endpoints: Vec<String>,
    /// The pool's name.
    pub pool: String,
    /// A user of etcd, and the password.
    pub user: Option<(String, String)>,
    /// TLS, if etcd is to be called with it.
    pub tls: Option<Tls>,
    /// Its quota in bytes, if it does not say that itself, and it is not etcd's default.
    pub quota: Option<u64>,
}

/// Certificates, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// Of the authority that signed etcd's.
    pub authority: Vec<u8>,
    /// Ours, and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// What is wrong with a store's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// It is none.
    #[error("`{0}` is no store: write etcd://HOST:PORT[,HOST:PORT…][/NAME]")]
    Unreadable(String),
    /// A name that is none.
    #[error("`{0}` is no name of a pool: use 1 to 64 letters, digits, `.`, `_` and `-`")]
    Name(String),
    /// An address that is none, or that nobody knows.
    #[error("`{0}` is no address: write HOST:PORT, such as 127.0.0.1:2379")]
    Address(String),
    /// Beyond this machine, in the clear.
    #[error("etcd at {0} is on another machine: it is called with TLS alone; give its authority's certificate")]
    NotLoopback(String),
}

impl Config {
    /// Reads `etcd://HOST:PORT[,HOST:PORT…][/NAME]`.
    ///
    /// # Errors
    /// [`BadConfig`].
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let unreadable = || BadConfig::Unreadable(text.to_owned());
        let rest = text.strip_prefix("etcd://").ok_or_else(unreadable)?;
        let (addresses, name) = rest.split_once('/').unwrap_or((rest, POOL));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
            return Err(BadConfig::Name(name.to_owned()));
        }
        let endpoints: Vec<String> = addresses.split(',').map(ToOwned::to_owned).collect();
        for endpoint in &endpoints {
            let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
            if port.is_none_or(|port| port.parse::<u16>().is_err()) || endpoint.contains(['@', ' ', '?', '#']) {
                return Err(BadConfig::Address(endpoint.clone()));
            }
        }
        Ok(Self { endpoints, pool: name.to_owned(), user: None, tls: None, quota: None })
    }

    /// Refuses what would be sent in the clear beyond this machine.
    ///
    /// # Errors
    /// [`BadConfig`].
    pub fn check(&self) -> Result<(), BadConfig> {
        if self.tls.is_some() {
            return Ok(());
        }
        for endpoint in &self.endpoints {
            let mut found = endpoint.to_socket_addrs().map_err(|_| BadConfig::Address(endpoint.clone()))?.peekable();
            if found.peek().is_none() {
                return Err(BadConfig::Address(endpoint.clone()));
            }
            if found.any(|address| !address.ip().is_loopback()) {
                return Err(BadConfig::NotLoopback(endpoint.clone()));
            }
        }
        Ok(())
    }
}

impl Tls {
    pub(super) fn config(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        match &self.identity {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_read_and_every_mistake_is_told() {
        let read = Config::parse("etcd://127.0.0.1:2379,[::1]:2380/scratch").unwrap();
        assert_eq!(
            (read.endpoints.as_slice(), read.pool.as_str()),
            (&["127.0.0.1:2379".to_owned(), "[::1]:2380".to_owned()][..], "scratch")
        );
        assert_eq!(Config::parse("etcd://localhost:1").unwrap().pool, "surgetank");
        let said = |text: &str| match Config::parse(text).and_then(|config| config.check()) {
            Ok(()) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said("etcd://127.0.0.1:2379"), "nothing");
        let unreadable = "is no store: write etcd://HOST:PORT[,HOST:PORT…][/NAME]";
        assert_eq!(said("http://127.0.0.1:2379"), format!("`http://127.0.0.1:2379` {unreadable}"));
        let address = "is no address: write HOST:PORT, such as 127.0.0.1:2379";
        for bad in ["", "127.0.0.1", ":2379", "127.0.0.1:99999", "user@127.0.0.1:1"] {
            assert_eq!(said(&format!("etcd://{bad}")), format!("`{bad}` {address}"));
        }
        let name = "is no name of a pool: use 1 to 64 letters, digits, `.`, `_` and `-`";
        for bad in ["", "a/b", "a b"] {
            assert_eq!(said(&format!("etcd://127.0.0.1:1/{bad}")), format!("`{bad}` {name}"));
        }
        let other = "is on another machine: it is called with TLS alone; give its authority's certificate";
        assert_eq!(said("etcd://192.0.2.1:2379"), format!("etcd at 192.0.2.1:2379 {other}"));
    }
}
