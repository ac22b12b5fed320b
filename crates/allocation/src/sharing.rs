//! Caches of one host that share a budget, interval for interval: what was observed comes in, limits go out.
//!
//! A cache whose accesses nobody has seen yet has its fair share, and the others share the rest by [`solve`]. What is known of each, and how well
//! it keeps what it is promised, is in `member`.
//!
//! The caching volumes of boosts are of the same budget, if they take part. Writers wait for a boost, so caches share what boosts leave from the
//! moment at which one claims its size, but for the least share of each; what a boost had they share from the next interval on.
//!
//! Second levels share a budget of their own, and both levels are planned together, for those devices whose second level shares.

mod member;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Bytes;

use self::member::{Member, Shares};
use crate::curve::MissCurve;
use crate::ledger::Ledger;
use crate::optimal::solve;
use crate::plan::{Basis, Level, Plan};
use crate::problem::{Application, Description, Hierarchy, Problem, Server, Slo};

/// A share that changed by more than this part of the budget in an interval, or a cache that took in as much, was another one at its end.
const SETTLED: u64 = 16;
/// The least share, in segments: a cache of fewer has none.
pub const SEGMENTS_MIN: u64 = 4;
/// Why there is no plan if boosts were given more than there is now.
const NOTHING_LEFT: &str = "boosts have rented all of what read caches share";
/// What the caches of each level share, as a server of the problem.
const HOST: &str = "host";
const SECOND: &str = "second";
/// Steps in which the budget would go from one cache to another.
const STEPS: u64 = 32;

/// One that shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharer {
    /// What its reads are promised.
    pub slo: Slo,
    /// What its cache can have.
    pub most: Bytes,
    /// What its second level can have, if it has one that shares.
    pub second: Option<Bytes>,
}

/// What was observed of one in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// What it would miss, and how many sampled reads that follows from; `None`: nothing was read.
    pub curve: Option<(MissCurve, f64)>,
    /// Reads that were answered.
    pub reads: u64,
    /// How long they took on average, as the cache sees it.
    pub latency: Option<Duration>,
    /// What they take beyond that in the process that has the cache, whatever its size.
    pub overhead: Duration,
    /// The part of what was read that the cache did not have.
    pub misses: Option<f64>,
    /// How long hits wait for the cache, and misses for the disk.
    pub waits: (Option<Duration>, Option<Duration>),
    /// Reads that were in flight on average.
    pub in_flight: f64,
    /// The disk under its misses; `None`: nothing missed, or its limits are not known.
    pub disk: Option<Disk>,
    /// What the cache had at the end.
    pub cached: Bytes,
    /// Of its second level, if it has one that shares: the disk is under what that misses.
    pub second: Option<Behind>,
}

/// What was observed of a second level: of the reads that the first one missed.
#[derive(Clone, Debug, PartialEq)]
pub struct Behind {
    /// The part of what was read there that it did not have.
    pub misses: Option<f64>,
    /// How long hits wait for it, and misses for the disk.
    pub waits: (Option<Duration>, Option<Duration>),
    /// What it had at the end.
    pub cached: Bytes,
    /// What its members have for blocks.
    pub size: Bytes,
}

/// A disk under the misses of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// How long it is busy with one, by its limits.
    pub busy: Duration,
    /// The share of the interval in which it was busy.
    pub utilization: f64,
}

/// How one fared in the last interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What its reads took on average.
    pub latency: Duration,
    /// What was predicted when the interval began, for the share that was planned.
    pub expected: Duration,
    /// What they would have taken with its fair share, as far as is known.
    pub fair: Duration,
    /// What it is promised.
    pub bound: Duration,
}

impl Verdict {
    /// All of it with what reads take beyond the cache.
    fn with(self, overhead: Duration) -> Self {
        let Self { latency, expected, fair, bound } = self;
        let [latency, expected, fair, bound] =
            [latency, expected, fair, bound].map(|time| time.saturating_add(overhead));
        Self { latency, expected, fair, bound }
    }

    /// Whether the promise was kept.
    #[must_use]
    pub fn slo_met(&self) -> bool {
        self.latency <= self.bound
    }
}

/// What becomes of a boost's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It may rent.
    Granted,
    /// It may when caches have become smaller.
    Waits,
    /// There is no room for it beside the least shares and what other boosts have: see [`Sharing::most`].
    Refused,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharing {
    first: Budget,
    /// Zero: second levels do not share.
    second: Budget,
    segment: Bytes,
    members: BTreeMap<String, Member>,
    plan: Option<Plan>,
    /// Why there is no plan, if there should be one.
    trouble: Option<String>,
    intervals: u64,
}

/// What a level has.
#[derive(Clone, Debug, PartialEq)]
struct Budget {
    all: Bytes,
    /// What caches have of it together, by the plan.
    shared: Bytes,
    ledger: Ledger,
}

impl Budget {
    fn new(all: Bytes) -> Self {
        Self { all, shared: all, ledger: Ledger::new(all) }
    }

    /// What boosts leave.
    fn left(&self) -> Bytes {
        Bytes::new(self.all.get().saturating_sub(self.ledger.claimed().get()))
    }

    fn has_moved(&self, now: Bytes, former: Bytes) -> bool {
        now.get().abs_diff(former.get()) > self.all.get() / SETTLED
    }
}

impl Sharing {
    /// All begin with their fair shares of what boosts leave, which have rented so much of the first level already. Shares are whole segments.
    /// `budgets`: of the first level, and of the second one, which is zero if those do not share.
    #[must_use]
    pub fn new(
        budgets: (Bytes, Bytes),
        segment: Bytes,
        sharers: BTreeMap<String, Sharer>,
        rented: &BTreeMap<String, Bytes>,
    ) -> Self {
        let members: BTreeMap<String, Member> =
            sharers.into_iter().map(|(name, sharer)| (name, Member::new(sharer))).collect();
        let (mut first, second) = (Budget::new(budgets.0), Budget::new(budgets.1));
        rented.iter().for_each(|(name, size)| first.ledger.rents(name, *size));
        let mut sharing = Self { first, second, segment, members, plan: None, trouble: None, intervals: 0 };
        sharing.plan_anew();
        for level in [&mut sharing.first, &mut sharing.second] {
            level.ledger.step(level.all);
        }
        sharing
    }

    const fn of(&self, level: Level) -> &Budget {
        match level {
            Level::First => &self.first,
            Level::Second => &self.second,
        }
    }

    /// An equal part for each of those that share this level, in whole segments.
    #[must_use]
    pub fn fair_share(&self, level: Level) -> Bytes {
        let sharers = match level {
            Level::First => self.members.len(),
            Level::Second => self.members.values().filter(|member| member.sharer.second.is_some()).count(),
        };
        let segments = self.of(level).shared.get() / self.segment.get().max(1) / (sharers as u64).max(1);
        Bytes::new(segments * self.segment.get())
    }

    /// The same of both levels, for one of them.
    fn fair_shares(&self, member: &Member) -> Shares {
        let second = member.sharer.second.map(|_| self.fair_share(Level::Second));
        Shares { first: self.fair_share(Level::First), second: second.unwrap_or_default() }
    }

    /// What one may have now.
    #[must_use]
    pub fn limit(&self, level: Level, name: &str) -> Bytes {
        self.of(level).ledger.limit(name)
    }

    /// How one fared in the last interval in which it read enough.
    #[must_use]
    pub fn verdict(&self, name: &str) -> Option<Verdict> {
        let member = self.members.get(name)?;
        member.verdict.map(|verdict| verdict.with(member.overhead))
    }

    /// What the reads of one are expected to take in the interval that runs.
    #[must_use]
    pub fn predicted(&self, name: &str) -> Option<Duration> {
        let member = self.members.get(name)?;
        member.predicted.map(|predicted| predicted + member.overhead)
    }

    /// Intervals that have ended.
    #[must_use]
    pub const fn intervals(&self) -> u64 {
        self.intervals
    }

    /// What everybody is to have, of those whose accesses are known.
    #[must_use]
    pub const fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Why somebody has the fair share who could have another one: one sentence.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let of_plan = self.plan.as_ref().and_then(|plan| match &plan.basis {
            Basis::FairShare(why) => Some(why.to_string()),
            Basis::Optimal | Basis::Mlms | Basis::Baseline => None,
        });
        of_plan.or_else(|| self.trouble.clone())
    }

    /// Whether a device is served over its cache from now on. What the cache of another one has stays there.
    pub fn serves(&mut self, name: &str, is_served: bool) {
        if let Some(member) = self.members.get_mut(name) {
            member.is_served = is_served;
        }
    }

    /// An interval has ended: plans the next one.
    pub fn end_interval(&mut self, observed: &BTreeMap<String, Observed>) {
        self.intervals += 1;
        let fair = Shares { first: self.fair_share(Level::First), second: self.fair_share(Level::Second) };
        for (name, member) in &mut self.members {
            let limit = Shares { first: self.first.ledger.limit(name), second: self.second.ledger.limit(name) };
            match observed.get(name) {
                Some(observed) if observed.reads > 0 => {
                    let second = observed.second.as_ref().map(|second| second.cached).unwrap_or_default();
                    let cached = Shares { first: observed.cached, second };
                    let has_moved = |now: Shares, former: Shares| {
                        self.first.has_moved(now.first, former.first)
                            || self.second.has_moved(now.second, former.second)
                    };
                    let is_settled = !has_moved(limit, member.former.0) && !has_moved(cached, member.former.1);
                    member.former = (limit, cached);
                    member.observe(observed, is_settled, limit, fair);
                }
                _ => member.rest(),
            }
        }
        self.plan_anew();
    }

    /// The largest caching volume that a boost may have: what the least shares leave, caches that nobody can make smaller, and other boosts.
    #[must_use]
    pub fn most(&self, boost: &str) -> Bytes {
        let least = self.segment.get().saturating_mul(SEGMENTS_MIN);
        let stays = |(name, member): (&String, &Member)| match member.is_served {
            true => least,
            false => self.first.ledger.claims(name).get().max(least),
        };
        let least = self.members.iter().map(stays).fold(0, u64::saturating_add);
        let others = self.first.ledger.claimed_by_others(boost).get();
        Bytes::new(self.first.all.get().saturating_sub(least).saturating_sub(others))
    }

    /// A boost is to have a caching volume of this size, if that fits: caches are to share the rest at once. To be asked again until it is granted,
    /// or ended by [`Sharing::rents`].
    pub fn claim(&mut self, boost: &str, size: Bytes) -> Claimed {
        if size <= self.first.ledger.granted(boost) {
            return Claimed::Granted;
        }
        if size > self.most(boost) {
            return Claimed::Refused;
        }
        let before = self.first.ledger.claimed();
        self.first.ledger.claim(boost, size);
        if self.first.ledger.claimed() != before {
            self.plan_anew();
        }
        Claimed::Waits
    }

    /// A boost has rented so much, whatever it has claimed. What it had is shared by the next plan.
    pub fn rents(&mut self, boost: &str, size: Bytes) {
        self.first.ledger.rents(boost, size);
        if self.first.left() < self.first.shared {
            self.plan_anew();
        }
    }

    /// What boosts have, or wait for.
    #[must_use]
    pub fn boosts(&self) -> Bytes {
        self.first.ledger.claimed()
    }

    /// Plans for what boosts leave now, by what is known.
    fn plan_anew(&mut self) {
        for level in [&mut self.first, &mut self.second] {
            level.shared = level.left();
        }
        let application = |(name, member): (&String, &Member)| member.application(name, self.fair_shares(member));
        let known: Vec<Application> = self.members.iter().filter_map(application).collect();
        let of_second = known.iter().filter(|application| !application.level2.is_empty()).count();
        let sharers = self.members.values().filter(|member| member.sharer.second.is_some()).count();
        // Who is not planned has its fair share.
        let rest = |level: Level, others: usize| {
            let reserved = self.fair_share(level).get().saturating_mul(others as u64);
            Bytes::new(self.of(level).shared.get().saturating_sub(reserved))
        };
        let first = rest(Level::First, self.members.len() - known.len());
        let second = rest(Level::Second, sharers.saturating_sub(of_second));
        (self.plan, self.trouble) = match self.problem(known, first, second) {
            None => (None, None),
            Some(Ok(problem)) => (Some(solve(&problem, self.plan.as_ref())), None),
            Some(Err(error)) => (None, Some(error)),
        };
        self.aim();
    }

    fn problem(&self, applications: Vec<Application>, first: Bytes, second: Bytes) -> Option<Result<Problem, String>> {
        let latencies = applications.first()?.latencies?;
        if first == Bytes::ZERO {
            return Some(Err(NOTHING_LEFT.to_owned()));
        }
        let server = |name: &str, cache: Bytes| Server { name: name.to_owned(), cache };
        let has_second = applications.iter().any(|application| !application.level2.is_empty());
        let description = Description {
            latencies,
            // What the second level answers it has read from the disk, and keeps.
            hierarchy: Hierarchy::Inclusive,
            level1: vec![server(HOST, first)],
            level2: has_second.then(|| server(SECOND, second)).into_iter().collect(),
            applications,
            segment: self.segment,
            change_max: None,
        };
        Some(Problem::new(description).map_err(|error| error.to_string()))
    }

    /// Has the ledgers go for the plan, and for the fair share of those that are not in it.
    fn aim(&mut self) {
        let fair = |(name, member): (&String, &Member)| (name.clone(), self.fair_shares(member));
        let mut targets: BTreeMap<String, Shares> = self.members.iter().map(fair).collect();
        for share in self.plan.iter().flat_map(|plan| &plan.shares) {
            let Some(target) = targets.get_mut(&share.application) else { continue };
            target.first = share.level1;
            if self.members.get(&share.application).is_some_and(Member::is_of_two_levels) {
                target.second = share.level2.get(SECOND).copied().unwrap_or_default();
            }
        }
        let of =
            |level: fn(&Shares) -> Bytes| targets.iter().map(|(name, shares)| (name.clone(), level(shares))).collect();
        self.first.ledger.aim(&of(|shares| shares.first));
        self.second.ledger.aim(&of(|shares| shares.second));
        for (name, member) in &mut self.members {
            let shares = targets.get(name).copied().unwrap_or_default();
            member.predicted = member.known.as_ref().map(|known| known.latency(shares));
        }
    }

    /// Whether all limits are what is planned: there is no next step in this interval.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.first.ledger.is_settled() && self.second.ledger.is_settled()
    }

    /// Whether a boost waits until caches are smaller.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.first.ledger.is_waited_for()
    }

    /// Caches of a level whose limits change now, and those limits. `held`: what they were seen to have. To be asked again and again.
    pub fn step(&mut self, level: Level, held: &BTreeMap<String, Bytes>) -> Vec<(String, Bytes)> {
        let Budget { all, ledger, .. } = match level {
            Level::First => &mut self.first,
            Level::Second => &mut self.second,
        };
        held.iter().for_each(|(name, held)| ledger.holds(name, *held));
        // Who waits for a boost waits for all of its room.
        let step = if ledger.is_waited_for() { all.get() } else { all.get() / STEPS };
        ledger.step(Bytes::new(step.max(self.segment.get())))
    }
}
