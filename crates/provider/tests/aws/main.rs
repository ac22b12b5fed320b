//! The client of AWS against a fake of EC2.

mod account;
mod official;

use std::time::Duration;

use surgetank_provider::contract;
use surgetank_provider::fakes::Settings;

use account::Account;

#[test]
fn the_contract_holds_against_the_fake() {
    contract::run(&Account::new(Settings::default()));
}

#[test]
fn the_contract_holds_where_answers_lag() {
    let lag = Duration::from_secs(3);
    contract::run(&Account::new(Settings { blind: lag, listing_lag: lag, ..Settings::default() }));
}
