//! etcd as the store: of several managers, on several machines.
//!
//! All keys of a pool begin with `/NAME/`, so that pools share an etcd; a key `/NAME/=` says that a pool has them, and in which format. A
//! transaction of the pool is one of etcd's, whose other branch reads what its compares looked at: so a refusal names all that did not
//! hold, at the revision of the refusal. Leases are etcd's own. Nothing is kept here that a manager could answer from.

mod client;
mod config;
mod gathered;
mod messages;
mod spelling;
mod watch;

use std::collections::{BTreeSet, VecDeque};
use std::error::Error as _;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Key, Prefix, Stored, Value};
use tokio::time::Instant;
use tonic::{Code, Status};

use self::client::{COMPACT, Client, GRANT, REVOKE, STATUS, TIME_TO_LIVE, TXN, deepest};
pub use self::config::{BadConfig, Config, Tls};
use self::gathered::Gathered;
use self::messages::{
    CompactionRequest, Empty, KeyValue, LeaseGrantRequest, LeaseRequest, LeaseResponse, Op, RangeRequest, RequestOp,
    StatusResponse, TxnRequest, TxnResponse, op,
};
use self::spelling::Spelling;
use self::watch::Watch;
use super::{LeaseEnded, MetaStore, Snapshot, Unavailable, Usage, keys};
use crate::wire::Wire;

/// How long what can be repeated is repeated: another leader is elected in a second or two.
const REPEAT: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(50);
/// Keys of a prefix in one answer.
const PAGE: i64 = 512;
/// Operations of a transaction, as etcd is asked for: it says which it takes (`--max-txn-ops`; 128 unless that is set).
const OPERATIONS: [usize; 6] = [4096, 2048, 1024, 512, 256, 128];
/// etcd takes requests of 1.5 MiB unless `--max-request-bytes` says otherwise. What is left is for the frames of operations.
const BYTES_MAX: usize = (3 << 19) - (128 << 10);
/// etcd's quota unless `--quota-backend-bytes` says otherwise.
const QUOTA: u64 = 2 << 30;
/// The first versions in which a former leader with a slow disk does not revoke all leases (etcd#15247).
const FIXED: [(u64, u64, u64); 2] = [(3, 4, 31), (3, 5, 13)];

/// See the module.
pub struct Etcd {
    client: Arc<Client>,
    spelling: Spelling,
    limits: Limits,
    watch: Watch,
    gathered: Gathered,
    /// Of an etcd that does not say it.
    quota: u64,
    /// Why the last transaction's outcome is unknown: each reason is told once.
    told: Mutex<String>,
}

/// Why an etcd is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConnected {
    /// It does not answer now: it may be starting, or elect a leader.
    #[error("{0}")]
    Silent(String),
    /// It refuses, is too old, or has something else under the pool's name.
    #[error("{0}")]
    Unfit(String),
}

impl NotConnected {
    fn of(error: &Status) -> Self {
        let is_over = matches!(error.code(), Code::ResourceExhausted | Code::DeadlineExceeded) || may_pass(error);
        if is_over { Self::Silent(sentence(error)) } else { Self::Unfit(sentence(error)) }
    }

    fn at(self, endpoints: &[String]) -> Self {
        let at = |why: String| format!("etcd at {}: {why}", endpoints.join(", "));
        match self {
            Self::Silent(why) => Self::Silent(at(why)),
            Self::Unfit(why) => Self::Unfit(at(why)),
        }
    }
}

/// A part of a read: a key, or the keys of a prefix from some key on.
enum Part {
    Key(usize),
    Under(usize, Vec<u8>),
}

impl Etcd {
    /// Looks for the etcd, and makes the pool if it has none of the name. A task of the runtime in which this is called follows changes.
    ///
    /// # Errors
    /// [`NotConnected`].
    pub async fn connect(config: &Config) -> Result<Self, NotConnected> {
        let at = |error: NotConnected| error.at(&config.endpoints);
        let client = Client::new(config).map_err(NotConnected::Unfit).map_err(at)?;
        check_version(&client).await.map_err(at)?;
        let spelling = Spelling::new(&config.pool);
        let limits = Limits { operations: operations(&client, &spelling).await.map_err(at)?, bytes: BYTES_MAX };
        make(&client, &spelling, &config.pool).await.map_err(at)?;
        let watch = Watch::start(Arc::clone(&client), spelling.root());
        let quota = config.quota.unwrap_or(QUOTA);
        Ok(Self { client, spelling, limits, watch, gathered: Gathered::new(), quota, told: Mutex::default() })
    }

    /// What does not fit into one transaction is read at the revision of the first one.
    async fn read_once(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Status> {
        let mut left: VecDeque<Part> = (0..keys.len()).map(Part::Key).collect();
        left.extend(prefixes.iter().enumerate().map(|(at, prefix)| Part::Under(at, self.spelling.prefix(*prefix))));
        let mut found = Snapshot {
            revision: Revision(0),
            keys: vec![None; keys.len()],
            prefixes: vec![Vec::new(); prefixes.len()],
        };
        let mut revision = 0;
        loop {
            let parts: Vec<Part> = left.drain(..left.len().min(self.limits.operations)).collect();
            let mut success: Vec<RequestOp> =
                parts.iter().map(|part| self.get(part, keys, prefixes, revision)).collect();
            if success.is_empty() {
                let key = self.spelling.mark();
                success.push(op(Op::Range(RangeRequest { key, keys_only: true, ..RangeRequest::default() })));
            }
            let request = TxnRequest { success, ..TxnRequest::default() };
            // No member answers before it has heard from the majority.
            let answer: TxnResponse = self.client.ask_any(TXN, request).await?;
            if revision == 0 {
                revision = messages::revision(answer.header.as_ref());
                found.revision = spelling::revision(revision);
            }
            for (part, answer) in parts.into_iter().zip(answer.responses) {
                let Some(answer) = answer.range else { return Err(Status::data_loss("it answers what was not asked")) };
                let last = answer.kvs.last().filter(|_| answer.more).map(|last| [&last.key[..], b"\0"].concat());
                for each in answer.kvs {
                    let key = each.key.clone();
                    let stored = stored(each)?;
                    match part {
                        Part::Key(at) => found.keys[at] = Some(stored),
                        Part::Under(at, _) => {
                            let key = keys::read(self.spelling.own(&key)).map_err(|_| damaged(&key))?;
                            found.prefixes[at].push((key, stored));
                        }
                    }
                }
                if let (Part::Under(at, _), Some(last)) = (part, last) {
                    left.push_front(Part::Under(at, last));
                }
            }
            if left.is_empty() {
                return Ok(found);
            }
        }
    }

    fn get(&self, part: &Part, keys: &[Key], prefixes: &[Prefix], revision: i64) -> RequestOp {
        let range = match part {
            Part::Key(at) => RangeRequest { key: self.spelling.key(&keys[*at]), ..RangeRequest::default() },
            Part::Under(at, from) => RangeRequest {
                key: from.clone(),
                range_end: spelling::end_of(self.spelling.prefix(prefixes[*at])),
                limit: PAGE,
                ..RangeRequest::default()
            },
        };
        op(Op::Range(RangeRequest { revision, ..range }))
    }

    /// Which of the transaction's leases has ended.
    async fn ended(&self, transaction: &Transaction) -> Option<Lease> {
        let leases: BTreeSet<Lease> = transaction.writes.iter().filter_map(leased).collect();
        for lease in &leases {
            let asked = self.client.ask_any(TIME_TO_LIVE, LeaseRequest { id: spelling::lease(*lease) }).await;
            if asked.is_ok_and(|left: LeaseResponse| left.ttl < 0) {
                return Some(*lease);
            }
        }
        leases.first().copied().filter(|_| leases.len() == 1)
    }

    fn tell(&self, why: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != why {
            if !why.is_empty() {
                tracing::error!("etcd: what became of a transaction is unknown, and it is sent again: {why}");
            }
            *told = why;
        }
    }
}

/// Repeats what may be repeated, for a while.
async fn repeated<T, F: Future<Output = Result<T, Status>>>(attempt: impl Fn() -> F) -> Result<T, Unavailable> {
    let end = Instant::now() + REPEAT;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if may_pass(&error) && Instant::now() < end => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(Unavailable(format!("etcd: {}", sentence(&error)))),
        }
    }
}

/// Also that the revision of a read in several parts was compacted meanwhile.
fn may_pass(error: &Status) -> bool {
    use Code::{Cancelled, Internal, OutOfRange, Unavailable, Unknown};
    matches!(error.code(), Unavailable | Unknown | Cancelled | Internal | OutOfRange)
}

fn damaged(key: &[u8]) -> Status {
    Status::data_loss(format!("its key {} is damaged, or of another version", key.escape_ascii()))
}

/// Why etcd does not do what it should, and the remedy.
fn sentence(error: &Status) -> String {
    let message = error.message();
    match error.code() {
        Code::DeadlineExceeded => "it does not answer in time: see that it runs and has a leader".to_owned(),
        Code::ResourceExhausted if message.contains("space exceeded") => {
            "it is out of space (alarm NOSPACE): compact and defragment it, or raise --quota-backend-bytes, then disarm the alarm"
                .to_owned()
        }
        Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition | Code::InvalidArgument => {
            format!("it refuses ({message}): name a user of etcd, with its password, who may read and write the pool's keys")
        }
        Code::DataLoss => message.to_owned(),
        _ if message.starts_with("etcdserver") => message.to_owned(),
        _ => {
            let why = error.source().map_or_else(|| message.to_owned(), deepest);
            format!("it does not answer as etcd does ({why}): see that it runs there, and whether it wants TLS")
        }
    }
}

/// Refuses versions that end the leases of those who are well; of all members that answer.
async fn check_version(client: &Client) -> Result<(), NotConnected> {
    let members = client.ask_each::<_, StatusResponse>(STATUS, Empty {}).await;
    let members = members.map_err(|error| NotConnected::of(&error))?;
    members.iter().try_for_each(|member| is_fixed(&member.version)).map_err(NotConnected::Unfit)
}

fn is_fixed(version: &str) -> Result<(), String> {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u64>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    let is_fixed = FIXED.iter().any(|least| found >= *least && (found.0, found.1) == (least.0, least.1));
    if is_fixed || (found.0, found.1) > (3, 5) {
        return Ok(());
    }
    Err(format!(
        "it has version {version}, which may end all leases at once when its disk is slow (etcd#15247): use 3.4.31, 3.5.13 or newer"
    ))
}

/// How many operations it takes in a transaction: it is asked with compares alone, which change nothing.
async fn operations(client: &Client, spelling: &Spelling) -> Result<usize, NotConnected> {
    for operations in OPERATIONS {
        let compare = vec![spelling::none_under(spelling.mark()); operations];
        let asked = client.ask_any::<_, TxnResponse>(TXN, TxnRequest { compare, ..TxnRequest::default() }).await;
        match asked {
            Ok(_) => return Ok(operations),
            Err(status) if status.message().contains("too many operations") => {}
            Err(error) => return Err(NotConnected::of(&error)),
        }
    }
    let few = "it takes fewer than 128 operations in a transaction: start it with --max-txn-ops=128 or more";
    Err(NotConnected::Unfit(few.to_owned()))
}

/// Makes the pool of the name, or recognises it.
async fn make(client: &Client, spelling: &Spelling, pool: &str) -> Result<(), NotConnected> {
    let look = RangeRequest { key: spelling.mark(), ..RangeRequest::default() };
    let request = TxnRequest {
        compare: vec![spelling::none_under(spelling.root())],
        success: vec![spelling::put(spelling.mark(), spelling::FORMAT.to_vec(), 0)],
        failure: vec![op(Op::Range(look))],
    };
    // Whichever copy comes first makes it, and the others find it.
    let answer: TxnResponse = client.ask_any(TXN, request).await.map_err(|error| NotConnected::of(&error))?;
    if answer.succeeded {
        return Ok(());
    }
    let found = answer.responses.into_iter().next().and_then(|answer| answer.range?.kvs.into_iter().next());
    match found.map(|found| found.value) {
        Some(format) if format == spelling::FORMAT => Ok(()),
        Some(format) => Err(NotConnected::Unfit(format!(
            "pool `{pool}` has the format `{}`, and this program reads `{}`: use the program that made it",
            format.escape_ascii(),
            spelling::FORMAT.escape_ascii()
        ))),
        None => {
            Err(NotConnected::Unfit(format!("its keys below /{pool}/ are not a pool's: give the pool another name")))
        }
    }
}

fn stored(of: KeyValue) -> Result<Stored, Status> {
    let KeyValue { key, create_revision, mod_revision, value } = of;
    let value = Value::from_bytes(value).map_err(|_| damaged(&key))?;
    Ok(Stored { value, created: spelling::revision(create_revision), modified: spelling::revision(mod_revision) })
}

/// How full a member is; `None`: it has no quota.
fn usage(member: &StatusResponse, quota: u64) -> Option<Usage> {
    let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
    Some(Usage {
        size: bytes(member.db_size),
        in_use: bytes(member.db_size_in_use),
        quota: match member.db_size_quota {
            ..0 => return None,
            0 => quota,
            quota => bytes(quota),
        },
        takes_nothing: member.errors.iter().any(|error| error.contains("NOSPACE")),
    })
}

fn leased(write: &Write) -> Option<Lease> {
    match write {
        Write::PutLeased(_, _, lease) => Some(*lease),
        Write::Put(..) | Write::Delete(_) => None,
    }
}

#[tonic::async_trait]
impl MetaStore for Etcd {
    fn limits(&self) -> Limits {
        self.limits
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        if prefixes.is_empty() && !keys.is_empty() {
            let read = async move |keys: Vec<Key>| repeated(|| self.read_once(&keys, &[])).await;
            return self.gathered.read(keys, read).await;
        }
        repeated(|| self.read_once(keys, prefixes)).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        let answer: Result<TxnResponse, Status> = self.client.ask(TXN, self.spelling.transaction(transaction)).await;
        let why = match answer {
            Ok(answer) => {
                self.tell(String::new());
                let revision = spelling::revision(messages::revision(answer.header.as_ref()));
                self.watch.heard(revision);
                return Ok(match answer.succeeded {
                    true => Outcome::Committed(revision),
                    false => Outcome::Refused(spelling::refused(&transaction.compares, &answer.responses)),
                });
            }
            // It looks at the leases before it changes anything.
            Err(status) if status.message().contains("lease not found") => match self.ended(transaction).await {
                Some(lease) => return Err(LeaseEnded(lease)),
                None => status.message().to_owned(),
            },
            Err(error) => sentence(&error),
        };
        self.tell(why);
        Ok(Outcome::Unknown)
    }

    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable> {
        // In whole seconds; etcd may make it longer. One whose answer is lost ends by itself.
        let ttl = i64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let granted: LeaseResponse = repeated(|| self.client.ask(GRANT, LeaseGrantRequest { ttl })).await?;
        Ok(Lease(granted.id.cast_unsigned()))
    }

    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable> {
        match self.client.keep_alive::<_, LeaseResponse>(LeaseRequest { id: spelling::lease(lease) }).await {
            Ok(left) => Ok(left.ttl > 0),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(error) => Err(Unavailable(format!("etcd: {}", sentence(&error)))),
        }
    }

    async fn end(&self, lease: Lease) -> Result<(), Unavailable> {
        repeated(|| async {
            match self.client.ask_any::<_, Empty>(REVOKE, LeaseRequest { id: spelling::lease(lease) }).await {
                Err(status) if status.code() == Code::NotFound => Ok(()),
                ended => ended.map(drop),
            }
        })
        .await
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    async fn usage(&self) -> Result<Option<Usage>, Unavailable> {
        let members = self.client.ask_each::<_, StatusResponse>(STATUS, Empty {}).await;
        let members = members.map_err(|error| Unavailable(format!("etcd: {}", sentence(&error))))?;
        Ok(members.iter().filter_map(|member| usage(member, self.quota)).max_by_key(Usage::parts_taken))
    }

    async fn compact(&self, before: Revision) -> Result<(), Unavailable> {
        let revision = before.0.cast_signed();
        let Err(error) = self.client.ask::<_, Empty>(COMPACT, CompactionRequest { revision }).await else {
            return Ok(());
        };
        let why = match error.code() {
            // Somebody else has compacted more.
            Code::OutOfRange => return Ok(()),
            Code::PermissionDenied => {
                "only a user with the role root may: start etcd with --auto-compaction-retention=5m".to_owned()
            }
            _ => sentence(&error),
        };
        Err(Unavailable(format!("etcd: its history is not compacted: {why}")))
    }

    async fn changed(&self, since: Revision) {
        self.watch.beyond(since).await;
    }
}

#[cfg(test)]
mod tests {
    use super::is_fixed;

    #[test]
    fn versions_that_may_end_all_leases_are_refused() {
        for version in ["3.4.31", "3.4.40", "3.5.13", "3.5.21-rc.1", "3.6.0", "3.7.3", "4.0.0"] {
            assert_eq!(is_fixed(version), Ok(()), "{version}");
        }
        for version in ["3.4.23", "3.5.12", "3.5.0", "3.3.99", "2.3.8", "", "etcd"] {
            let said = is_fixed(version).unwrap_err();
            assert!(said.ends_with("(etcd#15247): use 3.4.31, 3.5.13 or newer"), "{said}");
        }
    }
}
