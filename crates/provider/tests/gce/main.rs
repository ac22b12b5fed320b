//! The client of Compute Engine against a fake of it.

mod account;
mod behaviour;
#[path = "../faked/disks.rs"]
mod disks;
#[path = "../faked/mod.rs"]
mod faked;
#[path = "../faked/json.rs"]
mod json;
mod lives;
mod official;
mod role;
mod trouble;

use surgetank_provider::fakes::gce::Gce;

use faked::contracts;

#[test]
fn the_contract_holds_against_the_fake() {
    contracts::holds::<Gce>();
}

#[test]
fn the_contract_holds_where_answers_lag_and_pages_are_short() {
    contracts::holds_where_answers_lag_and_pages_are_short::<Gce>();
}

#[test]
fn the_contract_holds_amid_absences_and_stale_lists() {
    contracts::holds_amid_absences_and_stale_lists::<Gce>();
}
