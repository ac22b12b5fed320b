//! Which crate may use which. `docs/ARCHITECTURE.md` says why; this table is what counts.

use crate::finding::Finding;
use crate::metadata::{self, Metadata, Package};
use crate::tree::Tree;

/// From user to used. A crate that is not listed may use none of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("cache", &["model"]),
    ("policy", &["model"]),
    ("rental", &["model", "cache", "policy"]),
    ("planner", &["model", "policy"]),
    ("mrc", &["model"]),
    ("trace", &["model"]),
    ("provider", &["model"]),
    ("nbd", &[]),
    ("device", &["model", "nbd"]),
    ("sim", &["model", "cache", "policy", "rental"]),
    ("whatif", &["model", "cache", "policy", "planner"]),
    ("daemon", &["model", "cache", "policy", "nbd", "provider", "device"]),
    ("report", &["model", "planner"]),
    ("demo", &["model", "cache", "planner", "nbd", "provider", "device", "daemon", "report"]),
    (
        "cli",
        &[
            "model", "cache", "policy", "planner", "mrc", "nbd", "trace", "provider", "device", "whatif", "daemon",
            "report",
        ],
    ),
    ("fuzz", &["model", "cache", "rental", "planner", "nbd", "trace", "provider", "device", "daemon"]),
    ("lab", &["model", "policy", "nbd", "provider", "report", "demo"]),
];

const PREFIX: &str = "surgetank-";

/// Checks the arrows, and that nothing is asked for that no source mentions.
///
/// # Errors
/// If cargo cannot be asked.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let metadata = metadata::workspace(&tree.root)?;
    let mut findings = forbidden(&metadata);
    for package in &metadata.packages {
        findings.extend(unused(tree, package));
    }
    Ok(findings)
}

fn forbidden(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let user = package.name.strip_prefix(PREFIX).unwrap_or(&package.name);
        let allowed = ARROWS.iter().find(|(name, _)| *name == user).map_or(&[][..], |(_, used)| used);
        for used in package.dependencies.iter().filter_map(|dependency| dependency.name.strip_prefix(PREFIX)) {
            // A package may name itself to test its own optional parts.
            if used != user && !allowed.contains(&used) {
                findings.push(Finding::of(
                    &manifest(package),
                    format!("{user} may not use {used}: move the code, or change the arrow in xtask/src/arrows.rs and docs/ARCHITECTURE.md"),
                ));
            }
        }
    }
    findings
}

fn unused(tree: &Tree, package: &Package) -> Vec<Finding> {
    let folder = manifest(package).replace("Cargo.toml", "");
    let mut findings = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.name != package.name) {
        let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
        // A derive or a helper crate is named in the source too: `derive(Serialize)` comes by `serde::`.
        if !tree.sources(&folder).any(|file| mentions(&file.text, &name)) {
            let kind = dependency.kind.as_deref().map_or(String::new(), |kind| format!("{kind}-"));
            findings.push(Finding::of(
                &manifest(package),
                format!("no source uses the {kind}dependency {}: remove it", dependency.name),
            ));
        }
    }
    findings
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
    let parts: Vec<&str> = package.manifest_path.rsplit('/').take(3).collect();
    match parts[..] {
        [file, folder, "crates"] => format!("crates/{folder}/{file}"),
        [file, folder, ..] => format!("{folder}/{file}"),
        _ => package.manifest_path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, uses: &[&str]) -> Package {
        let dependency = |used: &&str| Dependency { name: (*used).to_owned(), rename: None, kind: None };
        Package {
            name: format!("{PREFIX}{name}"),
            version: "0.1.0".to_owned(),
            license: None,
            manifest_path: format!("/somewhere/crates/{name}/Cargo.toml"),
            dependencies: uses.iter().map(dependency).collect(),
        }
    }

    #[test]
    fn an_arrow_against_the_table_is_found() {
        let metadata = Metadata { packages: vec![package("sim", &["surgetank-model", "surgetank-daemon", "serde"])] };
        let findings = forbidden(&metadata);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "crates/sim/Cargo.toml");
        assert!(findings[0].message.starts_with("sim may not use daemon"), "{}", findings[0]);
    }

    #[test]
    fn the_table_itself_has_no_cycle() {
        // Every user stands below all that it uses, so the table read downwards is a topological order.
        for (index, (user, used)) in ARROWS.iter().enumerate() {
            for name in *used {
                let position = ARROWS.iter().position(|(other, _)| other == name);
                assert!(position.is_none_or(|at| at < index), "{user} uses {name}, which stands below it");
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
