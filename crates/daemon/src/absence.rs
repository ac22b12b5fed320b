//! Whether a volume is there, of a provider that may not know one for a while.

use std::time::Duration;

use surgetank_model::{Absence, Lag};
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeId};

use crate::clock::Clock;

/// How long it is until a volume that is not known is asked for again, at most.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How much longer than the provider may lag is waited for certainty: its answers may be too slow to come as often as is needed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the provider says of a volume; `None`: it is certain that there is none, which may take as long as [`Provider::lag`] says. The
/// longer of its times counts, since nobody knows when the volume was made.
///
/// # Errors
/// Those of [`Provider::describe`], but for `NotFound`; `Transient` if it is not certain in that time and a little more.
pub fn look(provider: &dyn Provider, id: &VolumeId, clock: Clock) -> Result<Option<VolumeDescription>, ProviderError> {
    look_for(PATIENCE, provider, id, clock)
}

/// What the provider says of a volume at the moment.
///
/// # Errors
/// Those of [`Provider::describe`], but for `NotFound`.
pub fn look_once(provider: &dyn Provider, id: &VolumeId) -> Result<Option<VolumeDescription>, ProviderError> {
    match provider.describe(id) {
        Err(ProviderError::NotFound(_)) => Ok(None),
        described => described.map(Some),
    }
}

fn look_for(
    patience: Duration,
    provider: &dyn Provider,
    id: &VolumeId,
    clock: Clock,
) -> Result<Option<VolumeDescription>, ProviderError> {
    let longest = provider.lag().longest();
    let pause = Lag { created: longest, known: longest }.look_every().map_or(LOOK_AGAIN, |most| LOOK_AGAIN.min(most));
    let (mut absence, until) = (Absence::default(), clock.now() + longest + patience);
    loop {
        if let Some(description) = look_once(provider, id)? {
            return Ok(Some(description));
        }
        let now = clock.now();
        if absence.is_believed(now, longest) {
            return Ok(None);
        }
        if now >= until {
            let VolumeId(id) = id;
            return Err(ProviderError::Transient(format!(
                "the provider does not know the volume {id}, and answers too slowly to be certain of that"
            )));
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use surgetank_model::Bytes;
    use surgetank_provider::{Change, CreateVolume, Home, Tags, Transition, VolumeState};

    use super::*;

    /// Knows its volume from the n-th look on, and takes a while for each.
    struct Lagging {
        lag: Lag,
        known_from: u32,
        takes: Duration,
        looks: AtomicU32,
    }

    impl Lagging {
        fn new(lag_ms: [u64; 2], known_from: u32, takes_ms: u64) -> Self {
            let [created, known] = lag_ms.map(Duration::from_millis);
            let takes = Duration::from_millis(takes_ms);
            Self { lag: Lag { created, known }, known_from, takes, looks: AtomicU32::new(0) }
        }

        /// Whether it is there, and how often it was looked for.
        fn looked(&self, patience: Duration) -> (Result<bool, ProviderError>, u32) {
            let found = look_for(patience, self, &VolumeId("a".to_owned()), Clock::start());
            (found.map(|found| found.is_some()), self.looks.load(Ordering::Relaxed))
        }
    }

    impl Provider for Lagging {
        fn home(&self) -> Home {
            Home::Disks
        }
        fn create_is_exclusive(&self) -> bool {
            true
        }
        fn create(&self, _: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
            Err(ProviderError::Quota("none".to_owned()))
        }
        fn change_state(&self, _: &VolumeId, _: Transition) -> Result<Change, ProviderError> {
            Ok(Change::Identity)
        }
        fn lag(&self) -> Lag {
            self.lag
        }
        fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
            std::thread::sleep(self.takes);
            if self.looks.fetch_add(1, Ordering::Relaxed) + 1 < self.known_from {
                return Err(ProviderError::NotFound(id.clone()));
            }
            let (id, volume_type, size) = (id.clone(), "fast".to_owned(), Bytes::from_gib(1));
            let (state, tags, members) = (VolumeState::Available, Tags::new(), Vec::new());
            Ok(VolumeDescription { id, state, volume_type, size, tags, device: None, disk: None, members })
        }
        fn list(&self, _: &str, _: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
            Ok(Vec::new())
        }
        fn set_tag(&self, _: &VolumeId, _: &str, _: Option<&str>) -> Result<Change, ProviderError> {
            Ok(Change::Identity)
        }
    }

    #[test]
    fn a_volume_is_looked_for_as_long_as_the_provider_may_not_know_it() {
        let (found, looks) = Lagging::new([0, 0], u32::MAX, 0).looked(PATIENCE);
        assert_eq!((found, looks), (Ok(false), 1), "the word of a provider that does not lag counts at once");
        assert_eq!(Lagging::new([400, 400], 3, 0).looked(PATIENCE).0, Ok(true));
        let (found, looks) = Lagging::new([600, 0], u32::MAX, 0).looked(PATIENCE);
        assert!(found == Ok(false) && looks > 2, "{looks}");
    }

    #[test]
    fn a_provider_that_answers_too_slowly_to_be_certain_is_not_waited_for_for_ever() {
        let (found, _) = Lagging::new([20, 20], u32::MAX, 30).looked(Duration::from_millis(100));
        assert!(matches!(found, Err(ProviderError::Transient(_))), "{found:?}");
    }
}
