//! Vocabulary of surgetank: units, virtual time, volume types, requests, observations, costs.
//!
//! This crate is pure: no I/O, no clock, no randomness of its own.

pub mod absence;
pub mod account;
pub mod bucket;
pub mod catalog;
pub mod cost;
pub mod credits;
pub mod effect;
pub mod event_queue;
pub mod flushes;
pub mod in_place;
pub mod observation;
mod planted;
pub mod random;
pub mod request;
pub mod text;
pub mod time;
pub mod toml_error;
pub mod units;
pub mod volume;
pub mod volume_type;

pub use absence::{Absence, Lag};
pub use bucket::{Limits, TokenBucket};
pub use catalog::Catalog;
pub use credits::Balance;
pub use event_queue::EventQueue;
pub use flushes::{FlushEnd, FlushRequest, Flushes};
pub use in_place::InPlace;
pub use observation::Observation;
pub use request::{BufferRange, ClientId, Operation, ReadFill, Request, RequestId};
pub use time::Instant;
pub use units::{Bandwidth, Bytes, Iops};
pub use volume_type::VolumeType;

pub use std::time::Duration;
