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

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::plan::quoted;

pub use cut::{Life, Verdict};
pub use load::{Load, Shape};
pub use measure::{Found, Order, Sample};
pub use peer::Kind;
pub use replay::{Judged, Logged, Replay};

/// Where a guest finds its order and leaves its samples, in the directory that the host shares.
const SHARE: &str = "/lab";
const ORDER: &str = "order.json";
const SAMPLES: &str = "samples.jsonl";

/// What this program does in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// What `cuts` runs
    Cut,
    /// What `outages` runs
    Outages,
    /// What `peers` runs
    Peers,
    /// What `replay` runs
    Replay,
    /// What `reproduce` runs
    Reproduce,
}

impl Job {
    /// Its name, and that of its guest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Outages => "outages",
            Self::Peers => "peers",
            Self::Replay => "replay",
            Self::Reproduce => "reproduce",
        }
    }

    /// Leaves its order in the directory that the guest sees; the guest's script.
    pub fn script(self, order: &impl Serialize, share: &Path) -> anyhow::Result<String> {
        let text = serde_json::to_vec_pretty(order)?;
        fs::write(share.join(ORDER), text).with_context(|| format!("cannot write to {}", share.display()))?;
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        Ok(quoted(&[program.to_string_lossy().as_ref(), "inside", self.name()].map(str::to_owned)))
    }

    /// Does what its order says, in the guest.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Cut => cut::live(ordered()?),
            Self::Outages => outages::serve(&ordered()?),
            Self::Peers => measure::all(&ordered()?),
            Self::Replay => replay::replay(&ordered()?),
            Self::Reproduce => reproduce::reproduce(&ordered()?),
        }
    }
}

fn ordered<T: DeserializeOwned>() -> anyhow::Result<T> {
    let file = File::open(Path::new(SHARE).join(ORDER)).context("there is no order")?;
    serde_json::from_reader(file).context("cannot read the order")
}

/// Adds a sample to those that the host keeps.
fn keep(sample: &impl Serialize) -> anyhow::Result<()> {
    let file = File::options().create(true).append(true).open(Path::new(SHARE).join(SAMPLES));
    let line = serde_json::to_string(sample)? + "\n";
    file.and_then(|mut file| file.write_all(line.as_bytes())).context("cannot write a sample")
}
