//! Where the newest data of a device is: the owner record in the state directory and the tag on the caching volume.
//!
//! The order is what makes them safe. Before anything is dirty: tag, then record. Once nothing is: record, then tag.
//! So a volume without the tag holds nothing, and a record that says `Backing` is always right.
//!
//! A record of a loss lists what was lost when it was written; [`crate::healed`] says what was healed since. It may be
//! long: its ranges are in memory only while it is read or written.

mod keeper;
mod record;
mod store;

pub use keeper::{Entry, Keeper, KeeperHandle};
pub use record::{OwnerRecord, parse_epoch};
pub use store::OwnerStore;
