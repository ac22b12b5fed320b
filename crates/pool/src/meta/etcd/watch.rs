//! Follows the pool's changes, so that whoever waits for one asks etcd nothing.

use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::id::Revision;
use tokio::sync::watch::Sender;
use tokio::task::AbortHandle;
use tonic::{Status, Streaming};

use super::client::Client;
use super::messages::{self, WatchCreateRequest, WatchRequest, WatchResponse};
use super::spelling::end_of;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Watch {
    newest: Arc<Sender<u64>>,
    task: AbortHandle,
}

impl Watch {
    /// Follows the changes of keys that begin so.
    pub(super) fn start(client: Arc<Client>, root: Vec<u8>) -> Self {
        let newest = Arc::new(Sender::new(0));
        let task = tokio::spawn(follow(client, root, Arc::clone(&newest))).abort_handle();
        Self { newest, task }
    }

    /// There has been this revision.
    pub(super) fn heard(&self, revision: Revision) {
        hear(&self.newest, revision.0);
    }

    /// Waits for a later one.
    pub(super) async fn beyond(&self, since: Revision) {
        // The sender lives as long as this.
        let _ = self.newest.subscribe().wait_for(|newest| *newest > since.0).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn hear(newest: &Sender<u64>, revision: u64) {
    newest.send_if_modified(|newest| {
        let is_newer = revision > *newest;
        *newest = revision.max(*newest);
        is_newer
    });
}

async fn follow(client: Arc<Client>, root: Vec<u8>, newest: Arc<Sender<u64>>) {
    loop {
        if let Err(error) = follow_one(&client, &root, &newest).await {
            tracing::debug!("etcd: changes are not followed at present: {error}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Its first message has the member's newest revision, and what that does not have yet comes later: nothing is missed.
async fn follow_one(client: &Client, root: &[u8], newest: &Sender<u64>) -> Result<(), Status> {
    let create = WatchCreateRequest { key: root.to_vec(), range_end: end_of(root.to_vec()) };
    let (member, mut stream): (usize, Streaming<WatchResponse>) =
        client.watch(WatchRequest { create: Some(create) }).await?;
    loop {
        // One that stands still says nothing, and neither that it does.
        let message = tokio::select! {
            message = stream.message() => message?,
            () = client.left(member) => None,
        };
        let Some(message) = message else { return Ok(()) };
        hear(newest, messages::revision(message.header.as_ref()).cast_unsigned());
        if message.canceled {
            return Ok(());
        }
    }
}
