//! The client of AWS against a fake of EC2.

mod account;
mod behaviour;
#[path = "../faked/mod.rs"]
mod faked;
mod lives;
mod official;
mod policy;
mod trouble;

use surgetank_provider::fakes::ec2::Ec2;

use faked::contracts;

#[test]
fn the_contract_holds_against_the_fake() {
    contracts::holds::<Ec2>();
}

#[test]
fn the_contract_holds_where_answers_lag_and_pages_are_short() {
    contracts::holds_where_answers_lag_and_pages_are_short::<Ec2>();
}

#[test]
fn the_contract_holds_amid_absences_and_stale_lists() {
    contracts::holds_amid_absences_and_stale_lists::<Ec2>();
}
