//! Names, files and groups as keys of a store with transactions, and every operation on them.
//!
//! Managers have no state of their own: each operation reads what it needs, and commits one [`Transaction`] that holds only if what
//! it read is still so. Whichever manager is asked, and however many there are, the operations take place one after the other, in
//! the order of the store's revisions.
//!
//! - [`key`], [`value`]: what is in the store;
//! - [`store`]: the contract of a store, and the one that tests and simulations use;
//! - [`lookup`]: what is at a path;
//! - [`operation`]: what clients and drains ask for, as transactions;
//! - [`known`]: what was read before, from which creations are attempted;
//! - [`group`]: several requests in one transaction, and outcomes that nobody heard of.

pub mod group;
pub mod key;
pub mod known;
pub mod lookup;
pub mod operation;
pub mod store;
pub mod value;

pub use group::{CommitId, GroupCommit, RequestId};
pub use key::{Key, Name, Prefix, Role};
pub use known::Known;
pub use operation::{Attempt, Operation, Reads, Refusal, attempt};
pub use store::{Compare, Outcome, Stored, Transaction, Write};
pub use value::{Durability, FileState, Group, Kind, Node, Value};
