//! A client's session: how long it lasts, and its end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::SessionId;
use tokio::time::Instant;

use super::locks::AskedAt;
use super::{Error, Inner, PoolClient};
use crate::manager::{Reply, Request};

impl PoolClient {
    /// The session's number.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.inner.session
    }

    /// Whether the session has certainly not ended, by this machine's clock: nobody else has been given its locks.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        !self.is_over() && Instant::now() < *self.inner.sure()
    }

    /// Ends the session. Files that are still open for writing count as torn.
    ///
    /// # Errors
    /// [`Error`]: it ends by itself then.
    pub async fn end(self) -> Result<(), Error> {
        self.finish().await
    }

    /// The same for a session that several use; what any of them asks afterwards fails.
    ///
    /// # Errors
    /// [`Error`]: it ends by itself then.
    pub async fn finish(&self) -> Result<(), Error> {
        let Inner { session, lease, .. } = *self.inner;
        // Its lease has ended by then, if nobody answers.
        let until = self.inner.until().min(*self.inner.sure());
        self.inner.ask_until(until, |_| Request::End(session, lease)).await.map(|_| ())
    }
}

impl Inner {
    fn sure(&self) -> MutexGuard<'_, Instant> {
        self.sure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews the session's lease, until it has ended.
pub(super) async fn renew(inner: Arc<Inner>, time: Duration) {
    loop {
        tokio::time::sleep(time / 4).await;
        let asked = AskedAt::default();
        let renewed = inner.managers.ask_until(Instant::now(), |_| asked.now(Request::Renew(inner.lease))).await;
        match renewed {
            Ok(Reply::Renewed(false)) => {
                inner.over.store(true, Ordering::Relaxed);
                return;
            }
            Ok(_) => *inner.sure() = asked.last() + time,
            Err(error) => tracing::warn!("the session is not renewed: {error}"),
        }
    }
}
