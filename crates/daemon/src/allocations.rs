//! The hot path allocates nothing once it runs: what a request needs is used again for the next.
//!
//! Without a caching volume, that is: a record of the log takes a summary and the block that it is written from.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::shard::{Overhead, Parts, Shard};
use crossbeam_channel::Sender;
use rustix::event::{EventfdFlags, eventfd};
use surgetank_cache::{Config, Engine};
use surgetank_device::front::{KERNEL, Submission, Token};
use surgetank_device::volume::Options;
use surgetank_device::{Buffer, BufferPool, FileVolume, Front, Volume};
use surgetank_model::{Bandwidth, Instant, Limits, Operation};
use surgetank_policy::fair::Windows;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts on threads that asked for it.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

const SIZE: u64 = 8 << 20;
/// Deeper queues now and then cost a node of the engine's ordered tables, which hold eleven entries.
const DEPTH: u64 = 8;
/// Requests until every queue has had its longest.
const WARM_UP: u64 = 4000;
const COUNTED_REQUESTS: u64 = 4000;

/// An application of its own: reads and writes at a depth, with a flush now and then.
struct Application {
    silent: OwnedFd,
    idle: VecDeque<Token>,
    pool: BufferPool,
    asked: u64,
    answered: u64,
    ended: Sender<()>,
}

impl Application {
    fn next(&mut self, token: Token) -> Submission {
        let number = self.asked;
        self.asked += 1;
        let (operation, blocks) = match number % 8 {
            0 => (Operation::Flush, 0),
            1..4 => (Operation::Read, 1),
            4 => (Operation::Write { fua: false }, 16),
            _ => (Operation::Write { fua: false }, 1),
        };
        let length = blocks * 4096;
        let offset = if blocks == 0 { 0 } else { number.wrapping_mul(0x9e37_79b9) % (SIZE / 65536) * 65536 };
        let buffer = (blocks > 0).then(|| self.pool.take(length as usize));
        Submission { token, client: KERNEL, operation, offset, length, buffer }
    }
}

impl Front for Application {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }

    fn has_arrived(&mut self) -> bool {
        !self.idle.is_empty() && self.asked < WARM_UP + COUNTED_REQUESTS
    }

    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>) {
        for _ in 0..budget {
            if !self.has_arrived() {
                return;
            }
            // The pool's handles are the front's own business: ublk has none, its tags keep theirs.
            let counted = COUNTED.replace(false);
            let Some(token) = self.idle.pop_front() else { return };
            let submission = self.next(token);
            COUNTED.set(counted);
            sink.push(submission);
        }
    }

    fn reply(&mut self, token: Token, result: Result<(), i32>, _buffer: Option<Buffer>) {
        result.unwrap();
        self.idle.push_back(token);
        self.answered += 1;
        COUNTED.set((WARM_UP..WARM_UP + COUNTED_REQUESTS).contains(&self.answered));
        if self.answered == WARM_UP + COUNTED_REQUESTS {
            self.ended.send(()).unwrap();
        }
    }

    fn flush(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn set_size(&mut self, _size: u64) {}
}

/// Queues and nodes of ordered tables that may grow while it is counted: on a busy machine requests end in other orders
/// than they begin. One in a hundred requests; an allocation of a request's own would be seen in each.
const GROWTHS_MAX: u64 = COUNTED_REQUESTS / 100;

#[test]
fn requests_that_pass_through_allocate_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let backing = FileVolume::open(file.path(), Options::default()).unwrap();
    let limits = Limits { bandwidth: Some(Bandwidth::from_mib_s(10_000)), iops: None };
    let config = Config {
        size: SIZE,
        logical_block: backing.logical_block(),
        backing_limits: limits,
        outage_patience: std::time::Duration::from_secs(300),
    };
    let (ended, end) = crossbeam_channel::bounded(1);
    let application = Application {
        silent: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        idle: (0..DEPTH).map(Token).collect(),
        pool: BufferPool::new(4 << 20),
        asked: 0,
        answered: 0,
        ended,
    };
    let (handle, commands) = Shard::channel().unwrap();
    let parts = Parts {
        name: "counted".to_owned(),
        engine: Engine::new(config),
        front: Box::new(application),
        backing: Box::new(backing),
        overhead: Overhead::default(),
        windows: Windows::new(Limits::NONE, false),
        clock: Clock::start(),
        events: Box::new(|_| {}),
        record: Box::new(|_| {}),
    };
    let shard = Shard::start(handle.clone(), commands, parts).unwrap();
    let before = handle.sample(Instant::ZERO, None).unwrap();
    end.recv().unwrap();
    // Whoever samples a device at rest does not wake it: what the shard is asked has its own time.
    let after = handle.sample(Instant::ZERO, Some(before)).unwrap();
    assert!(after.now > Instant::ZERO && after.observation.requests >= WARM_UP + COUNTED_REQUESTS);
    let again = handle.sample(Instant::ZERO, Some(after.clone())).unwrap();
    assert_eq!((again.now, again.observation), (Instant::ZERO, after.observation));
    shard.stop();
    assert!(handle.sample(Instant::ZERO, Some(after)).is_err());
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(allocations <= GROWTHS_MAX, "{allocations} allocations in {COUNTED_REQUESTS} requests");
}
