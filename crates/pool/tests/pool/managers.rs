//! Several managers over one etcd: they end, and it ends, is gone and is paused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{ENDING, LONG, MIB, Pool, bytes, free, read, run, same, until, write};
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::meta::{Embedded, LeaseEnded, MetaStore, Snapshot, Unavailable};
use surgetank_pool::rpc::Listener;
use surgetank_pool::security::Credentials;
use surgetank_pool::security::token::Key as PoolKey;
use surgetank_pool::{benefactor, manager};
use surgetank_pool_core::id::{BenefactorId, Domain, Revision};
use surgetank_pool_core::meta::store::{Lease, Limits, Transaction};
use surgetank_pool_core::meta::{Durability, FileState, Key, Outcome, Prefix, Write};
use surgetank_pool_core::placement::Media;

#[test]
fn clients_and_roles_go_over_to_the_managers_that_are_left() {
    let Some(mut pool) = Pool::over_etcd(3, 3, 96) else { return };
    run(async {
        let client = pool.client(2).await;
        let content = bytes(1, 24 * MIB + 5);
        let mut writer = client.create("file").await.unwrap();
        for (at, part) in content.chunks(8 * MIB).enumerate() {
            writer.write(part).await.unwrap();
            writer.sync().await.unwrap();
            // Publisher and warden are among those who end.
            if at < 2 {
                pool.managers[at].kill();
            }
        }
        writer.close().await.unwrap();
        same("committed", &read(&client, "file").await.unwrap(), &content);
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
        pool.restart_manager(0);
        pool.managers[2].kill();
        client.unlink("file").await.unwrap();
        until("the warden that is left has everything dropped", async || {
            let status = client.status().await.unwrap();
            free(&status) == 3 * 96 && status.journal == 0
        })
        .await;
        assert!(!pool.target().join("file").exists());
    });
}

#[test]
fn another_pool_in_the_place_of_a_manager_keeps_nobody_from_those_that_are_left() {
    let mut pool = Pool::new(2, 2, 96).with_sessions_of(ENDING);
    let mut other = Pool::new(0, 0, 96);
    run(async {
        let client = pool.client(2).await;
        let content = bytes(1, 5 * MIB);
        write(&client, "file", &content).await.unwrap();
        pool.managers[0].kill();
        other.start_manager(&pool.managers[0].address);
        // Benefactors stay, and so does the session: for longer than any lease lasts.
        tokio::time::sleep(2 * pool.session).await;
        client.wait_drained("file", LONG).await.unwrap();
        write(&client, "another", &content).await.unwrap();
        client.wait_drained("another", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("another")).unwrap(), &content);
        // Where nobody is left who knows the token, nobody waits.
        pool.managers[1].kill();
        other.start_manager(&pool.managers[1].address);
        let refused = client.stat("file").await.unwrap_err();
        assert!(
            matches!(&refused, client::Error::NotAllowed(why) if why.contains("not one of this pool")),
            "{refused}"
        );
    });
}

#[test]
fn a_sync_while_benefactors_reach_no_manager_waits_and_takes_the_room_of_its_bytes_alone() {
    let mut pool = Pool::new(1, 2, 24);
    // Benefactors know the first one alone, and the client the second one.
    pool.start_manager("127.0.0.1:0");
    run(async {
        let mut config = pool.config(2);
        config.managers = vec![pool.managers[1].address.clone()];
        let client = pool.client_of(config).await;
        let content = bytes(1, 5 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..MIB]).await.unwrap();
        pool.managers[0].kill();
        // Their leases are over, the pool holds, and the store refuses what names them.
        until("no benefactor has a lease", async || pool.with_leases().await.is_empty()).await;
        writer.write(&content[MIB..]).await.unwrap();
        let sync = tokio::spawn(async move { writer.sync().await.map(|()| writer) });
        tokio::time::sleep(Duration::from_secs(1)).await;
        if sync.is_finished() {
            panic!("nobody can have committed it: {:?}", sync.await.unwrap().err());
        }
        pool.restart_manager(0);
        sync.await.unwrap().unwrap().close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
        client.unlink("file").await.unwrap();
        // Of what was put in vain nothing is left, though its session goes on.
        until("there is room as before", async || {
            client.status().await.unwrap().benefactors.iter().all(|(_, credits)| *credits == 24)
        })
        .await;
    });
}

#[test]
fn copies_lie_apart_when_no_benefactor_had_a_lease_for_a_while() {
    let mut pool = Pool::new(1, 2, 48);
    pool.start_manager("127.0.0.1:0");
    run(async {
        let mut config = pool.config(2);
        config.managers = vec![pool.managers[1].address.clone()];
        let client = pool.client_of(config).await;
        let content = |file: u64| bytes(file, MIB);
        let mut writers = Vec::new();
        for file in 0..12 {
            let mut writer = client.create(&format!("file{file}")).await.unwrap();
            writer.write(&content(file)).await.unwrap();
            writers.push(writer);
        }
        pool.managers[0].kill();
        until("no benefactor has a lease", async || pool.with_leases().await.is_empty()).await;
        // Each finds that both of its benefactors are gone, and then that both are there.
        let syncs =
            writers.into_iter().map(|mut writer| tokio::spawn(async move { writer.sync().await.map(|()| writer) }));
        let syncs: Vec<_> = syncs.collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // One comes back before the other, and is there alone for a while.
        pool.benefactors[0].stall(Duration::from_millis(1500));
        pool.restart_manager(0);
        let mut open = Vec::new();
        for sync in syncs {
            open.push(sync.await.unwrap().unwrap());
        }
        // Nothing is at the target as long as they are open.
        pool.benefactors[1].kill();
        for file in 0..12 {
            let path = format!("file{file}");
            same(&path, &read(&client, &path).await.unwrap(), &content(file));
        }
    });
}

#[test]
fn a_benefactor_that_was_replaced_and_is_alive_keeps_nothing_of_what_was_put_there() {
    let mut pool = Pool::new(1, 3, 24);
    pool.start_manager("127.0.0.1:0");
    // The first one alone reaches the first manager alone.
    (1..3).for_each(|id| pool.restart_benefactor(id));
    run(async {
        let mut config = pool.config(3);
        config.managers = vec![pool.managers[1].address.clone()];
        let client = pool.client_of(config).await;
        let content = bytes(1, 5 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content).await.unwrap();
        pool.managers[0].kill();
        // Its lease is over, and there is nobody in its place.
        until("its lease is over", async || !pool.with_leases().await.contains(&BenefactorId(0))).await;
        let sync = tokio::spawn(async move { writer.sync().await.map(|()| writer) });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!sync.is_finished(), "two copies are not three");
        pool.start_benefactor();
        let writer = sync.await.unwrap().unwrap();
        pool.restart_manager(0);
        until("what was put there in vain is room again, while the file is open", async || {
            let all = client.status().await.unwrap().benefactors;
            all.iter().map(|(_, credits)| *credits).eq([24, 19, 19, 19])
        })
        .await;
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn without_managers_or_without_etcd_groups_fill_on_and_a_sync_waits() {
    let Some(mut pool) = Pool::over_etcd(2, 3, 96) else { return };
    run(async {
        let client = pool.client(2).await;
        let content = bytes(2, 18 * MIB);
        let mut writer = client.create("file").await.unwrap();
        writer.write(&content[..3 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        for (round, part) in content[3 * MIB..].chunks(5 * MIB).enumerate() {
            let managers_end = round % 2 == 0;
            // A group is placed before they end; from then on it is filled without anybody.
            writer.write(&part[..MIB]).await.unwrap();
            match (managers_end, &mut pool.etcd) {
                (false, Some(etcd)) => etcd.kill(),
                _ => pool.managers.iter_mut().for_each(|manager| manager.kill()),
            }
            writer.write(&part[MIB..]).await.unwrap();
            let sync = tokio::spawn(async move { writer.sync().await.map(|()| writer) });
            tokio::time::sleep(Duration::from_millis(1500)).await;
            if sync.is_finished() {
                panic!("nobody can have committed it, round {round}: {:?}", sync.await.unwrap().err());
            }
            match (managers_end, &mut pool.etcd) {
                (false, Some(etcd)) => etcd.begin(),
                _ => (0..2).for_each(|at| pool.restart_manager(at)),
            }
            writer = sync.await.unwrap().unwrap();
            same("committed", &read(&client, "file").await.unwrap(), &content[..3 * MIB + (round + 1) * 5 * MIB]);
        }
        writer.close().await.unwrap();
        client.wait_drained("file", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("file")).unwrap(), &content);
    });
}

#[test]
fn an_etcd_that_stands_still_for_longer_than_all_leases_loses_nothing_and_nothing_lies() {
    let Some(pool) = Pool::over_etcd(2, 3, 96) else { return };
    let pool = pool.with_sessions_of(Duration::from_secs(2));
    run(async {
        let client = pool.client(2).await;
        let content = bytes(3, 9 * MIB);
        write(&client, "closed", &content).await.unwrap();
        let mut writer = client.create("open").await.unwrap();
        writer.write(&content[..4 * MIB]).await.unwrap();
        writer.sync().await.unwrap();
        let etcd = pool.etcd.as_ref().unwrap();
        etcd.pause();
        writer.write(&content[4 * MIB..]).await.unwrap();
        let sync = tokio::spawn(async move { writer.sync().await });
        // All leases of the pool are over, of managers and benefactors as well, when it goes on.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!sync.is_finished(), "nobody can have committed it");
        etcd.resume();
        let synced = sync.await.unwrap();
        // The managers begin anew, and benefactors join again in the lives in which they have everything.
        let again = PoolClient::begin(pool.config(2)).await.unwrap();
        same("what was closed", &read(&again, "closed").await.unwrap(), &content);
        let found = read(&again, "open").await.unwrap();
        let expected = if synced.is_ok() { &content[..] } else { &content[..4 * MIB] };
        same("what was synced", &found, expected);
        again.wait_drained("closed", LONG).await.unwrap();
        same("at the target", &std::fs::read(pool.target().join("closed")).unwrap(), &content);
        if synced.is_err() {
            until("what its session left is marked", async || again.stat("open").await.is_ok_and(|stat| stat.torn))
                .await;
        }
        write(&again, "later", &content).await.unwrap();
        again.wait_drained("later", LONG).await.unwrap();
        assert_ne!(again.stat("later").await.unwrap().state, Some(FileState::Failed));
    });
}

/// A store that takes little in a transaction, as an etcd with default options does in a large pool.
struct Small(Embedded);

#[tonic::async_trait]
impl MetaStore for Small {
    fn limits(&self) -> Limits {
        Limits { operations: 8, bytes: 4096 }
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        self.0.read(keys, prefixes).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        let operations = transaction.compares.len().max(transaction.writes.len());
        assert!(operations <= self.limits().operations, "{transaction:?}");
        self.0.commit(transaction).await
    }

    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable> {
        self.0.grant(time).await
    }

    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable> {
        self.0.renew(lease).await
    }

    async fn end(&self, lease: Lease) -> Result<(), Unavailable> {
        self.0.end(lease).await
    }

    async fn changed(&self, since: Revision) {
        self.0.changed(since).await;
    }
}

/// A store of which the first transaction that takes away a benefactor's former life comes late, when it is told to; until then nobody
/// knows what has become of it.
struct Late {
    store: Embedded,
    kept: Mutex<Option<Transaction>>,
    asked: AtomicBool,
}

#[tonic::async_trait]
impl MetaStore for Late {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        self.store.read(keys, prefixes).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        let takes_away = matches!(&transaction.writes[..], [Write::Delete(Key::Benefactor(_))]);
        if takes_away && !self.asked.swap(true, Ordering::SeqCst) {
            *self.kept.lock().unwrap() = Some(transaction.clone());
            return Ok(Outcome::Unknown);
        }
        self.store.commit(transaction).await
    }

    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable> {
        self.store.grant(time).await
    }

    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable> {
        self.store.renew(lease).await
    }

    async fn end(&self, lease: Lease) -> Result<(), Unavailable> {
        self.store.end(lease).await
    }

    async fn changed(&self, since: Revision) {
        self.store.changed(since).await;
    }
}

#[test]
fn a_copy_of_a_benefactors_joining_that_comes_late_does_not_take_it_away() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("store")).unwrap();
        let store = Arc::new(Late { store, kept: Mutex::default(), asked: AtomicBool::new(false) });
        let credentials = Credentials::new(PoolKey::generate().unwrap());
        let listener = Listener::bind("127.0.0.1:0", &credentials).unwrap();
        let managers = vec![listener.address().unwrap().to_string()];
        tokio::spawn(manager::run(manager::Config::default(), Arc::clone(&store) as Arc<dyn MetaStore>, listener));
        let (ssd, leaving, advertise) = (None, false, None);
        let (id, domain, memory) = (BenefactorId(0), Domain(0), (16 * MIB) as u64);
        let config = benefactor::Config { id, domain, memory, ssd, leaving, managers, advertise, scrub: None };
        tokio::spawn(benefactor::run(config, Listener::bind("127.0.0.1:0", &credentials).unwrap()));
        let present = async || store.read(&[Key::Benefactor(id)], &[]).await.unwrap().keys[0].is_some();
        until("it has joined", present).await;
        let late = store.kept.lock().unwrap().take().unwrap();
        assert!(matches!(store.commit(&late).await, Ok(Outcome::Refused(_))), "{late:?}");
        assert!(present().await);
    });
}

#[test]
fn a_change_that_the_store_cannot_take_is_refused_at_once_with_the_remedy() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let store = Small(Embedded::open(&directory.path().join("store")).unwrap());
        let credentials = Credentials::new(PoolKey::generate().unwrap());
        let listener = Listener::bind("127.0.0.1:0", &credentials).unwrap();
        let address = listener.address().unwrap().to_string();
        tokio::spawn(manager::run(manager::Config::default(), Arc::new(store), listener));
        for id in 0..6 {
            let memory = (16 * MIB) as u64;
            let managers = vec![address.clone()];
            let (ssd, leaving, advertise, scrub) = (None, false, None, None);
            let (id, domain) = (BenefactorId(id), Domain(id));
            let config = benefactor::Config { id, domain, memory, ssd, leaving, managers, advertise, scrub };
            tokio::spawn(benefactor::run(config, Listener::bind("127.0.0.1:0", &credentials).unwrap()));
        }
        let mut config = client::Config::new(vec![address], credentials.access(), "scratch");
        config.make = Some((directory.path().to_owned(), Durability::Copies { copies: 2, media: Media::Any }));
        let client = PoolClient::begin(config).await.unwrap();
        until("all are there, and are known to have room", async || {
            let all = client.status().await.unwrap().benefactors;
            all.iter().filter(|(_, credits)| *credits > 0).count() == 6
        })
        .await;
        let mut writer = client.create("file").await.unwrap();
        writer.write(&bytes(4, 12 * MIB)).await.unwrap();
        let refused = writer.sync().await.unwrap_err().to_string();
        let expected = "operations in one transaction, and the store takes 8: start etcd with --max-txn-ops=16 or more";
        assert!(refused.contains(expected), "{refused}");
    });
}

/// A store that does not say what a file's groups are, as long as that is wanted.
struct Silent {
    store: Embedded,
    is_silent: AtomicBool,
}

#[tonic::async_trait]
impl MetaStore for Silent {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        let asks = prefixes.iter().any(|prefix| matches!(prefix, Prefix::Groups(_)));
        if asks && self.is_silent.load(Ordering::SeqCst) {
            return Err(Unavailable("it does not say".to_owned()));
        }
        self.store.read(keys, prefixes).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        self.store.commit(transaction).await
    }

    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable> {
        self.store.grant(time).await
    }

    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable> {
        self.store.renew(lease).await
    }

    async fn end(&self, lease: Lease) -> Result<(), Unavailable> {
        self.store.end(lease).await
    }

    async fn changed(&self, since: Revision) {
        self.store.changed(since).await;
    }
}

/// Whoever rewrites a file has said so in the store before it reads what the file is.
#[test]
fn a_file_that_could_not_be_opened_to_be_rewritten_is_cut_off_by_nobody() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("store")).unwrap();
        let store = Arc::new(Silent { store, is_silent: AtomicBool::new(false) });
        let credentials = Credentials::new(PoolKey::generate().unwrap());
        let listener = Listener::bind("127.0.0.1:0", &credentials).unwrap();
        let managers = vec![listener.address().unwrap().to_string()];
        tokio::spawn(manager::run(manager::Config::default(), Arc::clone(&store) as Arc<dyn MetaStore>, listener));
        let (ssd, leaving, advertise) = (None, false, None);
        let (id, domain, memory) = (BenefactorId(0), Domain(0), (16 * MIB) as u64);
        let of = managers.clone();
        let lends = benefactor::Config { id, domain, memory, ssd, leaving, managers: of, advertise, scrub: None };
        tokio::spawn(benefactor::run(lends, Listener::bind("127.0.0.1:0", &credentials).unwrap()));
        let mut config = client::Config::new(managers, credentials.access(), "scratch");
        config.make = Some((directory.path().to_owned(), Durability::Copies { copies: 1, media: Media::Any }));
        config.timeout = LONG;
        let client = PoolClient::begin(config.clone()).await.unwrap();
        write(&client, "file", b"as it was").await.unwrap();
        let inode = client.stat("file").await.unwrap().inode;
        config.timeout = Duration::from_secs(5);
        let rewriter = PoolClient::begin(config).await.unwrap();
        store.is_silent.store(true, Ordering::SeqCst);
        assert!(rewriter.rewrite_node(inode, "file").await.is_err());
        store.is_silent.store(false, Ordering::SeqCst);
        let mut writer = client.append("file").await.unwrap();
        writer.write(b", and more").await.unwrap();
        writer.close().await.unwrap();
        same("appended", &read(&client, "file").await.unwrap(), b"as it was, and more");
    });
}
