//! Locks of files (`flock`, `fcntl`): between the programs of this mount decided here, between mounts in the pool.
//!
//! As long as no other mount locks a file, this one has all locks of it, and its programs lock and unlock without asking anybody. Once
//! another wants some, what the programs have is told to the pool, and every lock is asked for there. Whatever this mount has in the pool
//! is at least what its programs have.
//!
//! A lock that comes from the pool comes after what others have written under it: the file is looked at anew. Before one goes back,
//! what was written is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{Errno, INodeNo};
use surgetank_pool::client::PoolClient;
use surgetank_pool_core::id::{Inode, SessionId};
use surgetank_pool_core::locks::{Lock, Owners, Range, Ranges};
use surgetank_pool_core::meta::operation::{Granted, Locking};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::errno::{sentence, stale};
use crate::files::Handle;
use crate::signals;
use crate::tree::{Tree, what};

/// How often whoever waits looks whether a signal has come, or another mount has unlocked.
const LOOK: Duration = Duration::from_millis(50);
/// The first pause of whoever waits for another mount.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// How long this mount keeps locks in the pool that none of its programs has.
const IDLE: Duration = Duration::from_secs(1);
/// How long the kernel may take to say that nobody has a handle any more that was closed.
const CLOSING: Duration = Duration::from_millis(100);

/// What a program asks for.
pub(crate) struct Ask {
    pub(crate) inode: INodeNo,
    pub(crate) handle: u64,
    /// The kernel's number of who locks: a process (`fcntl`), or an open file description (`flock`).
    pub(crate) owner: u64,
    pub(crate) range: Range,
    /// `None`: unlock.
    pub(crate) lock: Option<Lock>,
    /// The process, for those who ask.
    pub(crate) process: u32,
    /// The thread that waits; `None`: it does not.
    pub(crate) waits: Option<u32>,
}

/// A lock that is in the way: of which process of this machine, if it is of one.
pub(crate) type InTheWay = (Range, Lock, u32);

/// What the pool has of this mount.
#[derive(Debug, PartialEq, Eq)]
enum InPool {
    /// Nothing, and no place in the queue.
    Nothing,
    /// All locks of the file.
    Whole,
    /// These. The mount counts as one that has some, also if it has none.
    Ranges(Ranges),
}

struct State {
    /// In which everything here was locked.
    session: SessionId,
    owners: Owners<u64>,
    processes: BTreeMap<u64, u32>,
    /// Who has locked something through which handle.
    handles: BTreeMap<u64, BTreeSet<u64>>,
    pool: InPool,
    used: Instant,
}

/// The locks of a file.
struct Entry {
    state: tokio::sync::Mutex<State>,
    /// Something was unlocked.
    freed: Notify,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    entries: Mutex<BTreeMap<Inode, Arc<Entry>>>,
    /// There is a file whose locks this mount has in the pool.
    some: Notify,
}

/// What became of an attempt.
enum Tried {
    Done,
    /// Something is in the way; whether through a handle that somebody has just closed.
    Locked {
        closing: bool,
    },
    /// Another mount has all locks, and is about to return those that its programs do not have.
    Recalled,
}

impl State {
    fn new(session: SessionId) -> Self {
        Self {
            session,
            owners: Owners::default(),
            processes: BTreeMap::new(),
            handles: BTreeMap::new(),
            pool: InPool::Nothing,
            used: Instant::now(),
        }
    }

    /// What another session had is lost.
    fn of(&mut self, session: SessionId) {
        if self.session != session {
            *self = Self::new(session);
        }
    }

    fn in_the_way(&self, owner: u64, range: Range, lock: Lock) -> Option<InTheWay> {
        let (other, range, lock) = self.owners.in_the_way(owner, range, lock)?;
        Some((range, lock, self.processes.get(&other).copied().unwrap_or_default()))
    }

    /// What the pool has, if it is not everything.
    fn had(&self) -> Ranges {
        match &self.pool {
            InPool::Ranges(ranges) => ranges.clone(),
            InPool::Nothing | InPool::Whole => Ranges::default(),
        }
    }

    /// Forgets owners that have nothing locked any more; the handles through which nobody has.
    fn forget_idle(&mut self) -> Vec<u64> {
        let owners = &self.owners;
        self.processes.retain(|owner, _| owners.has(*owner));
        let mut idle = Vec::new();
        self.handles.retain(|handle, by| {
            by.retain(|owner| owners.has(*owner));
            if by.is_empty() {
                idle.push(*handle);
            }
            !by.is_empty()
        });
        idle
    }
}

impl Locks {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Inode, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, inode: Inode) -> Option<Arc<Entry>> {
        self.entries().get(&inode).map(Arc::clone)
    }

    fn take(&self, inode: Inode, session: SessionId) -> Arc<Entry> {
        let new = || Entry { state: tokio::sync::Mutex::new(State::new(session)), freed: Notify::new() };
        Arc::clone(self.entries().entry(inode).or_insert_with(|| Arc::new(new())))
    }
}

impl Tree {
    /// Locks or unlocks.
    pub(crate) async fn lock(&self, ask: Ask) -> Result<(), Errno> {
        // What the target alone has is imported: what others do not know they cannot find locked.
        let inode = match ask.lock {
            Some(_) => self.inode(ask.inode).await?,
            None => match self.numbers.inode(ask.inode) {
                Some(inode) => inode,
                None => return Ok(()),
            },
        };
        let handle = self.files.handle(ask.handle).ok_or(Errno::EBADF)?;
        let Some(lock) = ask.lock else {
            self.has_its_locks(&handle)?;
            return self.unlock(inode, |state| state.owners.set(ask.owner, ask.range, None)).await;
        };
        let mut pause = FIRST_LOOK;
        let begun = Instant::now();
        loop {
            let client = self.client().await?;
            let entry = self.locks.take(inode, client.session());
            let freed = entry.freed.notified();
            match self.try_lock(&client, (inode, &entry), (&ask, lock), &handle).await? {
                Tried::Done => return Ok(()),
                Tried::Locked { closing } if ask.waits.is_none() && (!closing || begun.elapsed() >= CLOSING) => {
                    return Err(Errno::EAGAIN);
                }
                // Another mount may have ended, and answers when its session has.
                Tried::Recalled if ask.waits.is_none() && begun.elapsed() >= self.timeout => return Err(Errno::EIO),
                Tried::Locked { .. } | Tried::Recalled => {}
            }
            if ask.waits.is_some_and(signals::has_come) {
                return Err(Errno::EINTR);
            }
            let _ = tokio::time::timeout(pause, freed).await;
            pause = (pause * 2).min(LOOK);
        }
    }

    async fn try_lock(
        &self,
        client: &PoolClient,
        (inode, entry): (Inode, &Entry),
        (ask, lock): (&Ask, Lock),
        handle: &Handle,
    ) -> Result<Tried, Errno> {
        let mut state = entry.state.lock().await;
        state.of(client.session());
        self.has_its_locks(handle)?;
        state.used = Instant::now();
        if let Some((other, ..)) = state.owners.in_the_way(ask.owner, ask.range, lock) {
            return Ok(Tried::Locked { closing: self.is_closing(&state, other) });
        }
        let mut owners = state.owners.clone();
        owners.set(ask.owner, ask.range, Some(lock));
        let wanted = owners.all();
        let has = match &state.pool {
            InPool::Nothing => false,
            InPool::Whole => true,
            InPool::Ranges(ranges) => ranges.has(&wanted),
        };
        if !has || !client.is_sure() {
            match self.ask_pool(client, inode, &mut state, &wanted, Locking::Whole).await? {
                Granted::Whole | Granted::Ranges if !has => self.look_anew(inode).await?,
                Granted::Whole | Granted::Ranges => {}
                Granted::Locked(..) => return Ok(Tried::Locked { closing: false }),
                Granted::Recalled => return Ok(Tried::Recalled),
            }
        }
        state.owners = owners;
        state.processes.insert(ask.owner, ask.process);
        state.handles.entry(ask.handle).or_default().insert(ask.owner);
        handle.locked_in.store(client.session().0, Ordering::Release);
        handle.is_closing.store(false, Ordering::Release);
        Ok(Tried::Done)
    }

    /// Whether somebody has closed a handle through which an owner has locked. The kernel says after the `close` that it was the last.
    fn is_closing(&self, state: &State, owner: u64) -> bool {
        let mut handles = state.handles.iter().filter(|(_, by)| by.contains(&owner)).map(|(handle, _)| *handle);
        handles.any(|number| {
            // One that is not there any more is being released.
            self.files.handle(number).is_none_or(|handle| handle.is_closing.load(Ordering::Acquire))
        })
    }

    /// The pool is to have these instead of what it has of this mount.
    async fn ask_pool(
        &self,
        client: &PoolClient,
        inode: Inode,
        state: &mut State,
        wanted: &Ranges,
        how: Locking,
    ) -> Result<Granted, Errno> {
        let had = state.had();
        let granted = client.lock_node(inode, &had, wanted, how, &what(inode)).await.map_err(|error| stale(&error))?;
        match granted {
            _ if how == Locking::Look => {}
            Granted::Whole => state.pool = InPool::Whole,
            Granted::Ranges => state.pool = InPool::Ranges(wanted.clone()),
            Granted::Locked(..) | Granted::Recalled => state.pool = InPool::Ranges(had),
        }
        self.locks.some.notify_one();
        Ok(granted)
    }

    /// What is in the way of a lock.
    pub(crate) async fn in_the_way(&self, ask: Ask, lock: Lock) -> Result<Option<InTheWay>, Errno> {
        let inode = match self.numbers.inode(ask.inode) {
            Some(inode) => inode,
            // Nobody has locked what the target alone has.
            None if self.stat(ask.inode).await?.at_target => return Ok(None),
            None => self.inode(ask.inode).await?,
        };
        let until = Instant::now() + self.timeout;
        loop {
            let client = self.client().await?;
            let entry = self.locks.take(inode, client.session());
            let mut state = entry.state.lock().await;
            state.of(client.session());
            state.used = Instant::now();
            if let Some(in_the_way) = state.in_the_way(ask.owner, ask.range, lock) {
                return Ok(Some(in_the_way));
            }
            if state.pool == InPool::Whole && client.is_sure() {
                return Ok(None);
            }
            let wanted = Ranges::of([(ask.range, lock)]);
            match self.ask_pool(&client, inode, &mut state, &wanted, Locking::Look).await? {
                Granted::Whole | Granted::Ranges => return Ok(None),
                Granted::Locked(range, lock) => return Ok(Some((range, lock, 0))),
                Granted::Recalled if Instant::now() >= until => return Err(Errno::EIO),
                Granted::Recalled => {
                    if state.pool == InPool::Nothing {
                        state.pool = InPool::Ranges(Ranges::default());
                    }
                }
            }
            drop(state);
            tokio::time::sleep(FIRST_LOOK).await;
        }
    }

    /// Takes locks away, here and in the pool.
    async fn unlock(&self, inode: Inode, change: impl FnOnce(&mut State)) -> Result<(), Errno> {
        let Some(entry) = self.locks.find(inode) else { return Ok(()) };
        let client = self.client().await?;
        let mut state = entry.state.lock().await;
        state.of(client.session());
        change(&mut state);
        state.used = Instant::now();
        for handle in state.forget_idle().into_iter().filter_map(|handle| self.files.handle(handle)) {
            handle.locked_in.store(0, Ordering::Release);
        }
        entry.freed.notify_waiters();
        let left = state.owners.all();
        match &state.pool {
            InPool::Ranges(ranges) if *ranges != left => self.return_locks(&client, inode, &mut state, &left).await,
            _ => Ok(()),
        }
    }

    /// What was written under locks is committed before others get them.
    async fn return_locks(
        &self,
        client: &PoolClient,
        inode: Inode,
        state: &mut State,
        left: &Ranges,
    ) -> Result<(), Errno> {
        let committed = self.commit_open(inode).await;
        self.ask_pool(client, inode, state, left, Locking::Ranges).await?;
        committed
    }

    /// A program closes one of its descriptors of a file: all that it has locked there is unlocked.
    pub(crate) async fn unlock_all(&self, inode: Inode, owner: u64) -> Result<(), Errno> {
        self.unlock(inode, |state| state.owners.free(owner)).await
    }

    /// Nobody has a handle any more: what was locked through it is unlocked.
    pub(crate) async fn unlock_handle(&self, inode: Inode, handle: u64) -> Result<(), Errno> {
        let free = |state: &mut State| {
            for owner in state.handles.remove(&handle).unwrap_or_default() {
                state.owners.free(owner);
            }
        };
        self.unlock(inode, free).await
    }

    /// Fails if locks were got through a handle, and were lost with the session.
    pub(crate) fn has_its_locks(&self, handle: &Handle) -> Result<(), Errno> {
        let locked_in = handle.locked_in.load(Ordering::Acquire);
        // Every read and write comes by here.
        if locked_in == 0 {
            return Ok(());
        }
        let present = self.sessions.present();
        let is_lost = locked_in != present.session().0 || present.is_over();
        if is_lost { Err(Errno::EIO) } else { Ok(()) }
    }

    /// What others have written while they had locks is seen from now on.
    async fn look_anew(&self, inode: Inode) -> Result<(), Errno> {
        if let Some(file) = self.files.find(inode) {
            let mut gate = self.gate(&file).await;
            gate.reader = None;
            if let Some(writer) = &mut gate.writer {
                writer.refresh().await.map_err(|error| stale(&error))?;
                if writer.is_committed() {
                    file.has(writer.size(), 0);
                }
            }
        }
        self.cached().remove(&inode);
        // It may know the file by two: this mount had shown it before another one imported it.
        for number in BTreeSet::from([self.numbers.number(inode).0, inode.0]) {
            self.drop_cached(INodeNo(number), Some(0)).await;
        }
        Ok(())
    }

    /// Returns what other mounts want and no program here has, for as long as the mount lasts.
    pub(crate) async fn watch_locks(&self) {
        loop {
            let entries: Vec<(Inode, Arc<Entry>)> =
                self.locks.entries().iter().map(|(inode, entry)| (*inode, Arc::clone(entry))).collect();
            if entries.is_empty() {
                self.locks.some.notified().await;
                continue;
            }
            if let Ok(client) = self.client().await {
                self.settle_locks(&client, entries).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn settle_locks(&self, client: &PoolClient, entries: Vec<(Inode, Arc<Entry>)>) {
        let (mut whole, mut idle) = (Vec::new(), Vec::new());
        for (inode, entry) in &entries {
            // Who works with it comes by again.
            let Ok(state) = entry.state.try_lock() else { continue };
            match state.pool {
                _ if state.session != client.session() || state.used.elapsed() >= IDLE => idle.push(*inode),
                InPool::Whole => whole.push(*inode),
                _ => {}
            }
        }
        if !whole.is_empty() {
            match client.locked_by_others(whole).await {
                Ok(wanted) => idle.extend(wanted),
                Err(error) => tracing::warn!("locks that others may want are kept: {error}"),
            }
        }
        for (inode, entry) in entries.iter().filter(|(inode, _)| idle.contains(inode)) {
            if let Err(errno) = self.settle_lock(client, *inode, entry).await {
                tracing::warn!("locks of {} are kept: {}", what(*inode), sentence(errno));
            }
        }
    }

    /// The pool has what the programs have, and nothing else.
    async fn settle_lock(&self, client: &PoolClient, inode: Inode, entry: &Arc<Entry>) -> Result<(), Errno> {
        let mut state = entry.state.lock().await;
        state.of(client.session());
        let left = state.owners.all();
        if !left.is_empty() {
            return match &state.pool {
                InPool::Ranges(ranges) if *ranges == left => Ok(()),
                _ => self.return_locks(client, inode, &mut state, &left).await,
            };
        }
        if state.pool != InPool::Nothing {
            let committed = self.commit_open(inode).await;
            client.leave_locks(inode, &what(inode)).await.map_err(|error| stale(&error))?;
            state.pool = InPool::Nothing;
            committed?;
        }
        // Who has taken it meanwhile goes on with it, and the next one as well: it is found to be of nobody later.
        if Arc::strong_count(entry) <= 2 {
            let mut entries = self.locks.entries();
            if Arc::strong_count(entry) <= 2 && entries.get(&inode).is_some_and(|present| Arc::ptr_eq(present, entry)) {
                entries.remove(&inode);
            }
        }
        Ok(())
    }
}
