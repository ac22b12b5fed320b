//! A pool whose names are kept in an etcd.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::place::{Pool, refused, signal, until};

/// An etcd that runs, on this machine alone.
struct Etcd {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Etcd {
    fn start() -> Option<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin/etcd");
        let program = std::env::var_os("SURGETANK_ETCD").map_or_else(|| PathBuf::from(program), PathBuf::from);
        if !program.exists() {
            println!(
                "skipped: there is no etcd at {}: `scripts/setup test` builds it where there is Go",
                program.display()
            );
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let (address, peers) = (free(), free());
        let (clients, peers) = (format!("http://{address}"), format!("http://{peers}"));
        let child = Command::new(program)
            .arg("--data-dir")
            .arg(directory.path())
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("etcd listens", || std::net::TcpStream::connect(&address).is_ok());
        Some(Self { child, address, _directory: directory })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_pool_over_etcd_comes_up_once_for_each_name() {
    let Some(etcd) = Etcd::start() else { return };
    let place = tempfile::tempdir().unwrap();
    let store = |name: &str| format!("etcd://{}/{name}", etcd.address);
    let (one, other) = (store("one"), store("other"));
    let up = |store: &str| Pool::up_with(place.path(), "127.0.0.1:0", "2", &["--store", store]);
    let first = up(&one);
    // Its benefactors would have the numbers of the first one's.
    let (code, told) = refused(&["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--store", &one]);
    let expected = format!(
        "--store: pool `one` runs already in the etcd at {}: its benefactor 0 lends from 127.0.0.1:",
        etcd.address
    );
    assert!(code == 1 && told.contains(&expected), "{told}");
    let second = up(&other);
    for pool in [first, second] {
        signal(&pool.child, rustix::process::Signal::TERM);
        assert_eq!(pool.end(), (Some(0), String::new()));
    }
    // What ended without a word has leases for another moment: the next one waits for their end.
    drop(up(&one));
    drop(up(&one));
}

#[test]
fn a_store_that_is_none_gets_one_sentence() {
    let place = tempfile::tempdir().unwrap();
    let (none, file) = (place.path().join("none"), place.path().join("file"));
    fs::write(&file, "no certificate").unwrap();
    let (none, file) = (none.to_str().unwrap(), file.to_str().unwrap());
    let nobody = "etcd://127.0.0.1:1";
    let cases: [(&[&str], i32, &str); 7] = [
        (&["http://127.0.0.1:1"], 2, "`http://127.0.0.1:1` is no store: write etcd://HOST:PORT[,HOST:PORT…][/NAME]"),
        (&["etcd://127.0.0.1"], 2, "`127.0.0.1` is no address: write HOST:PORT, such as 127.0.0.1:2379"),
        (&["etcd://127.0.0.1:1/a/b"], 2, "`a/b` is no name of a pool"),
        (&["etcd://192.0.2.1:1"], 2, "is on another machine: it is called with TLS alone"),
        (&[nobody], 1, "see that it runs there, and whether it wants TLS"),
        (&[nobody, "--store-ca", none], 2, "name a file that can be read"),
        (&[nobody, "--store-ca", file], 1, "etcd at 127.0.0.1:1: "),
    ];
    for (store, status, part) in cases {
        let arguments = [&["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--store"], store].concat();
        let (code, told) = refused(&arguments);
        assert!(code == status && told.contains("--store") && told.contains(part), "{arguments:?}: {code}: {told}");
    }
}
