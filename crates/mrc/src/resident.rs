//! One cache whose blocks are known: what comes in, what goes, and which block would go next. For simulators of systems of
//! caches, in which what one evicts comes into another; sizes may change while it is used.

use crate::history::History;
use crate::lrfu::Lrfu;

/// A block with its standing: blocks of lower standing are evicted first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The block.
    pub key: u64,
    /// LRU: when it was used last. LRFU: the logarithm of its value as of time 0.
    pub standing: f64,
}

/// A cache of one size, under LRU or LRFU. Times are counts of accesses, never fall, and are the caller's, so that several
/// caches of one stream of accesses can count alike.
#[derive(Debug)]
pub struct Resident {
    size: u64,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Lru(Recency),
    Lrfu(Lrfu),
}

impl Resident {
    /// An empty LRU cache of so many blocks.
    #[must_use]
    pub fn lru(size: u64) -> Self {
        Self { size, order: Order::Lru(Recency::new()) }
    }

    /// An empty LRFU cache of so many blocks; `lambda` as in [`Policy::Lrfu`](crate::Policy::Lrfu).
    #[must_use]
    pub fn lrfu(size: u64, lambda: f64) -> Self {
        Self { size, order: Order::Lrfu(Lrfu::new(size, lambda)) }
    }

    /// Blocks that it can hold.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that it holds.
    #[must_use]
    pub fn held(&self) -> u64 {
        match &self.order {
            Order::Lru(recency) => recency.held,
            Order::Lrfu(lrfu) => lrfu.held(),
        }
    }

    /// Whether it holds a block, which is not used by that.
    #[must_use]
    pub fn holds(&self, key: u64) -> bool {
        match &self.order {
            Order::Lru(recency) => recency.history.find(key).1.is_some(),
            Order::Lrfu(lrfu) => lrfu.holds(key),
        }
    }

    /// Uses a block; whether it is here. What is not stays out.
    pub fn hit(&mut self, key: u64, now: u64) -> bool {
        match &mut self.order {
            Order::Lru(recency) => recency.hit(key, now),
            Order::Lrfu(lrfu) => lrfu.hit(key, now),
        }
    }

    /// The standing of a block that is used now and had this one before, if it had one.
    #[must_use]
    pub fn standing(&self, before: Option<f64>, now: u64) -> f64 {
        match &self.order {
            Order::Lru(_) => now as f64,
            Order::Lrfu(lrfu) => lrfu.standing(before, now),
        }
    }

    /// Takes in a block that it does not hold, as the last one to be evicted among those of its standing; under LRU whatever its standing. What it evicts for that, which is the
    /// block itself if it can hold none.
    pub fn insert(&mut self, block: Held) -> Option<Held> {
        if self.size == 0 {
            return Some(block);
        }
        let evicted = if self.held() >= self.size { self.evict() } else { None };
        match &mut self.order {
            Order::Lru(recency) => recency.insert(block),
            Order::Lrfu(lrfu) => lrfu.insert(block),
        }
        evicted
    }

    /// Takes a block out; its standing, if it is here.
    pub fn remove(&mut self, key: u64) -> Option<f64> {
        match &mut self.order {
            Order::Lru(recency) => recency.remove(key),
            Order::Lrfu(lrfu) => lrfu.remove(key),
        }
    }

    /// Changes the size; what no longer fits goes to `evicted`, in the order of eviction.
    pub fn resize(&mut self, size: u64, evicted: &mut Vec<Held>) {
        self.size = size;
        if let Order::Lrfu(lrfu) = &mut self.order {
            lrfu.resize(size);
        }
        while self.held() > size {
            evicted.extend(self.evict());
        }
    }

    /// All blocks, in no order.
    #[must_use]
    pub fn blocks(&self) -> Vec<Held> {
        match &self.order {
            Order::Lru(recency) => recency.blocks(),
            Order::Lrfu(lrfu) => lrfu.blocks(),
        }
    }

    fn evict(&mut self) -> Option<Held> {
        match &mut self.order {
            Order::Lru(recency) => recency.evict(),
            Order::Lrfu(lrfu) => lrfu.evict(),
        }
    }
}

/// LRU: blocks by position.
#[derive(Debug)]
struct Recency {
    history: History,
    /// What each position stands for, whether or not it still counts.
    places: Vec<Held>,
    /// No position below it counts.
    floor: usize,
    held: u64,
}

impl Recency {
    fn new() -> Self {
        Self { history: History::new(), places: Vec::new(), floor: 0, held: 0 }
    }

    fn hit(&mut self, key: u64, now: u64) -> bool {
        self.make_room();
        let (slot, before) = self.history.find(key);
        let Some(before) = before else { return false };
        self.history.remove(before);
        self.history.append(slot, key);
        self.places.push(Held { key, standing: now as f64 });
        true
    }

    fn insert(&mut self, block: Held) {
        self.make_room();
        let (before, _) = self.history.renew(block.key);
        self.places.push(block);
        self.held += u64::from(before.is_none());
    }

    fn remove(&mut self, key: u64) -> Option<f64> {
        let (_, at) = self.history.find(key);
        let at = at?;
        self.history.remove(at);
        self.held -= 1;
        Some(self.places[at].standing)
    }

    fn evict(&mut self) -> Option<Held> {
        let oldest = self.history.live().next_set(self.floor)?;
        self.history.remove(oldest);
        self.floor = oldest + 1;
        self.held -= 1;
        Some(self.places[oldest])
    }

    fn blocks(&self) -> Vec<Held> {
        let live = self.history.live();
        (0..self.places.len()).filter(|at| live.get(*at)).map(|at| self.places[at]).collect()
    }

    /// Before a position is dealt.
    fn make_room(&mut self) {
        if self.history.is_full() {
            let ranks = self.history.compact(0);
            let mut at = 0;
            self.places.retain(|_| {
                at += 1;
                ranks.kept(at - 1, 0).is_some()
            });
            self.floor = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a cache must do, written down as it is said.
    struct Naive {
        size: usize,
        lambda: Option<f64>,
        blocks: Vec<Held>,
    }

    impl Naive {
        fn standing(&self, before: Option<f64>, now: u64) -> f64 {
            match self.lambda {
                None => now as f64,
                Some(lambda) => {
                    let decay = lambda * now as f64;
                    before.map_or(0.0, |before| (1.0 + (before - decay).exp2()).log2()) + decay
                }
            }
        }

        fn hit(&mut self, key: u64, now: u64) -> bool {
            let Some(at) = self.blocks.iter().position(|block| block.key == key) else { return false };
            let block = self.blocks.remove(at);
            let standing = self.standing(Some(block.standing), now);
            self.blocks.push(Held { key, standing });
            true
        }

        /// Ties go to the older use, which is further in front.
        fn evict(&mut self) -> Option<Held> {
            let standing = |at: &usize| if self.lambda.is_some() { self.blocks[*at].standing } else { 0.0 };
            let least = (0..self.blocks.len()).min_by(|a, b| standing(a).total_cmp(&standing(b)))?;
            Some(self.blocks.remove(least))
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_its_policy_keeps(
            lambda in prop::option::of(prop::sample::select(vec![0.0, 0.01, 1.0])),
            steps in prop::collection::vec((0u64..40, 0u64..12), 1..600),
        ) {
            let mut cache = lambda.map_or_else(|| Resident::lru(8), |lambda| Resident::lrfu(8, lambda));
            let mut naive = Naive { size: 8, lambda, blocks: Vec::new() };
            for (now, (key, what)) in steps.into_iter().enumerate() {
                let now = now as u64 + 1;
                match what {
                    0 => {
                        let mut evicted = Vec::new();
                        cache.resize(key % 16, &mut evicted);
                        naive.size = (key % 16) as usize;
                        let mut expected = Vec::new();
                        while naive.blocks.len() > naive.size {
                            expected.extend(naive.evict());
                        }
                        prop_assert_eq!(keys(&evicted), keys(&expected));
                    }
                    1 => {
                        let at = naive.blocks.iter().position(|block| block.key == key);
                        prop_assert_eq!(cache.remove(key).is_some(), at.is_some());
                        if let Some(at) = at {
                            naive.blocks.remove(at);
                        }
                    }
                    _ => {
                        let hit = naive.hit(key, now);
                        prop_assert_eq!(cache.hit(key, now), hit);
                        if !hit {
                            let block = Held { key, standing: cache.standing(None, now) };
                            let expected = if naive.size == 0 { Some(block) } else {
                                let evicted = if naive.blocks.len() >= naive.size { naive.evict() } else { None };
                                naive.blocks.push(block);
                                evicted
                            };
                            prop_assert_eq!(cache.insert(block).map(|block| block.key), expected.map(|block| block.key));
                        }
                    }
                }
                prop_assert_eq!(cache.held(), naive.blocks.len() as u64);
                prop_assert!(naive.blocks.iter().all(|block| cache.holds(block.key)));
            }
            let mut ours = keys(&cache.blocks());
            let mut theirs = keys(&naive.blocks);
            ours.sort_unstable();
            theirs.sort_unstable();
            prop_assert_eq!(ours, theirs);
        }
    }

    fn keys(blocks: &[Held]) -> Vec<u64> {
        blocks.iter().map(|block| block.key).collect()
    }
}
