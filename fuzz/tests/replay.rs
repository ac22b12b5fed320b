//! The corpus, and seeded mutations of it, through every target. `SURGETANK_MUTATIONS` sets how many a target.

use std::fs;
use std::path::Path;

use surgetank_fuzz::mutate::mutate;
use surgetank_fuzz::{TARGETS, Target, seeds};
use surgetank_model::random::Random;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let target: Target = TARGETS.iter().find(|(known, _)| *known == name).expect("it is a target").1;
    let files = corpus(name);
    for (seed, bytes) in seeds::of(name) {
        assert!(files.contains(&(seed.clone(), bytes)), "the seed {seed} differs: run the example `seeds`");
    }
    for (file, bytes) in &files {
        assert!(std::panic::catch_unwind(|| target(bytes)).is_ok(), "fuzz/corpus/{name}/{file}");
    }
    let mutations = std::env::var("SURGETANK_MUTATIONS").map_or(3000, |text| text.parse().expect("a number"));
    for seed in 0..mutations {
        let mut random = Random::from_seed(seed);
        let pick = |random: &mut Random| &files[random.below(files.len() as u64) as usize].1;
        let (one, other) = (pick(&mut random), pick(&mut random));
        let bytes = mutate(one, other, &mut random);
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("mutation {seed} of fuzz/corpus/{name}; the bytes: {bytes:?}");
        }
    }
}

#[test]
fn superblocks() {
    replay("superblocks");
}

#[test]
fn table() {
    replay("table");
}

#[test]
fn assembly() {
    replay("assembly");
}

#[test]
fn segment() {
    replay("segment");
}

#[test]
fn unreadable() {
    replay("unreadable");
}

#[test]
fn recovery() {
    replay("recovery");
}

#[test]
fn nbd() {
    replay("nbd");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn allocation() {
    replay("allocation");
}

#[test]
fn control() {
    replay("control");
}

#[test]
fn answer() {
    replay("answer");
}

#[test]
fn clean() {
    replay("clean");
}

#[test]
fn state() {
    replay("state");
}

#[test]
fn units() {
    replay("units");
}

#[test]
fn provider() {
    replay("provider");
}

#[test]
fn answers() {
    replay("answers");
}

#[test]
fn requests() {
    replay("requests");
}

#[test]
fn traces() {
    replay("traces");
}

#[test]
fn packed() {
    replay("packed");
}

#[test]
fn no_target_is_left_out() {
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    let tested = [
        "superblocks",
        "table",
        "assembly",
        "segment",
        "unreadable",
        "recovery",
        "nbd",
        "config",
        "allocation",
        "control",
        "answer",
        "clean",
        "state",
        "units",
        "provider",
        "answers",
        "requests",
        "traces",
        "packed",
    ];
    assert_eq!(names, tested);
}
