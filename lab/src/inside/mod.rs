//! What the lab runs in its guests: the same program, started there by the guest's script.

mod bcache;
mod cut;
mod load;
mod mapper;
mod measure;
pub mod outages;
mod peer;
mod replay;
pub mod reproduce;
mod stretch;

use std::path::Path;

use anyhow::Context;

pub use cut::{Life, Verdict, live};
pub use load::{Load, Shape};
pub use measure::{Found, Order, Sample};
pub use peer::Kind;
pub use replay::{Judged, Logged, Replay, replay};

/// Does what an order says; samples go to a file, one line each, as they are taken.
///
/// # Errors
/// If the order cannot be read or nothing can be written. A peer that fails is a sample that says so.
pub fn peers(order: &Path, samples: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(order).with_context(|| format!("cannot read {}", order.display()))?;
    let order: Order = serde_json::from_str(&text).context("cannot read the order")?;
    measure::all(&order, samples)
}
