//! Caches that grow and shrink as they like, under a ledger that is told of it now and then.

use std::collections::BTreeMap;

use surgetank_allocation::Ledger;
use surgetank_model::Bytes;
use surgetank_model::random::Random;

const BUDGET: u64 = 100;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Together they have the budget at most at every time, and in the end what they are to have.
pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut ledger = Ledger::new(Bytes::new(BUDGET));
    let mut held = [0_u64; 4];
    for _ in 0..8 {
        let weights: Vec<u64> = NAMES.iter().map(|_| random.below(100)).collect();
        let all: u64 = weights.iter().sum();
        let plan: BTreeMap<String, Bytes> = NAMES
            .iter()
            .zip(weights)
            .map(|(name, weight)| ((*name).to_owned(), Bytes::new(weight * BUDGET / all.max(BUDGET))))
            .collect();
        ledger.aim(&plan);
        for _ in 0..random.below(30) {
            ledger.step(Bytes::new(1 + random.below(20)));
            for (name, held) in NAMES.iter().zip(&mut held) {
                let limit = ledger.limit(name).get();
                *held = match *held < limit {
                    // Filled in no time, or hardly used.
                    true if random.chance(0.2) => *held + random.below(limit - *held + 1),
                    true => *held,
                    false => *held - (*held - limit).min(random.below(9)),
                };
            }
            let claims = NAMES.iter().zip(held).map(|(name, held)| held.max(ledger.limit(name).get()));
            let together: u64 = claims.sum();
            if together > BUDGET {
                return Err(format!("{together} of {BUDGET} are held or given: {ledger:?}"));
            }
            if random.chance(0.7) {
                NAMES.iter().zip(held).for_each(|(name, held)| ledger.holds(name, Bytes::new(held)));
            }
        }
        // Another plan comes before this one is reached.
        if random.chance(0.6) {
            continue;
        }
        for _ in 0..60 {
            ledger.step(Bytes::new(20));
            for (name, held) in NAMES.iter().zip(&mut held) {
                *held = (*held).min(ledger.limit(name).get());
                ledger.holds(name, Bytes::new(*held));
            }
        }
        if let Some((name, target)) = plan.iter().find(|(name, target)| ledger.limit(name) != **target) {
            return Err(format!("{name} may have {} and is to have {target}", ledger.limit(name)));
        }
    }
    Ok(())
}
