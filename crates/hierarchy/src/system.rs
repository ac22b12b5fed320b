//! Two levels of caches on several servers.

use std::collections::BTreeMap;

use surgetank_allocation::Hierarchy;
use surgetank_allocation::hull::Hull;
use surgetank_mrc::{Held, Resident};

use crate::place::{Part, Routes, key, owner, part_of, parts, spread};
use crate::planted::{Bug, planted};

/// Servers and who reaches them. Sizes are in blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// What the second level holds of the first one.
    pub hierarchy: Hierarchy,
    /// The second level's policy; the first one is under LRU.
    pub behind: Replacement,
    /// Bytes of a block.
    pub block: u64,
    /// First-level servers' caches.
    pub level1: Vec<u64>,
    /// Second-level servers' caches.
    pub level2: Vec<u64>,
    /// By application.
    pub reach: Vec<Reach>,
}

impl Layout {
    /// The second-level cache that an application reaches.
    pub(crate) fn reached(&self, reach: &Reach) -> u64 {
        reach.level2.iter().map(|server| self.level2[*server]).sum()
    }
}

/// Which servers an application uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The first-level one.
    pub level1: usize,
    /// Second-level ones, ascending.
    pub level2: Vec<usize>,
}

/// Which block a full cache evicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Replacement {
    /// The one that was not used for the longest time.
    Lru,
    /// The one of the least combined recency and frequency, ages in accesses to the whole system.
    Lrfu {
        /// How fast uses lose their weight.
        lambda: f64,
    },
}

/// Whether applications have caches of their own on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// As large as they are granted.
    Partitioned,
    /// None has.
    Shared,
}

/// What an application may use of partitioned levels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// Blocks of its first-level server.
    pub level1: u64,
    /// Blocks of second-level servers, by their number.
    pub level2: Vec<(usize, u64)>,
    /// Shares are split in two to miss what this says (Talus, BS15).
    pub hull: Option<Hull>,
    /// How far: 0 not at all, 1 as the hull says. What is in between is on the way.
    pub split: f64,
}

/// What answers an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The first level.
    Level1,
    /// The second level.
    Level2,
    /// The disk.
    Disk,
}

/// The caches.
#[derive(Debug)]
pub struct System {
    layout: Layout,
    sharing: [Sharing; 2],
    shared: [Vec<Resident>; 2],
    members: Vec<Member>,
    /// Accesses so far.
    now: u64,
    rerouted: u64,
}

#[derive(Debug)]
struct Member {
    routes: Routes,
    parts: Vec<Part>,
    caches: Vec<Caches>,
    /// What blocks were worth that moved from the second level to the first one.
    lent: BTreeMap<u64, f64>,
}

/// Of one part.
#[derive(Debug)]
struct Caches {
    first: Resident,
    /// By server.
    second: Vec<Resident>,
}

impl System {
    /// Empty caches. Partitioned levels have nothing until they are granted something.
    #[must_use]
    pub fn new(layout: Layout, sharing: [Sharing; 2]) -> Self {
        let shared = [
            layout.level1.iter().map(|size| Resident::lru(*size)).collect(),
            layout.level2.iter().map(|size| layout.behind.empty(*size)).collect(),
        ];
        let members = layout.reach.iter().map(|reach| Member::new(&layout, reach)).collect();
        Self { layout, sharing, shared, members, now: 0, rerouted: 0 }
    }

    /// An equal split of each server among those who reach it.
    #[must_use]
    pub fn fair_share(layout: &Layout) -> Vec<Grant> {
        let users = |server: usize| layout.reach.iter().filter(|reach| reach.level2.contains(&server)).count() as u64;
        let of = |reach: &Reach| Grant {
            level1: layout.level1[reach.level1]
                / layout.reach.iter().filter(|other| other.level1 == reach.level1).count() as u64,
            level2: reach.level2.iter().map(|server| (*server, layout.level2[*server] / users(*server))).collect(),
            hull: None,
            split: 0.0,
        };
        layout.reach.iter().map(of).collect()
    }

    /// Everything that each application reaches: more than there is, unless it is alone.
    #[must_use]
    pub fn everything(layout: &Layout) -> Vec<Grant> {
        let of = |reach: &Reach| Grant {
            level1: layout.level1[reach.level1],
            level2: reach.level2.iter().map(|server| (*server, layout.level2[*server])).collect(),
            hull: None,
            split: 0.0,
        };
        layout.reach.iter().map(of).collect()
    }

    /// Blocks that were dropped because another server caches them now.
    #[must_use]
    pub fn rerouted(&self) -> u64 {
        self.rerouted
    }

    /// Changes what applications have. What was used last stays; what a smaller first level evicts goes to an exclusive second one; what another
    /// server or another part of a split share is to cache is dropped there, or moves.
    pub fn apply(&mut self, grants: &[Grant]) {
        for (application, grant) in grants.iter().enumerate() {
            self.rerouted += self.members[application].apply(&self.layout, self.now, grant);
        }
    }

    /// Reads or writes a block, which is below [`BLOCKS_MAX`](crate::BLOCKS_MAX).
    pub fn access(&mut self, application: usize, block: u64) -> Answer {
        self.now += 1;
        let (now, hash) = (self.now, spread(block));
        let key = if planted(Bug::BlocksConfused) { block } else { key(application, block) };
        let fresh = Held { key, standing: now as f64 };
        if self.first(application, hash).hit(key, now) {
            return Answer::Level1;
        }
        match self.layout.hierarchy {
            Hierarchy::Exclusive => {
                let second = self.second(application, hash);
                let before = if planted(Bug::HitStaysBehind) {
                    second.hit(key, now).then_some(now as f64)
                } else {
                    second.remove(key)
                };
                if let (Some(worth), Replacement::Lrfu { .. }) = (before, self.layout.behind) {
                    self.members[application].lent.insert(key, worth);
                }
                if let Some(evicted) = self.first(application, hash).insert(fresh) {
                    self.demote(evicted);
                }
                if before.is_some() { Answer::Level2 } else { Answer::Disk }
            }
            Hierarchy::Inclusive => {
                let second = self.second(application, hash);
                let hit = second.hit(key, now);
                if !hit && !planted(Bug::NothingTakenIn) {
                    let standing = second.standing(None, now);
                    second.insert(Held { key, standing });
                }
                self.first(application, hash).insert(fresh);
                if hit { Answer::Level2 } else { Answer::Disk }
            }
        }
    }

    /// What the first level evicts comes into the second one (DEMOTE, WW02).
    fn demote(&mut self, evicted: Held) {
        if planted(Bug::NotDemoted) {
            return;
        }
        let (application, block) = owner(evicted.key);
        let lent = self.members[application].lent.remove(&evicted.key);
        let second = self.second(application, spread(block));
        let standing = second.standing(lent, evicted.standing as u64);
        second.insert(Held { key: evicted.key, standing });
    }

    fn first(&mut self, application: usize, hash: u64) -> &mut Resident {
        let member = &mut self.members[application];
        match self.sharing[0] {
            Sharing::Shared => &mut self.shared[0][self.layout.reach[application].level1],
            Sharing::Partitioned => &mut member.caches[part_of(&member.parts, hash)].first,
        }
    }

    fn second(&mut self, application: usize, hash: u64) -> &mut Resident {
        let member = &mut self.members[application];
        match self.sharing[1] {
            Sharing::Shared => {
                let reached = &self.layout.reach[application].level2;
                &mut self.shared[1][reached[(hash % reached.len() as u64) as usize]]
            }
            Sharing::Partitioned => {
                let server = if planted(Bug::OneServer) {
                    self.layout.reach[application].level2[0]
                } else {
                    member.routes.of(hash)
                };
                &mut member.caches[part_of(&member.parts, hash)].second[server]
            }
        }
    }

    /// Which levels hold a block.
    #[must_use]
    pub fn holds(&mut self, application: usize, block: u64) -> [bool; 2] {
        let (key, hash) = (key(application, block), spread(block));
        [self.first(application, hash).holds(key), self.second(application, hash).holds(key)]
    }

    /// Blocks that an application's own caches hold in both levels.
    #[must_use]
    pub fn held(&self, application: usize) -> [u64; 2] {
        let caches = &self.members[application].caches;
        let first = caches.iter().map(|caches| caches.first.held()).sum();
        [first, caches.iter().flat_map(|caches| &caches.second).map(Resident::held).sum()]
    }

    /// The blocks of an application's own caches, by level.
    #[must_use]
    pub fn blocks(&self, application: usize) -> [Vec<u64>; 2] {
        let caches = &self.members[application].caches;
        let blocks = |cache: &Resident| cache.blocks().into_iter().map(|held| owner(held.key).1);
        [
            caches.iter().flat_map(|caches| blocks(&caches.first)).collect(),
            caches.iter().flat_map(|caches| &caches.second).flat_map(blocks).collect(),
        ]
    }
}

impl Replacement {
    fn empty(self, size: u64) -> Resident {
        match self {
            Self::Lru => Resident::lru(size),
            Self::Lrfu { lambda } => Resident::lrfu(size, lambda),
        }
    }
}

impl Member {
    fn new(layout: &Layout, reach: &Reach) -> Self {
        let routes = Routes::new(&reach.level2.iter().map(|server| (*server, 0)).collect::<Vec<_>>(), None);
        let parts = parts((0, 0), layout.hierarchy, None, 1.0);
        let caches = empty(layout, &parts, &[]);
        Self { routes, parts, caches, lent: BTreeMap::new() }
    }

    /// Takes over what it may keep; how many blocks another server is to cache.
    fn apply(&mut self, layout: &Layout, now: u64, grant: &Grant) -> u64 {
        let shares = (grant.level1, grant.level2.iter().map(|(_, blocks)| blocks).sum());
        let parts =
            parts(shares, layout.hierarchy, grant.hull.as_ref().map(|hull| (hull, grant.split)), layout.block as f64);
        let routes = Routes::new(&grant.level2, Some(&self.routes));
        if parts == self.parts && routes == self.routes {
            return 0;
        }
        let behind = layout.behind.empty(0);
        let caches = empty(layout, &parts, &grant.level2);
        let before = std::mem::replace(&mut self.caches, caches);
        (self.routes, self.parts) = (routes, parts);
        let mut firsts: Vec<Held> = before.iter().flat_map(|caches| caches.first.blocks()).collect();
        let mut seconds: Vec<(Option<usize>, Held)> = Vec::new();
        for caches in &before {
            for (server, cache) in caches.second.iter().enumerate() {
                seconds.extend(cache.blocks().into_iter().map(|held| (Some(server), held)));
            }
        }
        firsts.sort_unstable_by(|a, b| a.standing.total_cmp(&b.standing));
        if planted(Bug::NewestLost) {
            firsts.reverse();
        }
        for held in firsts {
            let hash = spread(owner(held.key).1);
            let Some(evicted) = self.caches[part_of(&self.parts, hash)].first.insert(held) else { continue };
            if layout.hierarchy == Hierarchy::Exclusive && !planted(Bug::ShrinkDrops) {
                let lent = self.lent.remove(&evicted.key);
                let standing = behind.standing(lent, evicted.standing.min(now as f64) as u64);
                seconds.push((None, Held { standing, ..evicted }));
            }
        }
        seconds.sort_by(|(_, a), (_, b)| a.standing.total_cmp(&b.standing));
        let mut rerouted = 0;
        for (server, held) in seconds {
            let hash = spread(owner(held.key).1);
            let route = self.routes.of(hash);
            if server.is_some_and(|server| server != route) {
                rerouted += 1;
                continue;
            }
            self.caches[part_of(&self.parts, hash)].second[route].insert(held);
        }
        rerouted
    }
}

/// Empty caches of parts; each has of every server what the application has of it, in proportion.
fn empty(layout: &Layout, parts: &[Part], servers: &[(usize, u64)]) -> Vec<Caches> {
    let all: u64 = servers.iter().map(|(_, blocks)| blocks).sum();
    let mut left: Vec<u64> = vec![0; layout.level2.len()];
    servers.iter().for_each(|(server, blocks)| left[*server] = *blocks);
    let last = parts.len() - 1;
    let of = |(index, part): (usize, &Part)| {
        let mut second: Vec<Resident> = layout.level2.iter().map(|_| layout.behind.empty(0)).collect();
        for (server, blocks) in servers {
            // The last part takes what rounding leaves.
            let share = if index == last {
                left[*server]
            } else {
                (u128::from(part.second) * u128::from(*blocks)).checked_div(u128::from(all)).unwrap_or(0) as u64
            };
            left[*server] -= share;
            second[*server] = layout.behind.empty(share);
        }
        Caches { first: Resident::lru(part.first), second }
    };
    parts.iter().enumerate().map(of).collect()
}
