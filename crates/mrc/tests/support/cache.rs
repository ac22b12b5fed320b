//! A read cache with LRU, word by word.

use std::collections::{BTreeMap, HashMap};

use surgetank_mrc::{Access, Curve, OnlineCurve};

/// Reads bring blocks in, writes renew what is there, discards remove it.
struct ReadCache {
    size: u64,
    clock: u64,
    used: HashMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
}

impl ReadCache {
    fn new(size: u64) -> Self {
        Self { size, clock: 0, used: HashMap::new(), blocks: BTreeMap::new() }
    }

    /// Whether the block was there.
    fn access(&mut self, access: Access, block: u64) -> bool {
        self.clock += 1;
        let before = self.used.remove(&block);
        if let Some(at) = before {
            self.blocks.remove(&at);
        }
        let stays = match access {
            Access::Read => self.size > 0,
            Access::Write => before.is_some(),
            Access::Discard => false,
        };
        if stays {
            self.used.insert(block, self.clock);
            self.blocks.insert(self.clock, block);
        }
        if self.used.len() as u64 > self.size
            && let Some((_, block)) = self.blocks.pop_first()
        {
            self.used.remove(&block);
        }
        before.is_some()
    }
}

/// The share of the reads that miss in a cache of each size.
pub fn misses(accesses: &[(Access, u64)], sizes: &[u64]) -> Vec<f64> {
    let reads = accesses.iter().filter(|(access, _)| *access == Access::Read).count();
    let of = |size: &u64| {
        let mut cache = ReadCache::new(*size);
        let misses = accesses.iter().filter(|(access, block)| {
            let hits = cache.access(*access, *block);
            *access == Access::Read && !hits
        });
        misses.count() as f64 / reads as f64
    };
    sizes.iter().map(of).collect()
}

/// The share that an online curve says.
pub fn said(curve: &OnlineCurve, sizes: &[u64]) -> Vec<f64> {
    curve.points(sizes).iter().map(|point| point.miss_ratio).collect()
}

/// The mean of the differences.
pub fn error(exact: &[f64], said: &[f64]) -> f64 {
    exact.iter().zip(said).map(|(exact, said)| (exact - said).abs()).sum::<f64>() / exact.len() as f64
}
