//! Quotas: whose bytes are limited, and room that is reserved for files before they become longer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::operation::Refusal;
use surgetank_pool_core::quota::{Limit, ROOT};
use tokio::sync::watch;
use tokio::time::Instant;

use super::leaving::about;
use super::{Config, Error, Inner, PoolClient, senseless};
use crate::chunks::CHUNK;
use crate::manager::{QuotaReport, Reply, Request, Reserve};

/// How long it is believed whether a user has a quota.
const BELIEVED: Duration = Duration::from_secs(1);
/// For how long what need not know waits for an answer: while no manager answers, what was so before counts, and writes go on.
pub(super) const ANSWER: Duration = Duration::from_secs(1);
/// How long managers are asked.
const ASKED: Duration = Duration::from_secs(30);
/// Room that is asked for beyond what a write needs: as much as the file has, so much at least and so much at most, or a part of the file if that is
/// more.
const AHEAD: (u64, u64) = (CHUNK, 64 << 20);
const AHEAD_PART: u64 = 4;

/// Whether users have quotas.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<u32, Belief>>);

#[derive(Default)]
struct Belief {
    has: bool,
    /// When a manager said so; `None`: none has.
    since: Option<Instant>,
    /// Since when managers are asked, and when that ends.
    asked: Option<(Instant, watch::Receiver<()>)>,
}

impl Known {
    fn users(&self) -> MutexGuard<'_, BTreeMap<u32, Belief>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Error {
    /// Whether it was refused before anything of it was taken, for a quota: the writer and what was written before are well.
    #[must_use]
    pub const fn took_nothing(&self) -> bool {
        matches!(self, Self::Refused(_, Refusal::OverQuota(_)) | Self::QuotaUnknown(..))
    }
}

impl Inner {
    /// Whether bytes of a user are limited, as far as is known.
    pub(super) async fn has_quota(self: &Arc<Self>, user: u32) -> bool {
        if user == ROOT {
            return false;
        }
        let (since, mut ends) = {
            let mut users = self.quotas.users();
            let belief = users.entry(user).or_default();
            if belief.since.is_some_and(|since| since.elapsed() < BELIEVED) {
                return belief.has;
            }
            match belief.asked.clone().filter(|(_, ends)| ends.has_changed().is_ok()) {
                Some(asked) => asked,
                None => belief.asked.insert((Instant::now(), self.ask_for_quota(user))).clone(),
            }
        };
        // Once for all who write while no manager answers.
        let _ = tokio::time::timeout_at(since + ANSWER, ends.changed()).await;
        self.quotas.users().get(&user).is_some_and(|belief| belief.has)
    }

    /// Asks in a task of its own; when that ends.
    fn ask_for_quota(self: &Arc<Self>, user: u32) -> watch::Receiver<()> {
        let (ending, ends) = watch::channel(());
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let answer = inner.ask_until(Instant::now() + ASKED, |_| Request::HasQuota(user)).await;
            if let Ok(Reply::HasQuota(has)) = answer {
                let mut users = inner.quotas.users();
                let belief = users.entry(user).or_default();
                (belief.has, belief.since) = (has, Some(Instant::now()));
            }
            drop(ending);
        });
        ends
    }

    /// Reserves room for a file of so many bytes, of which some were taken, or cannot be refused; for how many; `None`: there is no limit any
    /// more. What fails has taken nothing, unless the session has ended.
    pub(super) async fn reserve(
        &self,
        path: &str,
        inode: Inode,
        (taken, size): (u64, u64),
    ) -> Result<Option<u64>, Error> {
        let unknown = |why: String| Error::QuotaUnknown(path.to_owned(), why);
        let (least, most) = AHEAD;
        let most = size.saturating_add(size.clamp(least, most).max(size / AHEAD_PART));
        let reserve = Reserve { inode, writer: (self.session, self.lease), taken, size, most };
        match self.ask(Request::Reserve(reserve)).await {
            Ok(Reply::Reserved(size)) => Ok(size),
            Ok(Reply::Refused(Refusal::NotTheWriter)) => Err(Error::SessionEnded(self.config.mount.clone())),
            Ok(Reply::Refused(refusal @ Refusal::OverQuota(_))) => Err(Error::Refused(path.to_owned(), refusal)),
            Ok(Reply::Refused(refusal)) => Err(unknown(refusal.to_string())),
            Ok(_) => Err(unknown(senseless().to_string())),
            Err(error @ Error::SessionEnded(_)) => Err(error),
            Err(error) => Err(unknown(error.to_string())),
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
