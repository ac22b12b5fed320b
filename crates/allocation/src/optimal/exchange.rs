//! Exchanges between two applications, where a program is no good guide: shares of few segments, and applications that do not split
//! their shares, whose curves are not convex.

use super::round::Shares;
use crate::plan::TOLERANCE;
use crate::problem::{Estimate, Problem};

/// So many latencies an application, and so many in all, are computed at most: exchanges end where they are then.
const LATENCIES_MAX: (u32, u32) = (10_000, 200_000);

/// Whole segments are a matter of exchanges if a server has fewer than this for each of its applications.
const FEW: u64 = 1000;

/// A fair latency above a target counts as so many fair latencies.
const ABOVE_WEIGHT: f64 = 1e3;

/// An exchange gains at least so many fair latencies.
const GAIN_MIN: f64 = 1e-9;

/// What the first application of a pair gives to the second: segments of the first-level server that they share, and of one that both
/// reach; negative if it takes them.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    first: i64,
    second: i64,
    server: usize,
}

/// Whether exchanges may find what a program does not.
pub(super) fn is_useful(problem: &Problem) -> bool {
    let users = problem.users();
    let is_coarse =
        |(server, users): (&crate::problem::Server, &Vec<usize>)| problem.segments(server) < FEW * users.len() as u64;
    let few_of_second = FEW * problem.applications.len() as u64;
    problem.applications.iter().any(|member| member.estimate == Estimate::Whole)
        || problem.level1.iter().zip(&users).any(is_coarse)
        || problem.level2.iter().any(|server| problem.segments(server) < few_of_second)
}

impl Shares<'_> {
    /// Exchanges segments between pairs while that lowers Σ latency ÷ fair latency, or what is above targets.
    pub(super) fn exchange(&mut self) {
        let count = self.first.len();
        let (each, all) = LATENCIES_MAX;
        let mut left = each.saturating_mul(count as u32).min(all);
        loop {
            let mut has_changed = false;
            for (giver, taker) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                if let Some(exchange) = self.best_exchange(giver, taker, &mut left) {
                    self.apply(giver, taker, exchange);
                    has_changed = true;
                }
                if left == 0 {
                    return;
                }
            }
            if !has_changed {
                return;
            }
        }
    }

    fn best_exchange(&self, giver: usize, taker: usize, left: &mut u32) -> Option<Exchange> {
        let members = &self.request.problem.applications;
        let mut firsts = vec![0];
        if members[giver].level1 == members[taker].level1 {
            let most = self.spare_first(giver).min(self.first_room(taker));
            firsts.extend(self.sizes(giver, taker, most));
        }
        let mut seconds = vec![(0, 0)];
        let shared = members[giver].level2.iter().filter(|server| members[taker].level2.contains(server));
        for &server in shared {
            let most = |from: usize, to: usize| self.spare_second(from, server).min(self.second_room(to));
            let given = self.sizes(giver, taker, most(giver, taker)).into_iter().map(|size| (server, size));
            seconds.extend(given);
            let taken = self.sizes(taker, giver, most(taker, giver)).into_iter().map(|size| (server, -size));
            seconds.extend(taken);
        }
        let cost = |giver_has: (i64, i64)| self.cost(giver, (-giver_has.0, -giver_has.1)) + self.cost(taker, giver_has);
        let now = cost((0, 0));
        let mut best: Option<(f64, Exchange)> = None;
        for first in firsts {
            for &(server, second) in seconds.iter().filter(|(_, second)| first != 0 || *second != 0) {
                if *left < 2 {
                    *left = 0;
                    return best.map(|(_, exchange)| exchange);
                }
                *left -= 2;
                let gain = now - cost((first, second));
                if gain > GAIN_MIN && best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, Exchange { first, second, server }));
                }
            }
        }
        best.map(|(_, exchange)| exchange)
    }

    /// How much it is worth to try to move from one to the other: powers of 2, and what it takes to the next point of a curve.
    fn sizes(&self, giver: usize, taker: usize, most: u64) -> Vec<i64> {
        let mut sizes: Vec<u64> = (0..u64::BITS).map(|power| 1 << power).take_while(|size| *size < most).collect();
        sizes.extend(self.ways(taker));
        sizes.extend(self.ways_back(giver));
        sizes.push(most);
        sizes.retain(|size| (1..=most).contains(size));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().filter_map(|size| i64::try_from(size).ok()).collect()
    }

    fn spare_first(&self, application: usize) -> u64 {
        let least = self.at_least(self.request.first[application]);
        self.first[application].saturating_sub(least)
    }

    fn spare_second(&self, application: usize, server: usize) -> u64 {
        let least = self.at_least(self.request.second[application]);
        let place = self.second[application].iter().find(|(of, _)| *of == server);
        place.map_or(0, |(_, has)| has.get()).min(self.second_of(application).saturating_sub(least))
    }

    /// What an application contributes to the sum, and what it is above its target, with so many segments more.
    fn cost(&self, application: usize, more: (i64, i64)) -> f64 {
        let problem = self.request.problem;
        let bytes = |has: u64, more: i64| (has.saturating_add_signed(more) * problem.segment) as f64;
        let (first, second) = (bytes(self.first[application], more.0), bytes(self.second_of(application), more.1));
        let latency_ms = problem.planned_ms(application, first, second);
        let above_ms = (latency_ms - problem.target_ms(application) * (1.0 + TOLERANCE / 2.0)).max(0.0);
        (latency_ms + ABOVE_WEIGHT * above_ms) / problem.applications[application].fair_latency_ms
    }

    fn apply(&mut self, giver: usize, taker: usize, exchange: Exchange) {
        self.first[giver] = self.first[giver].saturating_add_signed(-exchange.first);
        self.first[taker] = self.first[taker].saturating_add_signed(exchange.first);
        let (from, to) = if exchange.second >= 0 { (giver, taker) } else { (taker, giver) };
        let segments = exchange.second.unsigned_abs();
        if segments == 0 {
            return;
        }
        self.take_second(from, exchange.server, segments);
        self.give_second(to, exchange.server, segments);
    }
}
