//! Quotas: whose bytes are limited, and room that is reserved for files before they become longer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::quota::{Limit, ROOT};
use tokio::time::Instant;

use super::leaving::about;
use super::{Config, Error, Inner, PoolClient, senseless};
use crate::manager::{QuotaReport, Reply, Request, Reserve};

/// How long it is believed whether a user has a quota; then managers are asked again, beside what goes on.
const BELIEVED: Duration = Duration::from_secs(1);
/// When a write waits for that answer.
const OLD: Duration = Duration::from_secs(10);
/// For how long: while no manager answers, what was so before counts, and writes go on.
const ANSWER: Duration = Duration::from_secs(1);
/// Room that is asked for beyond what a write needs: so much, or a part of the file if that is more.
const AHEAD: u64 = 64 << 20;
const AHEAD_PART: u64 = 4;

/// Whether users have quotas, and when that was asked last.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<u32, (bool, Instant)>>);

impl Known {
    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, (bool, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether bytes of a user are limited.
    pub(super) async fn has_quota(self: &Arc<Self>, user: u32) -> Result<bool, Error> {
        if user == ROOT {
            return Ok(false);
        }
        let known = self.quotas.users().get(&user).copied();
        let Some((has, asked)) = known else { return self.ask_for_quota(user).await };
        let age = asked.elapsed();
        if age < BELIEVED {
            return Ok(has);
        }
        self.quotas.users().insert(user, (has, Instant::now()));
        let inner = Arc::clone(self);
        if age < OLD {
            tokio::spawn(async move { inner.ask_for_quota(user).await });
            return Ok(has);
        }
        Ok(tokio::time::timeout(ANSWER, self.ask_for_quota(user)).await.unwrap_or(Ok(has)).unwrap_or(has))
    }

    async fn ask_for_quota(&self, user: u32) -> Result<bool, Error> {
        match self.ask(Request::HasQuota(user)).await? {
            Reply::HasQuota(has) => {
                self.quotas.users().insert(user, (has, Instant::now()));
                Ok(has)
            }
            _ => Err(senseless()),
        }
    }

    /// Reserves room for a file of so many bytes; for how many; `None`: there is no limit any more.
    pub(super) async fn reserve(&self, path: &str, inode: Inode, size: u64) -> Result<Option<u64>, Error> {
        let most = size.saturating_add(AHEAD.max(size / AHEAD_PART));
        let reserve = Reserve { inode, writer: (self.session, self.lease), size, most };
        match self.ask(Request::Reserve(reserve)).await? {
            Reply::Reserved(size) => Ok(size),
            Reply::Refused(Refusal::NotTheWriter) => Err(Error::SessionEnded(self.config.mount.clone())),
            Reply::Refused(refusal) => Err(Error::Refused(path.to_owned(), refusal)),
            _ => Err(senseless()),
        }
    }
}

impl PoolClient {
    /// What users have and may have, without a session: all of them with the pool's key, else the user of the token.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn ask_quotas(config: &Config) -> Result<QuotaReport, Error> {
        match about(config, Request::Quotas).await? {
            Reply::Quotas(report) => Ok(report),
            _ => Err(senseless()),
        }
    }

    /// Says how much a user may have; `None`: everybody of whom nothing is said. A limit that is `None` stays as it is. It takes the pool's key.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn set_quota(
        config: &Config,
        user: Option<u32>,
        bytes: Option<Limit>,
        files: Option<Limit>,
    ) -> Result<(), Error> {
        about(config, Request::SetQuota(user, bytes, files)).await.map(|_| ())
    }
}
