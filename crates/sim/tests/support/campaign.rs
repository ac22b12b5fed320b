//! Campaigns of seeded runs on all cores.

use std::io::Write;

use surgetank_sim::{Family, Report};

use crate::cores::{over_all_cores, seeds};
use crate::support::check;

/// Runs the seeds of a family on all cores and adds up what they did.
pub fn campaign(test: &str, family: Family, count: u64) -> Report {
    let seeds = seeds(1, count);
    let total = over_all_cores(seeds.clone(), |seed| {
        let again = format!("SURGETANK_SEED={seed} cargo test -p surgetank-sim --test crash -- --exact {test}");
        check(&family.scenario(seed), &again)
    });
    let (name, runs, points) = (family.name(), seeds.end - seeds.start, total.points());
    let line = format!("{name}: {runs} runs, {points} crashes and faults, 0 violations; {total:?}\n");
    // Not captured: the counts are a result.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    total
}
