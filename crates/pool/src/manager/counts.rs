//! What a manager counts while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use surgetank_pool_core::quota::Resource;

/// What a manager counts.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) repaired: AtomicU64,
    pub(super) not_repaired: AtomicU64,
    pub(super) over_bytes: AtomicU64,
    pub(super) over_files: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(feature = "metrics")]
pub(super) fn counted(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counts {
    /// A copy was made again, or moved; or it could not be.
    pub(super) fn repaired(&self, is_done: bool) {
        add(if is_done { &self.repaired } else { &self.not_repaired });
    }

    /// A request was refused for a quota.
    pub(super) fn over(&self, resource: Resource) {
        add(match resource {
            Resource::Bytes => &self.over_bytes,
            Resource::Files => &self.over_files,
        });
    }
}
