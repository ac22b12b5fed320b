//! The client library: names, and files that are written to and read from benefactors.
//!
//! A client is one session of a mount. Every change is asked for under a number of the session, so that it takes place once, whichever
//! manager carries it out and however often it is sent. Paths are relative to the mount's root, with `/` between names.

mod errno;
mod leaving;
mod locks;
mod lost;
mod nodes;
mod prefetch;
mod quotas;
mod reader;
mod revoke;
mod session;
mod writer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::{BenefactorId, Inode, SessionId};
use surgetank_pool_core::meta::operation::{At, Operation, Refusal, Reply as Done};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::Path;
use surgetank_pool_core::meta::{Durability, FileState, Kind, Name};
use surgetank_pool_core::placement::{Media, Protection};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tonic::Code;

pub use self::errno::errno;
use self::locks::AskedAt;
use self::lost::Rows;
pub use self::nodes::{Held, Owner, Stat};
use self::reader::AtTarget;
pub use self::reader::Reader;
use self::session::renew;
pub use self::writer::Writer;
use crate::benefactor::Benefactor;
use crate::chunks;
use crate::manager::{Begin, Content, Ended, NUMBERS, Once, Reply, Request, Status};
use crate::managers::{Lost, Managers};
use crate::rpc::{BadAddress, Peer};
use crate::security::Access;
use crate::security::token::Ticket;

/// How often what changes by itself is looked at again.
const LOOK: Duration = Duration::from_millis(50);
/// Tickets that are kept at most.
const TICKETS: usize = 4096;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The managers' addresses.
    pub managers: Vec<String>,
    /// What it shows them.
    pub access: Access,
    /// The mount's name.
    pub mount: String,
    /// Its target and durability: it is made if it is not there.
    pub make: Option<(PathBuf, Durability)>,
    /// How long a request waits for managers, benefactors and room before it fails.
    pub timeout: Duration,
    /// Bytes of a file that are kept in memory while they are not committed, so that they can be written elsewhere when a benefactor dies.
    /// Of a file with more, those are dropped first that other benefactors can be given by one that has them; or else it is committed
    /// without being asked.
    pub kept_max: u64,
    /// Bytes that a file may have uncommitted. A file with more is committed without being asked.
    pub uncommitted_max: u64,
    /// Chunks under way at a time, of each file.
    pub puts: usize,
}

impl Config {
    /// With the usual limits.
    #[must_use]
    pub fn new(managers: Vec<String>, access: Access, mount: &str) -> Self {
        Self {
            managers,
            access,
            mount: mount.to_owned(),
            make: None,
            timeout: Duration::from_secs(120),
            kept_max: 256 << 20,
            uncommitted_max: 4 << 30,
            puts: 16,
        }
    }
}

/// Why something did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An address is wrong.
    #[error("{0}")]
    Address(String),
    /// A path is wrong.
    #[error("path `{0}`: {1}")]
    Path(String, String),
    /// It was refused.
    #[error("{0}: {1}")]
    Refused(String, Refusal),
    /// The token does not allow it.
    #[error("{0}")]
    NotAllowed(String),
    /// Managers did not answer.
    #[error("{0}")]
    Managers(String),
    /// A manager refused the request as such.
    #[error("{0}")]
    Declined(String),
    /// The session has ended in the store: what it had not committed is lost, and its files stay failed.
    #[error("the session of mount `{0}` has ended: begin another")]
    SessionEnded(String),
    /// There was no room, or no benefactors, for too long.
    #[error("{path}: {why} (waited {waited:?})")]
    NoRoom {
        /// The file.
        path: String,
        /// What was missing.
        why: String,
        /// How long.
        waited: Duration,
    },
    /// The pool's store has no room for more names.
    #[error("{0}: {1}")]
    StoreFull(String, String),
    /// Nobody says whether the quota of the file's user has room.
    #[error("{0}: nothing of it was written, since it is not known whether the user's quota has room: {1}")]
    QuotaUnknown(String, String),
    /// No copy of a chunk can be read.
    #[error("{path}: bytes from {offset} on cannot be read: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// Where.
        offset: u64,
        /// What each copy answered.
        why: String,
    },
    /// It will not reach its target.
    #[error("{0}: the file will not reach its target: {1}")]
    NotDrained(String, &'static str),
    /// It did not happen in time.
    #[error("{0} has not happened within {1:?}")]
    Timeout(String, Duration),
}

impl From<BadAddress> for Error {
    fn from(error: BadAddress) -> Self {
        Self::Address(error.to_string())
    }
}

impl From<Lost> for Error {
    fn from(error: Lost) -> Self {
        match error {
            Lost::Unanswered(why) => Self::Managers(why),
            Lost::Declined(why) => Self::Declined(why),
            Lost::NotAllowed(why) => Self::NotAllowed(why),
        }
    }
}

/// One session of a mount.
pub struct PoolClient {
    inner: Arc<Inner>,
    renewing: AbortHandle,
}

impl Drop for PoolClient {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

struct Inner {
    config: Config,
    managers: Managers,
    /// What the session shows.
    access: Access,
    session: SessionId,
    lease: Lease,
    root: Inode,
    protection: Protection,
    media: Media,
    target: PathBuf,
    over: AtomicBool,
    /// Until when the session lasts, though nobody renews it any more.
    sure: Mutex<Instant>,
    /// Files of whose locks a request was sent more than once.
    lock_copies: Mutex<BTreeSet<Inode>>,
    requests: AtomicU64,
    instances: AtomicU64,
    /// The next number, and the end of the block.
    numbers: tokio::sync::Mutex<(u64, u64)>,
    peers: Mutex<BTreeMap<BenefactorId, (String, Peer)>>,
    /// What lets the session read files: of those that it has asked for last.
    tickets: Mutex<BTreeMap<Inode, Ticket>>,
    /// Files that this session has open for writing.
    open: Mutex<BTreeSet<Inode>>,
    /// Files that stay readable when the target has them no more.
    held: Mutex<BTreeMap<Inode, AtTarget>>,
    /// What the rows of groups are of which a chunk had to be made.
    rows: Mutex<VecDeque<Arc<Rows>>>,
    /// Whose bytes are limited.
    quotas: quotas::Known,
}

impl PoolClient {
    /// Begins a session.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn begin(config: Config) -> Result<Self, Error> {
        let managers = Managers::new(&config.managers, &config.access)?;
        let make = match &config.make {
            Some((target, durability)) => match target.to_str() {
                Some(target) => Some((target.to_owned(), *durability)),
                None => return Err(Error::Path(target.display().to_string(), "a target's path is UTF-8".to_owned())),
            },
            None => None,
        };
        let begin = Begin { name: config.mount.clone(), make };
        let asked = AskedAt::default();
        let until = Instant::now() + config.timeout;
        let Reply::Begun(begun) = managers.ask_until(until, |_| asked.now(Request::Begin(begin.clone()))).await? else {
            return Err(senseless());
        };
        let (protection, media) = match begun.of.durability {
            Durability::Copies { copies, media } => (Protection::Copies(copies.into()), media),
            Durability::Target => (Protection::Copies(1), Media::Any),
            Durability::Parity(of) => (Protection::Parity(of), Media::Any),
        };
        let access = config.access.instead(begun.token);
        let inner = Arc::new(Inner {
            managers: Managers::new(&config.managers, &access)?,
            access,
            session: begun.session,
            lease: begun.lease,
            root: begun.of.root,
            protection,
            media,
            target: PathBuf::from(&begun.of.target),
            over: AtomicBool::new(false),
            sure: Mutex::new(asked.last() + Duration::from_millis(begun.millis)),
            lock_copies: Mutex::new(BTreeSet::new()),
            requests: AtomicU64::new(0),
            instances: AtomicU64::new(0),
            numbers: tokio::sync::Mutex::new((0, 0)),
            peers: Mutex::new(BTreeMap::new()),
            tickets: Mutex::new(BTreeMap::new()),
            open: Mutex::new(BTreeSet::new()),
            held: Mutex::new(BTreeMap::new()),
            rows: Mutex::default(),
            quotas: quotas::Known::default(),
            config,
        });
        let renewing = tokio::spawn(renew(Arc::clone(&inner), Duration::from_millis(begun.millis))).abort_handle();
        Ok(Self { inner, renewing })
    }

    /// How a pool is, without a session.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn ask_status(config: &Config) -> Result<Status, Error> {
        let managers = Managers::new(&config.managers, &config.access)?;
        match managers.ask_until(Instant::now() + config.timeout, |_| Request::Status).await? {
            Reply::Status(status) => Ok(status),
            _ => Err(senseless()),
        }
    }

    /// Of how many files benefactors may have something that no target has. It takes the pool's key.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn ask_undrained(config: &Config) -> Result<u64, Error> {
        let managers = Managers::new(&config.managers, &config.access)?;
        match managers.ask_until(Instant::now() + config.timeout, |_| Request::Undrained).await? {
            Reply::Undrained(files) => Ok(files),
            _ => Err(senseless()),
        }
    }

    /// Makes a file that is not there, and opens it for writing.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn create(&self, path: &str) -> Result<Writer, Error> {
        self.create_at(self.inner.at(path).await?, path, (0o644, 0, 0)).await
    }

    /// Opens a file for writing, at its end.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn append(&self, path: &str) -> Result<Writer, Error> {
        let inode = self.inner.lookup(path).await?;
        self.write_node(inode, path).await
    }

    /// Opens a file for reading: what is committed now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(&self, path: &str) -> Result<Reader, Error> {
        let inode = self.inner.lookup(path).await?;
        self.read_node(inode, path).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn make_directory(&self, path: &str) -> Result<(), Error> {
        self.make_directory_at(self.inner.at(path).await?, path, (0o755, 0, 0)).await.map(|_| ())
    }

    /// Moves a file or directory, in the place of what is there.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (at, to_at) = (self.inner.at(from).await?, self.inner.at(to).await?);
        self.rename_at(at, to_at, true, &format!("{from} to {to}")).await
    }

    /// Unlinks a file.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn unlink(&self, path: &str) -> Result<(), Error> {
        self.unlink_at(self.inner.at(path).await?, path).await
    }

    /// Removes a directory in which nothing is.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn remove_directory(&self, path: &str) -> Result<(), Error> {
        self.remove_directory_at(self.inner.at(path).await?, path).await
    }

    /// What is in a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read_directory(&self, path: &str) -> Result<Vec<(Name, Stat)>, Error> {
        self.entries(self.inner.root, &Path(names(path)?), path).await
    }

    /// What is known of a file or directory.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn stat(&self, path: &str) -> Result<Stat, Error> {
        self.inner.found(Request::Lookup(self.inner.root, Path(names(path)?)), path).await
    }

    /// Waits until the target has what is committed of a file now, at that path or one that the file had.
    ///
    /// # Errors
    /// [`Error::NotDrained`]: it never will. [`Error::Timeout`]: not yet.
    pub async fn wait_drained(&self, path: &str, within: Duration) -> Result<(), Error> {
        let until = Instant::now() + within;
        loop {
            let state = self.stat(path).await?.state;
            match state {
                Some(FileState::Drained | FileState::Evicted) | None => return Ok(()),
                Some(FileState::Failed) => {
                    let why = "chunks of it are lost, or it is longer than a file at its target may be";
                    return Err(Error::NotDrained(path.to_owned(), why));
                }
                Some(FileState::Conflict) => {
                    return Err(Error::NotDrained(path.to_owned(), "somebody else changed what is there"));
                }
                Some(FileState::Created | FileState::Replicated) => {}
            }
            if Instant::now() >= until {
                return Err(Error::Timeout(format!("the drain of {path}"), within));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How the pool is.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        match self.inner.ask(Request::Status).await? {
            Reply::Status(status) => Ok(status),
            _ => Err(senseless()),
        }
    }
}

fn senseless() -> Error {
    Error::Managers("a manager's answer makes no sense: it is of another version".to_owned())
}

impl Inner {
    /// Asks the managers, until one answers or the time is over.
    async fn ask(&self, request: Request) -> Result<Reply, Error> {
        self.ask_again(|_| request.clone()).await
    }

    async fn ask_again(&self, request: impl Fn(bool) -> Request) -> Result<Reply, Error> {
        self.ask_until(self.until(), request).await
    }

    async fn ask_until(&self, until: Instant, request: impl Fn(bool) -> Request) -> Result<Reply, Error> {
        if let Some(ended) = self.session_ended() {
            return Err(ended);
        }
        Ok(self.managers.ask_until(until, request).await?)
    }

    /// What everything fails with, once the session has ended in the store.
    fn session_ended(&self) -> Option<Error> {
        self.over.load(Ordering::Relaxed).then(|| Error::SessionEnded(self.config.mount.clone()))
    }

    fn until(&self) -> Instant {
        Instant::now() + self.config.timeout
    }

    /// Has an operation take place once. `None`: it did, and its reply was lost.
    async fn operate(&self, what: &str, operation: &Operation) -> Result<Option<Done>, Error> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let (session, lease) = (self.session, self.lease);
        let request = |again| Request::Do(operation.clone(), Once { session, lease, number, again });
        match self.ask_again(request).await? {
            Reply::Ended(Ended::Before) => Ok(None),
            Reply::Ended(Ended::Reply(reply)) => Ok(Some(reply)),
            Reply::Ended(Ended::Refused(Refusal::NotTheWriter)) => Err(Error::SessionEnded(self.config.mount.clone())),
            Reply::Ended(Ended::Refused(refusal)) => Err(Error::Refused(what.to_owned(), refusal)),
            Reply::NoRoom(why) => Err(Error::StoreFull(what.to_owned(), why)),
            _ => Err(senseless()),
        }
    }

    /// This session writes a file no more; the last one that does has its target see what is committed.
    async fn close(&self, path: &str, inode: Inode) -> Result<(), Error> {
        let operation = Operation::Close { inode, session: self.session, journal: self.number().await? };
        self.operate(path, &operation).await.map(|_| ())
    }

    /// A number that nobody else has.
    async fn number(&self) -> Result<u64, Error> {
        let mut numbers = self.numbers.lock().await;
        if numbers.0 == numbers.1 {
            match self.ask(Request::Numbers(self.lease)).await? {
                Reply::Numbers(first) => *numbers = (first, first + NUMBERS),
                Reply::Renewed(false) => return Err(Error::SessionEnded(self.config.mount.clone())),
                _ => return Err(senseless()),
            }
        }
        numbers.0 += 1;
        Ok(numbers.0 - 1)
    }

    /// The pool's number of what is at a path, which becomes the pool's if the target alone has it.
    async fn lookup(&self, path: &str) -> Result<Inode, Error> {
        self.lookup_names(path, names(path)?).await
    }

    async fn lookup_names(&self, path: &str, names: Vec<Name>) -> Result<Inode, Error> {
        let names = Path(names);
        match self.found(Request::Lookup(self.root, names.clone()), path).await? {
            stat if stat.at_target => Ok(self.found(Request::Import(self.root, names, None), path).await?.inode),
            stat => Ok(stat.inode),
        }
    }

    /// A directory and a name in it.
    async fn at(&self, path: &str) -> Result<At, Error> {
        let mut names = names(path)?;
        let Some(name) = names.pop() else {
            return Err(Error::Path(path.to_owned(), "it is the mount itself".to_owned()));
        };
        let directory = self.lookup_names(path, names).await?;
        Ok((directory, name))
    }

    async fn content(&self, path: &str, inode: Inode) -> Result<Content, Error> {
        match self.ask(Request::Content(inode)).await? {
            Reply::Content(content) if matches!(content.node.kind, Kind::File(_)) => {
                self.learn(&content.addresses);
                self.keep(inode, &content.ticket);
                Ok(content)
            }
            Reply::Content(_) => Err(Error::Refused(path.to_owned(), Refusal::IsADirectory)),
            Reply::Refused(refusal) => Err(Error::Refused(path.to_owned(), refusal)),
            _ => Err(senseless()),
        }
    }

    fn keep(&self, inode: Inode, ticket: &Ticket) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.insert(inode, ticket.clone());
        if tickets.len() > TICKETS {
            // Any: it can be asked for again.
            let other = if tickets.keys().next() == Some(&inode) { tickets.pop_last() } else { tickets.pop_first() };
            drop(other);
        }
    }

    /// What lets the session read a file; an empty one if no manager says.
    async fn ticket(&self, inode: Inode) -> Ticket {
        let known = self.tickets.lock().unwrap_or_else(PoisonError::into_inner).get(&inode).cloned();
        if let Some(ticket) = known {
            return ticket;
        }
        match self.ask(Request::Content(inode)).await {
            Ok(Reply::Content(content)) => {
                self.keep(inode, &content.ticket);
                content.ticket
            }
            _ => Ticket::default(),
        }
    }

    fn lock_copies(&self) -> MutexGuard<'_, BTreeSet<Inode>> {
        self.lock_copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<Inode>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Inode, AtTarget>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This session writes a file through one handle at a time.
    fn opened(&self, path: &str, inode: Inode) -> Result<(), Error> {
        if self.open().insert(inode) { Ok(()) } else { Err(Error::Refused(path.to_owned(), Refusal::InUse)) }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<BenefactorId, (String, Peer)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where benefactors are reached.
    fn learn(&self, addresses: &[(BenefactorId, String)]) {
        let mut peers = self.peers();
        for (id, address) in addresses {
            if peers.get(id).is_some_and(|(known, _)| known == address) {
                continue;
            }
            match Peer::new(address, &self.access) {
                Ok(peer) => drop(peers.insert(*id, (address.clone(), peer))),
                Err(error) => tracing::warn!("benefactor {id}: {error}"),
            }
        }
    }

    /// Asks a benefactor; `None`: it does not answer.
    async fn ask_benefactor(
        &self,
        id: BenefactorId,
        request: chunks::Request,
        within: Duration,
    ) -> Option<chunks::Reply> {
        let peer = self.peers().get(&id).map(|(_, peer)| peer.clone())?;
        match peer.ask::<Benefactor>(request, within).await {
            Ok(reply) => Some(reply),
            Err(status) => {
                match status.code() {
                    Code::Unauthenticated | Code::PermissionDenied => {
                        tracing::warn!("benefactor {id}: {}", status.message())
                    }
                    _ => tracing::debug!("benefactor {id}: {}", status.message()),
                }
                None
            }
        }
    }
}

/// The names of a path; one slash before or behind them is no matter.
fn names(path: &str) -> Result<Vec<Name>, Error> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() {
        return Ok(Vec::new());
    }
    let name = |name: &str| Name::new(name.as_bytes()).map_err(|error| Error::Path(path.to_owned(), error.to_string()));
    inner.split('/').map(name).collect()
}
