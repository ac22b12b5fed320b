//! The tree of a mount of a pool on this machine, without a kernel.

#[allow(unreachable_pub, reason = "tests of several crates use it")]
#[path = "../../pool/tests/pool/support/mod.rs"]
mod support;

use std::sync::Arc;

pub(crate) use self::support::{ENDING, Pool, run, until};
use crate::sessions::Sessions;
use crate::tree::Tree;

/// A tree over the pool, with one copy of each chunk.
pub(crate) async fn tree(pool: &Pool) -> Arc<Tree> {
    let sessions = Sessions::begin(pool.config(1)).await.expect("a session begins");
    Arc::new(Tree::new(sessions, support::LONG))
}
