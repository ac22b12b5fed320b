//! The client of Azure against a fake of it.

mod account;
mod behaviour;
#[path = "../faked/disks.rs"]
mod disks;
mod endings;
#[path = "../faked/mod.rs"]
mod faked;
#[path = "../faked/json.rs"]
mod json;
mod letters;
mod lives;
mod official;
mod role;
mod trouble;

use surgetank_provider::fakes::azure::Azure;

use faked::contracts;

#[test]
fn the_contract_holds_against_the_fake() {
    contracts::holds::<Azure>();
}

#[test]
fn the_contract_holds_where_answers_lag_and_pages_are_short() {
    contracts::holds_where_answers_lag_and_pages_are_short::<Azure>();
}

#[test]
fn the_contract_holds_amid_absences_and_stale_lists() {
    contracts::holds_amid_absences_and_stale_lists::<Azure>();
}
