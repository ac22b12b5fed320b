//! A manager: names and plans. It keeps nothing that the store does not have, so there may be several, and each may end at any time.
//!
//! Whoever holds the role in the store is the warden, who has lost copies made again and benefactors drop what nobody needs, and the publisher of a mount, who
//! brings its changes to the target.

mod answers;
mod commits;
mod copies;
mod counts;
mod drain;
mod early;
mod leaving;
mod locks;
mod look;
mod members;
mod objects;
#[cfg(feature = "metrics")]
mod observed;
mod protocol;
mod publisher;
mod quotas;
mod rate;
mod repair;
mod revocations;
mod rights;
mod roles;
mod room;
mod rows;
mod target;
mod troubles;
mod union;
mod warden;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use surgetank_model::Bandwidth;
use surgetank_pool_core::id::Revision;
use surgetank_pool_core::membership;
use surgetank_pool_core::meta::store::{Compare, Lease, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Key, Value};
use surgetank_pool_core::quota::Resource;
use tokio::sync::Notify;
use tonic::Status as Refused;

pub(crate) use self::answers::groups;
use self::commits::Commits;
use self::members::Members;
pub use self::protocol::{
    AtTarget, Begin, Begun, Content, Ended, Integrity, Leaving, Listed, MountStatus, NUMBERS, Once, Place, QuotaReport,
    Reply, Request, Reserve, Standstill, State, Status, StoreStatus, UserQuota,
};
pub(crate) use self::revocations::LOOK as REVOKED_LOOK;
use self::rights::Within;
use self::roles::Tenure;
pub use self::target::ASIDE;
pub(crate) use self::target::draft_name;
use crate::bucket::{self, Bucket};
use crate::claim;
use crate::meta::{LeaseEnded, MetaStore, Unavailable};
use crate::rpc::{Listener, Service};
use crate::security::token::Claims;
use crate::security::{Access, Credentials};

/// Between two attempts to begin anew.
const PAUSE: Duration = Duration::from_millis(200);

/// Times of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a mount's session lasts unless it is renewed.
    pub session: Duration,
    /// How long a benefactor's lease lasts unless it is renewed.
    pub benefactor: Duration,
    /// How long this manager's roles last unless they are renewed.
    pub role: Duration,
    /// How often benefactors are asked how they are.
    pub probe: Duration,
    /// How often benefactors are told what nobody needs.
    pub sweep: Duration,
    /// How long the store remembers how it was: longer than any read of it takes.
    pub history: Duration,
    /// When a benefactor counts as dead.
    pub membership: membership::Config,
    /// How fast copies are made again.
    pub repair: surgetank_pool_core::repair::Config,
    /// How it reaches the object stores that are targets.
    pub buckets: bucket::Options,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            session: Duration::from_secs(10),
            benefactor: Duration::from_secs(2),
            role: Duration::from_secs(4),
            probe: Duration::from_millis(200),
            sweep: Duration::from_secs(1),
            history: Duration::from_secs(300),
            membership: membership::Config::default(),
            repair: surgetank_pool_core::repair::Config {
                idle: Bandwidth::from_mib_s(200),
                beside: Bandwidth::from_mib_s(50),
                foreground_for: Duration::from_secs(2),
                at_once: 4,
                retry: Duration::from_secs(2),
            },
            buckets: bucket::Options::default(),
        }
    }
}

/// Why a manager ends.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] Unavailable),
    /// Another manager has replaced the key.
    #[error("{0}")]
    Key(claim::Refused),
    /// It cannot serve.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
}

impl From<claim::Refused> for Stopped {
    fn from(refused: claim::Refused) -> Self {
        match refused {
            claim::Refused::Unavailable(error) => Self::Store(error),
            another @ (claim::Refused::Another | claim::Refused::InUse) => Self::Key(another),
        }
    }
}

/// See the module.
pub struct Manager {
    config: Config,
    store: Arc<dyn MetaStore>,
    tenure: Tenure,
    commits: Commits,
    members: Members,
    credentials: Credentials,
    /// What benefactors are shown.
    access: Access,
    /// The pool's number.
    pool: u64,
    rate: rate::Rate,
    room: room::Room,
    quotas: Arc<quotas::Quotas>,
    counts: counts::Counts,
    troubles: troubles::Troubles,
    targets: union::Targets,
    /// The buckets that are targets, by their addresses.
    buckets: Mutex<BTreeMap<String, Arc<Bucket>>>,
    /// Some mount has begun a session, perhaps its first: it has a publisher soon.
    begun: Notify,
    /// The next number that nobody else has, and the end of the block.
    numbers: AtomicU64,
    attempts: AtomicU64,
}

/// Serves, under one lease after the other: the store may end the first one while this process, or the store, is stalled. What was under
/// way then is asked again by those who wait for it.
///
/// # Errors
/// [`Stopped`].
pub async fn run(config: Config, store: Arc<dyn MetaStore>, listener: Listener) -> Result<(), Stopped> {
    let credentials = listener.credentials().clone();
    let mut manager = match store.is_elsewhere() {
        true => begin_again(&config, &store, &credentials).await?,
        false => Manager::start(&config, &store, &credentials).await?,
    };
    #[cfg(feature = "metrics")]
    let watched = listener.watched();
    #[cfg(feature = "metrics")]
    watched.manager(&manager);
    let serving = Arc::new(Serving(RwLock::new(Arc::clone(&manager))));
    let mut served = std::pin::pin!(listener.serve(Arc::clone(&serving)));
    loop {
        tokio::select! {
            served = &mut served => return Ok(served?),
            () = manager.tenure.keep(&*manager.store) => {}
            _ = manager.commits.run() => {}
            () = members::watch(&manager) => return Ok(()),
            () = warden::run(&manager) => return Ok(()),
            () = publisher::run(&manager) => return Ok(()),
            () = room::watch(&manager) => return Ok(()),
            () = quotas::watch(&manager) => return Ok(()),
            refused = revocations::watch(&manager) => return Err(refused.into()),
        }
        tracing::warn!("this manager's lease has ended in the store: it begins anew, and others may have its roles");
        manager.commits.end();
        manager = tokio::select! {
            served = &mut served => return Ok(served?),
            begun = begin_again(&config, &store, &credentials) => begun?,
        };
        #[cfg(feature = "metrics")]
        watched.manager(&manager);
        *serving.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&manager);
    }
}

/// Begins once the store lets it.
async fn begin_again(
    config: &Config,
    store: &Arc<dyn MetaStore>,
    credentials: &Credentials,
) -> Result<Arc<Manager>, Stopped> {
    let mut told = String::new();
    loop {
        match Manager::start(config, store, credentials).await {
            Err(Stopped::Store(Unavailable(why))) if why == told => {}
            Err(Stopped::Store(error)) => {
                tracing::warn!("{error}");
                told = error.0;
            }
            begun => return begun,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The manager of the present lease.
struct Serving(RwLock<Arc<Manager>>);

impl Service for Serving {
    type Request = Request;
    type Reply = Reply;

    async fn answer(self: Arc<Self>, by: Claims, request: Request) -> Result<Reply, Refused> {
        let manager = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        manager.answer(by, request).await
    }
}

/// The number that tells the pool from any other: whoever looks first makes it.
pub(crate) async fn pool(store: &dyn MetaStore) -> Result<u64, Unavailable> {
    loop {
        let read = store.read(&[Key::Pool], &[]).await?;
        if let Some(Value::Pool(number)) = read.keys.into_iter().next().flatten().map(|stored| stored.value) {
            return Ok(number);
        }
        // The system gives each of these a seed that nobody foresees.
        let number = RandomState::new().build_hasher().finish();
        let made = Transaction {
            compares: vec![Compare::Absent(Key::Pool)],
            writes: vec![Write::Put(Key::Pool, Value::Pool(number))],
        };
        store.commit(&made).await.map_err(|ended| Unavailable(ended.to_string()))?;
    }
}

/// A revision that no other transaction has: the base of numbers that nobody else uses.
async fn unique(store: &dyn MetaStore, lease: Lease) -> Result<Result<Revision, LeaseEnded>, Unavailable> {
    let receipt = Key::Receipt(0, lease.0);
    let writes = vec![Write::PutLeased(receipt, Value::Receipt, lease)];
    match store.commit(&Transaction { compares: Vec::new(), writes }).await {
        Ok(Outcome::Committed(revision)) => Ok(Ok(revision)),
        Ok(_) => Err(Unavailable("it did not say what became of a transaction".to_owned())),
        Err(ended) => Ok(Err(ended)),
    }
}

impl Manager {
    async fn start(
        config: &Config,
        store: &Arc<dyn MetaStore>,
        credentials: &Credentials,
    ) -> Result<Arc<Self>, Stopped> {
        let tenure = Tenure::begin(&**store, config.role).await?;
        let id = tenure.manager();
        let pool = pool(&**store).await?;
        // Before anybody is served.
        revocations::read(&**store, credentials).await?;
        let quotas = Arc::<quotas::Quotas>::default();
        quotas.read(&**store).await?;
        Ok(Arc::new(Self {
            access: credentials.access(),
            credentials: credentials.clone(),
            commits: Commits::new(Arc::clone(store), id, tenure.lease()),
            members: Members::new(config.membership),
            rate: rate::Rate::default(),
            room: room::Room::default(),
            quotas,
            counts: counts::Counts::default(),
            troubles: troubles::Troubles::default(),
            targets: union::Targets::default(),
            buckets: Mutex::default(),
            begun: Notify::new(),
            numbers: AtomicU64::new(id * NUMBERS),
            attempts: AtomicU64::new(0),
            pool,
            config: config.clone(),
            store: Arc::clone(store),
            tenure,
        }))
    }

    /// A number that nobody else has had.
    ///
    /// It panics in none: a manager that has used sixteen million numbers takes those of a later revision by starting again.
    fn number(&self) -> Result<u64, Unavailable> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if number / NUMBERS == self.tenure.manager() {
            Ok(number)
        } else {
            Err(Unavailable("this manager has used all its numbers: start it again".to_owned()))
        }
    }

    /// A number of an attempt to drain, which no other attempt of this manager has.
    fn attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// One transaction of the manager's own.
    async fn commit(&self, compares: Vec<Compare>, writes: Vec<Write>) -> Result<bool, Unavailable> {
        Ok(self.commits.commit(Transaction { compares, writes }).await?)
    }
}

/// Does something to its end, also when nobody waits for it any more: what it was given counts until its transaction has ended.
async fn to_the_end<T: Send + 'static>(
    done: impl Future<Output = Result<T, Unavailable>> + Send + 'static,
) -> Result<T, Unavailable> {
    let ended = tokio::spawn(done).await;
    ended.unwrap_or_else(|error| Err(Unavailable(format!("this manager ends: {error}"))))
}

impl Service for Manager {
    type Request = Request;
    type Reply = Reply;

    async fn answer(self: Arc<Self>, by: Claims, request: Request) -> Result<Reply, Refused> {
        rights::check(&by, &request)?;
        let within = Within::of(&by);
        let answered = match request {
            Request::Join(lends) => self.join(lends).await,
            Request::Renew(lease) => self.store.renew(lease).await.map(Reply::Renewed),
            Request::Begin(begin) => return self.begin(&by, begin).await,
            Request::End(session, lease) => self.end(session, lease).await,
            Request::Numbers(lease) => unique(&*self.store, lease).await.map(|revision| match revision {
                Ok(revision) => Reply::Numbers(revision.0 * NUMBERS),
                Err(_) => Reply::Renewed(false),
            }),
            Request::Lookup(directory, path) => self.lookup(directory, &path, within).await,
            Request::Import(directory, path, number) => self.import(directory, &path, number, &by).await,
            Request::Recorded(inode, directory, name) => self.recorded(inode, directory, &name, within).await,
            Request::Before(inode, path) => self.before(inode, &path, within).await,
            Request::Content(inode) => self.content(inode, &by).await,
            Request::Fetch(inode, version, offset, length) => {
                self.fetch((inode, version), (offset, length), within).await
            }
            Request::Whole(inode) => self.is_whole(inode, &by).await,
            Request::ReadDir(directory, path, after) => self.read_dir(directory, &path, after.as_ref(), within).await,
            Request::Place(place) => Ok(self.place(&place)),
            Request::Do(operation, once) => return self.act(&by, operation, once).await,
            Request::Lock(operation) => return self.lock(&by, &operation).await,
            Request::Locked(session, inodes) => self.locked(session, &inodes).await,
            Request::Status => self.status(&by).await,
            Request::Undrained => self.undrained().await,
            Request::Leave(id) => return self.leave(id).await,
            Request::TakeOut(id) => return self.take_out(id).await,
            Request::TakeBack(id) => return self.take_back(id).await,
            Request::Leaving(id) => self.leaving(id).await,
            Request::HasQuota(user) => Ok(Reply::HasQuota(self.quotas.limits(user, Resource::Bytes))),
            Request::Reserve(reserve) => {
                let manager = Arc::clone(&self);
                to_the_end(async move { manager.reserve(&by, reserve).await }).await
            }
            Request::Quotas => self.quota_report(&by).await,
            Request::SetQuota(user, bytes, files) => self.set_quota(user, (bytes, files)).await,
            Request::Revoke(token) => self.revoke(token).await,
            Request::Revoked => Ok(Reply::Revoked(self.credentials.revoked.all())),
        };
        answered.map_err(Refused::from)
    }
}
