//! The store in an etcd that ends, stands still, is full, too old or not one, and whose answers are lost.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::etcd::{Proxy, base64, config, connect, disarm, gateway, put_raw};
use crate::support::etcd_server::Server;
use crate::support::{run, until};
use surgetank_pool::meta::etcd::{Config, Tls};
use surgetank_pool::meta::{Etcd, LeaseEnded, MetaStore};
use surgetank_pool_core::id::{Inode, Revision, SessionId};
use surgetank_pool_core::meta::store::{Lease, Transaction};
use surgetank_pool_core::meta::{Compare, Key, Kind, Name, Node, Outcome, Prefix, Value, Write};

fn counter() -> Key {
    Key::Entry(Inode(1), Name::new(b"counter").unwrap())
}

async fn put(store: &dyn MetaStore, key: Key, value: Value) -> Outcome {
    store.commit(&Transaction { compares: Vec::new(), writes: vec![Write::Put(key, value)] }).await.unwrap()
}

/// Adds one to the counter, once for each number, whatever becomes of transactions.
async fn add(store: &dyn MetaStore, worker: u64, number: u64, unknown: &AtomicU64) {
    let receipt = Key::Receipt(worker, number);
    loop {
        let Ok(read) = store.read(&[counter(), receipt.clone()], &[]).await else { continue };
        let [Some(stored), None] = &read.keys[..] else { return };
        let Value::Entry(Inode(count)) = stored.value else { panic!("{stored:?}") };
        let compares = vec![Compare::Modified(counter(), stored.modified), Compare::Absent(receipt.clone())];
        let writes =
            vec![Write::Put(counter(), Value::Entry(Inode(count + 1))), Write::Put(receipt.clone(), Value::Receipt)];
        match store.commit(&Transaction { compares, writes }).await.unwrap() {
            Outcome::Committed(_) => return,
            Outcome::Refused(failed) => assert!(!failed.is_empty() && failed.iter().all(|at| *at < 2), "{failed:?}"),
            Outcome::Unknown => drop(unknown.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[test]
fn no_transaction_is_lost_or_takes_place_twice_when_etcd_ends_or_its_answers_are_lost() {
    const WORKERS: u64 = 4;
    const EACH: u64 = 60;
    let Some(mut server) = Server::start(&[]) else { return };
    run(async {
        let store = connect(server.address, "pool").await;
        assert!(matches!(put(&store, counter(), Value::Entry(Inode(0))).await, Outcome::Committed(_)));
        let proxy = Proxy::start(server.address).await;
        let unknown = Arc::new(AtomicU64::new(0));
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..WORKERS {
            let store = connect(proxy.address, "pool").await;
            let unknown = Arc::clone(&unknown);
            workers.spawn(async move {
                for number in 0..EACH {
                    add(&store, worker, number, &unknown).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        let mut rounds = 0;
        while !workers.is_empty() {
            if rounds < 8 {
                proxy.lose(Duration::from_millis(50)).await;
                if rounds % 4 == 3 {
                    server.kill();
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    server.begin();
                }
                rounds += 1;
            }
            let ended = tokio::time::timeout(Duration::from_millis(150), workers.join_next()).await;
            if let Ok(Some(worker)) = ended {
                worker.unwrap();
            }
        }
        let read = store.read(&[counter()], &[]).await.unwrap();
        assert_eq!(read.keys[0].as_ref().unwrap().value, Value::Entry(Inode(WORKERS * EACH)));
        assert!(unknown.load(Ordering::Relaxed) > 0, "answers were lost");
        assert_eq!(proxy.cuts.load(Ordering::SeqCst), rounds);
    });
}

#[test]
fn a_lease_outlasts_a_restart_of_etcd_and_one_that_has_ended_never_counts_again() {
    let Some(mut server) = Server::start(&[]) else { return };
    run(async {
        let store = connect(server.address, "pool").await;
        let key = |number| Key::Writer(Inode(1), SessionId(number));
        let lease = store.grant(Duration::from_secs(8)).await.unwrap();
        let write = |number, lease| Transaction {
            compares: Vec::new(),
            writes: vec![Write::PutLeased(key(number), Value::Session(SessionId(1)), lease)],
        };
        assert!(matches!(store.commit(&write(1, lease)).await, Ok(Outcome::Committed(_))));
        // It was gone for longer than the lease: nobody could renew it, so it has its whole time again.
        server.kill();
        tokio::time::sleep(Duration::from_secs(9)).await;
        server.begin();
        until("it renews", async || match store.renew(lease).await {
            Ok(lasts) => lasts || panic!("the lease has ended"),
            Err(_) => false,
        })
        .await;
        assert!(store.read(&[key(1)], &[]).await.unwrap().keys[0].is_some());
        // It stands still for longer than the lease: the clock of its machine does not, and the lease ends.
        server.pause();
        tokio::time::sleep(Duration::from_secs(11)).await;
        server.resume();
        until("the lease has ended", async || store.renew(lease).await.is_ok_and(|lasts| !lasts)).await;
        assert_eq!(store.read(&[key(1)], &[]).await.unwrap().keys, [None]);
        assert_eq!(store.commit(&write(2, lease)).await, Err(LeaseEnded(lease)));
        // Of several leases the one that has ended is named; and a lease 0 is none.
        let other = store.grant(Duration::from_secs(60)).await.unwrap();
        let mut both = write(3, other);
        both.writes.extend(write(4, lease).writes);
        assert_eq!(store.commit(&both).await, Err(LeaseEnded(lease)));
        assert_eq!(store.commit(&write(5, Lease(0))).await, Err(LeaseEnded(Lease(0))));
        assert!(store.read(&[], &[Prefix::AllWriters]).await.unwrap().prefixes[0].is_empty(), "nothing took place");
    });
}

#[test]
fn a_full_etcd_takes_nothing_and_goes_on_when_it_has_room_again() {
    let Some(mut server) = Server::start(&["--quota-backend-bytes", "6291456"]) else { return };
    run(async {
        let store = connect(server.address, "pool").await;
        let lease = store.grant(Duration::from_secs(3600)).await.unwrap();
        let large = |number: u64| {
            let node = Node::new(Kind::Link(vec![7; 1 << 20]), surgetank_pool_core::id::MountId(1), None, (0, 0, 0));
            (Key::Node(Inode(number)), Value::Node(node))
        };
        let mut kept = 0;
        loop {
            let (key, value) = large(kept);
            match put(&store, key.clone(), value).await {
                Outcome::Committed(_) => kept += 1,
                // Refused, or only answered late.
                Outcome::Unknown if store.read(&[key], &[]).await.unwrap().keys[0].is_none() => break,
                Outcome::Unknown => kept += 1,
                Outcome::Refused(failed) => panic!("{failed:?}"),
            }
            assert!(kept < 20, "it fills");
        }
        let read = store.read(&[], &[Prefix::Nodes]).await.unwrap();
        assert_eq!(read.prefixes[0].len() as u64, kept, "what it has is there, and nothing else");
        until("leases last", async || store.renew(lease).await.ok() == Some(true)).await;
        // Room, as an operator makes it: a larger quota, and the alarm is disarmed.
        server.kill();
        server.set(&["--quota-backend-bytes", "1073741824"]);
        server.begin();
        until("it answers", async || store.read(&[counter()], &[]).await.is_ok()).await;
        until("the alarm is disarmed", async || disarm(server.address).await).await;
        until("it takes more", async || {
            matches!(put(&store, counter(), Value::Entry(Inode(1))).await, Outcome::Committed(_))
        })
        .await;
        until("the lease has lasted", async || store.renew(lease).await.ok() == Some(true)).await;
    });
}

#[test]
fn what_is_no_etcd_for_a_pool_is_told_in_a_sentence() {
    let Some(server) = Server::start(&[]) else { return };
    let Some(few) = Server::start(&["--max-txn-ops", "64"]) else { return };
    let Some(many) = Server::start(&["--max-txn-ops", "4096"]) else { return };
    run(async {
        let said = async |address, pool| match Etcd::connect(&config(address, pool)).await {
            Ok(_) => panic!("it is one"),
            Err(error) => error.to_string(),
        };
        assert_eq!(connect(server.address, "pool").await.limits().operations, 128);
        assert_eq!(connect(many.address, "pool").await.limits().operations, 4096);
        until("it has started", async || !said(few.address, "pool").await.contains("as etcd does")).await;
        let prefix = format!("etcd at {}: ", few.address);
        assert_eq!(
            said(few.address, "pool").await,
            format!(
                "{prefix}it takes fewer than 128 operations in a transaction: start it with --max-txn-ops=128 or more"
            )
        );
        // Nobody listens.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nobody = said(free, "pool").await;
        assert!(nobody.ends_with("see that it runs there, and whether it wants TLS"), "{nobody}");
        // Keys of something else, which are left as they are; another format of ours.
        let other = connect(server.address, "else").await;
        let strange = Transaction { compares: Vec::new(), writes: vec![Write::Put(counter(), Value::Receipt)] };
        assert!(matches!(other.commit(&strange).await, Ok(Outcome::Committed(_))));
        put_raw(server.address, b"/strange/key", b"1").await;
        let strange = said(server.address, "strange").await;
        assert!(
            strange.ends_with("its keys below /strange/ are not a pool's: give the pool another name"),
            "{strange}"
        );
        put_raw(server.address, b"/else/=", b"surgetank pool 2").await;
        let format = said(server.address, "else").await;
        assert!(
            format.ends_with(
                "pool `else` has the format `surgetank pool 2`, and this program reads `surgetank pool 1`: use the program that made it"
            ),
            "{format}"
        );
        // It stands still.
        server.pause();
        let still = said(server.address, "pool").await;
        server.resume();
        assert!(still.ends_with("it does not answer in time: see that it runs and has a leader"), "{still}");
    });
}

#[test]
fn a_user_of_etcd_may_do_what_its_role_says_and_nobody_else_anything() {
    let Some(mut server) = Server::start(&[]) else { return };
    run(async {
        drop(connect(server.address, "pool").await);
        let range = format!(
            r#"{{"name":"pools","perm":{{"permType":"READWRITE","key":"{}","range_end":"{}"}}}}"#,
            base64(b"/pool/"),
            base64(b"/pool0")
        );
        for (what, body) in [
            ("auth/user/add", r#"{"name":"root","password":"first"}"#),
            ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
            ("auth/role/add", r#"{"name":"pools"}"#),
            ("auth/role/grant", &range),
            ("auth/user/add", r#"{"name":"manager","password":"second"}"#),
            ("auth/user/grant", r#"{"user":"manager","role":"pools"}"#),
            ("auth/enable", "{}"),
        ] {
            assert!(gateway(server.address, what, body).await.is_some(), "{what}");
        }
        let as_user = async |pool: &str, user: Option<(&str, &str)>| {
            let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
            Etcd::connect(&Config { user, ..config(server.address, pool) }).await
        };
        let refusals = [("pool", None), ("pool", Some(("manager", "first"))), ("other", Some(("manager", "second")))];
        for (pool, user) in refusals {
            let said = as_user(pool, user).await.map(drop).unwrap_err().to_string();
            let remedy = "name a user of etcd, with its password, who may read and write the pool's keys";
            assert!(said.contains("it refuses (etcdserver: ") && said.ends_with(remedy), "{user:?}: {said}");
        }
        let store = as_user("pool", Some(("manager", "second"))).await.unwrap();
        assert!(matches!(put(&store, counter(), Value::Entry(Inode(1))).await, Outcome::Committed(_)));
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        assert!(store.renew(lease).await.unwrap());
        assert!(store.usage().await.unwrap().is_some_and(|usage| usage.quota > 0));
        let said = store.compact(Revision(1)).await.unwrap_err().to_string();
        assert!(
            said.ends_with("only a user with the role root may: start etcd with --auto-compaction-retention=5m"),
            "{said}"
        );
        // etcd forgets its tokens when it ends: another one is asked for.
        server.kill();
        server.begin();
        until("it is a user again", async || {
            matches!(put(&store, counter(), Value::Entry(Inode(2))).await, Outcome::Committed(_))
        })
        .await;
        assert!(store.renew(lease).await.unwrap());
        store.end(lease).await.unwrap();
    });
}

#[test]
fn etcd_is_called_with_tls_and_shown_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let [of_server, of_client] = ["server", "client"].map(|of| authority.issue(directory.path(), of));
    let ca = directory.path().join("authority.pem");
    std::fs::write(&ca, &authority.certificate).unwrap();
    let files = [&of_server.0, &of_server.1, &ca].map(|path| path.to_str().unwrap());
    let options =
        ["--cert-file", files[0], "--key-file", files[1], "--client-cert-auth", "--trusted-ca-file", files[2]];
    let Some(server) = Server::start(&options) else { return };
    run(async {
        let identity =
            |files: &(PathBuf, PathBuf)| Some((std::fs::read(&files.0).unwrap(), std::fs::read(&files.1).unwrap()));
        let with = async |tls: Option<Tls>| Etcd::connect(&Config { tls, ..config(server.address, "pool") }).await;
        let tls = |authority: &Authority, identity| {
            Some(Tls { authority: authority.certificate.clone().into_bytes(), identity })
        };
        until("it answers", async || with(tls(&authority, identity(&of_client))).await.is_ok()).await;
        let store = with(tls(&authority, identity(&of_client))).await.unwrap();
        assert!(matches!(put(&store, counter(), Value::Entry(Inode(1))).await, Outcome::Committed(_)));
        for wrong in [None, tls(&authority, None), tls(&other, identity(&of_client))] {
            let said = with(wrong).await.map(drop).unwrap_err().to_string();
            assert!(said.ends_with("see that it runs there, and whether it wants TLS"), "{said}");
        }
    });
}

/// An authority for certificates.
struct Authority {
    certificate: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap().pem(), issuer: rcgen::Issuer::new(params, key) }
    }

    /// The files of a certificate and its key, of 127.0.0.1.
    fn issue(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let files = (directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem")));
        std::fs::write(&files.0, certificate).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}

#[test]
fn whoever_waits_for_a_change_hears_of_it_after_etcd_was_gone() {
    let Some(mut server) = Server::start(&[]) else { return };
    run(async {
        let (store, other) = (connect(server.address, "pool").await, connect(server.address, "pool").await);
        let before = other.read(&[], &[]).await.unwrap().revision;
        let waiting = async { store.changed(Revision(before.0)).await };
        let change = async {
            server.kill();
            server.begin();
            until("it takes a change", async || {
                matches!(put(&other, counter(), Value::Entry(Inode(1))).await, Outcome::Committed(_))
            })
            .await;
        };
        let heard = tokio::time::timeout(crate::support::LONG, async { tokio::join!(waiting, change) }).await;
        assert!(heard.is_ok());
    });
}
