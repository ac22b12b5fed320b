//! The elastic block cache engine, sans-IO.
//!
//! [`Engine`] is fed requests and completions with the time and polled for [`Effect`]s; it never touches bytes,
//! clocks or randomness. The daemon's shard and the simulator drive the same type.

pub mod effect;
pub mod engine;
pub mod format;
mod index;
pub mod io;
pub mod planted;
mod ranges;
pub mod replay;
mod space;

pub use effect::{
    BufferId, Effect, EffectId, IoFailure, Outcome, Owner, Rejected, ReplyError, ScratchId, Slice, Target,
};
pub use engine::{Attach, CacheMode, Config, Engine, EngineStage, Event, Status};
pub use format::Epoch;
pub use surgetank_model::ReadFill;
