//! What online curves take of memory at most, counted at the allocator.

#![expect(clippy::print_stdout, reason = "how much it is is a result")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use surgetank_mrc::{Access, Curve, MiniatureCurve, Miniatures, Online, OnlineCurve, spread_sizes};

/// The bar for an application.
const BYTES_MAX: usize = 2 << 20;

/// Bytes in use now, and the most that were.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts what is in use.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The most that is allocated at once while `run` runs.
fn most(run: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    run();
    MOST.load(Ordering::Relaxed) - before
}

/// New blocks, now and then one from before, and distances up to the longest that there are.
fn accesses(key: &mut u64) -> impl Iterator<Item = (Access, u64)> {
    (0..400_000u64).map(|at| {
        *key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = if at % 4 == 0 { *key >> 50 } else { *key };
        (if at % 7 == 0 { Access::Write } else { Access::Read }, block)
    })
}

/// The only test here, so that nobody else allocates meanwhile.
#[test]
fn an_online_curve_takes_at_most_two_mebibytes() {
    let online = size_of::<OnlineCurve>() + most(of_any_size);
    println!("{online} bytes at most for LRU");
    assert!(online <= BYTES_MAX, "{online} bytes");
    for (largest, segment_blocks) in [(1, 1), (8191, 1), (8192, 256), (1 << 15, 256), (10 << 18, 256), (1 << 36, 256)] {
        let options = Miniatures { segment_blocks, blocks_max: u64::MAX, ..Miniatures::up_to(largest) };
        let miniatures = size_of::<MiniatureCurve>() + most(|| of_the_policy(options));
        println!("{miniatures} bytes at most for caches of up to {largest} blocks");
        assert!(miniatures <= BYTES_MAX, "{miniatures} bytes for caches of up to {largest} blocks");
    }
}

fn of_any_size() {
    // More keys than it takes.
    let mut curve = OnlineCurve::new(Online { keys_max: usize::MAX, renewed_after: 3, ..Online::default() });
    let mut key = 1u64;
    for round in 0..8 {
        accesses(&mut key).for_each(|(access, block)| curve.observe(access, block));
        curve.observe_range(Access::Discard, round << 40..u64::MAX);
        curve.end_interval();
        assert!(curve.rate().share() < 0.1, "the sample is full");
    }
    let points = curve.points(&spread_sizes(1 << 40, 64));
    assert_eq!(points.last().map(|point| point.size_blocks), Some(1 << 40));
}

fn of_the_policy(options: Miniatures) {
    let mut curve = MiniatureCurve::new(options);
    let mut key = 1u64;
    for round in 0..2 {
        accesses(&mut key).for_each(|(access, block)| curve.observe(access, block >> 26));
        curve.observe_range(Access::Discard, round << 36..1 << 38);
        curve.end_interval();
    }
    assert_eq!(curve.points().last().map(|point| point.size_blocks), Some(options.largest));
}
