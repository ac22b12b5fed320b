//! The commands that the documents show are taken as they stand there, and the short ones run.
//!
//! Where no guest can be booted the tests that need one say so and count as passed by cargo; the line begins with
//! "skipped".
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::Parser;
use clap::error::ErrorKind;
use lab::command_line::Arguments;
use lab::{Lab, Unavailable};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn documents() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    documents.retain(|file| file.extension().is_some_and(|suffix| suffix == "md"));
    documents.push(root().join("README.md"));
    documents.sort();
    documents
}

/// What a document shows as code: the lines of its blocks, and the spans of its text, which may go over lines.
fn code(text: &str) -> Vec<String> {
    let (mut found, mut prose, mut in_block) = (Vec::new(), String::new(), false);
    for line in text.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push(line.trim().trim_start_matches(['$', '#']).trim().to_owned());
        } else {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    found
}

/// Its words as a shell takes them, without variables set before it and a remark behind it.
fn words(line: &str) -> Vec<String> {
    let script = format!("set -f; set -- {line}\nprintf '%s\\n' \"$@\"");
    let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
    assert!(output.status.success(), "no shell takes {line:?}");
    let words = String::from_utf8(output.stdout).unwrap();
    let is_variable = |word: &&str| {
        word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c == '_' || c.is_ascii_uppercase()))
    };
    words.lines().skip_while(is_variable).map(str::to_owned).collect()
}

/// All commands of the documents that begin with these words, each with where it stands.
fn documented(start: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for file in documents() {
        for line in code(&fs::read_to_string(&file).unwrap()) {
            if line.contains(&format!("{} ", start.join(" "))) {
                let words = words(&line);
                if words.len() > start.len() && words.iter().zip(start).all(|(word, start)| word == start) {
                    found.push((format!("{}: {line}", file.display()), words));
                }
            }
        }
    }
    found
}

/// What make would run for these words.
fn recipe(words: &[String]) -> Result<Vec<String>, String> {
    let mut make = Command::new("make");
    // Of these cargo and an outer make set some: the recipe's own words are wanted.
    for variable in ["CARGO", "ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        make.env_remove(variable);
    }
    let output = make.arg("--dry-run").arg("-C").arg(root()).args(&words[1..]).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Why this program does not take a command line, if it does not.
fn refusal(words: &[String]) -> Option<String> {
    // "cargo lab" stands for the program.
    match Arguments::try_parse_from(&words[1..]) {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => None,
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn every_documented_command_is_taken() {
    let mut refused = Vec::new();
    let own = documented(&["cargo", "lab"]);
    for (place, words) in &own {
        refused.extend(refusal(words).map(|reason| format!("{place}: {reason}")));
    }
    let (made, mut of_make) = (documented(&["make"]), 0);
    for (place, words) in &made {
        match recipe(words) {
            Err(reason) => refused.push(format!("{place}: {reason}")),
            Ok(lines) => {
                for line in lines.iter().filter(|line| line.starts_with("cargo lab ")) {
                    of_make += 1;
                    refused.extend(refusal(&self::words(line)).map(|reason| format!("{place}, {line}: {reason}")));
                }
            }
        }
    }
    assert_eq!(refused, Vec::<String>::new());
    let found = (own.len(), made.len(), of_make);
    assert!(found.0 >= 4 && found.1 >= 30 && found.2 >= 12, "the documents show more commands than {found:?}");
}

#[test]
fn a_command_that_is_not_there_is_found() {
    let text = "a `make lab` and\n\n```sh\nX=1 cargo lab cuts --cats 8  # remark\n```\n\nand `cargo lab\nreplay`";
    let code = code(text);
    assert_eq!(code, ["X=1 cargo lab cuts --cats 8  # remark", "make lab", "cargo lab replay"]);
    let first = words(&code[0]);
    assert_eq!(first, ["cargo", "lab", "cuts", "--cats", "8"]);
    assert!(refusal(&first).unwrap().contains("--cats"));
    assert_eq!(refusal(&words(&code[2])), None);
    assert!(recipe(&words("make lap")).unwrap_err().contains("lap"));
    let with_arguments = recipe(&words("make cuts ARGS=\"--cuts 8\"")).unwrap();
    assert!(with_arguments.contains(&"cargo lab cuts --cuts 8".to_owned()), "{with_arguments:?}");
}

/// Runs a documented command in a directory of its own.
fn run(words: &[String], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(&words[2..]).current_dir(directory).output().unwrap()
}

#[test]
fn short_documented_commands_run_in_a_fresh_directory() {
    let directory = tempfile::tempdir().unwrap();
    let help = run(&words("cargo lab --help"), directory.path());
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("exec"));
    if let Err(Unavailable(reason)) = Lab::that_boots() {
        return eprintln!("skipped: no guest can be booted here: {reason}");
    }
    let lines = recipe(&words("make lab")).unwrap();
    let line = lines.iter().find(|line| line.starts_with("cargo lab ")).unwrap();
    let output = run(&words(line), directory.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("2 passed, 0 failed, 0 skipped"), "{line}: {said}");
    assert!(directory.path().join("lab-out/smoke/one/rates").exists(), "{said}");

    let (place, exec) = documented(&["cargo", "lab", "exec"]).remove(0);
    let output = run(&exec, directory.path());
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{place}: {said}");
    // Where results go may be told relatively, too.
    let output = run(&words("cargo lab exec --results kept -- touch /lab/here"), directory.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(directory.path().join("kept/here").exists());
}
