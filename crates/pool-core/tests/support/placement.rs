//! Layouts of random requests over random benefactors.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation};
use surgetank_pool_core::parity::Parity;
use surgetank_pool_core::placement::{
    CHUNK, Candidate, Error, Lent, Media, Place, Protection, Request, Stripe, Tier, place,
};

pub fn candidates(random: &mut Random) -> Vec<Candidate> {
    let (count, domains) = (random.below(40), 1 + random.below(12));
    let uneven = random.chance(0.5);
    (0..count)
        .map(|id| {
            let mut lent = |of_mib: u64, rate: u64| {
                let of = Bytes::from_mib(of_mib);
                let free = if uneven { Bytes::from_mib(random.below(of_mib + 1)) } else { of };
                let drain = random.chance(0.5).then(|| Bandwidth::from_mib_s(1 + random.below(rate)));
                Lent { free, of, rate: Bandwidth::from_mib_s(rate), drain }
            };
            let (memory, ssd) = (lent(96, 1000), lent(4096, 128));
            let class = random.below(3);
            let place = Place { id: BenefactorId(u32::try_from(id).unwrap()), incarnation: Incarnation(1 + id % 3) };
            Candidate {
                place,
                domain: Domain(u32::try_from(random.below(domains)).unwrap()),
                memory: (class < 2).then_some(memory),
                ssd: (class > 0).then_some(ssd),
            }
        })
        .collect()
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let candidates = candidates(&mut random);
    let magnitude = 10 + random.below(22);
    let request = Request {
        bytes: Bytes::new(1 + random.below(1 << magnitude)),
        protection: match random.chance(0.3) {
            true => Protection::Parity(Parity::new(1 + random.below(4) as u8, 1 + random.below(3) as u8).unwrap()),
            false => Protection::Copies(1 + u32::try_from(random.below(4)).unwrap()),
        },
        media: if random.chance(0.3) { Media::Ssd } else { Media::Any },
        width_max: 1 + u32::try_from(random.below(50)).unwrap(),
        spread: random.next_u64(),
    };
    check(&request, &candidates).map_err(|what| format!("{what}: {request:?} over {candidates:?}"))
}

pub fn check(request: &Request, candidates: &[Candidate]) -> Result<(), String> {
    let places = request.protection.places();
    // Chunks of a row, which has a member at each place of its column.
    let data = u64::from(if let Protection::Parity(of) = request.protection { of.data() } else { 1 });
    let known: BTreeMap<Place, &Candidate> = candidates.iter().map(|candidate| (candidate.place, candidate)).collect();
    let usable = |candidate: &&Candidate| match request.media {
        Media::Any => candidate.memory.is_some() || candidate.ssd.is_some(),
        Media::Ssd => candidate.ssd.is_some(),
    };
    let domains: BTreeSet<Domain> = candidates.iter().filter(usable).map(|candidate| candidate.domain).collect();
    let layout = match place(request, candidates) {
        Ok(layout) => layout,
        Err(Error::Domains { .. }) if domains.len() < request.protection.places() as usize => return Ok(()),
        Err(Error::Full(_)) if domains.len() >= request.protection.places() as usize => {
            return is_full(request, candidates);
        }
        Err(error) => return Err(format!("refused with {error:?} where {} domains are there", domains.len())),
    };
    let stripe = Stripe::new(&layout);
    let chunks = request.bytes.get().div_ceil(CHUNK.get() * data);
    if layout.columns.is_empty() || layout.columns.len() as u64 > 2 * chunks {
        return Err(format!("{} columns for {chunks} rows", layout.columns.len()));
    }
    let width = layout.places().len();
    if width > (request.width_max.max(places) as usize).max(2 * request.protection.places() as usize) {
        return Err(format!("{width} benefactors, {} are allowed", request.width_max));
    }
    for column in &layout.columns {
        let of: Vec<&Candidate> = column.places.iter().filter_map(|place| known.get(place).copied()).collect();
        if of.len() != request.protection.places() as usize {
            return Err(format!("a column has {} copies", of.len()));
        }
        let domains: BTreeSet<Domain> = of.iter().map(|candidate| candidate.domain).collect();
        if domains.len() != of.len() {
            return Err("copies in one domain".to_owned());
        }
        let lends = |candidate: &Candidate| match column.tier {
            Tier::Memory => candidate.memory.is_some() && request.media == Media::Any,
            Tier::Ssd => candidate.ssd.is_some(),
        };
        if !of.iter().all(|candidate| lends(candidate)) {
            return Err(format!("a copy in {:?}, which is not lent or not allowed", column.tier));
        }
        if column.weight == 0 {
            return Err("a column takes nothing".to_owned());
        }
    }
    // Everybody of a tier takes the same, to a chunk for each of its columns.
    let mut taken: BTreeMap<(Tier, Place), u64> = BTreeMap::new();
    for chunk in 0..chunks {
        let column = &layout.columns[stripe.column(chunk * data)];
        column.places.iter().for_each(|place| *taken.entry((column.tier, *place)).or_default() += 1);
    }
    let weight = layout.columns.iter().map(|column| u64::from(column.weight)).max().unwrap_or(1);
    for tier in [Tier::Memory, Tier::Ssd] {
        let of_tier = || taken.iter().filter(|((of, _), _)| *of == tier).map(|(_, chunks)| *chunks);
        let (least, most) = (of_tier().min().unwrap_or(0), of_tier().max().unwrap_or(0));
        let columns = layout.columns.iter().filter(|column| column.tier == tier).count();
        let whole = columns as u64 * weight <= chunks;
        if whole && most > least + weight * u64::from(places) {
            return Err(format!("{tier:?}: between {least} and {most} chunks"));
        }
    }
    // Where nothing is drained, it has room.
    for ((tier, place), chunks) in &taken {
        let candidate = known[place];
        let lent = if *tier == Tier::Memory { candidate.memory } else { candidate.ssd }.unwrap();
        let slack = Bytes::from_mib(weight * u64::from(places) + chunks / 16);
        if lent.drain.is_none() && chunks * CHUNK.get() > lent.free.get() + slack.get() {
            return Err(format!("{tier:?}: {chunks} chunks where {} bytes are free", lent.free.get()));
        }
    }
    Ok(())
}

/// A request that was refused for want of room: even with all that is free it would be tight.
fn is_full(request: &Request, candidates: &[Candidate]) -> Result<(), String> {
    let lent = |candidate: &Candidate| {
        let memory = candidate.memory.filter(|_| request.media == Media::Any);
        [memory, candidate.ssd].into_iter().flatten().collect::<Vec<Lent>>()
    };
    let one_copy = request.protection == Protection::Copies(1);
    let drained = candidates.iter().flat_map(lent).any(|lent| lent.drain.is_some());
    let largest = candidates.iter().flat_map(lent).map(|lent| lent.free.get()).max().unwrap_or(0);
    if one_copy && (drained || largest >= request.bytes.get().next_multiple_of(CHUNK.get())) {
        return Err(format!("refused, and one benefactor alone had room: {largest} bytes free"));
    }
    Ok(())
}
