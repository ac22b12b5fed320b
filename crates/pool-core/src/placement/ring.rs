//! The benefactors of one tier, listed so that every column has its copies in different domains.
//!
//! They are listed domain by domain. Column *i* of *W* has the benefactors at the places (*i* + *j*·*q*) mod *W*, *j* < *k* (copies, or members of a row), with
//! *q* = ⌊*W* ÷ *k*⌋. No domain has more than *q* benefactors, and two places of a column are at least *q* from each other, also
//! across the end of the list: so they are never in one domain. Each benefactor is in exactly *k* columns.

use surgetank_model::Bytes;

use super::share::Supply;
use super::{CHUNK, Candidate, Column, Lent, Media, Place, Protection, Request, Tier};
use crate::id::Domain;
use crate::planted::{Bug, planted};

/// Steps in which the fullness of a tier is compared: smaller differences do not count, so that several managers that know
/// slightly different things do not choose the same few.
const STEPS: u64 = 64;
/// A narrower ring is taken if it needs less than this share of the time.
const SOONER: f64 = 0.98;

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    /// Domain by domain.
    members: Vec<(Place, Lent)>,
    /// Places of a column: *k*.
    places: usize,
}

/// Memory for a request; `None`: too few domains lend any.
pub(super) fn memory(request: &Request, candidates: &[Candidate]) -> Option<Ring> {
    let lent = |candidate: &Candidate| match request.media {
        Media::Any => candidate.memory.map(|lent| (candidate.ssd.is_none(), lent)),
        Media::Ssd => None,
    };
    ring(request, candidates, width_max(request), lent)
}

/// SSD for a request, of benefactors whose memory is not used: SSD beside used memory takes what that drains.
pub(super) fn ssd(request: &Request, candidates: &[Candidate], memory: Option<&Ring>) -> Option<Ring> {
    let mut used: Vec<Place> =
        memory.map(|ring| ring.members.iter().map(|(place, _)| *place).collect()).unwrap_or_default();
    used.sort_unstable();
    let width = width_max(request).saturating_sub(used.len());
    let lent = |candidate: &Candidate| {
        let free = used.binary_search(&candidate.place).is_err();
        candidate.ssd.filter(|_| free).map(|lent| (candidate.memory.is_none(), lent))
    };
    ring(request, candidates, width, lent)
}

/// Benefactors that are useful.
fn width_max(request: &Request) -> usize {
    let chunks = usize::try_from(request.bytes.get().div_ceil(CHUNK.get())).unwrap_or(usize::MAX);
    (request.width_max as usize).min(chunks).min(u16::MAX.into()).max(request.protection.places() as usize)
}

fn ring(
    request: &Request,
    candidates: &[Candidate],
    width_max: usize,
    lent: impl Fn(&Candidate) -> Option<(bool, Lent)>,
) -> Option<Ring> {
    // The ranks alone are sorted: a manager places thousands of files a second among thousands of benefactors.
    let mut ranks: Vec<(u128, usize, Lent)> = (0..)
        .zip(candidates)
        .filter_map(|(at, candidate)| {
            let (last, lent) = lent(candidate).filter(|(_, lent)| lent.free >= CHUNK || lent.drain.is_some())?;
            let order = mixed(request.spread ^ u64::from(candidate.place.id.0));
            let rank = u128::from(last) << 127 | u128::from(fullness(&lent)) << 64 | u128::from(order);
            Some((rank, at, lent))
        })
        .collect();
    ranks.sort_unstable_by(|one, other| {
        one.0.cmp(&other.0).then_with(|| candidates[one.1].place.cmp(&candidates[other.1].place))
    });
    let mut domains: Vec<Domain> = ranks.iter().map(|(_, at, _)| candidates[*at].domain).collect();
    domains.sort_unstable();
    domains.dedup();
    let mut ranked: Vec<Ranked> = ranks
        .into_iter()
        .map(|(_, at, lent)| Ranked {
            place: candidates[at].place,
            domain: domains.binary_search(&candidates[at].domain).unwrap_or_default(),
            lent,
        })
        .collect();
    let mut best: Option<Ring> = None;
    let mut free: Vec<Bytes> = ranked.iter().map(|ranked| ranked.lent.free).collect();
    free.sort_unstable();
    // All of a ring take the same, so that a few full ones hold up the others: would the group be taken sooner without them?
    let mut consider = |ring: Option<Ring>| {
        let found = ring.is_some();
        let sooner = |ring: &Ring, best: &Ring| ring.time(request) < SOONER * best.time(request);
        if let Some(ring) = ring
            && best.as_ref().is_none_or(|best| sooner(&ring, best))
        {
            best = Some(ring);
        }
        found
    };
    let powers = (0..).map(|power| 1_usize << power);
    for without in std::iter::once(0).chain(powers).take_while(|without| *without < free.len()) {
        if !consider(widest(request, &ranked, domains.len(), free[without], width_max)) {
            break;
        }
    }
    // And without those that have no room in the end, since nothing drains them?
    ranked.retain(|ranked| ranked.lent.drain.is_some());
    consider(widest(request, &ranked, domains.len(), Bytes::ZERO, width_max));
    best
}

/// How full a tier is, in steps.
fn fullness(lent: &Lent) -> u64 {
    let (used, of) = (lent.of.get().saturating_sub(lent.free.get()), lent.of.get().max(1));
    used.checked_mul(STEPS).map_or_else(|| used / (of / STEPS).max(1), |used| used / of)
}

/// A benefactor that lends; its domain by its place among those of all that do.
struct Ranked {
    place: Place,
    domain: usize,
    lent: Lent,
}

/// The widest ring of those that have at least so much free.
fn widest(request: &Request, ranked: &[Ranked], domains: usize, free: Bytes, width_max: usize) -> Option<Ring> {
    let places = request.protection.places() as usize;
    let mut width = width_max.min(ranked.len());
    // Narrower and narrower, until no domain has too many.
    loop {
        if width < places {
            return None;
        }
        let mut members = choose(request, ranked, domains, free, width);
        if members.len() == width {
            members.sort_unstable_by_key(|ranked| (ranked.domain, ranked.place));
            let members = members.into_iter().map(|ranked| (ranked.place, ranked.lent)).collect();
            return Some(Ring { members, places });
        }
        width = members.len();
    }
}

/// The first of the ranking that make a ring of this width, or as many of them as can be.
fn choose<'a>(request: &Request, ranked: &'a [Ranked], domains: usize, free: Bytes, width: usize) -> Vec<&'a Ranked> {
    let (places, mut of_domain) = (request.protection.places() as usize, vec![0; domains]);
    let most = if planted(Bug::SameDomain) { width } else { width / places };
    let may = |ranked: &&Ranked| {
        let count = &mut of_domain[ranked.domain];
        let may = ranked.lent.free >= free && *count < most;
        *count += usize::from(may);
        may
    };
    ranked.iter().filter(may).take(width).collect()
}

impl Ring {
    /// Benefactors.
    pub(super) const fn width(&self) -> usize {
        self.members.len()
    }

    /// When it has taken the request, if nobody else takes a part.
    fn time(&self, request: &Request) -> f64 {
        self.supply(request.protection).time(request.bytes.get() as f64)
    }

    /// What it can take: as much as the narrowest and the slowest of them allow, since all take the same.
    pub(super) fn supply(&self, protection: Protection) -> Supply {
        let least = |of: fn(&Lent) -> u64| self.members.iter().map(|(_, lent)| of(lent)).min().unwrap_or(0) as f64;
        let each = self.members.len() as f64 / protection.bytes();
        Supply {
            rate: each * least(|lent| lent.rate.get()),
            room: each * least(|lent| lent.free.get()),
            drain: each * least(|lent| lent.drain.map_or(0, |drain| drain.get())),
        }
    }

    /// Its columns, from one that the request's number chooses.
    pub(super) fn columns(&self, request: &Request, tier: Tier, weight: u8) -> Vec<Column> {
        let width = self.members.len();
        // Of chunks, or of rows, each of which goes to one column.
        let part = CHUNK.get() * request.protection.parity().map_or(1, |of| of.data().into());
        let chunks = usize::try_from(request.bytes.get().div_ceil(part)).unwrap_or(usize::MAX);
        let first = usize::try_from(mixed(request.spread) % width as u64).unwrap_or_default();
        let apart = width / self.places;
        (0..width.min(chunks))
            .map(|column| {
                let at = |place: usize| self.members[(first + column + place * apart) % width].0;
                Column { places: (0..self.places).map(at).collect(), tier, weight }
            })
            .collect()
    }
}

/// A number that looks like chance (the finalizer of SplitMix64, Steele et al. 2014).
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
