//! The NBD protocol: [`wire`], its numbers and messages, for servers and clients; [`Client`], one request at a time.
//!
//! Source: NBD (`docs/REFERENCES.md`).

mod client;
pub mod wire;

pub use client::Client;
