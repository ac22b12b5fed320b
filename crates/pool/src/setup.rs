//! What a pool's processes begin with: a directory, a store, the memory that they lend; and what is said of one that has ended.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_pool_core::benefactor::buffers::{BUFFERS, Buffers};

use crate::bucket;
use crate::chunks::CHUNK;
use crate::claim::{Refused, Replaces, claim};
use crate::local::Error;
use crate::manager;
use crate::meta::etcd::NotConnected;
use crate::meta::{Embedded, Etcd, MetaStore, Unavailable, etcd};
use crate::security::files::{KEY_FILE, NoSecret};
use crate::security::token;

/// The store's file in the pool's directory.
const STORE: &str = "pool.redb";
/// Between two attempts to reach an etcd.
const PAUSE: Duration = Duration::from_millis(200);

/// A directory that nobody else reads.
pub(crate) fn make_directory(directory: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| {
        Error::Directory(directory.display().to_string(), format!("{error}: name one that can be written"))
    })
}

/// Managers as they are, with what the environment of this process says of object stores.
pub(crate) fn manager_config() -> manager::Config {
    manager::Config { buckets: bucket::Options::from_env(), ..manager::Config::default() }
}

/// A pool's store: this etcd, or a file in the pool's directory.
pub(crate) struct Store<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) etcd: Option<&'a etcd::Config>,
    /// The pool's key.
    pub(crate) key: &'a token::Key,
    /// It takes the place of the one that the etcd is used with.
    pub(crate) new_key: bool,
}

impl Store<'_> {
    /// Opens it. An etcd is used with this key from then on, if `may_be` finds nothing against it.
    pub(crate) async fn open(
        &self,
        may_be: impl AsyncFnOnce(&dyn MetaStore) -> Result<(), Error>,
    ) -> Result<Arc<dyn MetaStore>, Error> {
        let Some(etcd) = self.etcd else { return self.open_file().await };
        etcd.check().map_err(|error| Error::Etcd(error.to_string()))?;
        self.connect(etcd, may_be).await.map_err(|error| match error {
            NotOpen::Silent(why) => Error::Etcd(why),
            NotOpen::Error(error) => error,
        })
    }

    /// The same as soon as the etcd answers: its machine may start later than this one. Each reason for which it does not is told once.
    pub(crate) async fn wait(&self, tell: impl Fn(&str)) -> Result<Arc<dyn MetaStore>, Error> {
        let Some(etcd) = self.etcd else { return self.open_file().await };
        etcd.check().map_err(|error| Error::Etcd(error.to_string()))?;
        let mut told = BTreeSet::new();
        loop {
            match self.connect(etcd, async |_| Ok(())).await {
                Ok(store) => return Ok(store),
                Err(NotOpen::Error(error)) => return Err(error),
                Err(NotOpen::Silent(why)) if told.contains(&why) => {}
                Err(NotOpen::Silent(why)) => {
                    tell(&why);
                    told.insert(why);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One process has it open, and the key lies beside it: whatever that is, it counts.
    async fn open_file(&self) -> Result<Arc<dyn MetaStore>, Error> {
        let store = open(self.directory)?;
        claim(&store, self.key, Replaces::Always).await.map_err(|refused| Error::Ended(refused.to_string()))?;
        Ok(Arc::new(store))
    }

    async fn connect(
        &self,
        etcd: &etcd::Config,
        may_be: impl AsyncFnOnce(&dyn MetaStore) -> Result<(), Error>,
    ) -> Result<Arc<dyn MetaStore>, NotOpen> {
        let store = Etcd::connect(etcd).await.map_err(|error| match error {
            NotConnected::Unfit(why) => NotOpen::Error(Error::Etcd(why)),
            NotConnected::Silent(why) => NotOpen::Silent(why),
        })?;
        may_be(&store).await.map_err(NotOpen::Error)?;
        let (pool, at) = (&etcd.pool, etcd.endpoints.join(", "));
        let another = |sentence: String| NotOpen::Error(Error::Key(NoSecret(sentence)));
        let replaces = if self.new_key { Replaces::WhenUnused } else { Replaces::Never };
        match claim(&store, self.key, replaces).await {
            Ok(()) => Ok(Arc::new(store)),
            Err(Refused::Another) => Err(another(format!(
                "{}: pool `{pool}` in the etcd at {at} is used with another key: copy the file of that name from the directory of one \
                 of its managers, or replace their key with --new-key",
                self.directory.join(KEY_FILE).display(),
            ))),
            Err(Refused::InUse) => Err(NotOpen::Silent(format!(
                "etcd at {at}: a manager of pool `{pool}` that runs, or ended a moment ago, has another key: end all of them, so that \
                 --new-key can replace it"
            ))),
            Err(Refused::Unavailable(Unavailable(why))) => Err(NotOpen::Silent(format!("etcd at {at}: {why}"))),
        }
    }
}

/// Why a store is not open.
enum NotOpen {
    /// It does not answer yet.
    Silent(String),
    Error(Error),
}

fn open(directory: &Path) -> Result<Embedded, Error> {
    Embedded::open(&directory.join(STORE)).map_err(|Unavailable(why)| {
        let remedy = match why.contains("already open") {
            true => "another pool runs with it: stop that one, or name another directory".to_owned(),
            false => format!("{why}: name another directory, or repair this one"),
        };
        Error::Directory(directory.display().to_string(), remedy)
    })
}

/// Whether so many benefactors on this machine can lend so much memory each.
pub(crate) fn check_memory(memory: Bytes, benefactors: u32) -> Result<(), Error> {
    if Buffers::new(memory.get(), CHUNK).is_err() {
        return Err(Error::Memory(memory, Bytes::new(CHUNK * BUFFERS as u64)));
    }
    match available() {
        Some(available) if memory.get().saturating_mul(benefactors.into()) > available.get() => {
            Err(Error::MuchMemory { memory, benefactors, available })
        }
        _ => Ok(()),
    }
}

/// What programs of this machine can still have, by the kernel's estimate; `None`: it does not say.
fn available() -> Option<Bytes> {
    let about = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(Bytes::from_mib(kib / 1024))
}

/// Why a manager or benefactor has ended.
pub(crate) fn why(ended: Result<(), impl Display>) -> String {
    ended.err().map_or_else(|| "it has no more to serve".to_owned(), |error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let told = check_memory(Bytes::from_gib(1 << 20), 3).unwrap_err().to_string();
        assert!(
            told.starts_with("3 × 1024 TiB is more than this machine has: ") && told.ends_with("lend less"),
            "{told}"
        );
        assert!(check_memory(Bytes::new(u64::MAX), u32::MAX).is_err());
        assert!(check_memory(Bytes::from_mib(16), 3).is_ok());
        assert!(check_memory(Bytes::from_mib(1), 3).unwrap_err().to_string().contains("at least 3 MiB"));
    }
}
