//! What make and CI call to check the tree: style, layout, arrows, licences, promises.

mod arrows;
mod finding;
mod licences;
mod metadata;
mod semantics;
mod supply;
mod tidy;
mod tree;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use finding::Finding;
use tree::Tree;

/// Checks of the tree.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// All checks of the tree: tidy, arrows, licences, supply, semantics
    Check,
    /// Layout and style: file lengths, module docs, purity, markers, links, the words of the glossary
    Tidy,
    /// Which crate may use which, and no dependency that nothing uses
    Arrows,
    /// The licence of every dependency is one that we accept
    Licences,
    /// Every dependency is locked, from crates.io, once, and not withdrawn
    Supply,
    /// Every promise of docs/SEMANTICS.md names a test that exists
    Semantics,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            say(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let tree = Tree::load()?;
    let checks: &[(&str, Check)] = match &arguments.task {
        Task::Check => &[
            ("tidy", tidy::check),
            ("arrows", arrows::check),
            ("licences", licences::check),
            ("supply", supply::check),
            ("semantics", semantics::check),
        ],
        Task::Tidy => &[("tidy", tidy::check)],
        Task::Arrows => &[("arrows", arrows::check)],
        Task::Licences => &[("licences", licences::check)],
        Task::Supply => &[("supply", supply::check)],
        Task::Semantics => &[("semantics", semantics::check)],
    };
    let mut total = 0;
    for (name, check) in checks {
        let findings = check(&tree)?;
        for finding in &findings {
            say(&finding.to_string());
        }
        say(&format!("{name}: {}", if findings.is_empty() { "ok".to_owned() } else { count(findings.len()) }));
        total += findings.len();
    }
    Ok(if total == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Check = fn(&Tree) -> anyhow::Result<Vec<Finding>>;

fn count(findings: usize) -> String {
    format!("{findings} finding{}", if findings == 1 { "" } else { "s" })
}

/// What a check says goes to stderr, beside cargo's own words.
#[allow(clippy::print_stderr)] // the one place that prints
fn say(line: &str) {
    eprintln!("{line}");
}
