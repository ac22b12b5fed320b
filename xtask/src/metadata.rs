//! What cargo says of the workspace.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

/// `cargo metadata`, as far as the checks need it.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Ours, and with `with_dependencies` everything that they use.
    pub packages: Vec<Package>,
}

/// One package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SPDX expression.
    pub license: Option<String>,
    /// Path of its `Cargo.toml`.
    pub manifest_path: String,
    /// What it asks for.
    pub dependencies: Vec<Dependency>,
}

/// What a package asks for.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// Name of the package.
    pub name: String,
    /// The name in the source, if it differs.
    pub rename: Option<String>,
    /// `dev`, `build`, or `None` for a normal one.
    pub kind: Option<String>,
}

/// The workspace's own packages.
///
/// # Errors
/// If cargo fails.
pub fn workspace(root: &Path) -> anyhow::Result<Metadata> {
    read(root, &["--no-deps"])
}

/// The workspace's packages and everything that they use on this machine, without asking the network. What other
/// platforms would use is never fetched here.
///
/// # Errors
/// If cargo fails, for instance as dependencies were never fetched.
pub fn with_dependencies(root: &Path) -> anyhow::Result<Metadata> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not name its host")?;
    read(root, &["--locked", "--offline", "--filter-platform", host])
}

fn read(root: &Path, arguments: &[&str]) -> anyhow::Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata answered something else than expected")
}
