//! A pool on this machine: each process is a runtime of its own, so that it can be ended in the middle of anything.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod damage;
pub mod disk;
pub mod etcd;
pub mod etcd_cluster;
pub mod etcd_server;
mod files;
pub mod held;
pub mod planted;
pub mod raw;
pub mod s3;
pub mod wait;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_pool::benefactor::ssd::{BadDirectory, Directory, Ssd};
use surgetank_pool::benefactor::{self, Benefactor};
use surgetank_pool::bucket::Options;
use surgetank_pool::chunks::{self, Alive};
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::manager::{self, Status};
use surgetank_pool::meta::{Embedded, MetaStore};
use surgetank_pool::rpc::{Listener, Peer};
use surgetank_pool::security::Credentials;
use surgetank_pool::security::token::Key;
use surgetank_pool_core::benefactor::scrub;
use surgetank_pool_core::id::{BenefactorId, Domain, Inode, Revision};
use surgetank_pool_core::meta::{self, Durability, Prefix, Role, Value};
use surgetank_pool_core::placement::Media;
use surgetank_pool_core::{membership, repair};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use self::disk::CutDisk;
use self::etcd_server::Server;
#[allow(unused_imports, reason = "tests of mounts have files of their own")]
pub use self::files::{append, drained, read, write};
pub use self::wait::{at_last, until};

pub const MIB: usize = 1 << 20;
/// What a test waits for at most, so that a failure ends.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a session lasts that is not renewed: a slow machine ends none.
const LASTING: Duration = Duration::from_secs(600);
/// The same where a test waits for the end: those that go on are renewed in time on a slow machine too.
pub const ENDING: Duration = Duration::from_secs(12);

/// The pool's name in an etcd.
const POOL: &str = "pool";

/// A process.
pub struct Process {
    runtime: Option<Runtime>,
    pub address: String,
}

impl Process {
    fn start<F: Future<Output = ()> + Send + 'static>(
        at: &str,
        credentials: &Credentials,
        run: impl FnOnce(Listener) -> F,
    ) -> Self {
        let runtime = runtime();
        let entered = runtime.enter();
        // A former process may have the port for another moment.
        let listener = at_last("the port is free", || Listener::bind(at, credentials).ok());
        let address = listener.address().expect("it has an address").to_string();
        runtime.spawn(run(listener));
        drop(entered);
        Self { runtime: Some(runtime), address }
    }

    /// From now on it answers nobody for a while: all its threads are busy.
    pub fn stall(&self, time: Duration) {
        let runtime = self.runtime.as_ref().expect("it runs");
        let (begins, begun) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let _ = begins.send(());
            std::thread::sleep(time);
        });
        begun.recv_timeout(LONG).expect("it runs");
    }

    /// It ends at once, wherever it is.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

thread_local! {
    static FIRST: RefCell<Option<Arc<dyn Fn() + Send + Sync>>> = const { RefCell::new(None) };
}

/// What the threads do first of processes that this thread starts from now on.
pub fn threads_do_first(first: impl Fn() + Send + Sync + 'static) {
    FIRST.replace(Some(Arc::new(first)));
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    if let Some(first) = FIRST.with_borrow(Clone::clone) {
        builder.on_thread_start(move || first());
    }
    builder.worker_threads(1).enable_all().build().expect("a runtime")
}

/// A benefactor's SSD.
#[derive(Clone)]
pub enum Disk {
    /// Whose power can be cut.
    Cut(Arc<CutDisk>),
    /// A directory, and its bytes.
    Files(PathBuf, u64),
}

impl Disk {
    async fn open(self) -> Ssd {
        match self {
            Self::Cut(disk) => Ssd(disk),
            Self::Files(path, bytes) => loop {
                match Directory::with_segments(&path, bytes, 8 << 20) {
                    Ok(directory) => return Ssd(Arc::new(directory)),
                    // What the former process did last is on its way.
                    Err(BadDirectory::InUse(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                    Err(other) => panic!("{other}"),
                }
            },
        }
    }
}

/// See the module.
pub struct Pool {
    pub directory: TempDir,
    store: Option<(Runtime, Arc<dyn MetaStore>)>,
    /// The store is this, and each manager has connections of its own to it.
    pub etcd: Option<Server>,
    /// Where that is, or another etcd.
    store_at: Option<String>,
    pub managers: Vec<Process>,
    pub benefactors: Vec<Process>,
    memory: u64,
    /// What each benefactor lends of SSD.
    pub disks: Vec<Option<Disk>>,
    /// With which sentence a benefactor ended by itself last.
    pub said: Arc<Mutex<String>>,
    /// What its processes have.
    pub credentials: Credentials,
    /// How long sessions last that are not renewed, of clients that begin with managers that start from now on.
    pub session: Duration,
    /// How managers that start from now on have copies made again.
    pub repair: repair::Config,
    /// How often wardens look.
    sweep: Duration,
    /// How its benefactors scrub.
    scrub: Option<scrub::Config>,
    /// How long managers that start from now on keep an etcd's history.
    pub history: Duration,
    /// How managers that start from now on reach object stores.
    pub buckets: Options,
    /// Where benefactors that start from now on say that they are.
    pub advertised: Vec<(usize, String)>,
}

impl Pool {
    /// So many managers, and benefactors that lend so many MiB of memory each.
    pub fn new(managers: usize, benefactors: usize, memory_mib: usize) -> Self {
        Self::swept(managers, benefactors, memory_mib, Duration::from_millis(100))
    }

    /// The same with SSDs, as many as there are benefactors.
    pub fn with_ssds(managers: usize, memory_mib: usize, disks: Vec<Option<Disk>>) -> Self {
        Self::scrubbed(managers, memory_mib, disks, Some(scrub::Config::default()))
    }

    /// The same whose benefactors scrub like that.
    pub fn scrubbed(
        managers: usize,
        memory_mib: usize,
        disks: Vec<Option<Disk>>,
        scrub: Option<scrub::Config>,
    ) -> Self {
        Self::begin(managers, memory_mib, disks, Duration::from_millis(100), None, scrub)
    }

    /// The same with an etcd as the store. `None`: there is none here.
    pub fn over_etcd(managers: usize, benefactors: usize, memory_mib: usize) -> Option<Self> {
        let etcd = Server::start(&[])?;
        let at = etcd.address.to_string();
        let mut pool = Self::over(at, managers, benefactors, memory_mib);
        pool.etcd = Some(etcd);
        Some(pool)
    }

    /// The same with an etcd at these addresses, with commas between them.
    pub fn over(etcd: String, managers: usize, benefactors: usize, memory_mib: usize) -> Self {
        let disks = (0..benefactors).map(|_| None).collect();
        Self::begin(managers, memory_mib, disks, Duration::from_millis(100), Some(etcd), None)
    }

    /// The same with a pause of wardens.
    pub fn swept(managers: usize, benefactors: usize, memory_mib: usize, sweep: Duration) -> Self {
        let disks = (0..benefactors).map(|_| None).collect();
        Self::begin(managers, memory_mib, disks, sweep, None, Some(scrub::Config::default()))
    }

    fn begin(
        managers: usize,
        memory_mib: usize,
        disks: Vec<Option<Disk>>,
        sweep: Duration,
        store_at: Option<String>,
        scrub: Option<scrub::Config>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("target")).expect("a directory");
        let memory = (memory_mib * MIB) as u64;
        let benefactors = disks.len();
        let (store, of_managers) = (None, Vec::new());
        let mut pool = Self {
            directory,
            store,
            etcd: None,
            store_at,
            managers: of_managers,
            benefactors: Vec::new(),
            memory,
            disks,
            said: Arc::default(),
            credentials: Credentials::new(Key::generate().expect("a key")),
            session: LASTING,
            repair: manager::Config::default().repair,
            sweep,
            scrub,
            history: manager::Config::default().history,
            buckets: Options::default(),
            advertised: Vec::new(),
        };
        pool.open_store();
        (0..managers).for_each(|_| pool.start_manager("127.0.0.1:0"));
        (0..benefactors).for_each(|id| {
            let process = pool.benefactor(id);
            pool.benefactors.push(process);
        });
        pool
    }

    pub fn open_store(&mut self) {
        let runtime = runtime();
        if let Some(address) = &self.store_at {
            // From a thread of its own: the test itself runs in a runtime.
            let connected = std::thread::scope(|scope| {
                scope.spawn(|| runtime.block_on(etcd::connect(address, POOL))).join().expect("etcd answers")
            });
            self.store = Some((runtime, Arc::new(connected)));
            return;
        }
        let path = self.directory.path().join("pool.redb");
        let entered = runtime.enter();
        // What a former process did last may be on its way still.
        let store = at_last("the store opens", || Embedded::open(&path).ok());
        drop(entered);
        self.store = Some((runtime, Arc::new(store)));
    }

    /// The store's process ends, and all managers with it.
    pub fn kill_store(&mut self) {
        self.managers.iter_mut().for_each(Process::kill);
        if let Some((runtime, store)) = self.store.take() {
            drop(store);
            runtime.shutdown_background();
        }
    }

    pub fn start_manager(&mut self, at: &str) {
        let process = self.manager(at);
        self.managers.push(process);
    }

    fn manager(&self, at: &str) -> Process {
        let store = Arc::clone(&self.store.as_ref().expect("the store is open").1);
        let of_its_own = self.store_at.clone();
        let config = manager::Config {
            session: self.session,
            benefactor: Duration::from_secs(2),
            role: Duration::from_secs(2),
            probe: Duration::from_millis(50),
            sweep: self.sweep,
            repair: self.repair,
            history: self.history,
            buckets: self.buckets.clone(),
            membership: membership::Config {
                probe_timeout: Duration::from_secs(1),
                probe_interval: Duration::from_millis(100),
                grace: Duration::from_secs(4),
                together: Duration::from_secs(2),
                ..membership::Config::default()
            },
        };
        Process::start(at, &self.credentials, async move |listener| {
            let store = match of_its_own {
                Some(address) => Arc::new(etcd::connect(address, POOL).await),
                None => store,
            };
            let _ = manager::run(config, store, listener).await;
        })
    }

    /// The same whose sessions end so long after they were renewed last.
    pub fn with_sessions_of(mut self, time: Duration) -> Self {
        self.session = time;
        (0..self.managers.len()).for_each(|at| self.restart_manager(at));
        self
    }

    pub fn restart_manager(&mut self, at: usize) {
        self.managers[at].kill();
        let process = self.manager(&self.managers[at].address);
        self.managers[at] = process;
    }

    fn benefactor(&self, id: usize) -> Process {
        let number = u32::try_from(id).expect("a small number");
        let config = benefactor::Config {
            id: BenefactorId(number),
            domain: Domain(number),
            memory: self.memory,
            ssd: None,
            leaving: false,
            managers: self.addresses(),
            advertise: self.advertised.iter().find(|(of, _)| *of == id).map(|(_, address)| address.clone()),
            scrub: self.scrub,
        };
        let (said, disk) = (Arc::clone(&self.said), self.disks[id].clone());
        Process::start("127.0.0.1:0", &self.credentials, async move |listener| {
            let ssd = match disk {
                Some(disk) => Some(disk.open().await),
                None => None,
            };
            if let Err(ended) = benefactor::run(benefactor::Config { ssd, ..config }, listener).await {
                *said.lock().expect("no one panics with it") = ended.to_string();
            }
        })
    }

    /// One more, without an SSD.
    pub fn start_benefactor(&mut self) {
        self.disks.push(None);
        let process = self.benefactor(self.benefactors.len());
        self.benefactors.push(process);
    }

    /// A benefactor's next life.
    pub fn restart_benefactor(&mut self, id: usize) {
        self.benefactors[id].kill();
        if let Some(Disk::Cut(disk)) = &mut self.disks[id] {
            *disk = disk.next_life();
        }
        self.benefactors[id] = self.benefactor(id);
    }

    pub fn addresses(&self) -> Vec<String> {
        self.managers.iter().map(|process| process.address.clone()).collect()
    }

    /// How many places of layouts name a benefactor that is dead, or a life that is over; and how many benefactors have begun that the store
    /// does not know yet: a commit may still name the lives that they had.
    pub async fn missing(&self) -> usize {
        let store = &self.store.as_ref().expect("the store is open").1;
        let read = store.read(&[], &[Prefix::Lends, Prefix::AllGroups]).await.expect("the store answers");
        let mut alive = Vec::new();
        let mut named = Vec::new();
        for (_, stored) in read.prefixes.into_iter().flatten() {
            match stored.value {
                // A lease outlasts its process for a moment, also when the next life has begun.
                Value::Lends(lends) => {
                    let process = &self.benefactors[lends.place.id.0 as usize];
                    if process.runtime.is_some() && process.address == lends.address {
                        alive.push(lends.place);
                    }
                }
                Value::Group(group) => named.extend(group.layout.places()),
                _ => {}
            }
        }
        let running = self.benefactors.iter().filter(|process| process.runtime.is_some()).count();
        named.iter().filter(|place| !alive.contains(place)).count() + running.saturating_sub(alive.len())
    }

    /// How many chunks of a file the pool has, by the store.
    pub async fn present(&self, inode: Inode) -> usize {
        let store = &self.store.as_ref().expect("the store is open").1;
        let read = store.read(&[], &[Prefix::Groups(inode)]).await.expect("the store answers");
        let groups = read.prefixes.into_iter().flatten().map(|(_, stored)| match stored.value {
            Value::Group(group) => group.present().count(),
            _ => 0,
        });
        groups.sum()
    }

    /// Who has the places of each column of a file's groups.
    pub async fn columns(&self, inode: Inode) -> Vec<Vec<usize>> {
        let store = &self.store.as_ref().expect("the store is open").1;
        let read = store.read(&[], &[Prefix::Groups(inode)]).await.expect("the store answers");
        let groups = read.prefixes.into_iter().flatten().filter_map(|(_, stored)| match stored.value {
            Value::Group(group) => Some(group.layout.columns),
            _ => None,
        });
        groups.flatten().map(|column| column.places.iter().map(|place| place.id.0 as usize).collect()).collect()
    }

    /// Since when there is the present warden.
    pub async fn warden_since(&self) -> Revision {
        let store = &self.store.as_ref().expect("the store is open").1;
        let read = store.read(&[meta::Key::Owner(Role::Warden)], &[]).await.expect("the store answers");
        read.keys.into_iter().flatten().next().expect("there is a warden").created
    }

    pub fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    /// Nothing is drained until the file that is returned is removed: it lies where the target keeps what has no name yet.
    pub fn hold_drains(&self) -> PathBuf {
        let aside = self.target().join(".surgetank");
        std::fs::write(&aside, "in the way").unwrap();
        aside
    }

    /// What a benefactor says of itself.
    /// Benefactors whose leases are not over, as the store has them.
    pub async fn with_leases(&self) -> Vec<BenefactorId> {
        let store = &self.store.as_ref().expect("the store is open").1;
        let read = store.read(&[], &[Prefix::Lends]).await.expect("the store answers");
        let lends = read.prefixes.into_iter().flatten().filter_map(|(_, stored)| match stored.value {
            Value::Lends(lends) => Some(lends.place.id),
            _ => None,
        });
        lends.collect()
    }

    pub async fn alive(&self, id: usize) -> Alive {
        let peer = Peer::new(&self.benefactors[id].address, &self.credentials.access()).unwrap();
        match peer.ask::<Benefactor>(chunks::Request::Probe, LONG).await.unwrap() {
            chunks::Reply::Alive(alive) => *alive,
            other => panic!("{other:?}"),
        }
    }

    pub fn config(&self, copies: u8) -> client::Config {
        self.config_of(Durability::Copies { copies, media: Media::Any })
    }

    pub fn config_of(&self, durability: Durability) -> client::Config {
        let mut config = client::Config::new(self.addresses(), self.credentials.access(), "scratch");
        config.make = Some((self.target(), durability));
        config.timeout = LONG;
        config
    }

    /// Whether a benefactor still keeps what a session has written and no commit names.
    pub async fn has_drafts(&self) -> bool {
        for benefactor in &self.benefactors {
            let peer = Peer::new(&benefactor.address, &self.credentials.access()).unwrap();
            match peer.ask::<Benefactor>(chunks::Request::Inventory, LONG).await.unwrap() {
                chunks::Reply::Inventory(inventory) if inventory.has.drafts.is_empty() => {}
                chunks::Reply::Inventory(_) => return true,
                other => panic!("{other:?}"),
            }
        }
        false
    }

    /// A session with so many copies of each chunk, once all benefactors are there.
    pub async fn client(&self, copies: u8) -> PoolClient {
        self.client_of(self.config(copies)).await
    }

    /// The same with that configuration.
    pub async fn client_of(&self, config: client::Config) -> PoolClient {
        let client = PoolClient::begin(config).await.expect("a session begins");
        let all = self.benefactors.len();
        until("all benefactors are there", async || {
            let status = client.status().await.expect("managers answer");
            status.benefactors.iter().filter(|(_, credits)| *credits > 0).count() >= all
        })
        .await;
        client
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.kill_store();
    }
}

/// Chunks that all benefactors have room for.
pub fn free(status: &Status) -> u64 {
    status.benefactors.iter().map(|(_, credits)| credits).sum()
}

pub async fn has_free(client: &PoolClient, chunks: u64) {
    until("memory is free", async || free(&client.status().await.unwrap()) == chunks).await;
}

/// Bytes that look like chance.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::from_seed(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Fails where two contents differ first, without printing them.
pub fn same(what: &str, found: &[u8], expected: &[u8]) {
    // Compared whole: byte by byte only where they differ.
    if found == expected {
        return;
    }
    let differ = found.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!((differ, found.len()), (None, expected.len()), "{what}: the first difference, and the length");
}

/// The target has refused something since.
pub async fn stands_still(client: &PoolClient) {
    until("the target has no room", async || {
        client.status().await.unwrap().mounts.iter().any(|mount| mount.standstill.is_some())
    })
    .await;
}

/// A file system at a place, as large as that.
pub struct Small(PathBuf);

impl Small {
    /// `None`: this machine cannot mount one.
    pub fn mount(at: &Path, options: &str) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", options, "small"]).arg(at).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }

    /// It has other options from now on, such as another size.
    pub fn remount(at: &Path, options: &str) {
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-o", &format!("remount,{options}")]).arg(at).status();
        assert!(mounted.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs a test in a runtime of its own.
pub fn run<F: Future<Output = ()>>(test: F) {
    runtime().block_on(test);
}

/// What is under the directory for files without a name.
pub fn aside(target: &Path) -> usize {
    std::fs::read_dir(target.join(".surgetank")).map_or(0, Iterator::count)
}
