//! A policy at given sizes.

use surgetank_readcache::Simulated as ReadCache;

use crate::BATCH;
use crate::curve::{Curve, Point};
use crate::fifo::Fifo;
use crate::lrfu::Lrfu;
use crate::lru::Lru;
use crate::s3fifo::S3Fifo;
use crate::sieve::Sieve;

/// Which block a full cache evicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The one that was not used for the longest time.
    Lru,
    /// The one that came in first.
    Fifo,
    /// The one of the least combined recency and frequency (LRFU01).
    Lrfu {
        /// How fast uses lose their weight: ½^(λ·age in requests), from 0 (LFU) to 1 (LRU).
        lambda: f64,
    },
    /// Small, main and ghost queue (S3FIFO23).
    S3Fifo,
    /// A queue and a hand (SIEVE24).
    Sieve,
    /// What the read cache of a device does: S3-FIFO by segments. The code that it runs, not a model of it.
    ReadCache,
}

/// Caches of several sizes under one policy, fed in one pass.
#[derive(Debug)]
pub struct Simulation {
    /// Ascending, each once.
    sizes: Vec<u64>,
    requests: u64,
    caches: Caches,
}

#[derive(Debug)]
enum Caches {
    /// One structure for all sizes.
    Lru(Lru),
    Fifo(Vec<Counted<Fifo>>),
    Lrfu(Vec<Counted<Lrfu>>),
    S3Fifo(Vec<Counted<S3Fifo>>),
    Sieve(Vec<Counted<Sieve>>),
    ReadCache(Vec<Counted<ReadCache>>),
}

#[derive(Debug)]
struct Counted<C> {
    cache: C,
    hits: u64,
}

impl Simulation {
    /// Empty caches of these sizes, in blocks, in any order.
    #[must_use]
    pub fn new(policy: Policy, sizes: &[u64]) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        let caches = match policy {
            Policy::Lru => Caches::Lru(Lru::new(&sizes)),
            Policy::Fifo => Caches::Fifo(counted(&sizes, Fifo::new)),
            Policy::Lrfu { lambda } => Caches::Lrfu(counted(&sizes, |size| Lrfu::new(size, lambda))),
            Policy::S3Fifo => Caches::S3Fifo(counted(&sizes, S3Fifo::new)),
            Policy::Sieve => Caches::Sieve(counted(&sizes, Sieve::new)),
            Policy::ReadCache => Caches::ReadCache(counted(&sizes, ReadCache::new)),
        };
        Self { sizes, requests: 0, caches }
    }

    /// Hits at each size, ascending.
    fn hits(&self) -> Vec<u64> {
        fn of<C>(caches: &[Counted<C>]) -> Vec<u64> {
            caches.iter().map(|cache| cache.hits).collect()
        }
        match &self.caches {
            Caches::Lru(lru) => lru.hits(),
            Caches::Fifo(caches) => of(caches),
            Caches::Lrfu(caches) => of(caches),
            Caches::S3Fifo(caches) => of(caches),
            Caches::Sieve(caches) => of(caches),
            Caches::ReadCache(caches) => of(caches),
        }
    }

    /// Hits at these sizes, in their order; sizes that it was not made with are left out.
    pub(crate) fn hits_at<'a>(&'a self, sizes: &'a [u64]) -> impl Iterator<Item = (u64, u64)> + 'a {
        let hits = self.hits();
        sizes.iter().filter_map(move |size| self.sizes.binary_search(size).ok().map(|at| (*size, hits[at])))
    }
}

fn counted<C>(sizes: &[u64], make: impl Fn(u64) -> C) -> Vec<Counted<C>> {
    sizes.iter().map(|size| Counted { cache: make(*size), hits: 0 }).collect()
}

fn run<C>(caches: &mut [Counted<C>], keys: &[u64], touch: impl Fn(&C, &[u64]), access: impl Fn(&mut C, u64) -> bool) {
    for counted in caches {
        for batch in keys.chunks(BATCH) {
            touch(&counted.cache, batch);
            counted.hits += batch.iter().map(|key| u64::from(access(&mut counted.cache, *key))).sum::<u64>();
        }
    }
}

impl Curve for Simulation {
    fn feed(&mut self, keys: &[u64]) {
        self.requests += keys.len() as u64;
        match &mut self.caches {
            Caches::Lru(lru) => lru.feed(keys),
            Caches::Fifo(caches) => run(caches, keys, Fifo::touch, Fifo::access),
            Caches::Lrfu(caches) => run(caches, keys, Lrfu::touch, Lrfu::access),
            Caches::S3Fifo(caches) => run(caches, keys, S3Fifo::touch, S3Fifo::access),
            Caches::Sieve(caches) => run(caches, keys, Sieve::touch, Sieve::access),
            Caches::ReadCache(caches) => run(caches, keys, |_, _| {}, ReadCache::access),
        }
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn distinct(&self) -> Option<u64> {
        None
    }

    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        self.hits_at(sizes).map(|(size, hits)| Point::exact(size, hits, self.requests)).collect()
    }
}
