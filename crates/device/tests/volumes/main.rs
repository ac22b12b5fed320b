//! Volumes of every kind: one program, as each costs a link of the whole crate.

#[path = "../volume_common/mod.rs"]
mod volume_common;

mod array;
mod contract;
mod exclusive;
mod fault;
mod pool;
mod read_cache;
mod throttle;
