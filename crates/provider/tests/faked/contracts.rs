//! The contract, against a fake as it is and as it misbehaves.

use std::sync::Arc;
use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_provider::contract::{self, Subject};
use surgetank_provider::fakes::Settings;
use surgetank_provider::{FaultRates, Faulty, Provider};

use super::{Account, Cloud};

pub fn holds<C: Cloud>() {
    contract::run(&Account::<C>::new(Settings::default()));
}

pub fn holds_where_answers_lag_and_pages_are_short<C: Cloud>() {
    let lag = Duration::from_secs(3);
    contract::run(&Account::<C>::new(Settings { blind: lag, listing_lag: lag, page: 1, ..Settings::default() }));
}

pub fn holds_amid_absences_and_stale_lists<C: Cloud>() {
    contract::run(&Misbehaving(Account::<C>::new(Settings::default())));
}

/// The same account; in addition volumes are not known now and then, and lists lag behind.
struct Misbehaving<C>(Account<C>);

impl<C: Cloud> Subject for Misbehaving<C> {
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

    fn rentable(&self) -> (String, Bytes) {
        self.0.rentable()
    }
}
