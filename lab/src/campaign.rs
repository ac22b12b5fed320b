//! What the campaigns have in common that look for losses: cuts, outages, replay.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::flags::absolute;
use crate::host::Lab;
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::product::Product;

/// Flags of every campaign.
#[derive(Args, Clone, Debug)]
pub struct Campaign {
    /// What chance follows from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the report goes, and what is left of a failure; bench-out/ and the campaign's name, if none is told
    #[arg(long, value_parser = absolute)]
    out: Option<PathBuf>,
    #[command(flatten)]
    product: Product,
}

/// All that a campaign needs before its first guest.
pub struct Ready {
    /// Raised by Ctrl-C from now on.
    pub interrupt: Interrupt,
    /// Where guests boot.
    pub lab: Lab,
    /// The daemon that they run.
    pub surgetank: PathBuf,
    /// Where the report goes, from the root on.
    pub out: PathBuf,
}

impl Campaign {
    /// Looks for everything, and takes over Ctrl-C.
    pub fn prepare(&self, name: &str) -> anyhow::Result<Ready> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().context("no guest can be booted here")?;
        let out = match &self.out {
            Some(out) => out.clone(),
            None => absolute(&format!("bench-out/{name}")).map_err(anyhow::Error::msg)?,
        };
        Ok(Ready { interrupt, lab, surgetank: self.product.binary()?, out })
    }
}

/// Keeps what a failure can be looked into with: the files of these directories, as they are by now.
pub fn keep(out: &Path, directories: &[PathBuf]) -> anyhow::Result<()> {
    let kept = out.join("failed");
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    for entry in directories.iter().flat_map(fs::read_dir).flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let copy = kept.join(entry.file_name());
            fs::copy(entry.path(), &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
    }
    say(&format!("  logs and disks are kept in {}", kept.display()));
    Ok(())
}
