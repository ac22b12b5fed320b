//! Makes certificates for a pool: an authority, and for each host a directory with what it needs.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::files::private;
use super::tls::{AUTHORITY, BadCertificates, CLIENT, SERVER};

/// The authority's key, which stays where it was made.
pub const AUTHORITY_KEY: &str = "ca-key.pem";
/// How long the authority's own certificate counts.
const AUTHORITY_VALID: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Certificates count from a little before they were made, since clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);

/// Makes certificates in a directory: of its authority, which is made if it is not there; of a directory below it for each host, with
/// certificates to serve and to call; and for each of `clients`, with one to call. What is there already is replaced, but for the
/// authority. Returns the directories.
///
/// # Errors
/// One sentence with the remedy.
pub fn make(
    directory: &Path,
    hosts: &[String],
    clients: &[String],
    valid: Duration,
) -> Result<Vec<PathBuf>, BadCertificates> {
    for name in hosts.iter().chain(clients) {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(BadCertificates(format!(
                "`{name}` is no host's name or address: write such as node1 or 10.0.0.1"
            )));
        }
    }
    let authority = Authority::of(directory)?;
    let mut made = Vec::new();
    for (name, serves) in hosts.iter().map(|name| (name, true)).chain(clients.iter().map(|name| (name, false))) {
        let at = directory.join(name);
        make_directory(&at)?;
        write(&at.join(AUTHORITY), &authority.certificate, 0o644)?;
        if serves {
            authority.issue(&at, SERVER, name, ExtendedKeyUsagePurpose::ServerAuth, valid)?;
        }
        authority.issue(&at, CLIENT, name, ExtendedKeyUsagePurpose::ClientAuth, valid)?;
        made.push(at);
    }
    Ok(made)
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> BadCertificates {
    BadCertificates(format!("cannot make {}: {error}: name another directory", path.display()))
}

impl Authority {
    fn of(directory: &Path) -> Result<Self, BadCertificates> {
        make_directory(directory)?;
        let (path, key_path) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
        // Who issues is told by name and key, so that these parameters are those of the certificate that is there.
        let mut params = named("surgetank pool", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        span(&mut params, AUTHORITY_VALID);
        match std::fs::read_to_string(&path) {
            Ok(certificate) => {
                let remedy = "issue certificates where the authority was made, or name another directory";
                let (text, _) =
                    private(&key_path, "the authority's key", remedy).map_err(|error| BadCertificates(error.0))?;
                let key = KeyPair::from_pem(&text)
                    .map_err(|_| failed(&key_path, &"what is there is no private key in PEM"))?;
                return Ok(Self { certificate, issuer: Issuer::new(params, key) });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, &error)),
        }
        let key = KeyPair::generate().map_err(|error| failed(&key_path, &error))?;
        write(&key_path, &key.serialize_pem(), 0o600)?;
        let certificate = params.self_signed(&key).map_err(|error| failed(&path, &error))?.pem();
        write(&path, &certificate, 0o644)?;
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    fn issue(
        &self,
        directory: &Path,
        (certificate, key_file): (&str, &str),
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
        valid: Duration,
    ) -> Result<(), BadCertificates> {
        let path = directory.join(certificate);
        let mut params = named(name, &[name.to_owned()])?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        span(&mut params, valid);
        let key = KeyPair::generate().map_err(|error| failed(&path, &error))?;
        let issued = params.signed_by(&key, &self.issuer).map_err(|error| failed(&path, &error))?;
        // A process that reads in between sees that they do not match, and goes on with the former ones.
        write(&directory.join(key_file), &key.serialize_pem(), 0o600)?;
        write(&path, &issued.pem(), 0o644)
    }
}

fn named(name: &str, subjects: &[String]) -> Result<CertificateParams, BadCertificates> {
    let mut params = CertificateParams::new(subjects).map_err(|error| {
        BadCertificates(format!("`{name}` cannot be in a certificate: {error}: write another name"))
    })?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn span(params: &mut CertificateParams, valid: Duration) {
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - BEFORE).into(), (now + valid).into());
}

fn make_directory(path: &Path) -> Result<(), BadCertificates> {
    std::fs::create_dir_all(path).map_err(|error| failed(path, &error))
}

/// Replaces a file at once.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), BadCertificates> {
    let aside = path.with_extension("new");
    let written = (|| {
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(mode).open(&aside)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    })();
    written.map_err(|error| failed(path, &error))
}
