//! Where the newest data of a device is: the owner record in the state directory and the tag on the caching volume.
//!
//! [`surgetank_rental::owner`] says in which order they are written.
//!
//! A record of a loss lists what was lost when it was written; [`crate::healed`] says what was healed since. It may be
//! long: its ranges are in memory only while it is read or written.

mod record;
mod store;
mod thread;

pub use record::{decode, encode};
pub use store::OwnerStore;
pub use thread::{Entry, OwnerThread, OwnerThreadHandle};
