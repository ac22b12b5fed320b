//! The provider as the daemon sees it: while a volume is away, nobody gets it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use surgetank_provider::{
    Change, CreateVolume, Home, Lag, Provider, ProviderError, Transition, VolumeDescription, VolumeId,
};

/// A provider that attaches nothing during an outage.
pub struct Guarded {
    provider: Arc<dyn Provider>,
    away: Arc<AtomicBool>,
}

impl Guarded {
    /// Over this provider, as long as `away` says so.
    pub fn new(provider: Arc<dyn Provider>, away: Arc<AtomicBool>) -> Self {
        Self { provider, away }
    }
}

impl Provider for Guarded {
    fn home(&self) -> Home {
        self.provider.home()
    }

    fn create_is_exclusive(&self) -> bool {
        self.provider.create_is_exclusive()
    }

    fn lag(&self) -> Lag {
        self.provider.lag()
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        self.provider.create(request)
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        if transition == Transition::Attach && self.away.load(Ordering::SeqCst) {
            return Err(ProviderError::Transient("the storage is away".to_owned()));
        }
        self.provider.change_state(id, transition)
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        self.provider.describe(id)
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.provider.list(key, value)
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.provider.set_tag(id, key, value)
    }
}
