//! Which certificates admit an NBD client, as lists of revoked ones and the certificates themselves come and go.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use front_support::pki::{Authority, Validity};
use front_support::server::Server;
use rcgen::ExtendedKeyUsagePurpose as Usage;
use surgetank_device::front::nbd::{Credentials, Limits};
use surgetank_nbd::wire::command;

const MIB: usize = 1 << 20;
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// Everything that is logged for people.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        })
    }

    /// Waits until it says something.
    #[track_caller]
    fn says(&self, expected: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
            if text.contains(expected) {
                return;
            }
            assert!(Instant::now() < until, "it never says \"{expected}\": {text}");
            sleep(Duration::from_millis(10));
        }
    }
}

fn in_a_month() -> SystemTime {
    SystemTime::now() + MONTH
}

fn write_lists(server: &Path, lists: &[String]) {
    std::fs::write(server.join("ca-crl.pem"), lists.concat()).unwrap();
}

#[test]
fn what_a_revoked_authority_issued_is_refused() {
    let root = Authority::new("root");
    let (sound, broken) = (root.below("sound", 10), root.below("broken", 11));
    let credentials = root.server();
    let (good, bad) = (sound.good_client(), broken.good_client());
    let lists = |revoked: &[u64]| {
        let by_root = root.revocation_list(revoked, in_a_month());
        [by_root, sound.revocation_list(&[], in_a_month()), broken.revocation_list(&[66], in_a_month())]
    };
    // Shown by the client alone, or known to the server as well.
    for known in [root.certificate.clone(), [&*root.certificate, &sound.intermediate, &broken.intermediate].concat()] {
        std::fs::write(credentials.join("ca-cert.pem"), known).unwrap();
        write_lists(&credentials, &lists(&[]));
        let server = Server::start(&credentials, MIB, Limits::default());
        server.assert_serves(&good);
        server.assert_serves(&bad);
        drop(server);
        write_lists(&credentials, &lists(&[11]));
        let server = Server::start(&credentials, MIB, Limits::default());
        assert!(server.refusal(&bad).contains("CertificateRevoked"));
        server.assert_serves(&good);
        assert!(server.refusal(&broken.client(66, Validity::Now, Usage::ClientAuth)).contains("Revoked"));
    }
}

#[test]
fn with_a_list_every_authority_needs_one() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let credentials = ours.server();
    std::fs::write(credentials.join("ca-cert.pem"), [&*ours.certificate, &theirs.certificate].concat()).unwrap();
    let (good, other) = (ours.good_client(), theirs.good_client());
    std::fs::copy(good.join("ca-cert.pem"), other.join("ca-cert.pem")).unwrap();
    let log = Log::start();
    ours.revoke(&credentials, 66);
    let server = Server::start(&credentials, MIB, Limits::default());
    log.says("ca-crl.pem has no list of \"CN=theirs\"");
    server.assert_serves(&good);
    assert!(server.refusal(&other).contains("alert"), "nobody says that it was not revoked");
    log.says("ca-crl.pem has no list of an authority that issued it");
    let lists = [ours.revocation_list(&[66], in_a_month()), theirs.revocation_list(&[], in_a_month())];
    write_lists(&credentials, &lists);
    server.credentials.reload().unwrap();
    server.assert_serves(&other);
}

#[test]
fn an_expired_list_is_refused_when_it_is_read() {
    let authority = Authority::new("ours");
    let directory = authority.server();
    write_lists(&directory, &[authority.revocation_list(&[66], SystemTime::now() - MONTH)]);
    let error = Credentials::load(&directory).unwrap_err().to_string();
    assert!(
        error.contains("ca-crl.pem") && error.contains("\"CN=ours\" expired at") && !error.contains('\n'),
        "{error}"
    );
    // An empty file is no list either.
    write_lists(&directory, &[]);
    assert!(Credentials::load(&directory).unwrap_err().to_string().contains("no list of revoked certificates"));
    write_lists(&directory, &[authority.revocation_list(&[66], in_a_month())]);
    Credentials::load(&directory).unwrap();
}

#[test]
fn a_list_that_expires_meanwhile_admits_nobody_new() {
    let authority = Authority::new("ours");
    let (directory, good) = (authority.server(), authority.good_client());
    let log = Log::start();
    let end = SystemTime::now() + Duration::from_secs(10);
    write_lists(&directory, &[authority.revocation_list(&[66], end)]);
    let server = Server::start(&directory, MIB, Limits::default());
    let mut early = server.secured(&good);
    early.go(false);
    while SystemTime::now() < end {
        sleep(Duration::from_millis(100));
    }
    assert!(server.refusal(&good).contains("alert"));
    log.says("a list in ca-crl.pem has expired");
    assert_eq!(early.ask(command::FLUSH, 0, 0, 0), 0, "who was admitted before goes on");
    authority.revoke(&directory, 66);
    server.credentials.reload().unwrap();
    server.assert_serves(&good);
}

#[test]
fn certificates_that_do_not_say_that_they_are_for_clients_are_refused() {
    let authority = Authority::new("ours");
    let good = authority.client_for(5, Validity::Now, &[Usage::ServerAuth, Usage::ClientAuth]);
    let server = Server::start(&authority.server(), MIB, Limits::default());
    let log = Log::start();
    for (serial, usages) in [(2, &[][..]), (3, &[Usage::Any]), (4, &[Usage::EmailProtection])] {
        let refused = authority.client_for(serial, Validity::Now, usages);
        assert!(server.refusal(&refused).contains("UnsupportedCertificate"), "{usages:?}");
        server.assert_serves(&good);
    }
    log.says("is refused: it does not say that it is for clients; issue it with the extended key usage clientAuth");
    log.says("the certificate of an NBD client from 127.0.0.1:");
}

#[test]
fn new_files_hold_for_new_connections() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (directory, next) = (ours.server(), theirs.server());
    let (good, later) = (ours.good_client(), theirs.good_client());
    let server = Server::start(&directory, MIB, Limits::default());
    let mut early = server.secured(&good);
    early.go(false);
    let put = |names: &[&str]| {
        for name in names {
            std::fs::copy(next.join(name), directory.join(name)).unwrap();
        }
    };
    // A certificate without its key: the old ones stay in use.
    put(&["ca-cert.pem", "server-cert.pem"]);
    let error = server.credentials.reload().unwrap_err().to_string();
    assert!(error.contains("server-cert.pem") && !error.contains('\n'), "{error}");
    server.assert_serves(&good);
    put(&["server-key.pem"]);
    server.assert_serves(&good);
    server.credentials.reload().unwrap();
    server.assert_serves(&later);
    let mut foreign = server.secured(&good);
    assert!(std::io::Write::flush(&mut foreign.0).is_err(), "its server is another one");
    // Who is revoked now was not when it came.
    theirs.revoke(&directory, 1000);
    server.credentials.reload().unwrap();
    assert!(server.refusal(&later).contains("CertificateRevoked"));
    assert_eq!(early.ask(command::FLUSH, 0, 0, 0), 0, "connections that exist go on");
}
