//! An authority for tests: certificates in the files that libnbd and QEMU read.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// When a certificate holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Now,
    Past,
    Future,
}

/// A certificate authority with a directory of its own.
pub struct Authority {
    pub directory: tempfile::TempDir,
    /// Its own certificate, or that of the authority at the top.
    pub certificate: String,
    /// Its own certificate, if another authority has issued it: its clients show it.
    pub intermediate: String,
    issuer: Issuer<'static, KeyPair>,
}

fn private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn named(name: &str, addresses: &[&str]) -> CertificateParams {
    let addresses: Vec<String> = addresses.iter().map(|address| (*address).to_owned()).collect();
    let mut params = CertificateParams::new(addresses).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority(name: &str) -> CertificateParams {
    let mut params = named(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let params = authority(name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let directory = tempfile::tempdir().unwrap();
        Self { directory, certificate, intermediate: String::new(), issuer: Issuer::new(params, key) }
    }

    /// An authority whose certificate, of this serial number, this one issues.
    pub fn below(&self, name: &str, serial: u64) -> Self {
        let mut params = authority(name);
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let intermediate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let directory = tempfile::tempdir().unwrap();
        Self { directory, certificate: self.certificate.clone(), intermediate, issuer: Issuer::new(params, key) }
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usages: &[ExtendedKeyUsagePurpose],
        serial: u64,
    ) -> (String, KeyPair) {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem() + &self.intermediate, key)
    }

    /// A server's directory, for 127.0.0.1 and localhost.
    pub fn server(&self) -> PathBuf {
        let (certificate, key) =
            self.sign(named("server", &["localhost", "127.0.0.1"]), &[ExtendedKeyUsagePurpose::ServerAuth], 1);
        let directory = self.made("server");
        std::fs::write(directory.join("server-cert.pem"), certificate).unwrap();
        private(&directory.join("server-key.pem"), &key.serialize_pem());
        directory
    }

    /// A client's directory, with a certificate of this serial number.
    pub fn client(&self, serial: u64, validity: Validity, usage: ExtendedKeyUsagePurpose) -> PathBuf {
        self.client_for(serial, validity, &[usage])
    }

    /// The same, for any number of purposes.
    pub fn client_for(&self, serial: u64, validity: Validity, usages: &[ExtendedKeyUsagePurpose]) -> PathBuf {
        let mut params = named(&format!("client {serial}"), &[]);
        let (from, to) = match validity {
            Validity::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2090, 1, 1)),
            Validity::Past => (date_time_ymd(2010, 1, 1), date_time_ymd(2011, 1, 1)),
            Validity::Future => (date_time_ymd(2090, 1, 1), date_time_ymd(2091, 1, 1)),
        };
        (params.not_before, params.not_after) = (from, to);
        let (certificate, key) = self.sign(params, usages, serial);
        let directory = self.made(&format!("client-{serial}"));
        std::fs::write(directory.join("client-cert.pem"), certificate).unwrap();
        private(&directory.join("client-key.pem"), &key.serialize_pem());
        directory
    }

    /// A client that is welcome.
    pub fn good_client(&self) -> PathBuf {
        self.client(1000, Validity::Now, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A client's directory that knows us and has no certificate.
    pub fn nobody(&self) -> PathBuf {
        self.made("nobody")
    }

    /// Makes the certificate of this serial number worthless for the server of this directory.
    pub fn revoke(&self, server: &Path, serial: u64) {
        let list = self.revocation_list(&[serial], SystemTime::now() + Duration::from_secs(30 * 86_400));
        std::fs::write(server.join("ca-crl.pem"), list).unwrap();
    }

    /// A list of revoked certificates that holds until `end`.
    pub fn revocation_list(&self, serials: &[u64], end: SystemTime) -> String {
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: end.into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// The directory of somebody who trusts this authority.
    fn made(&self, name: &str) -> PathBuf {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("ca-cert.pem"), &self.certificate).unwrap();
        directory
    }
}
