//! The NBD protocol: [`wire`], its numbers and messages, for servers and clients; [`Client`], one request at a time.
//!
//! Source: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

mod client;
pub mod wire;

pub use client::Client;
