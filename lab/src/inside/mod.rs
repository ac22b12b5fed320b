//! What the lab runs in its guests: the same program, started there by the guest's script.

pub mod arrays;
mod bcache;
mod calm;
pub mod checkpoints;
mod cut;
mod load;
mod mapper;
mod measure;
pub mod modes;
pub mod outages;
mod peer;
mod raid;
mod read_caches;
mod replay;
pub mod reproduce;
pub mod stretch;

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::flags::name;
use crate::messages;
use crate::plan::quoted;

pub use calm::{CalmOrder, CalmSample, DISKS, SHAPES, Side};
pub use cut::{Life, PHASE, TROUBLE, VERDICT, Verdict};
pub use load::{Load, Shape};
pub use measure::{Found, Order, PeerKind, PeerSample};
pub use replay::{Judged, LOGGED, Logged, Replay};

/// The message that orders what is done.
const ORDER: &str = "order";

/// What this program does in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuestJob {
    /// What `arrays` runs
    Arrays,
    /// What `calm` runs
    Calm,
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
    /// What `validate --lab` runs
    Validate,
}

impl GuestJob {
    /// Leaves its order in the directory that the guest sees; the guest's script.
    pub fn script(self, order: &impl Serialize, share: &Path) -> anyhow::Result<String> {
        messages::tell(share, ORDER, order)?;
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        Ok(quoted(&[program.to_string_lossy().as_ref(), "inside", &name(self)].map(str::to_owned)))
    }

    /// Does what its order says, in the guest.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Arrays => arrays::all(&ordered()?),
            Self::Calm => calm::calm(&ordered()?),
            Self::Cut => cut::live(ordered()?),
            Self::Outages => outages::serve(&ordered()?),
            Self::Peers => measure::all(&ordered()?),
            Self::Replay => replay::replay(&ordered()?),
            Self::Reproduce => reproduce::reproduce(&ordered()?),
            Self::Validate => checkpoints::checkpoints(&ordered()?),
        }
    }
}

fn ordered<T: DeserializeOwned>() -> anyhow::Result<T> {
    messages::host_told(ORDER)?.context("there is no order")
}
