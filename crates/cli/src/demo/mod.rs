//! `surgetank demo`: the main job on this machine, on real I/O, three ways.

mod chart;
mod content;
mod filesystem;
mod nbd;
mod outcome;
mod plan;
mod progress;
mod report;
mod workspace;
mod writer;

use std::path::PathBuf;

pub use writer::{Arguments as WriterArguments, run as run_writer};

use crate::failure::Failure;

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  surgetank demo --quick
  surgetank demo --out report && xdg-open report/report.html")]
pub struct Arguments {
    /// Run a smaller setting: about 40 s instead of about two minutes
    #[arg(long)]
    quick: bool,
    /// Where report.html and report.json go
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(_arguments: &Arguments) -> Result<(), Failure> {
    Ok(())
}
