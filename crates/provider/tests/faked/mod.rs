//! What the tests of clients of clouds share: an account of a fake, whose clock moves when a test says so.

pub mod behaviour;
pub mod contracts;
mod life;
mod lives;
pub mod official;
pub mod trouble;

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_provider::contract::Subject;
use surgetank_provider::fakes::{Dialect, Fake, Settings};
use surgetank_provider::{
    CreateVolume, DiskIdentity, ManualClock, Provider, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState,
    tag,
};

pub use lives::lives;

/// When the clock starts: credentials, signatures and tokens have times.
const START_MS: u64 = 1_795_859_878_000;
/// How much time passes between two looks.
pub const STEP: Duration = Duration::from_millis(500);
/// How often a test looks before it stops waiting.
const LOOKS_MAX: u32 = 1000;

/// A cloud of which there is a fake, with the provider that is its client.
pub trait Cloud: Dialect {
    type Config;
    type Provider: Provider + 'static;

    /// The type that is rented.
    const TYPE: &'static str;
    /// What the client says when its credential is refused.
    const REFUSED: &'static str;
    /// The epochs that a life writes, one each time its volume is attached.
    const EPOCHS: [&'static str; 2];

    /// The configuration of a client of a fake.
    fn config(fake: &Fake<Self>) -> Self::Config;

    fn open(config: Self::Config, clock: Arc<ManualClock>) -> Self::Provider;

    /// What identifies the disk of an attached volume.
    fn disk(fake: &Fake<Self>, id: &VolumeId) -> DiskIdentity;
}

/// An account at a fake.
pub struct Account<C> {
    pub fake: Fake<C>,
    pub clock: Arc<ManualClock>,
}

impl<C: Cloud> Account<C> {
    pub fn new(settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at_ms(START_MS));
        Self { fake: Fake::start(clock.clone(), settings), clock }
    }

    pub fn config(&self) -> C::Config {
        C::config(&self.fake)
    }

    pub fn open(&self) -> C::Provider {
        self.open_as(self.config())
    }

    pub fn open_as(&self, config: C::Config) -> C::Provider {
        C::open(config, self.clock.clone())
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
        let id = provider.create(&request::<C>(owner)).unwrap().0.id;
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

impl<C: Cloud> Subject for Account<C> {
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
        (C::TYPE.to_owned(), Bytes::from_gib(10))
    }
}

/// A random name.
fn nonce() -> String {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn request<C: Cloud>(owner: &str) -> CreateVolume {
    let tags = Tags::from([(tag::OWNER.to_owned(), owner.to_owned())]);
    CreateVolume { token: nonce(), volume_type: C::TYPE.to_owned(), size: Bytes::from_gib(10), tags }
}
