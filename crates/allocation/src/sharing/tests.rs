//! What shares come to of what was observed.

use surgetank_model::random::Random;
use surgetank_mrc::{Access, MiniatureCurve, Miniatures};

use super::member::IDLE_MAX;
use super::*;
use crate::curve::interpolate;
use crate::problem::{Estimate, Latencies, Model, Queue};

const MIB: u64 = 1 << 20;

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn curve(points: &[(u64, f64)]) -> MissCurve {
    MissCurve::new(&points.iter().map(|(size, ratio)| (mib(*size), *ratio)).collect::<Vec<_>>()).unwrap()
}

fn sharing(slo: Slo) -> Sharing {
    let sharer = Sharer { slo, most: mib(1000), second: None };
    let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
    let mut sharing = Sharing::new((mib(200), Bytes::ZERO), mib(1), sharers.into(), &BTreeMap::new());
    ["a", "b"].iter().for_each(|name| sharing.serves(name, true));
    sharing
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
        overhead: Duration::ZERO,
        in_flight: 1.0,
        disk: None,
        cached: limit,
        second: None,
    }
}

fn settle(sharing: &mut Sharing) {
    for _ in 0..200 {
        let held = ["a", "b"].map(|name| (name.to_owned(), sharing.limit(Level::First, name)));
        let together: u64 = held.iter().map(|(_, held)| held.get()).sum();
        assert!(together <= 200 * MIB);
        sharing.step(Level::First, &held.into());
    }
}

#[test]
fn who_gains_from_cache_gets_it_and_nobody_is_above_the_bound() {
    for factor in [1.0, 1.4, 0.7] {
        let mut sharing = sharing(Slo::AboveFair(0.05));
        assert_eq!((sharing.limit(Level::First, "a"), sharing.limit(Level::First, "b")), (mib(100), mib(100)));
        // One has a hot spot larger than its fair share, the other one scans.
        let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1), (160, 0.1)]), curve(&[(1000, 0.9)]));
        for _ in 0..12 {
            let observed = BTreeMap::from([
                ("a".to_owned(), observed(&hot, sharing.limit(Level::First, "a"), factor)),
                ("b".to_owned(), observed(&scan, sharing.limit(Level::First, "b"), factor)),
            ]);
            sharing.end_interval(&observed);
            settle(&mut sharing);
        }
        assert_eq!(sharing.reason(), None);
        assert!(sharing.limit(Level::First, "a") >= mib(149), "{}", sharing.limit(Level::First, "a"));
        for name in ["a", "b"] {
            let verdict = sharing.verdict(name).unwrap();
            assert!(verdict.slo_met(), "{verdict:?}");
            let error = verdict.expected.as_secs_f64() / verdict.latency.as_secs_f64() - 1.0;
            assert!(error.abs() < 0.05, "{verdict:?}");
        }
    }
}

#[test]
fn what_reads_take_beyond_the_cache_is_told_and_changes_no_share() {
    let beyond = Duration::from_micros(300);
    let run = |slo, overhead| {
        let mut sharing = sharing(slo);
        let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1), (160, 0.1)]), curve(&[(1000, 0.9)]));
        for _ in 0..6 {
            let of = |name: &str, curve| {
                (name.to_owned(), Observed { overhead, ..observed(curve, sharing.limit(Level::First, name), 1.0) })
            };
            sharing.end_interval(&BTreeMap::from([of("a", &hot), of("b", &scan)]));
            settle(&mut sharing);
        }
        sharing
    };
    let relative = [Duration::ZERO, beyond].map(|overhead| run(Slo::AboveFair(0.05), overhead));
    // A bound on both leaves that much less for the cache.
    let bound = Duration::from_millis(12);
    let absolute = [run(Slo::Latency(bound), Duration::ZERO), run(Slo::Latency(bound + beyond), beyond)];
    for [without, with] in [relative, absolute] {
        for name in ["a", "b"] {
            assert_eq!(with.limit(Level::First, name), without.limit(Level::First, name));
            let more = without.verdict(name).unwrap().with(beyond);
            assert_eq!(with.verdict(name), Some(more));
            assert_eq!(with.predicted(name), Some(without.predicted(name).unwrap() + beyond));
        }
    }
}

#[test]
fn one_that_reads_nothing_keeps_its_fair_share() {
    let mut sharing = sharing(Slo::AboveFair(0.05));
    let hot = curve(&[(50, 0.9), (300, 0.0)]);
    let a = observed(&hot, sharing.limit(Level::First, "a"), 1.0);
    let b = Observed {
        curve: None,
        reads: 0,
        latency: None,
        misses: None,
        waits: (None, None),
        overhead: Duration::ZERO,
        in_flight: 0.0,
        disk: None,
        cached: mib(0),
        second: None,
    };
    sharing.end_interval(&BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]));
    settle(&mut sharing);
    assert_eq!((sharing.limit(Level::First, "a"), sharing.limit(Level::First, "b")), (mib(100), mib(100)));
}

/// What `a` can have when `b`, which was seen for some intervals, reads nothing any more.
fn after_rest(slo: Slo, factors: &[f64], rest: &dyn Fn(u32) -> Option<Observed>) -> (Bytes, Option<String>) {
    let mut sharing = sharing(slo);
    let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1)]), curve(&[(1000, 0.5)]));
    let a = |sharing: &Sharing| ("a".to_owned(), observed(&hot, sharing.limit(Level::First, "a"), 1.0));
    for factor in factors {
        let b = ("b".to_owned(), observed(&scan, sharing.limit(Level::First, "b"), *factor));
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
    (sharing.limit(Level::First, "a"), sharing.reason())
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
        let idle =
            Observed { reads: 0, latency: None, misses: None, waits: (None, None), ..observed(&scan, mib(100), 1.0) };
        Some(Observed { curve: Some((scan, sampled)), in_flight: 0.0, ..idle })
    };
    assert_eq!(after_rest(Slo::Latency(Duration::from_millis(11)), &[1.0, 1.0], &fading), fair);
}

#[test]
fn an_slo_that_promises_nothing_is_one() {
    let mut sharing = sharing(Slo::AboveFair(1e300));
    let scan = curve(&[(1000, 0.9)]);
    let observed = ["a", "b"].map(|name| (name.to_owned(), observed(&scan, sharing.limit(Level::First, name), 1.0)));
    sharing.end_interval(&observed.into());
    assert_eq!(sharing.verdict("a").map(|verdict| verdict.slo_met()), Some(true));
}

#[test]
fn two_violations_lead_to_the_fair_share_and_measuring_leads_away_from_it() {
    let mut sharing = sharing(Slo::AboveFair(0.05));
    let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1)]), curve(&[(1000, 0.9)]));
    let both = |sharing: &Sharing, factor: f64| {
        BTreeMap::from([
            ("a".to_owned(), observed(&hot, sharing.limit(Level::First, "a"), 1.0)),
            ("b".to_owned(), observed(&scan, sharing.limit(Level::First, "b"), factor)),
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
    assert_eq!(sharing.limit(Level::First, "a"), mib(100));
    for _ in 0..6 {
        let observed = both(&sharing, 1.6);
        sharing.end_interval(&observed);
        settle(&mut sharing);
    }
    assert_eq!(sharing.reason(), None);
    assert!(sharing.limit(Level::First, "a") >= mib(149));
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
            overhead: Duration::ZERO,
            in_flight: 1.0,
            disk: Some(disk),
            cached: limit,
            second: None,
        }
    };
    let scan = curve(&[(1000, 0.9)]);
    for interval in 0..10 {
        let limits = [sharing.limit(Level::First, "a"), sharing.limit(Level::First, "b")];
        let of_b = observed(&scan, limits[1], 1.0);
        sharing.end_interval(&BTreeMap::from([("a".to_owned(), looped(limits[0])), ("b".to_owned(), of_b)]));
        let verdict = sharing.verdict("a").unwrap();
        let fair = looped(mib(100)).latency.unwrap();
        let error = |a: Duration, b: Duration| (a.as_secs_f64() / b.as_secs_f64() - 1.0).abs();
        // With what it had there was nothing to learn of how much the cache is worth.
        assert!(interval < 4 || error(verdict.fair, fair) < 0.3, "interval {interval}: {verdict:?}, not {fair:?}");
        assert!(interval < 4 || error(verdict.expected, verdict.latency) < 0.15, "interval {interval}: {verdict:?}");
        settle(&mut sharing);
    }
    assert!(sharing.limit(Level::First, "a") >= mib(159), "{}", sharing.limit(Level::First, "a"));
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
            overhead: Duration::ZERO,
            in_flight: (cycle - pause).div_duration_f64(cycle),
            disk: Some(Disk { busy, utilization: busy.mul_f64(misses).div_duration_f64(cycle) }),
            cached: limit,
            second: None,
        }
    };
    // The other one has its hot spot at another size, so that this one is squeezed as far as its promise allows.
    let other = curve(&[(0, 1.0), (160, 0.1)]);
    for interval in 0..8 {
        let observed = BTreeMap::from([
            ("a".to_owned(), paused(sharing.limit(Level::First, "a"))),
            ("b".to_owned(), observed(&other, sharing.limit(Level::First, "b"), 1.0)),
        ]);
        sharing.end_interval(&observed);
        let verdict = sharing.verdict("a").unwrap();
        let near = |a: Duration, b: Duration| (a.as_secs_f64() / b.as_secs_f64() - 1.0).abs() < 0.02;
        assert!(near(verdict.fair, paused(mib(100)).latency.unwrap()), "interval {interval}: {verdict:?}");
        assert!(near(verdict.expected, verdict.latency), "interval {interval}: {verdict:?}");
        assert!(verdict.slo_met(), "interval {interval}: {verdict:?}");
        settle(&mut sharing);
    }
    assert!(sharing.limit(Level::First, "a") < mib(82), "{}", sharing.limit(Level::First, "a"));
}

#[test]
fn a_boost_has_its_room_at_once_and_caches_have_it_again_with_the_next_plan() {
    let mut sharing = sharing(Slo::AboveFair(0.05));
    let (hot, scan) = (curve(&[(50, 0.9), (150, 0.1), (160, 0.1)]), curve(&[(1000, 0.9)]));
    let both = |sharing: &Sharing| {
        BTreeMap::from([
            ("a".to_owned(), observed(&hot, sharing.limit(Level::First, "a"), 1.0)),
            ("b".to_owned(), observed(&scan, sharing.limit(Level::First, "b"), 1.0)),
        ])
    };
    for _ in 0..6 {
        sharing.end_interval(&both(&sharing));
        settle(&mut sharing);
    }
    assert!(sharing.limit(Level::First, "a") >= mib(149), "{}", sharing.limit(Level::First, "a"));
    assert_eq!(sharing.most("b"), mib(192), "all but the least shares");
    assert_eq!(sharing.claim("b", mib(193)), Claimed::Refused);
    assert!(sharing.is_settled(), "what is refused changes nothing");
    assert_eq!(sharing.claim("b", mib(140)), Claimed::Waits);
    assert_eq!(sharing.most("c"), mib(52));
    assert_eq!(sharing.claim("c", mib(53)), Claimed::Refused);
    assert_eq!(sharing.fair_share(Level::First), mib(30));
    let held = ["a", "b"].map(|name| (name.to_owned(), sharing.limit(Level::First, name)));
    sharing.step(Level::First, &held.into());
    let together = |sharing: &Sharing| sharing.limit(Level::First, "a").get() + sharing.limit(Level::First, "b").get();
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
    assert!(sharing.limit(Level::First, "a") >= mib(149), "{}", sharing.limit(Level::First, "a"));
}

#[test]
fn what_boosts_have_rented_already_is_nobody_elses_from_the_start() {
    let sharer = Sharer { slo: Slo::AboveFair(0.05), most: mib(1000), second: None };
    let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
    let of = |rented| {
        let rented = BTreeMap::from([("a".to_owned(), mib(rented))]);
        Sharing::new((mib(200), Bytes::ZERO), mib(1), sharers.clone().into(), &rented)
    };
    assert_eq!(of(120).limit(Level::First, "a"), mib(40));
    // The budget was larger when it was rented.
    let full = of(300);
    assert_eq!(
        (full.limit(Level::First, "a"), full.limit(Level::First, "b"), full.most("b")),
        (mib(0), mib(0), mib(0))
    );
    let mut full = full;
    full.end_interval(&BTreeMap::from([("a".to_owned(), observed(&curve(&[(50, 0.5)]), mib(0), 1.0))]));
    assert!(full.reason().is_some());
}

#[test]
fn what_nobody_can_have_is_told() {
    let mut sharing = sharing(Slo::Latency(Duration::from_micros(300)));
    let scan = curve(&[(1000, 0.9)]);
    let observed = ["a", "b"].map(|name| (name.to_owned(), observed(&scan, sharing.limit(Level::First, name), 1.0)));
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
    let sharer = Sharer { slo: Slo::AboveFair(0.1), most: mib(128), second: None };
    let sharers = ["a", "b"].map(|name| (name.to_owned(), sharer.clone()));
    let mut sharing = Sharing::new((mib(128), Bytes::ZERO), mib(1), sharers.into(), &BTreeMap::new());
    let random = &mut Random::from_seed(3);
    let curves = [("a", of_hot_spot(40, random)), ("b", of_hot_spot(72, random))];
    for _ in 0..6 {
        let of = |(name, curve): &(&str, MissCurve)| {
            ((*name).to_owned(), observed(curve, sharing.limit(Level::First, name), 1.0))
        };
        let observed = curves.iter().map(of).collect();
        sharing.end_interval(&observed);
        settle(&mut sharing);
    }
    assert_eq!(sharing.reason(), None);
    let (a, b) = (sharing.limit(Level::First, "a"), sharing.limit(Level::First, "b"));
    assert!(a >= mib(42) && b >= mib(76), "{a} and {b}");
}

#[test]
fn what_an_unserved_cache_has_no_boost_can_have() {
    let mut sharing = sharing(Slo::AboveFair(0.05));
    ["a", "b"].iter().for_each(|name| sharing.serves(name, false));
    assert_eq!(sharing.most("a"), mib(0), "nobody is served: both keep their halves");
    sharing.serves("a", true);
    assert_eq!(sharing.most("a"), mib(96));
    assert_eq!(sharing.claim("a", mib(97)), Claimed::Refused);
    sharing.serves("b", true);
    assert_eq!(sharing.most("a"), mib(192));
    assert_eq!(sharing.claim("a", mib(97)), Claimed::Waits);
    settle(&mut sharing);
    assert_eq!(sharing.claim("a", mib(97)), Claimed::Granted);
    sharing.serves("b", false);
    let kept = sharing.limit(Level::First, "b");
    assert_eq!(sharing.most("a"), Bytes::new(mib(196).get() - kept.get()));
    assert_eq!(sharing.claim("a", mib(97)), Claimed::Granted, "it has that already");
}

/// A device whose second level holds what the first one does, and whose reads wait in a queue before the disk if its `queue` is one.
struct TwoLevels {
    curve: MissCurve,
    /// Of a hit in each level, and on the disk.
    times: [Duration; 3],
    /// For how long the disk is busy with a read.
    busy: Duration,
}

impl TwoLevels {
    fn random(random: &mut Random) -> Self {
        let mut at = 0;
        let mut misses = 1.0;
        let points = (0..6).map(|_| {
            at += 1 + random.below(200);
            misses *= 0.2 + 0.8 * random.below(1000) as f64 / 1000.0;
            (mib(at), misses)
        });
        let points: Vec<_> = points.collect();
        let us = |from, to, random: &mut Random| Duration::from_micros(from + random.below(to - from));
        let times = [us(50, 300, random), us(400, 2000, random), us(3000, 10_000, random)];
        let busy = if random.chance(0.5) { us(3000, 20_000, random) } else { Duration::from_micros(100) };
        Self { curve: MissCurve::new(&points).unwrap(), times, busy }
    }

    fn misses(&self, size: Bytes) -> f64 {
        interpolate(self.curve.points(), size.get() as f64)
    }

    /// What a read takes, and of that what one waits for the disk that misses.
    fn latency(&self, [first, second]: [Bytes; 2]) -> (Duration, Duration) {
        let [hit, answer, miss] = self.times;
        let (missed, both) = (self.misses(first), self.misses(first.max(second)));
        let cached = hit.mul_f64(1.0 - missed) + answer.mul_f64(missed - both);
        let latency = (cached + miss.mul_f64(both)).max(self.busy.mul_f64(both));
        (latency, (latency - cached).div_f64(both))
    }

    fn observed(&self, shares: [Bytes; 2]) -> Observed {
        let (missed, both) = (self.misses(shares[0]), self.misses(shares[0].max(shares[1])));
        let (latency, wait) = self.latency(shares);
        let is_used = both < missed;
        Observed {
            curve: Some((self.curve.clone(), 1e6)),
            reads: 100_000,
            latency: Some(latency),
            misses: Some(missed),
            waits: (Some(self.times[0]), None),
            overhead: Duration::ZERO,
            in_flight: 1.0,
            disk: Some(Disk { busy: self.busy, utilization: self.busy.mul_f64(both).div_duration_f64(latency) }),
            cached: shares[0],
            second: Some(Behind {
                misses: Some(both / missed),
                waits: (is_used.then_some(self.times[1]), Some(wait)),
                cached: shares[1],
                size: mib(600),
            }),
        }
    }

    /// For a program of which all is known; without a queue before the disk.
    fn application(&self, name: &str) -> Application {
        let [level1, level2, disk] = self.times;
        Application {
            name: name.to_owned(),
            level1: HOST.to_owned(),
            level2: vec![SECOND.to_owned()],
            latencies: Some(Latencies { level1, level2, disk }),
            most: None,
            queue: Some(Queue { all: self.busy, pause: Duration::ZERO }),
            estimate: Estimate::Whole,
            slo: Slo::AboveFair(0.05),
            model: Model::Curve(self.curve.clone()),
            accesses_per_s: 1.0,
            margin: 0.0,
            violations: 0,
        }
    }
}

#[test]
fn both_levels_are_shared_by_one_plan_in_which_everybody_keeps_what_is_promised() {
    let (names, budgets) = (["a", "b", "c"], [mib(150), mib(600)]);
    let (mut gained, mut possible) = (0.0, 0.0);
    for seed in 0..200 {
        let random = &mut Random::from_seed(seed);
        let devices: BTreeMap<String, TwoLevels> =
            names.iter().map(|name| ((*name).to_owned(), TwoLevels::random(random))).collect();
        let sharer = Sharer { slo: Slo::AboveFair(0.05), most: budgets[0], second: Some(budgets[1]) };
        let sharers = names.map(|name| (name.to_owned(), sharer.clone()));
        let mut sharing = Sharing::new(budgets.into(), mib(1), sharers.into(), &BTreeMap::new());
        let fair = [Level::First, Level::Second].map(|level| sharing.fair_share(level));
        assert_eq!(fair, [mib(50), mib(200)]);
        let limits =
            |sharing: &Sharing, name: &str| [Level::First, Level::Second].map(|level| sharing.limit(level, name));
        let mut speedup = 1.0;
        for interval in 0..12 {
            let observed = devices.iter().map(|(name, device)| (name.clone(), device.observed(limits(&sharing, name))));
            sharing.end_interval(&observed.collect());
            while !sharing.is_settled() {
                for level in [Level::First, Level::Second] {
                    let held = names.map(|name| (name.to_owned(), sharing.limit(level, name)));
                    sharing.step(level, &held.into());
                }
            }
            let mut slowdown = 0.0;
            for (name, device) in &devices {
                let ratio = device.latency(limits(&sharing, name)).0.div_duration_f64(device.latency(fair).0);
                // What a miss takes without a queue, and a hit in a level that answered nothing, has to be seen first.
                let is_known = interval >= 4;
                assert!(
                    !is_known || ratio <= 1.051,
                    "seed {seed}, interval {interval}: {name} takes {ratio} of its fair share's"
                );
                slowdown += ratio;
            }
            speedup = names.len() as f64 / slowdown;
        }
        let applications: Vec<Application> = devices.iter().map(|(name, device)| device.application(name)).collect();
        let [level1, level2] = [(HOST, budgets[0]), (SECOND, budgets[1])]
            .map(|(name, cache)| vec![Server { name: name.to_owned(), cache }]);
        let latencies = applications[0].latencies.unwrap();
        let hierarchy = Hierarchy::Inclusive;
        let description =
            Description { latencies, hierarchy, level1, level2, applications, segment: mib(1), change_max: None };
        let best = solve(&Problem::new(description).unwrap(), None).fair_speedup;
        assert!(speedup > 0.99 && best > 0.99, "seed {seed}: {speedup} of {best}");
        gained += speedup - 1.0;
        possible += best - 1.0;
    }
    assert!(gained > 0.9 * possible, "{gained} of {possible}, which is possible if all is known");
}

#[test]
fn devices_with_one_level_share_beside_one_with_two_and_a_cache_has_no_more_than_its_members() {
    let random = &mut Random::from_seed(1);
    let device = TwoLevels { busy: Duration::from_micros(100), ..TwoLevels::random(random) };
    let sharer = |most, second| Sharer { slo: Slo::AboveFair(0.05), most, second };
    // One has members of 20 MiB in its first level; of the second one's hot spot a fair share is too small.
    let sharers =
        [("a", sharer(mib(20), Some(mib(600)))), ("b", sharer(mib(150), None)), ("c", sharer(mib(150), None))];
    let sharers = sharers.map(|(name, sharer)| (name.to_owned(), sharer));
    let mut sharing = Sharing::new((mib(150), mib(600)), mib(1), sharers.into(), &BTreeMap::new());
    let (hot, scan) = (curve(&[(50, 0.95), (90, 0.1), (100, 0.1)]), curve(&[(1000, 0.9)]));
    for _ in 0..8 {
        let [first, second] = [Level::First, Level::Second].map(|level| sharing.limit(level, "a"));
        let a = device.observed([first.min(mib(20)), second]);
        let of =
            |name: &str, curve: &MissCurve| (name.to_owned(), observed(curve, sharing.limit(Level::First, name), 1.0));
        let observed = BTreeMap::from([("a".to_owned(), a), of("b", &hot), of("c", &scan)]);
        sharing.end_interval(&observed);
        while !sharing.is_settled() {
            for level in [Level::First, Level::Second] {
                let held = ["a", "b", "c"].map(|name| (name.to_owned(), sharing.limit(level, name)));
                sharing.step(level, &held.into());
            }
        }
    }
    assert_eq!(sharing.reason(), None);
    assert!(sharing.limit(Level::First, "b") >= mib(90), "{}", sharing.limit(Level::First, "b"));
    assert!(sharing.limit(Level::First, "a") <= mib(20), "{}", sharing.limit(Level::First, "a"));
    assert_eq!(sharing.limit(Level::Second, "a"), mib(600));
    let fair = sharing.verdict("a").unwrap().fair;
    let expected = device.latency([mib(20), mib(600)]).0;
    assert!((fair.as_secs_f64() / expected.as_secs_f64() - 1.0).abs() < 0.05, "{fair:?}, not {expected:?}");
}
