//! Crash tests of arrays: the production engine of `surgetank-array` over simulated members, in virtual time.
//!
//! - [`scenario`]: what a run is like; a [`Family`] and a seed name one.
//! - [`memory`]: buffers, and effects as I/Os of [`Disk`](crate::disk::Disk)s.
//! - [`world`]: one run: an application, replacements, crashes, starts on all volumes or some, volumes that fail.
//!
//! The [`Oracle`](crate::oracle::Oracle) of the device judges every byte that is read. Which requests may fail the world
//! knows by itself: none, unless a volume that counts has failed an I/O.

pub mod memory;
mod report;
pub mod scenario;
pub mod world;

pub use scenario::{Crash, Family, Scenario};
pub use world::{Failure, Report, run};
