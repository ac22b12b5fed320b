//! Which key a store is used with: one suite, for every store.

use std::time::Duration;

use surgetank_pool::claim::{Refused, Replaces, claim};
use surgetank_pool::meta::{Embedded, MetaStore};
use surgetank_pool::security::token::Key as PoolKey;
use surgetank_pool_core::meta::store::{Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Key, Role, Value};

use crate::support::etcd_server::Server;
use crate::support::{LONG, etcd, run};

#[test]
fn an_embedded_store_is_used_with_one_key() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        contract(&Embedded::open(&directory.path().join("pool.redb")).unwrap()).await;
    });
}

#[test]
fn an_etcd_is_used_with_one_key() {
    let Some(server) = Server::start(&[]) else { return };
    run(async { contract(&etcd::connect(server.address, "one").await).await });
}

async fn fingerprint(store: &dyn MetaStore) -> Option<Value> {
    let read = store.read(&[Key::Fingerprint], &[]).await.unwrap();
    read.keys.into_iter().next().flatten().map(|stored| stored.value)
}

async fn contract(store: &dyn MetaStore) {
    let [one, other] = [(); 2].map(|()| PoolKey::generate().unwrap());
    // Of two that begin at once at a store that is used with none, one is first.
    let (first, second) = tokio::join!(claim(store, &one, Replaces::Never), claim(store, &other, Replaces::Never));
    let (key, other) = match (first, second) {
        (Ok(()), Err(Refused::Another)) => (one, other),
        (Err(Refused::Another), Ok(())) => (other, one),
        both => panic!("{both:?}"),
    };
    let of = |key: &PoolKey| Some(Value::Fingerprint(key.fingerprint()));
    assert_eq!(fingerprint(store).await, of(&key));
    claim(store, &key, Replaces::Never).await.unwrap();
    assert!(matches!(claim(store, &other, Replaces::Never).await, Err(Refused::Another)));
    assert_eq!(fingerprint(store).await, of(&key));
    claim(store, &other, Replaces::WhenUnused).await.unwrap();
    assert_eq!(fingerprint(store).await, of(&other));
    assert!(matches!(claim(store, &key, Replaces::Never).await, Err(Refused::Another)));
    // Whoever runs keeps it.
    let lease = store.grant(LONG).await.unwrap();
    let warden = Write::PutLeased(Key::Owner(Role::Warden), Value::Owner(1), lease);
    let runs = Transaction { compares: Vec::new(), writes: vec![warden] };
    assert!(matches!(store.commit(&runs).await.unwrap(), Outcome::Committed(_)));
    assert!(matches!(claim(store, &key, Replaces::WhenUnused).await, Err(Refused::InUse)));
    claim(store, &other, Replaces::WhenUnused).await.unwrap();
    claim(store, &key, Replaces::Always).await.unwrap();
    assert_eq!(fingerprint(store).await, of(&key));
    store.end(lease).await.unwrap();
    // Another manager takes the place of a warden that ends.
    let lease = store.grant(LONG).await.unwrap();
    let succeeds = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let warden = Write::PutLeased(Key::Owner(Role::Warden), Value::Owner(2), lease);
        store.commit(&Transaction { compares: Vec::new(), writes: vec![warden] }).await.unwrap();
    };
    let ((), claimed) = tokio::join!(succeeds, claim(store, &other, Replaces::WhenUnused));
    assert!(matches!(claimed, Err(Refused::InUse)), "{claimed:?}");
    store.end(lease).await.unwrap();
    // Of two that replace it at once one is last.
    let [one, two] = [(); 2].map(|()| PoolKey::generate().unwrap());
    let (first, second) =
        tokio::join!(claim(store, &one, Replaces::WhenUnused), claim(store, &two, Replaces::WhenUnused));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!([of(&one), of(&two)].contains(&fingerprint(store).await));
}

#[test]
fn a_fingerprint_is_a_labelled_digest_that_tells_keys_apart() {
    let [one, other] = [(); 2].map(|()| PoolKey::generate().unwrap());
    assert_eq!(PoolKey::from_text(&one.to_text()).unwrap().fingerprint(), one.fingerprint());
    assert_ne!(one.fingerprint(), other.fingerprint());
    // SHA-256 of a label and the key: stores keep it.
    let known = PoolKey::from_text(&format!("surgetank-key-{}", "A".repeat(43))).unwrap();
    let text: String = known.fingerprint().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, "3fadb5c699d0ae37cc7353532a67301676764eb0a822f8357943aa7ca31f8df8");
}
