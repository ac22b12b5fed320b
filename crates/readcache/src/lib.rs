//! A long-lived write-through read cache over a slow volume, sans-IO.
//!
//! [`Engine`] is fed requests and completions and polled for [`Effect`]s, as the engine of the write-back cache is; it never
//! touches bytes, clocks or randomness. The backing volume has everything, always: whatever becomes of a member, the backing
//! volume answers.
//!
//! - [`placement`]: which blocks are cached, and which go next; [`simulated`]: the same for curves, without I/O.
//! - [`engine`]: requests, fills, segments, members.
//! - [`io`]: which I/O an effect is, for every driver.

mod changes;
pub mod effect;
pub mod engine;
pub mod io;
pub mod placement;
pub mod planted;
pub mod simulated;

pub use effect::{Effect, MemberId, Outcome, Rejected, RequestError, Target};
pub use engine::{Config, Engine, Event, Status};
pub use simulated::Simulated;
