//! The staging pool as a file system (FUSE) of this machine.
//!
//! One mount is one session of the pool, for all programs of the machine. Names are asked of a manager, and the kernel believes them for a
//! second; bytes go straight to benefactors. Who writes a file does direct I/O; who only reads one has the kernel's page cache.
//!
//! - [`Mount`]: mounts, waits, ends;
//! - [`point`]: mount points as the kernel has them;
//! - `filesystem`: the kernel's calls; `tree`: names and attributes; `content`: what files contain, `reading`:
//!   what is read of them; `files`: what is open, `descriptors`:
//!   by which programs; `locks`: what is locked; `numbers`: what the kernel calls them.

mod attributes;
mod content;
mod descriptors;
mod directories;
mod errno;
mod files;
mod filesystem;
#[cfg(test)]
mod fixture;
mod holes;
mod locks;
mod numbers;
pub mod point;
mod reading;
mod sessions;
mod signals;
mod tree;
mod waiting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{MountOption, Session, SessionACL};
use surgetank_pool::bucket;
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::security::Access;
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::meta::value::Lends;
use surgetank_pool_core::placement::Media;
use tokio::runtime::Runtime;

pub use self::attributes::{NAME, STATE};
use self::filesystem::PoolFilesystem;
use self::sessions::Sessions;
use self::tree::Tree;

/// How long a pool may take to answer for the first time.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Bytes of each file that are kept in this process while they are not committed.
const KEPT_MAX: u64 = 64 << 20;
/// How long what programs have written waits for a commit that none of them asks for, as long as dirty pages wait in a kernel.
pub const COMMIT_WITHIN: Duration = Duration::from_secs(30);
/// What a file of a new mount is safe from, unless it is said.
const DURABILITY: Durability = Durability::Copies { copies: 2, media: Media::Any };

/// What is mounted, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// The managers' addresses: HOST:PORT.
    pub managers: Vec<String>,
    /// What the pool is shown.
    pub access: Access,
    /// The directory on which it is mounted.
    pub point: PathBuf,
    /// The directory that it is drained to, as the managers and benefactors see it, or the address of a bucket.
    pub target: PathBuf,
    /// When a commit counts. `None`: as before, or two copies if the target is new to the pool.
    pub durability: Option<Durability>,
    /// How long a call waits for the pool before it fails.
    pub timeout: Duration,
    /// How long what was written may wait for a commit that nobody asks for.
    pub commit_within: Duration,
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point cannot be used.
    #[error("mount point {0}: {1}")]
    Point(String, String),
    /// The target cannot be used.
    #[error("target {0}: {1}")]
    Target(String, String),
    /// The target is no bucket.
    #[error("target {0}")]
    Address(bucket::BadAddress),
    /// The pool does not answer.
    #[error("no pool answers at {0}: start one with `surgetank pool up`, or name its address ({1})")]
    NoPool(String, String),
    /// The pool refuses.
    #[error("{0}")]
    Refused(String),
    /// The kernel refuses.
    #[error("cannot mount on {0}: {1}: run as root")]
    Kernel(String, std::io::Error),
    /// Whoever mounted it has thought better of it.
    #[error("interrupted; nothing is mounted")]
    Interrupted,
    /// This process has no threads or memory for it.
    #[error("cannot start: {0}")]
    Process(std::io::Error),
}

/// A mounted pool. Dropping it unmounts it as soon as nobody uses it.
pub struct Mount {
    point: PathBuf,
    session: Option<JoinHandle<std::io::Result<()>>>,
    remarks: Vec<String>,
    // The session ends before it.
    runtime: Option<Runtime>,
}

impl Mount {
    /// Mounts; from now on the file system answers.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config) -> Result<Self, Error> {
        Self::start_unless(config, || false)
    }

    /// The same, but for who has been interrupted before the pool has answered: then nothing is mounted.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start_unless(config: &Config, is_interrupted: impl Fn() -> bool) -> Result<Self, Error> {
        let point = point::check(&config.point)?;
        let target = target(&config.target, &point)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("pool")
            .enable_all()
            .build()
            .map_err(Error::Process)?;
        let (sessions, remarks) = runtime.block_on(begin(config, target))?;
        let tree = Arc::new(Tree::new(sessions, config.timeout));
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        let filesystem = PoolFilesystem::new(runtime.handle().clone(), Arc::clone(&tree));
        let session = Session::new(filesystem, &point, &options(config))
            .map_err(|error| Error::Kernel(point.display().to_string(), error))?;
        let _ = tree.notifier.set(session.notifier());
        let (watching, commit_within) = (Arc::clone(&tree), config.commit_within);
        runtime.spawn(async move { watching.watch_locks().await });
        runtime.spawn(tree.commit_waiting(commit_within));
        let session =
            std::thread::Builder::new().name("fuse".into()).spawn(move || session.run()).map_err(Error::Process)?;
        Ok(Self { point, session: Some(session), remarks, runtime: Some(runtime) })
    }

    /// Where.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// What whoever mounted it should know.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Whether it has been unmounted.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until somebody has unmounted it, and everything that was open is closed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(mut self) -> std::io::Result<()> {
        self.join()
    }

    /// Unmounts it, and waits until everything that was open is closed.
    ///
    /// # Errors
    /// If a program uses it; then it goes on.
    pub fn unmount(mut self) -> Result<(), Box<(Self, Error)>> {
        if let Err(error) = point::unmount(&self.point) {
            return Err(Box::new((self, error)));
        }
        match self.join() {
            Ok(()) => Ok(()),
            Err(error) => {
                let point = self.point.display().to_string();
                Err(Box::new((self, Error::Kernel(point, error))))
            }
        }
    }

    fn join(&mut self) -> std::io::Result<()> {
        let ended = match self.session.take() {
            Some(session) => {
                session.join().unwrap_or_else(|_| Err(std::io::Error::other("the session's thread has failed")))
            }
            None => Ok(()),
        };
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
        ended
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some() {
            let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
            let _ = self.join();
        }
    }
}

/// Whether the mount point and the target of a mount can be used, as far as that shows without the pool.
///
/// # Errors
/// [`Error::Point`], [`Error::Target`].
pub fn check(point: &Path, of: &Path) -> Result<(), Error> {
    target(of, &point::check(point)?).map(drop)
}

/// The full path of a directory in which the pool can write, and which is not in a pool itself.
fn target(target: &Path, point: &Path) -> Result<PathBuf, Error> {
    let shown = target.display().to_string();
    if bucket::is_address(&shown) {
        // Whether it is there the managers see.
        let address: Result<bucket::Address, _> = shown.parse();
        return match address {
            Ok(address) => Ok(PathBuf::from(address.to_string())),
            Err(why) => Err(Error::Address(why)),
        };
    }
    let full = std::fs::canonicalize(target)
        .map_err(|error| Error::Target(shown.clone(), format!("{error}: make it, or name another directory")))?;
    if !full.is_dir() {
        return Err(Error::Target(shown, "it is no directory: name one".to_owned()));
    }
    if point.starts_with(&full) {
        let why = format!("the mount point {} lies in it: choose a mount point elsewhere", point.display());
        return Err(Error::Target(shown, why));
    }
    if point::of(&full).is_some_and(|mount| point::is_pool(&mount)) {
        return Err(Error::Target(
            shown,
            "it lies in a staging pool: name a directory of another file system".to_owned(),
        ));
    }
    if full.to_str().is_none() {
        return Err(Error::Target(shown, "its path is not UTF-8: choose another".to_owned()));
    }
    rustix::fs::access(&full, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| Error::Target(shown, format!("{error}: choose a directory that can be written")))?;
    Ok(full)
}

/// Begins the session: the mount's name in the pool is its target's path, so that all who drain to one directory share its names.
async fn begin(config: &Config, target: PathBuf) -> Result<(Sessions, Vec<String>), Error> {
    let addresses = config.managers.join(", ");
    let mut wanted = client::Config::new(config.managers.clone(), config.access.clone(), &target.display().to_string());
    (wanted.timeout, wanted.kept_max) = (config.timeout, KEPT_MAX);
    let mut first = wanted.clone();
    first.timeout = FIRST_ANSWER.min(config.timeout);
    let status = PoolClient::ask_status(&first).await.map_err(|error| match error {
        client::Error::Address(why) | client::Error::NotAllowed(why) => Error::Refused(why),
        error => Error::NoPool(addresses, error.to_string()),
    })?;
    let refused = |error: client::Error| Error::Refused(error.to_string());
    let (sessions, durability) = match config.durability {
        None if PoolClient::begin(first).await.is_ok() => (Sessions::begin(wanted).await.map_err(refused)?, DURABILITY),
        durability => {
            let durability = durability.unwrap_or(DURABILITY);
            wanted.make = Some((target, durability));
            (Sessions::begin(wanted).await.map_err(refused)?, durability)
        }
    };
    let mut remarks = Vec::new();
    let of_parity = match durability {
        Durability::Parity(of) => Some((of.members(), format!("parity {of}"))),
        Durability::Copies { .. } | Durability::Target => None,
    };
    if let Some((members, parity)) = of_parity {
        let domains: std::collections::BTreeSet<_> = status.benefactors.iter().map(|(lends, _)| lends.domain).collect();
        if domains.len() < members as usize {
            remarks.push(format!(
                "files have {parity}, on {members} benefactors in different failure domains, and the pool has {} now: writes wait for more",
                domains.len()
            ));
        }
    }
    if let Durability::Copies { copies, media } = durability {
        let lends = |lends: &Lends| media == Media::Any || lends.ssd.get() > 0;
        let may_be = status.benefactors.iter().filter(|(benefactor, _)| lends(benefactor));
        let domains: std::collections::BTreeSet<_> = may_be.map(|(lends, _)| lends.domain).collect();
        let with = if media == Media::Ssd { " with SSDs" } else { "" };
        if domains.len() < usize::from(copies) {
            remarks.push(format!(
                "files have {}, and the pool has {} now: writes wait for more",
                match copies {
                    1 => format!("one copy on a benefactor{with}"),
                    more => format!("{more} copies on different benefactors{with}"),
                },
                domains.len()
            ));
        }
    }
    Ok((sessions, remarks))
}

fn options(config: &Config) -> fuser::Config {
    let is_root = rustix::process::geteuid().is_root();
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::FSName(format!("pool://{}", config.managers.join(","))),
        MountOption::Subtype("surgetank".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
    ];
    // Others than root may give their mounts to others only where /etc/fuse.conf allows it.
    options.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
    options.n_threads = Some(2);
    options.clone_fd = true;
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_in_which_the_mount_point_lies_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("target/point")).unwrap();
        std::fs::create_dir_all(at("target-2")).unwrap();
        for point in ["target", "target/point"] {
            let told = target(&at("target"), &at(point)).unwrap_err().to_string();
            assert!(told.ends_with("lies in it: choose a mount point elsewhere"), "{told}");
        }
        assert!(target(&at("target"), &at("target-2")).is_ok());
    }
}
