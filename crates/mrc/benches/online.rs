//! What an access costs an online curve of either kind, as one JSON document: `cargo bench --package surgetank-mrc`. Times are those of the
//! processor, so that what else runs on a machine does not count.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_methods, reason = "curves have no clock, their speed has")]

use surgetank_model::random::Random;
use surgetank_mrc::{Access, Curve, MiniatureCurve, Miniatures, Online, OnlineCurve, spread_sizes};

/// Accesses of a round, and rounds that are timed together: a tick of the kernel's clock is little against them.
const ACCESSES: usize = 1 << 20;
const ROUNDS: usize = 32;
/// Share of a core that curves may take.
const SHARE: f64 = 0.01;

/// This thread's time on a processor so far; some kernels count it in ticks of 4 ms.
fn processor_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    nanoseconds.expect("the first number is the time")
}

/// What an access takes on the average.
fn mean_ns(mut round: impl FnMut()) -> f64 {
    let start = processor_ns();
    (0..ROUNDS).for_each(|_| round());
    (processor_ns() - start) / (ACCESSES * ROUNDS) as f64
}

/// A curve that has seen so many blocks, and accesses to them in no order.
fn case(name: &str, blocks: u64, access: Access) -> String {
    let mut random = Random::from_seed(1);
    let accesses: Vec<u64> = (0..ACCESSES).map(|_| random.below(blocks)).collect();
    let mut curve = OnlineCurve::default();
    curve.observe_range(Access::Read, 0..blocks);
    let before = curve.sampled();
    let ns = mean_ns(|| accesses.iter().for_each(|block| curve.observe(access, *block)));
    let sampled = (curve.sampled() - before) / (ACCESSES * ROUNDS) as f64;
    format!(
        "  {{\"case\": \"{name}\", \"blocks\": {blocks}, \"rate\": {:.6}, \"sampled\": {sampled:.6}, \"ns\": {ns:.2}, \"accesses_per_s\": {:.0}}}",
        curve.rate().share(),
        SHARE * 1e9 / ns
    )
}

/// Miniatures of caches of up to so many blocks, and accesses in no order to `span` blocks.
fn miniatures(name: &str, largest: u64, span: u64, access: Access) -> String {
    let mut random = Random::from_seed(1);
    let accesses: Vec<u64> = (0..ACCESSES).map(|_| random.below(span)).collect();
    let mut curve = MiniatureCurve::new(Miniatures::up_to(largest));
    accesses.iter().for_each(|block| curve.observe(Access::Read, *block));
    let ns = mean_ns(|| accesses.iter().for_each(|block| curve.observe(access, *block)));
    format!(
        "  {{\"case\": \"{name}\", \"largest\": {largest}, \"rate\": {:.6}, \"ns\": {ns:.2}, \"accesses_per_s\": {:.0}}}",
        curve.rate().share(),
        SHARE * 1e9 / ns
    )
}

/// New blocks alone from an empty sample on: the costliest beginning.
fn scan() -> String {
    let mut from = 0;
    let mut curve = OnlineCurve::new(Online { renewed_after: 1, ..Online::default() });
    let ns = mean_ns(|| {
        curve.observe_range(Access::Read, from..from + ACCESSES as u64);
        from += ACCESSES as u64;
        curve.end_interval();
    });
    format!("  {{\"case\": \"a scan into new samples\", \"ns\": {ns:.2}, \"accesses_per_s\": {:.0}}}", SHARE * 1e9 / ns)
}

/// An interval's end with a curve of 32 points.
fn interval() -> String {
    let mut curve = OnlineCurve::default();
    curve.observe_range(Access::Read, 0..1 << 22);
    curve.observe_range(Access::Read, 0..1 << 22);
    let sizes = spread_sizes(1 << 22, 32);
    let mut points = 0;
    let ns = mean_ns(|| {
        for _ in 0..1000 {
            points += curve.points(&sizes).len();
            curve.end_interval();
        }
    });
    assert!(points > 0);
    format!("  {{\"case\": \"the end of an interval\", \"us\": {:.1}}}", ns * ACCESSES as f64 / 1e6)
}

fn main() {
    let rows = [
        case("all reads sampled", 1000, Access::Read),
        case("all reads sampled, a full sample", 6_800, Access::Read),
        case("all writes sampled", 6_800, Access::Write),
        case("one read of 15 sampled", 100_000, Access::Read),
        case("one read of 150 sampled", 1_000_000, Access::Read),
        case("one read of 10,000 sampled", 64 << 20, Access::Read),
        case("one write of 10,000 sampled", 64 << 20, Access::Write),
        scan(),
        miniatures("reads that hit, miniatures of 128 MiB", 1 << 15, 1 << 12, Access::Read),
        miniatures("reads, miniatures of 32 MiB", 1 << 13, 1 << 14, Access::Read),
        miniatures("reads, miniatures of 128 MiB", 1 << 15, 1 << 16, Access::Read),
        miniatures("writes, miniatures of 128 MiB", 1 << 15, 1 << 15, Access::Write),
        miniatures("reads, miniatures of 1 GiB", 1 << 18, 1 << 19, Access::Read),
        miniatures("reads, miniatures of 10 GiB", 10 << 18, 20 << 18, Access::Read),
        miniatures("reads, miniatures of 1 TiB", 1 << 28, 1 << 29, Access::Read),
        interval(),
    ];
    println!("[\n{}\n]", rows.join(",\n"));
}
