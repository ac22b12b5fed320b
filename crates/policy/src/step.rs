//! What a controller asks of its driver (the daemon's reconciler or the simulator), and what the driver answers.

use std::time::Duration;

use surgetank_model::Bytes;

/// Names a step from `next_step` to `complete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u64);

/// One step of a boost's life cycle. Steps are idempotent; the driver persists the intent before it calls a provider.
/// A controller has at most one step outstanding, except that `Absorb` or `Finish` may be issued while a `Release` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Rent a caching volume of this size. Done when it is ready to attach.
    Create {
        /// Size of the volume.
        size: Bytes,
    },
    /// Attach it. Done when the disk is there, with the right serial and size.
    Attach,
    /// Hand it to the engine. Done when it is formatted and the dirty owner is durable.
    Adopt,
    /// Absorb the burst (also cancels a drain or a release that has not passed its point of no return).
    /// Done at once.
    Absorb,
    /// Have the caching volume that is in use become larger, in place, and the engine use what is new. Done when it does.
    Grow {
        /// The size that it grows to.
        size: Bytes,
    },
    /// Drain at full priority; new writes go to the backing volume. Done at once; watch `dirty_bytes`.
    Drain,
    /// The same, and changes over what is dirty wait until it is drained, so that rewriting does not prolong the drain.
    /// Done at once; `Absorb` and `Drain` take it back.
    Finish,
    /// Take the volume from the engine: everything drained, CLEAN durable, owner cleared.
    /// `Cancelled` if an `Absorb` overtook it.
    Release,
    /// Detach it from the machine.
    Detach,
    /// Delete it: the bill stops. Also used to roll back a `Create` whose outcome is unknown.
    Delete,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// Done.
    Done,
    /// A release was overtaken by an absorb.
    Cancelled,
    /// Not done; nothing was left half done unless the step is repeated.
    Refused(Refusal),
}

/// Why a step was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The provider's quota is used up.
    Quota,
    /// The provider has no capacity of this type now.
    Capacity,
    /// No free attachment slot on this machine.
    AttachLimit,
    /// The provider could not make the volume, or it has broken; the text is for people.
    Failed(String),
    /// The provider has had too many requests, and has not carried out this one.
    Throttled {
        /// When it wants to be asked again; `None`: it did not say.
        after: Option<Duration>,
        /// What it said, for people.
        text: String,
    },
    /// This machine has no room for it, or nobody wants it any more: nothing was asked of the provider. The text is for people.
    NoRoom(String),
    /// It took longer than the driver waits; it may still happen.
    Timeout,
    /// Anything else that may pass; the text is for people.
    Transient(String),
    /// Will not pass by itself (credentials, unknown type, size out of limits); the text is for people.
    Permanent(String),
}
