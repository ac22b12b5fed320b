//! Outages: one guest under a load, whose caching volume, backing volume or both fail for a while, again and again.

mod campaign;
mod console;
mod failing;
pub mod plan;
mod report;
mod strike;

use clap::Args;

use crate::campaign::Campaign;
use crate::output;

/// Flags of the outages.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How many outages there are
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    outages: u32,
    /// Kinds of outages; all, if none is named
    #[arg(long = "kind", value_enum)]
    kinds: Vec<plan::Failure>,
    #[command(flatten)]
    campaign: Campaign,
}

impl Arguments {
    /// Runs the outages and reports; whether nothing was lost.
    pub fn run(&self) -> anyhow::Result<bool> {
        let ready = self.campaign.prepare("outages")?;
        let seed = self.campaign.seed;
        let planned = plan::outages(self.outages, seed, &self.kinds);
        let mut report = report::Report { seed, planned: planned.len(), ..Default::default() };
        let run = campaign::run(&ready, seed, &planned, &mut report);
        // What was found before a failure or Ctrl-C stands in the report all the same.
        if !report.outages.is_empty() {
            output::write(&ready.out, "outages", &report.markdown(), &report)?;
        }
        run?;
        Ok(report.is_good())
    }
}
