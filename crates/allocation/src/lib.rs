//! Shares of two levels of cache so that every application's SLO holds. Pure: numbers come in, a plan goes out.
//!
//! - [`Problem`]: servers, applications, who reaches whom, what is promised; made of a [`Description`], which it checks;
//! - [`solve`]: the best plan by the applications' curves, one linear program over both levels and all servers;
//! - [`mlms`]: the algorithm of PSKP10, from measured latencies;
//! - [`baselines`]: fair share, independent, uncontrolled, one level only;
//! - [`place`]: the second step alone, demands on servers;
//! - [`Plan`], [`verify`]: what comes out, and what every plan promises;
//! - [`Sharing`]: caches of one host, interval for interval; [`Ledger`]: who holds how much of a budget while shares change;
//! - [`curve`], [`hull`], [`confidence`]: what applications miss, what they could miss, and how sure that is.

pub mod baselines;
pub mod confidence;
pub mod curve;
mod flow;
pub mod hull;
mod ledger;
mod lp;
pub mod mlms;
mod optimal;
mod placement;
mod plan;
pub mod planted;
mod problem;
mod shared;
mod sharing;
mod verify;

pub use curve::{CurveError, MissCurve};
pub use ledger::Ledger;
pub use optimal::solve;
pub use placement::{Demand, PlacementError, place};
pub use plan::{Added, Basis, Change, Fallback, Infeasible, Level, Plan, Relaxed, Share, TOLERANCE};
pub use problem::{
    Application, CACHE_MAX, Description, Estimate, Hierarchy, InvalidProblem, LATENCY_MAX, Latencies, Model, Problem,
    Queue, Server, Setting, Slo, Subject,
};
pub use sharing::{Behind, Claimed, Disk, Observed, SEGMENTS_MIN, Sharer, Sharing, Verdict};
pub use verify::{Broken, verify, verify_change};
