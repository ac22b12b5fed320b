//! Commits what programs have written and neither synced nor closed, so that whoever dies loses no more than what is that young, and others see
//! a file grow: as a kernel writes back pages that have been dirty for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_pool_core::id::{Inode, Version};

use crate::tree::Tree;

/// Looks after which what was not committed in any of them is.
const LOOKS: u32 = 4;

impl Tree {
    /// Commits what has waited for at most that long, and at least three quarters of it. It never ends.
    pub(crate) async fn commit_waiting(&self, longest: Duration) {
        let mut waiting: BTreeMap<Inode, (Version, u32)> = BTreeMap::new();
        loop {
            tokio::time::sleep(longest / LOOKS).await;
            let mut found = BTreeMap::new();
            for file in self.files.all() {
                let mut gate = file.gate.lock().await;
                // A new file into which nothing was written is empty for everybody already.
                let Some(writer) = gate.writer.as_ref().filter(|_| !gate.is_empty) else { continue };
                if writer.is_committed() {
                    continue;
                }
                let version = writer.version();
                let looks = waiting.get(&file.inode).filter(|(of, _)| *of == version).map_or(1, |(_, looks)| looks + 1);
                if looks < LOOKS {
                    found.insert(file.inode, (version, looks));
                } else {
                    // If that fails, its handles do, as after a write that fails.
                    let _ = self.commit(&file, &mut gate).await;
                }
            }
            waiting = found;
        }
    }
}
