//! A provisioning service that is stopped when it is dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::service::Secret;
use surgetank_provider::service::Service;
use surgetank_provider::service::tls::Credentials;
use surgetank_provider::{HostConfig, HostProvider, Provider};
use tempfile::TempDir;

/// How long anything may take before a test fails: far more than it ever does.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Served {
    pub address: SocketAddr,
    /// Holds the token.
    pub directory: TempDir,
    stop: Option<mpsc::Sender<()>>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    pub fn start(provider: Arc<dyn Provider>, address: &str, tls: Option<Credentials>) -> Self {
        let directory = TempDir::new().unwrap();
        let secret = Secret::read_or_make(&directory.path().join("token")).unwrap();
        let mut service = Service::bind(address.parse().unwrap(), provider, secret).unwrap();
        if let Some(credentials) = tls {
            service = service.with_tls(credentials);
        }
        let address = service.address().unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        let serving = std::thread::spawn(move || {
            service.serve(move || {
                let _ = stopped.recv();
            })
        });
        Self { address, directory, stop: Some(stop), serving: Some(serving) }
    }

    pub fn token_file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    pub fn client(&self, scheme: &str, ca_file: Option<PathBuf>) -> HostProvider {
        let config = with_timeout(format!("{scheme}://{}", self.address), self.token_file());
        HostProvider::open(HostConfig { ca_file, ..config }).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let served = self.serving.take().unwrap().join();
        if !std::thread::panicking() {
            served.unwrap().unwrap();
        }
    }
}

/// A client that waits longer than anything takes.
pub fn with_timeout(url: String, token_file: PathBuf) -> HostConfig {
    HostConfig { timeout: Span(TIMEOUT), ..HostConfig::new(url, token_file) }
}
