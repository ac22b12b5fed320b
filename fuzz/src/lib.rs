//! What the fuzzers call: one function of bytes for each parser and state machine that takes bytes from outside.
//!
//! A target panics if what it calls does, and if a property does not hold. `make fuzz` drives the targets with
//! libFuzzer (`libfuzzer/`, a workspace of its own); `tests/replay.rs` runs the corpus and seeded mutations of it
//! through all of them with every `make test`. `examples/seeds.rs` makes the corpus anew.

mod array;
mod input;
#[path = "../../crates/cache/tests/support/mod.rs"]
#[allow(dead_code, missing_docs, reason = "the engine's tests use more of it")]
mod machine;
mod media;
pub mod mutate;
mod nbd;
mod provider;
mod provisioning;
mod recovery;
pub mod seeds;
mod text;
mod traces;

/// A target: it panics if something is wrong.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("superblocks", media::superblocks),
    ("table", media::table),
    ("assembly", array::assembly),
    ("segment", media::segment),
    ("unreadable", media::unreadable),
    ("recovery", recovery::recovery),
    ("nbd", nbd::nbd),
    ("config", text::config),
    ("allocation", text::allocation),
    ("control", text::control),
    ("answer", text::answer),
    ("clean", text::clean),
    ("state", text::state),
    ("units", text::units),
    ("provider", provider::provider),
    ("answers", provisioning::answers),
    ("requests", provisioning::requests),
    ("traces", traces::traces),
    ("packed", traces::packed),
];

/// Runs the target of this name. For the fuzzers' entry points.
///
/// # Panics
/// If there is no such target, or if it finds something.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a fuzzer names its target").1(data);
}
