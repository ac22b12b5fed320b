//! An account of the fake Compute Engine.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::{FakeGce, Faults, Settings};
use surgetank_provider::{CreateVolume, DiskIdentity, GceConfig, GceProvider, ManualClock, VolumeId};

use crate::faked::{self, Fake};

pub type Account = faked::Account<FakeGce>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<FakeGce>(owner)
}

// Inherent functions come before those of a trait, so none of these calls itself.
impl Fake for FakeGce {
    type Config = GceConfig;
    type Provider = GceProvider;

    const TYPE: &'static str = "pd-ssd";
    const REFUSED: &'static str = "refuses a token";
    const EPOCHS: [&'static str; 2] = ["0", "1"];

    fn start(clock: Arc<ManualClock>, settings: Settings) -> Self {
        Self::start(clock, settings)
    }

    fn config(&self) -> GceConfig {
        GceConfig {
            endpoint: Some(self.url()),
            metadata_url: self.url(),
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
        DiskIdentity::Name(id.0.clone())
    }
}
