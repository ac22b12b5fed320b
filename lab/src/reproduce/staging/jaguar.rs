//! A synthetic Jaguar. Its logs are not public: this is Intrepid's log, drawn as often as Table III has jobs and scaled to Jaguar's cores.
//! Fits: number of jobs, mean, least and most of their data and their time, number of heroes, the years.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant};
use surgetank_trace::Job;
use surgetank_whatif::staging;

use super::paper;

/// Nodes of Intrepid, 163,840 cores.
const INTREPID_NODES: f64 = 40_960.0;
/// Heroes are as Intrepid's jobs from here on.
const LARGE: f64 = 8_192.0;
const SEED: u64 = 11;
/// Halvings of an exponent's bounds.
const BISECTIONS: usize = 60;

/// A job of Intrepid, blurred: its sizes are powers of two, Jaguar's were not.
struct Drawn {
    /// Part of the machine.
    size: f64,
    run_s: f64,
}

/// The jobs, in order of time; none if the log has none.
pub fn jobs(intrepid: &[Job]) -> Vec<staging::Job> {
    let large: Vec<Job> = intrepid.iter().copied().filter(|job| job.processors as f64 >= LARGE).collect();
    let small: Vec<Job> = intrepid.iter().copied().filter(|job| (job.processors as f64) < LARGE).collect();
    if large.is_empty() || small.is_empty() {
        return Vec::new();
    }
    let random = &mut Random::from_seed(SEED);
    let mut draw = |from: &[Job]| {
        let job = &from[random.below(from.len() as u64) as usize];
        Drawn { size: job.processors as f64 / INTREPID_NODES * 2f64.powf(-random.unit()), run_s: job.run.as_secs_f64() }
    };
    let heroes: Vec<Drawn> = (0..paper::HEROES).map(|_| draw(&large)).collect();
    let others: Vec<Drawn> = (paper::HEROES..paper::JOBS).map(|_| draw(&small)).collect();
    let mut datasets = hero_datasets(&heroes);
    let heroes_bytes: f64 = datasets.iter().sum();
    datasets.extend(other_datasets(&others, paper::DATASET_MEAN * paper::JOBS as f64 - heroes_bytes));
    let mut runs_s: Vec<f64> = heroes.iter().chain(&others).map(|drawn| drawn.run_s).collect();
    fit_runs(&mut runs_s);
    // Arrivals are of any hour of six years: Intrepid's are of three weeks.
    let mut starts: Vec<u64> = runs_s.iter().map(|_| (random.unit() * paper::SPAN_S * 1e9) as u64).collect();
    starts.sort_unstable();
    let mut all: Vec<(f64, f64)> = datasets.into_iter().zip(runs_s).collect();
    random.shuffle(&mut all);
    let job = |((dataset, run_s), start): ((f64, f64), u64)| staging::Job {
        start: Instant::from_nanoseconds(start),
        computes: Duration::from_secs_f64(run_s),
        processes: ((dataset / paper::MEMORY_PER_CORE).round() as u64).max(1),
        dataset: Bytes::new(dataset as u64),
    };
    all.into_iter().zip(starts).map(job).collect()
}

/// From the least hero to the largest, as Intrepid's large jobs lie between the least and the largest of these.
fn hero_datasets(heroes: &[Drawn]) -> Vec<f64> {
    let (least, most) =
        heroes.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), one| (least.min(one.size), most.max(one.size)));
    let scale = (paper::DATASET_MOST / paper::HERO_LEAST).ln() / (most / least).ln();
    heroes.iter().map(|one| paper::HERO_LEAST * ((one.size / least).ln() * scale).exp()).collect()
}

/// Below the least hero, as powers of their sizes, with the exponent that has them write so many bytes together.
fn other_datasets(others: &[Drawn], bytes: f64) -> Vec<f64> {
    let largest = LARGE / INTREPID_NODES;
    let of = |exponent: f64| {
        let dataset = |one: &Drawn| paper::HERO_LEAST * (one.size / largest).powf(exponent);
        others
            .iter()
            .map(dataset)
            .map(|bytes| bytes.clamp(paper::DATASET_LEAST, paper::HERO_LEAST))
            .collect::<Vec<f64>>()
    };
    let (mut low, mut high) = (0.01, 10.0);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if of(middle).iter().sum::<f64>() > bytes { low = middle } else { high = middle }
    }
    let mut datasets = of(high);
    if let Some(least) = datasets.iter_mut().min_by(|one, other| one.total_cmp(other)) {
        *least = paper::DATASET_LEAST;
    }
    datasets
}

/// Times that have the least, the most and the mean of Table III.
fn fit_runs(runs_s: &mut [f64]) {
    let (most, mean) = (paper::RUN_MOST_H * paper::HOUR_S, paper::RUN_MEAN_H * paper::HOUR_S);
    let longest = runs_s.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1)).map_or(0, |(index, _)| index);
    let shortest =
        runs_s.iter().enumerate().min_by(|one, other| one.1.total_cmp(other.1)).map_or(0, |(index, _)| index);
    let scale = (mean * runs_s.len() as f64 - most) / (runs_s.iter().sum::<f64>() - runs_s[longest]);
    runs_s.iter_mut().for_each(|run_s| *run_s = (*run_s * scale).clamp(paper::RUN_LEAST_S, most));
    (runs_s[longest], runs_s[shortest]) = (most, paper::RUN_LEAST_S);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_table_iii_has() {
        let job = |(processors, run_s): (u64, u64)| Job {
            start: Duration::ZERO,
            run: Duration::from_secs(run_s),
            processors,
            memory: None,
        };
        let intrepid: Vec<Job> = [(64, 300), (512, 3600), (2048, 900), (8192, 7000), (32_768, 4000)].map(job).to_vec();
        let found = jobs(&intrepid);
        assert_eq!(found, jobs(&intrepid), "a seed is one log");
        assert_eq!(found.len(), paper::JOBS);
        let datasets = || found.iter().map(|job| job.dataset.get() as f64);
        let runs = || found.iter().map(|job| job.computes.as_secs_f64());
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found}, not {expected}");
        near(datasets().sum::<f64>() / paper::JOBS as f64, paper::DATASET_MEAN);
        near(datasets().fold(0.0, f64::max), paper::DATASET_MOST);
        near(datasets().fold(f64::MAX, f64::min), paper::DATASET_LEAST);
        assert!(
            datasets().filter(|bytes| *bytes >= paper::HERO_LEAST * 0.999_999).count().abs_diff(paper::HEROES) <= 5
        );
        near(runs().sum::<f64>() / paper::JOBS as f64, paper::RUN_MEAN_H * paper::HOUR_S);
        near(runs().fold(0.0, f64::max), paper::RUN_MOST_H * paper::HOUR_S);
        near(runs().fold(f64::MAX, f64::min), paper::RUN_LEAST_S);
        assert!(found.is_sorted_by_key(|job| job.start));
        assert_eq!(jobs(&[]), []);
    }
}
