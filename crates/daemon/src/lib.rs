//! Live drivers of the pure crates: shard, reconciler, control socket.

pub mod buffers;
pub mod clock;
pub mod config;
pub mod effects;
pub mod files;
pub mod shard;
pub mod toml_error;
pub mod accounting;
pub mod crash;
pub mod journal;
pub mod opening;
pub mod owner;
pub mod resume;
pub mod shared;
pub mod steps;
