//! `provision`: how many nodes of a staging pool take in a checkpoint as fast as an application wants, and which kind of node does it
//! at the least cost (PVK11, section III).
//!
//! - [`ProvisionFile`]: the file, checked; the names in it are a contract;
//! - [`Problem`]: what is asked, as values: target, rates of a node, prices, candidates;
//! - [`Nodes`]: what equal nodes deliver together, and the least number of them for a throughput;
//! - [`Measured`]: what runs of a pool say of a node, as sections of the file;
//! - [`Provision`]: the answer, whose names are a contract as well, with the curve of cost against time; [`NodePlan`] reads back
//!   what a pool is started by.

mod answer;
mod file;
mod measured;
mod nodes;
mod problem;

pub use answer::{Considered, Infeasible, NodePlan, Plan, Provision, TradeOff, Verdict, cheapest};
pub use file::ProvisionFile;
pub use measured::{Fitted, Measured, Run};
pub use nodes::Nodes;
pub use problem::{
    Candidate, LinkDivisor, Mode, NODES_MAX, Prices, Problem, RATE_MAX, Rates, Redundancy, SIZE_MAX, Target, USD_MAX,
};
