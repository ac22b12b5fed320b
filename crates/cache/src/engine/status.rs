//! What the engine tells of itself.

use super::EngineStage;

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
    /// `grow_cache` is done: the new part of the caching volume is in use.
    CacheGrown {
        /// Usable bytes of the cache now.
        cache_bytes: u64,
    },
    /// `grow_cache` failed: the log stays as it is.
    CacheGrowFailed,
    /// The caching volume fails; the engine drains what it can. Ends in `Released`-like `CacheDropped` or `CacheLost`.
    CacheFailing,
    /// The failed caching volume was released with nothing lost; the owner is `Backing`.
    CacheDropped,
    /// The engine does not use the caching volume any more, but data is on it alone; the owner is `Lost` durably. Keep the
    /// volume, and try [`Engine::restore`].
    CacheLost {
        /// Bytes that answer EIO until overwritten or restored.
        lost_bytes: u64,
    },
    /// `restore` failed: this volume does not hold the epoch, or cannot be read. Nothing has changed.
    RestoreFailed {
        /// For people.
        reason: &'static str,
    },
    /// `stop` is done: the log is closed, as far as it could be.
    Stopped,
}

/// A snapshot for people and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where the engine is.
    pub stage: EngineStage,
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
    /// The ranges that they make up.
    pub lost_ranges: usize,
    /// Requests in flight or waiting.
    pub requests_in_flight: usize,
}
