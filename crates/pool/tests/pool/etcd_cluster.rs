//! The pool over an etcd of three members that are killed, stopped and cut off from the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::etcd::connect;
use crate::support::etcd_cluster::Cluster;
use crate::support::{LONG, Pool, bytes, read, run, same, until, write};
use surgetank_model::random::Random;
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::meta::MetaStore;
use surgetank_pool_core::id::{Inode, Revision};
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::meta::store::Transaction;
use surgetank_pool_core::meta::{Compare, Key, Name, Outcome, Value, Write};
use tokio::task::JoinSet;

/// What becomes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    /// It keeps its connections and says nothing.
    Stopped,
    /// Clients reach it, and the other members do not.
    CutOff,
}

impl Fault {
    async fn begin(self, cluster: &mut Cluster, at: usize) {
        match self {
            Self::Killed => cluster.members[at].kill(),
            Self::Stopped => cluster.members[at].pause(),
            Self::CutOff => cluster.cut_off(at).await,
        }
    }

    async fn end(self, cluster: &mut Cluster, at: usize) {
        match self {
            Self::Killed => cluster.members[at].begin(),
            Self::Stopped => cluster.members[at].resume(),
            Self::CutOff => cluster.join(),
        }
        cluster.whole().await;
    }
}

/// To the leader, or to another member.
const FAULTS: [(Fault, bool); 6] = [
    (Fault::Killed, true),
    (Fault::Stopped, false),
    (Fault::CutOff, true),
    (Fault::Stopped, true),
    (Fault::CutOff, false),
    (Fault::Killed, true),
];

/// One fault after the other; in the middle of each the load goes on, and as many steps more are done as are wanted.
async fn hammer(cluster: &mut Cluster, steps: &AtomicU64, wanted: u64) {
    for (round, (fault, leads)) in FAULTS.into_iter().enumerate() {
        let leader = cluster.leader().await;
        let at = if leads { leader } else { (leader + 1 + round % 2) % cluster.members.len() };
        let before = steps.load(Ordering::SeqCst);
        fault.begin(cluster, at).await;
        until("members that are left go on", async || steps.load(Ordering::SeqCst) >= before + wanted).await;
        fault.end(cluster, at).await;
    }
}

fn counter(of: u64) -> Key {
    Key::Entry(Inode(1), Name::new(format!("counter{of}").as_bytes()).unwrap())
}

fn transaction(compares: Vec<Compare>, writes: Vec<Write>) -> Transaction {
    Transaction { compares, writes }
}

#[test]
fn no_transaction_is_lost_or_takes_place_twice_and_no_read_is_old_whatever_becomes_of_a_member() {
    const WORKERS: u64 = 6;
    let Some(mut cluster) = Cluster::start(&[]) else { return };
    run(async {
        let setup = connect(cluster.addresses(0), "pool").await;
        for of in 0..2 {
            let put = vec![Write::Put(counter(of), Value::Entry(Inode(0)))];
            until("there is a counter", async || {
                matches!(setup.commit(&transaction(Vec::new(), put.clone())).await, Ok(Outcome::Committed(_)))
            })
            .await;
        }
        let (steps, over, known) =
            (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            // Each asks another member first.
            let store = connect(cluster.addresses(worker as usize % 3), "pool").await;
            let (steps, over, known) = (Arc::clone(&steps), Arc::clone(&over), Arc::clone(&known));
            workers.spawn(async move {
                let mut number = 0;
                while over.load(Ordering::SeqCst) == 0 {
                    add(&store, &counter(worker % 2), (worker, number), &known).await;
                    number += 1;
                    steps.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                number
            });
        }
        hammer(&mut cluster, &steps, 60).await;
        over.store(1, Ordering::SeqCst);
        let mut added = 0;
        while let Some(worker) = workers.join_next().await {
            added += worker.unwrap();
        }
        let found = setup.read(&[counter(0), counter(1)], &[]).await.unwrap();
        let counts = found.keys.iter().flatten().map(|stored| match stored.value {
            Value::Entry(Inode(count)) => count,
            _ => panic!("{stored:?}"),
        });
        assert_eq!(counts.sum::<u64>(), added, "each addition took place once");
    });
}

/// Adds one to a counter, once for each number, whatever becomes of transactions. No read is older than what anybody knows.
async fn add(store: &dyn MetaStore, counter: &Key, number: (u64, u64), known: &AtomicU64) {
    let receipt = Key::Receipt(number.0, number.1);
    loop {
        let before = known.load(Ordering::SeqCst);
        let Ok(read) = store.read(&[counter.clone(), receipt.clone()], &[]).await else { continue };
        assert!(read.revision >= Revision(before), "{:?} was read, and {before} was known", read.revision);
        known.fetch_max(read.revision.0, Ordering::SeqCst);
        let [Some(stored), None] = &read.keys[..] else { return };
        let Value::Entry(Inode(count)) = stored.value else { panic!("{stored:?}") };
        let compares = vec![Compare::Modified(counter.clone(), stored.modified), Compare::Absent(receipt.clone())];
        let writes = vec![
            Write::Put(counter.clone(), Value::Entry(Inode(count + 1))),
            Write::Put(receipt.clone(), Value::Receipt),
        ];
        match store.commit(&transaction(compares, writes)).await.unwrap() {
            Outcome::Committed(at) => {
                known.fetch_max(at.0, Ordering::SeqCst);
                return;
            }
            Outcome::Refused(_) | Outcome::Unknown => {}
        }
    }
}

#[test]
fn a_member_that_is_cut_off_answers_nothing_from_its_old_state() {
    let Some(mut cluster) = Cluster::start(&[]) else { return };
    run(async {
        let key = counter(0);
        let put = |count| transaction(Vec::new(), vec![Write::Put(key.clone(), Value::Entry(Inode(count)))]);
        let committed = async |store: &dyn MetaStore, count| {
            until("it is put", async || matches!(store.commit(&put(count)).await, Ok(Outcome::Committed(_)))).await;
        };
        let whole = connect(cluster.addresses(0), "pool").await;
        committed(&whole, 1).await;
        cluster.whole().await;
        for (count, leads) in (2..).zip([true, false]) {
            let leader = cluster.leader().await;
            let at = if leads { leader } else { (leader + 1) % 3 };
            // This one asks it alone, and that one first.
            let alone = connect(cluster.members[at].address, "pool").await;
            let first = connect(cluster.addresses(at), "pool").await;
            let other = connect(cluster.members[(at + 1) % 3].address, "pool").await;
            let heard = first.read(&[], &[]).await.unwrap().revision;
            Fault::CutOff.begin(&mut cluster, at).await;
            committed(&other, count).await;
            // Who waits for a change hears of it from the others.
            tokio::time::timeout(LONG, first.changed(heard)).await.unwrap();
            let read = first.read(std::slice::from_ref(&key), &[]).await.unwrap();
            assert_eq!(read.keys[0].as_ref().unwrap().value, Value::Entry(Inode(count)), "the member leads: {leads}");
            let old = alone.read(std::slice::from_ref(&key), &[]).await;
            assert!(old.is_err(), "the member leads: {leads}: {old:?}");
            Fault::CutOff.end(&mut cluster, at).await;
            let read = alone.read(std::slice::from_ref(&key), &[]).await.unwrap();
            assert_eq!(read.keys[0].as_ref().unwrap().value, Value::Entry(Inode(count)));
        }
    });
}

/// What one worker has done, and nobody else does: its files, and what is in them.
#[derive(Default)]
struct Oracle {
    files: BTreeMap<String, Vec<u8>>,
}

impl Oracle {
    /// One step of one worker, each part of which is answered: whatever is answered is so from then on.
    async fn step(&mut self, client: &PoolClient, random: &mut Random, name: String) -> Result<(), client::Error> {
        let some = |oracle: &Self, random: &mut Random| {
            let at = random.below(oracle.files.len().max(1) as u64) as usize;
            oracle.files.iter().nth(at).map(|(path, content)| (path.clone(), content.clone()))
        };
        match (random.below(6), some(self, random)) {
            (3, Some((from, content))) => {
                client.rename(&from, &name).await?;
                self.files.remove(&from);
                self.files.insert(name, content);
            }
            // In the place of another.
            (4, Some((from, content))) if self.files.len() > 1 => {
                let (to, _) = some(self, random).unwrap_or_default();
                if to != from {
                    client.rename(&from, &to).await?;
                    self.files.remove(&from);
                    self.files.insert(to, content);
                }
            }
            (5, Some((path, _))) => {
                client.unlink(&path).await?;
                self.files.remove(&path);
                let gone = read(client, &path).await;
                assert!(matches!(gone, Err(client::Error::Refused(_, Refusal::NotFound))), "{path}: {:?}", gone.err());
            }
            (2, Some((path, content))) => same(&path, &read(client, &path).await?, &content),
            _ => {
                let content = bytes(random.below(u64::MAX), 1 + random.below(300_000) as usize);
                let mut writer = client.create(&name).await?;
                let (first, rest) = content.split_at(content.len() / 2);
                writer.write(first).await?;
                writer.sync().await?;
                writer.write(rest).await?;
                writer.close().await?;
                self.files.insert(name, content);
            }
        }
        Ok(())
    }
}

#[test]
fn nothing_that_a_pool_acknowledged_is_lost_or_done_twice_whatever_becomes_of_a_member() {
    const WORKERS: u64 = 3;
    let Some(mut cluster) = Cluster::start(&[]) else { return };
    let mut pool = Pool::over(cluster.addresses(0), 0, 0, 256);
    (0..2).for_each(|_| pool.start_manager("127.0.0.1:0"));
    (0..3).for_each(|_| pool.start_benefactor());
    run(async {
        let client = Arc::new(pool.client(2).await);
        let (steps, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (client, steps, over) = (Arc::clone(&client), Arc::clone(&steps), Arc::clone(&over));
            workers.spawn(async move {
                let (mut oracle, mut random) = (Oracle::default(), Random::from_seed(worker));
                for number in 0.. {
                    if over.load(Ordering::SeqCst) > 0 {
                        break;
                    }
                    let name = format!("file-{worker}-{number}");
                    let done = oracle.step(&client, &mut random, name).await;
                    done.unwrap_or_else(|error| panic!("worker {worker}, step {number}: {error}"));
                    steps.fetch_add(1, Ordering::SeqCst);
                }
                oracle.files
            });
        }
        hammer(&mut cluster, &steps, 6).await;
        over.store(1, Ordering::SeqCst);
        let mut files = BTreeMap::new();
        while let Some(worker) = workers.join_next().await {
            files.extend(worker.unwrap());
        }
        for (path, content) in &files {
            same(path, &read(&client, path).await.unwrap(), content);
            client.wait_drained(path, LONG).await.unwrap();
        }
        until("the target has seen everything", async || client.status().await.is_ok_and(|status| status.journal == 0))
            .await;
        let listed = client.read_directory("").await.unwrap();
        let names: Vec<String> = listed.iter().map(|(name, _)| String::from_utf8_lossy(name.bytes()).into()).collect();
        assert_eq!(names, files.keys().cloned().collect::<Vec<_>>(), "the pool has these and no others");
        let mut at_target: Vec<String> = std::fs::read_dir(pool.target())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name != ".surgetank")
            .collect();
        at_target.sort_unstable();
        assert_eq!(at_target, names, "and so has the target");
        for (path, content) in &files {
            same(path, &std::fs::read(pool.target().join(path)).unwrap(), content);
        }
        // What nobody needs any more is dropped, by whoever is the warden now.
        for path in files.keys() {
            client.unlink(path).await.unwrap();
        }
        write(&client, "last", b"last").await.unwrap();
        client.wait_drained("last", LONG).await.unwrap();
    });
}
