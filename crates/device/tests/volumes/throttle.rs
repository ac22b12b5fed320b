//! The throttle's rates are exact, in virtual time.

use std::time::Duration;

use surgetank_device::volume::Memory;
use surgetank_device::volume::throttle::{BURST_DEFAULT, Credits, Unit};
use surgetank_device::{Buffer, MemoryVolume, Operation, Throttle, Volume, VolumeIo};
use surgetank_model::{Bandwidth, Instant, Iops, Limits};

const SIZE: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

fn memory_volume() -> MemoryVolume {
    MemoryVolume::new(SIZE, 512).unwrap()
}

fn limits(mib_s: Option<u64>, iops: Option<u64>) -> Limits {
    Limits { bandwidth: mib_s.map(Bandwidth::from_mib_s), iops: iops.map(Iops::new) }
}

/// Keeps `depth` I/Os of `length` bytes in flight from `*now` for `duration`; the number that ended in it.
fn load(volume: &mut dyn Volume, now: &mut Instant, duration: Duration, depth: u64, op: Operation, length: u64) -> u64 {
    let end = *now + duration;
    let buffer = Buffer::zeroed(length as usize);
    let mut completions = Vec::new();
    let (mut submitted, mut ended) = (0, 0);
    loop {
        while submitted < ended + depth {
            let memory = match op {
                Operation::Read | Operation::Write { .. } => vec![buffer.slice(0, length as usize)],
                _ => Vec::new(),
            };
            volume.submit(*now, VolumeIo { token: submitted, operation: op, offset: 0, length, memory: memory.into() });
            submitted += 1;
        }
        completions.clear();
        volume.poll(*now, &mut completions);
        for completion in &completions {
            assert_eq!((completion.token, completion.result), (ended, Ok(())), "first in, first out");
            ended += 1;
        }
        if completions.is_empty() {
            let deadline = volume.next_deadline().unwrap();
            assert!(deadline > *now, "no busy loop");
            if deadline > end {
                *now = end;
                return ended;
            }
            *now = deadline;
        }
    }
}

fn assert_near(measured: f64, expected: f64) {
    assert!((measured / expected - 1.0).abs() < 0.005, "{measured} instead of {expected}");
}

#[test]
fn bandwidth_and_iops_are_exact_in_the_long_run() {
    let cases = [
        (limits(Some(33), None), 33.0 * 1024.0 * 1024.0 / 4096.0, 4096, Operation::Read),
        (limits(Some(33), None), 33.0, MIB, Operation::Write { fua: false }),
        (limits(Some(1), None), 0.25, 4 * MIB, Operation::Write { fua: false }),
        (limits(None, Some(3000)), 3000.0, 65536, Operation::Read),
        (limits(Some(125), Some(3000)), 3000.0, 4096, Operation::Write { fua: true }),
        (limits(Some(125), Some(3000)), 125.0, MIB, Operation::Read),
        (limits(Some(125), Some(3000)), 3000.0, MIB, Operation::Discard),
        (limits(Some(125), Some(3000)), 125.0, MIB, Operation::WriteZeroes { fua: false }),
        (limits(None, Some(7)), 7.0, 512, Operation::Read),
    ];
    for (limits, rate, length, operation) in cases {
        for depth in [1, 32] {
            let mut now = Instant::from_nanoseconds(12_345);
            let mut volume = Throttle::new(memory_volume(), limits, now);
            // The saved-up burst passes in the first part.
            load(&mut volume, &mut now, Duration::from_secs(8), depth, operation, length);
            drain(&mut volume, &mut now);
            // Long enough for 400 I/Os, so that one more or less does not matter.
            let time = Duration::from_secs((400.0_f64 / rate).ceil() as u64);
            let ended = load(&mut volume, &mut now, time, depth, operation, length);
            assert_near(ended as f64 / time.as_secs_f64(), rate);
        }
    }
}

/// Lets end what an earlier load left waiting.
fn drain(volume: &mut dyn Volume, now: &mut Instant) {
    let mut completions = Vec::new();
    while let Some(deadline) = volume.next_deadline() {
        *now = deadline;
        volume.poll(*now, &mut completions);
    }
}

#[test]
fn an_idle_volume_saves_up_a_bounded_burst() {
    let mut now = Instant::ZERO;
    let mut volume = Throttle::new(memory_volume(), limits(None, Some(1000)), now);
    now += Duration::from_secs(3600);
    let burst = load(&mut volume, &mut now, Duration::ZERO, 1, Operation::Read, 512);
    assert_eq!(u128::from(burst), 1000 * BURST_DEFAULT.as_millis() / 1000);
}

#[test]
fn limits_change_alive_without_a_new_burst() {
    let mut now = Instant::ZERO;
    let mut volume = Throttle::new(memory_volume(), limits(None, Some(1000)), now);
    load(&mut volume, &mut now, Duration::from_secs(1), 1, Operation::Read, 512);
    for _ in 0..100 {
        volume.set_limits(limits(None, Some(2000)), now);
    }
    let ended = load_again(&mut volume, &mut now, Duration::from_secs(10));
    assert_near(ended as f64, 20_000.0);
    volume.set_limits(limits(None, Some(100)), now);
    let ended = load_again(&mut volume, &mut now, Duration::from_secs(100));
    assert_near(ended as f64, 10_000.0);
    volume.set_limits(Limits::NONE, now);
    assert_eq!((volume.waiting(), volume.next_deadline()), (0, None), "what waited goes on at once");
}

/// `load` on a volume where one I/O of an earlier load waits: it is served first and not counted.
fn load_again(volume: &mut Throttle<MemoryVolume>, now: &mut Instant, duration: Duration) -> u64 {
    let end = *now + duration;
    let mut completions = Vec::new();
    while completions.is_empty() {
        volume.poll(*now, &mut completions);
        *now = volume.next_deadline().unwrap_or(*now).max(*now);
    }
    load(volume, now, end - *now, 1, Operation::Read, 512)
}

#[test]
fn a_debt_survives_a_change_of_limits() {
    let now = Instant::ZERO;
    let mut volume = Throttle::new(memory_volume(), limits(Some(1), None), now);
    let buffer = Buffer::zeroed(8 << 20);
    for token in 0..2 {
        let memory = vec![buffer.slice(0, 8 << 20)];
        volume.submit(
            now,
            VolumeIo { token, operation: Operation::Read, offset: 0, length: SIZE, memory: memory.into() },
        );
    }
    let deadline = volume.next_deadline().unwrap().as_seconds();
    assert!((7.9..8.0).contains(&deadline), "{deadline}");
    volume.set_limits(limits(Some(2), None), now);
    let deadline = volume.next_deadline().unwrap().as_seconds();
    assert!((3.9..4.0).contains(&deadline), "{deadline}");
}

#[test]
fn a_flush_is_free_and_overtakes_what_waits() {
    let now = Instant::ZERO;
    let mut volume = Throttle::new(memory_volume(), limits(None, Some(1)), now);
    for token in 0..3 {
        volume.submit(
            now,
            VolumeIo { token, operation: Operation::Discard, offset: 0, length: 512, memory: Memory::new() },
        );
    }
    volume.submit(now, VolumeIo { token: 3, operation: Operation::Flush, offset: 0, length: 0, memory: Memory::new() });
    let mut completions = Vec::new();
    volume.poll(now, &mut completions);
    assert_eq!(completions.iter().map(|completion| completion.token).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(volume.waiting(), 2);
}

#[test]
fn credits_last_as_long_as_their_formula_says() {
    // Q0 / (cap - baseline) = 54,000 / (3000 - 300) = 20 s at the cap, then the baseline.
    let mut now = Instant::ZERO;
    let mut volume = Throttle::new(memory_volume(), limits(None, Some(3000)), now);
    let credits = Credits { unit: Unit::Operation, baseline_per_s: 300, capacity: 54_000, initial: 54_000 };
    let meter = volume.set_credits(&[credits], now);
    assert_eq!(meter.balances(now), [(Unit::Operation, 54_000)]);
    let burst = load(&mut volume, &mut now, Duration::from_secs(20), 1, Operation::Read, 512);
    assert_near(burst as f64, 60_000.0);
    let after = load_again(&mut volume, &mut now, Duration::from_secs(100));
    assert_near(after as f64, 30_000.0);
    // Idle time earns credits at the baseline.
    let mut completions = Vec::new();
    volume.poll(now + Duration::from_secs(10), &mut completions);
    let earned = meter.balances(now + Duration::from_secs(110));
    assert_near(earned[0].1 as f64, 33_000.0);
}

/// c ← clamp(c + (b − used)·dt, 0, Qmax), below, at and above the baseline, from any balance.
#[test]
fn the_balance_follows_the_rule_of_credits() {
    const BASELINE: u64 = 300;
    for (initial, demand, unit) in [
        (54_000, 2000, Unit::Operation),
        (100, 200, Unit::Operation),
        (40_000, 300, Unit::Operation),
        (9000, 700, Unit::Byte),
    ] {
        let mut now = Instant::ZERO;
        let mut volume = Throttle::new(memory_volume(), limits(None, None), now);
        let (capacity, bytes) = (54_000, 512);
        let scale = if unit == Unit::Byte { bytes } else { 1 };
        let (baseline_per_s, capacity, initial) = (BASELINE * scale, capacity * scale, initial * scale);
        let meter = volume.set_credits(&[Credits { unit, baseline_per_s, capacity, initial }], now);
        let (mut balance, mut served) = (initial as f64, 0);
        let mut completions = Vec::new();
        for token in 0..demand * 60 {
            now += Duration::from_nanos(1_000_000_000 / demand);
            let memory = Buffer::zeroed(bytes as usize);
            let memory = [memory.slice(0, bytes as usize)].into_iter().collect();
            volume.submit(now, VolumeIo { token, operation: Operation::Read, offset: 0, length: bytes, memory });
            volume.poll(now, &mut completions);
            let used = (completions.len() - std::mem::replace(&mut served, completions.len())) as u64 * scale;
            balance = (balance + baseline_per_s as f64 / demand as f64 - used as f64).clamp(0.0, capacity as f64);
            let metered = meter.balances(now)[0].1 as f64;
            assert!(
                (metered - balance).abs() < 3.0 * scale as f64,
                "{metered} metered, {balance} by the rule at {now}"
            );
        }
    }
}
