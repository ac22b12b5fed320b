//! Two levels of cache over disks, simulated: what the plans of `surgetank-allocation` do when they are carried out. Pure: virtual time, and chance from seeds.
//!
//! - [`System`]: partitions that can be resized in two levels, on several servers, exclusive or inclusive, or shared;
//! - [`Disks`]: queues whose latency depends on the load;
//! - [`Load`]: accesses with their times, from [`mixes`] of applications or from traces;
//! - [`Case`]: enforcement intervals under a [`Scheme`], and beside it the fair share over the same accesses, by which SLOs are judged.

mod case;
mod control;
mod disk;
mod foresight;
mod load;
pub mod mixes;
mod place;
pub mod planted;
mod system;

pub use case::{Case, CaseError, Interval, Judged, Measured, Outcome, Times};
pub use control::Scheme;
pub use disk::{DiskType, Disks};
pub use load::{Access, Area, Load, Pattern, Phase, Source};
pub use place::BLOCKS_MAX;
pub use surgetank_allocation::Hierarchy;
pub use system::{Answer, Grant, Layout, Reach, Replacement, Sharing, System};
