//! Applications' accesses, generated from seeds or taken from traces, at times of their own: the same for every scheme.

use std::sync::Arc;

use surgetank_model::random::Random;

/// An application.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Of no other one.
    pub name: String,
    /// Accesses per second on average; the time between two is random (a Poisson process).
    pub accesses_per_s: f64,
    /// What it does, one after the other, again and again.
    pub phases: Vec<Phase>,
}

/// A time in which an application does the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// How long.
    pub lasts_s: f64,
    /// What it accesses.
    pub areas: Vec<Area>,
}

/// A part of an application's data.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    /// Its first block.
    pub base: u64,
    /// In which order its blocks are accessed.
    pub pattern: Pattern,
    /// How many of the phase's accesses go there, as weights.
    pub weight: f64,
    /// How many in a row.
    pub run: u64,
}

/// An order of accesses.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// One block after the other, `stride` apart, until all were accessed; then again.
    Sweep {
        /// All of them.
        blocks: u64,
        /// 1: sequential.
        stride: u64,
    },
    /// Any, each as likely; a run is sequential.
    Uniform {
        /// All of them.
        blocks: u64,
    },
    /// Few are accessed often: the k-th most popular one in proportion to k^-skew. A run is sequential.
    Zipf {
        /// All of them.
        blocks: u64,
        /// Not 1.
        skew: f64,
    },
    /// As recorded; then again.
    Trace(Arc<[u64]>),
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    /// When.
    pub at_ms: f64,
    /// Whose.
    pub application: usize,
    /// Of which block.
    pub block: u64,
}

/// All accesses of some applications, in order of time, without end.
#[derive(Debug)]
pub struct Load {
    streams: Vec<Stream>,
}

impl Load {
    /// Of these applications. Accesses of one do not depend on the others.
    #[must_use]
    pub fn new(sources: &[Source], seed: u64) -> Self {
        let stream = |(index, source): (usize, &Source)| {
            Stream::new(source.clone(), Random::from_seed(seed.wrapping_add(0x9e37_79b9 * (index as u64 + 1))))
        };
        Self { streams: sources.iter().enumerate().map(stream).collect() }
    }
}

impl Iterator for Load {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        let next = self.streams.iter().enumerate().min_by(|(_, a), (_, b)| a.next_ms.total_cmp(&b.next_ms));
        let (application, at_ms) = next.map(|(index, stream)| (index, stream.next_ms))?;
        let block = self.streams[application].take();
        Some(Access { at_ms, application, block })
    }
}

#[derive(Debug)]
struct Stream {
    source: Source,
    random: Random,
    next_ms: f64,
    phase: usize,
    phase_ends_ms: f64,
    /// Where each area of each phase is; phases that name the same area share nothing.
    places: Vec<Vec<u64>>,
    /// The run that is under way: its area, its block, what is left of it.
    run: (usize, u64, u64),
}

impl Stream {
    fn new(source: Source, mut random: Random) -> Self {
        let places = source.phases.iter().map(|phase| vec![0; phase.areas.len()]).collect();
        let phase_ends_ms = source.phases.first().map_or(f64::INFINITY, |phase| phase.lasts_s * 1e3);
        let has_nothing = source.phases.iter().all(|phase| phase.areas.is_empty()) || source.accesses_per_s <= 0.0;
        let next_ms = if has_nothing { f64::INFINITY } else { gap_ms(&source, &mut random) };
        Self { source, random, next_ms, phase: 0, phase_ends_ms, places, run: (0, 0, 0) }
    }

    fn take(&mut self) -> u64 {
        while self.next_ms >= self.phase_ends_ms {
            self.phase = (self.phase + 1) % self.source.phases.len();
            self.phase_ends_ms += self.source.phases[self.phase].lasts_s.max(1e-3) * 1e3;
            self.run.2 = 0;
        }
        self.next_ms += gap_ms(&self.source, &mut self.random);
        let areas = &self.source.phases[self.phase].areas;
        if self.run.2 == 0 {
            let all: f64 = areas.iter().map(|area| area.weight / area.run as f64).sum();
            let mut at = self.random.unit() * all;
            let area = areas.iter().position(|area| {
                at -= area.weight / area.run as f64;
                at < 0.0
            });
            let area = area.unwrap_or(areas.len() - 1);
            let block = begin(&areas[area].pattern, areas[area].run, &mut self.random);
            self.run = (area, block, areas[area].run);
        }
        let (index, block, left) = self.run;
        self.run = (index, block + 1, left - 1);
        let (area, place) = (&areas[index], &mut self.places[self.phase][index]);
        area.base
            + match &area.pattern {
                Pattern::Sweep { blocks, stride } => {
                    let (at, turns) = (*place % blocks, blocks.div_ceil(*stride));
                    *place += 1;
                    // Turns end where the stride leaves the area, each one block further on than the one before.
                    let (turn, within) = (at / turns, at % turns);
                    (within * stride + turn) % blocks
                }
                Pattern::Trace(blocks) => {
                    *place += 1;
                    blocks[(*place - 1) as usize % blocks.len()]
                }
                Pattern::Uniform { blocks } | Pattern::Zipf { blocks, .. } => block % blocks,
            }
    }
}

/// The first block of a run.
fn begin(pattern: &Pattern, run: u64, random: &mut Random) -> u64 {
    match pattern {
        Pattern::Uniform { blocks } => random.below(*blocks) / run * run,
        Pattern::Zipf { blocks, skew } => {
            // The inverse of ∫ x^-skew from 1 to blocks + 1.
            let exponent = 1.0 - skew;
            let end = (*blocks as f64 + 1.0).powf(exponent);
            let rank = (1.0 + random.unit() * (end - 1.0)).powf(1.0 / exponent) as u64;
            // Popular blocks lie anywhere: a multiplication by a prime is a permutation.
            let scattered = u128::from(rank - 1) * 2_654_435_761 % u128::from(*blocks);
            scattered as u64 / run * run
        }
        Pattern::Sweep { .. } | Pattern::Trace(_) => 0,
    }
}

fn gap_ms(source: &Source, random: &mut Random) -> f64 {
    -(1.0 - random.unit()).ln() / source.accesses_per_s * 1e3
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn source(pattern: Pattern, run: u64) -> Source {
        let areas = vec![Area { base: 1000, pattern, weight: 1.0, run }];
        Source { name: "a".to_owned(), accesses_per_s: 1000.0, phases: vec![Phase { lasts_s: 5.0, areas }] }
    }

    fn blocks(pattern: Pattern, run: u64, count: usize) -> Vec<u64> {
        Load::new(&[source(pattern, run)], 1).take(count).map(|access| access.block - 1000).collect()
    }

    #[test]
    fn a_sweep_accesses_every_block_once_a_round() {
        for stride in [1, 8, 100] {
            let round = blocks(Pattern::Sweep { blocks: 1600, stride }, 16, 3200);
            let all: BTreeSet<u64> = round[..1600].iter().copied().collect();
            assert_eq!((all.len(), all.last()), (1600, Some(&1599)), "{stride}");
            assert_eq!(round[..1600], round[1600..]);
        }
    }

    #[test]
    fn popular_blocks_are_accessed_more_often_and_all_are_in_the_area() {
        let of = blocks(Pattern::Zipf { blocks: 1000, skew: 1.2 }, 1, 20_000);
        let mut counts = vec![0; 1000];
        of.iter().for_each(|block| counts[*block as usize] += 1);
        counts.sort_unstable();
        assert!(counts[999] > 10 * counts[900] && counts[999] > 2000, "{:?}", &counts[990..]);
    }

    #[test]
    fn the_same_seed_gives_the_same_accesses_in_order_of_time() {
        let sources =
            [source(Pattern::Uniform { blocks: 1 << 20 }, 4), source(Pattern::Zipf { blocks: 99, skew: 0.8 }, 1)];
        let of = |seed| Load::new(&sources, seed).take(5000).collect::<Vec<_>>();
        let (one, same, other) = (of(1), of(1), of(2));
        assert_eq!(one, same);
        assert!(one != other && one.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert!((one[4999].at_ms - 2500.0).abs() < 150.0, "{}", one[4999].at_ms);
        // One application's accesses are its own.
        let alone: Vec<u64> = Load::new(&sources[..1], 1).take(1000).map(|access| access.block).collect();
        let among: Vec<u64> = one.iter().filter(|access| access.application == 0).map(|access| access.block).collect();
        assert_eq!(alone, among[..1000]);
    }
}
