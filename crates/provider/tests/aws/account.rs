//! An account of the fake EC2.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::fakes::FakeEc2;
use surgetank_provider::fakes::ec2::Ec2;
use surgetank_provider::{AwsConfig, AwsProvider, CreateVolume, DiskIdentity, ManualClock, VolumeId};

use crate::faked::{self, Cloud};

/// The type that is rented.
pub const TYPE: &str = "gp3";

pub type Account = faked::Account<Ec2>;

pub fn request(owner: &str) -> CreateVolume {
    faked::request::<Ec2>(owner)
}

impl Cloud for Ec2 {
    type Config = AwsConfig;
    type Provider = AwsProvider;

    const TYPE: &'static str = TYPE;
    const REFUSED: &'static str = "does not accept the credentials";
    const EPOCHS: [&'static str; 2] = ["e", "e"];

    fn config(fake: &FakeEc2) -> AwsConfig {
        AwsConfig {
            endpoint: Some(fake.url()),
            metadata_url: fake.url(),
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

    fn disk(_: &FakeEc2, id: &VolumeId) -> DiskIdentity {
        DiskIdentity::Serial(id.0.replace('-', ""))
    }
}
