//! The longest stretch between two reads, looked up block by block, over so many accesses that positions are dealt anew.

use std::collections::HashMap;

use surgetank_model::random::Random;
use surgetank_mrc::{Access, Online, OnlineCurve};

use super::cache::said;
use super::ensure;

const BLOCKS: u64 = 60;
const ACCESSES: u64 = 12_000;

struct Seen {
    read_at: u64,
    used_at: u64,
    /// `None` if it was discarded.
    longest: Option<usize>,
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (writes, discards) = (random.unit(), 0.05 * random.unit());
    let mut curve = OnlineCurve::new(Online { renewed_after: 0, ..Online::default() });
    let mut blocks: HashMap<u64, Seen> = HashMap::new();
    let (mut reads, mut hits_from) = (0, vec![0; BLOCKS as usize]);
    for now in 1..=ACCESSES {
        let block = (random.unit() * random.unit() * BLOCKS as f64) as u64;
        let access = match random.unit() {
            chance if chance < discards => Access::Discard,
            _ if random.chance(writes) => Access::Write,
            _ => Access::Read,
        };
        curve.observe(access, block);
        let stretch = blocks.get(&block).and_then(|seen| {
            let others = blocks.values().filter(|other| other.read_at > seen.used_at).count();
            Some(seen.longest?.max(others))
        });
        match (access, stretch) {
            (Access::Read, _) => {
                reads += 1;
                if let Some(stretch) = stretch {
                    hits_from[stretch] += 1;
                }
                blocks.insert(block, Seen { read_at: now, used_at: now, longest: Some(0) });
            }
            (Access::Write, Some(_)) => {
                blocks.entry(block).and_modify(|seen| (seen.used_at, seen.longest) = (now, stretch));
            }
            (Access::Write, None) => {}
            (Access::Discard, _) => {
                blocks.entry(block).and_modify(|seen| seen.longest = None);
            }
        }
    }
    let mut hits = 0;
    for (stretch, more) in hits_from.iter().enumerate() {
        hits += more;
        let (expected, found) = (1.0 - f64::from(hits) / f64::from(reads), said(&curve, &[stretch as u64 + 1])[0]);
        ensure((found - expected).abs() < 1e-9, || format!("{found} at {} blocks, not {expected}", stretch + 1))?;
    }
    Ok(())
}
