//! The contract of a metadata store: one suite, which every store passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::etcd_server::Server;
use crate::support::wait::there;
use crate::support::{Small, etcd, run, until};
use surgetank_model::random::Random;
use surgetank_pool::meta::{Embedded, LeaseEnded, MetaStore};
use surgetank_pool_core::id::{Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::meta::store::{Lease, MemoryStore, Transaction};
use surgetank_pool_core::meta::{Compare, Key, Name, Outcome, Prefix, Stored, Value, Write};

const PREFIXES: [Prefix; 5] = [
    Prefix::Entries(Inode(1)),
    Prefix::Entries(Inode(2)),
    Prefix::Writers(Inode(1)),
    Prefix::AllWriters,
    Prefix::Journal(MountId(1)),
];
/// A lease that does not end by itself in a test.
/// One that ends, though not while a slow machine writes.
const SHORT: Duration = Duration::from_secs(15);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_embedded_store_keeps_the_contract() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.redb");
        let store: Arc<dyn MetaStore> = Arc::new(Embedded::open(&path).unwrap());
        contract(&*store).await;
        assert!(Embedded::open(&path).is_err(), "one process has it open");
    });
}

#[test]
fn the_embedded_store_goes_on_once_a_full_file_system_has_room_again() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let Some(_small) = Small::mount(directory.path(), "size=8m") else { return };
        let store = Embedded::open(&directory.path().join("pool.redb")).unwrap();
        let session = store.grant(HOUR).await.unwrap();
        let filler = directory.path().join("filler");
        let mut number = 0;
        let mut put = async || {
            number += 1;
            let name = Name::new(number.to_string().repeat(40).as_bytes()).unwrap();
            let writes = vec![Write::Put(Key::Entry(Inode(1), name), Value::Entry(Inode(number)))];
            store.commit(&Transaction { compares: Vec::new(), writes }).await.unwrap()
        };
        let mut count = 0;
        for _ in 0..2 {
            let _ = std::fs::write(&filler, vec![0; 16 << 20]);
            loop {
                match put().await {
                    Outcome::Committed(_) => count += 1,
                    Outcome::Unknown => break,
                    Outcome::Refused(_) => panic!("nothing was compared"),
                }
            }
            assert_eq!(put().await, Outcome::Unknown, "there is no room yet");
            assert!(store.renew(session).await.unwrap(), "sessions go on");
            std::fs::remove_file(&filler).unwrap();
            let end = std::time::Instant::now() + Duration::from_secs(10);
            while put().await == Outcome::Unknown {
                assert!(std::time::Instant::now() < end, "it does not go on");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            count += 1;
        }
        let read = store.read(&[], &[Prefix::Entries(Inode(1))]).await.unwrap();
        assert!(read.prefixes[0].len() >= count, "what was committed is there");
        assert!(store.renew(session).await.unwrap());
        store.end(session).await.unwrap();
    });
}

#[test]
fn the_embedded_store_keeps_everything_over_a_restart() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool.redb");
        let (lease, short, before) = {
            let store = Embedded::open(&path).unwrap();
            let lease = store.grant(HOUR).await.unwrap();
            let short = store.grant(SHORT).await.unwrap();
            for number in 0..50 {
                let key = Key::Writer(Inode(1), SessionId(number));
                let lease = if number % 2 == 0 { lease } else { short };
                let writes = vec![Write::PutLeased(key, Value::Session(SessionId(number)), lease)];
                assert!(matches!(
                    store.commit(&Transaction { compares: Vec::new(), writes }).await,
                    Ok(Outcome::Committed(_))
                ));
                assert!(store.renew(short).await.unwrap(), "it is renewed");
            }
            (lease, short, store.read(&[], &[Prefix::AllWriters]).await.unwrap())
        };
        let store = reopened(&path).await;
        assert_eq!(store.read(&[], &[Prefix::AllWriters]).await.unwrap(), before);
        assert!(store.renew(lease).await.unwrap());
        let left = async || store.read(&[], &[Prefix::AllWriters]).await.unwrap().prefixes[0].len();
        until("the short lease ends", async || left().await < 50).await;
        assert_eq!(left().await, 25, "what the other lease has is there");
        assert!(!store.renew(short).await.unwrap());
        let ended = store.grant(HOUR).await.unwrap();
        assert!(ended > short && ended > lease, "no number of a lease is used twice");
    });
}

#[test]
fn etcd_keeps_the_contract() {
    let Some(server) = Server::start(&[]) else { return };
    run(async {
        let store = etcd::connect(server.address, "one").await;
        contract(&store).await;
        // Another pool in the same etcd has keys of its own.
        let (other, again) = (etcd::connect(server.address, "other").await, etcd::connect(server.address, "one").await);
        let key = Key::Entry(Inode(1), name(1));
        put(&other, &key, 5).await;
        assert_eq!(
            again.read(&[], &PREFIXES).await.unwrap().prefixes,
            store.read(&[], &PREFIXES).await.unwrap().prefixes
        );
        assert!(other.read(&[key], &PREFIXES).await.unwrap().prefixes[0].len() == 1);
    });
}

/// The former store's task ends a moment later.
async fn reopened(path: &std::path::Path) -> Embedded {
    there("the store opens again", async || Embedded::open(path).ok()).await
}

/// See the module. The store is empty, and nobody else uses it.
async fn contract(store: &dyn MetaStore) {
    leases_end(store).await;
    changes_wake(store).await;
    large_reads_have_one_revision(store).await;
    let times = std::env::var("SURGETANK_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 1..=2 * times {
        same_as_in_memory(store, seed).await;
    }
}

/// Keys end with their lease, in one step, and nothing is attached to one that has ended.
async fn leases_end(store: &dyn MetaStore) {
    let lease = store.grant(SHORT).await.unwrap();
    let other = store.grant(HOUR).await.unwrap();
    let key = |number| Key::Writer(Inode(7), SessionId(number));
    let value = Value::Session(SessionId(1));
    let put = |number, lease| Write::PutLeased(key(number), value.clone(), lease);
    // The last is attached to the lease and then not any more.
    let writes = vec![put(1, lease), put(2, other), put(3, lease)];
    assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
    let writes = vec![Write::Put(key(3), value.clone())];
    assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
    until("the lease ends", async || {
        let read = store.read(&[key(1), key(2), key(3)], &[]).await.unwrap();
        assert!(read.keys[1].is_some() && read.keys[2].is_some(), "these do not end with it");
        read.keys[0].is_none()
    })
    .await;
    assert!(!store.renew(lease).await.unwrap());
    let late = Transaction { compares: Vec::new(), writes: vec![put(4, lease), Write::Delete(key(2))] };
    assert_eq!(store.commit(&late).await, Err(LeaseEnded(lease)));
    let read = store.read(&[key(2), key(4)], &[]).await.unwrap();
    assert!(read.keys[0].is_some() && read.keys[1].is_none(), "nothing of it took place");
    store.end(other).await.unwrap();
    assert_eq!(store.read(&[key(2)], &[]).await.unwrap().keys, [None]);
    let writes = vec![Write::Delete(key(3))];
    assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
}

/// Whoever waits for a change hears of it, also if it came first.
async fn changes_wake(store: &dyn MetaStore) {
    let revision = store.read(&[], &[]).await.unwrap().revision;
    let writes = vec![Write::Put(Key::Entry(Inode(9), name(0)), Value::Entry(Inode(3)))];
    let change = Transaction { compares: Vec::new(), writes };
    let (_, outcome) = tokio::join!(store.changed(revision), store.commit(&change));
    assert!(matches!(outcome, Ok(Outcome::Committed(at)) if at > revision), "{outcome:?}");
    store.changed(revision).await;
    let writes = vec![Write::Delete(Key::Entry(Inode(9), name(0)))];
    assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
}

async fn put(store: &dyn MetaStore, key: &Key, number: u64) {
    let writes = vec![Write::Put(key.clone(), Value::Entry(Inode(number)))];
    let put = store.commit(&Transaction { compares: Vec::new(), writes }).await;
    assert!(matches!(put, Ok(Outcome::Committed(_))), "{put:?}");
}

/// More keys than one answer has are read as they were at one moment, while somebody changes all of them together.
async fn large_reads_have_one_revision(store: &dyn MetaStore) {
    const KEYS: u64 = 1300;
    let key = |number: u64| Key::Journal(MountId(9), number);
    let all: Vec<Key> = (0..KEYS).map(key).collect();
    let write = async |number: u64| {
        // The first and the last, so that a read in several parts would see two numbers.
        let writes = [0, KEYS - 1].map(|at| Write::Put(key(at), Value::Entry(Inode(number)))).to_vec();
        assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
    };
    for part in all.chunks(100) {
        let writes = part.iter().map(|key| Write::Put(key.clone(), Value::Entry(Inode(0)))).collect();
        assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
    }
    let reads = async {
        for _ in 0..10 {
            let read = store.read(&all, &[Prefix::Journal(MountId(9))]).await.unwrap();
            let found: Vec<&Stored> = read.keys.iter().flatten().collect();
            assert_eq!((found.len(), read.prefixes[0].len()), (all.len(), all.len()));
            assert_eq!(found[0].value, found[all.len() - 1].value);
            assert!(read.prefixes[0].iter().map(|(_, stored)| stored).eq(found), "both ways of reading see the same");
            assert!(read.prefixes[0].iter().map(|(key, _)| key).eq(&all), "in the order of the keys");
        }
    };
    let writes = async {
        for number in 1..100 {
            write(number).await;
        }
    };
    tokio::join!(reads, writes);
    for part in all.chunks(100) {
        let writes = part.iter().map(|key| Write::Delete(key.clone())).collect();
        assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
    }
}

/// A revision that no key has.
const NEVER: u64 = 1 << 40;

/// Revisions of the plain store, and what the store has called them.
type Revisions = BTreeMap<Revision, Revision>;

/// Random transactions have the outcomes, and leave the keys and revisions, that `pool-core`'s plain store has. The store may skip numbers.
async fn same_as_in_memory(store: &dyn MetaStore, seed: u64) {
    let mut random = Random::from_seed(seed);
    let mut plain = MemoryStore::default();
    let mut called = Revisions::new();
    let mut last = store.read(&[], &[]).await.unwrap().revision;
    let mut leases: BTreeMap<u64, Lease> = BTreeMap::new();
    for step in 0..400 {
        if random.chance(0.05) {
            let lease = store.grant(HOUR).await.unwrap();
            leases.insert(lease.0, lease);
            continue;
        }
        if random.chance(0.03)
            && let Some((_, lease)) = leases.pop_first()
        {
            store.end(lease).await.unwrap();
            plain.end(lease);
            continue;
        }
        let transaction = transaction(&mut random, &plain, &leases);
        let found = store.commit(&as_called(&transaction, &called)).await;
        match (found, plain.commit(&transaction)) {
            (Ok(Outcome::Committed(at)), Outcome::Committed(expected)) => {
                assert!(at > last || transaction.writes.is_empty(), "step {step}: {transaction:?}");
                last = last.max(at);
                called.insert(expected, at);
            }
            (found, expected) => assert_eq!(found, Ok(expected), "step {step}: {transaction:?}"),
        }
        let keys: Vec<Key> = transaction.writes.iter().map(|write| write.key().clone()).collect();
        let read = store.read(&keys, &PREFIXES).await.unwrap();
        let as_called = |stored: &Stored| Stored {
            value: stored.value.clone(),
            created: called[&stored.created],
            modified: called[&stored.modified],
        };
        let expected: Vec<Option<Stored>> = keys.iter().map(|key| plain.get(key).map(as_called)).collect();
        assert_eq!(read.keys, expected, "step {step}");
        for (prefix, found) in PREFIXES.into_iter().zip(read.prefixes) {
            let expected: Vec<(Key, Stored)> =
                plain.under(prefix).map(|(key, stored)| (key.clone(), as_called(stored))).collect();
            assert_eq!(found, expected, "step {step}: {prefix:?}");
        }
        assert!(read.revision >= last, "step {step}");
    }
    for lease in leases.into_values() {
        store.end(lease).await.unwrap();
        plain.end(lease);
    }
    let writes = plain.all().map(|(key, _)| Write::Delete(key.clone())).collect();
    assert!(matches!(store.commit(&Transaction { compares: Vec::new(), writes }).await, Ok(Outcome::Committed(_))));
}

/// A transaction with the store's numbers of revisions.
fn as_called(transaction: &Transaction, called: &Revisions) -> Transaction {
    let number = |at: &Revision| called.get(at).copied().unwrap_or(*at);
    let compares = transaction.compares.iter().map(|compare| match compare {
        Compare::Modified(key, at) => Compare::Modified(key.clone(), number(at)),
        Compare::Created(key, at) => Compare::Created(key.clone(), number(at)),
        other => other.clone(),
    });
    Transaction { compares: compares.collect(), writes: transaction.writes.clone() }
}

fn name(number: u64) -> Name {
    Name::new(format!("name{number}").as_bytes()).expect("it is a name")
}

fn transaction(random: &mut Random, plain: &MemoryStore, leases: &BTreeMap<u64, Lease>) -> Transaction {
    let key = |random: &mut Random| match random.below(4) {
        0 | 1 => Key::Entry(Inode(1 + random.below(2)), name(random.below(5))),
        2 => Key::Writer(Inode(1 + random.below(2)), SessionId(random.below(3))),
        _ => Key::Journal(MountId(1), random.below(4)),
    };
    let mut transaction = Transaction::default();
    for _ in 0..random.below(6) {
        let key = key(random);
        let stored = plain.get(&key);
        // Mostly what holds.
        let off = u64::from(random.chance(0.1));
        transaction.compares.push(match (stored, random.below(3)) {
            (None, _) if off == 1 => Compare::Present(key),
            (None, _) => Compare::Absent(key),
            (Some(_), 0) if off == 1 => Compare::Absent(key),
            (Some(_), 0) => Compare::Present(key),
            (Some(stored), 1) => Compare::Modified(key, Revision(stored.modified.0 + off * NEVER)),
            (Some(stored), _) => Compare::Created(key, Revision(stored.created.0 + off * NEVER)),
        });
    }
    if random.chance(0.1) {
        transaction.compares.push(Compare::NoneUnder(PREFIXES[random.below(5) as usize]));
    }
    let mut writes: BTreeMap<Key, Write> = BTreeMap::new();
    for _ in 0..random.below(4) {
        let key = key(random);
        let value = Value::Node(node(random.below(100)));
        let lease = leases.values().nth(random.below(4) as usize);
        let write = match (random.below(4), lease) {
            (0, _) => Write::Delete(key.clone()),
            (1 | 2, Some(lease)) => Write::PutLeased(key.clone(), value, *lease),
            _ => Write::Put(key.clone(), value),
        };
        writes.insert(key, write);
    }
    transaction.writes = writes.into_values().collect();
    transaction
}

fn node(size: u64) -> surgetank_pool_core::meta::Node {
    surgetank_pool_core::meta::Node {
        kind: surgetank_pool_core::meta::Kind::Link(vec![1, 2, 3]),
        mount: MountId(1),
        at: Some((Inode(1), name(size))),
        links: vec![surgetank_pool_core::meta::value::HardLink {
            at: (Inode(3), surgetank_pool_core::meta::Name::new(b"also").expect("it is a name")),
            covers: true,
        }],
        owner: (0o644, 1, 2),
        times: surgetank_pool_core::meta::value::Times::new(size),
        size,
        version: Version(size),
        journalled: Version::NONE,
        published: Version::NONE,
        covers: size.is_multiple_of(2),
        torn: size.is_multiple_of(3),
        base: size.is_multiple_of(5).then_some(surgetank_pool_core::meta::value::Base {
            draft: Some(size).filter(|size| size.is_multiple_of(2)),
            size,
            version: Version(size),
            changes: 7,
        }),
    }
}
