//! What a device's boosts have of what read caches and boosts share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use surgetank_allocation::Claimed;
use surgetank_model::Bytes;
use surgetank_policy::Headroom;

use super::sharing::{State, guard};
use crate::config::Config;
use crate::journal::Journal;

/// What devices' boosts have rented when the daemon begins, of those that take part.
pub(super) fn rented(config: &Config, state_directory: &Path) -> BTreeMap<String, Bytes> {
    let of_device = |name: &String| match Journal::open(&state_directory.join(name)) {
        Ok(journal) => journal.state().rented(),
        // The device is refused with that reason, and its volume is kept.
        Err(error) => {
            tracing::warn!(device = name, %error, "what its boost has rented does not count to what read caches share");
            Bytes::ZERO
        }
    };
    config.boosts_that_share().map(|name| (name.clone(), of_device(name))).collect()
}

/// See the module.
pub(crate) struct BoostShare {
    state: Arc<Mutex<State>>,
    /// Has the caches become smaller at once.
    wake: Sender<()>,
    device: String,
    budget: Bytes,
}

impl BoostShare {
    pub(super) fn new(state: Arc<Mutex<State>>, wake: Sender<()>, device: &str, budget: Bytes) -> Self {
        Self { state, wake, device: device.to_owned(), budget }
    }

    /// What there is for the device's caching volume.
    pub fn headroom(&self) -> Headroom {
        Headroom { budget: self.budget, most: guard(&self.state).sharing.most(&self.device) }
    }

    /// A caching volume of this size is to be rented, or is to grow to it. To be asked again while it waits, and ended by [`BoostShare::rents`].
    pub fn claim(&self, size: Bytes) -> Claimed {
        let claimed = guard(&self.state).sharing.claim(&self.device, size);
        if claimed == Claimed::Waits {
            // It is awake already, or the daemon ends.
            let _ = self.wake.try_send(());
        }
        claimed
    }

    /// So much is rented, or may be, and nothing more is to be.
    pub fn rents(&self, size: Bytes) {
        guard(&self.state).sharing.rents(&self.device, size);
    }
}
