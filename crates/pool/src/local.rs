//! A pool of one machine: its store, a manager and benefactors in one process, on loopback.

mod ssd;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::scrub;
use surgetank_pool_core::id::{BenefactorId, Domain, Inode, MountId, Revision, Version};
use surgetank_pool_core::meta::store::{Compare, Transaction, Write};
use surgetank_pool_core::meta::{FileState, Group, Key, Kind, Node, Prefix, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use self::ssd::Ssds;
use crate::benefactor;
use crate::benefactor::ssd::Directory;
use crate::client;
use crate::manager::{self, groups};
use crate::meta::{MetaStore, Unavailable, etcd};
use crate::rpc::{BadAddress, Listener};
use crate::security::{Access, Credentials, NoSecret};
use crate::setup;

/// Where the SSD directories are below it, unless it is said.
const SSD: &str = "ssd";
/// How long what a benefactor does at its end may take.
const END: Duration = Duration::from_secs(2);
/// How long a benefactor is tried that a manager does not take in yet.
const JOINS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// How long the leases of a pool's former process may last that has ended.
const FORMER: Duration = Duration::from_secs(8);

/// What the pool consists of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its store is kept, unless that is an etcd.
    pub directory: PathBuf,
    /// The etcd that is its store.
    pub store: Option<etcd::Config>,
    /// Its key takes the place of the one that the etcd is used with.
    pub new_key: bool,
    /// Where its manager listens: HOST:PORT.
    pub listen: String,
    /// Benefactors.
    pub benefactors: u32,
    /// Memory that each of them lends.
    pub memory: Bytes,
    /// SSD that each of them lends; zero: none, but what former lives have left on it is served.
    pub ssd: Bytes,
    /// Where: each has a directory below it, by its number. `None`: below the pool's directory.
    pub ssd_directory: Option<PathBuf>,
    /// SSD directories that are gone are expected no longer: what they alone had is lost.
    pub forget_ssd: bool,
    /// How benefactors scrub.
    pub scrub: Option<scrub::Config>,
    /// Where metrics of all parts are served: HOST:PORT.
    #[cfg(feature = "metrics")]
    pub metrics: Option<String>,
}

impl Config {
    /// A pool whose benefactors lend memory alone.
    #[must_use]
    pub fn of_memory(directory: PathBuf, listen: &str, benefactors: u32, memory: Bytes) -> Self {
        let (ssd, ssd_directory, forget_ssd) = (Bytes::ZERO, None, false);
        let (store, new_key, listen) = (None, false, listen.to_owned());
        let scrub = Some(scrub::Config::default());
        Self {
            directory,
            store,
            new_key,
            listen,
            benefactors,
            memory,
            ssd,
            ssd_directory,
            forget_ssd,
            scrub,
            #[cfg(feature = "metrics")]
            metrics: None,
        }
    }
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The memory is too little.
    #[error("memory of {0}: a benefactor needs at least {1}, three buffers of a chunk each: lend more")]
    Memory(Bytes, Bytes),
    /// The memory is more than there is.
    #[error("{benefactors} × {memory} is more than this machine has: {available} can be had, lend less")]
    MuchMemory {
        /// Of each benefactor.
        memory: Bytes,
        /// How many.
        benefactors: u32,
        /// What programs can have.
        available: Bytes,
    },
    /// The SSD is too little.
    #[error("{0}")]
    LittleSsd(String),
    /// Its directory cannot be used.
    #[error("directory {0}: {1}")]
    Directory(String, String),
    /// Its key cannot be used.
    #[error(transparent)]
    Key(#[from] NoSecret),
    /// Its certificates cannot be used.
    #[error("{0}")]
    Certificates(String),
    /// An SSD directory cannot be used.
    #[error("{0}")]
    Ssd(String),
    /// SSD directories of the pool's last run are not there.
    #[error(
        "{files} not drained may be on the SSDs that {benefactors} lent when this pool ran last, and their directories are not below \
         {below}: mount them there or name another --ssd-directory, or accept the loss of the files with --forget-ssd"
    )]
    SsdGone {
        /// How many files.
        files: String,
        /// Whose.
        benefactors: String,
        /// Where they were looked for.
        below: String,
    },
    /// Its etcd cannot be used.
    #[error("{0}")]
    Etcd(String),
    /// Its address cannot be used.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// Its metrics cannot be served.
    #[cfg(feature = "metrics")]
    #[error(transparent)]
    Metrics(#[from] crate::metrics::NotServed),
    /// This process cannot start it.
    #[error("cannot start: {0}")]
    Process(#[from] std::io::Error),
    /// A part of it has ended.
    #[error("{0}")]
    Ended(String),
}

/// A file that its target does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undrained {
    /// Where it will be at the target.
    pub path: PathBuf,
    /// Bytes.
    pub size: Bytes,
    /// Chunks of it are lost, or it is longer than a file at its target may be.
    pub is_lost: bool,
    /// Somebody else put something in its way at the target.
    pub in_conflict: bool,
}

/// What a pool that has ended left, of files that their targets do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// It was in memory, with chunks at least of each.
    pub lost: Vec<Undrained>,
    /// It was lost before.
    pub lost_before: Vec<Undrained>,
    /// It is on SSD, or in a draft at its target: the next life drains it.
    pub on_ssd: Vec<Undrained>,
}

/// A pool that runs. Dropping it ends its parts at once: what is in memory is lost.
pub struct Local {
    address: String,
    access: Access,
    store: Arc<dyn MetaStore>,
    ended: mpsc::UnboundedReceiver<String>,
    tell: mpsc::UnboundedSender<String>,
    credentials: Credentials,
    #[cfg(feature = "metrics")]
    watched: crate::metrics::Watched,
    /// With threads of its own, as the benefactors below.
    manager: Mutex<Option<Runtime>>,
    /// Each with threads of its own, so that it can end in the middle of anything.
    benefactors: Mutex<BTreeMap<BenefactorId, Runtime>>,
    runtime: Option<Runtime>,
    ssds: Ssds,
    found: Left,
    remarks: Vec<String>,
}

impl Local {
    /// Opens the store, and starts a manager and benefactors.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config) -> Result<Self, Error> {
        setup::check_memory(config.memory, config.benefactors)?;
        if config.ssd > Bytes::ZERO {
            Directory::is_enough(config.ssd.get()).map_err(|error| Error::LittleSsd(error.to_string()))?;
        }
        let runtime = Builder::new_multi_thread().thread_name("pool").enable_all().build()?;
        let _entered = runtime.enter();
        // What is wrong with the address is said before anything is made.
        crate::rpc::check(&config.listen, false)?;
        setup::make_directory(&config.directory)?;
        let credentials = Credentials::of_directory(&config.directory, None)?;
        let listener = Listener::bind(&config.listen, &credentials)?;
        #[cfg(feature = "metrics")]
        let watched = crate::metrics::serve(config.metrics.as_deref())?;
        #[cfg(feature = "metrics")]
        let listener = listener.watched_by(&watched);
        let address = listener.address()?.to_string();
        let of_store = setup::Store {
            directory: &config.directory,
            etcd: config.store.as_ref(),
            key: credentials.key(),
            new_key: config.new_key,
        };
        let store = runtime.block_on(of_store.open(async |store| match &config.store {
            Some(etcd) => nobody_lends(store, etcd).await,
            None => Ok(()),
        }))?;
        let (ssds, found, remarks) = runtime.block_on(take_ssds(config, &*store))?;
        let (tell, ended) = mpsc::unbounded_channel();
        let manager = Mutex::new(Some(manage(Arc::clone(&store), listener, tell.clone())?));
        let mut benefactors = BTreeMap::new();
        let leaving = ssds.iter().filter(|(_, kept)| kept.is_leaving).map(|(id, _)| (id, true));
        for (id, leaving) in (0..config.benefactors).map(|number| (BenefactorId(number), false)).chain(leaving) {
            let config = benefactor::Config {
                id,
                domain: Domain(id.0),
                memory: if leaving { 0 } else { config.memory.get() },
                ssd: ssds.ssd(id),
                leaving,
                managers: vec![address.clone()],
                advertise: None,
                scrub: config.scrub,
            };
            let (told, credentials) = (tell.clone(), credentials.clone());
            #[cfg(feature = "metrics")]
            let watched = watched.clone();
            let lending =
                Builder::new_multi_thread().worker_threads(1).thread_name("benefactor").enable_all().build()?;
            lending.spawn(async move {
                let bind = || {
                    let listener = Listener::bind("127.0.0.1:0", &credentials)?;
                    #[cfg(feature = "metrics")]
                    let listener = listener.watched_by(&watched);
                    Ok(listener)
                };
                let why = lend(config, bind).await;
                let _ = told.send(format!("benefactor {id} has ended: {why}"));
            });
            benefactors.insert(id, lending);
        }
        let benefactors = Mutex::new(benefactors);
        let (access, runtime) = (credentials.access(), Some(runtime));
        Ok(Self {
            address,
            access,
            store,
            ended,
            tell,
            credentials,
            #[cfg(feature = "metrics")]
            watched,
            manager,
            benefactors,
            runtime,
            ssds,
            found,
            remarks,
        })
    }

    /// What the pool's former life left.
    #[must_use]
    pub const fn found(&self) -> &Left {
        &self.found
    }

    /// What whoever started it should know.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// It ends at once; what it leaves.
    ///
    /// # Errors
    /// If the store or an SSD directory does not answer.
    pub fn end(mut self) -> Result<Left, Error> {
        self.end_benefactors();
        match &self.runtime {
            Some(runtime) => Ok(runtime.block_on(left(&*self.store, &self.ssds))?.0),
            None => Ok(Left::default()),
        }
    }

    /// What they do last is over when this returns, unless it takes too long.
    fn end_benefactors(&mut self) {
        let benefactors = self.benefactors.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(benefactors).into_values().for_each(|lending| lending.shutdown_timeout(END));
    }

    /// Where its manager is reached.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What whoever has its key shows it.
    #[must_use]
    pub const fn access(&self) -> &Access {
        &self.access
    }

    /// Files that their targets do not have.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn undrained(&self) -> Result<Vec<Undrained>, Error> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(undrained(&*self.store)).map_err(Error::from),
            None => Ok(Vec::new()),
        }
    }

    /// Waits until so many benefactors have joined.
    ///
    /// # Errors
    /// If they have not in time.
    pub fn wait_joined(&self, benefactors: usize, within: Duration) -> Result<(), Error> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let mut config = client::Config::new(vec![self.address.clone()], self.access.clone(), "");
        config.timeout = within;
        let joined = async {
            loop {
                let status = client::PoolClient::ask_status(&config).await;
                let status = status.map_err(|error| Error::Ended(error.to_string()))?;
                if status.benefactors.iter().filter(|(_, free)| *free > 0).count() >= benefactors {
                    return Ok(());
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let late = || Error::Ended(format!("not all of {benefactors} benefactors have joined within {within:?}"));
        runtime.block_on(async { tokio::time::timeout(within, joined).await.unwrap_or_else(|_| Err(late())) })
    }

    /// A benefactor ends at once, and what it has with it; whether there was one.
    pub fn kill_benefactor(&self, number: u32) -> bool {
        let mut benefactors = self.benefactors.lock().unwrap_or_else(PoisonError::into_inner);
        benefactors.remove(&BenefactorId(number)).map(Runtime::shutdown_background).is_some()
    }

    /// The manager ends at once, in the middle of whatever it does, and another begins in its place.
    ///
    /// # Errors
    /// The other cannot be started.
    pub fn replace_manager(&self) -> Result<(), Error> {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = manager.take() {
            // Its address is free again when this returns.
            manager.shutdown_timeout(END);
        }
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let _entered = runtime.enter();
        let listener = Listener::bind(&self.address, &self.credentials)?;
        #[cfg(feature = "metrics")]
        let listener = listener.watched_by(&self.watched);
        *manager = Some(manage(Arc::clone(&self.store), listener, self.tell.clone())?);
        Ok(())
    }

    /// Why a part of it has ended, if one has.
    pub fn has_ended(&mut self) -> Option<String> {
        self.ended.try_recv().ok()
    }
}

/// A manager with threads of its own, so that it can end in the middle of anything.
fn manage(
    store: Arc<dyn MetaStore>,
    listener: Listener,
    tell: mpsc::UnboundedSender<String>,
) -> Result<Runtime, std::io::Error> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("manager").enable_all().build()?;
    runtime.spawn(async move {
        let why = setup::why(manager::run(setup::manager_config(), store, listener).await);
        let _ = tell.send(format!("the manager has ended: {why}"));
    });
    Ok(runtime)
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_benefactors();
        if let Some(manager) = self.manager.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            manager.shutdown_timeout(END);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END);
        }
    }
}

impl From<Unavailable> for Error {
    fn from(error: Unavailable) -> Self {
        Self::Ended(error.to_string())
    }
}

/// Takes the SSD directories; what the pool's former life left there, and remarks.
async fn take_ssds(config: &Config, store: &dyn MetaStore) -> Result<(Ssds, Left, Vec<String>), Error> {
    let root = config.ssd_directory.clone().unwrap_or_else(|| config.directory.join(SSD));
    let pool = manager::pool(store).await?;
    let mut ssds = Ssds::open(&root, config.benefactors, config.ssd, pool)?;
    let read = store.read(&[], &[Prefix::Records]).await?;
    let records = read.prefixes.into_iter().flatten().filter_map(|(_, stored)| match stored.value {
        Value::Lends(lends) => Some((lends, stored.modified)),
        _ => None,
    });
    let records: Vec<_> = records.collect();
    let (found, files) = left(store, &ssds).await?;
    let named = |groups: &[(u32, Version, Group)]| {
        let places = groups.iter().flat_map(|(_, _, group)| group.layout.places());
        places.map(|place| place.id).collect::<BTreeSet<BenefactorId>>()
    };
    // Whoever lent an SSD has a directory: one that is not there may be mounted elsewhere, or later.
    let lent = records.iter().filter(|(lends, _)| lends.ssd > Bytes::ZERO).map(|(lends, _)| lends.place.id);
    let gone: BTreeSet<BenefactorId> = lent.filter(|id| !ssds.has_former(*id)).collect();
    let of_gone: Vec<BTreeSet<BenefactorId>> = files.lost.iter().map(|(_, groups)| &named(groups) & &gone).collect();
    let of_gone: Vec<_> = of_gone.into_iter().filter(|gone| !gone.is_empty()).collect();
    if !of_gone.is_empty() && !config.forget_ssd {
        let ids: BTreeSet<BenefactorId> = of_gone.iter().flatten().copied().collect();
        let ids: Vec<String> = ids.iter().map(|id| format!("benefactor {id}")).collect();
        let files =
            if of_gone.len() == 1 { "a file that is".to_owned() } else { format!("{} files that are", of_gone.len()) };
        return Err(Error::SsdGone { files, benefactors: ids.join(", "), below: root.display().to_string() });
    }
    let needed = files.on_ssd.iter().chain(&files.lost).flat_map(|(_, groups)| named(groups)).collect();
    let over = ssds.keep(&needed);
    let mut remarks: Vec<String> = over
        .iter()
        .map(|path| format!("SSD directory {}: nothing on it is needed any more: remove it", path.display()))
        .collect();
    remarks.extend(ssds.iter().filter(|(_, kept)| kept.is_leaving).map(|(id, _)| {
        format!("benefactor {id} lends no more: what its SSD has is drained, and it takes nothing new")
    }));
    ssds.own()?;
    // Nobody waits for those that this process does not start.
    let is_over = |id: BenefactorId| id.0 >= config.benefactors && ssds.ssd(id).is_none();
    for (lends, modified) in records.iter().filter(|(lends, _)| is_over(lends.place.id)) {
        forget(store, lends.place.id, *modified).await?;
    }
    Ok((ssds, found, remarks))
}

/// A benefactor is expected no longer, unless its record was written since: with an etcd one of that number may have joined meanwhile.
async fn forget(store: &dyn MetaStore, id: BenefactorId, modified: Revision) -> Result<(), Error> {
    let record = Key::Record(id);
    let compares = vec![Compare::Modified(record.clone(), modified)];
    let forgotten = store.commit(&Transaction { compares, writes: vec![Write::Delete(record)] }).await;
    forgotten.map(|_| ()).map_err(|error| Error::Ended(error.to_string()))
}

/// Whether no benefactor of the pool in the etcd is alive: they would have the same numbers as those of this process.
async fn nobody_lends(store: &dyn MetaStore, etcd: &etcd::Config) -> Result<(), Error> {
    let end = tokio::time::Instant::now() + FORMER;
    loop {
        let read = store.read(&[], &[Prefix::Lends]).await.map_err(|Unavailable(why)| Error::Etcd(why))?;
        let Some((_, Value::Lends(lends))) =
            read.prefixes.into_iter().flatten().map(|(key, stored)| (key, stored.value)).next()
        else {
            return Ok(());
        };
        if tokio::time::Instant::now() >= end {
            return Err(Error::Etcd(format!(
                "pool `{name}` runs already in the etcd at {}: its benefactor {} lends from {}; stop it, or give this one another \
                 name: etcd://…/NAME",
                etcd.endpoints.join(", "),
                lends.place.id,
                lends.address,
                name = etcd.pool,
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lends until somebody else does in its place; why it has ended.
async fn lend(config: benefactor::Config, bind: impl Fn() -> Result<Listener, BadAddress>) -> String {
    for _ in 0..JOINS {
        let listener = match bind() {
            Ok(listener) => listener,
            Err(error) => return error.to_string(),
        };
        match benefactor::run(config.clone(), listener).await {
            // What its former life has left in the store ends with its lease.
            Err(benefactor::Ended::NotJoined(..)) => tokio::time::sleep(PAUSE).await,
            ended => return setup::why(ended),
        }
    }
    "no manager has taken it in".to_owned()
}

/// Files that their targets do not have, by their paths there.
///
/// # Errors
/// If the store does not answer.
pub async fn undrained(store: &dyn MetaStore) -> Result<Vec<Undrained>, Unavailable> {
    Ok(in_store(store).await?.into_iter().map(|(_, _, file)| file).collect())
}

/// The groups of files that are [`Left`].
#[derive(Default)]
struct Files {
    lost: Vec<ssd::File>,
    on_ssd: Vec<ssd::File>,
}

/// What is left when all memory is gone.
async fn left(store: &dyn MetaStore, ssds: &Ssds) -> Result<(Left, Files), Error> {
    let (mut left, mut files, mut all) = (Left::default(), Files::default(), Vec::new());
    for (inode, version, file) in in_store(store).await? {
        if file.is_lost {
            left.lost_before.push(file);
            continue;
        }
        let read = store.read(&[], &[Prefix::Groups(inode)]).await?;
        all.push((file, (inode, groups(read.prefixes.into_iter().flatten(), version))));
    }
    let of: Vec<ssd::File> = all.iter().map(|(_, of)| of.clone()).collect();
    let whole = ssds.whole(&of)?;
    for (file, of) in all {
        match whole.contains(&of.0) {
            // What has no bytes is lost by nothing.
            _ if file.size == Bytes::ZERO => {}
            true => {
                left.on_ssd.push(file);
                files.on_ssd.push(of);
            }
            false => {
                left.lost.push(file);
                files.lost.push(of);
            }
        }
    }
    Ok((left, files))
}

/// Files that their targets do not have, each with its newest version.
async fn in_store(store: &dyn MetaStore) -> Result<Vec<(Inode, Version, Undrained)>, Unavailable> {
    let read = store.read(&[], &[Prefix::Mounts, Prefix::Nodes]).await?;
    let (mut targets, mut nodes): (BTreeMap<MountId, String>, BTreeMap<Inode, Node>) = Default::default();
    for (key, stored) in read.prefixes.into_iter().flatten() {
        match (key, stored.value) {
            (Key::Mount(id), Value::Mount(mount)) => drop(targets.insert(id, mount.target)),
            (Key::Node(inode), Value::Node(node)) => drop(nodes.insert(inode, node)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (inode, node) in &nodes {
        let (is_lost, in_conflict) = match node.kind {
            Kind::File(FileState::Replicated) => (false, false),
            Kind::File(FileState::Failed) => (true, false),
            Kind::File(FileState::Conflict) => (false, true),
            _ => continue,
        };
        // What has no name is nobody's.
        let Some(below) = path(&nodes, node) else { continue };
        let path = targets.get(&node.mount).map(PathBuf::from).unwrap_or_default().join(below);
        found.push((*inode, node.version, Undrained { path, size: Bytes::new(node.size), is_lost, in_conflict }));
    }
    found.sort_by(|(_, _, one), (_, _, other)| one.path.cmp(&other.path));
    Ok(found)
}

fn path(nodes: &BTreeMap<Inode, Node>, node: &Node) -> Option<PathBuf> {
    let (directory, name) = node.at.as_ref()?;
    let mut names = vec![name];
    let mut above = nodes.get(directory)?;
    while let Some((directory, name)) = &above.at {
        names.push(name);
        above = nodes.get(directory)?;
    }
    Some(names.iter().rev().map(|name| std::ffi::OsStr::from_bytes(name.bytes())).collect())
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::id::Incarnation;
    use surgetank_pool_core::meta::value::Lends;
    use surgetank_pool_core::placement::Place;

    use super::*;
    use crate::meta::Embedded;

    #[tokio::test]
    async fn a_record_that_was_written_meanwhile_is_not_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("pool.redb")).unwrap();
        let (id, key) = (BenefactorId(7), Key::Record(BenefactorId(7)));
        let lends = |incarnation| {
            Value::Lends(Lends {
                place: Place { id, incarnation: Incarnation(incarnation) },
                address: "127.0.0.1:1".to_owned(),
                domain: Domain(7),
                memory: Bytes::ZERO,
                ssd: Bytes::new(1 << 30),
            })
        };
        let joins = async |incarnation| {
            let writes = vec![Write::Put(key.clone(), lends(incarnation))];
            store.commit(&Transaction { compares: Vec::new(), writes }).await.unwrap();
        };
        let record = async || store.read(std::slice::from_ref(&key), &[]).await.unwrap().keys.remove(0);
        joins(1).await;
        let former = record().await.unwrap();
        joins(2).await;
        forget(&store, id, former.modified).await.unwrap();
        let newer = record().await.unwrap();
        assert_eq!(newer.value, lends(2));
        forget(&store, id, newer.modified).await.unwrap();
        assert!(record().await.is_none());
    }
}
