//! Random runs of the pool's parts, each against what it must be: a run answers with what was wrong.

pub mod buffers;
pub mod compaction;
pub mod draining;
pub mod holdings;
pub mod leaving;
pub mod links;
pub mod locks;
pub mod membership;
pub mod metadata;
pub mod namespace;
pub mod parity;
pub mod placement;
pub mod publishing;
pub mod quota;
pub mod repair;
pub mod scrub;
pub mod segments;
pub mod target;
pub mod union;
pub mod written;
