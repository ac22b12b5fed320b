//! Benefactors are taken out, and taken back, while they die, return with what their SSDs had, and copies fail: none may go while anybody needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::GroupOf;
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::leaving::{Named, may_go};
use surgetank_pool_core::meta::Group;
use surgetank_pool_core::placement::{Column, Layout, Place, Tier};
use surgetank_pool_core::repair::{Job, Of, Repair};
use surgetank_pool_core::runs::Runs;

/// What a benefactor really is.
struct Real {
    life: u64,
    away: bool,
    has: BTreeSet<Of>,
}

struct World {
    random: Random,
    now: Instant,
    repair: Repair,
    real: BTreeMap<BenefactorId, Real>,
    groups: BTreeMap<Of, Group>,
    leaving: BTreeSet<BenefactorId>,
}

fn number(of: u64) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..60 {
        world.happens();
        world.step()?;
    }
    // Whoever is away returns, and everything comes to an end.
    let away: Vec<BenefactorId> = world.real.iter().filter(|(_, real)| real.away).map(|(id, _)| *id).collect();
    away.into_iter().for_each(|id| world.returns(id));
    for _ in 0..400 {
        world.step()?;
    }
    for id in world.leaving.clone() {
        let rest = world.groups.iter().find(|(of, group)| {
            let can_move = world.real[&id].has.contains(of) && world.substitute(&group.layout).is_some();
            can_move && group.layout.places().iter().any(|place| place.id == id)
        });
        if let Some((of, group)) = rest {
            return Err(format!("{of:?} stays at {id:?}, which leaves: {:?}", group.layout));
        }
    }
    Ok(())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let repair = Repair::new(super::repair::at(Bandwidth::from_mib_s(100)));
        let real = (0..3 + random.below(4))
            .map(|id| (BenefactorId(number(id)), Real { life: 1 + random.below(3), away: false, has: BTreeSet::new() }))
            .collect();
        let mut world =
            Self { random, now: Instant::ZERO, repair, real, groups: BTreeMap::new(), leaving: BTreeSet::new() };
        for index in 0..1 + world.random.below(6) {
            world.group(number(index));
        }
        for id in world.real.keys().copied().collect::<Vec<_>>() {
            world.is_there(id);
        }
        world
    }

    fn group(&mut self, index: u32) {
        let of =
            Of { group: GroupOf { inode: Inode(7), group: index }, version: Version::NONE.next(), by: SessionId(1) };
        let mut ids: Vec<BenefactorId> = self.real.keys().copied().collect();
        let copies = 1 + self.random.below(2);
        let mut columns = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let mut places = Vec::new();
            for _ in 0..copies {
                if ids.is_empty() {
                    return;
                }
                let id = ids.swap_remove(self.random.below(ids.len() as u64) as usize);
                let life = self.real[&id].life;
                // What it took in a former life was on SSD.
                let incarnation = Incarnation(if self.random.chance(0.3) { 1 + self.random.below(life) } else { life });
                self.real.get_mut(&id).into_iter().for_each(|real| real.has.extend([of]));
                places.push(Place { id, incarnation });
            }
            columns.push(Column { places, tier: Tier::Memory, weight: 1 });
        }
        let layout = Layout { columns, parity: None };
        self.repair.group(of, &layout, Bytes::from_mib(1));
        let (absent, holes) = (Runs::NONE, Runs::NONE);
        self.groups.insert(of, Group { layout, bytes: 1 << 20, digest: 0, by: of.by, absent, holes });
    }

    fn is_there(&mut self, id: BenefactorId) {
        let real = &self.real[&id];
        let place = Place { id, incarnation: Incarnation(real.life) };
        self.repair.alive(id, place.incarnation);
        self.repair.inventory(place, &real.has);
    }

    fn returns(&mut self, id: BenefactorId) {
        let random = &mut self.random;
        if let Some(real) = self.real.get_mut(&id) {
            (real.life, real.away) = (real.life + 1, false);
            real.has.retain(|_| random.chance(0.7));
        }
        self.is_there(id);
    }

    /// Something that nobody asked for.
    fn happens(&mut self) {
        let ids: Vec<BenefactorId> = self.real.keys().copied().collect();
        let id = ids[self.random.below(ids.len() as u64) as usize];
        match self.random.below(12) {
            0 if !self.real[&id].away => {
                self.real.get_mut(&id).into_iter().for_each(|real| real.away = true);
                self.repair.died(id);
            }
            1 | 2 if self.real[&id].away => self.returns(id),
            3 | 4 if self.leaving.len() < 2 => drop(self.leaving.insert(id)),
            5 => drop(self.leaving.remove(&id)),
            _ => {}
        }
        self.repair.leave(self.leaving.clone());
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += Duration::from_secs(1);
        if let Some((of, from, to)) = self.repair.next_renamed() {
            if self.leaving.contains(&from.id) {
                return Err(format!("{of:?} is named anew at {to:?}, which leaves"));
            }
            self.replace(of, from, to);
        }
        while let Some(job) = self.repair.next_job(self.now) {
            self.looks_right(&job)?;
            let to = self.substitute(&job.layout).filter(|_| self.random_good());
            // It is made of any place that has it, or of the one that leaves.
            let others = job.layout.places().into_iter().filter(|place| place.id != job.instead_of.id || job.is_there);
            let is_somewhere =
                { others }.any(|place| !self.real[&place.id].away && self.real[&place.id].has.contains(&job.of));
            match to.filter(|_| is_somewhere) {
                Some(to) => {
                    self.real.get_mut(&to.id).into_iter().for_each(|real| real.has.extend([job.of]));
                    self.replace(job.of, job.instead_of, to);
                    self.repair.ended(self.now, job.id, true);
                }
                None => self.repair.ended(self.now, job.id, false),
            }
        }
        self.none_goes_too_early()
    }

    fn random_good(&self) -> bool {
        !self.now.as_nanoseconds().is_multiple_of(3)
    }

    fn looks_right(&self, job: &Job) -> Result<(), String> {
        let (id, real) = (job.instead_of.id, &self.real[&job.instead_of.id]);
        let has = !real.away && real.has.contains(&job.of);
        match job.is_there {
            true if !self.leaving.contains(&id) => Err(format!("{:?} moves away from {id:?}, which stays", job.of)),
            true if !has => Err(format!("{:?} is to be fetched from {id:?}, which does not have it", job.of)),
            false if has => Err(format!("{:?} is made again, and {id:?} has it", job.of)),
            _ => Ok(()),
        }
    }

    /// Somebody that is no place of it, and stays.
    fn substitute(&self, layout: &Layout) -> Option<Place> {
        let others = layout.places();
        let may = |(id, real): &(&BenefactorId, &Real)| {
            !real.away && !self.leaving.contains(id) && !others.iter().any(|place| place.id == **id)
        };
        let found = self.real.iter().find(may);
        found.map(|(id, real)| Place { id: *id, incarnation: Incarnation(real.life) })
    }

    fn replace(&mut self, of: Of, from: Place, to: Place) {
        let Some(group) = self.groups.get_mut(&of) else { return };
        let places = group.layout.columns.iter_mut().flat_map(|column| &mut column.places);
        places.filter(|place| **place == from).for_each(|place| *place = to);
        self.repair.group(of, &group.layout, Bytes::from_mib(1));
    }

    /// What would be lost with whoever may go now.
    fn none_goes_too_early(&self) -> Result<(), String> {
        for id in &self.leaving {
            if !may_go(true, &Named::count(*id, self.groups.values()), false) {
                continue;
            }
            for (of, group) in &self.groups {
                let needs = |column: &Column| column.places.iter().any(|place| place.id == *id);
                if group.layout.columns.iter().any(needs) {
                    return Err(format!("{id:?} may go, and {of:?} names it: {:?}", group.layout));
                }
            }
        }
        Ok(())
    }
}
