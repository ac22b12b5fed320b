//! Miss ratios beside what `surgetank-mrc` says of the same accesses.

use surgetank_allocation::hull::Hull;
use surgetank_allocation::{Hierarchy, MissCurve};
use surgetank_hierarchy::{Answer, DiskType, Disks, Grant, Layout, Reach, Replacement, Sharing, System};
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_mrc::{Curve, ExactLru, Policy, Simulation};

use super::ensure;

fn layout(servers: usize, hierarchy: Hierarchy, behind: Replacement) -> Layout {
    Layout {
        hierarchy,
        behind,
        block: 1,
        level1: vec![10_000],
        level2: vec![10_000; servers],
        reach: vec![Reach { level1: 0, level2: (0..servers).collect() }],
    }
}

/// Popular blocks and a loop.
fn accesses(random: &mut Random, count: usize) -> Vec<u64> {
    let (popular, looped) = (50 + random.below(400), 100 + random.below(600));
    let mut at = 0;
    let mut block = || {
        if random.chance(0.5) {
            let range = 1 + random.below(popular);
            return random.below(range);
        }
        at = (at + 1) % looped;
        1000 + at
    };
    (0..count).map(|_| block()).collect()
}

fn hits(system: &mut System, accesses: &[u64]) -> [u64; 2] {
    let mut hits = [0; 2];
    for block in accesses {
        if let Some(count) = hits.get_mut(system.access(0, *block) as usize) {
            *count += 1;
        }
    }
    hits
}

/// Level 1 hits what LRU of its size does; exclusive levels together what LRU of both sizes does.
pub fn exact(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let (first, second) = (random.below(300), random.below(500));
    let mut system = System::new(layout(1, Hierarchy::Exclusive, Replacement::Lru), [Sharing::Partitioned; 2]);
    system.apply(&[Grant { level1: first, level2: vec![(0, second)], hull: None, split: 0.0 }]);
    let accesses = accesses(&mut random, 6000);
    let mut exact = ExactLru::new();
    exact.feed(&accesses);
    let expected: Vec<u64> = exact.points(&[first, first + second]).iter().map(|point| point.hits).collect();
    let [level1, level2] = hits(&mut system, &accesses);
    ensure([level1, level1 + level2] == expected[..], || format!("{level1} and {level2} hits, not {expected:?}"))
}

/// A second level alone is its policy.
pub fn policies(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let size = 1 + random.below(500);
    for (behind, policy) in
        [(Replacement::Lru, Policy::Lru), (Replacement::Lrfu { lambda: 0.001 }, Policy::Lrfu { lambda: 0.001 })]
    {
        let mut system = System::new(layout(1, Hierarchy::Inclusive, behind), [Sharing::Partitioned; 2]);
        system.apply(&[Grant { level1: 0, level2: vec![(0, size)], hull: None, split: 0.0 }]);
        let accesses = accesses(&mut random, 4000);
        let mut simulation = Simulation::new(policy, &[size]);
        simulation.feed(&accesses);
        let expected = simulation.points(&[size])[0].hits;
        let [_, level2] = hits(&mut system, &accesses);
        ensure(level2 == expected, || format!("{behind:?} of {size}: {level2} hits, not {expected}"))?;
    }
    Ok(())
}

/// A share on several servers is nearly as good as on one.
pub fn spread(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let shares: Vec<u64> = (0..4).map(|_| 1000 * random.below(4)).collect();
    let all: u64 = shares.iter().sum();
    let mut system = System::new(layout(4, Hierarchy::Exclusive, Replacement::Lru), [Sharing::Partitioned; 2]);
    system.apply(&[Grant {
        level1: 100,
        level2: shares.iter().copied().enumerate().collect(),
        hull: None,
        split: 0.0,
    }]);
    let accesses: Vec<u64> = (0..60_000).map(|_| random.below(12_000)).collect();
    let mut exact = ExactLru::new();
    exact.feed(&accesses);
    let expected = exact.points(&[100 + all])[0].hits as f64;
    let [level1, level2] = hits(&mut system, &accesses);
    let off = ((level1 + level2) as f64 - expected).abs() / accesses.len() as f64;
    ensure(off < 0.02, || format!("{shares:?}: {} hits, not {expected}", level1 + level2))
}

/// A loop that is larger than its share hits as the hull says if the share is split, and never if it is not.
pub fn split(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let looped = 20_000 + random.below(5000);
    let curve = MissCurve::new(&[(Bytes::new(looped - 1), 1.0), (Bytes::new(looped + 1), 0.0)]);
    let hull = Hull::of(&curve.map_err(|error| error.to_string())?);
    let accesses: Vec<u64> = (0..6 * looped).map(|at| at % looped).collect();
    for hull in [None, Some(hull)] {
        let share = looped * 7 / 10;
        let first = random.below(share / 2);
        let servers: Vec<(usize, u64)> = (0..2).map(|server| (server, (share - first) / 2)).collect();
        let mut system = System::new(layout(2, Hierarchy::Exclusive, Replacement::Lru), [Sharing::Partitioned; 2]);
        system.apply(&[Grant { level1: first, level2: servers, hull: hull.clone(), split: 1.0 }]);
        let [level1, level2] = hits(&mut system, &accesses);
        let ratio = (level1 + level2) as f64 / (5 * looped) as f64;
        let expected = if hull.is_some() { 0.62..0.71 } else { 0.0..0.05 };
        ensure(expected.contains(&ratio), || format!("split: {}, hits {ratio}, not {expected:?}", hull.is_some()))?;
    }
    Ok(())
}

/// Latency of a disk grows with its load.
pub fn disk(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut mean_ms = |gap_ms: f64| {
        let mut disks = Disks::new(DiskType::PAPER, 2);
        let mut at_ms = 0.0;
        let mut sum = 0.0;
        for _ in 0..3000 {
            at_ms -= (1.0 - random.unit()).ln() * gap_ms;
            sum += disks.read(random.below(1 << 19), random.next_u64(), at_ms);
        }
        sum / 3000.0
    };
    let (idle, busy) = (mean_ms(200.0), mean_ms(6.0));
    ensure(busy > 1.5 * idle, || format!("{busy} ms busy, {idle} ms idle"))
}

/// What the first level missed.
pub fn answers(_: u64) -> Result<(), String> {
    ensure(Answer::Level1 < Answer::Level2 && Answer::Level2 < Answer::Disk, || "answers have no order".to_owned())
}
