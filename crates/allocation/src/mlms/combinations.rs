//! Which shares meet all SLOs at once, and what to do with what they leave.

use std::collections::BTreeMap;

use surgetank_model::Bytes;

use super::{Surface, relaxed};
use crate::placement::{Network, Place};
use crate::plan::Infeasible;
use crate::planted::{Bug, planted};
use crate::problem::{Problem, Slo};

/// An application's first-level share is tried in so many steps.
const STEPS: u32 = 16;

/// So many combinations go on to the next application, those that need least of the servers.
const BEAM: usize = 64;

/// Of so many combinations what they leave is handed out.
const FINISHED: usize = 16;

/// A gain is that of one of so many parts of a level.
const PARTS: u64 = 32;

/// Shares of both levels in bytes.
type Shares = (Vec<Bytes>, Vec<Bytes>);

pub(super) struct Search<'a> {
    problem: &'a Problem,
    surfaces: &'a [Surface],
    has: Vec<Bytes>,
    /// By application: shares with which its SLO just holds.
    fulfilled: Vec<Vec<(Bytes, Bytes)>>,
}

/// Shares of the first applications, and what they need of the servers.
#[derive(Clone)]
struct Combination {
    firsts: Vec<Bytes>,
    seconds: Vec<Bytes>,
    need: f64,
}

impl<'a> Search<'a> {
    pub fn new(problem: &'a Problem, surfaces: &'a [Surface]) -> Self {
        let has = problem.level2.iter().map(|server| server.cache).collect();
        let mut search = Self { problem, surfaces, has, fulfilled: Vec::new() };
        search.fulfilled = (0..surfaces.len()).map(|application| search.fulfilled_of(application)).collect();
        search
    }

    pub fn latency_ms(&self, application: usize, first: Bytes, second: Bytes) -> f64 {
        self.surfaces[application].at(first.get() as f64, second.get() as f64)
    }

    pub fn fair_ms(&self, application: usize) -> f64 {
        let fair = &self.problem.applications[application].fair;
        self.latency_ms(application, fair.level1, fair.second())
    }

    pub fn bound_ms(&self, application: usize) -> f64 {
        match self.problem.applications[application].slo {
            Slo::AboveFair(slo) if planted(Bug::FactorWithoutOne) => slo * self.fair_ms(application),
            Slo::AboveFair(slo) => (1.0 + slo) * self.fair_ms(application),
            Slo::Latency(latency) => latency.as_secs_f64() * 1e3,
        }
    }

    /// All shares of the first level, each with the least one of the second level with which the SLO holds.
    fn fulfilled_of(&self, application: usize) -> Vec<(Bytes, Bytes)> {
        let member = &self.problem.applications[application];
        let (own, most) = (self.problem.level1[member.level1].cache.get(), self.problem.reachable(application));
        let bound_ms = self.bound_ms(application);
        let mut fulfilled: Vec<(Bytes, Bytes)> = Vec::new();
        let fair = member.fair.level1;
        let mut firsts: Vec<Bytes> =
            (0..=STEPS).map(|step| Bytes::new((own as f64 * f64::from(step) / f64::from(STEPS)) as u64)).collect();
        firsts.push(fair);
        firsts.sort_unstable();
        for first in firsts {
            if self.latency_ms(application, first, most) > bound_ms {
                continue;
            }
            let (mut low, mut high) = (0, most.get());
            while low < high {
                let middle = low + (high - low) / 2;
                let holds = self.latency_ms(application, first, Bytes::new(middle)) <= bound_ms;
                (low, high) = if holds { (low, middle) } else { (middle + 1, high) };
            }
            let is_less = fulfilled.last().is_none_or(|(_, second)| low < second.get());
            if is_less {
                fulfilled.push((first, Bytes::new(low)));
            }
        }
        fulfilled
    }

    /// The applications whose SLO no shares meet, not even all there is.
    pub fn infeasible(&self) -> Option<Infeasible> {
        let hopeless = (0..self.surfaces.len()).filter(|application| self.fulfilled[*application].is_empty());
        let relaxed = hopeless.map(|application| {
            let member = &self.problem.applications[application];
            let all = (self.problem.level1[member.level1].cache, self.problem.reachable(application));
            let best_ms = self.latency_ms(application, all.0, all.1);
            relaxed(self.problem, application, best_ms, self.fair_ms(application))
        });
        let relaxed: Vec<_> = relaxed.collect();
        (!relaxed.is_empty()).then_some(Infeasible { relaxed, added: None })
    }

    /// The combination of the best fair speedup.
    pub fn best(&self) -> Option<Shares> {
        let mut combinations = self.combinations();
        combinations.truncate(FINISHED);
        let mut best: Option<(f64, Shares)> = None;
        for combination in combinations {
            let shares = self.handed_out(combination);
            let cost = self.cost(&shares);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, shares));
            }
        }
        best.map(|(_, shares)| shares)
    }

    /// A beam over the applications, of combinations that no server and no set of servers is too small for.
    fn combinations(&self) -> Vec<Combination> {
        let nothing = Combination { firsts: Vec::new(), seconds: Vec::new(), need: 0.0 };
        let mut beam = vec![nothing];
        // The fair share is among them, whatever the beam leaves out.
        let fair = |of: usize| &self.problem.applications[of].fair;
        let users = self.problem.users();
        for application in 0..self.surfaces.len() {
            let member = &self.problem.applications[application];
            let mut next = Vec::new();
            for combination in &beam {
                for &(first, second) in &self.fulfilled[application] {
                    let mut longer = combination.clone();
                    longer.firsts.push(first);
                    longer.seconds.push(second);
                    let part = |bytes: Bytes, of: Bytes| bytes.get() as f64 / of.get().max(1) as f64;
                    let is_alone = users[member.level1].len() == 1;
                    // What only one application can use is not needed by another.
                    let first_need = if is_alone { 0.0 } else { part(first, self.problem.level1[member.level1].cache) };
                    longer.need += first_need + part(second, self.problem.reachable(application));
                    if planted(Bug::CombinationsUnfiltered) || self.has_room(&longer) {
                        next.push(longer);
                    }
                }
            }
            next.sort_by(|a, b| a.need.total_cmp(&b.need));
            beam = self.kept(next);
        }
        let all = 0..self.surfaces.len();
        if all.clone().all(|of| matches!(self.problem.applications[of].slo, Slo::AboveFair(_))) {
            let firsts = all.clone().map(|of| fair(of).level1).collect();
            let seconds = all.map(|of| fair(of).second()).collect();
            beam.insert(0, Combination { firsts, seconds, need: 0.0 });
        }
        beam
    }

    /// Of combinations by need those that go on: they have a place, and each first-level share of the latest application has its
    /// turn, or the beam would be of one kind.
    fn kept(&self, combinations: Vec<Combination>) -> Vec<Combination> {
        let mut turns: BTreeMap<Option<Bytes>, usize> = BTreeMap::new();
        let mut in_turn: Vec<(usize, Combination)> = Vec::new();
        for combination in combinations {
            let turn = turns.entry(combination.firsts.last().copied()).or_default();
            in_turn.push((*turn, combination));
            *turn += 1;
        }
        in_turn.sort_by_key(|(turn, _)| *turn);
        let combinations = in_turn.into_iter().map(|(_, combination)| combination);
        combinations.filter(|combination| self.fits(&combination.seconds)).take(BEAM).collect()
    }

    fn has_room(&self, combination: &Combination) -> bool {
        let count = combination.firsts.len();
        let members = &self.problem.applications[..count];
        let own = members[count - 1].level1;
        let users = members.iter().zip(&combination.firsts).filter(|(member, _)| member.level1 == own);
        let first: u64 = users.map(|(_, first)| first.get()).sum();
        let second: u64 = combination.seconds.iter().map(|second| second.get()).sum();
        let all: u64 = self.has.iter().map(|has| has.get()).sum();
        first <= self.problem.level1[own].cache.get() && second <= all
    }

    fn network(&self, count: usize) -> Network<'_> {
        Network {
            has: &self.has,
            reach: self.problem.applications[..count].iter().map(|member| &*member.level2).collect(),
        }
    }

    fn fits(&self, seconds: &[Bytes]) -> bool {
        self.unplaced(seconds) == 0
    }

    /// Bytes of these shares for which servers have no room.
    fn unplaced(&self, seconds: &[Bytes]) -> u64 {
        let unplaced = self.network(seconds.len()).unplaced(seconds).filter(|_| !planted(Bug::CombinationsUnfiltered));
        unplaced.map_or(0, |(bytes, _)| bytes)
    }

    /// What servers have left, to everybody in proportion to what a part more gains (the paper's step 1.4). None of it that somebody
    /// can reach stays idle.
    fn handed_out(&self, combination: Combination) -> Shares {
        let Combination { mut firsts, mut seconds, .. } = combination;
        if planted(Bug::RemainderIdle) {
            return (firsts, seconds);
        }
        for (server, users) in self.problem.users().iter().enumerate() {
            let cache = self.problem.level1[server].cache.get();
            let left = cache.saturating_sub(users.iter().map(|user| firsts[*user].get()).sum());
            let with = |user: usize| (Bytes::new(firsts[user].get() + (cache / PARTS).max(1)), seconds[user]);
            let gains = users.iter().map(|user| self.gain(*user, (firsts[*user], seconds[*user]), with(*user)));
            let more = divided(left, &gains.collect::<Vec<_>>());
            for (user, more) in users.iter().zip(more) {
                firsts[*user] = Bytes::new(firsts[*user].get() + more);
            }
        }
        let cache: u64 = self.has.iter().map(|has| has.get()).sum();
        let part = (cache / PARTS).max(1);
        let with = |user: usize| (firsts[user], Bytes::new(seconds[user].get() + part));
        let gain = |user: usize| self.gain(user, (firsts[user], seconds[user]), with(user));
        let gains: Vec<f64> = (0..seconds.len()).map(gain).collect();
        let mut left = cache.saturating_sub(seconds.iter().map(|second| second.get()).sum());
        // Part by part: whose servers are full is left out, and the others share what remains.
        let mut open: Vec<usize> = (0..seconds.len()).collect();
        while !open.is_empty() {
            let more = divided(left.min(part), &open.iter().map(|user| gains[*user]).collect::<Vec<_>>());
            if more.iter().all(|more| *more == 0) {
                break;
            }
            let mut all = seconds.clone();
            for (user, more) in open.iter().zip(&more) {
                all[*user] = Bytes::new(all[*user].get() + more);
            }
            if self.fits(&all) {
                (seconds, left) = (all, left - more.iter().sum::<u64>());
                continue;
            }
            let mut full = Vec::new();
            for (user, more) in open.iter().zip(more) {
                let before = seconds[*user].get();
                seconds[*user] = Bytes::new(before + more);
                let short = self.unplaced(&seconds);
                if short > 0 {
                    seconds[*user] = Bytes::new(before + more.saturating_sub(short));
                    full.push(*user);
                }
                left -= seconds[*user].get() - before;
            }
            open.retain(|user| !full.contains(user));
        }
        (firsts, seconds)
    }

    /// How much shorter an application's latency is with these shares than with those before, as a part of its fair latency.
    fn gain(&self, user: usize, before: (Bytes, Bytes), after: (Bytes, Bytes)) -> f64 {
        let ms = |(first, second): (Bytes, Bytes)| self.latency_ms(user, first, second);
        ((ms(before) - ms(after)) / self.fair_ms(user)).max(0.0)
    }

    /// Σ latency ÷ fair latency.
    fn cost(&self, (firsts, seconds): &Shares) -> f64 {
        let cost = |of: usize| self.latency_ms(of, firsts[of], seconds[of]) / self.fair_ms(of);
        (0..firsts.len()).map(cost).sum()
    }

    pub fn place(&self, seconds: &[Bytes], former: Option<&[Place]>) -> Vec<Place> {
        self.network(seconds.len()).place_most(seconds, former)
    }
}

/// So many bytes in proportion to gains, or equally if nobody has one.
fn divided(bytes: u64, gains: &[f64]) -> Vec<u64> {
    let all: f64 = gains.iter().sum();
    let is_proportional = all > 0.0 && !planted(Bug::RemainderEqual);
    let part = |gain: &f64| if is_proportional { gain / all } else { 1.0 / gains.len() as f64 };
    gains.iter().map(|gain| (bytes as f64 * part(gain)) as u64).collect()
}
