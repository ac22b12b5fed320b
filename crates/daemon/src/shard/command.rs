//! What a shard is told and asked by the other threads of its device.

use crossbeam_channel::Sender;
use surgetank_cache::{Attach, CacheMode, EffectId, Rejected};
use surgetank_device::{Front, Volume};

use super::Sample;

/// What other threads ask of a shard. Answers are sent once; a receiver that is gone is ignored.
pub enum Command {
    /// Take a caching volume into use. The outcome comes as an event, unless it is rejected at once.
    Adopt {
        /// The opened volume.
        volume: Box<dyn Volume>,
        /// How to use it.
        attach: Attach,
        /// Whether the engine began.
        answer: Sender<Result<(), Rejected>>,
    },
    /// Read a caching volume back after a crash. The outcome comes as an event, unless it is rejected at once.
    Recover {
        /// The opened volume.
        volume: Box<dyn Volume>,
        /// How to use it.
        attach: Attach,
        /// Whether the engine began.
        answer: Sender<Result<(), Rejected>>,
    },
    /// The caching volume cannot be opened to be read back.
    RecoveryUnavailable,
    /// Absorb or drain.
    SetMode(CacheMode),
    /// Let the caching volume go. The outcome comes as an event, unless it is rejected at once.
    Release {
        /// Whether the engine began.
        answer: Sender<Result<(), Rejected>>,
    },
    /// The caching volume has grown. The outcome comes as an event, unless it is rejected at once.
    GrowCache {
        /// Its size in bytes.
        size: u64,
        /// Whether the engine began; `false`: the volume does not show that size yet.
        answer: Sender<Result<bool, String>>,
    },
    /// Close the caching volume that the engine has released.
    CloseCache {
        /// It is closed.
        answer: Sender<()>,
    },
    /// Read a lost caching volume back. The outcome comes as an event, unless it is rejected at once.
    Restore {
        /// The opened volume.
        volume: Box<dyn Volume>,
        /// How to use it.
        attach: Attach,
        /// Whether the engine began.
        answer: Sender<Result<(), Rejected>>,
    },
    /// The caching volume vanished: it is closed when nothing is in flight on it any more.
    CacheGone {
        /// It is closed.
        answer: Sender<()>,
    },
    /// The caching volume that vanished is here again.
    CacheReturned {
        /// The same volume, opened anew.
        volume: Box<dyn Volume>,
        /// Whether the engine still waits for it.
        answer: Sender<bool>,
    },
    /// The user accepts the loss.
    AcceptLoss {
        /// Whether the engine began.
        answer: Sender<Result<(), Rejected>>,
    },
    /// The backing volume may have grown: look, and follow. Answers the size in bytes.
    Grow {
        /// The size now, or why not.
        answer: Sender<Result<u64, String>>,
    },
    /// The first lost ranges (offset, length in bytes).
    LostRanges {
        /// How many at most.
        most: usize,
        /// The ranges, in order.
        answer: Sender<Vec<(u64, u64)>>,
    },
    /// A snapshot.
    Sample {
        /// The snapshot.
        answer: Sender<Sample>,
    },
    /// The owner record is persisted, or is not.
    Persisted {
        /// The engine's effect.
        effect: EffectId,
        /// Whether it is durable.
        durable: bool,
    },
    /// Requests come from here from now on; nothing of the former front is in flight.
    SetFront {
        /// The export.
        front: Box<dyn Front>,
        /// It is served, or cannot be watched.
        answer: Sender<Result<(), String>>,
    },
    /// The backing volume took requests that did not come this way; from now on they do.
    EnterPath {
        /// The engine knows.
        answer: Sender<()>,
    },
    /// Whether the backing volume may take requests that do not come this way.
    IsTransparent {
        /// Whether the engine only passes them on.
        answer: Sender<bool>,
    },
    /// Answer what is in flight, flush, and end the thread.
    Stop,
}
