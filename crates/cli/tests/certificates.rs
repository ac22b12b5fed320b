//! Certificates are taken up without a restart: by `surgetank reload`, and on SIGHUP.

#![allow(clippy::print_stderr, reason = "tests say what they skip")]

#[path = "../../device/tests/front_support/pki.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod pki;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pki::Authority;
// For `pki`, whose source lies with another crate.
use rcgen as _;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    directory: tempfile::TempDir,
    /// Of its TCP socket.
    address: String,
}

impl Server {
    fn start(certificates: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let text = format!(
            "state_directory = \"{}\"\nrun_directory = \"{}\"\n[device.data]\nbacking = \"memory:1 MiB\"\n\
             export = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\nnbd.listen = \"127.0.0.1:0\"\n\
             nbd.tls_certificates = \"{}\"\n[device.plain]\nbacking = \"memory:1 MiB\"\nexport = \"nbd\"\n\
             backing_limits.bandwidth = \"33 MiB/s\"\n",
            at("state"),
            at("run"),
            certificates.display()
        );
        std::fs::write(at("surgetank.toml"), text).unwrap();
        let log = std::fs::File::create(at("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_surgetank"))
            .args(["serve", "--config", &at("surgetank.toml")])
            .env_remove("SURGETANK_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self { child, directory, address: String::new() };
        server.says("listening for NBD over TLS", 1);
        let log = server.log();
        let line = log.lines().find(|line| line.contains("listening for NBD over TLS")).unwrap();
        server.address = line.split("over TLS on ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Waits until the log has said it so many times.
    #[track_caller]
    fn says(&self, expected: &str, times: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.log().matches(expected).count() < times {
            assert!(Instant::now() < until, "it never says \"{expected}\": {}", self.log());
            sleep(Duration::from_millis(10));
        }
    }

    fn reload(&self) -> Output {
        let socket: PathBuf = self.directory.path().join("run/control.sock");
        Command::new(env!("CARGO_BIN_EXE_surgetank")).args(["reload", "--socket"]).arg(socket).output().unwrap()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals our own child, which is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Whether a client is served; unknown where there is no client.
    fn serves(&self, client: &Path) -> Option<bool> {
        let uri = format!("nbds://{}/data?tls-certificates={}", self.address, client.display());
        match Command::new("nbdinfo").args(["--size", &uri]).output() {
            Ok(output) => Some(output.status.success()),
            Err(error) => {
                eprintln!("skipped: an NBD client ({error})");
                None
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn certificates_are_taken_up_without_a_restart() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (directory, next) = (ours.server(), theirs.server());
    let (first, second) = (ours.good_client(), theirs.good_client());
    let mut server = Server::start(&directory);
    assert_ne!(server.serves(&first), Some(false));
    assert_ne!(server.serves(&second), Some(true));
    let put = |name: &str| assert!(std::fs::copy(next.join(name), directory.join(name)).is_ok());

    // Half of them: the old ones stay in use, and who asked is told.
    put("server-cert.pem");
    let answer = server.reload();
    let told = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert_eq!(answer.status.code(), Some(1), "{told}");
    let expected = "device data goes on with the certificates it has: ";
    assert!(told.contains(expected) && told.contains("server-cert.pem") && told.trim().lines().count() == 1, "{told}");
    server.signal(libc::SIGHUP);
    server.says(expected, 2);
    server.signal(libc::SIGUSR2);
    server.says("no upgrade, this daemon goes on", 1);
    assert_ne!(server.serves(&first), Some(false));

    put("server-key.pem");
    put("ca-cert.pem");
    let answer = server.reload();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "certificates taken up: data", "{answer:?}");
    assert_ne!(server.serves(&second), Some(false));
    assert_ne!(server.serves(&first), Some(true));

    theirs.revoke(&directory, 1000);
    server.signal(libc::SIGHUP);
    server.says("the certificates were read again", 2);
    assert_ne!(server.serves(&second), Some(true));
    assert!(server.child.try_wait().unwrap().is_none(), "SIGHUP does not end it");
}
