//! What the campaigns have in common that look for losses: cuts, outages, replay.

use std::path::PathBuf;

use clap::Args;

use crate::flags::absolute;
use crate::host::Lab;
use crate::interrupt::Interrupt;
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
        let lab = Lab::open().map_err(|reason| anyhow::anyhow!("no guest can be booted here: {reason}"))?;
        let out = match &self.out {
            Some(out) => out.clone(),
            None => absolute(&format!("bench-out/{name}")).map_err(anyhow::Error::msg)?,
        };
        Ok(Ready { interrupt, lab, surgetank: self.product.binary()?, out })
    }
}
