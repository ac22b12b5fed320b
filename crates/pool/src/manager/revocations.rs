//! Tokens that were taken back: the store has their numbers, and every manager and benefactor asks for them.

use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::meta::store::Write;
use surgetank_pool_core::meta::{Key, Prefix, Value};

use super::Manager;
use super::protocol::Reply;
use crate::meta::{MetaStore, Unavailable};
use crate::security::revoked::Revoked;

/// Between two looks: so long after a token was taken back it may be let in still.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Reads them from the store. Their numbers stay there for good: when a token would expire, nobody but the token itself says.
pub(super) async fn read(store: &dyn MetaStore, revoked: &Revoked) -> Result<(), Unavailable> {
    let read = store.read(&[], &[Prefix::Revoked]).await?;
    revoked.add(read.prefixes.into_iter().flatten().filter_map(|(key, _)| match key {
        Key::Revoked(token) => Some(token),
        _ => None,
    }));
    Ok(())
}

/// Looks again and again. While the store does not answer, what was known counts.
pub(super) async fn watch(manager: &Arc<Manager>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Err(error) = read(&*manager.store, &manager.credentials.revoked).await {
            tracing::debug!("{error}");
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
