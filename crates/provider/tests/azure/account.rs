//! An account of the fake Azure.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::FakeAzure;
use surgetank_provider::fakes::azure::Azure;
use surgetank_provider::{AzureConfig, AzureProvider, CreateVolume, DiskIdentity, ManualClock, VolumeId, tag};

use crate::faked::{self, Cloud};

pub type Account = faked::Account<Azure>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<Azure>(owner)
}

/// One with its token as a tag, as the daemon sets it.
pub fn request_with_token(owner: &str) -> CreateVolume {
    let mut wanted = request(owner);
    wanted.tags.insert(tag::TOKEN.to_owned(), wanted.token.clone());
    wanted
}

impl Cloud for Azure {
    type Config = AzureConfig;
    type Provider = AzureProvider;

    const TYPE: &'static str = "premium-ssd";
    const REFUSED: &'static str = "refuses a token";
    const EPOCHS: [&'static str; 2] = ["0", "1"];

    fn config(fake: &FakeAzure) -> AzureConfig {
        AzureConfig {
            endpoint: Some(fake.url()),
            metadata_url: fake.url(),
            login_url: fake.url(),
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

    fn disk(fake: &FakeAzure, id: &VolumeId) -> DiskIdentity {
        DiskIdentity::Lun(fake.attached()[&id.0])
    }
}
