//! The life of a rented volume: from the intent to create it until its deletion is certain. Pure: fed with the controller's
//! steps, with answers, engine events and the time, and polled for what is to be done.
//!
//! - [`rental`]: the state machine of one volume;
//! - [`rentals`]: all volumes that one device rents at once;
//! - [`array`](mod@array): the volumes of an array, whose members are replaced while it serves;
//! - [`read_cache`]: the volumes of a read cache, any of which may vanish;
//! - [`ask`]: its contract with the driver (the daemon's reconciler or the simulator);
//! - [`record`]: what is durable about a rental;
//! - [`mapping`]: where the kernel sends the requests of a device that it maps itself, and when that changes;
//! - [`owner`]: where the newest data is, and in which order that is written down;
//! - [`resume`]: where a device goes on after a crash;
//! - [`stripe`]: several volumes of a provider that are rented as one;
//! - [`sweep`]: which volumes nobody knows of any more;
//! - [`reap`]: which volumes of an account have no machine any more.
//!
//! Absent on purpose: any provider call, any clock, any file, any byte of data.

pub mod array;
pub mod ask;
pub mod mapping;
pub mod owner;
pub mod planted;
pub mod read_cache;
pub mod reap;
pub mod record;
pub mod rental;
pub mod rentals;
#[cfg(test)]
mod rented;
pub mod resume;
pub mod stripe;
pub mod sweep;

pub use ask::{Answer, Ask, AskId, Call, Command, Label, Obstacle, Opened, Opening, Presence, VolumeAsk};
pub use mapping::{Found, Map, Mapping};
pub use owner::{OwnerRecord, OwnerWrite, OwnerWriter};
pub use record::{RentalRecord, RentalStage, Slot};
pub use rental::{Config, Ended, Notice, Rental};
pub use rentals::Rentals;
