//! An account of the fake Compute Engine, whose clock moves when a test says so.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::Subject;
use surgetank_provider::fakes::{FakeGce, Settings};
use surgetank_provider::{
    CreateVolume, GceConfig, GceProvider, ManualClock, Provider, ProviderError, Tags, VolumeDescription, VolumeId,
    VolumeState, tag,
};

/// The type that is rented.
pub const TYPE: &str = "pd-ssd";
/// When the clock starts: tokens have times.
const START_MS: u64 = 1_795_859_878_000;
/// How much time passes between two looks.
pub const STEP: Duration = Duration::from_millis(500);
/// How often a test looks before it stops waiting.
pub const LOOKS_MAX: u32 = 1000;

pub struct Account {
    pub fake: FakeGce,
    pub clock: Arc<ManualClock>,
}

impl Account {
    pub fn new(settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at_ms(START_MS));
        Self { fake: FakeGce::start(clock.clone(), settings), clock }
    }

    pub fn config(&self) -> GceConfig {
        GceConfig {
            endpoint: Some(self.fake.url()),
            metadata_url: self.fake.url(),
            grow_in_place: true,
            timeout: Span(Duration::from_secs(10)),
            reads_per_s: 1_000_000,
            writes_per_s: 1_000_000,
            ..GceConfig::default()
        }
    }

    pub fn open(&self) -> GceProvider {
        self.open_as(self.config())
    }

    pub fn open_as(&self, config: GceConfig) -> GceProvider {
        GceProvider::open_at(config, self.clock.clone()).unwrap()
    }

    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Waits until a volume is so.
    pub fn reaches(&self, provider: &dyn Provider, id: &VolumeId, state: VolumeState) -> VolumeDescription {
        for _ in 0..LOOKS_MAX {
            match provider.describe(id) {
                Ok(volume) if volume.state == state => return volume,
                Ok(_) | Err(ProviderError::NotFound(_)) => self.pass(STEP),
                Err(error) => panic!("{id:?} on its way to {state:?}: {error}"),
            }
        }
        panic!("{id:?} does not become {state:?}: {:?}", provider.describe(id));
    }

    /// A volume that is available.
    pub fn made(&self, provider: &dyn Provider, owner: &str) -> VolumeId {
        let id = provider.create(&request(owner)).unwrap().0.id;
        self.reaches(provider, &id, VolumeState::Available);
        id
    }

    /// One that is attached.
    pub fn attached(&self, provider: &dyn Provider, owner: &str) -> VolumeId {
        let id = self.made(provider, owner);
        provider.attach(&id).unwrap();
        self.reaches(provider, &id, VolumeState::Attached);
        id
    }
}

impl Subject for Account {
    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Account::open(self))
    }

    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        self.fake.fail_next();
        Some(Subject::open(self))
    }

    fn pass_time(&self) {
        self.pass(STEP);
    }

    fn rentable(&self) -> (String, Bytes) {
        (TYPE.to_owned(), Bytes::from_gib(10))
    }
}

/// A random name.
pub fn nonce() -> String {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn request(owner: &str) -> CreateVolume {
    let tags = Tags::from([(tag::OWNER.to_owned(), owner.to_owned())]);
    CreateVolume { token: nonce(), volume_type: TYPE.to_owned(), size: Bytes::from_gib(10), tags }
}
