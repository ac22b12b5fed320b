//! The table of scenarios makes sense, and runs are judged as they should.

use super::*;

#[test]
fn every_scenario_makes_sense_and_its_name_is_its_own() {
    let names: std::collections::BTreeSet<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), SCENARIOS.len());
    assert!(SCENARIOS.len() >= 30);
    for scenario in SCENARIOS {
        let setup = setup(&(scenario.load)(), scenario.platform, Preset::PAPER).unwrap();
        assert!(setup.bytes() > 0, "{}", scenario.name);
    }
}

#[test]
fn what_was_held_out_stays_held_out() {
    let held_out = SCENARIOS.iter().filter(|scenario| scenario.set == Set::HeldOut).count();
    assert!(held_out >= 15 && SCENARIOS.len() - held_out >= 20, "{held_out}");
}

#[test]
fn a_policy_has_regret_and_a_boost_without_writes_is_in_vain() {
    let rows = generated();
    let row = rows.iter().find(|row| row.name == "reads only").unwrap();
    let found = one(row).unwrap();
    let paper = found.runs.iter().find(|run| run.name == "paper").unwrap();
    assert!(paper.at.iter().all(|at| at.boosts > 0 && at.boosts_in_vain == at.boosts), "{found:?}");
    assert!(paper.at.iter().all(|at| at.regret_ratio > 0.0), "{found:?}");
}
