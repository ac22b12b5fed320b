//! Live drivers of the pure crates: each elastic device has a thread that moves its bytes ([`shard`]), one that runs
//! its controller and the rental of its caching volume ([`reconciler`], [`lifecycle`]) and one that persists where its newest data is ([`owner`]).
//!
//! [`Daemon::start`] runs all devices of a [`Config`] in this process; [`Client`] talks to a daemon elsewhere.

mod absence;
pub mod accounting;
#[cfg(test)]
mod adoption;
#[cfg(test)]
mod allocations;
pub mod arrays;
pub mod boot;
mod buffers;
pub mod clock;
pub mod config;
pub mod control;
mod crash;
pub mod credits;
mod daemon;
mod device;
mod effects;
pub mod exports;
mod files;
mod ground;
pub mod healed;
pub mod history;
mod identity;
pub mod journal;
mod kernel_statistics;
mod lifecycle;
pub mod link;
mod losses;
mod members;
pub mod opening;
mod outlook;
pub mod owner;
pub mod places;
mod planted;
mod providers;
pub mod provisioning;
pub mod read_caches;
pub mod reaping;
mod reconciler;
pub mod shard;
mod shared;
mod starting;
mod state_directory;
pub mod status;
pub mod striped;
pub mod sweep;
mod switching;
pub mod systemd;
mod timed;
pub mod toml_error;

pub use arrays::offline::OfflineArrays;
pub use config::{Config, ConfigError, Sockets};
pub use control::{Client, ClientError, Request};
pub use daemon::{Daemon, Overrides, StartError, WeakDaemon, accept_loss_offline};
pub use exports::check_certificates;
pub use outlook::Outlook;
pub use status::{DevicePhase, DeviceReport, DeviceStatus, StatusReport};
