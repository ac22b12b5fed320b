//! Caches that grow and shrink as they like, and boosts that come and go, under a ledger that is told of it now and then.

use std::collections::BTreeMap;

use surgetank_allocation::Ledger;
use surgetank_model::Bytes;
use surgetank_model::random::Random;

const BUDGET: u64 = 100;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const BOOSTS: [&str; 2] = ["a", "e"];

/// Together they have the budget at most at every time, and in the end what they are to have.
pub fn run(seed: u64) -> Result<(), String> {
    let mut world = World {
        random: Random::from_seed(seed),
        ledger: Ledger::new(Bytes::new(BUDGET)),
        held: [0; 4],
        may_hold: [0; 4],
        boosts: [(0, 0); 2],
    };
    for _ in 0..8 {
        let plan = world.plan();
        for _ in 0..world.random.below(30) {
            let step = 1 + world.random.below(20);
            world.step(step)?;
            world.caches_change();
            world.check()?;
            if world.random.chance(0.7) {
                world.tells();
            }
        }
        // Another plan comes before this one is reached.
        if world.random.chance(0.6) {
            continue;
        }
        world.settle(&plan)?;
    }
    Ok(())
}

struct World {
    random: Random,
    ledger: Ledger,
    held: [u64; 4],
    /// As far as the ledger can know.
    may_hold: [u64; 4],
    /// What each boost has claimed, and what it has rented.
    boosts: [(u64, u64); 2],
}

impl World {
    /// Boosts begin, end and grow, and caches are to share the rest.
    fn plan(&mut self) -> BTreeMap<String, Bytes> {
        for (at, name) in BOOSTS.iter().enumerate() {
            let others = self.boosts[1 - at].0;
            let (_, rented) = self.boosts[at];
            let claimed = match self.random.below(3) {
                0 => rented,
                1 => 0,
                _ => (rented + self.random.below(60)).min((BUDGET - others).max(rented)),
            };
            if claimed > rented {
                self.ledger.claim(name, Bytes::new(claimed));
            } else {
                // It has ended, or is content with what it has.
                self.ledger.rents(name, Bytes::new(claimed));
            }
            self.boosts[at] = (claimed, rented.min(claimed));
        }
        let left = BUDGET - self.boosts.iter().map(|(claimed, _)| claimed).sum::<u64>();
        let weights = NAMES.map(|_| self.random.below(100));
        let all: u64 = weights.iter().sum();
        let share = |(name, weight): (&&str, u64)| ((*name).to_owned(), Bytes::new(weight * left / all.max(BUDGET)));
        let plan = NAMES.iter().zip(weights).map(share).collect();
        self.ledger.aim(&plan);
        plan
    }

    fn limit(&self, at: usize) -> u64 {
        self.ledger.limit(NAMES[at]).get()
    }

    /// A step, after which boosts rent what they may.
    fn step(&mut self, step: u64) -> Result<(), String> {
        let may_hold = [0, 1, 2, 3].map(|at| self.may_hold[at].max(self.limit(at)));
        self.may_hold = may_hold;
        let changed = self.ledger.step(Bytes::new(step));
        let larger = |(name, limit): &(String, Bytes)| {
            NAMES.iter().position(|other| other == name).is_some_and(|at| limit.get() > may_hold[at])
        };
        if self.ledger.is_waited_for() && changed.iter().any(larger) {
            return Err(format!("a cache becomes larger while a boost waits: {:?}", self.ledger));
        }
        for (name, (claimed, rented)) in BOOSTS.iter().zip(&mut self.boosts) {
            if self.ledger.granted(name).get() == *claimed && *claimed > *rented {
                *rented = *claimed;
                self.ledger.rents(name, Bytes::new(*claimed));
            }
        }
        Ok(())
    }

    fn caches_change(&mut self) {
        for at in 0..NAMES.len() {
            let (limit, held) = (self.limit(at), self.held[at]);
            self.held[at] = match held < limit {
                // Filled in no time, or hardly used.
                true if self.random.chance(0.2) => held + self.random.below(limit - held + 1),
                true => held,
                false => held - (held - limit).min(self.random.below(9)),
            };
        }
    }

    fn check(&self) -> Result<(), String> {
        let caches: u64 = (0..NAMES.len()).map(|at| self.held[at].max(self.limit(at))).sum();
        let boosts: u64 =
            BOOSTS.iter().zip(self.boosts).map(|(name, (_, rented))| rented.max(self.ledger.granted(name).get())).sum();
        match caches + boosts {
            together if together > BUDGET => {
                Err(format!("{together} of {BUDGET} are held, given or rented: {:?}", self.ledger))
            }
            _ => Ok(()),
        }
    }

    fn tells(&mut self) {
        self.may_hold = self.held;
        NAMES.iter().zip(self.held).for_each(|(name, held)| self.ledger.holds(name, Bytes::new(held)));
    }

    /// Everybody gets what they are to have.
    fn settle(&mut self, plan: &BTreeMap<String, Bytes>) -> Result<(), String> {
        for _ in 0..60 {
            self.step(20)?;
            for at in 0..NAMES.len() {
                self.held[at] = self.held[at].min(self.limit(at));
            }
            self.check()?;
            self.tells();
        }
        if let Some((name, (claimed, rented))) =
            BOOSTS.iter().zip(self.boosts).find(|(_, (claimed, rented))| rented < claimed)
        {
            return Err(format!("{name} waits for {claimed} and has {rented}: {:?}", self.ledger));
        }
        match plan.iter().find(|(name, target)| self.ledger.limit(name) != **target) {
            Some((name, target)) => Err(format!("{name} may have {} and is to have {target}", self.ledger.limit(name))),
            None => Ok(()),
        }
    }
}
