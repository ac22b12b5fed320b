//! A fake of a cloud on loopback, in whichever dialect.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Settings;
use super::dialect::Dialect;
use super::faults::Faults;
use super::server::{self, Server};
use crate::clock::Clock;

/// A fake of a cloud on loopback.
pub struct Fake<D> {
    state: Arc<Mutex<D>>,
    server: Server,
}

fn locked<D>(state: &Mutex<D>) -> MutexGuard<'_, D> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D> Fake<D> {
    /// What is behind it.
    pub(super) fn state(&self) -> MutexGuard<'_, D> {
        locked(&self.state)
    }
}

impl<D: Dialect> Fake<D> {
    /// Starts one whose time is that of a clock.
    ///
    /// # Panics
    /// If the system has no port.
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let state = Arc::new(Mutex::new(D::new(clock, settings)));
        let shared = Arc::clone(&state);
        let server = server::serve(move |request| locked(&shared).answer(&request)).expect("loopback has a port");
        Self { state, server }
    }

    /// Where it answers, also as a metadata service, and for logins.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// Changes what happens to calls, or looks at what has happened.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.state().calls().faults)
    }

    /// Changes how it behaves.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state().cloud().settings);
    }

    /// What was sent since the last time, without the calls that did not arrive.
    pub fn take_sent(&self) -> Vec<D::Call> {
        std::mem::take(&mut self.state().calls().sent)
    }

    /// Whether the client has the right to this call.
    pub fn deny(&self, call: &'static str, is_denied: bool) {
        let mut state = self.state();
        let denied = &mut state.calls().denied;
        if is_denied {
            denied.insert(call);
        } else {
            denied.remove(call);
        }
    }

    /// The metadata service answers nobody, or does again.
    pub fn hide_metadata(&self, is_gone: bool) {
        self.state().calls().is_metadata_gone = is_gone;
    }

    /// The next volume fails.
    pub fn fail_next(&self) {
        self.state().cloud().fail_next = true;
    }

    /// Another machine has the volume.
    pub fn attach_elsewhere(&self, id: &str, machine: &str) {
        self.state().cloud().attach_elsewhere(id, machine);
    }

    /// The volumes that there are, without those that are being deleted, for whoever keeps their bytes.
    #[must_use]
    pub fn there_are(&self) -> BTreeSet<String> {
        self.state().cloud().there_are()
    }

    /// How many volumes there are, without those that are being deleted.
    #[must_use]
    pub fn volumes(&self) -> usize {
        self.state().cloud().count()
    }

    /// Carries out the calls that are late.
    pub fn settle(&self) {
        self.state().settle();
    }
}
