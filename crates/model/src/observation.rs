//! What a controller is told about an elastic device, once a sampling interval.

use std::time::Duration;

/// Counters and levels of one elastic device at one moment. Counters only grow; the controller takes differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Bytes that the application has read from the elastic device (counter).
    pub read_bytes: u64,
    /// Bytes that the application has written to the elastic device (counter).
    pub written_bytes: u64,
    /// Requests that the application has completed (counter).
    pub requests: u64,
    /// Time in which at least one of the application's requests was in the device, waiting or being served (counter).
    pub busy: Duration,
    /// Bytes not yet on the backing volume (level). Includes data lost with a failed cache.
    pub dirty_bytes: u64,
    /// Largest `dirty_bytes` plus recyclable space in use since the caching volume was adopted (level).
    pub high_water_bytes: u64,
    /// Bytes that a larger cache would have taken since adoption: spilled to the backing volume because
    /// the cache was full, or drained to make room (counter since adoption). The papers' `evicted`.
    pub evicted_bytes: u64,
    /// Bytes that the drain has written to the backing volume since adoption, each time that it did (counter since
    /// adoption; 0 if the driver does not know).
    pub drained_bytes: u64,
    /// Usable bytes of the adopted caching volume; 0 without one (level).
    pub cache_bytes: u64,
    /// The caching volume fails: the controller ends the boost.
    pub cache_failed: bool,
}
