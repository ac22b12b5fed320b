//! What the tests of the world share.

use surgetank_sim::{Report, Scenario, run};

/// Runs one scenario; a failure names the command that reproduces it.
pub fn check(test: &str, file: &str, scenario: &Scenario) -> Report {
    match run(scenario) {
        Ok(report) => report,
        Err(failure) => panic!(
            "{failure}\n  reproduce: SURGETANK_SEED={} cargo test -p surgetank-sim --test {file} -- --exact {test}",
            scenario.seed
        ),
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
