//! What the daemon's tests share: a machine in a temporary directory, and its clients.

#![allow(dead_code, reason = "every test program uses its own part")]

pub mod arrays;
pub mod block;
pub mod child;
pub mod failing;
pub mod files;
pub mod guest;
pub mod mapped;
pub mod mounted;
pub mod rounds;
pub mod tables;
pub mod writers;

use std::any::Any;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Request};
use surgetank_provider::{LocalConfig, PoolConfig, PoolProvider, Provider, tag};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// How long anything may take before a test fails: far more than it ever does.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with everything that a daemon needs.
pub struct Machine {
    pub directory: Directory,
}

/// Where that is.
pub enum Directory {
    /// Gone with the machine.
    Temporary(TempDir),
    /// On a disk that outlives it.
    Lasting(PathBuf),
}

impl Directory {
    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Lasting(path) => path,
        }
    }
}

/// What differs from test to test, as TOML. Boosts last until somebody ends them.
pub struct Shape {
    pub provider: String,
    pub device: String,
    pub caching: String,
    pub policy: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            provider: String::new(),
            device: String::new(),
            caching: "initial_size = \"32 MiB\"".to_owned(),
            policy: "sampling = \"20 ms\"\ninactivity_delay = \"30 s\"\nsize_grain = \"1 MiB\"\nretry_first = \"100 ms\"\nretry_longest = \"200 ms\"".to_owned(),
        }
    }
}

impl Machine {
    pub fn new() -> Self {
        // Whatever the umask: a daemon refuses a directory in which others may write.
        let ours = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(ours).tempdir().unwrap();
        Self { directory: Directory::Temporary(directory) }
    }

    /// The machine whose files are here, as an earlier life left them. Its run directory is empty, as after a boot.
    pub fn lasting(path: &Path) -> Self {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).unwrap();
        let _ = std::fs::remove_dir_all(path.join("run"));
        Self { directory: Directory::Lasting(path.to_owned()) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A backing file of zeroes.
    pub fn backing(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    pub fn config_text(&self, devices: &[(&str, &str)], shape: &Shape) -> String {
        let root = self.directory.path().display();
        let mut text = format!(
            "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n[provider.local]\ndirectory = \"{root}/volumes\"\n{}\n\
             [provider.local.types.fast]\nbandwidth = \"128 MiB/s\"\n",
            shape.provider
        );
        for (name, backing) in devices {
            text += &format!(
                "[device.{name}]\nbacking = \"{backing}\"\nexport = \"nbd\"\n{}\n[device.{name}.backing_limits]\nbandwidth = \"33 MiB/s\"\n\
                 [device.{name}.caching]\nthrottle = false\n{}\n[device.{name}.policy]\n{}\n",
                shape.device, shape.caching, shape.policy
            );
        }
        text
    }

    pub fn config(&self, devices: &[(&str, &str)], shape: &Shape) -> Config {
        let text = self.config_text(devices, shape);
        Config::from_text(Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// How many volumes are rented.
    pub fn rented(&self) -> usize {
        images(&self.path("volumes")).len()
    }

    /// What they take on disk, without what the file system has to name their blocks. One may be removed meanwhile.
    pub fn on_disk(&self) -> u64 {
        let volumes = images(&self.path("volumes"));
        let files = volumes.iter().filter_map(|image| image.metadata().ok());
        files.map(|file| (file.blocks() * 512).saturating_sub(16 << 10)).sum()
    }
}

impl Machine {
    /// How many volumes its daemon has rented in the pool at this address, whose key and target are here.
    pub fn rented_in_pool(&self, address: &str) -> usize {
        let owner = std::fs::read_to_string(self.path("state/owner-id")).unwrap();
        let config = PoolConfig {
            address: format!("pool://{address}"),
            token_file: self.path("pool/key"),
            target: self.path("target"),
            ..PoolConfig::default()
        };
        PoolProvider::open(config).unwrap().list(tag::OWNER, owner.trim()).unwrap().len()
    }

    /// What the daemon in the child process said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// What the local provider remembers.
    pub fn records(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("volumes/state")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The configuration of the local provider.
pub fn local(config: &Config) -> LocalConfig {
    let local: &dyn Any = &*config.providers["local"];
    local.downcast_ref::<LocalConfig>().unwrap().clone()
}

/// Files of at least a MiB below a directory: the images of volumes.
pub fn images(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let found = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => images(&entry.path()),
        Ok(metadata) if metadata.len() >= MIB => vec![entry.path()],
        Ok(_) | Err(_) => Vec::new(),
    };
    entries.filter_map(Result::ok).flat_map(found).collect()
}

/// Tells the threads of a test when it is dropped that it is over, also by a panic: a scope waits for them.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until something holds.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(5 * TIMEOUT, what, holds);
}

/// The same, for what takes longer than others.
pub fn within(time: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + time;
    while !holds() {
        assert!(Instant::now() < until, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks until the daemon does it: it refuses while the last caching volume is read back, drained or detached.
pub fn insist(daemon: &Daemon, request: &Request) {
    eventually("the daemon does it", || match daemon.handle(request.clone()) {
        Ok(_) => true,
        Err(why) if why.contains("try again") => false,
        Err(why) => panic!("{why}"),
    });
}

pub fn boost(daemon: &Daemon, name: &str) {
    insist(daemon, &Request::boost(name));
    eventually("boost", || status(daemon, name).phase == DevicePhase::Boost);
}

pub fn drain(daemon: &Daemon, name: &str) {
    insist(daemon, &Request::Drain { device: name.into() });
    eventually("idle", || status(daemon, name).phase == DevicePhase::Idle);
}

/// A client of a device that is exported over NBD.
pub type Nbd = surgetank_nbd::Client;

/// A client that waits for each answer no longer than a test does.
pub fn nbd(socket: &Path) -> io::Result<Nbd> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Nbd::negotiate(stream)
}

/// To a device that is exported over NBD.
pub fn connect(machine: &Machine, name: &str) -> Nbd {
    nbd(&machine.path(&format!("run/{name}.sock"))).unwrap()
}

/// Writes the first mebibytes of a device, in one version.
pub fn fill(nbd: &mut Nbd, blocks: u64, version: u64) {
    for block in 0..blocks {
        nbd.write(block * MIB, &pattern(block, version, MIB as usize)).unwrap();
    }
}

/// Finds what [`fill`] wrote.
pub fn find(nbd: &mut Nbd, blocks: u64, version: u64) {
    for block in 0..blocks {
        assert_eq!(nbd.read(block * MIB, MIB as usize).unwrap(), pattern(block, version, MIB as usize), "{block}");
    }
}

pub fn status(daemon: &Daemon, name: &str) -> DeviceStatus {
    daemon.status().devices.into_iter().find(|device| device.name == name).unwrap()
}

/// Bytes that say where they belong and in which version.
pub fn pattern(offset: u64, version: u64, length: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    for block in 0..length.div_ceil(512) as u64 {
        let mut word = (offset + block * 512) ^ version.rotate_left(40) ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..64 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            data.extend(word.to_le_bytes());
        }
    }
    data.truncate(length);
    data
}
