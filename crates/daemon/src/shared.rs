//! What the threads of a device let each other know.

use std::sync::{Mutex, MutexGuard, PoisonError};

use surgetank_provider::VolumeId;

/// What is rented for one device, as the sweep must know it, and where it is exported.
#[derive(Debug, Default)]
pub struct Shared {
    rentals: Mutex<RentalsView>,
    address: Mutex<String>,
    trouble: Mutex<Option<String>>,
}

#[derive(Clone, Debug, Default)]
struct RentalsView {
    volumes: Vec<VolumeId>,
    nameless: bool,
}

impl Shared {
    fn rentals(&self) -> MutexGuard<'_, RentalsView> {
        self.rentals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal says that these volumes are rented. `nameless`: another one may be, whose name is not known.
    pub fn set_rentals(&self, volumes: Vec<VolumeId>, nameless: bool) {
        *self.rentals() = RentalsView { volumes, nameless };
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

    /// The volumes that are rented, as far as their names are known.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeId> {
        self.rentals().volumes.clone()
    }

    /// Whether a volume may be there whose name is not known.
    #[must_use]
    pub fn creating(&self) -> bool {
        self.rentals().nameless
    }
}
