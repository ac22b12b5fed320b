//! A pool whose names are kept in an etcd.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::etcd_server::Server;
use crate::place::{MIB, Place, Pool, Started, binary, bytes, can_mount, done, refused, run, signal, until};

/// An etcd that answers; `None`: there is none here.
fn etcd() -> Option<Server> {
    let etcd = Server::start(&[])?;
    until("etcd listens", || TcpStream::connect(etcd.address).is_ok());
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
fn a_manager_with_another_key_than_those_of_its_etcd_is_refused_until_it_replaces_theirs() {
    let Some(etcd) = etcd() else { return };
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let store = format!("etcd://{}", etcd.address);
    let of = |name: &str| {
        let directory = at(name);
        ["pool", "manager", "--listen", "127.0.0.1:0", "--directory", &directory, "--store", &store].map(str::to_owned)
    };
    let started = |name: &str, more: &[&str]| {
        let arguments = of(name);
        Started::new(&[&arguments.each_ref().map(String::as_str)[..], more].concat()).0
    };
    let another = |name: &str, more: &[&str]| {
        let arguments = of(name);
        refused(&[&arguments.each_ref().map(String::as_str)[..], more].concat())
    };
    let told_another = |told: &str| {
        let sentence = format!(
            "{}: pool `surgetank` in the etcd at {} is used with another key: copy the file of that name from the directory of one \
             of its managers, or replace their key with --new-key\n",
            at("b/key"),
            etcd.address
        );
        assert!(told.ends_with(&sentence), "{told}");
    };
    // One whose address is in use leaves no key there.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let (code, told) = refused(&["pool", "manager", "--listen", &listen, "--directory", &at("c"), "--store", &store]);
    assert!(code == 2 && told.contains("in use"), "{code}: {told}");
    let first = started("a", &[]);
    let (code, told) = another("b", &[]);
    told_another(&told);
    assert_eq!(code, 2);
    // Also when nobody runs.
    drop(first);
    told_another(&another("b", &[]).1);
    // The key of one that is copied to others is theirs.
    let own = at("b/own");
    fs::rename(at("b/key"), &own).unwrap();
    fs::copy(at("a/key"), at("b/key")).unwrap();
    let [mut first, second] = [started("a", &[]), started("b", &[])];
    drop(second);
    // One that replaces it waits until those that have the former one have ended, and these do not begin again.
    fs::rename(own, at("b/key")).unwrap();
    let (mut renewed, _) = waiting_manager(&at("b"), &etcd, &["--new-key"]);
    assert!(first.0.try_wait().unwrap().is_none());
    signal(&first.0, rustix::process::Signal::TERM);
    assert_eq!(first.0.wait().unwrap().code(), Some(0));
    assert!(first_line(&mut renewed).starts_with("pool://"));
    let (code, told) = another("a", &[]);
    assert!(code == 2 && told.contains("a/key: pool `surgetank`"), "{code}: {told}");
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

/// A manager that waits for an etcd, once it has said so; and how often it has.
fn waiting_manager(directory: &str, etcd: &Server, more: &[&str]) -> (Started, Arc<AtomicUsize>) {
    let store = format!("etcd://{}", etcd.address);
    let mut manager = binary();
    manager
        .args(["pool", "manager", "--directory", directory, "--listen", "127.0.0.1:0", "--store", &store])
        .args(more);
    let mut manager = Started(manager.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (lines, said) = (BufReader::new(manager.0.stderr.take().unwrap()).lines(), Arc::new(AtomicUsize::new(0)));
    let told = Arc::clone(&said);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if line.contains("--store: etcd at ") && line.ends_with("; the manager waits for it") {
                told.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    until("it says that it waits", || said.load(Ordering::SeqCst) > 0);
    (manager, said)
}

fn first_line(manager: &mut Started) -> String {
    let mut line = String::new();
    BufReader::new(manager.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

#[test]
fn a_manager_waits_for_an_etcd_that_starts_later_and_ends_when_it_is_told_to() {
    let Some(mut etcd) = Server::idle(&[]) else { return };
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    let (mut manager, _) = waiting_manager(directory, &etcd, &[]);
    signal(&manager.0, rustix::process::Signal::TERM);
    assert_eq!(manager.0.wait().unwrap().code(), Some(0));
    // One that stands still, so that nothing but time says so.
    etcd.begin();
    // One that is killed while it makes its files never leads again.
    until("etcd answers", || post(etcd.address, "kv/range", r#"{"key":"Lw=="}"#));
    etcd.pause();
    let (mut manager, _) = waiting_manager(directory, &etcd, &[]);
    signal(&manager.0, rustix::process::Signal::TERM);
    assert_eq!(manager.0.wait().unwrap().code(), Some(0));
    etcd.resume();
    etcd.kill();
    let (mut manager, said) = waiting_manager(directory, &etcd, &[]);
    etcd.begin();
    let line = first_line(&mut manager);
    assert!(line.starts_with("pool://127.0.0.1:"), "{line}");
    assert!(said.load(Ordering::SeqCst) <= 3, "each reason is told once");
    let (address, key) = (line.split_once(": ").unwrap().0, place.path().join("key").display().to_string());
    let status =
        || serde_json::from_str::<serde_json::Value>(&done(&["pool", "status", address, "--token", &key, "--json"]));
    until("the room of its store is known", || status().unwrap()["store"].is_object());
    let store = &status().unwrap()["store"];
    assert_eq!((&store["quota_gib"], &store["takes_new_files"]), (&2.0.into(), &true.into()), "{store}");
    let people = done(&["pool", "status", address, "--token", &key]);
    assert!(people.contains("\nstore: ") && people.contains(", quota 2.0 GiB"), "{people}");
    // What is no etcd for a pool ends it at once.
    signal(&manager.0, rustix::process::Signal::TERM);
    assert_eq!(manager.0.wait().unwrap().code(), Some(0));
    etcd.kill();
    etcd.set(&["--max-txn-ops", "64"]);
    etcd.begin();
    let store = format!("etcd://{}", etcd.address);
    let few = run(&["pool", "manager", "--directory", directory, "--listen", "127.0.0.1:0", "--store", &store]);
    let told = String::from_utf8(few.stderr).unwrap();
    assert!(few.status.code() == Some(1) && told.contains("--max-txn-ops=128 or more"), "{told}");
}

#[test]
fn a_mount_over_an_etcd_that_is_short_of_space_makes_no_file_and_keeps_what_it_has() {
    if !can_mount() {
        return;
    }
    let Some(etcd) = Server::start(&["--quota-backend-bytes", "16777216"]) else { return };
    until("etcd listens", || TcpStream::connect(etcd.address).is_ok());
    let place = Place::new();
    let pool = Pool::up_with(&place.at("pool"), "127.0.0.1:0", "2", &["--store", &format!("etcd://{}", etcd.address)]);
    place.mount(&pool, "mnt");
    let mut open = fs::File::create(place.at("mnt/open")).unwrap();
    let content = bytes(1, 3 * MIB);
    open.write_all(&content[..MIB]).unwrap();
    until("the room of its store is known", || pool.status()["store"].is_object());
    // Etcd says itself how full it is: by the manager's looks alone, one could fill more between two of them than is left. It is full by the
    // size of its file, which on a slow disk grows beyond what is in use.
    let quota = 16 * MIB as u64;
    let mut number = 0;
    until("new files are refused", || {
        let (in_use, size) = room(etcd.address);
        if size >= quota * 90 / 100 {
            defragment(etcd.address);
        }
        if in_use < quota * 82 / 100 {
            fill(etcd.address, number, 96);
            number += 1;
        }
        pool.status()["store"]["takes_new_files"] == false
    });
    defragment(etcd.address);
    let refused = fs::File::create(place.at("mnt/new")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    let people = done(&["pool", "status", &pool.address, "--token", &pool.key]);
    assert!(people.contains("etcd is short of space (") && people.contains("raise --quota-backend-bytes"), "{people}");
    open.write_all(&content[MIB..]).unwrap();
    open.sync_all().unwrap();
    drop(open);
    done(&["pool", "wait", &place.text("mnt/open"), "--state", "drained"]);
    assert!(fs::read(place.at("target/open")).unwrap() == content);
    fs::remove_file(place.at("mnt/open")).unwrap();
    until("it is unmounted", || run(&["umount", &place.text("mnt")]).status.success());
}

/// Puts a key of somebody else.
fn fill(etcd: SocketAddr, number: u32, kib: usize) {
    // Three bytes that are zero are four letters.
    let body = format!(r#"{{"key":"{number:04}","value":"{}"}}"#, "A".repeat(kib * 1024 / 3 * 4));
    // Etcd refuses a request that its disk kept waiting.
    until("a key is put", || post(etcd, "kv/put", &body));
}

/// Makes etcd's file as small as what is in use.
fn defragment(etcd: SocketAddr) {
    until("the file is made smaller", || post(etcd, "maintenance/defragment", "{}"));
}

/// Bytes in use of etcd's file, and of the file.
fn room(etcd: SocketAddr) -> (u64, u64) {
    let mut room = None;
    let asked = || {
        let answer = ask(etcd, "maintenance/status", "{}").ok()?;
        let status: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        // Its gateway writes integers of 64 bits as text.
        let of = |name: &str| status[name].as_str()?.parse().ok();
        Some((of("dbSizeInUse")?, of("dbSize")?))
    };
    until("etcd says how full it is", || {
        room = asked();
        room.is_some()
    });
    room.unwrap()
}

/// Asks etcd's gateway; whether it has done it.
fn post(etcd: SocketAddr, what: &str, body: &str) -> bool {
    ask(etcd, what, body).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Asks etcd's gateway; its answer with the headers.
fn ask(etcd: SocketAddr, what: &str, body: &str) -> std::io::Result<String> {
    let host = "Host: etcd\r\nConnection: close";
    let request = format!("POST /v3/{what} HTTP/1.1\r\n{host}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut connection = TcpStream::connect(etcd)?;
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
