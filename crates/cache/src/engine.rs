//! The engine: requests and completions in, effects out.

use surgetank_model::{Instant, Limits, Observation, Request};

use crate::effect::{Effect, EffectId, Outcome};
use crate::format::Epoch;

/// What the engine must know of the elastic device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of the device and its backing volume; a multiple of `logical_block`.
    pub size: u64,
    /// Logical block size, 512 or 4096 bytes.
    pub logical_block: u32,
    /// Nominal limits of the backing volume; split and drain start from them and measure.
    pub backing_limits: Limits,
}

/// A caching volume to adopt or to recover.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Fresh and random for `adopt`; the persisted owner's for `recover`.
    pub epoch: Epoch,
    /// Bytes of the caching volume.
    pub cache_size: u64,
    /// Nominal limits of the caching volume.
    pub cache_limits: Limits,
    /// Send the share of burst writes that finishes sooner there straight to the backing volume.
    pub split: bool,
    /// Whether reads install data in the cache.
    pub read_fill: ReadFill,
}

/// When a read miss installs its data in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFill {
    /// Never.
    #[default]
    Never,
    /// When the same range missed before, lately.
    SecondHit,
    /// Always (the papers).
    Always,
}

/// What the controller wants of an adopted cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Application first; the drain takes spare backing bandwidth.
    Absorb,
    /// The drain has priority; new writes go to the backing volume except over dirty ranges.
    Drain,
}

/// Where the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No caching volume.
    PassThrough,
    /// A caching volume is being formatted; requests pass through.
    Adopting,
    /// A caching volume is being read after a crash; requests wait.
    Recovering,
    /// Absorbing.
    Absorb,
    /// Draining.
    Drain,
    /// Being released: CLEAN is being made durable.
    Releasing,
    /// The caching volume fails: no new appends, what can be read is drained.
    Failing,
    /// The caching volume is lost; `Status::lost_bytes` of the device answer EIO until overwritten (may be 0 while
    /// the loss record is being cleared).
    Lost,
}

/// Something the controller's driver wants to know at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `adopt` is done: formatted, owner durable, absorbing.
    Adopted,
    /// `adopt` failed; the volume is not in use and the engine passes through.
    AdoptFailed,
    /// `recover` is done; everything found counts as dirty.
    Recovered {
        /// Dirty bytes found.
        dirty_bytes: u64,
    },
    /// `recover` failed: this volume does not hold the epoch, or cannot be read. Requests still wait.
    RecoverFailed {
        /// For people.
        reason: &'static str,
    },
    /// `release` is done: the engine holds nothing on the volume, CLEAN is durable, the owner is `Backing`.
    Released,
    /// A release was overtaken by `set_mode(Absorb)`.
    ReleaseCancelled,
    /// The caching volume fails; the engine drains what it can. Ends in `Released`-like `CacheDropped` or `CacheLost`.
    CacheFailing,
    /// The failed caching volume was let go with nothing lost; the owner is `Backing`.
    CacheDropped,
    /// The caching volume is let go with data on it; the owner is `Lost` durably.
    CacheLost {
        /// Bytes that answer EIO until overwritten.
        lost_bytes: u64,
    },
}

/// A snapshot for people and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where the engine is.
    pub stage: Stage,
    /// Bytes not yet on the backing volume.
    pub dirty_bytes: u64,
    /// Usable bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes of the cache in use by segments that cannot be reused yet.
    pub used_bytes: u64,
    /// Largest `used_bytes` since adoption.
    pub high_water_bytes: u64,
    /// See [`Observation::evicted_bytes`].
    pub evicted_bytes: u64,
    /// Bytes drained since adoption (counter).
    pub drained_bytes: u64,
    /// Bytes that burst writes sent straight to the backing volume by split since adoption (counter).
    pub split_bytes: u64,
    /// Bytes of reads answered by the cache since adoption (counter).
    pub hit_bytes: u64,
    /// Bytes that answer EIO.
    pub lost_bytes: u64,
    /// Requests in flight or waiting.
    pub requests_in_flight: usize,
}

/// Why a call does not fit the engine's stage or the volume. One sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);

/// The elastic block cache of one device. See the crate and `docs/ARCHITECTURE.md`.
#[derive(Debug)]
pub struct Engine {}

#[allow(clippy::unused_self, unused_variables, clippy::needless_pass_by_value)] // signatures only for now
impl Engine {
    /// A device without a caching volume; its owner record is `Backing`.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {}
    }
    /// A device whose owner record is `Lost`: the ranges (offset, length in bytes) answer EIO until overwritten.
    #[must_use]
    pub fn with_lost(config: Config, epoch: Epoch, ranges: &[(u64, u64)]) -> Self {
        Self {}
    }
    /// A device whose owner record is `Cache`: requests wait until `recover` succeeds.
    #[must_use]
    pub fn awaiting_recovery(config: Config) -> Self {
        Self {}
    }
    /// Takes a request; exactly one `Effect::Reply` answers it.
    pub fn submit(&mut self, now: Instant, request: Request) {}
    /// Takes the outcome of an effect.
    pub fn complete(&mut self, now: Instant, effect: EffectId, outcome: Outcome) {}
    /// Lets time pass; call at `next_deadline`.
    pub fn tick(&mut self, now: Instant) {}
    /// The next thing to do, in order.
    pub fn next_effect(&mut self) -> Option<Effect> {
        None
    }
    /// The next thing to tell the controller's driver.
    pub fn next_event(&mut self) -> Option<Event> {
        None
    }
    /// When `tick` must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Formats a caching volume and absorbs with it; ends in `Event::Adopted` or `AdoptFailed`.
    ///
    /// # Errors
    /// If a cache is already in use, or the volume is too small.
    pub fn adopt(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        Ok(())
    }
    /// Reads back a caching volume after a crash; ends in `Event::Recovered` or `RecoverFailed`. Draining follows
    /// unless `set_mode(Absorb)` is called.
    ///
    /// # Errors
    /// If the engine does not await recovery.
    pub fn recover(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        Ok(())
    }
    /// Says what is wanted of the adopted cache. `Absorb` cancels a release that has not written CLEAN yet.
    pub fn set_mode(&mut self, now: Instant, mode: Mode) {}
    /// Drains what is left, makes CLEAN durable, clears the owner; ends in `Released` or `ReleaseCancelled`.
    ///
    /// # Errors
    /// If there is no cache to release.
    pub fn release(&mut self, now: Instant) -> Result<(), Rejected> {
        Ok(())
    }
    /// The caching volume vanished: everything not on the backing volume is lost (now, without waiting for errors).
    pub fn cache_gone(&mut self, now: Instant) {}
    /// The user accepts the loss: lost ranges read as the backing volume has them. Ends in `CacheDropped`.
    ///
    /// # Errors
    /// If nothing is lost.
    pub fn accept_loss(&mut self, now: Instant) -> Result<(), Rejected> {
        Ok(())
    }
    /// The backing volume has grown to `size` bytes.
    ///
    /// # Errors
    /// If `size` is smaller than before or misaligned.
    pub fn grow(&mut self, size: u64) -> Result<(), Rejected> {
        Ok(())
    }
    /// A snapshot for people and tests.
    #[must_use]
    pub fn status(&self) -> Status {
        unreachable!("signatures only")
    }
    /// What the controller is told each sampling interval.
    #[must_use]
    pub fn observation(&self) -> Observation {
        Observation::default()
    }
}
