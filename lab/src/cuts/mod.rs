//! Power cuts: guests killed in every phase of a boost, over disks that lose what was not flushed, then booted again,
//! recovered, and read.

pub mod acks;
mod lives;
pub mod lossy;
pub mod oracle;
pub mod phase;
mod report;

use clap::Args;

use crate::campaign::Campaign;
use crate::output;

pub use lives::planted;

/// Flags of the power cuts.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How often the power is cut
    #[arg(long, default_value_t = 50)]
    cuts: u32,
    /// How often bcache is treated in the same way
    #[arg(long, default_value_t = 5)]
    bcache: u32,
    #[command(flatten)]
    campaign: Campaign,
}

impl Arguments {
    /// Cuts and reports; whether surgetank lost nothing.
    pub fn run(&self) -> anyhow::Result<bool> {
        let ready = self.campaign.prepare("cuts")?;
        let seed = self.campaign.seed;
        let mut report = report::Report { seed, ..Default::default() };
        let ours = lives::surgetank(&ready, seed, self.cuts, &mut report);
        // What was found before a failure stands in the report all the same.
        let theirs = match ours {
            Ok(()) => lives::bcache(&ready, seed, self.bcache, &mut report),
            Err(_) => Ok(()),
        };
        if !report.surgetank.is_empty() || !report.bcache.is_empty() {
            output::write(&ready.out, "cuts", &report.markdown(), &report)?;
        }
        ours.and(theirs)?;
        Ok(report.lost() == 0)
    }
}
