//! Locks of files: whoever asks is answered from the store alone.

use std::collections::BTreeSet;

use surgetank_pool_core::id::{Inode, SessionId};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::store::{Compare, Write};
use surgetank_pool_core::meta::{Key, Prefix, Value};
use tonic::Status as Refused;

use super::Manager;
use super::protocol::Reply;
use super::rights::Within;
use crate::meta::Unavailable;
use crate::security::token::Claims;

/// Files that are asked about at a time.
const ASKED_MAX: usize = 4096;

impl Manager {
    /// A session locks, or returns. The request has a number in its session, so that it needs no receipt.
    pub(super) async fn lock(&self, by: &Claims, operation: &Operation) -> Result<Reply, Refused> {
        if !matches!(operation, Operation::Lock { .. }) {
            return Err(Refused::invalid_argument("that is no request for locks"));
        }
        let ended = self.commits.perform_within(operation, None, Within::of(by)).await;
        ended.map(Reply::Ended).map_err(|error| Refused::unavailable(error.to_string()))
    }

    /// Files of which another session has locks, or waits for some.
    pub(super) async fn locked(&self, by: SessionId, inodes: &[Inode]) -> Result<Reply, Unavailable> {
        let inodes = &inodes[..inodes.len().min(ASKED_MAX)];
        let keys: Vec<Key> = inodes.iter().map(|inode| Key::Locks(*inode)).collect();
        let read = self.store.read(&keys, &[]).await?;
        let is_of_others = |value: &Value| match value {
            Value::Locks(lockers) => lockers.iter().any(|locker| locker.session != by),
            _ => false,
        };
        let found = inodes
            .iter()
            .zip(read.keys)
            .filter(|(_, stored)| stored.as_ref().is_some_and(|stored| is_of_others(&stored.value)));
        Ok(Reply::Locked(found.map(|(inode, _)| *inode).collect()))
    }
}

/// Removes the locks of files that only sessions had which have ended.
pub(super) async fn sweep(manager: &Manager) -> Result<(), Unavailable> {
    let read = manager.store.read(&[], &[Prefix::AllLocks, Prefix::Sessions]).await?;
    let [locks, sessions] = &read.prefixes[..] else { return Ok(()) };
    let sessions: BTreeSet<SessionId> = sessions
        .iter()
        .filter_map(|(key, _)| match key {
            Key::Session(session) => Some(*session),
            _ => None,
        })
        .collect();
    for (key, stored) in locks {
        let is_over = match &stored.value {
            Value::Locks(lockers) => !lockers.iter().any(|locker| sessions.contains(&locker.session)),
            _ => false,
        };
        if is_over {
            let compares = vec![Compare::Modified(key.clone(), stored.modified)];
            manager.commit(compares, vec![Write::Delete(key.clone())]).await?;
        }
    }
    Ok(())
}
