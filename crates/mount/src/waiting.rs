//! Commits what programs have written and neither synced nor closed, so that whoever dies loses no more than what is that young, and others see
//! a file grow: as a kernel writes back pages that have been dirty for a while.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::id::{Inode, Version};
use tokio::task::JoinHandle;

use crate::files::File;
use crate::tree::Tree;

/// Looks after which what was not committed in any of them is.
const LOOKS: u32 = 4;

impl Tree {
    /// Commits what has waited for at most that long, and at least three quarters of it, each file beside the others. It never ends.
    pub(crate) async fn commit_waiting(self: Arc<Self>, longest: Duration) {
        // Of which version each is, as far as that is known, and in how many looks it was not committed.
        let mut waiting: BTreeMap<Inode, (Option<Version>, u32)> = BTreeMap::new();
        let mut committing: BTreeMap<Inode, JoinHandle<()>> = BTreeMap::new();
        loop {
            tokio::time::sleep(longest / LOOKS).await;
            committing.retain(|_, commit| !commit.is_finished());
            let mut found = BTreeMap::new();
            for file in self.files.all() {
                let former = waiting.get(&file.inode).copied();
                let version = match file.gate.try_lock() {
                    // A new file into which nothing was written is empty for everybody already.
                    Ok(gate) => match gate.writer.as_ref().filter(|writer| !gate.is_empty && !writer.is_committed()) {
                        Some(writer) => Some(writer.version()),
                        None => continue,
                    },
                    // It is written or read at this moment: perhaps at each.
                    Err(_) => former.and_then(|(version, _)| version),
                };
                let is_same = |of: Option<Version>| of.is_none() || version.is_none() || of == version;
                let looks = former.filter(|(of, _)| is_same(*of)).map_or(1, |(_, looks)| looks + 1);
                if looks < LOOKS {
                    found.insert(file.inode, (version, looks));
                    continue;
                }
                // Counted anew, as long as it is not known to be committed.
                found.insert(file.inode, (None, 0));
                if let Entry::Vacant(of_file) = committing.entry(file.inode) {
                    let tree = Arc::clone(&self);
                    of_file.insert(tokio::spawn(async move { tree.commit_if_still(&file, version).await }));
                }
            }
            waiting = found;
        }
    }

    /// Commits a file unless somebody else has committed it since it had that version.
    async fn commit_if_still(&self, file: &File, version: Option<Version>) {
        let Ok(client) = self.client().await else { return };
        // A file is not held up while nobody would take its commit.
        if client.node(file.inode, &file.what).await.is_err() {
            return;
        }
        let mut gate = file.gate.lock().await;
        if !gate.is_empty && gate.writer.as_ref().is_some_and(|writer| version.is_none_or(|of| writer.version() == of))
        {
            // If that fails, its handles do, as after a write that fails.
            let _ = self.commit(file, &mut gate).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use bytes::Bytes;
    use fuser::INodeNo;

    use super::*;
    use crate::fixture::{Pool, run, tree, until};

    #[test]
    fn a_file_that_is_busy_at_every_look_is_committed() {
        run(async {
            let pool = Pool::new(1, 2, 24);
            let client = pool.client(1).await;
            let tree = tree(&pool).await;
            let (log, owner) = (OsStr::new("log"), (0o644, 0, 0));
            let (attributes, opened) = tree.create((INodeNo::ROOT, log), owner, (true, false)).await.unwrap();
            let file = tree.files.find(tree.inode(attributes.ino).await.unwrap()).unwrap();
            let line = Bytes::from_static(b"line");
            tree.write((opened.handle, None), Some(0), &line).await.unwrap();
            // Whoever has the gate passes it on to the other, who waits for it: it is never free.
            let busy: Vec<_> = (0..2)
                .map(|_| {
                    let file = Arc::clone(&file);
                    tokio::spawn(async move {
                        loop {
                            let gate = file.gate.lock().await;
                            tokio::task::yield_now().await;
                            drop(gate);
                        }
                    })
                })
                .collect();
            until("it is busy", async || file.gate.try_lock().is_err()).await;
            let committing = tokio::spawn(Arc::clone(&tree).commit_waiting(Duration::from_millis(200)));
            until("others see it", async || client.stat("log").await.unwrap().size == 4).await;
            busy.into_iter().for_each(|task| task.abort());
            committing.abort();
            tree.end().await;
        });
    }
}
