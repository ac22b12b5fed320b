//! Any provider over HTTP: the provisioning service on a host, and its client in a guest.

pub mod client;
pub mod secret;
#[cfg(feature = "service")]
pub mod service;
pub mod wire;

pub use client::{RemoteConfig, RemoteProvider};
