//! Where the dependencies come from: the lock files are there, every package is from crates.io with its checksum, none
//! is a second version of another without a reason, and none was withdrawn ("yanked"), as far as cargo's own copy of
//! the index knows. Works offline.
//!
//! This is not a check against known vulnerabilities: their database cannot be had offline (see CONTRIBUTING).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::finding::Finding;
use crate::tree::Tree;

/// The one place that packages come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The lock files of this tree.
const LOCKS: &[&str] = &["Cargo.lock", "fuzz/libfuzzer/Cargo.lock", "python/Cargo.lock"];

/// Packages that are there in more than one version, each with who keeps the other one.
const TWICE: &[(&str, &str)] = &[
    ("base64", "tonic, which encodes binary metadata with it; we send none"),
    ("bit-vec", "yasna, under rcgen, in tests alone"),
    ("cpufeatures", "reed-solomon-simd; what it asks of the processor once"),
    ("crypto-common", "crc-fast, under object_store, which draws no number by it"),
    ("digest", "crc-fast, under object_store; the digests that count are of the newer one"),
    ("getrandom", "ring, tempfile and proptest, each with its own; a thin layer over one system call"),
    ("itertools", "bindgen, for the feature highs of crates/allocation; nothing of it is in what we build"),
    ("r-efi", "getrandom on UEFI, which we do not build for"),
    ("rand", "proptest, in tests alone"),
    ("rand_core", "proptest, in tests alone"),
    ("shlex", "bindgen, for the feature highs of crates/allocation; nothing of it is in what we build"),
    ("synstructure", "procedural macros; nothing of it is in what we build"),
    ("syn", "procedural macros; nothing of it is in what we build"),
    ("windows-sys", "on Windows, which we do not build for"),
];

/// A lock file as far as we look at it.
#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
    checksum: Option<String>,
}

/// Checks the lock files.
///
/// # Errors
/// Never; the signature is that of all checks.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    let ours = own_packages(tree);
    let index = index_directory();
    let withdrawn = |name: &str, version: &str| index.as_deref().is_some_and(|index| is_yanked(index, name, version));
    let mut findings = Vec::new();
    for path in LOCKS {
        match std::fs::read_to_string(tree.root.join(path)) {
            Ok(text) => findings.extend(findings_of(path, &text, &ours, &withdrawn)),
            Err(error) => {
                findings.push(Finding::of(path, format!("cannot be read ({error}): it belongs into the tree")))
            }
        }
    }
    Ok(findings)
}

/// The packages that lie in this tree.
fn own_packages(tree: &Tree) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Manifest {
        package: Option<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.filter_map(|file| toml::from_str::<Manifest>(&file.text).ok()?.package).map(|named| named.name).collect()
}

fn findings_of(
    path: &str,
    text: &str,
    ours: &BTreeSet<String>,
    withdrawn: &dyn Fn(&str, &str) -> bool,
) -> Vec<Finding> {
    let lock: Lock = match toml::from_str(text) {
        Ok(lock) => lock,
        Err(error) => return vec![Finding::of(path, format!("cannot be read: {}", error.message()))],
    };
    let mut findings = Vec::new();
    let mut find = |message: String| findings.push(Finding::of(path, message));
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Locked { name, version, source, checksum } in &lock.package {
        versions.entry(name).or_default().push(version);
        match source.as_deref() {
            None if ours.contains(name) => {}
            None => find(format!("{name} {version} is from a path outside of this tree; take it from crates.io")),
            Some(REGISTRY) if checksum.is_none() => find(format!("{name} {version} has no checksum; run cargo update")),
            Some(REGISTRY) if withdrawn(name, version) => {
                find(format!("{name} {version} was withdrawn by its authors; run cargo update -p {name}"));
            }
            Some(REGISTRY) => {}
            Some(other) => find(format!("{name} {version} is from {other}; take it from crates.io")),
        }
    }
    for (name, versions) in &versions {
        let excused = TWICE.iter().any(|(twice, _)| twice == name);
        if versions.len() > 1 && !excused {
            find(format!(
                "{name} is there as {}: agree on one, or say in xtask/src/supply.rs who keeps the other",
                versions.join(" and ")
            ));
        } else if versions.len() < 2 && excused && path == LOCKS[0] {
            find(format!("{name} is there once; strike it from the list in xtask/src/supply.rs"));
        }
    }
    for (name, _) in TWICE.iter().filter(|(name, _)| path == LOCKS[0] && !versions.contains_key(name)) {
        find(format!("{name} is gone; strike it from the list in xtask/src/supply.rs"));
    }
    findings
}

/// Where cargo keeps its copy of the index of crates.io; `None` if it has none (packages were vendored).
fn index_directory() -> Option<PathBuf> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cargo"),
    };
    let mut found = std::fs::read_dir(home.join("registry/index")).ok()?.filter_map(Result::ok);
    found
        .find(|entry| entry.file_name().to_string_lossy().starts_with("index.crates.io-"))
        .map(|entry| entry.path().join(".cache"))
}

/// Whether the index, as it was when cargo last asked, says so. A package of which it says nothing is not.
fn is_yanked(index: &Path, name: &str, version: &str) -> bool {
    std::fs::read(index.join(place_in_index(name))).is_ok_and(|bytes| says_yanked(&bytes, version))
}

/// <https://doc.rust-lang.org/cargo/reference/registry-index.html#index-files>
fn place_in_index(name: &str) -> PathBuf {
    let name = name.to_lowercase();
    match name.len() {
        0..=2 => PathBuf::from(format!("{}/{name}", name.len())),
        3 => PathBuf::from(format!("3/{}/{name}", &name[..1])),
        _ => PathBuf::from(format!("{}/{}/{name}", &name[..2], &name[2..4])),
    }
}

/// Cargo's copy of an index file: a head, then a version and its JSON in turn, each ended by a zero byte.
fn says_yanked(bytes: &[u8], version: &str) -> bool {
    #[derive(Deserialize)]
    struct Entry {
        vers: String,
        #[serde(default)]
        yanked: bool,
    }
    let entries = bytes.split(|&byte| byte == 0).filter_map(|text| serde_json::from_slice::<Entry>(text).ok());
    entries.filter(|entry| entry.vers == version).any(|entry| entry.yanked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(packages: &str, withdrawn: &dyn Fn(&str, &str) -> bool) -> String {
        // Those that are excused are there, twice.
        let excused: String = TWICE.iter().map(|(name, _)| good(name, "1.0.0") + &good(name, "2.0.0")).collect();
        let ours = BTreeSet::from(["ours".to_owned()]);
        let found = findings_of("Cargo.lock", &format!("{excused}{packages}"), &ours, withdrawn);
        found.iter().map(|finding| finding.message.clone() + "\n").collect()
    }

    fn good(name: &str, version: &str) -> String {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"{REGISTRY}\"\nchecksum = \"00\"\n")
    }

    #[test]
    fn what_is_not_from_the_registry_is_found() {
        let never = |_: &str, _: &str| false;
        let ours = "[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        assert_eq!(messages(&(good("a", "1.0.0") + ours), &never), "");
        for (packages, expected) in [
            (good("a", "1.0.0").replace(REGISTRY, "git+https://example.org/a#00"), "a 1.0.0 is from git+"),
            (good("a", "1.0.0").replace(REGISTRY, "registry+https://example.org/index"), "a 1.0.0 is from registry+"),
            (good("a", "1.0.0").replace("checksum = \"00\"\n", ""), "a 1.0.0 has no checksum"),
            (ours.replace("ours", "theirs"), "theirs 0.1.0 is from a path outside"),
            (good("a", "1.0.0") + &good("a", "2.0.0"), "a is there as 1.0.0 and 2.0.0"),
            ("[[package]]\nname = 1".to_owned(), "cannot be read"),
        ] {
            let found = messages(&packages, &never);
            assert!(found.starts_with(expected) && found.lines().count() == 1, "{found}\n expected {expected}");
        }
        let withdrawn = |name: &str, version: &str| (name, version) == ("a", "1.0.0");
        assert!(messages(&good("a", "1.0.0"), &withdrawn).contains("was withdrawn"));
        assert_eq!(messages(&good("a", "1.0.1"), &withdrawn), "");
    }

    #[test]
    fn reasons_that_are_no_more_needed_are_found() {
        let found = findings_of("Cargo.lock", &good(TWICE[0].0, "1.0.0"), &BTreeSet::new(), &|_, _| false);
        assert!(found[0].message.contains("is there once"), "{found:?}");
        assert_eq!(found.len(), TWICE.len());
    }

    #[test]
    fn the_index_says_what_was_withdrawn() {
        let copy = b"\x03\x02\0\0\0etag: x\x001.0.0\0{\"name\":\"a\",\"vers\":\"1.0.0\",\"yanked\":true}\x001.0.1\0{\"name\":\"a\",\"vers\":\"1.0.1\",\"yanked\":false}\0";
        assert!(says_yanked(copy, "1.0.0") && !says_yanked(copy, "1.0.1") && !says_yanked(copy, "2.0.0"));
        for (name, place) in
            [("a", "1/a"), ("io", "2/io"), ("toml", "to/ml/toml"), ("syn", "3/s/syn"), ("Inflector", "in/fl/inflector")]
        {
            assert_eq!(place_in_index(name), Path::new(place));
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("1")).unwrap();
        std::fs::write(directory.path().join("1/a"), copy).unwrap();
        assert!(is_yanked(directory.path(), "a", "1.0.0") && !is_yanked(directory.path(), "b", "1.0.0"));
    }
}
