//! A pool of one machine: its store, a manager and benefactors in one process, on loopback.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::buffers::{BUFFERS, Buffers};
use surgetank_pool_core::id::{BenefactorId, Domain, Inode, MountId};
use surgetank_pool_core::meta::{FileState, Key, Kind, Node, Prefix, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::benefactor;
use crate::chunks::CHUNK;
use crate::client;
use crate::manager;
use crate::meta::{Embedded, MetaStore, Unavailable};
use crate::rpc::{BadAddress, Listener};
use crate::security::{Access, Credentials, NoSecret};

/// The store's file in the pool's directory.
const STORE: &str = "pool.redb";
/// How long a benefactor is tried that a manager does not take in yet.
const JOINS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// What the pool consists of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its store is kept.
    pub directory: PathBuf,
    /// Where its manager listens: HOST:PORT.
    pub listen: String,
    /// Benefactors.
    pub benefactors: u32,
    /// Memory that each of them lends.
    pub memory: Bytes,
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The memory is too little.
    #[error("memory of {0}: a benefactor needs at least {1}, three buffers of a chunk each: lend more")]
    Memory(Bytes, Bytes),
    /// Its directory cannot be used.
    #[error("directory {0}: {1}")]
    Directory(String, String),
    /// Its key cannot be used.
    #[error(transparent)]
    Key(#[from] NoSecret),
    /// Its certificates cannot be used.
    #[error("{0}")]
    Certificates(String),
    /// Its address cannot be used.
    #[error(transparent)]
    Address(#[from] BadAddress),
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
    /// Chunks of it are lost.
    pub is_lost: bool,
}

/// A pool that runs. Dropping it ends its parts at once: what is in memory is lost.
pub struct Local {
    address: String,
    access: Access,
    store: Arc<dyn MetaStore>,
    ended: mpsc::UnboundedReceiver<String>,
    /// Each with threads of its own, so that it can end in the middle of anything.
    benefactors: Mutex<Vec<Option<Runtime>>>,
    runtime: Option<Runtime>,
}

impl Local {
    /// Opens the store, and starts a manager and benefactors.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config) -> Result<Self, Error> {
        let least = Bytes::new(CHUNK * BUFFERS as u64);
        if Buffers::new(config.memory.get(), CHUNK).is_err() {
            return Err(Error::Memory(config.memory, least));
        }
        let store = config.directory.join(STORE);
        let shown = config.directory.display().to_string();
        let runtime = Builder::new_multi_thread().thread_name("pool").enable_all().build()?;
        let _entered = runtime.enter();
        // What is wrong with the address is said before anything is made.
        crate::rpc::check(&config.listen, false)?;
        crate::processes::make_directory(&config.directory)?;
        let credentials = Credentials::of_directory(&config.directory, None)?;
        let listener = Listener::bind(&config.listen, &credentials)?;
        let address = listener.address()?.to_string();
        let store: Arc<dyn MetaStore> = Arc::new(open(&store, &shown)?);
        let (tell, ended) = mpsc::unbounded_channel();
        let (of_manager, told) = (Arc::clone(&store), tell.clone());
        runtime.spawn(async move {
            let ended = manager::run(manager::Config::default(), of_manager, listener).await;
            let why = ended.err().map_or_else(|| "it has no more to serve".to_owned(), |error| error.to_string());
            let _ = told.send(format!("the manager has ended: {why}"));
        });
        let mut benefactors = Vec::new();
        for number in 0..config.benefactors {
            let config = benefactor::Config {
                id: BenefactorId(number),
                domain: Domain(number),
                memory: config.memory.get(),
                ssd: None,
                managers: vec![address.clone()],
                advertise: None,
            };
            let (told, credentials) = (tell.clone(), credentials.clone());
            let lending =
                Builder::new_multi_thread().worker_threads(1).thread_name("benefactor").enable_all().build()?;
            lending.spawn(async move {
                let why = lend(config, &credentials).await;
                let _ = told.send(format!("benefactor {number} has ended: {why}"));
            });
            benefactors.push(Some(lending));
        }
        Ok(Self {
            address,
            access: credentials.access(),
            store,
            ended,
            benefactors: Mutex::new(benefactors),
            runtime: Some(runtime),
        })
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
            Some(runtime) => runtime.block_on(undrained(&*self.store)).map_err(|error| Error::Ended(error.to_string())),
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
        let lending = usize::try_from(number).ok().and_then(|number| benefactors.get_mut(number)?.take());
        lending.map(Runtime::shutdown_background).is_some()
    }

    /// Why a part of it has ended, if one has.
    pub fn has_ended(&mut self) -> Option<String> {
        self.ended.try_recv().ok()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let benefactors = self.benefactors.get_mut().unwrap_or_else(PoisonError::into_inner);
        benefactors.drain(..).flatten().for_each(Runtime::shutdown_background);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

pub(crate) fn open(store: &Path, directory: &str) -> Result<Embedded, Error> {
    Embedded::open(store).map_err(|Unavailable(why)| {
        let remedy = match why.contains("already open") {
            true => "another pool runs with it: stop that one, or name another directory".to_owned(),
            false => format!("{why}: name another directory, or repair this one"),
        };
        Error::Directory(directory.to_owned(), remedy)
    })
}

/// Lends until somebody else does in its place; why it has ended.
async fn lend(config: benefactor::Config, credentials: &Credentials) -> String {
    for _ in 0..JOINS {
        let listener = match Listener::bind("127.0.0.1:0", credentials) {
            Ok(listener) => listener,
            Err(error) => return error.to_string(),
        };
        match benefactor::run(config.clone(), listener).await {
            // What its former life has left in the store ends with its lease.
            Err(benefactor::Ended::NotJoined(..)) => tokio::time::sleep(PAUSE).await,
            Err(error) => return error.to_string(),
            Ok(()) => return "it has no more to serve".to_owned(),
        }
    }
    "no manager has taken it in".to_owned()
}

/// Files that their targets do not have, by their paths there.
///
/// # Errors
/// If the store does not answer.
pub async fn undrained(store: &dyn MetaStore) -> Result<Vec<Undrained>, Unavailable> {
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
    for node in nodes.values() {
        let is_lost = match node.kind {
            Kind::File(FileState::Replicated) => false,
            Kind::File(FileState::Failed) => true,
            _ => continue,
        };
        // What has no name is nobody's.
        let Some(below) = path(&nodes, node) else { continue };
        let path = targets.get(&node.mount).map(PathBuf::from).unwrap_or_default().join(below);
        found.push(Undrained { path, size: Bytes::new(node.size), is_lost });
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
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
