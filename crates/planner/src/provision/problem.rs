//! What is asked: values that are valid by their making, so that the arithmetic behind them cannot overflow.

use std::fmt;
use std::str::FromStr;

use surgetank_model::units::{GIB, TIB};
use surgetank_model::{Bandwidth, Bytes};

/// More nodes than any pool has.
pub const NODES_MAX: u64 = 10_000_000;
/// More than any node, and than any target of an application: 1 PiB/s.
pub const RATE_MAX: u64 = 1024 * TIB;
/// More memory or SSD than any node has: 1 PiB.
pub const SIZE_MAX: u64 = 1024 * TIB;
/// A higher price, of a GiB or of a node, is a mistake.
pub const USD_MAX: f64 = 1e6;
/// Copies, and members of a parity group.
pub(super) const REDUNDANCY_MAX: u32 = 64;
/// Prices count in 10⁻⁹ USD.
const NANO: f64 = 1e9;

/// Where the pool's nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Among the application's own: each has one node near it, itself.
    InJob,
    /// A partition of the centre: all are remote.
    CentreWide,
}

impl Mode {
    /// As files and answers have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InJob => "in-job",
            Self::CentreWide => "centre-wide",
        }
    }

    /// The links of `nodes` nodes, each of which costs its loss.
    pub(super) const fn links(self, nodes: u64) -> u64 {
        match self {
            Self::InJob => nodes * nodes.saturating_sub(1),
            Self::CentreWide => nodes * nodes,
        }
    }
}

/// D_link: each link costs 1 ÷ this GiB/s. In thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDivisor(u64);

impl LinkDivisor {
    /// The most: a loss of one byte a second.
    pub const MAX: f64 = 1e9;

    /// From 0.001 to [`Self::MAX`].
    #[must_use]
    pub fn new(divisor: f64) -> Option<Self> {
        let thousandths = (divisor * 1000.0).round();
        (thousandths >= 1.0 && divisor <= Self::MAX).then_some(Self(thousandths as u64))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// What a link costs, as a fraction in bytes a second.
    pub(super) const fn loss(self) -> (u64, u64) {
        (GIB * 1000, self.0)
    }
}

/// What else is stored of each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// On so many nodes.
    Copies(u32),
    /// In groups of `data` + `parity` nodes.
    Parity {
        /// Those that have the data.
        data: u32,
        /// Those that have what replaces lost ones.
        parity: u32,
    },
}

impl Redundancy {
    /// Bytes that are stored of so many: a fraction.
    pub(super) const fn stored(self) -> (u64, u64) {
        match self {
            Self::Copies(copies) => (copies as u64, 1),
            Self::Parity { data, parity } => (data as u64 + parity as u64, data as u64),
        }
    }

    /// The same as a number: k, or (d + p) ÷ d.
    #[must_use]
    pub fn factor(self) -> f64 {
        let (stored, of) = self.stored();
        stored as f64 / of as f64
    }

    /// No two parts of a group lie on one node.
    #[must_use]
    pub const fn nodes_min(self) -> u64 {
        match self {
            Self::Copies(copies) => copies as u64,
            Self::Parity { data, parity } => data as u64 + parity as u64,
        }
    }
}

/// A text that is no redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRedundancy;

/// As it is displayed.
impl FromStr for Redundancy {
    type Err = NoRedundancy;

    fn from_str(text: &str) -> Result<Self, NoRedundancy> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| (1..=REDUNDANCY_MAX).contains(number));
            number.ok_or(NoRedundancy)
        };
        match text.split_once(' ') {
            Some((copies, "copy" | "copies")) => Ok(Self::Copies(number(copies)?)),
            Some(("parity", parts)) => {
                let (data, parity) = parts.split_once('+').ok_or(NoRedundancy)?;
                Ok(Self::Parity { data: number(data)?, parity: number(parity)? })
            }
            _ => Err(NoRedundancy),
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(1) => f.write_str("1 copy"),
            Self::Copies(copies) => write!(f, "{copies} copies"),
            Self::Parity { data, parity } => write!(f, "parity {data}+{parity}"),
        }
    }
}

/// What the pool is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// T_app: what the application writes, without redundancy.
    pub throughput: Bandwidth,
    /// What it writes at once, above zero.
    pub dataset: Option<Bytes>,
    /// Where the nodes are.
    pub mode: Mode,
    /// What links cost; `None`: nothing.
    pub link: Option<LinkDivisor>,
    /// What is stored of each byte.
    pub redundancy: Redundancy,
    /// There are no more, of [`NODES_MAX`].
    pub nodes_max: u64,
}

/// What one node does, of which a model makes its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Into memory.
    pub ingest: Bandwidth,
    /// From memory to SSD.
    pub ssd_write: Option<Bandwidth>,
    /// To the last tier.
    pub drain: Bandwidth,
}

/// Prices in 10⁻⁹ USD, so that equal costs are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    memory_gib: u64,
    ssd_gib: u64,
    node: u64,
}

impl Prices {
    /// In USD: of a GiB of memory, of a GiB of SSD, and of what a node costs beside them. Each from 0 to [`USD_MAX`].
    #[must_use]
    pub fn new(memory_gib_usd: f64, ssd_gib_usd: f64, node_usd: f64) -> Self {
        let nano = |usd: f64| (usd.clamp(0.0, USD_MAX) * NANO).round() as u64;
        Self { memory_gib: nano(memory_gib_usd), ssd_gib: nano(ssd_gib_usd), node: nano(node_usd) }
    }

    /// What so many nodes cost, exactly, in a unit that [`Self::usd`] knows.
    pub(super) fn cost(&self, candidate: &Candidate, nodes: u64) -> u128 {
        // At most 2²⁴ nodes × 2⁵⁰ bytes × 2⁵⁰ × 10⁻⁹ USD, three times.
        let of = |bytes: u64, price: u64| u128::from(bytes) * u128::from(price);
        let node =
            of(candidate.memory.get(), self.memory_gib) + of(candidate.ssd.get(), self.ssd_gib) + of(GIB, self.node);
        u128::from(nodes) * node
    }

    /// A cost in USD.
    pub(super) fn usd(cost: u128) -> f64 {
        cost as f64 / GIB as f64 / NANO
    }
}

/// Hybrid(i, j): a kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Memory that it lends.
    pub memory: Bytes,
    /// SSD that it lends.
    pub ssd: Bytes,
    /// T_H(i, j), as it was measured with one copy; `None`: modelled.
    pub throughput: Option<Bandwidth>,
}

/// What is asked. Each candidate has a throughput, or there are rates and a dataset; sizes and rates are at most [`SIZE_MAX`] and
/// [`RATE_MAX`].
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What the pool is to do.
    pub target: Target,
    /// What one node does.
    pub rates: Option<Rates>,
    /// What nodes cost.
    pub prices: Prices,
    /// Kinds of nodes.
    pub candidates: Vec<Candidate>,
}
