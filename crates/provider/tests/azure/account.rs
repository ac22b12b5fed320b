//! An account of the fake Azure.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::{FakeAzure, Faults, Settings};
use surgetank_provider::{AzureConfig, AzureProvider, CreateVolume, DiskIdentity, ManualClock, VolumeId, tag};

use crate::faked::{self, Fake};

pub type Account = faked::Account<FakeAzure>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<FakeAzure>(owner)
}

/// One with its token as a tag, as the daemon sets it.
pub fn request_with_token(owner: &str) -> CreateVolume {
    let mut wanted = request(owner);
    wanted.tags.insert(tag::TOKEN.to_owned(), wanted.token.clone());
    wanted
}

// Inherent functions come before those of a trait, so none of these calls itself.
impl Fake for FakeAzure {
    type Config = AzureConfig;
    type Provider = AzureProvider;

    const TYPE: &'static str = "premium-ssd";
    const REFUSED: &'static str = "refuses a token";
    const EPOCHS: [&'static str; 2] = ["0", "1"];

    fn start(clock: Arc<ManualClock>, settings: Settings) -> Self {
        Self::start(clock, settings)
    }

    fn config(&self) -> AzureConfig {
        AzureConfig {
            endpoint: Some(self.url()),
            metadata_url: self.url(),
            login_url: self.url(),
            grow_in_place: true,
            timeout: Span(Duration::from_secs(10)),
            reads_per_s: 1_000_000,
            writes_per_s: 1_000_000,
            ..AzureConfig::default()
        }
    }

    fn open(config: AzureConfig, clock: Arc<ManualClock>) -> AzureProvider {
        AzureProvider::open_at(config, clock).unwrap()
    }

    fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        self.faults(change)
    }

    fn settle(&self) {
        self.settle();
    }

    fn volumes(&self) -> usize {
        self.disks()
    }

    fn fail_next(&self) {
        self.fail_next();
    }

    fn deny(&self, call: &'static str, is_denied: bool) {
        self.deny(call, is_denied);
    }

    fn disk(&self, id: &VolumeId) -> DiskIdentity {
        DiskIdentity::Lun(self.attached()[&id.0])
    }
}
