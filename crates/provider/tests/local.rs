//! The contract, on the local provider and on the decorator over it.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::{Clock, Fault, FaultRates, Faulty, LocalConfig, LocalProvider, ManualClock, Provider, Verb};
use tempfile::TempDir;

/// A local provider whose clock moves when the contract waits.
struct Local {
    directory: TempDir,
    clock: Arc<ManualClock>,
    latency: Span,
    decorate: fn(LocalProvider, Arc<dyn Clock>) -> Arc<dyn Provider>,
}

impl Local {
    fn new(latency_ms: u64, decorate: fn(LocalProvider, Arc<dyn Clock>) -> Arc<dyn Provider>) -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            clock: Arc::new(ManualClock::at_ms(1_700_000_000_000)),
            latency: Span(Duration::from_millis(latency_ms)),
            decorate,
        }
    }
}

impl Subject for Local {
    fn open(&self) -> Arc<dyn Provider> {
        (self.decorate)(self.local(), self.clock.clone())
    }

    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        let faulty = Faulty::new(self.local(), self.clock.clone());
        faulty.script(Verb::Create, Fault::Fails);
        Some(Arc::new(faulty))
    }

    fn pass_time(&self) {
        self.clock.advance(Duration::from_millis(100));
    }

    fn rentable(&self) -> (String, Bytes) {
        ("fast".to_owned(), Bytes::from_mib(1))
    }
}

impl Local {
    fn local(&self) -> LocalProvider {
        let config = LocalConfig {
            create_latency: self.latency,
            attach_latency: self.latency,
            detach_latency: self.latency,
            delete_latency: self.latency,
            ..LocalConfig::in_directory(self.directory.path())
        };
        LocalProvider::open(config, self.clock.clone()).unwrap()
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

/// Clouds may not know a volume for a while, and their listings may be from before: the contract allows for both.
#[test]
fn contract_of_a_provider_that_lags() {
    contract::run(&Local::new(1000, |local, clock| {
        let unknown_for = Span(Duration::from_secs(3));
        let rates = FaultRates { unknown: 0.5, unknown_for, stale: 0.3, ..FaultRates::default() };
        Arc::new(Faulty::new(local, clock).with_rates(rates))
    }));
}

#[test]
fn contract_through_a_decorator_that_does_nothing() {
    contract::run(&Local::new(1000, |local, clock| {
        Arc::new(Faulty::new(local, clock).with_rates(FaultRates::default()))
    }));
}
