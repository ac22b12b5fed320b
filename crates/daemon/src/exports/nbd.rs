//! An NBD server: it is up from the start and goes down with its front.

use std::path::Path;
use std::sync::Arc;

use surgetank_device::Front;
use surgetank_device::front::nbd::{Credentials, Limits, NbdConfig, NbdFront};

use super::{Export, Opened, Opening};
use crate::device::Until;
use crate::places;

struct Nbd {
    address: String,
    tls: Option<Credentials>,
}

pub(super) fn open(Opening { export, config, .. }: Opening<'_>) -> Result<Opened, String> {
    config.socket.parent().map_or(Ok(()), places::make)?;
    let name = export.name.clone();
    let tls = config.certificates().map(Credentials::load).transpose().map_err(|error| error.to_string())?;
    let front = NbdFront::open(NbdConfig {
        export,
        unix: Some(config.socket.clone()),
        tcp: config.nbd_tcp.as_ref().map(|tcp| tcp.listen),
        tls: tls.clone(),
        limits: Limits::default(),
    })
    .map_err(|error| error.to_string())?;
    match front.tcp_address() {
        Some(address) if tls.is_some() => tracing::info!(device = name, "listening for NBD over TLS on {address}"),
        Some(address) => tracing::warn!(
            device = name,
            "every user of this machine may open this device: it listens on {address} without TLS"
        ),
        None => {}
    }
    let address = front.address();
    Ok(Opened { front: Box::new(front), kind: "nbd", export: Arc::new(Nbd { address, tls }) })
}

pub(super) fn check_certificates(directory: &Path) -> Result<(), String> {
    Credentials::load(directory).map(drop).map_err(|error| error.to_string())
}

impl Export for Nbd {
    fn address(&self) -> Result<String, String> {
        Ok(self.address.clone())
    }

    fn reload_certificates(&self) -> Result<bool, String> {
        let Some(credentials) = &self.tls else { return Ok(false) };
        credentials.reload().map(|()| true).map_err(|error| error.to_string())
    }

    fn close(&self, _device: &str, _until: Until) {}
}
