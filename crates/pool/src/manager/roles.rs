//! A manager's own lease, and what only one process does at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::store::{Compare, Lease, Write};
use surgetank_pool_core::meta::{Key, Role, Value};
use tokio::time::Instant;

use super::{Manager, unique};
use crate::meta::{MetaStore, Unavailable};

/// See the module.
pub(super) struct Tenure {
    manager: u64,
    lease: Lease,
    time: Duration,
    /// The lease lasts at least until then.
    until: Mutex<Instant>,
}

impl Tenure {
    /// A manager's process begins.
    pub(super) async fn begin(store: &dyn MetaStore, time: Duration) -> Result<Self, Unavailable> {
        let until = Instant::now() + time;
        let lease = store.grant(time).await?;
        let manager = unique(store, lease).await?.map_err(|ended| Unavailable(ended.to_string()))?.0;
        Ok(Self { manager, lease, time, until: Mutex::new(until) })
    }

    /// The process's number: no other has it.
    pub(super) const fn manager(&self) -> u64 {
        self.manager
    }

    pub(super) const fn lease(&self) -> Lease {
        self.lease
    }

    /// Whether nobody else can have a role that this manager has: half of the lease's time is left, in which what it does at a target
    /// is over.
    pub(super) fn lasts(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        Instant::now() + self.time / 2 < until
    }

    /// Renews the lease until it has ended.
    pub(super) async fn keep(&self, store: &dyn MetaStore) {
        loop {
            tokio::time::sleep(self.time / 8).await;
            let until = Instant::now() + self.time;
            match store.renew(self.lease).await {
                Ok(true) => *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until,
                Ok(false) => return,
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
}

impl Manager {
    /// Whether this manager has a role; it takes one that nobody has.
    pub(super) async fn holds(&self, role: Role) -> Result<bool, Unavailable> {
        Ok(self.holds_since(role).await?.is_some())
    }

    /// The revision since which this manager has a role: whoever has it later has it since a later one.
    pub(super) async fn holds_since(&self, role: Role) -> Result<Option<Revision>, Unavailable> {
        let key = Key::Owner(role);
        let own = Value::Owner(self.tenure.manager());
        loop {
            let read = self.store.read(std::slice::from_ref(&key), &[]).await?;
            if let Some(stored) = read.keys.into_iter().next().flatten() {
                return Ok(Some(stored.created).filter(|_| stored.value == own && self.tenure.lasts()));
            }
            let writes = vec![Write::PutLeased(key.clone(), own.clone(), self.tenure.lease())];
            self.commit(vec![Compare::Absent(key.clone())], writes).await?;
        }
    }
}
