//! What the tests of both kinds of online curve do alike.

use proptest::prelude::*;
use surgetank_mrc::Access;

use crate::support;

/// All seeds of a run.
pub fn holds(name: &str) {
    let (_, run, seeds) = support::RUNS.iter().find(|(known, ..)| *known == name).expect("it is one of the runs");
    for seed in 0..*seeds {
        if let Err(why) = run(seed) {
            panic!("{name}, seed {seed}: {why}");
        }
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    One(Access, u64),
    Range(Access, u64, u64),
    Interval,
}

pub fn step() -> impl Strategy<Value = Step> {
    let access = prop::sample::select(vec![Access::Read, Access::Read, Access::Write, Access::Discard]);
    let block = prop_oneof![8 => 0u64..60, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    prop_oneof![
        20 => (access.clone(), block.clone()).prop_map(|(access, block)| Step::One(access, block)),
        2 => (access, block, 0u64..40).prop_map(|(access, from, length)| Step::Range(access, from, length)),
        1 => Just(Step::Range(Access::Discard, 0, u64::MAX)),
        1 => Just(Step::Interval),
    ]
}
