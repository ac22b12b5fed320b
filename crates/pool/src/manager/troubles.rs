//! What keeps files from their targets is said when it begins, and again while it stays, not with every attempt.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Inode;
use tokio::time::Instant;

/// The pause before the same is said again.
const AGAIN: Duration = Duration::from_secs(60);

/// What was said lately, by file and reason.
#[derive(Default)]
pub(super) struct Troubles(Mutex<BTreeMap<(Inode, String), Instant>>);

impl Troubles {
    /// An attempt to have a file at its target failed. `text` ends with `: ` and the reason, which stays the same from attempt to attempt.
    pub(super) fn of(&self, inode: Inode, text: &impl Display) {
        let text = text.to_string();
        let reason = text.rsplit(": ").next().unwrap_or_default().to_owned();
        if self.is_new((inode, reason), Instant::now()) {
            tracing::warn!("file {inode}: {text}");
        }
    }

    fn is_new(&self, trouble: (Inode, String), now: Instant) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| now < *at + AGAIN);
        let is_new = !said.contains_key(&trouble);
        if is_new {
            said.insert(trouble, now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_something_else_at_once() {
        let (troubles, begun) = (Troubles::default(), Instant::now());
        let full = || (Inode(1), "No space left on device".to_owned());
        assert!(troubles.is_new(full(), begun));
        assert!(!troubles.is_new(full(), begun + AGAIN / 2));
        assert!(troubles.is_new((Inode(1), "Permission denied".to_owned()), begun + AGAIN / 2));
        assert!(troubles.is_new((Inode(2), full().1), begun + AGAIN / 2));
        assert!(troubles.is_new(full(), begun + AGAIN));
    }
}
