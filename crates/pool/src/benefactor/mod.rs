//! A benefactor: keeps chunks in the memory that it lends, and writes them to the target when it is told.

mod memory;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use surgetank_pool_core::benefactor::Piece;
use surgetank_pool_core::benefactor::buffers::{Buffers, TooSmall};
use surgetank_pool_core::benefactor::holdings::{self, Admission, Entry, Holdings, Location};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::placement::Place;
use tonic::Status;

use self::memory::Memory;
use crate::chunks::{Alive, CHUNK, DrainPart, Get, Inventory, News, Put, Reply, Request, Seal};
use crate::manager;
use crate::managers::{Lost, Managers};
use crate::rpc::{BadAddress, Listener, Service};

/// What a benefactor is to lend, and to whom.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number in the pool, which it keeps over restarts.
    pub id: BenefactorId,
    /// What it fails with: benefactors of one host have one number.
    pub domain: Domain,
    /// Memory, in bytes.
    pub memory: u64,
    /// The managers' addresses.
    pub managers: Vec<String>,
}

/// Why a benefactor ends.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The memory is too little.
    #[error(transparent)]
    TooSmall(#[from] TooSmall),
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

/// One life of a benefactor.
pub struct Benefactor {
    incarnation: Incarnation,
    of: u64,
    memory: Memory,
    holdings: Mutex<Holdings>,
}

/// Joins the pool and serves until another process takes its place.
///
/// # Errors
/// [`Ended`].
pub async fn run(config: Config, listener: Listener) -> Result<(), Ended> {
    let buffers = Buffers::new(config.memory, CHUNK)?;
    let memory = Memory::new(usize::try_from(buffers.size()).map_err(|error| Ended::Serve(error.to_string()))?);
    let managers = Managers::new(&config.managers)?;
    let address = listener.address().map_err(|error| Ended::Serve(error.to_string()))?;
    let mut lends = Lends {
        place: Place { id: config.id, incarnation: Incarnation(0) },
        address: address.to_string(),
        domain: config.domain,
        memory: surgetank_model::Bytes::new(buffers.size() * 3),
        ssd: surgetank_model::Bytes::ZERO,
    };
    let (lease, incarnation, time) = join(&managers, &lends).await?;
    lends.place.incarnation = incarnation;
    let of = buffers.credits();
    let holdings = Mutex::new(Holdings::new(incarnation, buffers, false));
    let benefactor = Arc::new(Benefactor { incarnation, of, memory, holdings });
    tokio::select! {
        served = listener.serve(benefactor) => served.map_err(|error| Ended::Serve(error.to_string())),
        ended = stay(&managers, &lends, lease, time) => Err(ended),
    }
}

/// Joins; without an incarnation in a new life, else in that one.
async fn join(managers: &Managers, lends: &Lends) -> Result<(Lease, Incarnation, Duration), Ended> {
    let id = lends.place.id;
    match managers.ask(&manager::Request::Join(lends.clone())).await {
        Ok(manager::Reply::Joined { lease, incarnation, millis }) => {
            Ok((lease, incarnation, Duration::from_millis(millis)))
        }
        Ok(manager::Reply::Replaced) => Err(Ended::Replaced(id)),
        Ok(_) => Err(Ended::NotJoined(id, Lost("its answer makes no sense".to_owned()))),
        Err(lost) => Err(Ended::NotJoined(id, lost)),
    }
}

/// Renews the lease as long as this is the benefactor's newest life. While no manager answers, what it has stays: the lease may
/// have ended in the store, but nobody else is in its place.
async fn stay(managers: &Managers, lends: &Lends, mut lease: Lease, time: Duration) -> Ended {
    loop {
        tokio::time::sleep(time / 4).await;
        match managers.ask(&manager::Request::Renew(lease)).await {
            Ok(manager::Reply::Renewed(false)) => match join(managers, lends).await {
                Ok((fresh, ..)) => lease = fresh,
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

    fn put(&self, put: &Put) -> Reply {
        let entry = put.entry;
        let length = u32::try_from(put.bytes.len()).ok();
        if length != Some(entry.length) || u64::from(entry.length) > CHUNK || crc32c::crc32c(&put.bytes) != entry.crc {
            return Reply::Corrupt;
        }
        let asked = holdings::Put { incarnation: put.incarnation, inode: put.inode, entry };
        let admission = self.holdings().put(&asked);
        match admission {
            Admission::Room(piece) => {
                // SAFETY: the piece was reserved for this chunk alone, and nobody reads it before it counts as stored.
                unsafe { self.memory.write(piece, &put.bytes) };
                let mut holdings = self.holdings();
                holdings.stored(entry.instance, true);
                Reply::Stored(holdings.credits())
            }
            Admission::Here => Reply::Stored(self.holdings().credits()),
            Admission::Stale => Reply::Stale,
            Admission::UnknownSession => Reply::UnknownSession,
            Admission::Coming | Admission::Full => Reply::Full,
        }
    }

    /// Reads a chunk that a table names, and verifies it.
    fn chunk(&self, of: crate::chunks::TableOf, chunk: u32) -> Result<(Entry, Vec<u8>), Reply> {
        let found = self.holdings().find(of.0, of.1, of.2, chunk);
        let (entry, location) = found.ok_or(Reply::NotHere)?;
        let bytes = match location {
            Location::Memory(piece) => self.bytes(piece),
            Location::Ssd => unreachable!("nothing is moved to an SSD that is not lent"),
        };
        self.holdings().read(entry.instance);
        if crc32c::crc32c(&bytes) == entry.crc {
            Ok((entry, bytes))
        } else {
            tracing::error!("chunk {chunk} of {of:?} is damaged in memory");
            Err(Reply::Corrupt)
        }
    }

    fn bytes(&self, piece: Piece) -> Vec<u8> {
        // SAFETY: `find` keeps the piece until `read`, and it was written before it counted as stored.
        unsafe { self.memory.read(piece) }
    }

    fn get(&self, get: &Get) -> Reply {
        if get.incarnation != self.incarnation {
            return Reply::Stale;
        }
        match self.chunk(get.of, get.chunk) {
            Ok((entry, bytes)) => Reply::Chunk(entry.crc, Bytes::from(bytes)),
            Err(reply) => reply,
        }
    }

    fn table(&self, get: &Get) -> Reply {
        if get.incarnation != self.incarnation {
            return Reply::Stale;
        }
        self.holdings().table(get.of.0, get.of.1, get.of.2).map_or(Reply::NotHere, |table| Reply::Table(table.clone()))
    }

    fn seal(&self, seal: Seal) -> Reply {
        if seal.incarnation != self.incarnation {
            return Reply::Stale;
        }
        let (of, version, by) = seal.of;
        match self.holdings().seal(of, version, by, seal.table) {
            Ok(()) => Reply::Sealed,
            Err(missing) if missing.0.is_empty() => Reply::UnknownSession,
            Err(missing) => Reply::Missing(missing.0),
        }
    }

    fn forget(&self, news: &News) {
        let mut holdings = self.holdings();
        news.withdrawn.iter().for_each(|instance| holdings.withdraw(*instance));
        for (of, version, by) in &news.obsolete {
            holdings.obsolete(*of, *version, *by);
        }
        for (session, committed) in &news.ended {
            holdings.session_ended(*session, |of, version| committed.contains(&(of, version)));
        }
        news.forgotten.iter().for_each(|inode| holdings.forgotten(*inode));
    }

    fn inventory(&self) -> Inventory {
        let holdings = self.holdings();
        let tables: std::collections::BTreeSet<_> = holdings.tables().map(|(table, _)| *table).collect();
        let sessions = holdings.instances().map(|instance| instance.session);
        let sessions = sessions.chain(tables.iter().map(|(_, _, by)| *by)).collect();
        Inventory { tables, files: holdings.files(), sessions }
    }

    /// Writes chunks into a file that the publisher has made, and flushes it.
    fn drain(&self, part: &DrainPart) -> Reply {
        if part.incarnation != self.incarnation {
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

    fn write_chunks(&self, part: &DrainPart, file: &File) -> Result<Vec<(u32, u32, u32)>, Reply> {
        let mut drained = Vec::with_capacity(part.chunks.len());
        for chunk in &part.chunks {
            let (entry, bytes) = self.chunk(part.of, *chunk)?;
            let at = part.offset + u64::from(*chunk) * CHUNK;
            file.write_all_at(&bytes, at).map_err(|error| Reply::NotDrained(format!("{}: {error}", part.file)))?;
            drained.push((*chunk, entry.length, entry.crc));
        }
        Ok(drained)
    }

    fn alive(&self) -> Alive {
        Alive { incarnation: self.incarnation, credits: self.holdings().credits(), of: self.of }
    }
}

impl Service for Benefactor {
    type Request = Request;
    type Reply = Reply;

    async fn answer(self: Arc<Self>, request: Request) -> Result<Reply, Status> {
        Ok(match request {
            Request::Put(put) => self.put(&put),
            Request::Get(get) => self.get(&get),
            Request::Seal(seal) => self.seal(seal),
            Request::Table(get) => self.table(&get),
            Request::Forget(news) => {
                self.forget(&news);
                Reply::Done
            }
            Request::Inventory => Reply::Inventory(self.inventory()),
            Request::DrainPart(part) => tokio::task::spawn_blocking(move || self.drain(&part))
                .await
                .map_err(|error| Status::internal(error.to_string()))?,
            Request::Probe => Reply::Alive(self.alive()),
        })
    }
}
