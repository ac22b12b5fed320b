//! Crash tests: a virtual-time world that drives the pure crates over simulated volumes with faults.
//!
//! - [`disk`]: a volume with real bytes, a volatile write cache and faults; its fault model stands on the type.
//! - [`driver`]: executes the engine's effects over two such volumes, as the daemon does over real ones.
//! - [`world`]: one run in virtual time — the production engine, a workload, boosts, crashes and restarts.
//! - [`oracle`]: the naive model that judges every answer; [`books`]: which of it may be lost.
//! - [`array`]: the same for arrays, with a world of their own.
//! - [`members`]: the life of an array's volumes, over a provider that lies.
//! - [`read_cache`]: the life of a read cache's volumes, over the same provider.
//! - [`family`]: which scenario a seed stands for; [`shrink`](mod@shrink): makes a failing one smaller.
//!
//! Everything in a run follows from its [`scenario::CrashScenario`]: the same one gives the same run, bit for bit.

pub mod array;
pub mod books;
pub mod content;
pub mod disk;
pub mod driver;
pub mod family;
pub mod members;
pub mod oracle;
pub mod pages;
pub mod read_cache;
pub mod scenario;
pub mod shrink;
pub mod trace;
pub mod workload;
pub mod world;

pub use family::Family;
pub use scenario::{
    BadRange, Crash, CrashKind, CrashScenario, Latent, Mapped, Outage, Stop, Stuck, Style, Trigger, Trouble, Victim,
};
pub use shrink::shrink;
pub use world::{Failure, Report, run};
