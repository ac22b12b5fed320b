//! Layout and style that neither rustfmt nor clippy check.

use crate::finding::Finding;
use crate::tree::{File, Tree};
use crate::words;

/// Lines after which a source asks for a second look at where its seams are, its unit tests at the end not counted.
const LINES_MAX: usize = 600;

/// Longer files, each with the reason why it is not cut.
const LONG_FILES: &[(&str, &str)] = &[];

/// Crates that decide and never act: the daemon and the simulator drive the same code, so it may not have a clock,
/// randomness, threads or I/O of its own.
pub const PURE_CRATES: &[&str] = &[
    "model",
    "array",
    "cache",
    "readcache",
    "policy",
    "rental",
    "planner",
    "mrc",
    "allocation",
    "hierarchy",
    "pool-core",
    "sim",
    "whatif",
];

/// What gives a pure crate away. Clippy (`clippy.toml` in each of them) sees through imports; this sees macros and
/// what a future edition renames.
const IMPURE: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "std::thread",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "rand::rng",
    "rand::random",
    "thread_rng",
    "from_os_rng",
    "from_entropy",
];

/// Marks of unfinished work. Written in two parts so that this file does not hold them.
const MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("HA", "CK"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];

/// Paths that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ro", "ot/"), concat!("/tmp/", "t-")];

/// Runs every rule over every file.
///
/// # Errors
/// Never; the signature is that of all checks.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.files {
        findings.extend(text_rules(file));
        if file.path.ends_with(".rs") {
            findings.extend(source_rules(file));
        }
        if file.path.ends_with(".md") {
            findings.extend(links(tree, file));
        }
    }
    findings.extend(pure_configuration(tree));
    findings.extend(words::check(tree));
    Ok(findings)
}

/// Rules for every text file.
fn text_rules(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::of(&file.path, "the last line has no end"));
    }
    for (index, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::at(&file.path, index, "blanks at the end of the line"));
        }
        for marker in MARKERS.iter().filter(|marker| line.contains(**marker)) {
            findings.push(Finding::at(&file.path, index, format!("{marker}: finish it, or open an issue")));
        }
        for path in MACHINE_PATHS.iter().filter(|path| line.contains(**path)) {
            findings.push(Finding::at(&file.path, index, format!("{path} is a path of one machine")));
        }
    }
    findings
}

/// Rules for Rust sources.
fn source_rules(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let code = file.text.find("\n#[cfg(test)]\nmod tests {").map_or(&*file.text, |tests| &file.text[..tests]);
    let lines = code.lines().count();
    let excused = LONG_FILES.iter().any(|(path, _)| *path == file.path);
    if lines > LINES_MAX && !excused {
        findings.push(Finding::of(
            &file.path,
            format!("{lines} lines: cut it at its seams, or give the reason in LONG_FILES of xtask/src/tidy.rs"),
        ));
    }
    if lines <= LINES_MAX && excused {
        findings.push(Finding::of(&file.path, "no longer long: remove it from LONG_FILES of xtask/src/tidy.rs"));
    }
    if !file.text.starts_with("//!") {
        findings.push(Finding::of(&file.path, "does not begin with `//!` and what it is for"));
    }
    let pure = PURE_CRATES.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    let mut begins_statement = true;
    for (index, line) in file.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let statement = code.trim();
        // Tests and examples are crates of their own and may say once for all of it why.
        let excused = statement.contains("reason = ") && !file.path.contains("/src/");
        if statement.starts_with("#![allow") && !excused {
            findings.push(Finding::at(&file.path, index, "a blanket allow: put it on the item, with the reason"));
        }
        if statement.starts_with("#[ignore]") {
            findings.push(Finding::at(&file.path, index, "an ignored test without a reason"));
        }
        if begins_statement && statement.starts_with("matches!(") && statement.ends_with(");") {
            findings.push(Finding::at(&file.path, index, "a matches! that nothing asserts"));
        }
        begins_statement = statement.is_empty() || statement.ends_with(['{', '}', ';']);
        for name in IMPURE.iter().filter(|name| pure && code.contains(**name)) {
            findings.push(Finding::at(&file.path, index, format!("{name} in a pure crate: take it as an input")));
        }
    }
    findings
}

/// Relative links lead somewhere.
fn links(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for (index, line) in file.text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !tree.root.join(folder).join(target).exists() {
                findings.push(Finding::at(&file.path, index, format!("the link to {target} leads nowhere")));
            }
        }
    }
    findings
}

/// Every pure crate has the lints that ban ambient time, randomness and I/O.
fn pure_configuration(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shared = tree.file(SHARED_LINTS).map(|file| &file.text);
    if shared.is_none() {
        findings.push(Finding::of(SHARED_LINTS, "the lints of the pure crates are gone"));
    }
    for name in PURE_CRATES {
        let path = format!("crates/{name}/clippy.toml");
        if tree.file(&path).map(|file| &file.text) != shared {
            findings.push(Finding::of(&path, format!("is not (a link to) {SHARED_LINTS}")));
        }
    }
    findings
}

const SHARED_LINTS: &str = "xtask/pure-clippy.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        text_rules(&file).iter().chain(&source_rules(&file)).map(ToString::to_string).collect()
    }

    #[test]
    fn good_source_has_no_findings() {
        let text = "//! What it is.\n\nuse std::time::Duration; // not std::time::Instant\n\nfn f() -> bool {\n    let a =\n        matches!(1, 2);\n    matches!(1, a)\n}\n";
        assert_eq!(source("crates/model/src/a.rs", text), Vec::<String>::new());
        let text = "//! What it tests.\n#![allow(dead_code, reason = \"each test uses a part\")]\n";
        assert_eq!(source("crates/device/tests/a.rs", text), Vec::<String>::new());
    }

    #[test]
    fn every_planted_fault_is_found() {
        let planted = [
            ("fn f() {}\n", "does not begin with"),
            ("//! A.\n#![allow(dead_code)]\n", "a blanket allow"),
            ("//! A.\n#[ignore]\n", "an ignored test"),
            ("//! A.\nfn f() {\n    matches!(1, 2);\n}\n", "nothing asserts"),
            ("//! A.\nuse std::time::Instant;\n", "in a pure crate"),
            ("//! A.\nfn f() { std::thread::yield_now() }\n", "in a pure crate"),
            ("//! A.\nfn f() {} \n", "blanks at the end"),
            ("//! A.", "has no end"),
            (concat!("//! A.\n// TO", "DO: later\n"), "finish it"),
            (concat!("//! A.\n// see /wo", "rk/main\n"), "one machine"),
        ];
        for (text, expected) in planted {
            let found = source("crates/model/src/a.rs", text);
            assert_eq!(found.len(), 1, "{text:?} gave {found:?}");
            assert!(found[0].contains(expected), "{text:?} gave {found:?}");
        }
    }

    #[test]
    fn effectful_crates_may_have_a_clock() {
        assert_eq!(source("crates/daemon/src/a.rs", "//! A.\nuse std::time::Instant;\n"), Vec::<String>::new());
    }

    #[test]
    fn long_files_are_found() {
        let text = format!("//! A.\n{}", "fn f() {}\n".repeat(LINES_MAX));
        let found = source("crates/daemon/src/a.rs", &text);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("601 lines"), "{found:?}");
        let text = format!("//! A.\n\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn f() {}\n".repeat(LINES_MAX));
        assert_eq!(source("crates/daemon/src/a.rs", &text), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let root = std::env::current_dir().unwrap();
        let file = File {
            path: "src/a.md".to_owned(),
            text: "[a](main.rs) [b](https://example.org/x) [c](#part) [d](nowhere.md)\n".to_owned(),
        };
        let tree = Tree { root, files: Vec::new() };
        let found = links(&tree, &file);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("nowhere.md"));
    }
}
