//! Which daemon guests run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

/// The flag that names it.
#[derive(Args, Clone, Debug)]
pub struct Daemon {
    /// The daemon; by default the release build beside this program
    #[arg(long)]
    surgetank: Option<PathBuf>,
}

impl Daemon {
    /// Where it is.
    ///
    /// # Errors
    /// If it is not there.
    pub fn binary(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.surgetank {
            return fs::canonicalize(path).with_context(|| format!("there is no {}", path.display()));
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
