//! A pool in this process, and files that are written into it and read from it.

#![allow(dead_code, reason = "each bench uses a part")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surgetank_mount::Mount;
use surgetank_pool::benefactor::ssd::{Directory, Ssd};
use surgetank_pool::client::{Config, PoolClient};
use surgetank_pool::meta::{Embedded, MetaStore};
use surgetank_pool::rpc::Listener;
use surgetank_pool::security::token::Key;
use surgetank_pool::security::{Access, Credentials};
use surgetank_pool::{benefactor, manager};
use surgetank_pool_core::id::{BenefactorId, Domain};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;
use tokio::runtime::{Builder, Runtime};

pub const MIB: usize = 1 << 20;
/// What a benefactor lends of an SSD, in MiB.
pub const SSD_MIB: usize = 1024;
/// What is waited for at most.
pub const LONG: Duration = Duration::from_secs(120);

/// What something took: seconds that passed, and seconds of processors.
#[derive(Clone, Copy)]
pub struct Took {
    pub wall: f64,
    pub cores: f64,
}

impl Took {
    pub fn of<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let cores = || {
            let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
        };
        let (began, before) = (Instant::now(), cores());
        let done = work();
        (Self { wall: began.elapsed().as_secs_f64(), cores: cores() - before }, done)
    }

    pub fn mib_s(self, mib: usize) -> f64 {
        mib as f64 / self.wall
    }

    /// Seconds of processors for 10⁹ bytes.
    pub fn per_gb(self, mib: usize) -> f64 {
        self.cores / (mib * MIB) as f64 * 1e9
    }
}

/// Bytes that are no zeros.
pub fn filled(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Writes a file until its close has returned.
pub fn write(mut file: File, mib: usize) -> Took {
    let bytes = filled(MIB);
    let (took, ()) = Took::of(move || {
        (0..mib).for_each(|_| file.write_all(&bytes).expect("it is written"));
        file.sync_all().expect("it is committed");
        drop(file);
    });
    took
}

/// Reads a file that this machine has no pages of.
pub fn read(path: &Path, mib: usize) -> Took {
    let (mut file, mut bytes) = (File::open(path).expect("it opens"), vec![0; MIB]);
    let (took, length) = Took::of(|| {
        let mut length = 0;
        loop {
            match file.read(&mut bytes).expect("it is read") {
                0 => return length,
                read => length += read,
            }
        }
    });
    assert_eq!(length, mib * MIB, "all of it is read");
    took
}

/// Several files at a time, each by a thread of its own, until the last is closed.
pub fn write_all(files: usize, mib: usize, directory: &Path) -> Took {
    let paths: Vec<PathBuf> = (0..files).map(|file| directory.join(format!("rank{file}"))).collect();
    let (took, ()) = Took::of(|| {
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || write(File::create_new(path).expect("it is made"), mib));
            }
        });
    });
    took
}

/// Whether the target has a file.
pub fn is_drained(path: PathBuf) -> bool {
    let mut state = [0; 32];
    let length = rustix::fs::getxattr(path, surgetank_mount::STATE, &mut state).expect("a file has a state");
    &state[..length] == b"drained"
}

/// Waits until all files of a directory of a mount are at the target.
pub fn wait_drained(directory: &Path) {
    let until = Instant::now() + LONG;
    let paths = || std::fs::read_dir(directory).expect("it is read").map(|entry| entry.expect("an entry").path());
    while !paths().filter(|path| path.is_file()).all(is_drained) {
        assert!(Instant::now() < until, "everything is drained");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A pool whose benefactors listen at addresses of their own: 127.0.0.11 and so on.
pub struct Pool {
    managers: Vec<String>,
    access: Access,
    memory: u64,
    benefactors: Vec<Option<Runtime>>,
    store: Option<Runtime>,
    pub runtime: Runtime,
    pub directory: tempfile::TempDir,
}

impl Pool {
    /// Benefactors that lend so many MiB each.
    pub fn start(benefactors: u32, mib: usize, place: &Path) -> Self {
        Self::with_ssds(benefactors, mib, &[], place)
    }

    /// The same, with directories for the first of them in which each lends [`SSD_MIB`] as well.
    pub fn with_ssds(benefactors: u32, mib: usize, ssds: &[PathBuf], place: &Path) -> Self {
        Self::with(benefactors, mib, ssds, place, manager::Config::default())
    }

    /// The same with managers like that.
    pub fn with(benefactors: u32, mib: usize, ssds: &[PathBuf], place: &Path, of_manager: manager::Config) -> Self {
        let directory = tempfile::tempdir_in(place).expect("a directory");
        let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let entered = runtime.enter();
        let store: Arc<dyn MetaStore> =
            Arc::new(Embedded::open(&directory.path().join("pool.redb")).expect("the store opens"));
        let credentials = Credentials::new(Key::generate().expect("a key"));
        let listener = Listener::bind("127.0.0.1:0", &credentials).expect("a port is free");
        let managers = vec![listener.address().expect("it has an address").to_string()];
        runtime.spawn(manager::run(of_manager, store, listener));
        drop(entered);
        let memory = (mib * MIB) as u64;
        let lend = |number: u32| {
            let ssd = ssds.get(number as usize).map(|path| {
                Ssd(Arc::new(Directory::open(path, (SSD_MIB * MIB) as u64).expect("the directory has room")))
            });
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
            let entered = runtime.enter();
            let listener = Listener::bind(&format!("127.0.0.{}:0", 11 + number), &credentials).expect("a port is free");
            let (id, domain, managers) = (BenefactorId(number), Domain(number), managers.clone());
            runtime.spawn(benefactor::run(
                benefactor::Config { id, domain, memory, ssd, leaving: false, managers, advertise: None, scrub: None },
                listener,
            ));
            drop(entered);
            Some(runtime)
        };
        let lending = (0..benefactors).map(lend).collect();
        let client = Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let access = credentials.access();
        let store = Some(runtime);
        let pool = Self { managers, access, memory, benefactors: lending, store, runtime: client, directory };
        pool.wait_empty();
        pool
    }

    pub fn config(&self, mount: &str) -> Config {
        Config::new(self.managers.clone(), self.access.clone(), mount)
    }

    /// Waits until benefactors have joined, and have their room back.
    pub fn wait_empty(&self) {
        let until = Instant::now() + LONG;
        loop {
            let status = self.runtime.block_on(PoolClient::ask_status(&self.config(""))).expect("it answers");
            let free: u64 = status.benefactors.iter().map(|(_, free)| free * MIB as u64).sum();
            if free >= self.benefactors.len() as u64 * self.memory * 9 / 10 {
                return;
            }
            assert!(Instant::now() < until, "room comes back: {free} bytes are free");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A benefactor ends at once.
    pub fn kill(&mut self, number: usize) {
        self.benefactors[number].take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// Chunks of a MiB for which each benefactor that is there has room.
    pub fn free(&self) -> Vec<u64> {
        let status = self.runtime.block_on(PoolClient::ask_status(&self.config(""))).expect("it answers");
        status.benefactors.iter().map(|(_, free)| *free).collect()
    }

    /// A mount that drains into a directory.
    pub fn mount(&self, target: &Path, copies: u8) -> Mounted {
        self.mount_with(target, Durability::Copies { copies, media: Media::Any })
    }

    /// The same, as durable as that.
    pub fn mount_with(&self, target: &Path, durability: Durability) -> Mounted {
        let point = tempfile::tempdir_in(self.directory.path()).expect("a directory");
        let config = surgetank_mount::Config {
            managers: self.managers.clone(),
            access: self.access.clone(),
            point: point.path().to_owned(),
            target: target.to_owned(),
            durability: Some(durability),
            timeout: LONG,
            commit_within: surgetank_mount::COMMIT_WITHIN,
        };
        let mount = Mount::start(&config).expect("it mounts");
        Mounted { mount: Some(mount), point }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The next one finds the room of their SSDs free: files that are open take it also when they are removed.
        let all = self.benefactors.drain(..).flatten().chain(self.store.take());
        all.for_each(|runtime| runtime.shutdown_timeout(Duration::from_secs(60)));
    }
}

/// A mounted pool.
pub struct Mounted {
    mount: Option<Mount>,
    point: tempfile::TempDir,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Removes its files and unmounts it. Directories are the target's own.
    pub fn end(mut self) {
        for entry in std::fs::read_dir(self.path()).expect("it is read") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                std::fs::remove_file(path).expect("it is unlinked");
            }
        }
        if let Some(Err(failed)) = self.mount.take().map(Mount::unmount) {
            panic!("{}", failed.1);
        }
    }
}

/// What each benefactor takes in where it is throttled, in MiB/s.
pub const RATE_MIB_S: u32 = 128;

pub fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().expect("a program")).args(words).status();
    assert!(status.is_ok_and(|status| status.success()), "{line}: it needs root, ip and tc (Debian: iproute2)");
}

/// A network of this process and its threads, with a throttle before each benefactor.
pub fn throttle(benefactors: u32) {
    // SAFETY: this process has one thread yet, and no socket.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("a network: it needs root");
    run("ip link set lo up");
    run("tc qdisc add dev lo root handle 1: htb default 0 r2q 1000");
    for number in 1..=benefactors {
        let rate = format!("rate {RATE_MIB_S}mibps burst 256k cburst 256k");
        run(&format!("tc class add dev lo parent 1: classid 1:{number} htb {rate}"));
        let address = format!("127.0.0.{}", 10 + number);
        run(&format!("tc filter add dev lo parent 1: protocol ip u32 match ip dst {address}/32 flowid 1:{number}"));
    }
}

/// A directory in memory, so that drains into it end soon.
pub fn in_memory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("surgetank-bench-").tempdir_in("/dev/shm").expect("a directory in memory")
}

/// A row of numbers as JSON.
pub fn json(of: &[(&str, f64)]) -> String {
    let parts: Vec<String> = of.iter().map(|(name, number)| format!("\"{name}\": {number:.4}")).collect();
    format!("{{{}}}", parts.join(", "))
}

/// The number behind a flag of this program.
pub fn flag(name: &str, default: usize) -> usize {
    let mut flags = std::env::args().skip_while(|flag| flag != name).skip(1);
    flags.next().map_or(default, |value| value.parse().expect("a number"))
}

/// Where the store and mount points are made.
pub fn place() -> PathBuf {
    std::env::var_os("SURGETANK_SCRATCH").map_or_else(std::env::temp_dir, Into::into)
}
