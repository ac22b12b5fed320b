//! The provisioning service of a guest, on the host: hot-plugs volumes into it when its daemon asks, as a cloud would.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use surgetank_model::{Bandwidth, Iops};
use surgetank_provider::qemu::QemuConfig;
use surgetank_provider::service::Service;
use surgetank_provider::service::secret::Secret;
use surgetank_provider::{Provider, ProviderConfig};

/// Where a guest sees the host's loopback.
const HOST_IN_GUEST: &str = "10.0.2.2";

/// What QEMU holds a rented volume to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Reads and writes together.
    pub bandwidth: Bandwidth,
    /// The same for requests; `None`: any number.
    pub iops: Option<Iops>,
}

impl From<Bandwidth> for Limits {
    fn from(bandwidth: Bandwidth) -> Self {
        Self { bandwidth, iops: None }
    }
}

/// A running service; dropping it ends it.
#[derive(Debug)]
pub struct Provisioning {
    /// Where the guest's daemon reaches it.
    pub url: String,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Provisioning {
    /// Serves a guest whose monitor listens, or will listen, at `qmp`. Volumes are files in a directory, and those of the
    /// type `fast` have these limits; the token is made in a file that the guest can read.
    ///
    /// # Errors
    /// If the provider or the service cannot be started.
    pub fn start(qmp: &Path, volumes: &Path, token: &Path, fast: impl Into<Limits>) -> anyhow::Result<Self> {
        Self::serve(provider(qmp, volumes, fast)?, token)
    }

    /// The same with any provider.
    ///
    /// # Errors
    /// If the service cannot be started.
    pub fn serve(provider: Arc<dyn Provider>, token: &Path) -> anyhow::Result<Self> {
        let secret = Secret::read_or_make(token).map_err(anyhow::Error::msg)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let service = Service::bind(address, provider, secret).context("cannot listen on the loopback")?;
        let url = format!("http://{HOST_IN_GUEST}:{}", service.address()?.port());
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            // Ends when the sender is dropped.
            let _ = service.serve(move || {
                let _ = stopped.recv();
            });
        });
        Ok(Self { url, stop: Some(stop), thread: Some(thread) })
    }
}

/// The provider of the volumes that a guest rents: files in a directory, those of the type `fast` with these limits.
///
/// # Errors
/// If the directory cannot be used.
pub fn provider(qmp: &Path, volumes: &Path, fast: impl Into<Limits>) -> anyhow::Result<Arc<dyn Provider>> {
    let (fast, mut config) = (fast.into(), QemuConfig::new(qmp, volumes));
    config.types.entry("fast".to_owned()).and_modify(|kind| {
        kind.bandwidth = fast.bandwidth;
        kind.iops = fast.iops;
    });
    config.open(None).context("cannot open the provider of volumes")
}

impl Drop for Provisioning {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
