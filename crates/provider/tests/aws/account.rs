//! An account of the fake EC2.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::{FakeEc2, Faults, Settings};
use surgetank_provider::{AwsConfig, AwsProvider, CreateVolume, DiskIdentity, ManualClock, VolumeId};

use crate::faked::{self, Fake};

/// The type that is rented.
pub const TYPE: &str = "gp3";

pub type Account = faked::Account<FakeEc2>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<FakeEc2>(owner)
}

// Inherent functions come before those of a trait, so none of these calls itself.
impl Fake for FakeEc2 {
    type Config = AwsConfig;
    type Provider = AwsProvider;

    const TYPE: &'static str = TYPE;
    const REFUSED: &'static str = "does not accept the credentials";
    const EPOCHS: [&'static str; 2] = ["e", "e"];

    fn start(clock: Arc<ManualClock>, settings: Settings) -> Self {
        Self::start(clock, settings)
    }

    fn config(&self) -> AwsConfig {
        AwsConfig {
            endpoint: Some(self.url()),
            metadata_url: self.url(),
            grow_in_place: true,
            timeout: Span(Duration::from_secs(10)),
            reads_per_s: 1_000_000,
            writes_per_s: 1_000_000,
            ..AwsConfig::default()
        }
    }

    fn open(config: AwsConfig, clock: Arc<ManualClock>) -> AwsProvider {
        AwsProvider::open_at(config, clock).unwrap()
    }

    fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        self.faults(change)
    }

    fn settle(&self) {
        self.settle();
    }

    fn volumes(&self) -> usize {
        self.volumes()
    }

    fn fail_next(&self) {
        self.fail_next();
    }

    fn deny(&self, call: &'static str, is_denied: bool) {
        self.deny(call, is_denied);
    }

    fn disk(&self, id: &VolumeId) -> DiskIdentity {
        DiskIdentity::Serial(id.0.replace('-', ""))
    }
}
