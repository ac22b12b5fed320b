//! Makes certificates for a pool: an authority, and for each host a directory with what it needs.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use super::files::private;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::tls::{AUTHORITY, BadCertificates, CLIENT, REVOKED, SERVER};

/// The authority's key, which stays where it was made.
pub const AUTHORITY_KEY: &str = "ca-key.pem";
/// Which certificates were revoked: a line for each, with its serial number and its file. The list for others is made of it.
const LIST: &str = "revoked";
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
    let is_directory = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let is_host = |name: &str| name.chars().all(|of| of.is_ascii_alphanumeric() || "-._:*".contains(of));
    let machines = || hosts.iter().map(|name| (name, true)).chain(clients.iter().map(|name| (name, false)));
    for (name, serves) in machines() {
        if !is_directory(name) || serves && !is_host(name) {
            return Err(BadCertificates(format!(
                "`{name}` is no host's name or address: write such as node1 or 10.0.0.1"
            )));
        }
    }
    let authority = Authority::of(directory)?;
    let mut made = Vec::new();
    for (name, serves) in machines() {
        let at = directory.join(name);
        make_directory(&at)?;
        write(&at.join(AUTHORITY), &authority.certificate, 0o644)?;
        // Who comes later knows what was revoked.
        if let Ok(list) = std::fs::read_to_string(directory.join(REVOKED)) {
            write(&at.join(REVOKED), &list, 0o644)?;
        }
        if serves {
            authority.issue(&at, SERVER, name, ExtendedKeyUsagePurpose::ServerAuth, valid)?;
        }
        authority.issue(&at, CLIENT, name, ExtendedKeyUsagePurpose::ClientAuth, valid)?;
        made.push(at);
    }
    Ok(made)
}

/// Revokes what was made for machines, and gives each machine's directory the list of all that were revoked, and the authority's own as well.
/// Returns the directories that have it. What is made for a machine later counts.
///
/// # Errors
/// One sentence with the remedy.
pub fn revoke(directory: &Path, names: &[String]) -> Result<Vec<PathBuf>, BadCertificates> {
    if !directory.join(AUTHORITY).exists() {
        let sentence = "there is no authority: revoke certificates where they were made";
        return Err(BadCertificates(format!("{}: {sentence}", directory.display())));
    }
    let authority = Authority::of(directory)?;
    let list = directory.join(LIST);
    let mut lines = match std::fs::read_to_string(&list) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&list, &error)),
        read => read.unwrap_or_default(),
    };
    for name in names {
        let before = lines.len();
        for file in [SERVER.0, CLIENT.0] {
            let path = directory.join(name).join(file);
            let Ok(text) = std::fs::read(&path) else { continue };
            let serial =
                CertificateDer::from_pem_slice(&text).ok().and_then(|certificate| Some(serial(&certificate)?.to_vec()));
            let serial = serial.ok_or_else(|| failed(&path, &"what is there is no certificate in PEM"))?;
            let hex: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
            lines.push_str(&format!("{hex} {name}/{file}\n"));
        }
        if name.contains(['/', '\n']) || lines.len() == before {
            return Err(BadCertificates(format!(
                "`{name}` has no certificate in {}: name a machine that has a directory there",
                directory.display()
            )));
        }
    }
    // What is not in the list that machines have is in this one, also if this process ends here.
    write(&list, &lines, 0o644)?;
    let now = SystemTime::now();
    let revoked_certs = lines.lines().map(|line| revoked(line).ok_or_else(|| failed(&list, &"a line makes no sense")));
    let number = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let params = CertificateRevocationListParams {
        this_update: (now - BEFORE).into(),
        next_update: (now + AUTHORITY_VALID).into(),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked_certs.collect::<Result<_, _>>()?,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let path = directory.join(REVOKED);
    let signed = params.signed_by(&authority.issuer).and_then(|signed| signed.pem());
    let text = signed.map_err(|error| failed(&path, &error))?;
    write(&path, &text, 0o644)?;
    let mut given = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| failed(directory, &error))? {
        let at = entry.map_err(|error| failed(directory, &error))?.path();
        if at.join(AUTHORITY).exists() {
            write(&at.join(REVOKED), &text, 0o644)?;
            given.push(at);
        }
    }
    given.sort();
    Ok(given)
}

/// What a line of [`LIST`] says.
fn revoked(line: &str) -> Option<RevokedCertParams> {
    let hex = line.split(' ').next().filter(|hex| hex.len() % 2 == 0 && !hex.is_empty())?;
    let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let serial = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    let now = SystemTime::now() - BEFORE;
    Some(RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    })
}

/// The serial number of a certificate (RFC 5280, 4.1): SEQUENCE of a SEQUENCE that begins with the version, if it is not the first, and
/// the number.
fn serial(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate, _) = element(certificate)?;
    let (_, inner, _) = element(certificate)?;
    let (tag, first, rest) = element(inner)?;
    let (tag, number) = match tag {
        VERSION => element(rest).map(|(tag, number, _)| (tag, number))?,
        _ => (tag, first),
    };
    (tag == INTEGER).then_some(number)
}

const VERSION: u8 = 0xa0;
const INTEGER: u8 = 0x02;

/// The first element of DER: its tag, what it holds, and what comes behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (bytes, rest) =
                rest.split_at_checked(usize::from(long & 0x7f)).filter(|(bytes, _)| bytes.len() <= 4)?;
            (bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
        }
    };
    let (inner, rest) = rest.split_at_checked(length)?;
    Some((*tag, inner, rest))
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
