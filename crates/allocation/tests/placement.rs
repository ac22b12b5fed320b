//! Demands are placed when they have a place, and only then.

mod support;

use support::all;

#[test]
fn ten_thousand_networks_are_decided_as_halls_condition_says() {
    all(10_000, support::placement::run);
}
