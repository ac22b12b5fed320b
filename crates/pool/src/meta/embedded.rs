//! The store of a pool on one machine: a redb database, which one process has open.
//!
//! Tables: `keys` (a key's revisions, lease and value), `leases` (their time in milliseconds), `of-lease` (each lease's keys) and
//! `numbers` (the revision, the last lease, the format). A transaction of the pool is one of redb's, flushed before it is
//! answered. The deadlines of leases are in memory alone: after a restart each lease has its whole time again, since nobody could
//! renew it meanwhile.
//!
//! After an error of I/O, a full file system's too, redb does nothing more until the file is opened again. So it is closed then, and opened
//! by whoever wants something of it next, until that goes. Leases are renewed meanwhile, and end afterwards.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use redb::{
    CommitError, Database, ReadableDatabase, ReadableTable, StorageError, Table, TableDefinition, TableError,
    TransactionError, WriteTransaction,
};
use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction, Write};
use surgetank_pool_core::meta::{Compare, Key, Prefix, Stored, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{LeaseEnded, MetaStore, Snapshot, Unavailable, keys};
use crate::wire::{Wire, wire_struct};

const KEYS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keys");
const LEASES: TableDefinition<'_, u64, u64> = TableDefinition::new("leases");
const OF_LEASE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("of-lease");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// The format that this code reads and writes.
const FORMAT: u64 = 1;
/// How often leases are looked at: a lease ends at most that late.
const TICK: Duration = Duration::from_millis(50);
/// Between two attempts to open the file again.
const OPEN_AGAIN: Duration = Duration::from_millis(500);
/// Between two lines of the log about what fails.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// What the database has of a key.
struct Row {
    created: Revision,
    modified: Revision,
    lease: Option<u64>,
    value: Value,
}

wire_struct! { Row { created, modified, lease, value } }

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// `None`: an error of I/O has closed it.
    database: RwLock<Option<Database>>,
    troubles: Mutex<Troubles>,
    /// When each lease ends, unless it is renewed.
    deadlines: Mutex<BTreeMap<Lease, (Instant, Duration)>>,
    revision: watch::Sender<u64>,
}

/// What fails at present.
#[derive(Debug, Default)]
struct Troubles {
    /// Why the file is closed, and when that was found last.
    closed: Option<(String, Instant)>,
    told: Option<Instant>,
}

/// The database, which is not closed meanwhile.
struct Opened<'s>(RwLockReadGuard<'s, Option<Database>>);

impl Deref for Opened<'_> {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it was looked at when this was made")
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
}

/// What a step inside a transaction fails with.
type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Embedded {
    /// Opens the database, or makes it. Leases end by a task of the runtime in which this is called.
    ///
    /// # Errors
    /// [`Unavailable`]: another process has it open, it is damaged, or of another format.
    pub fn open(path: &Path) -> Result<Self, Unavailable> {
        let failed = |error: Failed| Unavailable(format!("{}: {error}", path.display()));
        let database = Database::create(path).map_err(|error| failed(error.into()))?;
        let (revision, leases) = begin(&database).map_err(failed)?;
        let now = Instant::now();
        let deadlines = leases.into_iter().map(|(lease, time)| (lease, (now + time, time))).collect();
        let revision = watch::Sender::new(revision);
        let (path, database, troubles) = (path.to_owned(), RwLock::new(Some(database)), Mutex::default());
        let shared = Arc::new(Shared { path, database, troubles, deadlines: Mutex::new(deadlines), revision });
        tokio::spawn(expire(Arc::downgrade(&shared)));
        Ok(Self { shared })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let shared = Arc::clone(&self.shared);
        match tokio::task::spawn_blocking(move || work(&shared).map_err(|error| shared.failed(&error))).await {
            Ok(done) => done,
            Err(error) => Err(Unavailable(error.to_string())),
        }
    }
}

/// Whether redb does nothing more until the file is opened again.
fn is_of_io(error: &Failed) -> bool {
    let storage = match error.downcast_ref::<StorageError>() {
        Some(error) => Some(error),
        None => match (error.downcast_ref(), error.downcast_ref(), error.downcast_ref()) {
            (Some(TransactionError::Storage(error)), ..)
            | (_, Some(TableError::Storage(error)), _)
            | (.., Some(CommitError::Storage(error))) => Some(error),
            _ => None,
        },
    };
    matches!(storage, Some(StorageError::Io(_) | StorageError::Backend(_) | StorageError::PreviousIo))
}

/// Makes the tables; the revision, and all leases with their times.
fn begin(database: &Database) -> Result<(u64, Vec<(Lease, Duration)>), Failed> {
    let write = database.begin_write()?;
    let (revision, leases) = {
        write.open_table(KEYS)?;
        write.open_table(OF_LEASE)?;
        let leases = write.open_table(LEASES)?;
        let mut numbers = write.open_table(NUMBERS)?;
        let format = numbers.get("format")?.map(|number| number.value());
        match format {
            None => drop(numbers.insert("format", FORMAT)?),
            Some(FORMAT) => {}
            Some(other) => return Err(format!("it has format {other}, and this program reads {FORMAT}").into()),
        }
        let revision = numbers.get("revision")?.map_or(0, |number| number.value());
        let leases: Result<Vec<_>, redb::StorageError> = leases
            .iter()?
            .map(|row| row.map(|(lease, time)| (Lease(lease.value()), Duration::from_millis(time.value()))))
            .collect();
        (revision, leases?)
    };
    write.commit()?;
    Ok((revision, leases))
}

/// Ends the leases whose time is over, as long as anybody has the store.
async fn expire(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(shared) = shared.upgrade() else { return };
        let work = tokio::task::spawn_blocking(move || {
            let over: Vec<Lease> = {
                let deadlines = shared.deadlines();
                let now = Instant::now();
                deadlines.iter().filter(|(_, (at, _))| *at <= now).map(|(lease, _)| *lease).collect()
            };
            for lease in over {
                // One that was renewed in this very moment stays.
                let ended = {
                    let mut deadlines = shared.deadlines();
                    let over = deadlines.get(&lease).is_some_and(|(at, _)| *at <= Instant::now());
                    over && deadlines.remove(&lease).is_some()
                };
                if ended && let Err(error) = shared.end(lease) {
                    let _ = shared.failed(&error);
                    let again = (Instant::now() + TICK, TICK);
                    shared.deadlines().insert(lease, again);
                }
            }
        });
        let _ = work.await;
    }
}

impl Shared {
    fn deadlines(&self) -> MutexGuard<'_, BTreeMap<Lease, (Instant, Duration)>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database; opened again if it was closed.
    fn opened(&self) -> Result<Opened<'_>, Failed> {
        loop {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            if database.is_some() {
                return Ok(Opened(database));
            }
            drop(database);
            self.open_again()?;
        }
    }

    fn open_again(&self) -> Result<(), Failed> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_some() {
            return Ok(());
        }
        if let Some((why, at)) = &self.troubles().closed
            && at.elapsed() < OPEN_AGAIN
        {
            return Err(why.clone().into());
        }
        let opened = Database::create(&self.path).map_err(Failed::from).and_then(|database| {
            let begun = begin(&database)?;
            Ok((database, begun))
        });
        let (opened, (revision, leases)) = opened.inspect_err(|error| {
            self.troubles().closed = Some((error.to_string(), Instant::now()));
        })?;
        // What was answered as unknown may have been committed.
        let now = Instant::now();
        let mut deadlines = self.deadlines();
        for (lease, time) in leases {
            deadlines.entry(lease).or_insert((now + time, time));
        }
        drop(deadlines);
        self.revision.send_if_modified(|known| revision > std::mem::replace(known, revision.max(*known)));
        *database = Some(opened);
        Ok(())
    }

    /// Something has failed: after an error of I/O the file is closed. The log says it once a minute.
    fn failed(&self, error: &Failed) -> Unavailable {
        let why = format!("{}: {error}", self.path.display());
        if is_of_io(error) {
            let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
            *database = None;
            self.troubles().closed = Some((error.to_string(), Instant::now()));
        }
        let mut troubles = self.troubles();
        if troubles.told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
            troubles.told = Some(Instant::now());
            tracing::error!(
                "{why}: the store is opened again as soon as that goes; if its file system is full, make room there"
            );
        }
        Unavailable(why)
    }

    fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Failed> {
        let database = self.opened()?;
        let read = database.begin_read()?;
        let table = read.open_table(KEYS)?;
        let numbers = read.open_table(NUMBERS)?;
        let revision = Revision(numbers.get("revision")?.map_or(0, |number| number.value()));
        let keys = keys.iter().map(|key| row(&table, key).map(|row| row.map(Row::stored)));
        let prefixes = prefixes.iter().map(|prefix| {
            let first = keys::of_prefix(*prefix);
            let mut found = Vec::new();
            for each in table.range(first.as_slice()..)? {
                let (key, row) = each?;
                if !key.value().starts_with(&first) {
                    break;
                }
                let row = Row::from_bytes(Bytes::copy_from_slice(row.value()))?;
                found.push((keys::read(key.value())?, row.stored()));
            }
            Ok::<_, Failed>(found)
        });
        Ok(Snapshot { revision, keys: keys.collect::<Result<_, _>>()?, prefixes: prefixes.collect::<Result<_, _>>()? })
    }

    fn commit(&self, transaction: &Transaction) -> Result<Result<Outcome, LeaseEnded>, Failed> {
        let database = self.opened()?;
        let write = database.begin_write()?;
        let mut failed = Vec::new();
        {
            let table = write.open_table(KEYS)?;
            for (at, compare) in transaction.compares.iter().enumerate() {
                if !holds(&table, compare)? {
                    failed.push(at);
                }
            }
        }
        if !failed.is_empty() {
            write.abort()?;
            return Ok(Ok(Outcome::Refused(failed)));
        }
        {
            let leases = write.open_table(LEASES)?;
            for each in &transaction.writes {
                if let Write::PutLeased(_, _, lease) = each
                    && leases.get(lease.0)?.is_none()
                {
                    return Ok(Err(LeaseEnded(*lease)));
                }
            }
        }
        let revision = next_revision(&write)?;
        {
            let mut tables = Tables::open(&write)?;
            for each in &transaction.writes {
                match each {
                    Write::Put(key, value) => tables.put(revision, key, Some(value), None)?,
                    Write::PutLeased(key, value, lease) => tables.put(revision, key, Some(value), Some(*lease))?,
                    Write::Delete(key) => tables.put(revision, key, None, None)?,
                }
            }
        }
        write.commit()?;
        self.revision.send_replace(revision.0);
        Ok(Ok(Outcome::Committed(revision)))
    }

    fn grant(&self, time: Duration) -> Result<Lease, Failed> {
        let millis = u64::try_from(time.as_millis())?;
        let database = self.opened()?;
        let write = database.begin_write()?;
        let lease = Lease(next(&write, "lease")?);
        write.open_table(LEASES)?.insert(lease.0, millis)?;
        write.commit()?;
        self.deadlines().insert(lease, (Instant::now() + time, time));
        Ok(lease)
    }

    /// Ends a lease and its keys.
    fn end(&self, lease: Lease) -> Result<(), Failed> {
        let database = self.opened()?;
        let write = database.begin_write()?;
        if write.open_table(LEASES)?.remove(lease.0)?.is_none() {
            write.abort()?;
            return Ok(());
        }
        let revision = next_revision(&write)?;
        let mut of_lease = Vec::new();
        for each in write.open_table(OF_LEASE)?.range((lease.0, &[][..])..)? {
            let (at, ()) = each.map(|(at, nothing)| (at, nothing.value()))?;
            let (of, key) = at.value();
            if of != lease.0 {
                break;
            }
            of_lease.push(keys::read(key)?);
        }
        {
            let mut tables = Tables::open(&write)?;
            for key in of_lease {
                tables.put(revision, &key, None, None)?;
            }
        }
        write.commit()?;
        self.revision.send_replace(revision.0);
        Ok(())
    }
}

impl Row {
    fn stored(self) -> Stored {
        Stored { value: self.value, created: self.created, modified: self.modified }
    }
}

fn row(table: &impl ReadableTable<&'static [u8], &'static [u8]>, key: &Key) -> Result<Option<Row>, Failed> {
    match table.get(keys::of_key(key).as_slice())? {
        Some(row) => Ok(Some(Row::from_bytes(Bytes::copy_from_slice(row.value()))?)),
        None => Ok(None),
    }
}

fn holds(table: &impl ReadableTable<&'static [u8], &'static [u8]>, compare: &Compare) -> Result<bool, Failed> {
    Ok(match compare {
        Compare::Absent(key) => row(table, key)?.is_none(),
        Compare::Present(key) => row(table, key)?.is_some(),
        Compare::Modified(key, at) => row(table, key)?.is_some_and(|row| row.modified == *at),
        Compare::Created(key, at) => row(table, key)?.is_some_and(|row| row.created == *at),
        Compare::NoneUnder(prefix) => {
            let first = keys::of_prefix(*prefix);
            match table.range(first.as_slice()..)?.next() {
                Some(found) => !found?.0.value().starts_with(&first),
                None => true,
            }
        }
    })
}

/// The tables that changes of keys are about: opening them takes longer than one change.
struct Tables<'t> {
    keys: Table<'t, &'static [u8], &'static [u8]>,
    of_lease: Table<'t, (u64, &'static [u8]), ()>,
}

impl<'t> Tables<'t> {
    fn open(write: &'t WriteTransaction) -> Result<Self, Failed> {
        Ok(Self { keys: write.open_table(KEYS)?, of_lease: write.open_table(OF_LEASE)? })
    }

    /// Puts a value, or deletes the key, and keeps the lists of leases true.
    fn put(&mut self, now: Revision, key: &Key, value: Option<&Value>, lease: Option<Lease>) -> Result<(), Failed> {
        let spelt = keys::of_key(key);
        let former = row(&self.keys, key)?;
        if let Some(former) = former.as_ref().and_then(|row| row.lease) {
            self.of_lease.remove((former, spelt.as_slice()))?;
        }
        match value {
            None => drop(self.keys.remove(spelt.as_slice())?),
            Some(value) => {
                let lease = lease.map(|lease| lease.0);
                if let Some(lease) = lease {
                    self.of_lease.insert((lease, spelt.as_slice()), ())?;
                }
                let created = former.map_or(now, |row| row.created);
                let row = Row { created, modified: now, lease, value: value.clone() };
                self.keys.insert(spelt.as_slice(), row.to_bytes().as_slice())?;
            }
        }
        Ok(())
    }
}

fn next_revision(write: &WriteTransaction) -> Result<Revision, Failed> {
    Ok(Revision(next(write, "revision")?))
}

fn next(write: &WriteTransaction, what: &str) -> Result<u64, Failed> {
    let mut numbers = write.open_table(NUMBERS)?;
    let number = numbers.get(what)?.map_or(0, |number| number.value()) + 1;
    numbers.insert(what, number)?;
    Ok(number)
}

#[tonic::async_trait]
impl MetaStore for Embedded {
    fn limits(&self) -> Limits {
        Limits::NONE
    }

    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable> {
        let (keys, prefixes) = (keys.to_vec(), prefixes.to_vec());
        self.blocking(move |shared| shared.read(&keys, &prefixes)).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded> {
        let transaction = transaction.clone();
        match self.blocking(move |shared| shared.commit(&transaction)).await {
            Ok(outcome) => outcome,
            // The log has it.
            Err(Unavailable(_)) => Ok(Outcome::Unknown),
        }
    }

    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable> {
        self.blocking(move |shared| shared.grant(time)).await
    }

    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable> {
        let mut deadlines = self.shared.deadlines();
        Ok(match deadlines.get_mut(&lease) {
            Some((at, time)) => {
                *at = Instant::now() + *time;
                true
            }
            None => false,
        })
    }

    async fn end(&self, lease: Lease) -> Result<(), Unavailable> {
        self.shared.deadlines().remove(&lease);
        self.blocking(move |shared| shared.end(lease)).await
    }

    async fn changed(&self, since: Revision) {
        let mut revision = self.shared.revision.subscribe();
        // The sender lives as long as the store.
        let _ = revision.wait_for(|now| *now > since.0).await;
    }
}
