//! What goes wrong, and when. A run begins with its world; what promises allow to be lost follows from the faults alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{EventQueue, Instant};
use surgetank_pool_core::id::{BenefactorId, Inode};
use surgetank_pool_core::meta::operation::Operation;
use surgetank_pool_core::meta::store::{MemoryStore, Write};
use surgetank_pool_core::meta::value::{Kind, Node as Inner, Value};
use surgetank_pool_core::meta::{Key, Name};
use surgetank_pool_core::placement::Media;

use super::clients::Client;
use super::drains::Drain;
use super::history::History;
use super::managers::Manager;
use super::nodes::Node;
use super::oracle::{Oracle, Policy};
use super::wardens::Warden;
use super::{Asker, Event, MOUNT, ROOT, Report, TICK, World};
use crate::support::target::Target;

/// See the module.
pub struct Faults {
    /// Messages are late, lost and doubled.
    pub noisy: bool,
    pub calm: bool,
    /// Nothing fails, and nobody does anything, but what a scene says.
    pub scripted: bool,
    /// Every file is being unlinked: also those whose creation comes late.
    pub unlinking: bool,
    pub store_gone: bool,
    store_back: Instant,
    pub target_gone: Instant,
    /// Pairs of client and benefactor that do not reach each other until then.
    cuts: BTreeMap<(usize, BenefactorId), Instant>,
    /// A benefactor whose memory was lost, its former life, and when: until everything promised has its copies again, no other may be lost.
    wounded: Option<(BenefactorId, u64, Instant)>,
    pub lost_writers: BTreeSet<Inode>,
    /// Whether this run has power cuts of everybody.
    power_cuts: bool,
    /// A benefactor that is taken out; one in each run goes at most.
    pub taken_out: Option<BenefactorId>,
}

impl Faults {
    pub fn is_cut(&self, client: usize, id: BenefactorId, now: Instant) -> bool {
        self.cuts.get(&(client, id)).is_some_and(|until| *until > now)
    }

    /// They do not reach each other until then.
    pub fn cut(&mut self, client: usize, id: BenefactorId, until: Instant) {
        self.cuts.insert((client, id), until);
    }
}

impl World {
    pub(super) fn new(seed: u64, caches: bool) -> Self {
        let mut random = Random::from_seed(seed);
        let count = 4 + u32::try_from(random.below(4)).unwrap_or_default();
        let domains = 3 + random.below(u64::from(count) - 3);
        let nodes = (0..count).map(|id| {
            let domain = u64::from(id) % domains;
            let has_ssd = random.chance(0.7);
            let memory = 3 * if has_ssd { 4 + random.below(20) } else { 40 + random.below(40) };
            (BenefactorId(id), Node::new(id, u32::try_from(domain).unwrap_or_default(), has_ssd, memory))
        });
        let nodes: BTreeMap<BenefactorId, Node> = nodes.collect();
        let ssd_domains: BTreeSet<_> = nodes.values().filter(|node| node.has_ssd).map(|node| node.domain).collect();
        let any = |copies| Policy { copies, media: Media::Any };
        let mut policies = vec![any(1), any(2), any(2)];
        if domains >= 4 {
            policies.push(any(3));
        }
        if ssd_domains.len() > 2 {
            policies.extend([Policy { copies: 1, media: Media::Ssd }, Policy { copies: 2, media: Media::Ssd }]);
        }
        let clients = 2 + random.below(2);
        let power_cuts = random.chance(0.3);
        let mut world = Self {
            random,
            now: Instant::ZERO,
            queue: EventQueue::default(),
            store: MemoryStore::default(),
            nodes,
            managers: (0..2).map(|at| Manager::new(at + 1)).collect(),
            clients: (0..clients).map(|at| Client::new(at + 10)).collect(),
            warden: Warden::new(1),
            drain: Drain::new(1),
            target: Target::default(),
            temporary: BTreeMap::new(),
            oracle: Oracle::new(policies),
            faults: Faults {
                noisy: true,
                calm: false,
                scripted: false,
                unlinking: false,
                store_gone: false,
                store_back: Instant::ZERO,
                target_gone: Instant::ZERO,
                cuts: BTreeMap::new(),
                wounded: None,
                lost_writers: BTreeSet::new(),
                power_cuts,
                taken_out: None,
            },
            history: History::new(seed, caches),
            numbers: 1000,
            wrong: None,
            report: Report::default(),
        };
        let root = Inner::new(Kind::Directory, MOUNT, None, (0o755, 0, 0));
        world.put(vec![Write::Put(Key::Node(ROOT), Value::Node(root))]);
        let ids: Vec<BenefactorId> = world.nodes.keys().copied().collect();
        ids.into_iter().for_each(|id| world.start_node(id));
        world.report.crashes = 0;
        world.queue.push(Instant::ZERO + TICK, Event::Tick);
        world
    }

    pub(super) fn tick_faults(&mut self) {
        if self.faults.store_gone && (self.faults.store_back <= self.now || self.faults.calm) {
            self.faults.store_gone = false;
        }
        self.heal();
        if self.faults.unlinking && self.random.chance(0.1) {
            self.unlink_all();
        }
        if self.faults.calm || self.faults.scripted {
            return;
        }
        let ids: Vec<BenefactorId> = self.nodes.keys().copied().collect();
        let Some(id) = self.pick(&ids) else { return };
        let client = self.random.below(self.clients.len() as u64) as usize;
        match self.random.below(400) {
            0..=7 => self.crash(id),
            8..=10 => {
                let until = self.now + self.milliseconds(300, 6000);
                self.faults.cut(client, id, until);
            }
            11..=13 => {
                let until = self.now + self.milliseconds(500, 6000);
                let factor = 10 + u32::try_from(self.random.below(2000)).unwrap_or_default();
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.slow = (factor, until);
                }
            }
            14 | 15 => {
                let until = self.now + self.milliseconds(500, 5000);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.cut_off = until;
                }
            }
            16..=18 => {
                let at = self.random.below(self.managers.len() as u64) as usize;
                self.stop_manager(at);
            }
            19 => self.stop_warden(),
            20 | 21 => self.stop_drain(),
            22 | 23 => self.faults.target_gone = self.now + self.milliseconds(500, 8000),
            24 => self.clients[client].stalled = self.now + self.milliseconds(500, 6000),
            25 if !self.faults.store_gone => {
                self.faults.store_gone = true;
                self.faults.store_back = self.now + self.milliseconds(500, 5000);
            }
            26 | 27 if !self.faults.store_gone => self.lose_all_leases(),
            28 if self.faults.power_cuts => self.cut_power(),
            29..=31 => self.take_out(id),
            _ => {}
        }
    }

    /// A store with a slow disk revokes all leases of benefactors that are well.
    pub(super) fn lose_all_leases(&mut self) {
        self.report.lease_losses += 1;
        self.end_leases();
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let back = self.now + self.milliseconds(500, 5000);
            if let Some(node) = self.nodes.get_mut(&id) {
                (node.leased, node.cut_off) = (false, back);
            }
        }
    }

    /// One benefactor at a time may lose its memory.
    fn crash(&mut self, id: BenefactorId) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.holdings.is_some()) else { return };
        if self.faults.wounded.is_some() {
            return;
        }
        self.faults.wounded = Some((id, node.incarnation, self.now));
        self.oracle.memory_lost(1);
        self.stop_node(id);
        let up = self.random.below(3);
        let (from, to) = if up == 0 { (10, 300) } else { (500, 9000) };
        self.later(from, to, Event::Up(id));
    }

    /// Everything stops at once.
    fn cut_power(&mut self) {
        self.report.power_cuts += 1;
        self.oracle.memory_lost(u32::MAX);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            let running = self.nodes[&id].holdings.is_some();
            self.stop_node(id);
            if running {
                self.later(500, 4000, Event::Up(id));
            }
        }
    }

    /// Whether everything that was promised has its copies again, as a census of what the benefactors physically have tells.
    fn heal(&mut self) {
        let Some((id, life, since)) = self.faults.wounded else { return };
        let registered = match self.store.get(&Key::Benefactor(id)).map(|stored| &stored.value) {
            Some(Value::Benefactor(place)) => place.incarnation.0 == life,
            _ => false,
        };
        let long_ago = self.now.since(since) > Duration::from_secs(4);
        if long_ago && !registered && self.now.as_nanoseconds().is_multiple_of(500_000_000) && self.census().is_ok() {
            self.faults.wounded = None;
        }
    }

    /// No more faults: what has died comes back.
    pub(super) fn calm(&mut self) {
        (self.faults.calm, self.faults.noisy) = (true, false);
        self.faults.cuts.clear();
        self.faults.target_gone = self.now;
        let ids: Vec<BenefactorId> = self.nodes.keys().copied().collect();
        for id in ids {
            if let Some(node) = self.nodes.get_mut(&id) {
                (node.cut_off, node.slow) = (self.now, (1, self.now));
            }
            self.later(10, 5000, Event::Up(id));
        }
        self.clients.iter_mut().for_each(|client| client.stalled = self.now);
    }

    /// Every file is unlinked, and every session ends.
    pub(super) fn unlink_all(&mut self) {
        if !std::mem::replace(&mut self.faults.unlinking, true) {
            // Drafts whose withdrawal was lost end with their sessions.
            (0..self.clients.len()).for_each(|at| self.end_session(at));
        }
        let names: Vec<Name> = super::all_keys(&self.store)
            .filter_map(|(key, _)| match key {
                Key::Entry(_, name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        for name in names {
            let (request, journal) = (self.number(), self.number());
            self.ask_once(Asker::Janitor, request, &Operation::Unlink { at: (ROOT, name), journal });
        }
    }
}
