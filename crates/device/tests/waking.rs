//! Every interleaving of the wake protocols, on the memory model of C++11 (loom), and the bugs that it must find.
//!
//! `src/waking.rs` itself is compiled here, with loom's atomics in the place of the standard library's.

#[path = "../src/waking.rs"]
#[allow(unreachable_pub, reason = "a module of the crate")]
mod waking;

use std::cell::Cell;
use std::process::Command;

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use waking::{Closing, Event, Flagged, Raised, Sleeping};

/// What is broken on purpose. Loom's threads all run on the test's own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The fences do nothing.
    NoFence,
    /// The queue is looked at before the sleeper says that it sleeps.
    LookThenSleep,
    /// The message is queued after the wake.
    WakeThenQueue,
    /// An event is drained after the flag is cleared.
    DrainLate,
    /// The flag is cleared after the queue was looked at.
    ClearLate,
    /// A signal that came after its drain is drained never.
    SignalForgotten,
    /// What is queued after the close is not looked for.
    CloseUnchecked,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// What `waking` uses.
mod atomic {
    pub use loom::sync::atomic::Ordering;

    use super::{Bug, late_drain, planted};

    pub fn fence(ordering: Ordering) {
        if !planted(Bug::NoFence) {
            loom::sync::atomic::fence(ordering);
        }
    }

    #[derive(Debug)]
    pub struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub fn load(&self, ordering: Ordering) -> bool {
            self.0.load(ordering)
        }

        pub fn store(&self, value: bool, ordering: Ordering) {
            // Loom orders stores of several threads only as far as one happens before the other, and lets a load return
            // what was swapped out before a later store. Between swaps its order is whole, as the language's is.
            self.0.swap(value, ordering);
        }

        pub fn swap(&self, value: bool, ordering: Ordering) -> bool {
            let before = self.0.swap(value, ordering);
            if !value {
                late_drain();
            }
            before
        }
    }
}

thread_local! {
    /// A drain that was put off until after the next swap, by the bug of that name.
    static LATE: Cell<Option<*const Doorbell>> = const { Cell::new(None) };
}

fn late_drain() {
    if let Some(doorbell) = LATE.take() {
        // SAFETY: the sleeper put it there a moment ago and holds the doorbell.
        unsafe { &*doorbell }.silence();
    }
}

/// An eventfd: stays raised until it is drained, and can be waited for.
struct Doorbell {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { raised: Mutex::new(false), changed: Condvar::new() }
    }

    fn silence(&self) {
        *self.raised.lock().unwrap() = false;
    }

    /// Loom finds whoever waits here for ever.
    fn wait(&self) {
        let mut raised = self.raised.lock().unwrap();
        while !*raised {
            raised = self.changed.wait(raised).unwrap();
        }
    }
}

impl Event for Doorbell {
    fn signal(&self) {
        *self.raised.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn drain(&self) {
        if planted(Bug::DrainLate) {
            LATE.set(Some(std::ptr::from_ref(self)));
        } else {
            self.silence();
        }
    }
}

/// A queue with no more ordering than it needs, so that the protocols get none from it.
struct Queue(AtomicUsize);

impl Queue {
    fn push(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Release);
    }

    fn len(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

struct Shared<P> {
    protocol: P,
    doorbell: Doorbell,
    queue: Queue,
}

fn shared<P>(protocol: P) -> Arc<Shared<P>> {
    Arc::new(Shared { protocol, doorbell: Doorbell::new(), queue: Queue(AtomicUsize::new(0)) })
}

/// Threads of one message each, and a sleeper that wants all of them: the shard's loop.
fn sleeper(messages: usize) {
    let shared = shared(Sleeping::new());
    for _ in 0..messages {
        let other = shared.clone();
        thread::spawn(move || {
            if planted(Bug::WakeThenQueue) {
                other.protocol.wake(&other.doorbell);
                other.queue.push();
            } else {
                other.queue.push();
                other.protocol.wake(&other.doorbell);
            }
        });
    }
    let mut seen = shared.queue.len();
    while seen < messages {
        let look = || shared.queue.len() == seen;
        let early = planted(Bug::LookThenSleep).then(look);
        shared.protocol.sleep();
        let waits = early.unwrap_or_else(look);
        if waits {
            shared.doorbell.wait();
        }
        let signalled = waits && !planted(Bug::SignalForgotten);
        shared.protocol.awake(&shared.doorbell, signalled);
        seen = shared.queue.len();
    }
}

/// The same for a sleeper that only polls its event: the fronts.
fn poller(messages: usize) {
    let shared = shared(Raised::new());
    for _ in 0..messages {
        let other = shared.clone();
        thread::spawn(move || {
            if planted(Bug::WakeThenQueue) {
                other.protocol.raise(&other.doorbell);
                other.queue.push();
            } else {
                other.queue.push();
                other.protocol.raise(&other.doorbell);
            }
        });
    }
    let mut seen = 0;
    while seen < messages {
        shared.doorbell.wait();
        if planted(Bug::ClearLate) {
            seen = shared.queue.len();
            shared.protocol.clear(&shared.doorbell);
        } else {
            shared.protocol.clear(&shared.doorbell);
            seen = shared.queue.len();
        }
    }
}

/// The same for a sleeper that is seldom raised: the array.
fn seldom_raised(messages: usize) {
    let shared = shared(Flagged::new());
    for _ in 0..messages {
        let other = shared.clone();
        thread::spawn(move || {
            if planted(Bug::WakeThenQueue) {
                other.protocol.raise(&other.doorbell);
                other.queue.push();
            } else {
                other.queue.push();
                other.protocol.raise(&other.doorbell);
            }
        });
    }
    let mut seen = 0;
    while seen < messages {
        shared.doorbell.wait();
        let early = shared.queue.len();
        if shared.protocol.take(&shared.doorbell) {
            seen = if planted(Bug::ClearLate) { early } else { shared.queue.len() };
        } else {
            // It was woken between the signal and the flag.
            thread::yield_now();
        }
    }
}

/// Calls that race with the end of their server: each is failed by one side or the other.
fn closing(callers: usize) {
    let closing = Arc::new((Closing::new(), Queue(AtomicUsize::new(0)), AtomicUsize::new(0)));
    // Takes what is queued, as often as it is called.
    fn fail_all(queue: &Queue, failed: &AtomicUsize) {
        let taken = queue.0.swap(0, std::sync::atomic::Ordering::AcqRel);
        failed.fetch_add(taken, std::sync::atomic::Ordering::Relaxed);
    }
    let threads: Vec<_> = (0..callers)
        .map(|_| {
            let shared = closing.clone();
            thread::spawn(move || {
                let (closing, queue, failed) = &*shared;
                queue.push();
                if !planted(Bug::CloseUnchecked) && closing.is_closed() {
                    fail_all(queue, failed);
                }
            })
        })
        .collect();
    let (flag, queue, failed) = &*closing;
    flag.close();
    // A load, as a queue's pop begins: it may be old, and then nothing is taken.
    if queue.len() > 0 {
        fail_all(queue, failed);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(failed.load(std::sync::atomic::Ordering::Relaxed), callers, "a call that nobody answers");
}

fn explore(model: Model, threads: usize) {
    let mut builder = loom::model::Builder::new();
    // All interleavings of two threads; of three those with at most this many preemptions.
    builder.preemption_bound = (threads > 1).then_some(3);
    builder.log = std::env::var_os("LOOM_LOG").is_some();
    builder.location = std::env::var_os("LOOM_LOG").is_some();
    builder.check(move || model(threads));
}

#[test]
fn no_message_is_slept_over() {
    explore(sleeper, 1);
    explore(sleeper, 2);
}

#[test]
fn no_work_is_polled_past() {
    explore(poller, 1);
    explore(poller, 2);
    explore(seldom_raised, 1);
    explore(seldom_raised, 2);
}

#[test]
fn no_call_is_left_to_a_server_that_has_gone() {
    explore(closing, 1);
    explore(closing, 2);
}

const PLANT: &str = "SURGETANK_TEST_PLANT";

/// A model of so many threads beside the sleeper.
type Model = fn(usize);

/// What must be found, in which model, with how many threads.
const EXPECTED: [(Bug, Model, usize); 11] = [
    (Bug::NoFence, sleeper, 1),
    (Bug::NoFence, closing, 1),
    (Bug::LookThenSleep, sleeper, 1),
    (Bug::WakeThenQueue, sleeper, 1),
    (Bug::WakeThenQueue, poller, 1),
    (Bug::SignalForgotten, sleeper, 2),
    (Bug::DrainLate, poller, 3),
    (Bug::ClearLate, poller, 2),
    (Bug::CloseUnchecked, closing, 1),
    (Bug::WakeThenQueue, seldom_raised, 1),
    (Bug::ClearLate, seldom_raised, 2),
];

/// Does nothing, unless it was started by the test below.
#[test]
fn model_in_a_child() {
    let Ok(index) = std::env::var(PLANT) else { return };
    let (bug, model, threads) = EXPECTED[index.parse::<usize>().unwrap()];
    PLANTED.set(Some(bug));
    explore(model, threads);
}

/// Each bug is found. In children: what loom finds ends the process.
#[test]
fn broken_protocols_are_found() {
    for (index, (bug, ..)) in EXPECTED.iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "model_in_a_child", "--nocapture", "--test-threads=1"]);
        let output = child.env(PLANT, index.to_string()).env("RUST_BACKTRACE", "0").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let finding = ["deadlock", "maximum number of branches", "a call that nobody answers"]
            .into_iter()
            .find(|finding| said.contains(finding));
        assert!(!output.status.success() && finding.is_some(), "{bug:?} ({index}) was not found: {said}");
    }
}
