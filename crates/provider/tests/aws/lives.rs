//! Lives of volumes amid faults.

use std::time::Duration;

use surgetank_provider::fakes::Settings;
use surgetank_provider::fakes::ec2::Ec2;

use crate::faked::lives;

/// How many lives each thread has.
const LIVES: u64 = 260;

#[test]
fn life_cycles_amid_faults_end_with_nothing_rented() {
    lives::<Ec2>(Settings::default(), LIVES);
}

#[test]
fn life_cycles_amid_faults_and_lag_end_with_nothing_rented() {
    let lag = Duration::from_secs(3);
    let states = Duration::from_secs(2);
    lives::<Ec2>(Settings { blind: lag, listing_lag: lag, state_lag: states, page: 5, ..Settings::default() }, LIVES);
}
