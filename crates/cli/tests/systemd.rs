//! At home under systemd: a Debian guest does what the README says; then its daemon is killed, and it reboots.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::path::Path;

#[test]
fn the_readme_holds_through_a_kill_and_a_reboot() {
    let out = tempfile::tempdir().unwrap();
    let undone = lab::systemd::short(Path::new(env!("CARGO_BIN_EXE_surgetank")), out.path()).unwrap();
    match undone {
        Some(undone) => assert_eq!(undone, [""; 0]),
        None => eprintln!("skipped: the line before says why"),
    }
}
