//! The life of a volume amid faults.

use surgetank_model::random::Random;
use surgetank_provider::{
    CreateVolume, DiskIdentity, Provider, ProviderError, VolumeDescription, VolumeId, VolumeState, tag,
};

/// A life in which any call may meet a fault; the caller does as the daemon does: it asks again.
pub struct Life<'a> {
    pub provider: &'a dyn Provider,
    pub request: CreateVolume,
    /// Whether it is of no use to ask again after this error.
    pub is_final: fn(&ProviderError) -> bool,
    /// What identifies the disk of an attached volume.
    pub disk: &'a (dyn Fn(&VolumeId) -> DiskIdentity + Sync),
    /// The epochs that are written, one each time the volume is attached.
    pub epochs: [&'static str; 2],
    /// How often it looks before it stops waiting.
    pub looks_max: u32,
    /// Lets time pass between two looks.
    pub pass: &'a dyn Fn(),
}

impl Life<'_> {
    fn until<T>(&self, what: &str, mut call: impl FnMut() -> Result<T, ProviderError>) -> T {
        for _ in 0..self.looks_max {
            match call() {
                Ok(answer) => return answer,
                Err(error) if (self.is_final)(&error) => panic!("{what}: {error}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.len() < 900 && !text.contains(char::is_control), "{what}: {text}");
                    assert!(!text.contains("swordfish"), "{what}: {text}");
                    (self.pass)();
                }
            }
        }
        panic!("{what} does not come to an end");
    }

    fn create(&self) -> VolumeId {
        self.until("create", || self.provider.create(&self.request)).0.id
    }

    /// Waits until the volume is so.
    fn is(&self, id: &VolumeId, state: VolumeState) -> VolumeDescription {
        self.until("describe", || match self.provider.describe(id)? {
            volume if volume.state == state => Ok(volume),
            volume => Err(ProviderError::Transient(format!("it is {:?}", volume.state))),
        })
    }

    /// From the creation until the volume is gone.
    pub fn live(&self, random: &mut Random) {
        let provider = self.provider;
        let id = self.create();
        self.is(&id, VolumeState::Available);
        for (epoch, _) in self.epochs.into_iter().zip(0..=random.below(2)) {
            self.until("attach", || provider.attach(&id));
            let attached = self.is(&id, VolumeState::Attached);
            assert_eq!(attached.disk, Some((self.disk)(&id)));
            self.until("set_tag", || provider.set_tag(&id, tag::DIRTY_EPOCH, Some(epoch)));
            let tags = self.is(&id, VolumeState::Attached).tags;
            assert_eq!(tags.get(tag::DIRTY_EPOCH).map(String::as_str), Some(epoch));
            assert_eq!(self.create(), id, "asked again, the same volume is found, and none with data is deleted");
            self.until("set_tag", || provider.set_tag(&id, tag::DIRTY_EPOCH, None));
            self.until("detach", || self.detach(&id));
        }
        self.until("delete", || match self.detach(&id).and_then(|()| provider.delete(&id).map(drop)) {
            Err(ProviderError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(ProviderError::Transient("it is there".to_owned())),
        });
    }

    /// Detaches it as often as it takes: an attach that was asked for twice may be carried out after the detach.
    fn detach(&self, id: &VolumeId) -> Result<(), ProviderError> {
        let state = self.provider.describe(id)?.state;
        match state {
            VolumeState::Available => return Ok(()),
            VolumeState::Attached | VolumeState::Attaching => drop(self.provider.detach(id)?),
            VolumeState::Creating | VolumeState::Detaching | VolumeState::Deleting | VolumeState::Failed => {}
        }
        Err(ProviderError::Transient(format!("it is {state:?}")))
    }
}
