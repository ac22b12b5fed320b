//! The product as a command: where it is, and what it answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use crate::interrupt::Interrupt;

/// The flag that names it.
#[derive(Args, Clone, Debug)]
pub struct Product {
    /// The surgetank to run; by default what SURGETANK names, or the release build beside this program
    #[arg(long)]
    surgetank: Option<PathBuf>,
}

impl Product {
    /// Where it is.
    pub fn binary(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.surgetank.clone().or_else(|| Some(std::env::var_os("SURGETANK")?.into())) {
            return fs::canonicalize(&path).with_context(|| format!("there is no {}", path.display()));
        }
        let here = std::env::current_exe().context("cannot tell where this program is")?;
        let target = here.ancestors().nth(2).context("this program lies in a target directory")?;
        let file = target.join("release/surgetank");
        if !file.exists() {
            bail!("{} is not built: use make, which builds it", file.display());
        }
        Ok(file)
    }
}

/// The tree that this program was built from.
pub fn tree() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// Runs a command that answers in JSON.
pub fn answer(interrupt: &Interrupt, command: &mut Command) -> anyhow::Result<Value> {
    let said = interrupt.run(command)?.stdout;
    serde_json::from_slice(&said).with_context(|| format!("cannot read the answer of {command:?}"))
}

/// A number of an answer.
pub fn number(answer: &Value, place: &str) -> anyhow::Result<f64> {
    answer.pointer(place).and_then(Value::as_f64).with_context(|| format!("the answer has no number {place}"))
}
