//! Miss-ratio curves: how many requests of a trace a cache of each size would miss.
//!
//! This crate is pure: it is fed the keys of a trace in order, whoever reads them. Sizes are in blocks, one block a key.
//!
//! | how | what | memory grows with |
//! |---|---|---|
//! | [`ExactLru`] | LRU at every size at once, by stack distances | the trace's distinct blocks |
//! | [`Simulation`] | LRU, FIFO, LRFU, S3-FIFO, SIEVE or the read cache's policy at given sizes | the sizes |
//! | [`SampledLru`] | LRU at every size from a spatial sample (SHARDS) | the sample |
//! | [`OnlineCurve`] | the same for what is read, while it goes on: writes and discards too, and the past counts less | nothing |
//! | [`MiniatureCurve`] | the read cache's own policy, online too, at sizes that follow from the largest | nothing |
//! | [`Resident`] | one LRU or LRFU cache, block by block, for simulators of several | the size |
//! | [`Miniature`] | any policy at given sizes, scaled down with the sample | the sizes × the rate |
//!
//! What they share: a [`table::Table`] from key to position that forgets lazily, and positions in order of time of which
//! a bitmap says which still count ([`history::History`]). Membership, age and stack distance then are comparisons and
//! counts of bits, and nothing is linked: a request costs one random access to memory, which batches make in advance.

mod bits;
mod curve;
mod exact;
mod fifo;
mod histogram;
mod history;
mod lrfu;
mod lru;
pub mod miniature;
pub mod online;
pub mod planted;
mod resident;
mod s3fifo;
mod sample;
mod sampled;
mod sieve;
mod simulation;
mod table;

pub use curve::{Curve, Point, spread_sizes};
pub use exact::ExactLru;
pub use miniature::{MiniatureCurve, Miniatures};
pub use online::{Access, Online, OnlineCurve};
pub use resident::{Held, Resident};
pub use sample::{Rate, RateError};
pub use sampled::{Miniature, SampledLru};
pub use simulation::{Policy, Simulation};

/// Keys whose table entries are fetched ahead of use: enough to keep the memory busy, few enough to stay in the
/// innermost cache.
pub(crate) const BATCH: usize = 64;
