//! The contract, on the local provider and on the decorator over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::{
    Change, Clock, CreateVolume, Fault, FaultRates, Faulty, Home, Lag, LocalConfig, LocalProvider, ManualClock,
    Provider, ProviderError, Transition, Verb, VolumeDescription, VolumeId, tag,
};
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

/// Creations so far of all providers that are not exclusive.
static CREATIONS: AtomicU32 = AtomicU32::new(0);

/// Makes a volume for each creation that does not find one of its token, as clouds do that know no tokens.
struct Cloud(LocalProvider);

impl Provider for Cloud {
    fn home(&self) -> Home {
        self.0.home()
    }

    fn create_is_exclusive(&self) -> bool {
        false
    }

    fn lag(&self) -> Lag {
        self.0.lag()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let found = self.0.list(tag::TOKEN, &request.token)?.into_iter().min_by(|one, other| one.id.cmp(&other.id));
        let Some(found) = found.filter(|_| !request.token.is_empty()) else {
            // Whoever asks at the same time finds none, either.
            std::thread::sleep(Duration::from_millis(5));
            let own = |token: &String| format!("{token}-{}", CREATIONS.fetch_add(1, Ordering::Relaxed));
            let token = Some(&request.token).filter(|token| !token.is_empty()).map(own).unwrap_or_default();
            return self.0.create(&CreateVolume { token, ..request.clone() });
        };
        if (&found.volume_type, found.size) != (&request.volume_type, request.size) {
            return Err(ProviderError::Invalid("the token is that of another volume".to_owned()));
        }
        Ok((found, Change::Identity))
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.0.change_state(id, transition)
    }

    fn grows(&self) -> bool {
        self.0.grows()
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        self.0.grow(id, size)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.0.describe(id)
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.0.list(key, value)
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.0.set_tag(id, key, value)
    }
}

#[test]
fn contract_of_a_provider_that_makes_two_volumes_of_one_token() {
    contract::run(&Local::new(1000, |local, _| Arc::new(Cloud(local))));
}

#[test]
fn contract_through_a_decorator_that_does_nothing() {
    contract::run(&Local::new(1000, |local, clock| {
        Arc::new(Faulty::new(local, clock).with_rates(FaultRates::default()))
    }));
}
