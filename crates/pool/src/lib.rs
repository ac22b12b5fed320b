//! The staging pool's processes.
//!
//! Benefactors lend memory; managers keep names and plan; clients write chunks straight to benefactors; what was closed is drained to a
//! target (seed 002). What is decided is decided in `surgetank-pool-core`; here it is done.
//!
//! - [`benefactor`], [`manager`]: the two kinds of processes;
//! - [`client`]: the library that programs, and a mount, use;
//! - [`local`]: all of them in one process, on one machine; [`processes`]: each in one of its own;
//! - [`meta`]: the store of names, files and groups;
//! - [`chunks`]: what benefactors are asked; [`managers`]: whichever manager answers;
//! - [`claim`]: which key a store is used with;
//! - `metrics`: what Prometheus is told of both;
//! - [`security`]: keys, tokens, certificates; [`planted`]: bugs on purpose for its tests;
//! - [`bucket`]: targets in object stores;
//! - `lost`: members of rows that are made of the others; `beneath`: paths below a target; [`span`]: how a file is cut; [`wire`], [`rpc`]: how everything is sent and stored.

mod beneath;
pub mod benefactor;
pub mod bucket;
pub mod chunks;
pub mod claim;
pub mod client;
pub mod local;
mod lost;
pub mod manager;
pub mod managers;
pub mod meta;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod planted;
pub mod processes;
pub mod rpc;
pub mod security;
mod setup;
pub mod span;
pub mod wire;
mod words;
