//! How accesses are spread over blocks: evenly, or by Zipf's law; and what a cache of the blocks used last keeps of them.

/// Blocks that are accessed alike.
#[derive(Clone, Copy, Debug)]
struct Group {
    blocks: f64,
    /// Of each, per access.
    probability: f64,
}

/// How accesses are spread over blocks, most accessed first.
#[derive(Clone, Debug)]
pub struct Popularity {
    groups: Vec<Group>,
}

/// Ranks that stand for themselves; less accessed ones are grouped.
const EXACT: u64 = 4096;
/// How much larger each group is than the one before.
const GROWTH: f64 = 1.02;

impl Popularity {
    /// Of so many blocks, with the exponent of Zipf's law; 0: evenly.
    #[must_use]
    pub fn new(blocks: u64, exponent: f64) -> Self {
        let blocks = blocks.max(1);
        if exponent == 0.0 {
            let count = blocks as f64;
            return Self { groups: vec![Group { blocks: count, probability: 1.0 / count }] };
        }
        let weight = |rank: f64| rank.powf(-exponent);
        let mut groups: Vec<Group> =
            (1..=blocks.min(EXACT)).map(|rank| Group { blocks: 1.0, probability: weight(rank as f64) }).collect();
        let (mut from, end) = (EXACT as f64 + 1.0, blocks as f64 + 1.0);
        while from < end {
            let until = (from * GROWTH).ceil().min(end);
            // Ranks from..until, by the middle of the range: a step of 2 % is flat enough.
            let middle = weight((from + until - 1.0) / 2.0);
            groups.push(Group { blocks: until - from, probability: middle });
            from = until;
        }
        let sum: f64 = groups.iter().map(|group| group.blocks * group.probability).sum();
        groups.iter_mut().for_each(|group| group.probability /= sum);
        Self { groups }
    }

    /// The share of accesses that each of so many members gets, if a block's pieces lie on members one after the other,
    /// beginning with any.
    #[must_use]
    pub fn shares(&self, members: usize, pieces: u64) -> Vec<f64> {
        let mut shares = vec![0.0; members.max(1)];
        let count = shares.len() as u64;
        let mut next = 0;
        for group in &self.groups {
            let weight = group.blocks * group.probability;
            if group.blocks > 1.0 {
                shares.iter_mut().for_each(|share| *share += weight / count as f64);
                continue;
            }
            for (member, share) in shares.iter_mut().enumerate() {
                let behind = (member as u64 + count - next % count) % count;
                let mine = pieces / count + u64::from(behind < pieces % count);
                *share += weight * mine as f64 / pieces.max(1) as f64;
            }
            next += 1;
        }
        shares
    }

    /// Blocks that so many accesses touch.
    fn touched(&self, accesses: f64) -> f64 {
        self.groups.iter().map(|group| group.blocks * -(-group.probability * accesses).exp_m1()).sum()
    }

    /// The share of accesses to blocks that were among the last so many accesses.
    fn repeated(&self, accesses: f64) -> f64 {
        let of = |group: &Group| group.blocks * group.probability * -(-group.probability * accesses).exp_m1();
        self.groups.iter().map(of).sum()
    }
}

/// How often a cache that evicts the block used longest ago has what is accessed, by the number of accesses since it was empty (by
/// the approximation of Che, Tung and Wang, 2002: a block is there if it was among the last T accesses, with T so that as many
/// blocks as fit were).
#[derive(Clone, Debug)]
pub struct HitRatio {
    /// At 2^(index/4) accesses.
    points: Vec<f64>,
    /// T: accesses that fill it, after which nothing changes.
    fills: f64,
}

/// Points of a doubling.
const PER_DOUBLING: f64 = 4.0;
/// More accesses than any run has.
const DOUBLINGS: u32 = 60;

impl HitRatio {
    /// Of a cache of so many blocks.
    #[must_use]
    pub fn new(popularity: &Popularity, capacity: f64) -> Self {
        let most = f64::from(DOUBLINGS).exp2();
        let (mut low, mut high) = (0.0, most);
        if popularity.touched(most) > capacity {
            for _ in 0..200 {
                let middle = f64::midpoint(low, high);
                if popularity.touched(middle) < capacity { low = middle } else { high = middle }
            }
        }
        let count = (PER_DOUBLING * f64::from(DOUBLINGS)) as u32;
        let at = |index: u32| popularity.repeated((f64::from(index) / PER_DOUBLING).exp2().min(high));
        Self { points: (0..=count).map(at).collect(), fills: high }
    }

    /// After so many accesses.
    #[must_use]
    pub fn after(&self, accesses: f64) -> f64 {
        let accesses = accesses.min(self.fills);
        if accesses < 1.0 {
            return self.points.first().map_or(0.0, |first| first * accesses.max(0.0));
        }
        let at = accesses.log2() * PER_DOUBLING;
        let (index, part) = (at.floor() as usize, at.fract());
        let point = |index: usize| self.points.get(index).or(self.points.last()).copied().unwrap_or(0.0);
        point(index) + (point(index + 1) - point(index)) * part
    }

    /// Once it is full.
    #[must_use]
    pub fn full(&self) -> f64 {
        self.after(self.fills)
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::random::Random;

    use super::*;

    #[test]
    fn shares_and_groups_add_up() {
        for (blocks, exponent) in [(1, 1.2), (5000, 0.0), (204_800, 1.2), (20_000_000, 0.7)] {
            let popularity = Popularity::new(blocks, exponent);
            let count: f64 = popularity.groups.iter().map(|group| group.blocks).sum();
            let sum: f64 = popularity.groups.iter().map(|group| group.blocks * group.probability).sum();
            assert!(
                (count - blocks as f64).abs() < 0.5 && (sum - 1.0).abs() < 1e-9,
                "{blocks} {exponent}: {count} {sum}"
            );
            for (members, pieces) in [(1, 1), (10, 1), (10, 16), (3, 2)] {
                let shares = popularity.shares(members, pieces);
                assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
            }
        }
        let even = Popularity::new(204_800, 1.2).shares(10, 20);
        assert!(even.iter().all(|share| (share - 0.1).abs() < 1e-9), "pieces of one block lie on all: {even:?}");
        let skewed = Popularity::new(204_800, 1.2).shares(10, 1);
        assert!(skewed[0] > 0.19 && skewed[9] < 0.1, "the hottest block lies on one: {skewed:?}");
    }

    /// The approximation against a cache that does it access by access.
    #[test]
    fn hit_ratios_are_those_of_a_cache() {
        for (blocks, exponent, capacity) in [(2000u64, 1.2, 200usize), (2000, 0.8, 1000), (500, 0.0, 100)] {
            let popularity = Popularity::new(blocks, exponent);
            let found = HitRatio::new(&popularity, capacity as f64);
            let mut cumulative = Vec::new();
            let mut sum = 0.0;
            for rank in 1..=blocks {
                sum += (rank as f64).powf(-exponent);
                cumulative.push(sum);
            }
            let mut random = Random::from_seed(7);
            let mut order: Vec<usize> = Vec::new();
            let (mut hits, mut cold) = (0u32, 0u32);
            let (warm_up, accesses) = (20_000u32, 20_000u32);
            for access in 0..warm_up + accesses {
                let drawn = random.unit() * sum;
                let block = cumulative.partition_point(|below| *below < drawn);
                let place = order.iter().rposition(|known| *known == block);
                if let Some(place) = place {
                    order.remove(place);
                } else if order.len() == capacity {
                    order.remove(0);
                }
                order.push(block);
                cold += u32::from(access < 100 && place.is_some());
                hits += u32::from(access >= warm_up && place.is_some());
            }
            let ratio = f64::from(hits) / f64::from(accesses);
            assert!((found.full() - ratio).abs() < 0.012, "{blocks} {exponent} {capacity}: {} {ratio}", found.full());
            let expected: f64 = (0..100).map(|access| found.after(f64::from(access))).sum();
            assert!((expected - f64::from(cold)).abs() < 15.0, "{exponent}: {expected} {cold}");
        }
    }
}
