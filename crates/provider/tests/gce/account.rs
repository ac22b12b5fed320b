//! An account of the fake Compute Engine.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::FakeGce;
use surgetank_provider::fakes::gce::Gce;
use surgetank_provider::{CreateVolume, DiskIdentity, GceConfig, GceProvider, ManualClock, VolumeId};

use crate::faked::{self, Cloud};

pub type Account = faked::Account<Gce>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<Gce>(owner)
}

impl Cloud for Gce {
    type Config = GceConfig;
    type Provider = GceProvider;

    const TYPE: &'static str = "pd-ssd";
    const REFUSED: &'static str = "refuses a token";
    const EPOCHS: [&'static str; 2] = ["0", "1"];

    fn config(fake: &FakeGce) -> GceConfig {
        GceConfig {
            endpoint: Some(fake.url()),
            metadata_url: fake.url(),
            grow_in_place: true,
            timeout: Span(Duration::from_secs(10)),
            reads_per_s: 1_000_000,
            writes_per_s: 1_000_000,
            ..GceConfig::default()
        }
    }

    fn open(config: GceConfig, clock: Arc<ManualClock>) -> GceProvider {
        GceProvider::open_at(config, clock).unwrap()
    }

    fn disk(_: &FakeGce, id: &VolumeId) -> DiskIdentity {
        DiskIdentity::Name(id.0.clone())
    }
}
