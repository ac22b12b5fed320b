//! Lives of volumes amid faults.

use std::time::Duration;

use surgetank_provider::fakes::Settings;
use surgetank_provider::fakes::azure::Azure;

use crate::faked::lives;

/// How many lives each thread has.
const LIVES: u64 = 130;

#[test]
fn life_cycles_amid_faults_end_with_nothing_rented() {
    lives::<Azure>(Settings::default(), LIVES);
}

#[test]
fn life_cycles_amid_faults_and_lag_end_with_nothing_rented() {
    let lag = Duration::from_secs(3);
    lives::<Azure>(Settings { blind: lag, listing_lag: lag, page: 5, ..Settings::default() }, LIVES);
}
