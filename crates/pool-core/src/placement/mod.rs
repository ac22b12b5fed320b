//! Where a group of chunks goes.
//!
//! [`place`] answers with a [`Layout`]: columns, each of which has as many benefactors as a chunk has copies, or a row of
//! [parity](crate::parity) has members, all in different domains. Chunks, or rows, go round the columns, by their weights. Memory comes first: of benefactors that lend SSD as well, since theirs
//! drains without the network, then of the others; SSD comes last (seed 002, II-E), and at the same time where memory is too narrow
//! for the group. As many benefactors are used as have a chunk to take, at most [`Request::width_max`]; of equal ones the emptiest.

mod ring;
mod share;
mod stripe;
mod substitute;

use surgetank_model::{Bandwidth, Bytes};

pub use self::stripe::Stripe;
pub use self::substitute::substitute;
use crate::id::{BenefactorId, Domain, Incarnation};
use crate::parity::Parity;

/// Bytes of a chunk, but for the last of a file.
pub const CHUNK: Bytes = Bytes::from_mib(1);
/// Copies of a chunk, at most.
pub const COPIES_MAX: u32 = 8;
const COPIES_MORE: u32 = COPIES_MAX + 1;

/// Where a copy of a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// A benefactor's memory.
    Memory,
    /// A benefactor's SSD.
    Ssd,
}

/// What must have a copy before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// Memory or SSD.
    Any,
    /// SSD: the copy survives a power cut.
    Ssd,
}

/// A tier that a benefactor lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// What nobody uses and nobody was granted.
    pub free: Bytes,
    /// All of it.
    pub of: Bytes,
    /// How fast it takes chunks.
    pub rate: Bandwidth,
    /// How fast it is drained while it takes them; `None`: not at all.
    pub drain: Option<Bandwidth>,
}

/// A benefactor that may be given chunks: alive, and not about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who, in its present life.
    pub place: Place,
    /// What it fails with.
    pub domain: Domain,
    /// Its memory; `None`: it lends none (class `s`).
    pub memory: Option<Lent>,
    /// Its SSD; `None`: it lends none (class `m`).
    pub ssd: Option<Lent>,
}

/// What keeps chunks readable when benefactors are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// So many copies of each, 1 to [`COPIES_MAX`].
    Copies(u32),
    /// Rows of them have parity.
    Parity(Parity),
}

impl Protection {
    /// Benefactors of a column.
    #[must_use]
    pub const fn places(self) -> u32 {
        match self {
            Self::Copies(copies) => copies,
            Self::Parity(of) => of.members(),
        }
    }

    /// Bytes that lie in the pool for each byte that is written.
    fn bytes(self) -> f64 {
        match self {
            Self::Copies(copies) => f64::from(copies),
            Self::Parity(of) => f64::from(of.members()) / f64::from(of.data()),
        }
    }

    const fn parity(self) -> Option<Parity> {
        match self {
            Self::Copies(_) => None,
            Self::Parity(of) => Some(of),
        }
    }

    fn needs(self) -> String {
        match self {
            Self::Copies(copies) => format!("{copies} copies need"),
            Self::Parity(of) => format!("parity {of} needs"),
        }
    }
}

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes, once.
    pub bytes: Bytes,
    /// What protects each chunk.
    pub protection: Protection,
    /// Where each must lie.
    pub media: Media,
    /// Benefactors, at most: the provisioned N. As many as a column has places are used in any case.
    pub width_max: u32,
    /// Any number: among equal benefactors, requests with different numbers begin with different ones.
    pub spread: u64,
}

/// A benefactor of a layout, in the life in which it was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Who.
    pub id: BenefactorId,
    /// In which life: what another life says of its chunks does not count.
    pub incarnation: Incarnation,
}

/// Benefactors that have the same chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// As many as there are copies, or members of a row, in different domains. The first orders the writes of several sessions.
    pub places: Vec<Place>,
    /// Where they take them.
    pub tier: Tier,
    /// Chunks of a round that it takes; at least 1.
    pub weight: u8,
}

/// Where the chunks of a group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// At least one.
    pub columns: Vec<Column>,
    /// Each chunk lies at one place of its column, and its row has parity at others; `None`: all places of its column have it.
    pub parity: Option<Parity>,
}

impl Layout {
    /// That of a group of which the pool has nothing.
    pub const NONE: Self = Self { columns: Vec::new(), parity: None };

    /// Places of a column that have to count, at least, if its chunks are to be read. Rows that lack chunks need fewer.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.parity.map_or(1, |of| of.data() as usize)
    }

    /// Everybody who has a chunk of it, once.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        let mut all: Vec<Place> = self.columns.iter().flat_map(|column| column.places.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Why nothing can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too many copies, or none.
    #[error("a chunk has 1 to {COPIES_MAX} copies, not {0}")]
    Copies(u32),
    /// Nothing is to be placed.
    #[error("a group has at least one byte")]
    Empty,
    /// Too few domains have a benefactor with the media that are asked for.
    #[error("{} benefactors{} in {} failure domains; there are {domains}", protection.needs(), media.text(), protection.places())]
    Domains {
        /// What is asked for.
        protection: Protection,
        /// Domains that have such a benefactor.
        domains: u32,
        /// What was asked for.
        media: Media,
    },
    /// There are benefactors enough, and they have no room. It passes as chunks are drained.
    #[error("the pool has no room for {0} until something is drained")]
    Full(Bytes),
}

impl Media {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Ssd => " with SSD",
        }
    }
}

/// Places a group; see the module. The same request and candidates give the same layout.
///
/// # Errors
/// See [`Error`].
pub fn place(request: &Request, candidates: &[Candidate]) -> Result<Layout, Error> {
    if let Protection::Copies(copies @ (0 | COPIES_MORE..)) = request.protection {
        return Err(Error::Copies(copies));
    }
    if request.bytes == Bytes::ZERO {
        return Err(Error::Empty);
    }
    let memory = ring::memory(request, candidates);
    let of_memory = memory.as_ref().map(|ring| ring.supply(request.protection));
    if let (Some(ring), Some(supply)) = (&memory, of_memory)
        && !supply.is_narrow(request.bytes)
    {
        return Ok(Layout { columns: ring.columns(request, Tier::Memory, 1), parity: request.protection.parity() });
    }
    // Both tiers at the same time, or SSD alone, of those as well whose memory is full: whichever is done first.
    let beside = memory.map(|memory| {
        let ssd = ring::ssd(request, candidates, Some(&memory));
        (Some(memory), ssd)
    });
    let plans = beside.into_iter().chain([(None, ring::ssd(request, candidates, None))]);
    let best = plans
        .filter_map(|(memory, ssd)| {
            let supply = |ring: &Option<ring::Ring>| ring.as_ref().map(|ring| ring.supply(request.protection));
            let split = share::split(request.bytes, supply(&memory), supply(&ssd))?;
            Some((split, memory, ssd))
        })
        .min_by(|one, other| one.0.time.total_cmp(&other.0.time));
    let Some((split, memory, ssd)) = best else { return Err(why_not(request, candidates)) };
    let width = |ring: &Option<ring::Ring>| ring.as_ref().map_or(0, ring::Ring::width);
    let weights = share::weights((split.memory, width(&memory)), (split.ssd, width(&ssd)));
    let columns = |ring: Option<ring::Ring>, tier, weight| match (ring, weight) {
        (Some(ring), 1..) => ring.columns(request, tier, weight),
        _ => Vec::new(),
    };
    let mut all = columns(memory, Tier::Memory, weights.0);
    all.extend(columns(ssd, Tier::Ssd, weights.1));
    Ok(Layout { columns: all, parity: request.protection.parity() })
}

fn why_not(request: &Request, candidates: &[Candidate]) -> Error {
    let lends = |candidate: &&Candidate| match request.media {
        Media::Any => candidate.memory.is_some() || candidate.ssd.is_some(),
        Media::Ssd => candidate.ssd.is_some(),
    };
    let mut domains: Vec<Domain> = candidates.iter().filter(lends).map(|candidate| candidate.domain).collect();
    domains.sort_unstable();
    domains.dedup();
    let (protection, media) = (request.protection, request.media);
    let domains = u32::try_from(domains.len()).unwrap_or(u32::MAX);
    match domains < protection.places() {
        true => Error::Domains { protection, domains, media },
        false => Error::Full(request.bytes),
    }
}
