//! What the tests of the world share.

use surgetank_sim::{Report, Scenario, run};

/// Runs one scenario; a failure, also a panic of the engine, names the command that reproduces it.
pub fn check(test: &str, file: &str, scenario: &Scenario) -> Report {
    let again = || {
        let seed = scenario.seed;
        format!("reproduce: SURGETANK_SEED={seed} cargo test -p surgetank-sim --test {file} -- --exact {test}")
    };
    match std::panic::catch_unwind(|| run(scenario)) {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => panic!("{failure}\n  {}", again()),
        Err(_) => panic!("seed {}: the engine panicked\n  {scenario:?}\n  {}", scenario.seed, again()),
    }
}

/// The seeds of a test: `count` of them, or the one of the environment variable `SURGETANK_SEED`; `SURGETANK_RUNS`
/// sets another count and `SURGETANK_FIRST` another first seed, for long searches.
#[allow(clippy::disallowed_methods, reason = "the tests, not the world, are told by the environment what to run")]
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (first, count) = match number("SURGETANK_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SURGETANK_FIRST").unwrap_or(1), number("SURGETANK_RUNS").unwrap_or(count)),
    };
    first..first + count
}
