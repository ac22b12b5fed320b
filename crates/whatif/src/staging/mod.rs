//! A staging pool as flows: checkpoints come into the memory of benefactors, which overflows to their SSDs and drains to a central
//! file system (PVK11, section IV).
//!
//! - [`Pool`]: equal benefactors, with the rates of [`surgetank_planner::provision`], whose closed form holds for one checkpoint
//!   into an empty pool;
//! - [`Burst`]: one checkpoint of many processes over benefactors of several kinds, chunk by chunk, each benefactor on its own;
//! - [`Jobs`]: all jobs of a log, which write when they have computed for so long, into one pool that never is empty for their sake.
//!
//! A benefactor has one draining agent, as in the paper (II-E). It writes to the SSD while that has room, else to the target;
//! while memory has less than it could move, it moves what the SSD holds to the target.

mod burst;
mod jobs;
pub mod planted;
mod tiers;

pub use burst::{Burst, BurstError, Kind, PROCESSES_MAX, Written};
pub use jobs::{Checkpoint, Job, Jobs, JobsError, Outcome};
pub use tiers::Pool;
