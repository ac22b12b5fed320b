//! What the threads of a device let each other know.

use std::sync::{Mutex, MutexGuard, PoisonError};

use surgetank_provider::VolumeId;

/// What is rented for one device, as the sweep must know it, and where it is exported.
#[derive(Debug, Default)]
pub struct Shared {
    rental: Mutex<RentalView>,
    address: Mutex<String>,
    trouble: Mutex<Option<String>>,
}

#[derive(Clone, Debug, Default)]
struct RentalView {
    volume: Option<VolumeId>,
    rented: bool,
}

impl Shared {
    fn rental(&self) -> MutexGuard<'_, RentalView> {
        self.rental.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal says that a volume is rented; its name may not be known yet.
    pub fn set_rental(&self, volume: Option<VolumeId>, rented: bool) {
        *self.rental() = RentalView { volume, rented };
    }

    /// What the user opens; empty until it is there.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The export is up.
    pub fn set_address(&self, address: &str) {
        address.clone_into(&mut self.address.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Why the export did not come up.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The export did not come up.
    pub fn set_trouble(&self, trouble: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
    }

    /// The volume that is rented, if its name is known.
    #[must_use]
    pub fn volume(&self) -> Option<VolumeId> {
        self.rental().volume.clone()
    }

    /// Whether a volume may be there whose name is not known.
    #[must_use]
    pub fn creating(&self) -> bool {
        let view = self.rental();
        view.rented && view.volume.is_none()
    }
}
