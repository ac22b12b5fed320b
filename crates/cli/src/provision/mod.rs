//! `surgetank provision FILE`: the nodes of a staging pool that take in a checkpoint as fast as it must be, at the least cost.

mod page;
mod text;

use std::path::PathBuf;

use clap::Args;
use surgetank_planner::provision::{Provision, ProvisionFile};
use surgetank_report::{Failure, output};

use crate::source;

/// Flags of `provision`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  surgetank provision pool.toml
  surgetank provision pool.toml --page cost.html
  surgetank provision pool.toml --json > plan.json
  surgetank pool up --plan plan.json

A file:
  [target]
  throughput = \"4 GiB/s\"      # or dataset and time = \"5 min\"
  mode = \"in-job\"             # or \"centre-wide\"
  link_divisor = 100          # each link costs 1/100 GiB/s
  copies = 2                  # or parity = \"8+2\"
  [[candidate]]
  memory = \"2 GiB\"
  ssd = \"4 GiB\"
  throughput = \"0.8 GiB/s\"    # of one node, measured with one copy
  [price]
  memory_gib_usd = 5.0
  ssd_gib_usd = 1.0

Of every candidate it computes the least number of nodes that take in the target, and it answers the cheapest of these. Without a \
throughput candidates are modelled: add [node] with ingest, ssd_write and drain, as surgetank pool calibrate measures them, and the \
dataset. If no nodes suffice, the exit status is 3, and the sentence names the nearest target that is feasible.")]
pub struct Arguments {
    /// A target, kinds of nodes, and prices
    file: PathBuf,
    /// Write a page with the curve of cost against time, .html
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Answer with one JSON document
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        source::check_page(self.page.as_deref(), [self.file.as_path()])?;
        let file = ProvisionFile::parse(source::read(&self.file)?).map_err(Failure::invalid)?;
        let problem = file.problem().map_err(Failure::invalid)?;
        let answer = Provision::of(&problem);
        if let Some(path) = &self.page {
            output::write_whole(path, &page::html(&self.file, &answer)?)?;
        }
        if self.json {
            output::print_json(&answer)?;
        }
        match &answer.infeasible {
            Some(infeasible) => Err(Failure::Infeasible(format!("{}: {}", self.file.display(), infeasible.reason))),
            None if self.json => Ok(()),
            None => output::print(&text::answer(&answer)),
        }
    }
}
