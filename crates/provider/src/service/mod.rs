//! The provisioning service of a host: any provider over HTTP. A guest's client is [`crate::host`].

#[cfg(feature = "service")]
mod connections;
#[cfg(feature = "service")]
mod peer;
pub mod secret;
#[cfg(feature = "service")]
mod server;
pub mod tls;
pub mod wire;

use std::net::IpAddr;

pub use secret::Secret;
#[cfg(feature = "service")]
pub use server::{Service, converse};

/// Whether an address is reached from this machine or a private link alone (RFC 1918, 3927, 4193, 4291).
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
