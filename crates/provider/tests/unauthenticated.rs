//! Whoever has no token, on the way to a provisioning service and at its door: TLS, and connections that hold nobody up.

#[path = "../../device/tests/front_support/pki.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod pki;
mod served;

use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pki::Authority;
use served::{Served, TIMEOUT};
use surgetank_provider::contract::request;
use surgetank_provider::service::Secret;
use surgetank_provider::service::tls::Credentials;
use surgetank_provider::{
    Change, HostConfig, HostProvider, LocalConfig, LocalProvider, Provider, ProviderError, SystemClock,
};
use tempfile::TempDir;

/// A service over a local provider, and where that has its volumes.
struct Service {
    served: Served,
    _volumes: TempDir,
}

impl std::ops::Deref for Service {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

fn start(address: &str, tls: Option<Credentials>) -> Service {
    let volumes = TempDir::new().unwrap();
    let config = LocalConfig::in_directory(volumes.path().join("volumes"));
    let local = LocalProvider::open(config, Arc::new(SystemClock)).unwrap();
    Service { served: Served::start(Arc::new(local), address, tls), _volumes: volumes }
}

fn credentials(directory: &Path) -> Credentials {
    Credentials::load(&directory.join("server-cert.pem"), &directory.join("server-key.pem")).unwrap()
}

/// Everything that a client does with a volume.
fn a_whole_life(client: &HostProvider, token: &str) {
    let id = client.create(&request(token)).unwrap().0.id;
    assert_eq!(client.attach(&id), Ok(Change::Changed));
    assert!(client.describe(&id).unwrap().device.is_some());
    assert_eq!(client.detach(&id), Ok(Change::Changed));
    assert_eq!(client.delete(&id), Ok(Change::Changed));
    assert_eq!(client.list("k", "v"), Ok(Vec::new()));
}

#[test]
fn the_service_speaks_tls_with_those_who_know_its_authority() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let ca = |authority: &Authority| Some(authority.nobody().join("ca-cert.pem"));
    let served = start("127.0.0.1:0", Some(credentials(&ours.server())));
    a_whole_life(&served.client("https", ca(&ours)), "t");
    let silent = |client: HostProvider| match client.create(&request("refused")) {
        Err(ProviderError::Transient(text)) => assert!(text.contains("does not answer"), "{text}"),
        answer => panic!("{answer:?}"),
    };
    // Of an authority that is not ours, without TLS, and under another name than the certificate has.
    silent(served.client("https", ca(&other)));
    silent(served.client("http", None));
    silent(start("127.0.0.2:0", Some(credentials(&ours.server()))).client("https", ca(&ours)));
    assert_eq!(served.client("https", ca(&ours)).list("k", "v"), Ok(Vec::new()), "nothing was made");
    // A service without TLS does not understand it, and a client that asked for it does not do without.
    silent(start("127.0.0.1:0", None).client("https", ca(&ours)));
}

/// As `docs/PROVISIONING.md` makes it.
#[test]
fn a_certificate_that_vouches_for_itself_does() {
    let directory = TempDir::new().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let served = start("127.0.0.1:0", Some(Credentials::load(&certificate, &key).unwrap()));
    a_whole_life(&served.client("https", Some(certificate)), "t");
}

#[test]
fn certificates_and_keys_that_do_not_do_are_refused_in_one_sentence() {
    let authority = Authority::new("ours");
    let directory = authority.server();
    let (certificate, key) = (directory.join("server-cert.pem"), directory.join("server-key.pem"));
    let refused = |certificate: &Path, key: &Path, why: &str| {
        let error = Credentials::load(certificate, key).unwrap_err();
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
    };
    std::fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    refused(&certificate, &key, "can be read by others than its owner");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    refused(&key, &key, "holds no certificate");
    refused(&directory.join("none"), &key, "cannot be used for TLS");
    let others = Authority::new("other").server();
    refused(&others.join("server-cert.pem"), &key, "cannot be used for TLS");
    let token = directory.join("token");
    Secret::read_or_make(&token).unwrap();
    refused(&certificate, &token, "holds no private key");
    for (ca, why) in [(directory.join("none"), "No such file"), (token.clone(), "holds no certificate")] {
        let config = HostConfig { ca_file: Some(ca), ..HostConfig::new("https://127.0.0.1:1", &token) };
        let error = HostProvider::open(config).err().unwrap().to_string();
        assert!(error.contains(why) && error.contains("authority") && error.lines().count() == 1, "{error}");
    }
}

/// What an unauthenticated peer sends of a request, or of a handshake.
const HEADS: [&[u8]; 4] = [b"", b"GET / HTTP/1.1\r\nX: ", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n"];

/// Hundreds of connections without a token, which come back as often as they are closed.
struct Unauthenticated {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Unauthenticated {
    fn at(address: SocketAddr) -> Self {
        let (stop, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let threads = HEADS.map(|head| {
            let (stop, opened) = (stop.clone(), opened.clone());
            std::thread::spawn(move || {
                let mut held: Vec<TcpStream> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    // A byte now and then, except from those who say nothing at all.
                    held.retain_mut(|stream| {
                        let sent = if head.is_empty() { Ok(()) } else { stream.write_all(&head[head.len() - 1..]) };
                        let heard = stream.read(&mut [0; 512]);
                        sent.is_ok() && heard.err().is_some_and(|error| error.kind() == ErrorKind::WouldBlock)
                    });
                    let room = if held.is_empty() { 150 } else { 1 };
                    for _ in 0..room {
                        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) else {
                            break;
                        };
                        let _ = stream.write_all(head);
                        stream.set_nonblocking(true).unwrap();
                        held.push(stream);
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            })
        });
        let peers = Self { stop, opened, threads: threads.into() };
        let until = Instant::now() + Duration::from_secs(5);
        // Some wait in the listener's queue if the service does not take them.
        while peers.opened.load(Ordering::Relaxed) < 400 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        peers
    }
}

impl Drop for Unauthenticated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn whoever_has_the_token_is_served_while_others_hold_all_they_can() {
    let authority = Authority::new("ours");
    for tls in [false, true] {
        let served = start("127.0.0.1:0", tls.then(|| credentials(&authority.server())));
        let ca_file = tls.then(|| authority.nobody().join("ca-cert.pem"));
        let client = served.client(if tls { "https" } else { "http" }, ca_file);
        let peers = Unauthenticated::at(served.address);
        assert!(peers.opened.load(Ordering::Relaxed) > 100, "there are unauthenticated peers");
        for round in 0..20 {
            a_whole_life(&client, &format!("{tls}-{round}"));
        }
    }
}

#[test]
fn a_peer_that_shows_no_token_is_not_waited_for() {
    let served = start("127.0.0.1:0", None);
    let token = std::fs::read_to_string(served.token_file()).unwrap();
    let begun = HEADS.map(<[u8]>::to_vec);
    // A head that never ends, after a request that was answered.
    let answered = format!(
        "GET /v1/volumes?key=k&value=v HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\nGET",
        token.trim()
    );
    let waiting: Vec<_> = begun
        .into_iter()
        .chain([answered.into_bytes()])
        .map(|head| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            stream.write_all(&head).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream
        })
        .collect();
    for mut stream in waiting {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the service hangs up");
    }
}
