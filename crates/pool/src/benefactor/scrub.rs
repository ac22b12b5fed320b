//! Reads what the benefactor has when [`Scrub`] says so, and verifies it. What is damaged counts as what a reader finds damaged does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_pool_core::benefactor::Scrub;
use surgetank_pool_core::benefactor::scrub::{Config, Next, Report};

use super::Benefactor;
use crate::chunks::Request;

/// What is looked at again after this at the latest.
const LOOK: Duration = Duration::from_secs(60);

/// A [`Scrub`] with a clock; `None` there: nothing is scrubbed.
pub(super) struct Scrubbing {
    began: tokio::time::Instant,
    scrub: Option<Mutex<Scrub>>,
}

impl Scrubbing {
    pub(super) fn new(config: Option<Config>) -> Arc<Self> {
        let scrub = config.map(|config| Mutex::new(Scrub::new(config)));
        Arc::new(Self { began: tokio::time::Instant::now(), scrub })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed()
    }

    fn scrub(&self) -> Option<MutexGuard<'_, Scrub>> {
        self.scrub.as_ref().map(|scrub| scrub.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request is under way until the answer is dropped; `None`: it is none that scrubbing makes way for.
    pub(super) fn request(self: &Arc<Self>, request: &Request) -> Option<Foreground> {
        let moves_bytes = match request {
            Request::Put(_) | Request::Get(_) | Request::Seal(_) | Request::DrainPart(_) | Request::Copy(_) => true,
            Request::Table(_) | Request::Forget(_) | Request::Inventory | Request::Probe | Request::Adopt(_) => false,
        };
        self.scrub().filter(|_| moves_bytes)?.request_began();
        Some(Foreground(Arc::clone(self)))
    }

    /// What it has come to.
    pub(super) fn report(&self) -> Report {
        self.scrub().map(|scrub| scrub.report(self.now())).unwrap_or_default()
    }
}

/// A request that is under way.
pub(super) struct Foreground(Arc<Scrubbing>);

impl Drop for Foreground {
    fn drop(&mut self) {
        let now = self.0.now();
        if let Some(mut scrub) = self.0.scrub() {
            scrub.request_ended(now);
        }
    }
}

/// Scrubs for ever.
pub(super) async fn run(benefactor: Arc<Benefactor>) {
    if benefactor.scrubbing.scrub.is_none() {
        return std::future::pending().await;
    }
    loop {
        let reading = Arc::clone(&benefactor);
        let next = tokio::task::spawn_blocking(move || reading.scrub_next()).await;
        let pause = next.unwrap_or(Some(LOOK));
        if let Some(pause) = pause {
            tokio::time::sleep(pause.min(LOOK)).await;
        }
    }
}

impl Benefactor {
    /// Reads what is to be read now; how long to wait if that is nothing.
    fn scrub_next(&self) -> Option<Duration> {
        let now = self.scrubbing.now();
        let next = self.scrubbing.scrub()?.next(now, &mut self.holdings());
        let (entry, location) = match next {
            Next::Read(entry, location) => (entry, location),
            Next::Wait(at) => return Some(at.since(now)),
        };
        let bytes = self.content(&entry, location);
        let is_intact = bytes.as_ref().is_ok_and(|bytes| crc32c::crc32c(bytes) == entry.crc);
        let mut scrub = self.scrubbing.scrub()?;
        let mut holdings = self.holdings();
        if scrub.read(&mut holdings, is_intact) {
            let why = bytes.err().map(|error| format!(": {error}")).unwrap_or_default();
            tracing::error!("scrubbing: {:?} is damaged{why}", entry.instance);
            self.count_damaged();
        }
        self.look_at(&holdings);
        None
    }
}
