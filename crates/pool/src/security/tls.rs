//! Mutual TLS: who a process is to others, and whom it admits and believes.
//!
//! TLS 1.3 alone; the files have the names that QEMU gives them. Both ends show a certificate of the authority in `ca-cert.pem`, and who
//! calls verifies the name that it has called. Sessions are not resumed, so that each connection shows a certificate. Files that change
//! are read again, for the connections that come afterwards. What `ca-crl.pem` names, if it is there, is refused.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::client::Resumption;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};

use super::files::private;

/// The authority whose certificates count.
pub const AUTHORITY: &str = "ca-cert.pem";
/// Certificate and key of who serves.
pub const SERVER: (&str, &str) = ("server-cert.pem", "server-key.pem");
/// Certificate and key of who calls.
pub const CLIENT: (&str, &str) = ("client-cert.pem", "client-key.pem");
/// Certificates of the authority that count no more; there need be none.
pub const REVOKED: &str = "ca-crl.pem";
/// Longer files are none of these, in bytes.
const LENGTH_MAX: u64 = 16 << 20;
/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);
const REMEDY: &str = "`surgetank pool certificates` makes a directory with what is needed";

/// Files that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCertificates(pub String);

/// What a directory has.
#[derive(Clone)]
pub(crate) struct Configs {
    /// Only where something is served.
    pub(crate) server: Option<Arc<ServerConfig>>,
    pub(crate) client: Arc<ClientConfig>,
}

struct State {
    configs: Configs,
    /// When the files were changed last, as far as is known.
    changed: Vec<Option<SystemTime>>,
    looked: Instant,
}

/// Certificates of a process. A clone is another handle on the same ones. Says nothing of keys when it is shown.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    serves: bool,
    state: Mutex<State>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a directory; `serves`: its certificate for servers is needed as well.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn read(directory: &Path, serves: bool) -> Result<Self, BadCertificates> {
        // What is changed while it is read is read again at the next look.
        let changed = changes(directory);
        let state = Mutex::new(State { configs: read(directory, serves)?, changed, looked: Instant::now() });
        Ok(Self(Arc::new(Shared { directory: directory.to_owned(), serves, state })))
    }

    /// What a connection that begins now is held to.
    pub(crate) fn current(&self) -> Configs {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let changed = changes(&self.0.directory);
            if changed != state.changed {
                match read(&self.0.directory, self.0.serves) {
                    Ok(configs) => {
                        (state.configs, state.changed) = (configs, changed);
                        tracing::info!("new certificates of {} are used from now on", self.0.directory.display());
                    }
                    // Certificate and key change one after the other.
                    Err(error) => tracing::warn!("the former certificates are used on: {error}"),
                }
            }
        }
        state.configs.clone()
    }
}

fn changes(directory: &Path) -> Vec<Option<SystemTime>> {
    let files = [AUTHORITY, REVOKED, SERVER.0, SERVER.1, CLIENT.0, CLIENT.1];
    files.iter().map(|file| std::fs::metadata(directory.join(file)).and_then(|found| found.modified()).ok()).collect()
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> BadCertificates {
    BadCertificates(format!("{} cannot be used for TLS: {error}: {REMEDY}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadCertificates> {
    let file = File::open(path).map_err(|error| unusable(path, &error))?;
    let mut text = Vec::new();
    file.take(LENGTH_MAX).read_to_end(&mut text).map_err(|error| unusable(path, &error))?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| unusable(path, &error))? {
        none if none.is_empty() => Err(unusable(path, &"it holds no certificate")),
        found => Ok(found),
    }
}

/// Which certificates count no more, if a file says so.
fn revoked(
    path: &Path,
    roots: &Arc<RootCertStore>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, BadCertificates> {
    let bad = |error: &dyn std::fmt::Display| {
        BadCertificates(format!(
            "{} is no list of revoked certificates: {error}: copy it again from where `surgetank pool certificates --revoke` made it",
            path.display()
        ))
    };
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.and_then(|file| file.take(LENGTH_MAX).read_to_end(&mut text)).map_err(|error| bad(&error))?,
    };
    let found = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| bad(&error))? {
        none if none.is_empty() => Err(bad(&"it holds none in PEM")),
        found => {
            // What cannot be read as a list is told here, where the file is known.
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            match WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider)
                .with_crls(found.clone())
                .build()
            {
                Err(VerifierBuilderError::InvalidCrl(error)) => Err(bad(&format!("{error:?}"))),
                _ => Ok(found),
            }
        }
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(directory: &Path, (certificate, key): (&str, &str)) -> Result<Identity, BadCertificates> {
    let path = directory.join(key);
    let (text, _) = private(&path, "the private key", REMEDY).map_err(|error| BadCertificates(error.0))?;
    // What the parser says of a broken key is not repeated: it might quote it.
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes());
    let key = key.map_err(|_| unusable(&path, &"it holds no private key in PEM"))?;
    Ok((certificates(&directory.join(certificate))?, key))
}

fn read(directory: &Path, serves: bool) -> Result<Configs, BadCertificates> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let path = directory.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|error| unusable(&path, &error))?;
    }
    let roots = Arc::new(roots);
    let revoked = revoked(&directory.join(REVOKED), &roots)?;
    let versions = &[&rustls::version::TLS13];
    let server = match serves {
        true => {
            let (chain, key) = identity(directory, SERVER)?;
            let admitted = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .with_crls(revoked.clone())
                .only_check_end_entity_revocation()
                // The list is of one authority; there may be others.
                .allow_unknown_revocation_status();
            let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)
                .map_err(|error| unusable(directory, &error))?
                .with_client_cert_verifier(admitted.build().map_err(|error| unusable(&path, &error))?)
                .with_single_cert(chain, key)
                .map_err(|error| unusable(&directory.join(SERVER.0), &error))?;
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Some(Arc::new(config))
        }
        false => None,
    };
    let (chain, key) = identity(directory, CLIENT)?;
    let believed = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .with_crls(revoked)
        .only_check_end_entity_revocation()
        .allow_unknown_revocation_status();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|error| unusable(directory, &error))?
        .with_webpki_verifier(believed.build().map_err(|error| unusable(&path, &error))?)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&directory.join(CLIENT.0), &error))?;
    client.resumption = Resumption::disabled();
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Configs { server, client: Arc::new(client) })
}

/// Why the other end was refused, or refuses, in words: what it is (`their`: "the server's", "the client's") comes first.
pub(crate) fn why(error: &std::io::Error, their: &str, our: &str) -> String {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return format!("the connection was ended: {error}");
    };
    match error {
        rustls::Error::InvalidCertificate(reason) => format!("{their} certificate is refused: {}", refused(reason)),
        rustls::Error::NoCertificatesPresented => format!("{their} certificate is missing: it shows none"),
        rustls::Error::InvalidCertRevocationList(_) => {
            format!("{REVOKED} here is not of the authority in {AUTHORITY}: copy that one's, or remove it")
        }
        rustls::Error::InvalidMessage(_) => {
            "it speaks no TLS: give both ends certificates (--certificates), or none on loopback".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            let reason = match alert {
                AlertDescription::CertificateExpired => "it has expired: make it anew".to_owned(),
                AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                    format!("it is of an authority that the other end's {AUTHORITY} does not have")
                }
                AlertDescription::CertificateRevoked => "it was revoked: make another".to_owned(),
                AlertDescription::CertificateRequired => "none was shown".to_owned(),
                other => format!("{other:?}"),
            };
            format!("{our} certificate is refused by the other end: {reason}")
        }
        other => format!("TLS failed: {other}"),
    }
}

fn refused(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: make it anew (`surgetank pool certificates`)".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: compare the clocks of both ends".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("it is of an authority that {AUTHORITY} does not have")
        }
        CertificateError::Revoked => format!("it was revoked, as {REVOKED} says"),
        CertificateError::NotValidForName => "it is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "it is not for {}, but for {}: call the server by a name of its certificate",
            expected.to_str(),
            presented.join(", ")
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it does not say that it is for this purpose (serverAuth, clientAuth)".to_owned()
        }
        other => other.to_string(),
    }
}
