//! Benefactors: their memory, which ends with the process, and their SSD, which does not.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::buffers::{Buffers, Piece};
use surgetank_pool_core::benefactor::holdings::{
    Admission, Effect, Entry, GroupOf, Holdings, Instance, Location, Put, SealOrder, Table,
};
use surgetank_pool_core::client::PutAnswer;
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::placement::{Candidate, Lent, Place};

use super::clients::FromNode;
use super::{CHUNK, Event, World};

/// Bytes of an SSD that are free: it always has room.
pub(super) const FREE_SSD: u64 = u64::MAX;

/// What a benefactor is asked.
#[derive(Clone)]
pub enum ToNode {
    Put { put: Put, durable: bool, damaged: bool, from: Option<Place> },
    Withdraw(Place, Instance),
    Seal { at: Place, of: GroupOf, version: Version, session: SessionId, order: SealOrder, table: Table },
    InStore(GroupOf, std::collections::BTreeSet<(Version, SessionId)>),
}

/// A chunk on its way from memory to SSD.
pub struct Moving {
    incarnation: u64,
    instance: Instance,
    piece: Piece,
}

/// See the module.
pub struct Node {
    pub id: BenefactorId,
    pub domain: Domain,
    pub has_ssd: bool,
    pub memory_chunks: u64,
    pub incarnation: u64,
    /// `None`: the process is dead.
    pub holdings: Option<Holdings>,
    /// The content at each place in memory.
    pub memory: BTreeMap<(u8, u64), u64>,
    pub ssd: BTreeMap<Instance, (Inode, Entry, u64)>,
    pub log: BTreeMap<(GroupOf, Version, SessionId), Table>,
    /// Whoever waits until a chunk is on SSD.
    waiting: BTreeMap<Instance, Vec<usize>>,
    pub leased: bool,
    /// It was taken out, and was told that it may go.
    pub gone: bool,
    /// It cannot reach the store until then, and renews no lease.
    pub cut_off: Instant,
    pub lease_until: Instant,
    /// Answers take so many times longer until then.
    pub slow: (u32, Instant),
}

impl Node {
    pub fn new(id: u32, domain: u32, has_ssd: bool, memory_chunks: u64) -> Self {
        Self {
            id: BenefactorId(id),
            domain: Domain(domain),
            has_ssd,
            memory_chunks,
            incarnation: 0,
            holdings: None,
            memory: BTreeMap::new(),
            ssd: BTreeMap::new(),
            log: BTreeMap::new(),
            waiting: BTreeMap::new(),
            leased: false,
            gone: false,
            cut_off: Instant::ZERO,
            lease_until: Instant::ZERO,
            slow: (1, Instant::ZERO),
        }
    }

    pub fn place(&self) -> Place {
        Place { id: self.id, incarnation: Incarnation(self.incarnation) }
    }

    /// Whether it physically has a chunk; `on_ssd`: where a power cut leaves it.
    pub fn has(&self, number: u64, on_ssd: bool) -> bool {
        let ssd = self.ssd.values().any(|(_, _, content)| *content == number);
        ssd || (!on_ssd && self.holdings.is_some() && self.memory.values().any(|content| *content == number))
    }

    pub fn content(&self, instance: Instance, location: Location) -> Option<u64> {
        match location {
            Location::Memory(piece) => self.memory.get(&(piece.buffer, piece.offset)).copied(),
            Location::Ssd => self.ssd.get(&instance).map(|(_, _, content)| *content),
        }
    }

    pub fn candidate(&self) -> Candidate {
        let credits = self.holdings.as_ref().map_or(0, Holdings::credits);
        let lent = |chunks: u64, of: u64| Lent {
            free: Bytes::from_mib(chunks),
            of: Bytes::from_mib(of),
            rate: Bandwidth::from_mib_s(1000),
            drain: self.has_ssd.then_some(Bandwidth::from_mib_s(100)),
        };
        Candidate {
            place: self.place(),
            domain: self.domain,
            memory: Some(lent(credits, self.memory_chunks)),
            ssd: self.has_ssd.then(|| lent(1000_u64.saturating_sub(self.ssd.len() as u64), 1000)),
        }
    }

    pub fn store_chunk(&mut self, piece: Piece, number: u64) {
        self.memory.insert((piece.buffer, piece.offset), number);
    }

    pub fn log(&mut self, key: (GroupOf, Version, SessionId)) {
        let table = self.holdings.as_ref().and_then(|holdings| holdings.tables_of(key.0).remove(&(key.1, key.2)));
        if let (Some(table), true) = (table, self.has_ssd) {
            self.log.insert(key, table);
        }
    }
}

impl World {
    /// A benefactor's process dies: the SSD stays.
    pub(super) fn stop_node(&mut self, id: BenefactorId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.holdings.take().is_none() {
            return;
        }
        node.memory.clear();
        node.waiting.clear();
        self.report.crashes += 1;
    }

    pub(super) fn start_node(&mut self, id: BenefactorId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.holdings.is_none() && !node.gone) else { return };
        node.incarnation += 1;
        let incarnation = Incarnation(node.incarnation);
        let Ok(buffers) = Buffers::new(node.memory_chunks * u64::from(CHUNK), CHUNK.into()) else { return };
        let holdings = if node.has_ssd {
            let chunks = node.ssd.values().map(|(inode, entry, _)| (*inode, *entry));
            Holdings::restored(incarnation, buffers, chunks, node.log.clone())
        } else {
            Holdings::new(incarnation, buffers, false)
        };
        node.log = holdings.tables().map(|(key, table)| (*key, table.clone())).collect();
        node.holdings = Some(holdings);
        node.leased = false;
        self.work(id);
    }

    pub(super) fn at_node(&mut self, id: BenefactorId, client: usize, message: ToNode) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.holdings.is_some()) else { return };
        let place = node.place();
        match message {
            ToNode::Put { put, durable, damaged, from } => {
                if from.is_some_and(|from| !self.source_has(from, put.entry.instance)) {
                    let answer = FromNode::Put(put.entry.instance, PutAnswer::SourceFailed);
                    return self.answer(id, client, put_place(&put, place), answer);
                }
                let intact = !damaged;
                let Some(node) = self.nodes.get_mut(&id) else { return };
                let Some(holdings) = node.holdings.as_mut() else { return };
                let instance = put.entry.instance;
                let admission = match from {
                    Some(_) => holdings.put_copy(&put, FREE_SSD),
                    None => holdings.put(&put, FREE_SSD),
                };
                let answer = match admission {
                    Admission::Room(piece) => {
                        node.memory.insert((piece.buffer, piece.offset), if intact { instance.number } else { 0 });
                        holdings.stored(instance, intact);
                        if intact { PutAnswer::Stored } else { PutAnswer::Corrupt }
                    }
                    Admission::Here => PutAnswer::Stored,
                    Admission::Coming => return,
                    Admission::Stale | Admission::Withdrawn => PutAnswer::Stale,
                    Admission::UnknownSession => PutAnswer::UnknownSession,
                    Admission::Full => {
                        holdings.close_filling();
                        PutAnswer::Full
                    }
                };
                if durable && answer == PutAnswer::Stored && !holdings.is_on_ssd(instance) {
                    holdings.close_filling();
                    node.waiting.entry(instance).or_default().push(client);
                } else {
                    self.answer(id, client, put_place(&put, place), FromNode::Put(instance, answer));
                }
            }
            ToNode::Withdraw(at, instance) if at == place => {
                if let Some(holdings) = self.nodes.get_mut(&id).and_then(|node| node.holdings.as_mut()) {
                    holdings.withdraw(instance);
                    holdings.abandon_copy(instance);
                }
            }
            ToNode::Seal { at, of, version, session, order, table } if at == place => {
                let Some(node) = self.nodes.get_mut(&id) else { return };
                let Some(holdings) = node.holdings.as_mut() else { return };
                let missing = holdings.seal(of, version, session, order, table).err().map(|missing| missing.0);
                if missing.is_none() {
                    node.log((of, version, session));
                }
                let sealed = FromNode::Sealed(of, order, missing.unwrap_or_default());
                self.answer(id, client, place, sealed);
            }
            ToNode::InStore(of, versions) => {
                if let Some(holdings) = self.nodes.get_mut(&id).and_then(|node| node.holdings.as_mut()) {
                    holdings.in_store(of, &versions);
                }
            }
            ToNode::Seal { at, of, .. } => self.answer(id, client, at, FromNode::Over(of.inode)),
            ToNode::Withdraw(..) => {}
        }
        self.work(id);
    }

    fn source_has(&mut self, from: Place, instance: Instance) -> bool {
        let Some(node) = self.nodes.get(&from.id).filter(|node| node.place() == from) else { return false };
        node.holdings.is_some() && node.has(instance.number, false)
    }

    fn answer(&mut self, id: BenefactorId, client: usize, place: Place, message: FromNode) {
        let Some(node) = self.nodes.get(&id) else { return };
        if node.slow.1 > self.now {
            let after = Duration::from_millis(2) * node.slow.0;
            self.queue.push(self.now + after, Event::FromNode(client, place, message));
        } else {
            self.send(|| Event::FromNode(client, place, message.clone()));
        }
    }

    /// What the holdings want done.
    pub(super) fn work(&mut self, id: BenefactorId) {
        loop {
            let Some(node) = self.nodes.get_mut(&id) else { return };
            let incarnation = node.incarnation;
            let Some(effect) = node.holdings.as_mut().and_then(|holdings| holdings.next_effect(Some(FREE_SSD))) else {
                break;
            };
            match effect {
                Effect::Move(instance, piece) => {
                    let slow = if node.slow.1 > self.now { 50 } else { 1 };
                    self.later(1, 10 * slow, Event::Moved(id, Moving { incarnation, instance, piece }));
                }
                Effect::FreeSsd(instance) => drop(node.ssd.remove(&instance)),
            }
        }
    }

    pub(super) fn moved(&mut self, id: BenefactorId, moving: Moving) {
        let fails = self.faults.noisy && self.random.chance(0.05);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.incarnation == moving.incarnation) else { return };
        let place = node.place();
        let Some(holdings) = node.holdings.as_mut() else { return };
        let Moving { instance, piece, .. } = moving;
        let content = node.memory.get(&(piece.buffer, piece.offset)).copied();
        // What the record says of itself, it says by the chunk that was to be moved.
        if let (false, Some(number), Some((inode, entry))) = (fails, content, holdings.record(instance)) {
            node.ssd.insert(instance, (inode, entry, number));
        }
        holdings.moved(instance, !fails);
        if let (false, Some(clients)) = (fails, node.waiting.remove(&instance)) {
            for client in clients {
                self.answer(id, client, place, FromNode::Put(instance, PutAnswer::Stored));
            }
        }
        self.work(id);
    }
}

/// Which life a put was meant for: the answer names it.
fn put_place(put: &Put, place: Place) -> Place {
    Place { id: place.id, incarnation: put.incarnation }
}
