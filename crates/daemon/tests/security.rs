//! What the daemon leaves for others to see: nothing, whatever the umask, and no secrets in the log. A program of its own: umask and log
//! are the process's.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod common;
#[path = "../../device/tests/front_support/pki.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod pki;

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use common::{Machine, Shape, eventually, pattern, status};
use pki::Authority;
// For `pki`, whose source lies with another crate.
use rcgen as _;
use surgetank_daemon::{Client, Config, Daemon, DevicePhase, Outlook, Request};

const MIB: u64 = 1 << 20;

/// Everything that is logged, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
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
            tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .init();
            log
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Checks a directory and everything in it; says how many files it saw.
fn assert_private(directory: &Path) -> usize {
    let us = rustix::process::geteuid().as_raw();
    let metadata = std::fs::symlink_metadata(directory).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o700, us), "{}", directory.display());
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            seen += assert_private(&path);
            continue;
        }
        assert!(metadata.is_file() || metadata.file_type().is_socket(), "{}", path.display());
        assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o600, us), "{}", path.display());
        seen += 1;
    }
    seen
}

#[test]
fn files_are_private_whatever_the_umask_and_logs_hold_no_secrets() {
    // The umask is the process's; this program's other test gives every file a mode of its own.
    rustix::process::umask(rustix::fs::Mode::empty());
    let log = Log::start();
    let (machine, authority) = (Machine::new(), Authority::new("ours"));
    let (certificates, client_certificates) = (authority.server(), authority.good_client());
    let backing = machine.backing("backing", 64 * MIB);
    let tls = format!("nbd.listen = \"127.0.0.1:0\"\nnbd.tls_certificates = \"{}\"", certificates.display());
    let shape = Shape { device: tls, ..Shape::default() };
    let config = machine.config(&[("data", backing.to_str().unwrap())], &shape);
    let client = Client::new(config.control_socket.clone());

    // A key that others can read is refused before anything is served.
    let key = certificates.join("server-key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refusal = Daemon::start(config.clone()).err().unwrap().to_string();
    assert!(refusal.contains("can be read by others") && !refusal.contains('\n'), "{refusal}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();

    let daemon = Daemon::start(config.clone()).unwrap();
    let mut nbd = crate::common::connect(&machine, "data");
    client.ask(&Request::boost("data")).unwrap();
    eventually("boost", || status(&daemon, "data").phase == DevicePhase::Boost);
    for offset in (0..8 * MIB).step_by(MIB as usize) {
        nbd.write(offset, &pattern(offset, 1, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    // The sockets of control and data; the lock, our name, owner and journal; an image and its record.
    let seen = ["run", "state", "volumes"].map(|name| assert_private(&machine.path(name)));
    assert!(seen[0] >= 2 && seen[1] >= 4 && seen[2] >= 2, "{seen:?}");

    let said = log.text();
    let line = said.lines().find(|line| line.contains("listening for NBD over TLS")).expect("the log says where");
    let address = line.split(" on ").nth(1).unwrap().split_whitespace().next().unwrap();
    let nbdinfo = |uri: &str| Command::new("nbdinfo").args(["--size", uri]).output();
    match nbdinfo(&format!("nbds://{address}/?tls-certificates={}", client_certificates.display())) {
        Ok(output) => {
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), (64 * MIB).to_string(), "{output:?}");
            assert!(!nbdinfo(&format!("nbd://{address}")).unwrap().status.success(), "not in the clear");
        }
        Err(error) => println!("skipped: nbdinfo over TLS ({error})"),
    }
    daemon.stop();
    assert_private(&machine.path("state"));

    let said = log.text();
    assert!(said.len() > 200 && !said.contains("PRIVATE KEY"), "{said}");
    for secret in [key, client_certificates.join("client-key.pem")] {
        for line in std::fs::read_to_string(secret).unwrap().lines().filter(|line| !line.starts_with('-')) {
            assert!(!said.contains(line) && !said.contains(&line[..16]), "a key in the log");
        }
    }

    // What others may write to is not believed.
    let state = machine.path("state");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refusal = Daemon::start(config).err().unwrap().to_string();
    assert!(refusal.contains("others may write to") && refusal.contains("chmod go-w"), "{refusal}");
}

/// One sentence that names what is wrong and what fixes it.
fn assert_refused(config: &Config, parts: &[&str]) {
    let refusal = Daemon::start(config.clone()).err().expect("it does not start").to_string();
    assert!(parts.iter().all(|part| refusal.contains(part)) && !refusal.contains('\n'), "{refusal}");
}

#[test]
fn directories_that_others_may_modify_are_refused() {
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let machine = Machine::new();
    let backing = machine.backing("backing", 16 * MIB);
    let mut config = machine.config(&[("data", backing.to_str().unwrap())], &Shape::default());
    for name in ["state", "run", "volumes", "sockets"] {
        std::fs::create_dir(machine.path(name)).unwrap();
        set_mode(&machine.path(name), 0o700);
    }
    for device in config.devices.values_mut() {
        device.socket = machine.path("sockets/data.sock");
    }
    for name in ["state", "run", "volumes", "sockets"] {
        let path = machine.path(name);
        let chmod = format!("`chmod go-w {}`", path.display());
        for mode in [0o777, 0o1777, 0o770] {
            set_mode(&path, mode);
            assert_refused(&config, &["others may write to", &chmod]);
        }
        set_mode(&path, 0o700);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert_refused(&config, &["belongs to the user 65534", &format!("chown 0 {}", path.display())]);
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
    }
    // The directory above them: others could put another one in the place of each.
    set_mode(machine.directory.path(), 0o777);
    assert_refused(&config, &["others may write to", "on the way to", "chmod go-w"]);
    let refused = Outlook::of(&config).refused;
    assert!(refused[0].contains("others may write to"), "a new binary says so before it takes over: {refused:?}");
    set_mode(machine.directory.path(), 0o1777);
    assert!(Outlook::of(&config).refused.is_empty());
    Daemon::start(config).unwrap().stop();
}
