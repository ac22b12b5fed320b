//! A warden that begins, while benefactors return in new lives with some of what their SSDs had, answer late, or stay away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::placement::{Column, Layout, Place, Tier};
use surgetank_pool_core::repair::{Config, Of, Repair};

/// What a benefactor really is.
struct Real {
    life: Incarnation,
    away: bool,
    has: BTreeSet<Of>,
}

/// What the warden may come to know, in any order.
enum News {
    Group(Of),
    Benefactor(BenefactorId),
}

fn number(of: u64) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Many at once, at one rate, and soon again.
pub fn at(rate: Bandwidth) -> Config {
    Config { idle: rate, beside: rate, foreground_for: Duration::ZERO, at_once: 100, retry: Duration::from_millis(1) }
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut repair = Repair::new(at(Bandwidth::from_mib_s(100)));
    let mut real: BTreeMap<BenefactorId, Real> = (0..2 + random.below(5))
        .map(|id| {
            let (life, away) = (Incarnation(1 + random.below(3)), random.chance(0.2));
            (BenefactorId(number(id)), Real { life, away, has: BTreeSet::new() })
        })
        .collect();
    let mut layouts: BTreeMap<Of, Layout> = BTreeMap::new();
    for index in 0..1 + random.below(6) {
        let of = Of {
            group: GroupOf { inode: Inode(7), group: number(index) },
            version: Version::NONE.next(),
            by: SessionId(1),
        };
        let mut ids: Vec<BenefactorId> = real.keys().copied().collect();
        let mut places = Vec::new();
        for _ in 0..1 + random.below(2) {
            let id = ids.swap_remove(random.below(ids.len() as u64) as usize);
            if let Some(holder) = real.get_mut(&id) {
                let incarnation = Incarnation(1 + random.below(holder.life.0));
                // In the life that acknowledged it, and later as far as its SSD had it.
                if incarnation == holder.life || random.chance(0.5) {
                    holder.has.insert(of);
                }
                places.push(Place { id, incarnation });
            }
        }
        layouts.insert(of, Layout { columns: vec![Column { places, tier: Tier::Memory, weight: 1 }], parity: None });
    }
    let groups = layouts.keys().copied().map(News::Group);
    let mut news: Vec<News> = groups.chain(real.keys().copied().map(News::Benefactor)).collect();
    let (mut asked, mut now): (BTreeSet<BenefactorId>, _) = (BTreeSet::new(), Instant::ZERO);
    loop {
        let unasked: Vec<Place> = repair.unasked().collect();
        if !unasked.is_empty() && (news.is_empty() || random.chance(0.3)) {
            let place = unasked[random.below(unasked.len() as u64) as usize];
            repair.inventory(place, &real[&place.id].has);
            asked.insert(place.id);
        } else if !news.is_empty() {
            match news.swap_remove(random.below(news.len() as u64) as usize) {
                News::Group(of) => repair.group(of, &layouts[&of], Bytes::from_mib(1)),
                News::Benefactor(id) if real[&id].away => repair.died(id),
                News::Benefactor(id) => repair.alive(id, real[&id].life),
            }
        } else {
            break;
        }
        now += Duration::from_secs(1);
        for (of, layout) in &layouts {
            let somebody = layout.places().into_iter().find(|place| real[&place.id].has.contains(of));
            if let Some(place) = somebody.filter(|_| repair.is_lost(&[(*of, layout)])) {
                return Err(format!("{of:?} counts as lost, and {place:?} has it"));
            }
        }
        // One that is not made is to be tried again, and is the next one again.
        if let Some(job) = repair.next_job(now) {
            let (id, holder) = (job.instead_of.id, &real[&job.instead_of.id]);
            if !holder.away && !asked.contains(&id) {
                return Err(format!("{:?} is copied in the place of {id:?}, who was not asked for it", job.of));
            }
            if !holder.away && holder.has.contains(&job.of) {
                return Err(format!("{:?} is copied, and {id:?} has it", job.of));
            }
            repair.ended(now, job.id, false);
        }
    }
    for (of, layout) in &layouts {
        let may_be = |place: &Place| real[&place.id].away || real[&place.id].has.contains(of);
        if !layout.places().iter().any(may_be) && !repair.is_lost(&[(*of, layout)]) {
            return Err(format!("{of:?} does not count as lost, and nobody has it"));
        }
    }
    Ok(())
}
