//! `docs/SEMANTICS.md` and `docs/THREATS.md`: every promise names its tests, and they exist.
//!
//! A promise is a heading of level 3. Its section has a line that begins with `Tests:` and names at least one test
//! as `` `path/of/file.rs::test_name` ``, on that line or the lines of its paragraph. Tests in scripts are functions of the shell, or members of `tests` in Lua;
//! those of the Python package are functions of its modules.

use crate::finding::Finding;
use crate::tree::Tree;

const DOCUMENTS: &[&str] = &["docs/SEMANTICS.md", "docs/THREATS.md"];

/// Checks the documents against the tree.
///
/// # Errors
/// Never; the signature is that of all checks.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    Ok(DOCUMENTS.iter().flat_map(|document| findings_of(tree, document)).collect())
}

fn findings_of(tree: &Tree, path: &str) -> Vec<Finding> {
    let Some(document) = tree.file(path) else {
        return vec![Finding::of(path, "the promises are not written down")];
    };
    let promises = promises(&document.text);
    let mut findings = Vec::new();
    if promises.is_empty() {
        findings.push(Finding::of(path, "no promise (heading of level 3) found"));
    }
    for promise in &promises {
        if promise.tests.is_empty() {
            findings.push(Finding::at(path, promise.line, format!("{:?} names no test", promise.title)));
        }
        for test in promise.tests.iter().filter(|test| !exists(tree, test)) {
            let message = format!("{:?} names {test}, which is not there", promise.title);
            findings.push(Finding::at(path, promise.line, message));
        }
    }
    findings
}

struct Promise {
    line: usize,
    title: String,
    tests: Vec<String>,
}

fn promises(text: &str) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    let mut in_tests = false;
    for (line, content) in text.lines().enumerate() {
        if content.starts_with('#') {
            in_tests = false;
        }
        if let Some(title) = content.strip_prefix("### ") {
            promises.push(Promise { line, title: title.to_owned(), tests: Vec::new() });
        }
        in_tests = (in_tests && !content.trim().is_empty()) || content.starts_with("Tests:");
        if let (true, Some(promise)) = (in_tests, promises.last_mut()) {
            promise.tests.extend(content.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    promises
}

/// Whether `path::name` is a function of that name in that file.
fn exists(tree: &Tree, test: &str) -> bool {
    let Some((path, name)) = test.rsplit_once("::") else { return false };
    let begin = match path.rsplit_once('.') {
        Some((_, "rs")) => format!("fn {name}("),
        Some((_, "py")) => format!("\ndef {name}("),
        Some((_, "lua")) => format!("\nfunction tests.{name}("),
        _ => format!("\n{name}() {{"),
    };
    match tree.file(path) {
        Some(file) => file.text.contains(&begin),
        // Scripts are not read with the tree.
        None => std::fs::read_to_string(tree.root.join(path)).is_ok_and(|text| text.contains(&begin)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::File;

    fn findings(document: &str) -> Vec<String> {
        let source = "#[test]\nfn flushed_data_survives() {}\n";
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let tree = Tree {
            root: "/".into(),
            files: vec![file(DOCUMENTS[0], document), file("crates/cache/tests/crash.rs", source)],
        };
        findings_of(&tree, DOCUMENTS[0]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_promise_with_its_test_passes() {
        let text =
            "## Group\n### Flush\nText `code`.\n\nTests:\n`crates/cache/tests/crash.rs::flushed_data_survives`\n";
        assert_eq!(findings(text), Vec::<String>::new());
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let found = findings(
            "### Flush\nText with `code`.\n\n### Next\nTests: `crates/cache/tests/crash.rs::flushed_data_survives`\n",
        );
        assert_eq!(found, ["docs/SEMANTICS.md:1: \"Flush\" names no test"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let found = findings("### Flush\nTests: `crates/cache/tests/crash.rs::flushed_data`\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("which is not there"), "{}", found[0]);
    }

    #[test]
    fn tests_in_scripts_are_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let shell = file("scripts/all", "#!/bin/sh\njobs_end() {\n}\ntests=(jobs_end none)\n");
        let lua = file("scripts/all.lua", "local tests = {}\nfunction tests.lines_are_read()\nend\n");
        let python = file("python/tests/test_all.py", "import all\n\ndef test_flush(fs: Fs) -> None:\n    assert fs\n");
        let tree = Tree { root: "/".into(), files: vec![shell, lua, python] };
        let there =
            ["scripts/all::jobs_end", "scripts/all.lua::lines_are_read", "python/tests/test_all.py::test_flush"];
        assert!(there.iter().all(|test| exists(&tree, test)));
        let none = [
            "scripts/all::none",
            "scripts/all.lua::none",
            "scripts/all.rs::jobs_end",
            "python/tests/test_all.py::test_none",
            "python/tests/test_none.py::test_flush",
        ];
        assert!(!none.iter().any(|test| exists(&tree, test)));
    }

    #[test]
    fn a_document_without_promises_is_found() {
        assert_eq!(findings("# Semantics\n").len(), 1);
    }

    #[test]
    fn a_document_that_is_gone_is_found() {
        let tree = Tree { root: "/".into(), files: Vec::new() };
        assert_eq!(check(&tree).unwrap().len(), DOCUMENTS.len());
    }
}
