//! Tokens that were taken back: the store has their numbers, and every manager and benefactor asks for them.

use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::meta::store::Write;
use surgetank_pool_core::meta::{Key, Prefix, Value};

use super::Manager;
use super::protocol::Reply;
use crate::meta::{MetaStore, Unavailable};
use crate::security::revoked::Revoked;
use crate::security::token::now;

/// Between two looks: so long after a token was taken back it may be let in still.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How long after its end a token's number is kept: clocks differ.
const KEPT_S: u64 = 86_400;

/// Reads them from the store; which of them have expired long ago.
pub(super) async fn read(store: &dyn MetaStore, revoked: &Revoked) -> Result<Vec<u64>, Unavailable> {
    let read = store.read(&[], &[Prefix::Revoked]).await?;
    let (mut all, mut over) = (Vec::new(), Vec::new());
    for (key, stored) in read.prefixes.into_iter().flatten() {
        if let (Key::Revoked(token), Value::Revoked(expires)) = (key, stored.value) {
            all.push(token);
            over.extend(expires.filter(|end| end.saturating_add(KEPT_S) < now()).map(|_| token));
        }
    }
    revoked.set(all);
    Ok(over)
}

/// Looks again and again. While the store does not answer, what was known counts.
pub(super) async fn watch(manager: &Arc<Manager>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let over = read(&*manager.store, &manager.credentials.revoked).await.unwrap_or_default();
        if !over.is_empty() {
            let writes = over.into_iter().map(|token| Write::Delete(Key::Revoked(token))).collect();
            let _ = manager.commit(Vec::new(), writes).await;
        }
    }
}

impl Manager {
    /// A token is let in no more, by this manager from now on, and by the others within seconds.
    pub(super) async fn revoke(&self, token: u64, expires: Option<u64>) -> Result<Reply, Unavailable> {
        self.commit(Vec::new(), vec![Write::Put(Key::Revoked(token), Value::Revoked(expires))]).await?;
        read(&*self.store, &self.credentials.revoked).await?;
        Ok(Reply::Done)
    }
}
