//! The policies word by word: lists that are searched from end to end.

use std::collections::VecDeque;

pub trait Naive {
    /// Whether it hits.
    fn access(&mut self, key: u64) -> bool;
}

/// Newest at the front.
pub struct Lru {
    size: usize,
    keys: VecDeque<u64>,
}

impl Lru {
    pub fn new(size: usize) -> Self {
        Self { size, keys: VecDeque::new() }
    }
}

impl Naive for Lru {
    fn access(&mut self, key: u64) -> bool {
        let found = self.keys.iter().position(|other| *other == key);
        if let Some(at) = found {
            self.keys.remove(at);
        }
        self.keys.push_front(key);
        self.keys.truncate(self.size);
        found.is_some()
    }
}

pub struct Fifo {
    size: usize,
    keys: VecDeque<u64>,
}

impl Fifo {
    pub fn new(size: usize) -> Self {
        Self { size, keys: VecDeque::new() }
    }
}

impl Naive for Fifo {
    fn access(&mut self, key: u64) -> bool {
        let hit = self.keys.contains(&key);
        if !hit {
            self.keys.push_front(key);
            self.keys.truncate(self.size);
        }
        hit
    }
}

/// Algorithm 1 of the SIEVE paper. Newest at the front; the hand is an index into that, if it stands anywhere.
pub struct Sieve {
    size: usize,
    queue: Vec<(u64, bool)>,
    hand: Option<usize>,
}

impl Sieve {
    pub fn new(size: usize) -> Self {
        Self { size, queue: Vec::new(), hand: None }
    }
}

impl Naive for Sieve {
    fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        if let Some(object) = self.queue.iter_mut().find(|object| object.0 == key) {
            object.1 = true;
            return true;
        }
        if self.queue.len() == self.size {
            let tail = self.queue.len() - 1;
            let mut object = self.hand.unwrap_or(tail);
            while self.queue[object].1 {
                self.queue[object].1 = false;
                object = object.checked_sub(1).unwrap_or(tail);
            }
            self.hand = object.checked_sub(1);
            self.queue.remove(object);
        }
        self.queue.insert(0, (key, false));
        self.hand = self.hand.map(|hand| hand + 1);
        false
    }
}

/// Algorithm 1 of the S3-FIFO paper, with the ghost queue of its section 4.2: entries age out by those that came after.
pub struct S3Fifo {
    size: usize,
    small: VecDeque<(u64, u8)>,
    main: VecDeque<(u64, u8)>,
    /// All that ever became ghosts, newest at the front.
    ghosts: VecDeque<u64>,
}

impl S3Fifo {
    pub fn new(size: usize) -> Self {
        Self { size, small: VecDeque::new(), main: VecDeque::new(), ghosts: VecDeque::new() }
    }

    fn small_size(&self) -> usize {
        (self.size / 10).max(1)
    }

    fn main_size(&self) -> usize {
        self.size.saturating_sub(self.small_size())
    }

    fn evict_small(&mut self) {
        let mut evicted = false;
        while !evicted && !self.small.is_empty() {
            let (key, frequency) = self.small.pop_back().unwrap();
            if frequency > 1 {
                self.main.push_front((key, 0));
                if self.main.len() > self.main_size() {
                    self.evict_main();
                }
            } else {
                self.ghosts.push_front(key);
                evicted = true;
            }
        }
    }

    fn evict_main(&mut self) {
        let mut evicted = false;
        while !evicted && !self.main.is_empty() {
            let (key, frequency) = self.main.pop_back().unwrap();
            if frequency > 0 {
                self.main.push_front((key, frequency - 1));
            } else {
                evicted = true;
            }
        }
    }
}

impl Naive for S3Fifo {
    fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        let cached = self.small.iter_mut().chain(&mut self.main).find(|object| object.0 == key);
        if let Some(object) = cached {
            object.1 = (object.1 + 1).min(3);
            return true;
        }
        while self.small.len() + self.main.len() >= self.size {
            if self.small.len() >= self.small_size() { self.evict_small() } else { self.evict_main() }
        }
        // Only the newest entry of a key counts, and one that led to the main queue is used up.
        let remembered = self.ghosts.iter().take(self.main_size()).any(|ghost| *ghost == key);
        if remembered {
            self.ghosts.iter_mut().filter(|ghost| **ghost == key).for_each(|ghost| *ghost = u64::MAX);
            self.main.push_front((key, 0));
        } else {
            self.small.push_front((key, 0));
        }
        false
    }
}

/// Equation 1 of the LRFU paper: every use of a cached block is remembered and summed up.
pub struct Lrfu {
    size: usize,
    lambda: f64,
    now: i32,
    blocks: Vec<(u64, Vec<i32>)>,
}

impl Lrfu {
    pub fn new(size: usize, lambda: f64) -> Self {
        Self { size, lambda, now: 0, blocks: Vec::new() }
    }
}

impl Naive for Lrfu {
    fn access(&mut self, key: u64) -> bool {
        self.now += 1;
        if self.size == 0 {
            return false;
        }
        if let Some(block) = self.blocks.iter_mut().find(|block| block.0 == key) {
            block.1.push(self.now);
            return true;
        }
        if self.blocks.len() == self.size {
            let value = |uses: &[i32]| {
                let weights = uses.iter().map(|used| (0.5f64).powf(self.lambda * f64::from(self.now - used)));
                (weights.sum::<f64>(), uses.last().copied())
            };
            let least = (0..self.blocks.len())
                .min_by(|a, b| value(&self.blocks[*a].1).partial_cmp(&value(&self.blocks[*b].1)).unwrap());
            self.blocks.remove(least.unwrap());
        }
        self.blocks.push((key, vec![self.now]));
        false
    }
}
