//! A pool whose names are kept in an etcd.

use std::fs;

use crate::etcd_server::Server;
use crate::place::{MIB, Place, Pool, Started, bytes, can_mount, done, refused, run, signal, until};

/// An etcd that answers; `None`: there is none here.
fn etcd() -> Option<Server> {
    let etcd = Server::start(&[])?;
    until("etcd listens", || std::net::TcpStream::connect(etcd.address).is_ok());
    Some(etcd)
}

#[test]
fn a_pool_over_etcd_comes_up_once_for_each_name() {
    let Some(etcd) = etcd() else { return };
    let place = tempfile::tempdir().unwrap();
    let store = |name: &str| format!("etcd://{}/{name}", etcd.address);
    let (one, other) = (store("one"), store("other"));
    let up = |store: &str| Pool::up_with(place.path(), "127.0.0.1:0", "2", &["--store", store]);
    let first = up(&one);
    // Its benefactors would have the numbers of the first one's.
    let directory = place.path().to_str().unwrap();
    let again =
        ["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--directory", directory, "--store", &one];
    let (code, told) = refused(&again);
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
fn managers_in_processes_of_their_own_share_an_etcd_and_any_may_end() {
    if !can_mount() {
        return;
    }
    let Some(etcd) = etcd() else { return };
    let place = Place::new();
    let (directory, key, store) = (place.text("pool"), place.text("pool/key"), format!("etcd://{}", etcd.address));
    let manager = || {
        let (process, line) =
            Started::new(&["pool", "manager", "--directory", &directory, "--listen", "127.0.0.1:0", "--store", &store]);
        (process, line.split_once(": ").unwrap().0.strip_prefix("pool://").unwrap().to_owned())
    };
    let (mut managers, addresses): (Vec<Started>, Vec<String>) = (0..3).map(|_| manager()).unzip();
    let (addresses, pool) = (addresses.join(","), format!("pool://{}", addresses.join(",")));
    let benefactor = |number: &'static str| {
        let arguments = ["pool", "benefactor", "--managers", &addresses, "--memory", "64 MiB", "--key", &key];
        let more = ["--listen", "127.0.0.1:0", "--domain", number, "--id", number];
        Started::new(&[&arguments[..], &more[..]].concat()).0
    };
    let _benefactors = [benefactor("1"), benefactor("2")];
    let (target, point) = (place.text("target"), place.text("mnt"));
    until("it is mounted", || run(&["mount", &pool, &point, "--target", &target, "--token", &key]).status.success());
    for (seed, name) in (1..).zip(["one", "two", "three"]) {
        fs::write(place.at("mnt").join(name), bytes(seed, 5 * MIB)).unwrap();
        // The last one goes on alone.
        if managers.len() > 1 {
            let mut first = managers.remove(0);
            first.0.kill().unwrap();
        }
    }
    for (seed, name) in (1..).zip(["one", "two", "three"]) {
        done(&["pool", "wait", &place.at("mnt").join(name).display().to_string(), "--state", "drained"]);
        assert!(fs::read(place.at("target").join(name)).unwrap() == bytes(seed, 5 * MIB), "{name}");
    }
    until("it is unmounted", || run(&["umount", &point]).status.success());
}

#[test]
fn a_store_that_is_none_gets_one_sentence() {
    let place = tempfile::tempdir().unwrap();
    let (none, file) = (place.path().join("none"), place.path().join("file"));
    fs::write(&file, "no certificate").unwrap();
    let (none, file) = (none.to_str().unwrap(), file.to_str().unwrap());
    let (nobody, directory) = ("etcd://127.0.0.1:1", place.path().to_str().unwrap());
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
        let up = ["pool", "up", "--listen", "127.0.0.1:0", "--memory", "8 MiB", "--directory", directory, "--store"];
        let arguments = [&up[..], store].concat();
        let (code, told) = refused(&arguments);
        assert!(code == status && told.contains("--store") && told.contains(part), "{arguments:?}: {code}: {told}");
    }
}
