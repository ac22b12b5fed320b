//! Files for several targets, of which one does not answer for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{Bytes, Instant};
use surgetank_pool_core::draining::{Config, Draining, Job};
use surgetank_pool_core::id::{Inode, MountId, Version};

const AT_ONCE: usize = 2;
const AGE_MAX: Duration = Duration::from_secs(5);

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let config = Config {
        at_once: AT_ONCE,
        age_max: AGE_MAX,
        pause: Duration::from_millis(100),
        pause_max: Duration::from_secs(2),
        beside: None,
        evict_to: 50,
        evict_above: 80,
    };
    let mut draining = Draining::new(config);
    let mut now = Instant::ZERO;
    let mut waiting: BTreeMap<Job, Instant> = BTreeMap::new();
    let mut under_way: Vec<(Job, Option<Instant>)> = Vec::new();
    let stuck = MountId(u32::try_from(random.below(3)).unwrap_or_default());
    let stuck_until = now + Duration::from_secs(20);
    let mut inodes = 0;
    for _ in 0..800 {
        now += Duration::from_millis(random.below(200));
        let is_stuck = |job: &Job| job.mount == stuck && now < stuck_until;
        if random.chance(0.3) {
            inodes += 1;
            let mount = MountId(u32::try_from(random.below(3)).unwrap_or_default());
            let job = Job { mount, inode: Inode(inodes), version: Version(1) };
            draining.wanted(job, Bytes::from_mib(1), now);
            waiting.insert(job, now);
            if random.chance(0.5) {
                draining.awaited(Inode(inodes));
            }
        }
        while let Some(job) = draining.next_job(now) {
            let since = waiting[&job];
            let idle = waiting.iter().filter(|(other, _)| !under_way.iter().any(|(on_way, _)| on_way == *other));
            let older =
                idle.filter(|(other, at)| other.mount == job.mount && **at < since && now.since(**at) >= AGE_MAX);
            if let Some((older, at)) = older.min_by_key(|(_, at)| **at) {
                return Err(format!("{older:?} has waited since {at:?}, and {job:?} goes first"));
            }
            let took = Duration::from_millis(10 + random.below(400));
            under_way.push((job, (!is_stuck(&job)).then_some(now + took)));
            let of_target = under_way.iter().filter(|(other, _)| other.mount == job.mount).count();
            if of_target > AT_ONCE {
                return Err(format!("{of_target} files are on their way to {:?}", job.mount));
            }
        }
        // A target that answers has a slot free only if nothing waits for it.
        let idle = |mount: MountId| {
            let own = under_way.iter().filter(|(job, _)| job.mount == mount).count();
            own < AT_ONCE && waiting.keys().filter(|job| job.mount == mount).count() > own
        };
        let well: BTreeSet<MountId> = (0..3).map(MountId).filter(|mount| *mount != stuck).collect();
        if let Some(mount) = well.into_iter().find(|mount| idle(*mount)) {
            return Err(format!("nothing goes to {mount:?} while {stuck:?} does not answer"));
        }
        for (job, until) in std::mem::take(&mut under_way) {
            match until {
                Some(until) if until <= now => {
                    draining.drained(&job);
                    waiting.remove(&job);
                }
                // It answers at last, that it failed.
                None if now >= stuck_until => draining.failed(now, &job),
                _ => under_way.push((job, until)),
            }
        }
    }
    Ok(())
}
