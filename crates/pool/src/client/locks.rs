//! Locks of files, as a session has them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use surgetank_pool_core::id::Inode;
use surgetank_pool_core::locks::Ranges;
use surgetank_pool_core::meta::operation::{Granted, Locking, Operation, Refusal, Reply as Done};
use tokio::time::Instant;

use super::{Error, PoolClient, senseless};
use crate::manager::{Ended, Reply, Request};

impl PoolClient {
    /// The session has these locks of a file instead of those that it had; `had`: these, unless it had all locks of the file.
    ///
    /// # Errors
    /// [`Error`]: what it has is as before, or as was asked.
    pub async fn lock_node(
        &self,
        inode: Inode,
        had: &Ranges,
        ranges: &Ranges,
        how: Locking,
        what: &str,
    ) -> Result<Granted, Error> {
        let (granted, repeated) = self.ask_lock(inode, ranges, how, what).await?;
        if repeated {
            self.inner.lock_copies().insert(inode);
            if matches!(granted, Granted::Locked(..) | Granted::Recalled) && how != Locking::Look {
                // A copy of the request may take place later: a newer one says that it does not count.
                self.ask_lock(inode, had, Locking::Ranges, what).await?;
            }
        }
        Ok(granted)
    }

    /// The session has no locks of a file, and waits for none.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn leave_locks(&self, inode: Inode, what: &str) -> Result<(), Error> {
        // As long as a copy of an earlier request may be under way, the store keeps the number of the newest.
        let how = if self.inner.lock_copies().contains(&inode) { Locking::Ranges } else { Locking::Leave };
        match self.ask_lock(inode, &Ranges::default(), how, what).await {
            Ok(_) | Err(Error::Refused(_, Refusal::NotFound)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Of which of these files another session has locks, or waits for some.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn locked_by_others(&self, inodes: Vec<Inode>) -> Result<Vec<Inode>, Error> {
        match self.inner.ask(Request::Locked(self.inner.session, inodes)).await? {
            Reply::Locked(inodes) => Ok(inodes),
            _ => Err(senseless()),
        }
    }

    /// What became of a request, and whether it was sent more than once.
    async fn ask_lock(
        &self,
        inode: Inode,
        ranges: &Ranges,
        how: Locking,
        what: &str,
    ) -> Result<(Granted, bool), Error> {
        let inner = &self.inner;
        let number = inner.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let operation = Operation::Lock { inode, session: inner.session, number, ranges: ranges.clone(), how };
        let repeated = AtomicBool::new(false);
        let request = |again| {
            repeated.fetch_or(again, Ordering::Relaxed);
            Request::Lock(operation.clone())
        };
        let reply = match inner.ask_again(request).await {
            Ok(reply) => reply,
            Err(error) => {
                inner.lock_copies().insert(inode);
                return Err(error);
            }
        };
        match reply {
            Reply::Ended(Ended::Reply(Done::Granted(granted))) => Ok((granted, repeated.load(Ordering::Relaxed))),
            Reply::Ended(Ended::Refused(Refusal::NotTheWriter)) => {
                inner.over.store(true, Ordering::Relaxed);
                Err(Error::SessionEnded(inner.config.mount.clone()))
            }
            Reply::Ended(Ended::Refused(refusal)) => Err(Error::Refused(what.to_owned(), refusal)),
            _ => Err(senseless()),
        }
    }
}

/// When a request was sent last: what a manager grants lasts from then on at least.
pub(super) struct AskedAt(Mutex<Instant>);

impl Default for AskedAt {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl AskedAt {
    pub(super) fn now<T>(&self, request: T) -> T {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        request
    }

    pub(super) fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
