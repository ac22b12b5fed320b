//! The client of Compute Engine against a fake of it.

mod account;
mod behaviour;
mod lives;
mod official;
mod role;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::fakes::Settings;
use surgetank_provider::{FaultRates, Faulty, Provider};

use account::Account;

#[test]
fn the_contract_holds_against_the_fake() {
    contract::run(&Account::new(Settings::default()));
}

#[test]
fn the_contract_holds_where_answers_lag_and_pages_are_short() {
    let lag = Duration::from_secs(3);
    contract::run(&Account::new(Settings { blind: lag, listing_lag: lag, page: 1, ..Settings::default() }));
}

/// The same account; in addition volumes are not known now and then, and lists lag behind.
struct Misbehaving(Account);

impl Subject for Misbehaving {
    fn open(&self) -> Arc<dyn Provider> {
        let rates = FaultRates {
            unknown: 0.2,
            unknown_for: Span(Duration::from_secs(10)),
            stale: 0.2,
            ..FaultRates::default()
        };
        Arc::new(Faulty::new(self.0.open(), self.0.clock.clone()).with_rates(rates))
    }

    fn open_failing(&self) -> Option<Arc<dyn Provider>> {
        self.0.open_failing()
    }

    fn pass_time(&self) {
        self.0.pass_time();
    }

    fn rentable(&self) -> (String, surgetank_model::Bytes) {
        self.0.rentable()
    }
}

#[test]
fn the_contract_holds_amid_absences_and_stale_lists() {
    contract::run(&Misbehaving(Account::new(Settings::default())));
}
