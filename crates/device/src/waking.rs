//! How a thread goes to sleep without missing what others tell it: the protocols that the crate uses, apart from
//! the event that wakes (an eventfd), so that a model checker can go through all their interleavings
//! (`tests/waking.rs` compiles this very file against loom's atomics).

use crate::atomic::{AtomicBool, Ordering, fence};

/// What wakes a sleeper: it stays raised until it is drained.
pub(crate) trait Event {
    /// Ends the sleeper's wait, this one or its next.
    fn signal(&self);
    /// Forgets earlier signals.
    fn drain(&self);
}

/// For a sleeper that says when it sleeps: while it is awake, a wake costs one load.
///
/// The sleeper calls [`Sleeping::sleep`], looks at its queues a last time, waits if they are empty, and calls
/// [`Sleeping::awake`] with whether it saw the event raised; then it looks at its queues. The others queue their message, then call [`Sleeping::wake`].
#[derive(Debug)]
pub(crate) struct Sleeping(AtomicBool);

impl Sleeping {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake`: either the sleeper sees the message or the waker sees the sleeper.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self, event: &impl Event, signalled: bool) {
        // A `wake` that cleared the flag signals, but perhaps only after this drain: then the next wait ends at once,
        // with the flag as it was, and must drain as well or no wait would last any more.
        if !self.0.swap(false, Ordering::AcqRel) || signalled {
            event.drain();
        }
    }

    pub(crate) fn wake(&self, event: &impl Event) {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel) {
            event.signal();
        }
    }
}

/// For a sleeper that only polls its event: raising a raised one costs no system call.
///
/// The others queue their work, then call [`Raised::raise`]. The sleeper calls [`Raised::clear`], then takes what is
/// queued.
#[derive(Debug)]
pub(crate) struct Raised(AtomicBool);

impl Raised {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn raise(&self, event: &impl Event) {
        if !self.0.swap(true, Ordering::AcqRel) {
            event.signal();
        }
    }

    pub(crate) fn clear(&self, event: &impl Event) {
        // The event first: a raise after the swap signals anew, and one before it left its work to be seen. A raise
        // caught between its swap and its signal wakes once for nothing.
        event.drain();
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// For a sleeper that polls often and is seldom raised: a poll costs one load.
///
/// The others queue their work, then call [`Flagged::raise`]. The sleeper calls [`Flagged::take`], and takes what is queued
/// if that says so.
#[derive(Debug)]
pub(crate) struct Flagged(AtomicBool);

impl Flagged {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn raise(&self, event: &impl Event) {
        // The event first: whoever sees the flag drains it. A sleeper that looks in between sees the event again.
        event.signal();
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn take(&self, event: &impl Event) -> bool {
        // The flag before the event: a raise after the swap sets it again, so its signal is drained sooner or later.
        let raised = self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel);
        if raised {
            event.drain();
        }
        raised
    }
}

/// Whether somebody still serves a queue: nothing is left in a queue that nobody serves.
///
/// Who queues calls [`Closing::is_closed`] after that, and fails what is queued if so. Who leaves calls
/// [`Closing::close`], then fails what is queued.
#[derive(Debug)]
pub(crate) struct Closing(AtomicBool);

impl Closing {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn close(&self) {
        self.0.store(true, Ordering::Release);
        // Pairs with the fence in `is_closed`: either this side sees what was queued or that side sees the flag.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Acquire)
    }
}
