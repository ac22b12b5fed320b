//! What cargo says of the workspace.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use cargo_metadata::{MetadataCommand, Package};

/// The workspace's own packages.
///
/// # Errors
/// If cargo fails.
pub fn workspace(root: &Path) -> anyhow::Result<Vec<Package>> {
    Ok(MetadataCommand::new().current_dir(root).no_deps().exec()?.packages)
}

/// The workspace's packages and everything that they use on this machine, without asking the network. What other
/// platforms would use is never fetched here.
///
/// # Errors
/// If cargo fails, for instance as dependencies were never fetched.
pub fn with_dependencies(root: &Path) -> anyhow::Result<Vec<Package>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not name its host")?;
    let options = ["--locked", "--offline", "--filter-platform", host].map(str::to_owned);
    Ok(MetadataCommand::new().current_dir(root).other_options(options).exec()?.packages)
}
