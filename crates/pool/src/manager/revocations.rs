//! Tokens that were taken back: the store has their numbers, and every manager and benefactor asks for them. All of them are with a new key.

use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::meta::store::Write;
use surgetank_pool_core::meta::{Key, Prefix, Value};

use super::Manager;
use super::protocol::Reply;
use crate::claim::{Refused, is_of};
use crate::meta::{MetaStore, Unavailable};
use crate::security::Credentials;

/// Between two looks: so long after a token was taken back it may be let in still.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// Reads them from the store. Their numbers stay there for good: when a token would expire, nobody but the token itself says.
///
/// # Errors
/// [`Refused`]: another manager has replaced the key.
pub(super) async fn read(store: &dyn MetaStore, credentials: &Credentials) -> Result<(), Refused> {
    let read = store.read(&[Key::Fingerprint], &[Prefix::Revoked]).await?;
    if read.keys.iter().flatten().any(|stored| !is_of(stored, credentials.key())) {
        return Err(Refused::Another);
    }
    credentials.revoked.add(read.prefixes.into_iter().flatten().filter_map(|(key, _)| match key {
        Key::Revoked(token) => Some(token),
        _ => None,
    }));
    Ok(())
}

/// Looks again and again, until the key is another one. While the store does not answer, what was known counts.
pub(super) async fn watch(manager: &Arc<Manager>) -> Refused {
    loop {
        tokio::time::sleep(LOOK).await;
        match read(&*manager.store, &manager.credentials).await {
            Ok(()) => {}
            Err(Refused::Unavailable(error)) => tracing::debug!("{error}"),
            Err(another) => return another,
        }
    }
}

impl Manager {
    /// A token is let in no more, by this manager from now on, and by the others within seconds.
    pub(super) async fn revoke(&self, token: u64) -> Result<Reply, Unavailable> {
        self.commit(Vec::new(), vec![Write::Put(Key::Revoked(token), Value::Revoked)]).await?;
        self.credentials.revoked.add([token]);
        Ok(Reply::Done)
    }
}
