//! Boosts of a machine that has a budget for them and for read caches.

mod rig;

use surgetank_model::Bytes;
use surgetank_policy::{BurstHint, Config, Headroom, Learned, Phase};

use rig::{BACKING_MIB_S, Rig};

/// A controller that expects bursts of 4 GiB, and what its machine has left of 16 GiB.
fn rig(most_gib: u64) -> Rig {
    let learned = Learned { bursts: vec![Bytes::from_gib(4); 6], ..Learned::default() };
    let mut rig = Rig::new(2, |config: &mut Config| config.grows = true, learned);
    leave(&mut rig, most_gib);
    rig
}

fn leave(rig: &mut Rig, most_gib: u64) {
    let headroom = Headroom { budget: Bytes::from_gib(16), most: Bytes::from_gib(most_gib) };
    rig.controller.set_headroom(Some(headroom));
}

#[test]
fn a_boost_that_has_no_room_beside_read_caches_waits_for_it_and_says_so() {
    let mut rig = rig(0);
    (0..60).for_each(|_| rig.second(0, BACKING_MIB_S, 1.0));
    assert!(rig.sizes.is_empty(), "{:?}", rig.sizes);
    let why = rig.controller.status().backing_off.unwrap();
    assert!(
        why.starts_with("the budget of 16 GiB that read caches and boosts share does not allow it: ")
            && why.contains("leave 0 B"),
        "{why}"
    );
    let refused = rig.controller.hint_burst(rig.now, BurstHint::default()).unwrap_err().to_string();
    assert!(refused.contains("the budget of 16 GiB"), "{refused}");
    assert_eq!(rig.controller.phase(), Phase::Idle);
    leave(&mut rig, 15);
    rig.burst(4 << 10);
    assert!(!rig.sizes.is_empty(), "it begins as soon as there is room");
}

#[test]
fn a_boost_grows_no_larger_than_what_read_caches_and_other_boosts_leave() {
    let mut rig = rig(6);
    rig.burst(24 << 10);
    assert!(rig.sizes.iter().all(|size| *size <= Bytes::from_gib(6)), "{:?}", rig.sizes);
    let first = rig.sizes.len();
    leave(&mut rig, 0);
    rig.burst(8 << 10);
    assert_eq!(rig.sizes.len(), first, "what is rented goes on");
    let mut free = Rig::new(
        2,
        |config: &mut Config| config.grows = true,
        Learned { bursts: vec![Bytes::from_gib(4); 6], ..Learned::default() },
    );
    free.burst(24 << 10);
    assert!(free.sizes.iter().any(|size| *size > Bytes::from_gib(6)), "without a budget it would: {:?}", free.sizes);
}
