//! Bitmaps of positions, and a counting tree over them.

/// Positions that count, one bit each.
#[derive(Clone, Debug, Default)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// All clear; rounded up to whole words.
    pub fn clear_of(bits: usize) -> Self {
        Self { words: vec![0; bits.div_ceil(64)] }
    }

    /// The first `ones` set, the rest of `bits` clear.
    pub fn ones_of(ones: usize, bits: usize) -> Self {
        let mut words = vec![0; bits.div_ceil(64)];
        words[..ones / 64].fill(u64::MAX);
        if let Some(last) = words.get_mut(ones / 64) {
            *last = (1 << (ones % 64)) - 1;
        }
        Self { words }
    }

    /// How many positions there are.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.words.len() * 64
    }

    #[inline]
    pub fn get(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    #[inline]
    pub fn set(&mut self, at: usize) {
        self.words[at / 64] |= 1 << (at % 64);
    }

    #[inline]
    pub fn clear(&mut self, at: usize) {
        self.words[at / 64] &= !(1 << (at % 64));
    }

    /// The first one set at or after `from`.
    #[inline]
    pub fn next_set(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut word = *self.words.get(index)? & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = *self.words.get(index)?;
        }
        Some(index * 64 + word.trailing_zeros() as usize)
    }
}

/// How many bits were set before each position: where a position lands when the others are dropped.
#[derive(Debug)]
pub struct Ranks {
    bits: Bits,
    /// Set bits before each word.
    before: Vec<u64>,
    /// Of the first position that is kept.
    floor_rank: usize,
}

impl Ranks {
    /// Of these bits, all before `floor` dropped.
    pub fn new(bits: Bits, floor: usize) -> Self {
        let mut sum = 0;
        let before = |word: &u64| {
            let before = sum;
            sum += u64::from(word.count_ones());
            before
        };
        let before = bits.words.iter().map(before).collect();
        let mut ranks = Self { bits, before, floor_rank: 0 };
        ranks.floor_rank = ranks.of(floor);
        ranks
    }

    /// Set bits from the floor up to, and without, a position that is not below the floor.
    #[inline]
    pub fn of(&self, at: usize) -> usize {
        if at >= self.bits.capacity() { self.count() } else { self.all_before(at) - self.floor_rank }
    }

    /// Set bits before a position, those before the floor too.
    #[inline]
    fn all_before(&self, at: usize) -> usize {
        let below = self.bits.words[at / 64] & !(u64::MAX << (at % 64));
        self.before[at / 64] as usize + below.count_ones() as usize
    }

    /// A position's new place, if it is kept; without a branch on whether it is.
    #[inline]
    pub fn kept(&self, at: usize, floor: usize) -> Option<usize> {
        let place = self.all_before(at).wrapping_sub(self.floor_rank);
        ((at >= floor) & self.bits.get(at)).then_some(place)
    }

    /// Set bits from the floor on.
    pub fn count(&self) -> usize {
        let last = self.bits.words.last().map_or(0, |word| word.count_ones() as usize);
        self.before.last().map_or(0, |before| *before as usize) + last - self.floor_rank
    }
}

const BLOCK_WORDS: usize = 8;
const BLOCK_BITS: usize = BLOCK_WORDS * 64;
const FAN_OUT: usize = 64;

/// Counts of set bits, per block of 512 and then in groups of 64: to count the bits above a position, a few cache lines
/// are summed up, and a change is one addition a level.
#[derive(Debug)]
pub struct Counts {
    /// From the blocks up; the topmost has at most [`FAN_OUT`] entries.
    levels: Vec<Vec<u32>>,
}

impl Counts {
    /// Of these bits.
    pub fn of(bits: &Bits) -> Self {
        let blocks = bits.words.chunks(BLOCK_WORDS).map(|words| words.iter().map(|word| word.count_ones()).sum());
        let mut levels: Vec<Vec<u32>> = vec![blocks.collect()];
        while let Some(below) = levels.last().filter(|level| level.len() > FAN_OUT) {
            let above = below.chunks(FAN_OUT).map(|counts| counts.iter().sum()).collect();
            levels.push(above);
        }
        Self { levels }
    }

    /// A bit was set.
    #[inline]
    pub fn added(&mut self, at: usize) {
        let mut index = at / BLOCK_BITS;
        for level in &mut self.levels {
            level[index] += 1;
            index /= FAN_OUT;
        }
    }

    /// A bit was cleared.
    #[inline]
    pub fn removed(&mut self, at: usize) {
        let mut index = at / BLOCK_BITS;
        for level in &mut self.levels {
            level[index] -= 1;
            index /= FAN_OUT;
        }
    }

    /// Set bits after a position.
    #[inline]
    pub fn above(&self, bits: &Bits, at: usize) -> u64 {
        let word = at / 64;
        let block_end = (word / BLOCK_WORDS + 1) * BLOCK_WORDS;
        // Shifted twice: a shift by 64 is none.
        let mut sum = u64::from((bits.words[word] >> (at % 64) >> 1).count_ones());
        let rest = &bits.words[word + 1..block_end.min(bits.words.len())];
        sum += rest.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let mut index = at / BLOCK_BITS;
        for level in &self.levels {
            let group_end = ((index / FAN_OUT + 1) * FAN_OUT).min(level.len());
            sum += level[index + 1..group_end].iter().map(|count| u64::from(*count)).sum::<u64>();
            index /= FAN_OUT;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits_of(set: &[usize], capacity: usize) -> Bits {
        let mut bits = Bits::clear_of(capacity);
        set.iter().for_each(|at| bits.set(at % capacity));
        bits
    }

    proptest! {
        #[test]
        fn counting_equals_looking(set in prop::collection::vec(0usize..70_000, 0..300), at in 0usize..70_000, cleared in any::<prop::sample::Index>()) {
            // More than 64 groups of 64 blocks would take 2^21 bits: the third level has a test of its own.
            let mut bits = bits_of(&set, 70_016);
            let mut counts = Counts::of(&bits);
            if !set.is_empty() {
                let gone = set[cleared.index(set.len())];
                bits.clear(gone);
                counts.removed(gone);
            }
            if !bits.get(at) {
                bits.set(at);
                counts.added(at);
            }
            let above = (at + 1..bits.capacity()).filter(|at| bits.get(*at)).count() as u64;
            prop_assert_eq!(counts.above(&bits, at), above);
            let next = (at + 1..bits.capacity()).find(|at| bits.get(*at));
            prop_assert_eq!(bits.next_set(at + 1), next);
            let ranks = Ranks::new(bits.clone(), at);
            prop_assert_eq!(ranks.count() as u64, above + 1);
            prop_assert_eq!(ranks.kept(at, at), Some(0));
            if let Some(next) = next {
                prop_assert_eq!(ranks.kept(next, at), Some(1));
            }
        }
    }

    #[test]
    fn three_levels_count_too() {
        let capacity = 5 << 20;
        let set: Vec<usize> = (0..40_000).map(|index: usize| index.wrapping_mul(7919) % capacity).collect();
        let bits = bits_of(&set, capacity);
        let counts = Counts::of(&bits);
        assert_eq!(counts.levels.len(), 3);
        for at in (0..capacity).step_by(65_521) {
            let above = bits.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
                - (0..=at / 64).map(|word| u64::from(bits.words[word].count_ones())).sum::<u64>()
                + u64::from((bits.words[at / 64] >> (at % 64) >> 1).count_ones());
            assert_eq!(counts.above(&bits, at), above, "{at}");
        }
    }

    #[test]
    fn edges() {
        assert_eq!(Bits::ones_of(64, 128).next_set(64), None);
        assert_eq!(Bits::ones_of(65, 128).next_set(64), Some(64));
        assert_eq!(Bits::ones_of(0, 64).next_set(0), None);
        assert_eq!(Bits::clear_of(64).next_set(64), None);
        assert_eq!(Ranks::new(Bits::ones_of(64, 64), 64).count(), 0);
        assert_eq!(Counts::of(&Bits::ones_of(64, 64)).above(&Bits::ones_of(64, 64), 63), 0);
    }
}
