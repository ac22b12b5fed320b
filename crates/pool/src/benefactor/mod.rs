//! A benefactor: keeps chunks in the memory and on the SSD that it lends, and writes them to the target when it is told.

mod counts;
#[cfg(test)]
mod fixture;
mod memory;
#[cfg(feature = "metrics")]
mod observed;
mod parity;
mod put;
mod repair;
mod rights;
mod scrub;
mod send;
pub mod ssd;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::Piece;
use surgetank_pool_core::benefactor::buffers::{Buffers, TooSmall};
use surgetank_pool_core::benefactor::holdings::{Entry, Holdings, Instance, Location, SealOrder, own};
use surgetank_pool_core::benefactor::scrub::Config as ScrubConfig;
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::parity::PARITY_MAX;
use surgetank_pool_core::placement::Place;
use surgetank_pool_core::repair::Of;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tonic::Status;

use self::counts::{Asked, Counts};
use self::memory::Memory;
#[cfg(feature = "metrics")]
pub(crate) use self::observed::observe;
use self::scrub::Scrubbing;
use self::ssd::{Found, NotOurs, Owner, Ssd, Tier};
use crate::bucket::Web;
use crate::chunks::{Alive, CHUNK, Draft, DrainPart, Fence, Get, Inventory, Reply, Request, Seal, TableOf};
use crate::manager;
use crate::managers::{Lost, Managers};
use crate::planted::writers::{Bug, planted};
use crate::rpc::{BadAddress, Listener, Peer, Service, advertised};
use crate::security::Credentials;
use crate::security::token::Claims;

/// What a benefactor is to lend, and to whom.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number in the pool, which it keeps over restarts.
    pub id: BenefactorId,
    /// What it fails with: benefactors of one host have one number.
    pub domain: Domain,
    /// Memory, in bytes; with an SSD it may be none.
    pub memory: u64,
    /// SSD.
    pub ssd: Option<Ssd>,
    /// It takes nothing new: what it has on SSD is served and drained.
    pub leaving: bool,
    /// The managers' addresses.
    pub managers: Vec<String>,
    /// Where others reach it, if that is not where it listens.
    pub advertise: Option<String>,
    /// How it scrubs; `None`: damage is found when somebody reads it.
    pub scrub: Option<ScrubConfig>,
}

/// Why a benefactor ends.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The memory is too little.
    #[error(transparent)]
    TooSmall(#[from] TooSmall),
    /// The memory is more than this process can have.
    #[error("this process cannot have {0} of memory: lend less")]
    Memory(surgetank_model::Bytes),
    /// The SSD has another benefactor's chunks.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// An address is wrong.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// No manager took it in.
    #[error("no manager takes benefactor {0} in: {1}")]
    NotJoined(BenefactorId, Lost),
    /// Somebody else has its number.
    #[error("another process lends as benefactor {0} by now: what this one holds no longer counts")]
    Replaced(BenefactorId),
    /// It cannot serve.
    #[error("cannot serve: {0}")]
    Serve(String),
}

/// Memory that a benefactor has for chunks on their way to its SSD, if it lends none, in bytes.
const STAGING: u64 = 48 << 20;
/// How long a benefactor that begins waits for a manager.
const JOIN: Duration = Duration::from_secs(60);
/// Chunks that a table names, at most: a group has 1,024, and those of parity that a row of one may have.
const TABLE_MAX: usize = 1024 * (1 + PARITY_MAX as usize);
/// How long a request waits for the SSD before it is to be asked again.
const FLUSHED: Duration = Duration::from_secs(2);

/// One life of a benefactor.
pub struct Benefactor {
    incarnation: Incarnation,
    of: u64,
    memory: Memory,
    tier: Option<Tier>,
    leaving: bool,
    /// An operator takes it out.
    taken_out: AtomicBool,
    /// It is to join again, in the life that it has.
    joins_again: Notify,
    holdings: Mutex<Holdings>,
    puts: AtomicU64,
    counts: Counts,
    /// Each chunk that waits for room has one of these.
    waiting: Semaphore,
    damaged: AtomicU64,
    scrubbing: Arc<Scrubbing>,
    fence: Mutex<Fence>,
    credentials: Credentials,
    /// Benefactors from which copies are fetched.
    sources: Mutex<BTreeMap<String, Peer>>,
    /// What sends to object stores, once something was sent there.
    web: OnceLock<Web>,
}

/// Joins the pool and serves until another process takes its place.
///
/// # Errors
/// [`Ended`].
pub async fn run(config: Config, listener: Listener) -> Result<(), Ended> {
    let serve = |error: &dyn std::fmt::Display| Ended::Serve(error.to_string());
    let lent = if config.memory == 0 && config.ssd.is_some() { STAGING } else { config.memory };
    let buffers = Buffers::new(lent, CHUNK)?;
    let memory = usize::try_from(buffers.size()).ok().and_then(|size| Memory::new(size).ok());
    let memory = memory.ok_or(Ended::Memory(surgetank_model::Bytes::new(lent)))?;
    let managers = Managers::new(&config.managers, &listener.credentials().access())?;
    let address = listener.address().map_err(|error| serve(&error))?;
    let address = advertised(address, config.advertise.as_deref())?;
    // All of it is read before anybody hears of this life: whoever asks then is told everything.
    let found = match config.ssd {
        Some(Ssd(disk)) => {
            let read = tokio::task::spawn_blocking(move || Found::read(Arc::clone(&disk)).map(|found| (found, disk)));
            Some(read.await.map_err(|error| serve(&error))??)
        }
        None => None,
    };
    let ssd = found.as_ref().map_or(0, |(_, disk)| u64::from(disk.segments()) * disk.size());
    let mut lends = Lends {
        place: Place { id: config.id, incarnation: Incarnation(0) },
        address,
        domain: config.domain,
        memory: surgetank_model::Bytes::new(if config.memory == 0 { 0 } else { buffers.size() * 3 }),
        ssd: surgetank_model::Bytes::new(ssd),
    };
    let until = Instant::now() + JOIN;
    let joined = loop {
        match join(&managers, &lends).await {
            // After a power cut managers may begin later.
            Err(Ended::NotJoined(_, Lost::Unanswered(_))) if Instant::now() < until => {
                tokio::time::sleep(JOIN / 200).await
            }
            joined => break joined?,
        }
    };
    let credentials = listener.credentials().clone();
    // Before anybody is served.
    ask_revoked(&managers, &credentials).await;
    let incarnation = joined.incarnation;
    lends.place.incarnation = incarnation;
    let of = buffers.credits();
    let (tier, holdings) = match found {
        Some((found, disk)) => {
            let tier = Tier::new(disk, &found, Owner { pool: joined.pool, benefactor: config.id })?;
            if found.damaged > 0 {
                tracing::warn!("benefactor {}: {} records of its SSD are torn or damaged", config.id, found.damaged);
            }
            let chunks = found.chunks.into_values().map(|(_, inode, entry)| (inode, entry));
            let tables = found.tables.into_iter().map(|(of, (_, table))| (of, table));
            (Some(tier), Holdings::restored(incarnation, buffers, chunks, tables))
        }
        None => (None, Holdings::new(incarnation, buffers, false)),
    };
    let benefactor = Arc::new(Benefactor {
        incarnation,
        of,
        memory,
        tier,
        leaving: config.leaving,
        taken_out: AtomicBool::new(false),
        joins_again: Notify::new(),
        holdings: Mutex::new(holdings),
        puts: AtomicU64::new(0),
        counts: Counts::default(),
        waiting: Semaphore::new(put::WAITING),
        damaged: AtomicU64::new(0),
        scrubbing: Scrubbing::new(config.scrub),
        fence: Mutex::default(),
        credentials: credentials.clone(),
        sources: Mutex::default(),
        web: OnceLock::new(),
    });
    #[cfg(feature = "metrics")]
    listener.watched().benefactor(config.id, &benefactor);
    tokio::select! {
        served = listener.serve(Arc::clone(&benefactor)) => served.map_err(|error| serve(&error)),
        ended = stay(&managers, &lends, joined, &benefactor.joins_again) => Err(ended),
        () = ssd::run(Arc::clone(&benefactor)) => Ok(()),
        () = scrub::run(Arc::clone(&benefactor)) => Ok(()),
        () = watch_revoked(&managers, &credentials) => Ok(()),
    }
}

/// Asks which tokens were taken back. While no manager answers, what was known counts.
async fn ask_revoked(managers: &Managers, credentials: &Credentials) {
    if let Ok(manager::Reply::Revoked(tokens)) = managers.ask(&manager::Request::Revoked).await {
        credentials.revoked.add(tokens);
    }
}

async fn watch_revoked(managers: &Managers, credentials: &Credentials) {
    loop {
        tokio::time::sleep(manager::REVOKED_LOOK).await;
        ask_revoked(managers, credentials).await;
    }
}

/// A benefactor that has joined.
struct Joined {
    lease: Lease,
    incarnation: Incarnation,
    time: Duration,
    pool: u64,
}

/// Joins; without an incarnation in a new life, else in that one.
async fn join(managers: &Managers, lends: &Lends) -> Result<Joined, Ended> {
    let id = lends.place.id;
    match managers.ask(&manager::Request::Join(lends.clone())).await {
        Ok(manager::Reply::Joined { lease, incarnation, millis, pool }) => {
            Ok(Joined { lease, incarnation, time: Duration::from_millis(millis), pool })
        }
        Ok(manager::Reply::Replaced) => Err(Ended::Replaced(id)),
        Ok(_) => Err(Ended::NotJoined(id, Lost::Unanswered("its answer makes no sense".to_owned()))),
        Err(lost) => Err(Ended::NotJoined(id, lost)),
    }
}

/// Renews the lease as long as this is the benefactor's newest life. While no manager answers, what it has stays: the lease may
/// have ended in the store, but nobody else is in its place.
async fn stay(managers: &Managers, lends: &Lends, joined: Joined, joins_again: &Notify) -> Ended {
    let Joined { mut lease, time, .. } = joined;
    loop {
        let is_told = tokio::time::timeout(time / 4, joins_again.notified()).await.is_ok();
        if is_told {
            match join(managers, lends).await {
                Ok(joined) => {
                    lease = joined.lease;
                    continue;
                }
                Err(Ended::Replaced(id)) => return Ended::Replaced(id),
                // It is told again, unless another manager has taken it in; the lease that it has is renewed meanwhile.
                Err(error) => tracing::debug!("{error}"),
            }
        }
        match managers.ask(&manager::Request::Renew(lease)).await {
            Ok(manager::Reply::Renewed(false)) => match join(managers, lends).await {
                Ok(joined) => lease = joined.lease,
                Err(Ended::Replaced(id)) => return Ended::Replaced(id),
                Err(error) => tracing::warn!("{error}"),
            },
            Ok(_) => {}
            Err(error) => tracing::warn!("the lease is not renewed: {error}"),
        }
    }
}

impl Benefactor {
    fn holdings(&self) -> MutexGuard<'_, Holdings> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SSD has something to do, perhaps.
    fn look_at(&self, holdings: &Holdings) {
        if let Some(tier) = self.tier.as_ref().filter(|_| holdings.has_effects() || holdings.fills_batch()) {
            tier.wake();
        }
    }

    /// Finds a chunk that a table names, and verifies it.
    fn chunk(self: &Arc<Self>, of: TableOf, chunk: u32) -> Result<(Entry, Reading), Reply> {
        let found = self.holdings().find(of.0, of.1, of.2, chunk);
        let (entry, location) = found.ok_or(Reply::NotHere)?;
        self.verified(&entry, location, &format_args!("chunk {chunk} of {of:?}")).map(|reading| (entry, reading))
    }

    /// Verifies a chunk that was found.
    fn verified(
        self: &Arc<Self>,
        entry: &Entry,
        location: Location,
        what: &impl std::fmt::Display,
    ) -> Result<Reading, Reply> {
        let content = self.content(entry, location);
        // The read is over when this is dropped, also if the chunk is damaged.
        let reading = |content| Reading { of: Arc::clone(self), instance: entry.instance, content };
        let (reading, why) = match content {
            Ok(content) => (reading(content), String::new()),
            Err(error) => (reading(Content::Read(Vec::new())), format!(": {error}")),
        };
        if why.is_empty() && crc32c::crc32c(reading.as_ref()) == entry.crc {
            return Ok(reading);
        }
        tracing::error!("{what} is damaged{why}");
        self.damaged(&mut self.holdings(), entry.instance);
        Err(Reply::Corrupt)
    }

    /// Reads a chunk for the session that has put it.
    fn draft(self: &Arc<Self>, draft: &Draft) -> Reply {
        if draft.incarnation != self.incarnation {
            return Reply::Stale;
        }
        let entry = &draft.entry;
        let Some(location) = self.holdings().find_draft(draft.inode, entry) else { return Reply::NotHere };
        match self.verified(entry, location, &format_args!("a chunk of file {} that is not committed", draft.inode)) {
            Ok(reading) => Reply::Chunk(entry.crc, Bytes::from_owner(reading)),
            Err(reply) => reply,
        }
    }

    /// A chunk's bytes, as they are.
    fn content(&self, entry: &Entry, location: Location) -> std::io::Result<Content> {
        match (location, &self.tier) {
            (Location::Memory(piece), _) => Ok(Content::Memory(piece)),
            (Location::Ssd, Some(tier)) => tier.read(entry).map(Content::Read),
            (Location::Ssd, None) => unreachable!("nothing is moved to an SSD that is not lent"),
        }
    }

    /// A chunk is damaged: nobody gets it, and the warden has it fetched from another copy.
    fn damaged(&self, holdings: &mut Holdings, instance: Instance) {
        if holdings.damaged(instance) {
            self.count_damaged();
        }
    }

    fn count_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    /// A chunk in memory. Who found it, or moves it, keeps its room as long as it uses the bytes.
    fn bytes(&self, piece: Piece) -> &[u8] {
        // SAFETY: the room is kept, as said, and it was written before it counted as stored; nobody writes a piece before the
        // holdings have dropped who had it.
        unsafe { self.memory.read(piece) }
    }

    /// What is asked of a former life, this one may have on its SSD; of a later one it knows nothing.
    fn is_later(&self, incarnation: Incarnation) -> bool {
        incarnation > self.incarnation
    }

    /// What is not here: of another life, or at all.
    fn not_here(&self, incarnation: Incarnation) -> Reply {
        if incarnation == self.incarnation { Reply::NotHere } else { Reply::Stale }
    }

    fn get(self: &Arc<Self>, get: &Get) -> Reply {
        if self.is_later(get.incarnation) {
            return Reply::Stale;
        }
        match self.chunk(get.of, get.chunk) {
            Ok((entry, reading)) => Reply::Chunk(entry.crc, Bytes::from_owner(reading)),
            Err(Reply::NotHere) => self.not_here(get.incarnation),
            Err(reply) => reply,
        }
    }

    fn table(&self, get: &Get) -> Reply {
        if self.is_later(get.incarnation) {
            return Reply::Stale;
        }
        let holdings = self.holdings();
        let table = holdings.table(get.of.0, get.of.1, get.of.2);
        table.map_or_else(|| self.not_here(get.incarnation), |table| Reply::Table(table.clone()))
    }

    async fn seal(&self, seal: Seal) -> Reply {
        if seal.incarnation != self.incarnation {
            return Reply::Stale;
        }
        let (of, version, by) = seal.of;
        // Others' chunks are not compared with anything.
        if seal.table.len() > TABLE_MAX {
            return Reply::Missing(seal.table.into_keys().skip(TABLE_MAX).collect());
        }
        let chunks: Vec<Instance> = own(&seal.table).map(|(_, entry)| entry.instance).collect();
        let logged = {
            let mut holdings = self.holdings();
            match holdings.seal(of, version, by, SealOrder(seal.order, 0), seal.table) {
                Ok(()) => self.tier.as_ref().map(|tier| tier.sealed(seal.of)),
                Err(missing) if missing.0.is_empty() => return Reply::UnknownSession,
                Err(missing) => return Reply::Missing(missing.0),
            }
        };
        self.logged(logged, &chunks, seal.durable).await
    }

    /// Waits for the log as far as an answer must: for a table and its chunks that must survive a power cut; and for a table of which the log
    /// has an earlier one, which nobody may find in its place.
    async fn logged(&self, logged: Option<(u64, bool)>, chunks: &[Instance], durable: bool) -> Reply {
        let Some((tier, (number, again))) = self.tier.as_ref().zip(logged) else {
            // Nobody asks that of a benefactor without an SSD.
            return if durable { Reply::Full } else { Reply::Sealed };
        };
        tier.wake();
        if !durable && !again {
            return Reply::Sealed;
        }
        let chunks = if durable { chunks } else { &[] };
        if tier.survives(self, number, chunks, Instant::now() + FLUSHED).await { Reply::Sealed } else { Reply::NotYet }
    }

    fn inventory(&self) -> Inventory {
        let holdings = self.holdings();
        let tables =
            holdings.tables().map(|((group, version, by), _)| Of { group: *group, version: *version, by: *by });
        let has = surgetank_pool_core::repair::Inventory {
            tables: tables.collect(),
            drafts: holdings.drafts().map(|(instance, inode)| (instance.session, inode)).collect(),
            copies: holdings.copies().collect(),
            withdrawn: holdings.withdrawn_by(),
            of_unknown_mounts: holdings.of_unknown_mounts(),
        };
        Inventory { incarnation: self.incarnation, has, damaged: holdings.all_damaged() }
    }

    /// Writes chunks into a file that the publisher has made, and flushes it.
    fn drain(self: &Arc<Self>, part: &DrainPart) -> Reply {
        if self.is_later(part.incarnation) {
            return Reply::Stale;
        }
        let file = match OpenOptions::new().write(true).open(&part.file) {
            Ok(file) => file,
            Err(error) => return Reply::NotDrained(format!("{}: {error}", part.file)),
        };
        match self.write_chunks(part, &file) {
            Ok(drained) => match file.sync_data() {
                Ok(()) => Reply::Drained(drained),
                Err(error) => Reply::NotDrained(format!("{}: {error}", part.file)),
            },
            Err(reply) => reply,
        }
    }

    fn write_chunks(self: &Arc<Self>, part: &DrainPart, file: &File) -> Result<Vec<(u32, u32, u32)>, Reply> {
        let mut drained = Vec::with_capacity(part.chunks.len());
        for chunk in &part.chunks {
            let (entry, reading) = self.chunk(part.of, *chunk)?;
            let at = part.offset + u64::from(*chunk) * CHUNK;
            file.write_all_at(reading.as_ref(), at)
                .map_err(|error| Reply::NotDrained(format!("{}: {error}", part.file)))?;
            drained.push((*chunk, entry.length, entry.crc));
        }
        Ok(drained)
    }

    fn is_taken_out(&self) -> bool {
        self.taken_out.load(Ordering::Relaxed)
    }

    /// An operator takes it out, or no longer.
    fn leaves(&self, is_taken_out: bool) {
        if self.taken_out.swap(is_taken_out, Ordering::Relaxed) != is_taken_out {
            tracing::info!("an operator takes this benefactor {}", if is_taken_out { "out" } else { "back" });
        }
        if !is_taken_out {
            self.joins_again.notify_one();
        }
    }

    fn alive(&self) -> Alive {
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Each lock for itself: scrubbing takes both.
        let scrubbed = self.scrubbing.report();
        let (credits, taken) = {
            let holdings = self.holdings();
            let taken = holdings.taken_by_mounts().map(|(mount, of)| (mount, of.memory, of.ssd)).collect();
            (holdings.credits(), taken)
        };
        Alive {
            incarnation: self.incarnation,
            credits,
            of: self.of,
            puts: counted(&self.puts),
            ssd: self.tier.as_ref().map_or((0, 0), Tier::room),
            damaged: counted(&self.damaged),
            leaving: self.leaving || self.is_taken_out(),
            taken_out: self.is_taken_out(),
            scrubbed,
            log: self.tier.as_ref().map(Tier::report).unwrap_or_default(),
            taken,
        }
    }
}

/// A chunk's bytes, and where they are.
enum Content {
    Memory(Piece),
    Read(Vec<u8>),
}

/// A chunk that is read: in memory it lies where it was, and its room is kept until this is dropped.
struct Reading {
    of: Arc<Benefactor>,
    instance: Instance,
    content: Content,
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        match &self.content {
            Content::Memory(piece) => self.of.bytes(*piece),
            Content::Read(bytes) => bytes,
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut holdings = self.of.holdings();
        holdings.read(self.instance);
        self.of.look_at(&holdings);
    }
}

impl Service for Benefactor {
    type Request = Request;
    type Reply = Reply;

    async fn answer(self: Arc<Self>, by: Claims, request: Request) -> Result<Reply, Status> {
        Self::check(self.credentials.key(), &by, &request)?;
        let _foreground = self.scrubbing.request(&request);
        let (counting, asked) = (Arc::clone(&self), Asked::of(&request));
        let reply = match request {
            Request::Put(put) => self.put_when_room(put, by.mount().filter(|_| !planted(Bug::MountsAsOne))).await,
            Request::Get(get) if self.tier.is_some() => apart(move || self.get(&get)).await?,
            Request::Get(get) => self.get(&get),
            Request::Draft(draft) => apart(move || self.draft(&draft)).await?,
            Request::Seal(seal) => self.seal(seal).await,
            Request::Table(get) => self.table(&get),
            Request::Forget(news) => {
                self.forget(news);
                Reply::Done
            }
            Request::Inventory => Reply::Inventory(Box::new(self.inventory())),
            Request::DrainPart(part) => apart(move || self.drain(&part)).await?,
            Request::SendPart(part) => self.send(part).await,
            Request::Probe => Reply::Alive(Box::new(self.alive())),
            Request::Copy(copy) => self.copy(copy).await,
            Request::Rebuild(rebuild) => self.rebuild(rebuild).await,
            Request::DrainLost(lost) => self.drain_lost(lost).await,
            Request::Adopt(adopt) => self.adopt(adopt).await,
            Request::Leaving(is_so) => {
                self.leaves(is_so);
                Reply::Done
            }
        };
        counting.counts.answered(asked, &reply);
        Ok(reply)
    }
}

/// Works where it may block.
async fn apart(work: impl FnOnce() -> Reply + Send + 'static) -> Result<Reply, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}
