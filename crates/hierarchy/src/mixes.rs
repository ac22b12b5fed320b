//! Mixes of four applications in the manner of the paper's, in blocks of 16 KiB (PSKP10, 4.1: data sets of 4 to 20 GB, five hundred to two thousand accesses per second).
//! The paper names its applications and not what they do block by block; what is known of them is beside each.

use crate::load::{Area, Pattern, Phase, Source};

/// Bytes of a block.
pub const BLOCK: u64 = 16 << 10;

fn sweep(blocks: u64, stride: u64) -> Pattern {
    Pattern::Sweep { blocks, stride }
}

fn zipf(blocks: u64, skew: f64) -> Pattern {
    Pattern::Zipf { blocks, skew }
}

/// Areas one behind the other.
fn phase(lasts_s: f64, areas: &[(f64, u64, Pattern)]) -> Phase {
    let mut base = 0;
    let area = |(weight, run, pattern): &(f64, u64, Pattern)| {
        let area = Area { base, pattern: pattern.clone(), weight: *weight, run: *run };
        base += size(pattern);
        area
    };
    Phase { lasts_s, areas: areas.iter().map(area).collect() }
}

fn size(pattern: &Pattern) -> u64 {
    match pattern {
        Pattern::Sweep { blocks, .. } | Pattern::Uniform { blocks } | Pattern::Zipf { blocks, .. } => *blocks,
        Pattern::Trace(blocks) => blocks.iter().max().map_or(0, |last| last + 1),
    }
}

fn source(name: &str, accesses_per_s: f64, areas: &[(f64, u64, Pattern)]) -> Source {
    Source { name: name.to_owned(), accesses_per_s, phases: vec![phase(3600.0, areas)] }
}

/// BTIO, HPIO, IOR and MPI-Tile-IO: loops over files, sequential and strided, random accesses to one file, tiles that
/// overlap.
#[must_use]
pub fn hpc() -> Vec<Source> {
    vec![
        // NAS BT class B writes 1.6 GB in steps and reads them back: one loop, beside what its ranks read again.
        source("BTIO", 900.0, &[(0.55, 16, sweep(104_857, 8)), (0.45, 1, zipf(12_000, 0.9))]),
        // Regions that are not contiguous, in memory and in the file: small strides over 256 MB, and 1 GB at random.
        source(
            "HPIO",
            700.0,
            &[
                (0.25, 8, sweep(16_384, 32)),
                (0.35, 4, Pattern::Uniform { blocks: 65_536 }),
                (0.40, 1, zipf(30_000, 0.8)),
            ],
        ),
        // Interleaved or random over one shared file of 4 GB, and a part that is read once.
        source(
            "IOR",
            600.0,
            &[
                (0.50, 2, Pattern::Uniform { blocks: 262_144 }),
                (0.15, 32, sweep(524_288, 1)),
                (0.35, 1, zipf(8_000, 0.9)),
            ],
        ),
        // Tiles of a dense array that share their edges: most are read again soon.
        source("MPI-Tile-IO", 1200.0, &[(0.70, 8, sweep(11_000, 16)), (0.30, 2, Pattern::Uniform { blocks: 90_000 })]),
    ]
}

/// TPC-H, TPC-R, TPC-C and glimpse.
#[must_use]
pub fn enterprise() -> Vec<Source> {
    vec![
        // Scans of tables that no cache holds, and joins with small ones.
        source("TPC-H", 600.0, &[(0.45, 32, sweep(524_288, 1)), (0.55, 1, zipf(80_000, 0.7))]),
        // The same queries with prepared aggregates: a loop over those.
        source("TPC-R", 700.0, &[(0.40, 16, sweep(95_000, 1)), (0.60, 1, zipf(60_000, 0.8))]),
        // Transactions on rows of which few are popular.
        source("TPC-C", 1500.0, &[(1.0, 1, zipf(400_000, 0.85))]),
        // An index that fits into both levels.
        source("glimpse", 500.0, &[(0.50, 16, sweep(3_000, 1)), (0.50, 1, zipf(20_000, 0.9))]),
    ]
}
