//! TLS between the provisioning service and its clients: the service shows a certificate, the client its token.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Longer files are none of these, in bytes.
const FILE_LENGTH_MAX: u64 = 16 << 20;

/// Reads who vouches for a service.
pub(crate) fn authorities(path: &Path) -> Result<Vec<ureq::tls::Certificate<'static>>, String> {
    let remedy = "name the file with the certificate of the authority that signed the service's";
    let found = certificates(path, remedy)?;
    let mut roots = RootCertStore::empty();
    for certificate in &found {
        roots.add(certificate.clone()).map_err(|error| unusable(path, &error, remedy))?;
    }
    Ok(found.iter().map(|certificate| ureq::tls::Certificate::from_der(certificate).to_owned()).collect())
}

/// Those that can be read of a file that may hold others as well; `None`: there is no such file.
pub(crate) fn parsable_authorities(path: &Path) -> Option<Vec<ureq::tls::Certificate<'static>>> {
    let file = File::open(path).ok()?;
    let found = CertificateDer::pem_reader_iter(file.take(FILE_LENGTH_MAX)).flatten();
    Some(found.map(|certificate| ureq::tls::Certificate::from_der(&certificate).to_owned()).collect())
}

fn unusable(path: &Path, error: &dyn std::fmt::Display, remedy: &str) -> String {
    format!("{} cannot be used for TLS: {error}; {remedy}", path.display())
}

fn certificates(path: &Path, remedy: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = File::open(path).map_err(|error| unusable(path, &error, remedy))?;
    let found = CertificateDer::pem_reader_iter(file.take(FILE_LENGTH_MAX)).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| unusable(path, &error, remedy))? {
        none if none.is_empty() => Err(unusable(path, &"it holds no certificate", remedy)),
        found => Ok(found),
    }
}

#[cfg(feature = "service")]
pub use server::Credentials;

#[cfg(feature = "service")]
mod server {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use rustls::ServerConfig;
    use rustls::pki_types::{PrivateKeyDer, pem};

    use super::*;

    const REMEDY: &str = "name its certificate and its key, both in PEM";

    /// The certificate and the key of a service. Says nothing of the key when it is shown.
    #[derive(Clone)]
    pub struct Credentials(pub(in crate::service) Arc<ServerConfig>);

    impl std::fmt::Debug for Credentials {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Credentials")
        }
    }

    impl Credentials {
        /// Reads them. The key must be readable by its owner alone.
        ///
        /// # Errors
        /// One sentence with the remedy.
        pub fn load(certificate: &Path, key: &Path) -> Result<Self, String> {
            let chain = certificates(certificate, REMEDY)?;
            let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| unusable(certificate, &error, REMEDY))?
                .with_no_client_auth()
                .with_single_cert(chain, private_key(key)?)
                .map_err(|error| unusable(certificate, &error, REMEDY))?;
            Ok(Self(Arc::new(config)))
        }
    }

    fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
        let file = File::open(path).map_err(|error| unusable(path, &error, REMEDY))?;
        // Of the open file, not of the path: another could take its place in between.
        let mode = file.metadata().map_err(|error| unusable(path, &error, REMEDY))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "the private key {0} can be read by others than its owner (its mode is {mode:04o}): run `chmod 600 {0}`, \
                 and make a new key if somebody may have read it",
                path.display()
            ));
        }
        PrivateKeyDer::from_pem_reader(file.take(FILE_LENGTH_MAX)).map_err(|error| match error {
            pem::Error::Io(error) => unusable(path, &error, REMEDY),
            // What the parser says of a broken key is not repeated: it might quote it.
            _ => unusable(path, &"it holds no private key in PEM", REMEDY),
        })
    }
}
