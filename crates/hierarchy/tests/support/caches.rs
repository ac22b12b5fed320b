//! A system beside lists that do what caches are said to do.

use surgetank_allocation::Hierarchy;
use surgetank_hierarchy::{Answer, Grant, Layout, Reach, Replacement, Sharing, System};
use surgetank_model::random::Random;

use super::ensure;

/// The oldest in front.
#[derive(Clone, Debug, Default)]
struct List {
    size: usize,
    blocks: Vec<(usize, u64)>,
}

impl List {
    fn remove(&mut self, block: (usize, u64)) -> bool {
        let at = self.blocks.iter().position(|other| *other == block);
        at.inspect(|at| _ = self.blocks.remove(*at)).is_some()
    }

    /// As the newest; what no longer fits.
    fn push(&mut self, block: (usize, u64)) -> Option<(usize, u64)> {
        self.blocks.push(block);
        (self.blocks.len() > self.size).then(|| self.blocks.remove(0))
    }
}

struct Naive {
    hierarchy: Hierarchy,
    /// By application, or one for all of them.
    lists: Vec<[List; 2]>,
    shared: bool,
}

impl Naive {
    fn access(&mut self, application: usize, block: u64) -> Answer {
        let block = (application, block);
        let [first, second] = &mut self.lists[if self.shared { 0 } else { application }];
        if first.remove(block) {
            first.push(block);
            return Answer::Level1;
        }
        let hit = second.remove(block);
        let evicted = first.push(block);
        match (self.hierarchy, evicted) {
            (Hierarchy::Exclusive, Some(evicted)) => _ = second.push(evicted),
            (Hierarchy::Exclusive, None) => {}
            (Hierarchy::Inclusive, _) => _ = second.push(block),
        }
        if hit { Answer::Level2 } else { Answer::Disk }
    }

    fn resize(&mut self, application: usize, level1: u64, level2: u64) {
        let [first, second] = &mut self.lists[application];
        (first.size, second.size) = (level1 as usize, level2 as usize);
        while first.blocks.len() > first.size {
            let evicted = first.blocks.remove(0);
            if self.hierarchy == Hierarchy::Exclusive {
                second.blocks.push(evicted);
            }
        }
        let excess = second.blocks.len().saturating_sub(second.size);
        second.blocks.drain(..excess);
    }
}

/// One server a level: every answer is the lists', whatever is resized in between.
pub fn lists(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let hierarchy = if random.chance(0.5) { Hierarchy::Exclusive } else { Hierarchy::Inclusive };
    let shared = random.chance(0.25);
    let layout = Layout {
        hierarchy,
        behind: Replacement::Lru,
        block: 4096,
        level1: vec![1 + random.below(30)],
        level2: vec![1 + random.below(60)],
        reach: vec![Reach { level1: 0, level2: vec![0] }; 3],
    };
    let sizes = [layout.level1[0] as usize, layout.level2[0] as usize];
    let list = |level: usize| List { size: if shared { sizes[level] } else { 0 }, blocks: Vec::new() };
    let mut naive = Naive { hierarchy, lists: vec![[list(0), list(1)]; 3], shared };
    let sharing = if shared { Sharing::Shared } else { Sharing::Partitioned };
    let mut system = System::new(layout, [sharing; 2]);
    let blocks = 5 + random.below(60);
    let mut grants = vec![Grant { level1: 0, level2: vec![(0, 0)], hull: None, split: 0.0 }; 3];
    for step in 0..3000 {
        if !shared && step % 100 == 0 {
            for (application, grant) in grants.iter_mut().enumerate() {
                *grant =
                    Grant { level1: random.below(20), level2: vec![(0, random.below(40))], hull: None, split: 0.0 };
                naive.resize(application, grant.level1, grant.level2[0].1);
            }
            system.apply(&grants);
        }
        let application = random.below(3) as usize;
        let range = 1 + random.below(blocks);
        let block = random.below(range);
        let (ours, theirs) = (system.access(application, block), naive.access(application, block));
        ensure(ours == theirs, || format!("step {step}: {ours:?}, not {theirs:?} for block {block} of {application}"))?;
    }
    Ok(())
}

/// Several servers, split shares, LRU and LRFU: what must hold of the contents after every change.
pub fn servers(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let hierarchy = if random.chance(0.7) { Hierarchy::Exclusive } else { Hierarchy::Inclusive };
    let behind = if random.chance(0.5) { Replacement::Lru } else { Replacement::Lrfu { lambda: 0.01 } };
    let layout = Layout {
        hierarchy,
        behind,
        block: 1,
        level1: vec![400, 400],
        level2: vec![500; 3],
        reach: vec![
            Reach { level1: 0, level2: vec![0, 1] },
            Reach { level1: 0, level2: vec![1, 2] },
            Reach { level1: 1, level2: vec![0, 1, 2] },
        ],
    };
    let curve = surgetank_allocation::MissCurve::new(&[
        (surgetank_model::Bytes::new(300), 0.9),
        (surgetank_model::Bytes::new(310), 0.3),
        (surgetank_model::Bytes::new(900), 0.1),
    ]);
    let hull = surgetank_allocation::hull::Hull::of(&curve.map_err(|error| error.to_string())?);
    let mut system = System::new(layout.clone(), [Sharing::Partitioned; 2]);
    let mut last = [None; 3];
    for _ in 0..12 {
        let grants: Vec<Grant> = layout
            .reach
            .iter()
            .map(|reach| Grant {
                level1: 20 + random.below(180),
                level2: reach.level2.iter().map(|server| (*server, random.below(160))).collect(),
                hull: random.chance(0.5).then(|| hull.clone()),
                split: random.unit(),
            })
            .collect();
        let before: Vec<bool> = (0..3)
            .map(|application| last[application].is_some_and(|block| system.holds(application, block)[0]))
            .collect();
        system.apply(&grants);
        for (application, grant) in grants.iter().enumerate() {
            let [first, second] = system.blocks(application);
            let room = grant.level2.iter().map(|(_, blocks)| blocks).sum::<u64>();
            ensure(first.len() as u64 <= grant.level1 && second.len() as u64 <= room, || {
                format!("application {application} holds {} and {} of {grant:?}", first.len(), second.len())
            })?;
            if hierarchy == Hierarchy::Exclusive {
                ensure(!first.iter().any(|block| second.contains(block)), || "a block is at both levels".to_owned())?;
            }
            if let Some(block) = last[application].filter(|_| before[application]) {
                // A split share may have moved it to a part of another size, but one that has room for it.
                let held = system.holds(application, block);
                ensure(held != [false; 2] || grant.hull.is_some(), || {
                    format!("application {application} lost the block that it used last: {before:?}, {grant:?}")
                })?;
            }
        }
        for _ in 0..1500 {
            let application = random.below(3) as usize;
            let block = random.below(700);
            let held = system.holds(application, block);
            let answer = system.access(application, block);
            let expected = match held {
                [true, _] => Answer::Level1,
                [false, true] => Answer::Level2,
                [false, false] => Answer::Disk,
            };
            ensure(answer == expected, || format!("{answer:?} for a block that is held as {held:?}"))?;
            last[application] = Some(block);
            if hierarchy == Hierarchy::Inclusive && grants[application].hull.is_none() {
                let [_, second] = system.holds(application, block);
                let room = grants[application].level2.iter().all(|(_, blocks)| *blocks > 0);
                ensure(answer != Answer::Disk || second || !room, || "what was read is not at level 2".to_owned())?;
            }
        }
        if hierarchy == Hierarchy::Exclusive {
            for application in 0..3 {
                let [first, second] = system.blocks(application);
                ensure(!first.iter().any(|block| second.contains(block)), || "a block is at both levels".to_owned())?;
            }
        }
    }
    Ok(())
}
