//! Who holds how much of a budget that caches share while they are resized.
//!
//! A cache that is to be smaller takes a while, and one that is to be larger grows at once. So a share is given only after another
//! one has become free: what all hold, or may hold, is never more than the budget.
//!
//! Boosts have a part of the budget as well, for their caching volumes. Writers wait for a boost, so what becomes free goes to boosts first. A boost
//! has all that it claims or nothing of it: a volume is rented as a whole.

use std::collections::BTreeMap;

use surgetank_model::Bytes;

use crate::planted::{Bug, planted};

/// What a cache has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// What it is to have.
    target: Bytes,
    /// What it may have.
    limit: Bytes,
    /// What it had when that was last known.
    held: Bytes,
}

impl Entry {
    /// What it has or may have.
    fn claims(&self) -> u64 {
        self.limit.get().max(self.held.get())
    }
}

/// What a boost has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Claim {
    /// What it is to have.
    wanted: Bytes,
    /// What it may rent, and what it has rented.
    granted: Bytes,
}

impl Claim {
    /// What it waits for.
    fn lacks(&self) -> u64 {
        self.wanted.get().saturating_sub(self.granted.get())
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    budget: Bytes,
    entries: BTreeMap<String, Entry>,
    boosts: BTreeMap<String, Claim>,
}

impl Ledger {
    /// Nobody has anything of this budget.
    #[must_use]
    pub const fn new(budget: Bytes) -> Self {
        Self { budget, entries: BTreeMap::new(), boosts: BTreeMap::new() }
    }

    /// A boost is to have so much in all, as soon as there is room.
    pub fn claim(&mut self, name: &str, size: Bytes) {
        self.boosts.entry(name.to_owned()).or_default().wanted = size;
    }

    /// A boost has rented so much, whatever it had claimed, and waits for nothing.
    pub fn rents(&mut self, name: &str, size: Bytes) {
        if size == Bytes::ZERO {
            self.boosts.remove(name);
        } else {
            self.boosts.insert(name.to_owned(), Claim { wanted: size, granted: size });
        }
    }

    /// What a boost may rent.
    #[must_use]
    pub fn granted(&self, name: &str) -> Bytes {
        self.boosts.get(name).map_or(Bytes::ZERO, |claim| claim.granted)
    }

    /// What boosts have, and what they wait for: the rest is for caches.
    #[must_use]
    pub fn claimed(&self) -> Bytes {
        Bytes::new(self.boosts.values().map(|claim| claim.wanted.max(claim.granted).get()).fold(0, u64::saturating_add))
    }

    /// The same of all boosts but this one.
    #[must_use]
    pub fn claimed_by_others(&self, name: &str) -> Bytes {
        let own = self.boosts.get(name).map_or(Bytes::ZERO, |claim| claim.wanted.max(claim.granted));
        Bytes::new(self.claimed().get().saturating_sub(own.get()))
    }

    /// Whether a boost waits until caches are smaller.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.boosts.values().any(|claim| claim.lacks() > 0)
    }

    /// What caches are to have. Those that are not named are to have nothing.
    pub fn aim(&mut self, targets: &BTreeMap<String, Bytes>) {
        self.entries.values_mut().for_each(|entry| entry.target = Bytes::ZERO);
        for (name, target) in targets {
            self.entries.entry(name.clone()).or_default().target = *target;
        }
    }

    /// A cache was seen to have so much, after it was told its limit.
    pub fn holds(&mut self, name: &str, held: Bytes) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.held = held;
        }
    }

    /// What a cache may have now.
    #[must_use]
    pub fn limit(&self, name: &str) -> Bytes {
        self.entries.get(name).map_or(Bytes::ZERO, |entry| entry.limit)
    }

    /// What a cache has or may have.
    #[must_use]
    pub fn claims(&self, name: &str) -> Bytes {
        Bytes::new(self.entries.get(name).map_or(0, Entry::claims))
    }

    /// Whether everybody may have what they are to have: there is no next step.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.is_waited_for() && self.entries.values().all(|entry| entry.limit == entry.target)
    }

    /// The next step towards the targets: caches whose limits change, and those limits. Smaller by at most `step` at once, larger as
    /// far as others have become smaller and no boost waits. To be called again until it names none and no boost waits.
    pub fn step(&mut self, step: Bytes) -> Vec<(String, Bytes)> {
        let before: Vec<Bytes> = self.entries.values().map(|entry| entry.limit).collect();
        for entry in self.entries.values_mut().filter(|entry| entry.limit > entry.target) {
            // It may have grown as far since it was seen.
            if !planted(Bug::GrowthForgotten) {
                entry.held = entry.held.max(entry.limit);
            }
            entry.limit = Bytes::new(entry.limit.get().saturating_sub(step.get().max(1))).max(entry.target);
        }
        let mut free = self.free();
        if planted(Bug::GivenBeforeFree) {
            free = u64::MAX;
        }
        for claim in self.boosts.values_mut().filter(|claim| claim.lacks() > 0) {
            let lacks = claim.lacks();
            if lacks <= free || planted(Bug::RentedBeforeFree) {
                claim.granted = claim.wanted;
            }
            // It is kept for one that waits on.
            if !planted(Bug::BoostsWaitBehindCaches) {
                free = free.saturating_sub(lacks);
            }
        }
        for entry in self.entries.values_mut().filter(|entry| entry.limit < entry.target) {
            // What it holds above its limit it claims already.
            let claims = entry.claims();
            let most = entry.limit.get().max(claims.saturating_add(free));
            entry.limit = Bytes::new(entry.target.get().min(most));
            free -= entry.claims() - claims;
        }
        let changed = self.entries.iter().zip(before).filter(|((_, entry), before)| entry.limit != *before);
        changed.map(|((name, entry), _)| (name.clone(), entry.limit)).collect()
    }

    /// What nobody has or may have.
    fn free(&self) -> u64 {
        let boosts = self.boosts.values().map(|claim| claim.granted.get()).filter(|_| !planted(Bug::BoostsUncounted));
        let claimed = self.entries.values().map(Entry::claims).chain(boosts).fold(0, u64::saturating_add);
        self.budget.get().saturating_sub(claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(of: &[(&str, u64)]) -> BTreeMap<String, Bytes> {
        of.iter().map(|(name, bytes)| ((*name).to_owned(), Bytes::new(*bytes))).collect()
    }

    #[test]
    fn a_share_is_given_when_another_one_has_become_free() {
        let mut ledger = Ledger::new(Bytes::new(100));
        ledger.aim(&targets(&[("a", 60), ("b", 40)]));
        let first = ledger.step(Bytes::new(20));
        assert_eq!(first, [("a".to_owned(), Bytes::new(60)), ("b".to_owned(), Bytes::new(40))]);
        ledger.holds("a", Bytes::new(60));
        ledger.holds("b", Bytes::new(40));
        ledger.aim(&targets(&[("a", 30), ("b", 70)]));
        assert_eq!(ledger.step(Bytes::new(20)), [("a".to_owned(), Bytes::new(40))]);
        assert_eq!(ledger.step(Bytes::new(20)), [("a".to_owned(), Bytes::new(30))], "a holds it still");
        assert_eq!(ledger.step(Bytes::new(20)), []);
        ledger.holds("a", Bytes::new(45));
        assert_eq!(ledger.step(Bytes::new(20)), [("b".to_owned(), Bytes::new(55))]);
        ledger.holds("a", Bytes::new(30));
        assert!(!ledger.is_settled());
        assert_eq!(ledger.step(Bytes::new(20)), [("b".to_owned(), Bytes::new(70))]);
        assert!(ledger.is_settled());
        ledger.aim(&targets(&[("b", 100)]));
        assert_eq!(ledger.step(Bytes::new(100)), [("a".to_owned(), Bytes::ZERO)]);
        assert_eq!(ledger.step(Bytes::new(100)), [], "what a has now nobody has seen");
    }

    #[test]
    fn a_boost_has_all_of_its_claim_when_caches_have_become_smaller_and_before_others_become_larger() {
        let mut ledger = Ledger::new(Bytes::new(100));
        ledger.aim(&targets(&[("a", 60), ("b", 40)]));
        ledger.step(Bytes::new(100));
        ["a", "b"].iter().for_each(|name| ledger.holds(name, ledger.limit(name)));
        ledger.claim("c", Bytes::new(40));
        ledger.aim(&targets(&[("a", 15), ("b", 45)]));
        assert_eq!(ledger.claimed(), Bytes::new(40));
        assert_eq!(ledger.step(Bytes::new(100)), [("a".to_owned(), Bytes::new(15))]);
        for (held, granted) in [(35, 0), (20, 40)] {
            ledger.holds("a", Bytes::new(held));
            assert_eq!(ledger.step(Bytes::new(100)), [], "what is free is kept for the boost");
            assert_eq!(ledger.granted("c"), Bytes::new(granted));
        }
        assert!(!ledger.is_waited_for() && !ledger.is_settled());
        ledger.holds("a", Bytes::new(15));
        assert_eq!(ledger.step(Bytes::new(100)), [("b".to_owned(), Bytes::new(45))]);
        ledger.rents("c", Bytes::ZERO);
        assert_eq!((ledger.claimed(), ledger.granted("c")), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(ledger.step(Bytes::new(100)), [], "nobody was told to have more");
    }
}
