//! The product as a command: where its release build is, and what it answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// The release build beside this program, or what `SURGETANK` names.
///
/// # Errors
/// If there is none.
pub fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("SURGETANK") {
        return Ok(path.into());
    }
    let here = std::env::current_exe()?;
    let target = here.ancestors().nth(2).context("this program lies in a target directory")?;
    let binary = target.join("release/surgetank");
    if !binary.exists() {
        bail!("{} is not built; run `make build`", binary.display());
    }
    Ok(binary)
}

/// Runs a command; what it said on its standard output.
///
/// # Errors
/// If it cannot be run, or fails: with what it said last.
pub fn done(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {}", words(command)))?;
    ensure!(output.status.success(), "{} failed: {}", words(command), String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// Runs a command that answers in JSON.
///
/// # Errors
/// If it cannot be run, fails, or answers something else.
pub fn answer(command: &mut Command) -> anyhow::Result<Value> {
    let said = done(command)?;
    serde_json::from_slice(&said).with_context(|| format!("cannot read the answer of {}", words(command)))
}

/// A program that stays on one core, the last one that this process may use: interrupts like the first.
#[must_use]
pub fn one_core(program: &Path) -> Command {
    let ours = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|core| ours.is_set(*core)).unwrap_or(0);
    let mut command = Command::new("taskset");
    command.arg("--cpu-list").arg(last.to_string()).arg(program);
    command
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
