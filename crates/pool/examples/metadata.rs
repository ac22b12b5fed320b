//! How fast a store is, in one JSON document: creations of files one after the other, by so many clients with a transaction each, and with
//! transactions that they share as they do in a manager, each with reads before and from what was read before; how many creations a second
//! the store takes if one transaction after the other has one of each client, or two at a time; and how many transactions a file takes from
//! its creation until it is drained.
//!
//!     cargo run --release --package surgetank-pool --example metadata -- etcd://127.0.0.1:2379/bench|DIRECTORY [MIB]

#![allow(clippy::print_stdout, reason = "the numbers are the result")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::meta::{Embedded, Etcd, LeaseEnded, MetaStore, Snapshot, Unavailable, etcd};
use surgetank_pool::rpc::Listener;
use surgetank_pool::security::Credentials;
use surgetank_pool::security::token::Key as PoolKey;
use surgetank_pool::{benefactor, manager};
use surgetank_pool_core::id::{BenefactorId, Domain, Inode, MountId, Revision, SessionId};
use surgetank_pool_core::meta::group::Answer;
use surgetank_pool_core::meta::operation::{Attempt, Operation, Reads, attempt};
use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Durability, GroupCommit, Key, Kind, Known, Name, Node, Prefix, RequestId, Value};
use surgetank_pool_core::placement::Media;
use tokio::sync::{mpsc, oneshot};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Clients that create files at the same time.
const CLIENTS: u64 = 16;
/// For how long each way is measured.
const FOR: Duration = Duration::from_secs(5);
/// As a manager's: how often others have their turn before a transaction that has fewer requests than the last one.
const TURNS: usize = 32;
/// A directory of the benchmark's own.
const DIRECTORY: Inode = Inode(u64::MAX - 1);

/// Counts the transactions that change something.
struct Counted {
    store: Arc<dyn MetaStore>,
    committed: AtomicU64,
}

#[tonic::async_trait]
impl MetaStore for Counted {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        self.store.read(keys, prefixes).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        let outcome = self.store.commit(transaction).await;
        if matches!(outcome, Ok(Outcome::Committed(_))) && !transaction.writes.is_empty() {
            self.committed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
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

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: metadata etcd://HOST:PORT/NAME|DIRECTORY [MIB]";
    let store = arguments.next().ok_or(usage)?;
    let mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    let store: Arc<dyn MetaStore> = match store.strip_prefix("etcd://") {
        Some(_) => Arc::new(Etcd::connect(&etcd::Config::parse(&store)?).await?),
        None => {
            std::fs::create_dir_all(&store)?;
            Arc::new(Embedded::open(&Path::new(&store).join("bench.redb"))?)
        }
    };
    let counted = Arc::new(Counted { store, committed: AtomicU64::new(0) });
    let of_reads = one_by_one(&counted, false).await?;
    let of_known = one_by_one(&counted, true).await?;
    let read = (together(&counted, false, false).await?, together(&counted, true, false).await?);
    let known = (together(&counted, false, true).await?, together(&counted, true, true).await?);
    let bounds = (merged(&counted, 1).await?, merged(&counted, 2).await?);
    let file_transactions = transactions_of_a_file(&counted, mib).await?;
    let group = |(alone, shared): (Rate, Rate)| {
        format!(
            "{{\"ungrouped_creates_s\": {:.0}, \"grouped_creates_s\": {:.0}, \"creates_in_a_group\": {:.1}, \"ratio\": {:.2}}}",
            alone.a_second(),
            shared.a_second(),
            shared.a_transaction(),
            shared.a_second() / alone.a_second()
        )
    };
    println!(
        "{{\"clients\": {CLIENTS},\n \"one_by_one_ms\": {{\"reads_p50\": {:.3}, \"reads_p99\": {:.3}, \"known_p50\": {:.3}, \
         \"known_p99\": {:.3}}},\n \"after_reads\": {},\n \"from_known\": {},\n \"both\": {:.2},\n \
         \"one_of_each_client_in_a_transaction\": {{\"one_at_a_time_creates_s\": {:.0}, \"two_at_a_time_creates_s\": {:.0}}},\n \
         \"file_mib\": {mib}, \"file_transactions\": {file_transactions}}}",
        of_reads.0,
        of_reads.1,
        of_known.0,
        of_known.1,
        group(read),
        group(known),
        known.1.a_second() / read.0.a_second(),
        bounds.0,
        bounds.1,
    );
    Ok(())
}

/// Creations, the transactions that they took, and seconds.
#[derive(Clone, Copy)]
struct Rate {
    created: u64,
    transactions: u64,
    seconds: f64,
}

impl Rate {
    fn a_second(&self) -> f64 {
        self.created as f64 / self.seconds
    }

    fn a_transaction(&self) -> f64 {
        self.created as f64 / self.transactions as f64
    }
}

/// The benchmark's directory, and a session in it.
async fn session(store: &dyn MetaStore) -> Result<(SessionId, Lease), Failed> {
    let lease = store.grant(Duration::from_secs(600)).await?;
    let session = SessionId(lease.0);
    let node = Node::new(Kind::Directory, MountId(u32::MAX), None, (0o755, 0, 0));
    let writes = vec![
        Write::Put(Key::Node(DIRECTORY), Value::Node(node)),
        Write::PutLeased(Key::Session(session), Value::Session(session), lease),
    ];
    match store.commit(&Transaction { compares: Vec::new(), writes }).await? {
        Outcome::Committed(_) => Ok((session, lease)),
        other => Err(format!("{other:?}").into()),
    }
}

/// Numbers of files that no run has had.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() << 28) + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The transaction that creates a file: from what is known if that is all, or after what it has to read.
async fn create(
    store: &dyn MetaStore,
    writer: (SessionId, Lease),
    known: Option<&Mutex<Known>>,
) -> Result<Transaction, Failed> {
    let known = || known.map(|known| known.lock().unwrap_or_else(PoisonError::into_inner));
    let fresh = fresh();
    let at = (DIRECTORY, Name::new(format!("rank.{fresh}").as_bytes())?);
    let create = Operation::Create { at, fresh, writer, owner: (0o644, 1, 1) };
    if let Some((transaction, _)) = known().and_then(|mut known| known.creation(&create, 0, |_| true)) {
        return Ok(transaction);
    }
    let mut reads = Reads::default();
    loop {
        match attempt(&create, &reads) {
            Attempt::Read(keys, prefixes) => {
                let read = store.read(&keys, &prefixes).await?;
                for (key, stored) in keys.into_iter().zip(read.keys) {
                    known().into_iter().for_each(|mut known| known.learn(&key, stored.as_ref()));
                    reads.key(key, stored);
                }
                prefixes.into_iter().zip(read.prefixes).for_each(|(prefix, keys)| reads.prefix(prefix, keys));
            }
            Attempt::Commit(transaction, Ok(_)) => return Ok(transaction),
            Attempt::Commit(_, Err(refusal)) => return Err(format!("{refusal:?}").into()),
        }
    }
}

/// Milliseconds of a creation: the median, and of 99 %.
async fn one_by_one(store: &Counted, from_known: bool) -> Result<(f64, f64), Failed> {
    let writer = session(store).await?;
    let known = from_known.then(Mutex::default);
    let mut latencies = Vec::new();
    let end = Instant::now() + FOR;
    while Instant::now() < end {
        let begin = Instant::now();
        let transaction = create(store, writer, known.as_ref()).await?;
        store.commit(&transaction).await?;
        latencies.push(begin.elapsed());
    }
    latencies.sort();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 100].as_secs_f64() * 1e3;
    Ok((at(50), at(99)))
}

/// All clients at the same time, each of which waits for one creation before it begins the next.
async fn together(store: &Arc<Counted>, shared: bool, from_known: bool) -> Result<Rate, Failed> {
    let writer = session(&**store).await?;
    let (group, asked) = mpsc::unbounded_channel();
    let driver = tokio::spawn(drive(Arc::clone(store), writer.1, asked));
    let before = store.committed.load(Ordering::Relaxed);
    let begin = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (store, group) = (Arc::clone(store), group.clone());
        clients.spawn(async move {
            let known = from_known.then(Mutex::default);
            let mut created = 0;
            while begin.elapsed() < FOR {
                let transaction = create(&*store, writer, known.as_ref()).await?;
                let done = match shared {
                    true => {
                        let (answer, answered) = oneshot::channel();
                        group.send((transaction, answer))?;
                        matches!(answered.await?, Answer::Committed(_))
                    }
                    false => matches!(store.commit(&transaction).await?, Outcome::Committed(_)),
                };
                created += u64::from(done);
            }
            Ok::<u64, Failed>(created)
        });
    }
    let mut created = 0;
    while let Some(client) = clients.join_next().await {
        created += client??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    driver.abort();
    Ok(Rate { created, transactions: store.committed.load(Ordering::Relaxed) - before, seconds })
}

/// Creations a second that the store takes, so many transactions at a time with one creation of each client in each.
async fn merged(store: &Arc<Counted>, at_a_time: u64) -> Result<f64, Failed> {
    let writer = session(&**store).await?;
    let known = Arc::new(Mutex::default());
    create(&**store, writer, Some(&known)).await?;
    let begin = Instant::now();
    let mut drivers = tokio::task::JoinSet::new();
    for _ in 0..at_a_time {
        let (store, known) = (Arc::clone(store), Arc::clone(&known));
        drivers.spawn(async move {
            let mut created = 0;
            while begin.elapsed() < FOR {
                let mut merged = Transaction::default();
                for _ in 0..CLIENTS {
                    let one = create(&*store, writer, Some(&known)).await?;
                    merged.compares.extend(one.compares);
                    // All of them change the directory, whose moment is written once.
                    let new =
                        one.writes.into_iter().filter(|write| merged.writes.iter().all(|of| of.key() != write.key()));
                    let new: Vec<_> = new.collect();
                    merged.writes.extend(new);
                }
                if matches!(store.commit(&merged).await?, Outcome::Committed(_)) {
                    created += CLIENTS;
                }
            }
            Ok::<u64, Failed>(created)
        });
    }
    let mut created = 0;
    while let Some(driver) = drivers.join_next().await {
        created += driver??;
    }
    Ok(created as f64 / begin.elapsed().as_secs_f64())
}

type Asked = (Transaction, oneshot::Sender<Answer>);

/// Commits in groups, as a manager does.
async fn drive(store: Arc<Counted>, lease: Lease, mut asked: mpsc::UnboundedReceiver<Asked>) {
    let mut group = GroupCommit::new(lease.0, lease, store.limits());
    let mut waiting = std::collections::BTreeMap::new();
    let mut requests = 0;
    while let Some(first) = asked.recv().await {
        let mut next = Some(first);
        loop {
            for _ in 0..TURNS {
                while let Some((transaction, answer)) = next.take().or_else(|| asked.try_recv().ok()) {
                    requests += 1;
                    waiting.insert(RequestId(requests), answer);
                    group.submit(RequestId(requests), transaction, 0);
                }
                if !group.gathers() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let Some((id, transaction)) = group.next_commit() else { break };
            let outcome = store.commit(&transaction).await.unwrap_or(Outcome::Unknown);
            group.complete(id, &outcome);
            while let Some((request, answer)) = group.next_answer() {
                if let Some(of) = waiting.remove(&request) {
                    let _ = of.send(answer);
                }
            }
        }
    }
}

/// Transactions from a file's creation until its target has it.
async fn transactions_of_a_file(store: &Arc<Counted>, mib: u64) -> Result<u64, Failed> {
    let target = std::env::temp_dir().join(format!("surgetank-metadata-{}", std::process::id()));
    std::fs::create_dir_all(&target)?;
    let credentials = Credentials::new(PoolKey::generate()?);
    let listener = Listener::bind("127.0.0.1:0", &credentials)?;
    let address = listener.address()?.to_string();
    let of_manager: Arc<dyn MetaStore> = Arc::clone(store) as Arc<dyn MetaStore>;
    let manager = tokio::spawn(manager::run(manager::Config::default(), of_manager, listener));
    let config = benefactor::Config {
        id: BenefactorId(0),
        domain: Domain(0),
        // With less, a client commits on the way, so that what is committed can be drained.
        memory: (3 * mib + 64) << 20,
        ssd: None,
        leaving: false,
        advertise: None,
        scrub: None,
        managers: vec![address.clone()],
    };
    let lending = tokio::spawn(benefactor::run(config, Listener::bind("127.0.0.1:0", &credentials)?));
    let mut config = client::Config::new(vec![address], credentials.access(), &target.display().to_string());
    config.make = Some((target.clone(), Durability::Copies { copies: 1, media: Media::Any }));
    config.timeout = Duration::from_secs(60);
    let client = PoolClient::begin(config).await?;
    while client.status().await?.benefactors.iter().all(|(_, free)| *free == 0) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A session asks for numbers once in many files.
    client.create("first").await?.close().await?;
    client.wait_drained("first", Duration::from_secs(60)).await?;
    // What wardens do at the start is over.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = store.committed.load(Ordering::Relaxed);
    let mut writer = client.create("file").await?;
    let part = vec![7; 4 << 20];
    for _ in 0..mib / 4 {
        writer.write(&part).await?;
    }
    writer.close().await?;
    client.wait_drained("file", Duration::from_secs(240)).await?;
    let taken = store.committed.load(Ordering::Relaxed) - before;
    lending.abort();
    manager.abort();
    std::fs::remove_dir_all(&target)?;
    Ok(taken)
}
