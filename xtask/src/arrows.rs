//! Which member of the workspace may use which. `docs/ARCHITECTURE.md` says why; this table is what counts.

use std::path::{Component, Path, PathBuf};

use cargo_metadata::{DependencyKind, Package};

use crate::finding::Finding;
use crate::metadata;
use crate::tree::{File, Tree};

/// Where a member stands. It uses its own tier and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Words,
    Decide,
    Act,
    Drive,
    Show,
    Tools,
}

use Tier::{Act, Decide, Drive, Show, Tools, Words};

/// Each member, its tier, and the members that it may use.
const MEMBERS: &[(&str, Tier, &[&str])] = &[
    ("model", Words, &[]),
    ("array", Decide, &["model"]),
    ("cache", Decide, &["model"]),
    ("readcache", Decide, &["model"]),
    ("policy", Decide, &["model"]),
    ("rental", Decide, &["model", "cache", "policy"]),
    ("mrc", Decide, &["model", "readcache"]),
    ("allocation", Decide, &["model", "mrc", "readcache"]),
    ("planner", Decide, &["model", "policy", "allocation"]),
    ("pool-core", Decide, &["model"]),
    ("nbd", Act, &[]),
    ("trace", Act, &["model"]),
    ("pool", Act, &["model", "pool-core"]),
    ("provider", Act, &["model", "pool-core", "pool"]),
    ("device", Act, &["model", "array", "mrc", "readcache", "nbd", "pool-core", "pool"]),
    ("mount", Act, &["model", "pool-core", "pool", "device"]),
    (
        "daemon",
        Drive,
        &[
            "model",
            "allocation",
            "array",
            "cache",
            "readcache",
            "policy",
            "rental",
            "nbd",
            "provider",
            "device",
            "pool",
        ],
    ),
    ("hierarchy", Drive, &["model", "mrc", "allocation"]),
    ("whatif", Drive, &["model", "array", "cache", "policy", "rental", "planner"]),
    ("report", Show, &["model", "planner"]),
    (
        "demo",
        Show,
        &["model", "cache", "policy", "planner", "nbd", "provider", "device", "pool", "mount", "daemon", "report"],
    ),
    (
        "cli",
        Show,
        &[
            "model",
            "array",
            "cache",
            "policy",
            "planner",
            "mrc",
            "allocation",
            "nbd",
            "trace",
            "provider",
            "device",
            "pool-core",
            "pool",
            "mount",
            "daemon",
            "whatif",
            "report",
            "demo",
        ],
    ),
    ("sim", Tools, &["model", "array", "cache", "policy", "rental"]),
    ("fuzz", Tools, &["model", "array", "cache", "rental", "planner", "nbd", "trace", "provider", "device", "daemon"]),
    ("lab", Tools, &["model", "policy", "planner", "hierarchy", "nbd", "trace", "provider", "whatif", "report"]),
    ("xtask", Tools, &[]),
];

/// The lab's guests and the readers of traces are for the tests of every member.
const FOR_TESTS: &[&str] = &["lab", "trace"];

const PREFIX: &str = "surgetank-";

/// Checks the arrows, and that nothing is asked for that no source mentions.
///
/// # Errors
/// If cargo cannot be asked.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let packages = metadata::workspace(&tree.root)?;
    let mut findings = forbidden(&packages);
    for package in &packages {
        findings.extend(unused(tree, package));
    }
    Ok(findings)
}

fn forbidden(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let user = member(&package.name);
        let Some((_, _, allowed)) = MEMBERS.iter().find(|(name, ..)| *name == user) else {
            findings
                .push(Finding::of(&manifest(package), format!("{user} has no tier: add it to xtask/src/arrows.rs")));
            continue;
        };
        for dependency in &package.dependencies {
            let used = member(&dependency.name);
            let for_tests = FOR_TESTS.contains(&used) && dependency.kind == DependencyKind::Development;
            let is_member = dependency.name.starts_with(PREFIX) || MEMBERS.iter().any(|(name, ..)| *name == used);
            // A package may name itself to test its own optional parts.
            if is_member && used != user && !for_tests && !allowed.contains(&used) {
                findings.push(Finding::of(
                    &manifest(package),
                    format!("{user} may not use {used}: move the code, or change the arrow in xtask/src/arrows.rs and docs/ARCHITECTURE.md"),
                ));
            }
        }
    }
    for (name, ..) in MEMBERS {
        if !packages.iter().any(|package| member(&package.name) == *name) {
            findings
                .push(Finding::of("xtask/src/arrows.rs", format!("{name} is no member of the workspace: remove it")));
        }
    }
    findings
}

/// A package's name without our prefix.
fn member(package: &str) -> &str {
    package.strip_prefix(PREFIX).unwrap_or(package)
}

fn unused(tree: &Tree, package: &Package) -> Vec<Finding> {
    let folder = manifest(package).replace("Cargo.toml", "");
    let shared: Vec<&File> = tree.sources(&folder).flat_map(|file| elsewhere(tree, file)).collect();
    let mut findings = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| package.name != dependency.name) {
        let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
        // A derive or a helper crate is named in the source too: `derive(Serialize)` comes by `serde::`.
        if !tree.sources(&folder).chain(shared.iter().copied()).any(|file| mentions(&file.text, &name)) {
            let kind = match dependency.kind {
                DependencyKind::Normal => String::new(),
                kind => format!("{kind}-"),
            };
            findings.push(Finding::of(
                &manifest(package),
                format!("no source uses the {kind}dependency {}: remove it", dependency.name),
            ));
        }
    }
    findings
}

/// The sources of other packages that a source takes for modules of its own: `#[path = "../../../other/tests/part.rs"]`.
fn elsewhere<'a>(tree: &'a Tree, file: &File) -> Vec<&'a File> {
    let here = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let named = file.text.split("#[path = \"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0));
    let paths: Vec<PathBuf> = named.map(|path| resolved(&here.join(path))).collect();
    tree.files.iter().filter(|file| paths.iter().any(|path| *path == Path::new(&file.path))).collect()
}

/// Without `..`.
fn resolved(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        if component == Component::ParentDir {
            path.pop();
        } else {
            path.push(component);
        }
        path
    })
}

/// Whether a path of this crate occurs: `name::`, `use name`, or an attribute of it.
fn mentions(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_word(before) && !is_word(after)
    })
}

fn manifest(package: &Package) -> String {
    let parts: Vec<&str> = package.manifest_path.as_str().rsplit('/').take(3).collect();
    match parts[..] {
        [file, folder, "crates"] => format!("crates/{folder}/{file}"),
        [file, folder, ..] => format!("{folder}/{file}"),
        _ => package.manifest_path.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// As cargo describes it.
    fn package(name: &str, uses: &[&str]) -> Package {
        let dependency = |used: &&str| {
            json!({
                "name": used, "req": "*", "kind": null, "optional": false, "uses_default_features": true, "features": [],
                "target": null, "source": null, "rename": null, "registry": null,
            })
        };
        let dependencies: Vec<Value> = uses.iter().map(dependency).collect();
        let name = format!("{PREFIX}{name}");
        let folder = &name[PREFIX.len()..];
        serde_json::from_value(json!({
            "name": name, "version": "0.1.0", "id": name, "edition": "2024", "dependencies": dependencies, "targets": [],
            "features": {}, "manifest_path": format!("/somewhere/crates/{folder}/Cargo.toml"),
        }))
        .unwrap()
    }

    /// What the table does not ask for: a workspace of these packages alone would lack the others.
    fn of(packages: Vec<Package>) -> Vec<Finding> {
        let mut findings = forbidden(&packages);
        findings.retain(|finding| !finding.message.contains("no member"));
        findings
    }

    #[test]
    fn an_arrow_against_the_table_is_found() {
        let findings = of(vec![package("sim", &["surgetank-model", "surgetank-daemon", "serde", "lab"])]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(findings[0].path, "crates/sim/Cargo.toml");
        assert!(findings[0].message.starts_with("sim may not use daemon"), "{}", findings[0]);
        assert!(findings[1].message.starts_with("sim may not use lab"), "{}", findings[1]);
    }

    #[test]
    fn a_source_of_another_package_counts_where_it_is_a_module() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let text = "#[path = \"../../b/tests/part.rs\"]\nmod part;\n";
        let tree = Tree {
            root: PathBuf::new(),
            files: vec![file("crates/a/tests/a.rs", text), file("crates/b/tests/part.rs", "use serde::X;")],
        };
        assert_eq!(unused(&tree, &package("a", &["serde"])), []);
        assert_eq!(unused(&tree, &package("a", &["toml"])).len(), 1);
    }

    #[test]
    fn tests_may_use_guests() {
        let mut tested = package("daemon", &["lab"]);
        tested.dependencies[0].kind = DependencyKind::Development;
        assert_eq!(of(vec![tested]), []);
    }

    #[test]
    fn members_and_rows_are_the_same() {
        let findings = forbidden(&[package("grab-bag", &[])]);
        assert!(findings[0].message.starts_with("grab-bag has no tier"), "{}", findings[0]);
        assert_eq!(findings.len(), 1 + MEMBERS.len());
    }

    #[test]
    fn no_arrow_points_up_and_none_makes_a_circle() {
        // Every user stands below all that it uses, so the table read downwards is a topological order.
        for (index, (user, tier, used)) in MEMBERS.iter().enumerate() {
            for name in *used {
                let position = MEMBERS.iter().position(|(other, ..)| other == name);
                let (_, other, _) = MEMBERS[position.unwrap_or_else(|| panic!("{user} uses {name}, which has no row"))];
                assert!(position < Some(index), "{user} uses {name}, which stands below it");
                assert!(other <= *tier, "{user} uses {name}, which is in a higher tier");
            }
        }
    }

    #[test]
    fn a_dependency_that_no_source_names_is_found() {
        let file = |text: &str| crate::tree::File { path: "crates/cache/src/lib.rs".to_owned(), text: text.to_owned() };
        let package = package("cache", &["surgetank-model", "smallvec", "crc32c"]);
        let source = "use surgetank_model::Bytes;\nfn f() -> u32 { crc32c::crc32c(&[]) + my_smallvec_like() }\n";
        let tree = Tree { root: "/".into(), files: vec![file(source)] };
        let findings = unused(&tree, &package);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("smallvec"));
    }
}
