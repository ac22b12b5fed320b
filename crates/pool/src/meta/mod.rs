//! The store of the pool's names, files and groups: what managers ask of it, and how its keys are spelt.
//!
//! [`MetaStore`] is the contract of [`surgetank_pool_core::meta::store`], with leases that end by the clock. Every implementation passes
//! the same suite (`tests/store.rs`).

mod embedded;
pub mod etcd;
mod keys;

use std::time::Duration;

use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction};
use surgetank_pool_core::meta::{Compare, Key, Prefix, Stored, Write};

pub use self::embedded::Embedded;
pub use self::etcd::Etcd;
use crate::wire::Wire;

/// The store does not answer, or its answer makes no sense.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the metadata store does not answer: {0}")]
pub struct Unavailable(pub String);

impl From<Unavailable> for tonic::Status {
    fn from(error: Unavailable) -> Self {
        Self::unavailable(error.to_string())
    }
}

/// The transaction is attached to a lease that has ended: it did not take place, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease {} has ended", .0.0)]
pub struct LeaseEnded(pub Lease);

/// What was read, all of it at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was so.
    pub revision: Revision,
    /// What each of the keys stands for.
    pub keys: Vec<Option<Stored>>,
    /// All keys of each of the prefixes, in their order.
    pub prefixes: Vec<Vec<(Key, Stored)>>,
}

/// How full a store is that has a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of its file.
    pub size: u64,
    /// Bytes of its file that are in use: the others are used again.
    pub in_use: u64,
    /// Bytes at which it takes nothing more.
    pub quota: u64,
    /// It takes nothing, until somebody tells it to.
    pub takes_nothing: bool,
}

impl Usage {
    /// How much of the quota is taken, in thousandths: what is in use; or the file, which never becomes smaller by itself, once it has
    /// come near the quota.
    #[must_use]
    pub fn parts_taken(&self) -> u64 {
        let parts = |bytes: u64| bytes.saturating_mul(1000) / self.quota.max(1);
        match parts(self.size) {
            ..NEAR => parts(self.in_use),
            near => near,
        }
    }
}

/// In thousandths of the quota: a file of that size may pass it with the next large change, though it has free pages.
const NEAR: u64 = 950;

/// A store with transactions and leases.
#[tonic::async_trait]
pub trait MetaStore: Send + Sync + 'static {
    /// What it takes in one transaction.
    fn limits(&self) -> Limits;

    /// Reads keys, and all keys of prefixes, at one revision: not before any transaction whose outcome is known.
    async fn read(&self, keys: &[Key], prefixes: &[Prefix]) -> Result<Snapshot, Unavailable>;

    /// Carries out a transaction. What has committed survives a power cut.
    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, LeaseEnded>;

    /// A new lease, which ends that long after it was granted or renewed last; never before.
    async fn grant(&self, time: Duration) -> Result<Lease, Unavailable>;

    /// The lease's time begins anew; `false`: it has ended.
    async fn renew(&self, lease: Lease) -> Result<bool, Unavailable>;

    /// The lease ends now, and its keys with it.
    async fn end(&self, lease: Lease) -> Result<(), Unavailable>;

    /// Whether it is another process: that may be gone, and return, while this one runs.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// How full it is; `None`: it has no quota.
    async fn usage(&self) -> Result<Option<Usage>, Unavailable> {
        Ok(None)
    }

    /// Forgets what was so before this revision, if it remembers. Whoever is reading what is older begins again.
    async fn compact(&self, before: Revision) -> Result<(), Unavailable> {
        let _ = before;
        Ok(())
    }

    /// Returns once the store may have changed since this revision.
    async fn changed(&self, since: Revision);
}

/// Bytes of a transaction's keys and values.
pub(crate) fn bytes(transaction: &Transaction) -> usize {
    let compared = transaction.compares.iter().map(|compare| match compare {
        Compare::Absent(key) | Compare::Present(key) | Compare::Modified(key, _) | Compare::Created(key, _) => {
            keys::of_key(key).len()
        }
        Compare::NoneUnder(prefix) => keys::of_prefix(*prefix).len(),
    });
    let written = transaction.writes.iter().map(|write| {
        keys::of_key(write.key()).len()
            + match write {
                Write::Put(_, of) | Write::PutLeased(_, of, _) => of.to_bytes().len(),
                Write::Delete(_) => 0,
            }
    });
    compared.sum::<usize>() + written.sum::<usize>()
}
