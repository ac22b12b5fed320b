//! An array of volumes, sans-IO: a stripe over members, and the replacement of a member while the array serves.
//!
//! [`Engine`] is fed requests and completions with the time and polled for [`Effect`]s, as the cache's is; it never touches
//! bytes, clocks or randomness. [`assemble`] decides from what was read of a set of volumes what an engine may serve.
//!
//! - [`format`](mod@format): what is on a member, and why; [`geometry`]: where each byte of the array is.
//! - [`assembly`]: whole, degraded or refused, with the remedy; [`create`] makes the first superblocks.
//! - [`engine`]: requests, the copy to a joining member, changes of membership.
//! - [`io`]: which I/O an effect is, for every driver.

pub mod assembly;
mod bitmap;
pub mod create;
pub mod effect;
pub mod engine;
pub mod format;
pub mod geometry;
pub mod io;
pub mod planted;
mod port;

pub use assembly::{Assembly, Device, Plan, Reason, assemble};
pub use bitmap::Said;
pub use create::{Creation, Options, Regions, create};
pub use effect::{Effect, Outcome, Rejected, Slices, Target};
pub use engine::{Config, Ended, Engine, Event, HURRIED_SHARE, Join, Single, SlotStatus, Status, is_single};
pub use format::{ArrayId, MemberId};
pub use geometry::Geometry;
