//! Fakes of clouds, for tests: one state machine of volumes, spoken to in the dialect of each cloud over HTTP on loopback.
//!
//! # Fault model
//! - Changes take as long as [`Settings`] says, by the clock of the test.
//! - A new volume may not be described for a while, and listings and described states may lag behind ([`Settings::blind`],
//!   [`Settings::listing_lag`], [`Settings::state_lag`]).
//! - The next volume may fail, a device name may hang, a right may be missing, an account has limits. EC2 takes a volume back whose key
//!   may not be used.
//! - Azure changes a machine once at a time, and changes a disk that is made a second time, unless it has conditions. A disk that could not be
//!   attached may stay in the model of its machine.
//! - An operation of Compute Engine may fail after it was accepted, be unknown for a while, take long, and be forgotten.
//! - A call may meet a [`Fault`], by script or by chance.
//! - Whatever is described is true otherwise.

pub mod azure;
mod cloud;
mod dialect;
pub mod ec2;
mod fake;
mod faults;
pub mod gce;
mod server;
mod signature;
mod tokens;

pub use azure::FakeAzure;
pub use cloud::Settings;
pub use dialect::Dialect;
pub use ec2::{FakeEc2, Sent};
pub use fake::Fake;
pub use faults::{Fault, Faults};
pub use gce::FakeGce;
