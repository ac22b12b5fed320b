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
    for field in ["checkpoint_s", "mib_s"] {
        assert!(found["modes"]["direct"][field].as_f64().unwrap() > 0.0);
        assert!(found["modes"]["pool"][field].as_f64().unwrap() > 0.0);
    }
    assert!(found["modes"]["pool"]["drain_s"].as_f64().unwrap() > 0.0);
    assert!(place.page().contains("every byte was read back and matched"));
    place.assert_nothing_is_left();
}
