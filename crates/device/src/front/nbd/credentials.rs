//! TLS with client certificates: what the server is and whom it admits.
//!
//! TLS 1.3 alone, which libnbd's and QEMU's GnuTLS have spoken since 2018. Sessions are not resumed: each connection
//! shows its certificate, so that one which has expired or was revoked since is noticed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::SocketAddrAny;
use rustls::server::NoServerSessionStorage;
use rustls::{CertificateError, ServerConfig};

use super::certificates::{self, AUTHORITIES, CERTIFICATE, KEY, REVOKED, unusable};
use crate::front::FrontError;

/// Refusals are told at most this often: who is refused may try again at once.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The server's certificate and key and the authorities of its clients. A clone is another handle on the same ones.
/// Says nothing of the key when it is shown.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    /// What the next connection gets. Locked for a moment by a handshake that begins, and by nothing else of a
    /// connection.
    config: Mutex<Arc<ServerConfig>>,
    told: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Credentials {
    /// Reads a directory with the files that QEMU and libnbd use: `ca-cert.pem`, `server-cert.pem`, `server-key.pem`,
    /// and `ca-crl.pem` if there is one.
    ///
    /// # Errors
    /// One sentence with the remedy: a file is missing or makes no sense, a list of revoked certificates has expired, or
    /// others than its owner can read the key.
    pub fn load(directory: &Path) -> Result<Self, FrontError> {
        let config = Mutex::new(read(directory)?);
        Ok(Self(Arc::new(Shared { directory: directory.to_owned(), config, told: Mutex::default() })))
    }

    /// Reads the directory again, for the connections that come from now on; all handles see it.
    ///
    /// # Errors
    /// As [`Credentials::load`]; then everything stays as it was.
    pub fn reload(&self) -> Result<(), FrontError> {
        let new = read(&self.0.directory)?;
        *guard(&self.0.config) = new;
        Ok(())
    }

    /// What a connection that begins now is held to.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&guard(&self.0.config))
    }

    /// Says in the log why a client was refused.
    pub(super) fn tell(&self, error: &rustls::Error, client: Option<SocketAddrAny>) {
        let client = client.and_then(|client| std::net::SocketAddr::try_from(client).ok());
        let rustls::Error::InvalidCertificate(reason) = error else {
            tracing::debug!(%error, ?client, "an NBD client broke TLS off or was refused");
            return;
        };
        let mut told = guard(&self.0.told);
        if told.is_some_and(|told| told.elapsed() < TELL_INTERVAL) {
            return;
        }
        *told = Some(Instant::now());
        let client = client.map_or_else(String::new, |client| format!(" from {client}"));
        tracing::warn!("the certificate of an NBD client{client} is refused: {}", why(reason));
    }
}

/// In words, with the remedy where it is ours to say.
fn why(reason: &CertificateError) -> String {
    match reason {
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it does not say that it is for clients; issue it with the extended key usage clientAuth".to_owned()
        }
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            format!("a list in {REVOKED} has expired; put the authority's new one there and run `surgetank reload`")
        }
        CertificateError::UnknownRevocationStatus => format!(
            "{REVOKED} has no list of an authority that issued it or a certificate above it; add that list, an empty \
             one if nothing is revoked, and run `surgetank reload`"
        ),
        other => other.to_string(),
    }
}

fn read(directory: &Path) -> Result<Arc<ServerConfig>, FrontError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let file = |name: &str| directory.join(name);
    let admission = certificates::admission(&file(AUTHORITIES), &file(REVOKED), &provider)?;
    let key = certificates::private_key(&file(KEY))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(directory, &error))?
        .with_client_cert_verifier(Arc::new(admission))
        .with_single_cert(certificates::certificates(&file(CERTIFICATE))?, key)
        .map_err(|error| unusable(&file(CERTIFICATE), &error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
