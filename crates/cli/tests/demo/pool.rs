//! The quick demo of a staging pool.

use crate::place::{self, Place};

#[test]
fn a_checkpoint_through_the_pool_loses_nothing_and_leaves_nothing() {
    if !place::has_file_systems() {
        return;
    }
    let place = Place::new();
    let found = place.found(&["--pool", "--quick", "--seed", "7"]);
    assert_eq!(found["lost_bytes"], 0);
    assert_eq!(found["killed"], 1, "the benefactor was killed while the writers wrote");
    assert_eq!(found["managers_killed"], 1);
    for field in ["checkpoint_s", "mib_s"] {
        assert!(found["modes"]["direct"][field].as_f64().unwrap() > 0.0);
        assert!(found["modes"]["pool"][field].as_f64().unwrap() > 0.0);
    }
    assert!(found["modes"]["pool"]["drain_s"].as_f64().unwrap() > 0.0);
    let at_target = found["modes"]["pool"]["at_target"].as_array().unwrap();
    // A sum of many parts, which differs from 64 by their roundings.
    assert!(at_target.last().unwrap()[1].as_f64().unwrap() > 63.99, "the slow volume has all of it: {at_target:?}");
    assert!(place.page().contains("<svg"));
    assert!(place.page().contains("every byte was read back and matched"));
    place.assert_nothing_is_left();
}
