//! What staging pools do with checkpoints.

mod staging_runs;

use std::time::Duration;

use staging_runs::RUNS;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_planner::provision::Rates;
use surgetank_whatif::staging::{Burst, BurstError, Job, Jobs, JobsError, Kind, Pool};

#[track_caller]
fn all(name: &str) {
    let (_, run, count) = RUNS.iter().find(|(of, ..)| *of == name).unwrap();
    for seed in 0..*count {
        if let Err(error) = run(seed) {
            panic!("{name}, seed {seed}: {error}");
        }
    }
}

#[test]
fn a_checkpoint_takes_what_the_planner_says_and_all_of_it_arrives() {
    all("the closed form");
}

#[test]
fn more_benefactors_or_memory_are_never_slower() {
    all("more is not slower");
}

#[test]
fn benefactors_of_several_kinds_do_what_each_does_alone() {
    all("kinds");
}

#[test]
fn one_job_is_one_checkpoint() {
    all("one job");
}

#[test]
fn jobs_wait_as_long_as_in_a_pool_that_moves_in_milliseconds() {
    all("jobs over a pool");
}

const RATES: Rates =
    Rates { ingest: Bandwidth::new(100), ssd_write: Some(Bandwidth::new(50)), drain: Bandwidth::new(10) };

/// 100 B/s in, 50 B/s to an SSD of 300 bytes, 10 B/s to the target; memory holds 200 bytes.
fn kind() -> Kind {
    Kind { count: 1, memory: Bytes::new(200), ssd: Bytes::new(300), rates: RATES }
}

#[test]
fn a_checkpoint_by_hand() {
    let burst = Burst { kinds: vec![kind()], processes: 2, each: Bytes::new(300), chunk: Bytes::new(100) };
    let written = burst.run().unwrap();
    // Memory is full after 4 s, with 400 bytes taken in; the SSD after 6 s, with 500; the last 100 come in at 10 B/s.
    assert_eq!(written.took, Duration::from_secs(16));
    // The first process has its third chunk after 500 bytes.
    assert_eq!(written.first, Duration::from_secs(6));
    // 200 bytes of memory and 300 on SSD are left then.
    assert_eq!((written.drained, written.memory_most), (Duration::from_secs(66), Bytes::new(200)));
    assert_eq!((written.at_target, written.chunks), (Bytes::new(600), 6));
}

#[test]
fn where_memory_takes_in_slowly_the_closed_form_is_too_fast() {
    let rates = Rates { ingest: Bandwidth::new(50), ssd_write: Some(Bandwidth::new(100)), ..RATES };
    let kind = Kind { count: 1, memory: Bytes::new(100), ssd: Bytes::new(300), rates };
    let burst = Burst { kinds: vec![kind], processes: 1, each: Bytes::new(600), chunk: Bytes::new(100) };
    // The SSD takes in 50 B/s and drains at 5 in the agent's idle half: it is full after 6 2/3 s, with 333 1/3 bytes taken in; memory 2.5 s
    // later, with 458 1/3; the rest comes in at 10 B/s. The closed form has 23 s.
    assert_eq!(burst.run().unwrap().took.as_millis(), 23_333);
}

#[test]
fn one_log_is_one_outcome() {
    let job = |start: u64| Job {
        start: Instant::from_nanoseconds(start),
        computes: Duration::from_secs(5),
        processes: 1,
        dataset: Bytes::new(300),
    };
    let pool = Pool { nodes: 1, memory: Bytes::new(200), ssd: Bytes::new(300), rates: RATES };
    let all = [job(0), job(0)];
    let run = || Jobs { jobs: &all, every: Duration::from_secs(9), pool }.run().unwrap();
    let (one, other) = (run(), run());
    assert_eq!(one.checkpoints, other.checkpoints);
    // As the burst by hand, of two processes at once.
    assert!(one.checkpoints.iter().all(|one| one.took == Duration::from_secs(16)), "{:?}", one.checkpoints);
    assert_eq!((one.processes_most, one.ended), (2, Instant::from_nanoseconds(71_000_000_000)));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let burst = Burst { kinds: vec![kind()], processes: 2, each: Bytes::new(300), chunk: Bytes::new(100) };
    let of = |burst: Burst| burst.run().unwrap_err();
    for empty in [
        Burst { kinds: Vec::new(), ..burst.clone() },
        Burst { kinds: vec![Kind { count: 0, ..kind() }], ..burst.clone() },
        Burst { processes: 0, ..burst.clone() },
        Burst { each: Bytes::ZERO, ..burst.clone() },
        Burst { chunk: Bytes::ZERO, ..burst.clone() },
    ] {
        assert_eq!(of(empty), BurstError::Empty);
    }
    for large in [
        Burst { processes: u64::MAX, ..burst.clone() },
        Burst { each: Bytes::new(u64::MAX), ..burst.clone() },
        Burst { each: Bytes::new(u64::MAX), chunk: Bytes::new(u64::MAX), ..burst.clone() },
        Burst { kinds: vec![Kind { count: u64::MAX, ..kind() }; 2], ..burst.clone() },
        Burst { kinds: vec![Kind { count: u64::MAX / 2, ..kind() }], ..burst },
    ] {
        assert_eq!(of(large), BurstError::TooLarge);
    }
    let job = Job { start: Instant::ZERO, computes: Duration::MAX, processes: u64::MAX, dataset: Bytes::new(u64::MAX) };
    let pool = Pool { nodes: 0, memory: Bytes::ZERO, ssd: Bytes::ZERO, rates: RATES };
    let jobs = Jobs { jobs: &[job], every: Duration::ZERO, pool };
    assert_eq!(jobs.run().unwrap_err(), JobsError::TooMany);
    // Whatever jobs are, nothing panics.
    let odd = [job, Job { computes: Duration::ZERO, ..job }, Job { processes: 0, dataset: Bytes::ZERO, ..job }];
    let outcome = Jobs { jobs: &odd, every: Duration::MAX, pool }.run().unwrap();
    assert_eq!(outcome.checkpoints.len(), 2);
}
