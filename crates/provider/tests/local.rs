//! The contract, on the local provider and on the decorators over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::{Clock, FaultRates, Faulty, LocalConfig, LocalProvider, ManualClock, Provider, Recording};
use tempfile::TempDir;

/// A local provider whose clock moves when the contract waits.
struct Local {
    directory: TempDir,
    clock: Arc<ManualClock>,
    latency: Span,
    decorate: fn(LocalProvider, Arc<dyn Clock>) -> Arc<dyn Provider>,
    nonces: AtomicU64,
}

impl Local {
    fn new(latency_ms: u64, decorate: fn(LocalProvider, Arc<dyn Clock>) -> Arc<dyn Provider>) -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            clock: Arc::new(ManualClock::at_ms(1_700_000_000_000)),
            latency: Span(Duration::from_millis(latency_ms)),
            decorate,
            nonces: AtomicU64::new(0),
        }
    }
}

impl Subject for Local {
    fn open(&self) -> Arc<dyn Provider> {
        let config = LocalConfig {
            create_latency: self.latency,
            attach_latency: self.latency,
            detach_latency: self.latency,
            delete_latency: self.latency,
            ..LocalConfig::in_directory(self.directory.path())
        };
        (self.decorate)(LocalProvider::open(config, self.clock.clone()).unwrap(), self.clock.clone())
    }

    fn pass_time(&self) {
        self.clock.advance(Duration::from_millis(100));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(1))
    }

    fn nonce(&self) -> String {
        format!("run-{}", self.nonces.fetch_add(1, Ordering::Relaxed))
    }
}

#[test]
fn contract_at_once() {
    contract::run(&Local::new(0, |local, _| Arc::new(local)));
}

#[test]
fn contract_with_latency() {
    contract::run(&Local::new(1000, |local, _| Arc::new(local)));
}

#[test]
fn contract_through_decorators_that_do_nothing() {
    contract::run(&Local::new(1000, |local, clock| {
        Arc::new(Recording::new(Faulty::new(local, clock).with_rates(FaultRates::default())))
    }));
}
