//! Runs of online curves that fail with a reason, for their tests and for the test of these.

mod ageing;
pub mod cache;
pub mod miniature;
mod mixes;
mod sampling;
mod stretches;
mod writes;

/// One of them, of a seed.
pub type Run = fn(u64) -> Result<(), String>;

/// All, each with as many seeds as its test has.
pub const RUNS: &[(&str, Run, u64)] = &[
    ("writes and discards", writes::run, 50),
    ("stretches", stretches::run, 20),
    ("sampling", sampling::run, 8),
    ("ageing", ageing::run, 8),
    ("mixes", mixes::run, 14),
    ("changes in miniatures", miniature::changed, 6),
    ("adjustment of miniatures", miniature::adjusted, 8),
    ("ageing of miniatures", miniature::aged, 8),
    ("miniatures", miniature::mixed, 16),
];

pub fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
