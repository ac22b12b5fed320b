//! A server over TLS, and clients of ours.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use surgetank_device::front::Export;
use surgetank_device::front::nbd::{Credentials, Limits, NbdConfig, NbdFront};
use surgetank_nbd::wire::{command, option, option_reply};

use super::Driver;
use super::client::Client;

/// An NBD server over TLS with a disk in memory.
pub struct Server {
    pub driver: Driver,
    /// The most that requests have held, in bytes.
    pub held_max: Arc<AtomicUsize>,
    pub address: SocketAddr,
    pub socket: PathBuf,
    /// Another handle on what the front has.
    pub credentials: Credentials,
    _directory: tempfile::TempDir,
}

impl Server {
    pub fn start(credentials: &Path, size: usize, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let credentials = Credentials::load(credentials).unwrap();
        let socket = directory.path().join("s");
        let config = NbdConfig {
            export: Export { name: "data".into(), size: size as u64, logical_block: 512 },
            unix: Some(socket.clone()),
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            tls: Some(credentials.clone()),
            limits,
        };
        let front = NbdFront::open(config).unwrap();
        let address = front.tcp_address().unwrap();
        let held_max = Arc::new(AtomicUsize::new(0));
        let watched = Arc::clone(&held_max);
        let watch = move |front: &mut NbdFront| {
            watched.fetch_max(front.held_bytes(), Ordering::SeqCst);
        };
        let driver = Driver::start_watching(front, size, watch);
        Self { driver, held_max, address, socket, credentials, _directory: directory }
    }

    pub fn uri(&self, client: &Path) -> String {
        format!("nbds://{}/data?tls-certificates={}", self.address, client.display())
    }

    /// Greeted, still in the clear.
    pub fn plain(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client::greet(stream)
    }

    /// Allowed to begin TLS.
    pub fn allowed(&self) -> TcpStream {
        let mut client = self.plain();
        client.option(option::STARTTLS, &[]);
        assert_eq!(client.option_reply(), (option_reply::ACK, vec![]));
        client.0
    }

    /// A client of ours with what is in the directory, before its handshake.
    pub fn secured(&self, client: &Path) -> Client<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(client_config(client), name).unwrap();
        Client(StreamOwned::new(session, self.allowed()))
    }

    /// A client that is told nothing but an alert; what the alert says.
    pub fn refusal(&self, client: &Path) -> String {
        let mut client = self.secured(client);
        // TLS 1.3 tells the client after it may already have spoken.
        let _ = client.0.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").and_then(|()| client.0.flush());
        let mut told = Vec::new();
        let refusal = client.0.read_to_end(&mut told).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.is_empty(), "it is told nothing");
        refusal
    }

    /// A welcome client can still do what it wants.
    pub fn assert_serves(&self, client: &Path) {
        let mut client = self.secured(client);
        client.go(false);
        client.request(command::WRITE, 0, 4096, 512);
        client.put(&[3; 512]);
        assert_eq!(client.simple(), 0);
        client.request(command::READ, 0, 4096, 512);
        assert_eq!((client.simple(), client.take(512)), (0, vec![3; 512]));
    }
}

/// Trusts the directory's authority and shows its certificate, if there is one.
pub fn client_config(directory: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("ca-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let certificate = directory.join("client-cert.pem");
    Arc::new(if certificate.exists() {
        let key = PrivateKeyDer::from_pem_file(directory.join("client-key.pem")).unwrap();
        let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    })
}
