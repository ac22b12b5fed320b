//! Benefactors that live, die and are cut off, beside a store that loses leases of the living.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_model::random::Random;
use surgetank_pool_core::id::{BenefactorId, Incarnation};
use surgetank_pool_core::membership::{Change, Config, Membership};

/// What a benefactor really is.
#[derive(Clone, Copy, Debug)]
struct Real {
    incarnation: u64,
    alive: bool,
    leased: bool,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let config = Config::default();
    let mut membership = Membership::new(config);
    let mut now = Instant::ZERO;
    let count = 1 + random.below(12);
    let mut real: BTreeMap<u64, Real> = BTreeMap::new();
    let mut dead: BTreeMap<u64, u64> = BTreeMap::new();
    // When the store lost leases of benefactors that are well, all at the same time.
    let mut store_slow_until = Instant::ZERO;
    for id in 0..count {
        real.insert(id, Real { incarnation: 1, alive: true, leased: true });
        membership.leased(now, benefactor(id), Incarnation(1));
    }
    for _ in 0..600 {
        now += Duration::from_millis(random.below(700));
        membership.tick(now);
        while let Some((id, _)) = membership.next_probe(now) {
            let of = real[&u64::from(id.0)];
            // A store that is slow has a busy network beside it: a third of the probes fail.
            let reached = of.alive && !(now < store_slow_until && random.chance(0.9));
            if reached {
                membership.probe_answered(now, id, Incarnation(of.incarnation));
            } else if random.chance(0.5) {
                membership.probe_failed(now, id);
            }
        }
        let id = random.below(count);
        let of = real.get_mut(&id).ok_or("nobody")?;
        match random.below(60) {
            0 if of.alive => of.alive = false,
            1 if !of.alive && now >= store_slow_until => {
                of.incarnation += 1;
                (of.alive, of.leased) = (true, true);
                membership.leased(now, benefactor(id), Incarnation(of.incarnation));
            }
            // A store that is slow for longer than the grace is not waited for.
            2 if random.chance(0.3) && now >= store_slow_until + config.grace => {
                store_slow_until = now + Duration::from_secs(20);
                for (id, of) in &mut real {
                    if std::mem::take(&mut of.leased) {
                        membership.lease_lost(now, benefactor(*id), Incarnation(of.incarnation));
                    }
                }
            }
            _ => {}
        }
        if now >= store_slow_until {
            for (id, of) in &mut real {
                match (of.alive, of.leased) {
                    (true, false) => {
                        of.leased = true;
                        membership.leased(now, benefactor(*id), Incarnation(of.incarnation));
                    }
                    (false, true) => {
                        of.leased = false;
                        membership.lease_lost(now, benefactor(*id), Incarnation(of.incarnation));
                    }
                    _ => {}
                }
            }
        }
        while let Some(change) = membership.next_change() {
            match change {
                Change::Died(id, incarnation) => {
                    let of = real[&u64::from(id.0)];
                    if of.alive && of.incarnation == incarnation.0 {
                        return Err(format!("{id} is declared dead at {now:?}, and it is well: {of:?}"));
                    }
                    if dead.insert(u64::from(id.0), incarnation.0) == Some(incarnation.0) {
                        return Err(format!("{id} died twice"));
                    }
                }
                Change::Returned { id, incarnation, former } => {
                    if former >= incarnation || membership.incarnation(id) != Some(incarnation) {
                        return Err(format!("{id} returned in {incarnation}, after {former}"));
                    }
                    dead.remove(&u64::from(id.0));
                }
                Change::Joined(id, _) => drop(dead.remove(&u64::from(id.0))),
                Change::Left(_) | Change::HoldBegan { .. } | Change::HoldEnded => {}
            }
        }
    }
    // What stays dead is declared dead, and a hold ends.
    for _ in 0..400 {
        now += Duration::from_millis(500);
        for (id, of) in &mut real {
            match (of.alive, of.leased) {
                (true, false) => membership.leased(now, benefactor(*id), Incarnation(of.incarnation)),
                (false, true) => membership.lease_lost(now, benefactor(*id), Incarnation(of.incarnation)),
                _ => continue,
            }
            of.leased = of.alive;
        }
        membership.tick(now);
        while let Some((id, _)) = membership.next_probe(now) {
            let of = real[&u64::from(id.0)];
            if of.alive {
                membership.probe_answered(now, id, Incarnation(of.incarnation));
            }
        }
    }
    for (id, of) in &real {
        if membership.incarnation(benefactor(*id)).is_some() != of.alive {
            return Err(format!("{id} is {of:?}, and the pool says {:?}", membership.state(benefactor(*id))));
        }
    }
    if membership.holds() { Err("the hold never ends".to_owned()) } else { Ok(()) }
}

fn benefactor(id: u64) -> BenefactorId {
    BenefactorId(u32::try_from(id).unwrap_or_default())
}
