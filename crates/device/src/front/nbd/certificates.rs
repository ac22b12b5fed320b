//! The files of a directory with TLS certificates, and whom they admit.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::front::FrontError;

/// The authorities whose clients are admitted.
pub(super) const AUTHORITIES: &str = "ca-cert.pem";
/// What those authorities have revoked; may be missing.
pub(super) const REVOKED: &str = "ca-crl.pem";
/// Who we are.
pub(super) const CERTIFICATE: &str = "server-cert.pem";
/// Proves it.
pub(super) const KEY: &str = "server-key.pem";
/// Longer files are none of these, in bytes.
const FILE_LENGTH_MAX: u64 = 16 << 20;

pub(super) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> FrontError {
    FrontError(format!(
        "{} cannot be used for TLS: {error}; name a directory with {AUTHORITIES}, {CERTIFICATE} and {KEY}",
        path.display()
    ))
}

fn read_open(path: &Path, file: File) -> Result<Vec<u8>, FrontError> {
    let mut text = Vec::new();
    file.take(FILE_LENGTH_MAX).read_to_end(&mut text).map_err(|error| unusable(path, &error))?;
    Ok(text)
}

fn read(path: &Path) -> Result<Vec<u8>, FrontError> {
    read_open(path, File::open(path).map_err(|error| unusable(path, &error))?)
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FrontError> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| unusable(path, &error))? {
        none if none.is_empty() => Err(unusable(path, &"it holds no certificate")),
        found => Ok(found),
    }
}

pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FrontError> {
    let file = File::open(path).map_err(|error| unusable(path, &error))?;
    // Of the open file, not of the path: another could take its place in between.
    let mode = file.metadata().map_err(|error| unusable(path, &error))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(FrontError(format!(
            "the private key {0} can be read by others than its owner (its mode is {mode:04o}): run `chmod 600 {0}`, \
             and make a new key if somebody may have read it",
            path.display()
        )));
    }
    // What the parser says of a broken key is not repeated: it might quote it.
    PrivateKeyDer::from_pem_slice(&read_open(path, file)?)
        .map_err(|_| unusable(path, &"it holds no private key in PEM"))
}

/// Reads whom these files admit.
pub(super) fn admission(
    authorities: &Path,
    revoked: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Admission, FrontError> {
    let certificates = certificates(authorities)?;
    let parsed = certificates.iter().map(|certificate| X509Certificate::from_der(certificate));
    let parsed = parsed.map(|parsed| parsed.map(|(_, certificate)| certificate)).collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|error| unusable(authorities, &error))?;
    let subjects: Vec<&[u8]> = parsed.iter().map(|certificate| certificate.subject().as_raw()).collect();
    let (mut anchors, mut below) = (RootCertStore::empty(), RootCertStore::empty());
    let mut intermediates = Vec::new();
    for (certificate, parsed) in certificates.iter().zip(&parsed) {
        let issuer = parsed.issuer().as_raw();
        // One whose issuer is here as well is believed because that one issued it, so that it expires and can be revoked.
        let store = if issuer != parsed.subject().as_raw() && subjects.contains(&issuer) {
            intermediates.push(certificate.clone());
            &mut below
        } else {
            &mut anchors
        };
        store.add(certificate.clone()).map_err(|error| unusable(authorities, &error))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), Arc::clone(provider))
        .add_root_hint_subjects(below.subjects());
    let (lists, listed) = revocation_lists(revoked)?;
    if !lists.is_empty() {
        for authority in parsed.iter().filter(|authority| !listed.iter().any(|by| by == authority.subject().as_raw())) {
            tracing::warn!(
                "{} has no list of \"{}\": what that authority issued is refused; add its list, an empty one if nothing \
                 is revoked",
                revoked.display(),
                authority.subject()
            );
        }
        // The whole chain is looked up, and what no list speaks of is refused: rustls' defaults.
        verifier = verifier.with_crls(lists).enforce_revocation_expiration();
    }
    let chain = verifier.build().map_err(|error| match &error {
        VerifierBuilderError::InvalidCrl(_) => unusable(revoked, &error),
        _ => unusable(authorities, &error),
    })?;
    Ok(Admission { chain, intermediates })
}

/// The lists of a file that may be missing, none of them expired, and the names of those who made them.
fn revocation_lists(path: &Path) -> Result<(Vec<CertificateRevocationListDer<'static>>, Vec<Vec<u8>>), FrontError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(unusable(path, &error)),
    };
    let lists = CertificateRevocationListDer::pem_slice_iter(&read_open(path, file)?).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| unusable(path, &error))?;
    if lists.is_empty() {
        return Err(unusable(path, &"it holds no list of revoked certificates; remove it if nothing is ever revoked"));
    }
    let now = UnixTime::now().as_secs() as i64;
    let mut issuers = Vec::new();
    for list in &lists {
        let (_, list) = CertificateRevocationList::from_der(list).map_err(|error| unusable(path, &error))?;
        if let Some(end) = list.next_update().filter(|end| end.timestamp() <= now) {
            return Err(FrontError(format!(
                "{} cannot be used for TLS: its list of \"{}\" expired at {end}, and what was revoked since is not on \
                 it; put the authority's new list there",
                path.display(),
                list.issuer()
            )));
        }
        issuers.push(list.issuer().as_raw().to_owned());
    }
    Ok((lists, issuers))
}

/// Who is admitted: a chain of valid certificates up to an authority, none of them revoked, from one that says that it
/// is for clients.
#[derive(Debug)]
pub(super) struct Admission {
    chain: Arc<dyn ClientCertVerifier>,
    /// Authorities of ours that another one of ours has issued.
    intermediates: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for Admission {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let intermediates: Vec<_> = intermediates.iter().chain(&self.intermediates).cloned().collect();
        let verified = self.chain.verify_client_cert(end_entity, &intermediates, now)?;
        // The chain is one of our authorities' by now: unauthenticated peers cannot make this speak.
        if is_for_clients(end_entity) { Ok(verified) } else { Err(CertificateError::InvalidPurpose.into()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Whether a certificate says so itself. rustls takes one that says nothing for one that is for everything (RFC 5280,
/// 4.2.1.12): then any certificate of the authority would do, such as that of a mail server.
fn is_for_clients(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| {
        certificate.extended_key_usage().is_ok_and(|usage| usage.is_some_and(|usage| usage.value.client_auth))
    })
}
