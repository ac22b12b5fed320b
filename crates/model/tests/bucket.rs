//! The token bucket against a naive model that adds tokens nanosecond by nanosecond, and credits as providers state
//! them.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::units::{Bytes, Iops};
use surgetank_model::volume_type::{CreditUnit, Provision};
use surgetank_model::{Catalog, Instant, TokenBucket};

/// Level in billionths of a token; refilled one nanosecond at a time.
struct Naive {
    rate: i64,
    level: i64,
    capacity: i64,
    now: u64,
}

impl Naive {
    fn advance(&mut self, to: u64) {
        while self.now < to {
            self.level = (self.level + self.rate).min(self.capacity);
            self.now += 1;
        }
    }
}

const BILLION: i64 = 1_000_000_000;

proptest! {
    #[test]
    fn agrees_with_the_naive_model(
        rate in 1u64..5_000_000_000,
        capacity in 0u64..50,
        calls in prop::collection::vec((0u64..200, 0u64..80), 1..60),
    ) {
        let mut bucket = TokenBucket::full(Instant::ZERO, rate, capacity);
        let capacity = capacity.max(1) as i64 * BILLION;
        let mut naive = Naive { rate: rate as i64, level: capacity, capacity, now: 0 };
        for (wait, tokens) in calls {
            naive.advance(naive.now + wait);
            let now = Instant::from_nanoseconds(naive.now);
            prop_assert_eq!(bucket.available(now), (naive.level.max(0) / BILLION) as u64);
            match bucket.take(now, tokens) {
                Ok(()) => {
                    prop_assert!(naive.level > 0 || tokens == 0);
                    naive.level -= tokens as i64 * BILLION;
                }
                Err(again) => {
                    prop_assert!(naive.level <= 0 && again > now);
                    // The first nanosecond at which a token may be taken, and not one later.
                    let wait = again.since(now).as_nanos() as i64;
                    prop_assert!(naive.level + wait * naive.rate > 0);
                    prop_assert!(naive.level + (wait - 1) * naive.rate <= 0);
                }
            }
        }
    }

    #[test]
    fn never_more_than_rate_and_capacity(rate in 1u64..1_000_000, capacity in 1u64..100_000, size in 1u64..1000) {
        let mut bucket = TokenBucket::full(Instant::ZERO, rate, capacity);
        let end = Instant::from_nanoseconds(2_000_000_000);
        let (mut now, mut taken, mut calls) = (Instant::ZERO, 0, 0);
        while now < end && calls < 20_000 {
            calls += 1;
            match bucket.take(now, size) {
                Ok(()) => taken += size,
                Err(again) => now = again,
            }
        }
        let most = capacity as f64 + now.as_seconds() * rate as f64 + size as f64;
        prop_assert!(taken as f64 <= most + 1.0, "{taken} of {most}");
    }

    #[test]
    fn time_may_stand_or_go_back(times in prop::collection::vec(0u64..1000, 1..40)) {
        let mut bucket = TokenBucket::full(Instant::ZERO, BILLION as u64, 10);
        for nanoseconds in times {
            let before = bucket.available(Instant::from_nanoseconds(nanoseconds));
            prop_assert!(before <= 10);
            let _ = bucket.take(Instant::from_nanoseconds(nanoseconds), 3);
        }
    }
}

#[test]
fn extremes_do_not_overflow() {
    let mut bucket = TokenBucket::full(Instant::ZERO, u64::MAX, u64::MAX);
    let far = Instant::from_nanoseconds(u64::MAX);
    assert!(bucket.take(Instant::ZERO, u64::MAX).is_ok());
    assert_eq!(bucket.available(far), u64::MAX);
    assert!(bucket.take(far, u64::MAX).is_ok() && bucket.take(far, u64::MAX).is_err());
}

/// Serves `demand` IOPS as a volume does: the credits' bucket refills at the baseline, and a cap above it.
fn serve(type_name: &str, gib: u64, demand: u64, seconds: u64) -> Vec<u64> {
    let catalog = Catalog::builtin();
    let volume_type = catalog.find("aws", type_name).unwrap();
    let size = Bytes::from_gib(gib);
    let credits = volume_type.credits_at(size).unwrap();
    let cap = volume_type.limits_at(size).iops.map_or(u64::MAX, Iops::get);
    let mut bucket = credits.bucket(Instant::ZERO);
    (0..seconds)
        .map(|second| {
            let now = Instant::ZERO + Duration::from_secs(second);
            let served =
                demand.min(cap).min(bucket.available(now).max(if second == 0 { 0 } else { credits.baseline_per_s }));
            assert!(served == 0 || bucket.take(now, served).is_ok());
            served
        })
        .collect()
}

#[test]
fn gp2_bursts_as_long_as_the_vendor_says() {
    let catalog = Catalog::builtin();
    let gp2 = catalog.find("aws", "gp2").unwrap();
    // (GiB, baseline, seconds of burst, seconds from empty to full): the vendor's table.
    for (gib, baseline, burst_s, refill_s) in [
        (1, 100, 1862, 54_000),
        (33, 100, 1862, 54_000),
        (100, 300, 2000, 18_000),
        (334, 1002, 2703, 5389),
        (750, 2250, 7200, 2400),
    ] {
        let credits = gp2.credits_at(Bytes::from_gib(gib)).unwrap();
        assert_eq!((credits.unit, credits.bucket, credits.burst_per_s), (CreditUnit::Operations, 5_400_000, 3000));
        assert_eq!(credits.baseline_per_s, baseline);
        assert!(
            credits.burst_time().unwrap().as_secs_f64().round() as u64 == burst_s,
            "{gib} GiB: {:?}",
            credits.burst_time()
        );
        assert_eq!(credits.refill_time().as_secs_f64().round() as u64, refill_s);
    }
    assert_eq!(gp2.credits_at(Bytes::from_gib(1000)), None);
    assert_eq!(gp2.limits_at(Bytes::from_gib(2000)).iops, Some(Iops::new(6000)));
}

#[test]
fn gp2_served_second_by_second() {
    let served = serve("gp2", 100, 5000, 2100);
    let full = served.iter().take_while(|iops| **iops == 3000).count();
    assert!((1999..=2001).contains(&full), "{full} s at the cap");
    assert_eq!(*served.last().unwrap(), 300);
    // Below the baseline no credit is spent.
    assert!(serve("gp2", 100, 300, 5000).iter().all(|iops| *iops == 300));
}

#[test]
fn st1_scans_itself_in_the_vendors_time() {
    let catalog = Catalog::builtin();
    let st1 = catalog.find("aws", "st1").unwrap();
    for (tib, hours) in [(1, 1.17), (3, 1.75), (5, 2.91), (12, 6.99), (16, 9.32)] {
        let size = Bytes::from_gib(tib * 1024);
        let burst = st1.limits_at(size).bandwidth.unwrap().get() as f64;
        // The bucket of 1 TiB per TiB outlasts one scan at burst.
        let scan = size.get() as f64 / burst / 3600.0;
        assert!((scan - hours).abs() < 0.02, "{tib} TiB: {scan} h");
        let outlasts =
            st1.credits_at(size).is_none_or(|credits| credits.burst_time().unwrap().as_secs_f64() / 3600.0 >= scan);
        assert!(outlasts);
        assert_eq!(
            st1.sustained_with(size, &Provision::default()).bandwidth.unwrap().as_mib_s(),
            (40 * tib).min(500) as f64
        );
    }
}
