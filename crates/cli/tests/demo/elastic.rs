//! The quick demo of an elastic device. It takes about a minute.

use crate::place::{self, Place};

#[test]
fn the_quick_demo_verifies_every_byte_and_leaves_nothing() {
    if !place::has_file_systems() {
        return;
    }
    let place = Place::new();
    let found = place.found(&["--quick"]);
    for mode in ["static_slow", "static_fast", "elastic"] {
        assert!(found["modes"][mode]["completion_s"].as_f64().unwrap() > 0.0, "{mode}");
    }
    assert!(!found["modes"]["elastic"]["boosts"].as_array().unwrap().is_empty());
    assert!(place.page().contains("<svg"));
    place.assert_nothing_is_left();
}

#[test]
fn a_demo_that_cannot_run_leaves_no_directory() {
    let place = Place::new();
    let file = place.work().join("file");
    std::fs::write(&file, "").unwrap();
    let demo = || place.demo(&["--quick"]).env("TMPDIR", &file).output().unwrap();
    let output = demo();
    assert_eq!(output.status.code(), Some(2), "{}", place::said(&output));
    assert!(!place.out().exists());
    // What was there stays.
    std::fs::create_dir(place.out()).unwrap();
    demo();
    assert!(place.out().is_dir());
}
