//! Caches of one host that share a budget, interval for interval: what was observed comes in, limits go out.
//!
//! A cache whose accesses nobody has seen yet has its fair share, and the others share the rest by [`solve`]. What is known of each, and how well
//! it keeps what it is promised, is in `member`.
//!
//! The caching volumes of boosts are of the same budget, if they take part. Writers wait for a boost, so caches share what boosts leave from the
//! moment at which one claims its size, but for the least share of each; what a boost had they share from the next interval on.

mod member;

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Bytes;

use self::member::Member;
use crate::curve::MissCurve;
use crate::ledger::Ledger;
use crate::optimal::solve;
use crate::plan::{Basis, Plan};
use crate::problem::{Application, Description, Hierarchy, Problem, Server, Slo};

/// A share that changed by more than this part of the budget in an interval, or a cache that took in as much, was another one at its end.
const SETTLED: u64 = 16;
/// The least share, in segments: a cache of fewer has none.
pub const SEGMENTS_MIN: u64 = 4;
/// Why there is no plan if boosts were given more than there is now.
const NOTHING_LEFT: &str = "boosts have rented all of what read caches share";
/// The host, as a server of the problem.
const HOST: &str = "host";
/// Steps in which the budget would go from one cache to another.
const STEPS: u64 = 32;

/// One that shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharer {
    /// What its reads are promised.
    pub slo: Slo,
    /// What its cache can have.
    pub most: Bytes,
}

/// What was observed of one in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// What it would miss, and how many sampled reads that follows from; `None`: nothing was read.
    pub curve: Option<(MissCurve, f64)>,
    /// Reads that were answered.
    pub reads: u64,
    /// How long they took on average.
    pub latency: Option<Duration>,
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
    budget: Bytes,
    /// What caches have of it together, by the plan.
    shared: Bytes,
    segment: Bytes,
    members: BTreeMap<String, Member>,
    plan: Option<Plan>,
    /// Why there is no plan, if there should be one.
    trouble: Option<String>,
    ledger: Ledger,
    intervals: u64,
}

impl Sharing {
    /// All begin with their fair shares of what boosts leave, which have rented so much already. Shares are whole segments.
    #[must_use]
    pub fn new(
        budget: Bytes,
        segment: Bytes,
        sharers: BTreeMap<String, Sharer>,
        rented: &BTreeMap<String, Bytes>,
    ) -> Self {
        let members: BTreeMap<String, Member> =
            sharers.into_iter().map(|(name, sharer)| (name, Member::new(sharer))).collect();
        let mut ledger = Ledger::new(budget);
        rented.iter().for_each(|(name, size)| ledger.rents(name, *size));
        let (shared, plan, trouble) = (budget, None, None);
        let mut sharing = Self { budget, shared, segment, members, plan, trouble, ledger, intervals: 0 };
        sharing.plan_anew();
        sharing.ledger.step(budget);
        sharing
    }

    /// An equal part for each, in whole segments.
    #[must_use]
    pub fn fair_share(&self) -> Bytes {
        let segments = self.shared.get() / self.segment.get().max(1) / (self.members.len() as u64).max(1);
        Bytes::new(segments * self.segment.get())
    }

    /// What one may have now.
    #[must_use]
    pub fn limit(&self, name: &str) -> Bytes {
        self.ledger.limit(name)
    }

    /// How one fared in the last interval in which it read enough.
    #[must_use]
    pub fn verdict(&self, name: &str) -> Option<Verdict> {
        self.members.get(name)?.verdict
    }

    /// What the reads of one are expected to take in the interval that runs.
    #[must_use]
    pub fn predicted(&self, name: &str) -> Option<Duration> {
        self.members.get(name)?.predicted
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

    /// An interval has ended: plans the next one.
    pub fn end_interval(&mut self, observed: &BTreeMap<String, Observed>) {
        self.intervals += 1;
        let fair = self.fair_share();
        for (name, member) in &mut self.members {
            let limit = self.ledger.limit(name);
            match observed.get(name) {
                Some(observed) if observed.reads > 0 => {
                    let moved =
                        |now: Bytes, former: Bytes| now.get().abs_diff(former.get()) > self.budget.get() / SETTLED;
                    let is_settled = !moved(limit, member.former.0) && !moved(observed.cached, member.former.1);
                    member.former = (limit, observed.cached);
                    member.observe(observed, is_settled, limit, fair);
                }
                _ => member.rest(),
            }
        }
        self.plan_anew();
    }

    /// The largest caching volume that a boost may have: what the least shares and other boosts leave.
    #[must_use]
    pub fn most(&self, boost: &str) -> Bytes {
        let least = self.segment.get().saturating_mul(SEGMENTS_MIN).saturating_mul(self.members.len() as u64);
        let others = self.ledger.claimed_by_others(boost).get();
        Bytes::new(self.budget.get().saturating_sub(least).saturating_sub(others))
    }

    /// A boost is to have a caching volume of this size, if that fits: caches are to share the rest at once. To be asked again until it is granted,
    /// or ended by [`Sharing::rents`].
    pub fn claim(&mut self, boost: &str, size: Bytes) -> Claimed {
        if size > self.most(boost) {
            return Claimed::Refused;
        }
        if size > self.ledger.granted(boost) {
            let before = self.ledger.claimed();
            self.ledger.claim(boost, size);
            if self.ledger.claimed() != before {
                self.plan_anew();
            }
            return Claimed::Waits;
        }
        Claimed::Granted
    }

    /// A boost has rented so much, whatever it has claimed. What it had is shared by the next plan.
    pub fn rents(&mut self, boost: &str, size: Bytes) {
        self.ledger.rents(boost, size);
        if self.left() < self.shared {
            self.plan_anew();
        }
    }

    /// What boosts have, or wait for.
    #[must_use]
    pub fn boosts(&self) -> Bytes {
        self.ledger.claimed()
    }

    /// What boosts leave.
    fn left(&self) -> Bytes {
        Bytes::new(self.budget.get().saturating_sub(self.ledger.claimed().get()))
    }

    /// Plans for what boosts leave now, by what is known.
    fn plan_anew(&mut self) {
        self.shared = self.left();
        let fair = self.fair_share();
        let known: Vec<Application> =
            self.members.iter().filter_map(|(name, member)| member.application(name, fair)).collect();
        let reserved = fair.get().saturating_mul((self.members.len() - known.len()) as u64);
        (self.plan, self.trouble) = match self.problem(known, self.shared.get().saturating_sub(reserved)) {
            None => (None, None),
            Some(Ok(problem)) => (Some(solve(&problem, self.plan.as_ref())), None),
            Some(Err(error)) => (None, Some(error)),
        };
        self.aim();
    }

    fn problem(&self, applications: Vec<Application>, cache: u64) -> Option<Result<Problem, String>> {
        let latencies = applications.first()?.latencies?;
        if cache == 0 {
            return Some(Err(NOTHING_LEFT.to_owned()));
        }
        let host = Server { name: HOST.to_owned(), cache: Bytes::new(cache) };
        let description = Description {
            latencies,
            hierarchy: Hierarchy::Exclusive,
            level1: vec![host],
            level2: Vec::new(),
            applications,
            segment: self.segment,
            change_max: None,
        };
        Some(Problem::new(description).map_err(|error| error.to_string()))
    }

    /// Has the ledger go for the plan, and for the fair share of those that are not in it.
    fn aim(&mut self) {
        let fair = self.fair_share();
        let mut targets: BTreeMap<String, Bytes> = self.members.keys().map(|name| (name.clone(), fair)).collect();
        for share in self.plan.iter().flat_map(|plan| &plan.shares) {
            targets.insert(share.application.clone(), share.level1);
        }
        self.ledger.aim(&targets);
        for (name, member) in &mut self.members {
            let share = targets.get(name).copied().unwrap_or(fair);
            member.predicted = member.known.as_ref().map(|known| known.latency(share));
        }
    }

    /// Whether all limits are what is planned: there is no next step in this interval.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.ledger.is_settled()
    }

    /// Whether a boost waits until caches are smaller.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.ledger.is_waited_for()
    }

    /// Caches whose limits change now, and those limits. `held`: what they were seen to have. To be asked again and again.
    pub fn step(&mut self, held: &BTreeMap<String, Bytes>) -> Vec<(String, Bytes)> {
        held.iter().for_each(|(name, held)| self.ledger.holds(name, *held));
        // Who waits for a boost waits for all of its room.
        let step = if self.is_waited_for() { self.budget.get() } else { self.budget.get() / STEPS };
        self.ledger.step(Bytes::new(step.max(self.segment.get())))
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::random::Random;
    use surgetank_mrc::{Access, MiniatureCurve, Miniatures};

    use super::member::IDLE_MAX;
    use super::*;
    use crate::curve::interpolate;

    const MIB: u64 = 1 << 20;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn curve(points: &[(u64, f64)]) -> MissCurve {
        MissCurve::new(&points.iter().map(|(size, ratio)| (mib(*size), *ratio)).collect::<Vec<_>>()).unwrap()
    }

    fn sharing(slo: Slo) -> Sharing {
        let sharer = Sharer { slo, most: mib(1000) };
        let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
        Sharing::new(mib(200), mib(1), sharers.into(), &BTreeMap::new())
    }

    /// A device whose reads take what its curve says, times a factor.
    fn observed(curve: &MissCurve, limit: Bytes, factor: f64) -> Observed {
        let (hit, miss) = (Duration::from_micros(200), Duration::from_millis(10));
        let misses = interpolate(curve.points(), limit.get() as f64);
        let latency = (hit + (miss - hit).mul_f64(misses)).mul_f64(factor);
        Observed {
            curve: Some((curve.clone(), 1e6)),
            reads: 1000,
            latency: Some(latency),
            misses: Some(misses),
            waits: (Some(hit), Some(miss)),
            in_flight: 1.0,
            disk: None,
            cached: limit,
        }
    }

    fn settle(sharing: &mut Sharing) {
        for _ in 0..200 {
            let held = ["a", "b"].map(|name| (name.to_owned(), sharing.limit(name)));
            let together: u64 = held.iter().map(|(_, held)| held.get()).sum();
            assert!(together <= 200 * MIB);
            sharing.step(&held.into());
        }
    }

    #[test]
    fn who_gains_from_cache_gets_it_and_nobody_is_above_the_bound() {
        for factor in [1.0, 1.4, 0.7] {
            let mut sharing = sharing(Slo::AboveFair(0.05));
            assert_eq!((sharing.limit("a"), sharing.limit("b")), (mib(100), mib(100)));
            // One has a hot spot larger than its fair share, the other one scans.
            let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1), (160, 0.1)]), curve(&[(1000, 0.9)]));
            for _ in 0..12 {
                let observed = BTreeMap::from([
                    ("a".to_owned(), observed(&hot, sharing.limit("a"), factor)),
                    ("b".to_owned(), observed(&scan, sharing.limit("b"), factor)),
                ]);
                sharing.end_interval(&observed);
                settle(&mut sharing);
            }
            assert_eq!(sharing.reason(), None);
            assert!(sharing.limit("a") >= mib(149), "{}", sharing.limit("a"));
            for name in ["a", "b"] {
                let verdict = sharing.verdict(name).unwrap();
                assert!(verdict.slo_met(), "{verdict:?}");
                let error = verdict.expected.as_secs_f64() / verdict.latency.as_secs_f64() - 1.0;
                assert!(error.abs() < 0.05, "{verdict:?}");
            }
        }
    }

    #[test]
    fn one_that_reads_nothing_keeps_its_fair_share() {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        let hot = curve(&[(50, 0.9), (300, 0.0)]);
        let a = observed(&hot, sharing.limit("a"), 1.0);
        let b = Observed {
            curve: None,
            reads: 0,
            latency: None,
            misses: None,
            waits: (None, None),
            in_flight: 0.0,
            disk: None,
            cached: mib(0),
        };
        sharing.end_interval(&BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]));
        settle(&mut sharing);
        assert_eq!((sharing.limit("a"), sharing.limit("b")), (mib(100), mib(100)));
    }

    /// What `a` can have when `b`, which was seen for some intervals, reads nothing any more.
    fn after_rest(slo: Slo, factors: &[f64], rest: &dyn Fn(u32) -> Option<Observed>) -> (Bytes, Option<String>) {
        let mut sharing = sharing(slo);
        let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1)]), curve(&[(1000, 0.5)]));
        let a = |sharing: &Sharing| ("a".to_owned(), observed(&hot, sharing.limit("a"), 1.0));
        for factor in factors {
            let b = ("b".to_owned(), observed(&scan, sharing.limit("b"), *factor));
            sharing.end_interval(&BTreeMap::from([a(&sharing), b]));
            settle(&mut sharing);
        }
        for interval in 0..2 * IDLE_MAX {
            let b = rest(interval).map(|observed| ("b".to_owned(), observed));
            sharing.end_interval(&[a(&sharing)].into_iter().chain(b).collect());
            settle(&mut sharing);
            if interval + 1 < IDLE_MAX {
                assert_eq!(sharing.reason(), None, "{interval}");
            }
        }
        (sharing.limit("a"), sharing.reason())
    }

    #[test]
    fn one_that_reads_nothing_any_more_keeps_nobody_from_a_share_and_has_its_fair_one() {
        let fair = (mib(100), None);
        // It is gone after two violations, with a bound above its fair share's latency.
        assert_eq!(after_rest(Slo::AboveFair(0.05), &[1.0, 1.0, 1.3, 1.6], &|_| None), fair);
        // It is served, and what was sampled fades.
        let fading = |interval: u32| {
            let sampled = 1e3 * 0.6_f64.powi(interval as i32);
            let scan = curve(&[(1000, 0.5)]);
            let idle = Observed {
                reads: 0,
                latency: None,
                misses: None,
                waits: (None, None),
                ..observed(&scan, mib(100), 1.0)
            };
            Some(Observed { curve: Some((scan, sampled)), in_flight: 0.0, ..idle })
        };
        assert_eq!(after_rest(Slo::Latency(Duration::from_millis(11)), &[1.0, 1.0], &fading), fair);
    }

    #[test]
    fn an_slo_that_promises_nothing_is_one() {
        let mut sharing = sharing(Slo::AboveFair(1e300));
        let scan = curve(&[(1000, 0.9)]);
        let observed = ["a", "b"].map(|name| (name.to_owned(), observed(&scan, sharing.limit(name), 1.0)));
        sharing.end_interval(&observed.into());
        assert_eq!(sharing.verdict("a").map(|verdict| verdict.slo_met()), Some(true));
    }

    #[test]
    fn two_violations_lead_to_the_fair_share_and_measuring_leads_away_from_it() {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1)]), curve(&[(1000, 0.9)]));
        let both = |sharing: &Sharing, factor: f64| {
            BTreeMap::from([
                ("a".to_owned(), observed(&hot, sharing.limit("a"), 1.0)),
                ("b".to_owned(), observed(&scan, sharing.limit("b"), factor)),
            ])
        };
        for _ in 0..3 {
            let observed = both(&sharing, 1.0);
            sharing.end_interval(&observed);
            settle(&mut sharing);
        }
        for factor in [1.3, 1.6] {
            let observed = both(&sharing, factor);
            sharing.end_interval(&observed);
            settle(&mut sharing);
        }
        assert!(sharing.reason().unwrap().contains("application b was above its bound in 2 intervals"));
        assert_eq!(sharing.limit("a"), mib(100));
        for _ in 0..6 {
            let observed = both(&sharing, 1.6);
            sharing.end_interval(&observed);
            settle(&mut sharing);
        }
        assert_eq!(sharing.reason(), None);
        assert!(sharing.limit("a") >= mib(149));
    }

    #[test]
    fn a_disk_that_has_no_queue_now_is_known_to_have_one_with_another_share() {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        // One reads in a loop: hits of 0.1 ms, and a disk that is busy for 2 ms with each miss and answers at once if it is not busy.
        let hot = curve(&[(0, 1.0), (160, 0.02)]);
        let looped = |limit: Bytes| {
            let misses = interpolate(hot.points(), limit.get() as f64);
            let latency = Duration::from_micros(100).max(Duration::from_millis(2).mul_f64(misses));
            let wait = Duration::from_secs_f64(((latency.as_secs_f64() - 1e-4 * (1.0 - misses)) / misses).max(1.2e-4));
            let disk = Disk { busy: Duration::from_millis(2), utilization: misses * 2e-3 / latency.as_secs_f64() };
            Observed {
                curve: Some((hot.clone(), 1e6)),
                reads: 2000,
                latency: Some(latency),
                misses: Some(misses),
                waits: (Some(Duration::from_micros(100)), Some(wait)),
                in_flight: 1.0,
                disk: Some(disk),
                cached: limit,
            }
        };
        let scan = curve(&[(1000, 0.9)]);
        for interval in 0..10 {
            let limits = [sharing.limit("a"), sharing.limit("b")];
            let of_b = observed(&scan, limits[1], 1.0);
            sharing.end_interval(&BTreeMap::from([("a".to_owned(), looped(limits[0])), ("b".to_owned(), of_b)]));
            let verdict = sharing.verdict("a").unwrap();
            let fair = looped(mib(100)).latency.unwrap();
            let error = |a: Duration, b: Duration| (a.as_secs_f64() / b.as_secs_f64() - 1.0).abs();
            // With what it had there was nothing to learn of how much the cache is worth.
            assert!(interval < 4 || error(verdict.fair, fair) < 0.3, "interval {interval}: {verdict:?}, not {fair:?}");
            assert!(
                interval < 4 || error(verdict.expected, verdict.latency) < 0.15,
                "interval {interval}: {verdict:?}"
            );
            settle(&mut sharing);
        }
        assert!(sharing.limit("a") >= mib(159), "{}", sharing.limit("a"));
    }

    #[test]
    fn a_reader_that_pauses_is_predicted_with_a_share_at_which_nothing_waits_and_with_one_at_which_all_does() {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        // Where a fifth misses, hits and pauses take as long as the disk.
        let hot = curve(&[(0, 1.0), (80, 0.2), (1000, 0.15)]);
        let (hit, pause, busy) = (Duration::from_micros(600), Duration::from_micros(200), Duration::from_millis(4));
        let paused = |limit: Bytes| {
            let misses = interpolate(hot.points(), limit.get() as f64);
            let cycle = (hit + pause).max(busy.mul_f64(misses));
            let wait = (cycle - pause).saturating_sub(hit.mul_f64(1.0 - misses)).div_f64(misses);
            Observed {
                curve: Some((hot.clone(), 1e6)),
                reads: 2000,
                latency: Some(cycle - pause),
                misses: Some(misses),
                waits: (Some(hit), Some(wait)),
                in_flight: (cycle - pause).div_duration_f64(cycle),
                disk: Some(Disk { busy, utilization: busy.mul_f64(misses).div_duration_f64(cycle) }),
                cached: limit,
            }
        };
        // The other one has its hot spot at another size, so that this one is squeezed as far as its promise allows.
        let other = curve(&[(0, 1.0), (160, 0.1)]);
        for interval in 0..8 {
            let observed = BTreeMap::from([
                ("a".to_owned(), paused(sharing.limit("a"))),
                ("b".to_owned(), observed(&other, sharing.limit("b"), 1.0)),
            ]);
            sharing.end_interval(&observed);
            let verdict = sharing.verdict("a").unwrap();
            let near = |a: Duration, b: Duration| (a.as_secs_f64() / b.as_secs_f64() - 1.0).abs() < 0.02;
            assert!(near(verdict.fair, paused(mib(100)).latency.unwrap()), "interval {interval}: {verdict:?}");
            assert!(near(verdict.expected, verdict.latency), "interval {interval}: {verdict:?}");
            assert!(verdict.slo_met(), "interval {interval}: {verdict:?}");
            settle(&mut sharing);
        }
        assert!(sharing.limit("a") < mib(82), "{}", sharing.limit("a"));
    }

    #[test]
    fn a_boost_has_its_room_at_once_and_caches_have_it_again_with_the_next_plan() {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1), (160, 0.1)]), curve(&[(1000, 0.9)]));
        let both = |sharing: &Sharing| {
            BTreeMap::from([
                ("a".to_owned(), observed(&hot, sharing.limit("a"), 1.0)),
                ("b".to_owned(), observed(&scan, sharing.limit("b"), 1.0)),
            ])
        };
        for _ in 0..6 {
            sharing.end_interval(&both(&sharing));
            settle(&mut sharing);
        }
        assert!(sharing.limit("a") >= mib(149), "{}", sharing.limit("a"));
        assert_eq!(sharing.most("b"), mib(192), "all but the least shares");
        assert_eq!(sharing.claim("b", mib(193)), Claimed::Refused);
        assert!(sharing.is_settled(), "what is refused changes nothing");
        assert_eq!(sharing.claim("b", mib(140)), Claimed::Waits);
        assert_eq!(sharing.most("c"), mib(52));
        assert_eq!(sharing.claim("c", mib(53)), Claimed::Refused);
        assert_eq!(sharing.fair_share(), mib(30));
        let held = ["a", "b"].map(|name| (name.to_owned(), sharing.limit(name)));
        sharing.step(&held.into());
        let together = |sharing: &Sharing| sharing.limit("a").get() + sharing.limit("b").get();
        assert!(together(&sharing) <= 60 * MIB, "in one step");
        assert_eq!(sharing.claim("b", mib(140)), Claimed::Waits, "nobody has seen that caches are smaller");
        settle(&mut sharing);
        assert_eq!(sharing.claim("b", mib(140)), Claimed::Granted);
        sharing.rents("b", mib(140));
        sharing.end_interval(&both(&sharing));
        settle(&mut sharing);
        assert!(together(&sharing) <= 60 * MIB);
        sharing.rents("b", Bytes::ZERO);
        settle(&mut sharing);
        assert!(together(&sharing) <= 60 * MIB, "the interval goes on as it was planned");
        for _ in 0..6 {
            sharing.end_interval(&both(&sharing));
            settle(&mut sharing);
        }
        assert!(sharing.limit("a") >= mib(149), "{}", sharing.limit("a"));
    }

    #[test]
    fn what_boosts_have_rented_already_is_nobody_elses_from_the_start() {
        let sharer = Sharer { slo: Slo::AboveFair(0.05), most: mib(1000) };
        let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
        let of = |rented| {
            let rented = BTreeMap::from([("a".to_owned(), mib(rented))]);
            Sharing::new(mib(200), mib(1), sharers.clone().into(), &rented)
        };
        assert_eq!(of(120).limit("a"), mib(40));
        // The budget was larger when it was rented.
        let full = of(300);
        assert_eq!((full.limit("a"), full.limit("b"), full.most("b")), (mib(0), mib(0), mib(0)));
        let mut full = full;
        full.end_interval(&BTreeMap::from([("a".to_owned(), observed(&curve(&[(50, 0.5)]), mib(0), 1.0))]));
        assert!(full.reason().is_some());
    }

    #[test]
    fn what_nobody_can_have_is_told() {
        let mut sharing = sharing(Slo::Latency(Duration::from_micros(300)));
        let scan = curve(&[(1000, 0.9)]);
        let observed = ["a", "b"].map(|name| (name.to_owned(), observed(&scan, sharing.limit(name), 1.0)));
        sharing.end_interval(&observed.into());
        let reason = sharing.reason().unwrap();
        assert!(reason.starts_with("no shares meet all SLOs: application a cannot have 0.3"), "{reason}");
        assert_eq!(sharing.verdict("a").map(|verdict| verdict.slo_met()), Some(false));
    }

    /// The curve of a device's read cache, four fifths of whose reads are from a hot spot and the others from anywhere in 8 GiB, 128 KiB a read.
    fn of_hot_spot(hot: u64, random: &mut Random) -> MissCurve {
        let mut curve = MiniatureCurve::new(Miniatures { segment_blocks: 256, ..Miniatures::up_to(128 * 256) });
        for _ in 0..3 {
            for _ in 0..2500 {
                let is_hot = random.chance(0.8);
                let first = if is_hot { random.below(hot * 8) } else { (1 << 20) + random.below(8192 * 8) } * 32;
                curve.observe_range(Access::Read, first..first + 32);
            }
            curve.end_interval();
        }
        MissCurve::from_measured(&curve.points(), Bytes::new(4096)).unwrap()
    }

    #[test]
    fn each_of_two_hot_spots_beside_reads_of_what_is_read_once_gets_room() {
        let sharer = Sharer { slo: Slo::AboveFair(0.1), most: mib(128) };
        let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
        let mut sharing = Sharing::new(mib(128), mib(1), sharers.into(), &BTreeMap::new());
        let random = &mut Random::from_seed(3);
        let curves = [("a", of_hot_spot(40, random)), ("b", of_hot_spot(72, random))];
        for _ in 0..6 {
            let of =
                |(name, curve): &(&str, MissCurve)| ((*name).to_owned(), observed(curve, sharing.limit(name), 1.0));
            let observed = curves.iter().map(of).collect();
            sharing.end_interval(&observed);
            settle(&mut sharing);
        }
        assert_eq!(sharing.reason(), None);
        let (a, b) = (sharing.limit("a"), sharing.limit("b"));
        assert!(a >= mib(42) && b >= mib(76), "{a} and {b}");
    }
}
