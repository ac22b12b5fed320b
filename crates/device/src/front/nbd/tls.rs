//! TLS with client certificates: what the server is, whom it admits, and a connection's stream of records.
//!
//! TLS 1.3 alone, which libnbd's and QEMU's GnuTLS have spoken since 2018. Sessions are not resumed: each connection
//! shows its certificate, so that one which has expired or was revoked since is noticed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::front::FrontError;

/// The authorities whose clients are admitted.
const AUTHORITIES: &str = "ca-cert.pem";
/// Clients that are admitted no more; may be missing.
const REVOKED: &str = "ca-crl.pem";
/// Who we are.
const CERTIFICATE: &str = "server-cert.pem";
/// Proves it.
const KEY: &str = "server-key.pem";
/// Longer files are none of these, in bytes.
const FILE_LENGTH_MAX: u64 = 16 << 20;
/// Records read from the socket at once, in bytes.
const INPUT_LENGTH: usize = 64 << 10;
/// Data that are encrypted and wait for the socket at most, in bytes.
const OUTPUT_LENGTH_MAX: usize = 256 << 10;

/// The server's certificate and key and the authorities of its clients. Says nothing of the key when it is shown.
#[derive(Clone)]
pub struct Credentials {
    directory: PathBuf,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a directory with the files that QEMU and libnbd use: `ca-cert.pem`, `server-cert.pem`, `server-key.pem`,
    /// and `ca-crl.pem` if there is one.
    ///
    /// # Errors
    /// One sentence with the mend: a file is missing or makes no sense, or others than its owner can read the key.
    pub fn load(directory: &Path) -> Result<Self, FrontError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let file = |name: &str| directory.join(name);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&file(AUTHORITIES))? {
            roots.add(certificate).map_err(|error| unusable(&file(AUTHORITIES), &error))?;
        }
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        if file(REVOKED).exists() {
            let text = read(&file(REVOKED))?;
            let lists = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
            let lists = lists.map_err(|error| unusable(&file(REVOKED), &error))?;
            verifier = verifier.with_crls(lists).only_check_end_entity_revocation();
        }
        let verifier = verifier.build().map_err(|error| unusable(&file(AUTHORITIES), &error))?;
        let key = private_key(&file(KEY))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(directory, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&file(CERTIFICATE))?, key)
            .map_err(|error| unusable(&file(CERTIFICATE), &error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { directory: directory.to_owned(), config: Arc::new(config) })
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> FrontError {
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FrontError> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| unusable(path, &error))? {
        none if none.is_empty() => Err(unusable(path, &"it holds no certificate")),
        found => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FrontError> {
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

/// A socket under TLS, as a stream of bytes that never blocks.
pub(super) struct TlsStream {
    socket: OwnedFd,
    session: ServerConnection,
    /// Records as they came from the socket, from `start` to `end`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStream {
    pub(super) fn new(socket: OwnedFd, credentials: &Credentials) -> Result<Self, FrontError> {
        let session = ServerConnection::new(Arc::clone(&credentials.config));
        let mut session = session.map_err(|error| unusable(&credentials.directory, &error))?;
        session.set_buffer_limit(Some(OUTPUT_LENGTH_MAX));
        Ok(Self { socket, session, input: vec![0; INPUT_LENGTH].into_boxed_slice(), start: 0, end: 0 })
    }

    /// Fills the first of the rooms that has any. `INTR`: nothing came of what was read; try again.
    pub(super) fn read(&mut self, rooms: [&mut [u8]; 2]) -> Result<usize, Errno> {
        let [first, second] = rooms;
        let room = if first.is_empty() { second } else { first };
        match self.session.reader().read(room) {
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Cut off without a farewell: the end all the same, since every request says how long it is.
            Err(_) => return Ok(0),
        }
        if self.start == self.end {
            (self.start, self.end) = (0, rustix::io::read(&self.socket, &mut self.input[..])?);
            if self.end == 0 {
                return Ok(0);
            }
        }
        let mut rest = &self.input[self.start..self.end];
        // What the session has room for; it was emptied above.
        let taken = self.session.read_tls(&mut rest).map_err(|_| Errno::PROTO)?;
        if taken == 0 {
            return Ok(0);
        }
        self.start += taken;
        let processed = self.session.process_new_packets();
        // Answers of a handshake, or the alert that says what is wrong. A full socket takes them later.
        let flushed = self.flush();
        if let Err(error) = processed {
            tracing::debug!(%error, "an NBD client broke TLS off or was refused");
            return Err(Errno::PROTO);
        }
        match flushed {
            Ok(()) | Err(Errno::AGAIN) => Err(Errno::INTR),
            Err(error) => Err(error),
        }
    }

    /// Encrypts what there is room for and sends it. What was taken counts as sent.
    pub(super) fn write(&mut self, slices: &[io::IoSlice<'_>]) -> Result<usize, Errno> {
        self.flush()?;
        let taken = self.session.writer().write_vectored(slices).map_err(|_| Errno::PROTO)?;
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) => Ok(taken),
            Err(error) => Err(error),
        }
    }

    /// Sends what is encrypted.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Socket(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::PROTO)),
            }
        }
        Ok(())
    }

    /// Whether something is encrypted and not sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.session.wants_write()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        // So that the client can tell the end from a cut; whether it gets there is its affair.
        self.session.send_close_notify();
        let _ = self.flush();
    }
}

/// Sends without SIGPIPE.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(sendmsg(self.0, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
