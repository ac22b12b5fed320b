//! A pool in virtual time: benefactors, managers, clients, a drain and a store, whose messages are late, lost and doubled, and who die and
//! come back. Everything that decides is the production code; what is simulated is what acts.
//!
//! A run has a time of faults and then calm, in which everything is to come to an end: what was promised is read back and at the target, and
//! after every file was unlinked no chunk is left.

mod clients;
mod drains;
mod faults;
mod history;
mod leaving;
mod linear;
mod managers;
mod nodes;
mod oracle;
#[allow(dead_code, reason = "the other test plays none")]
pub mod scenes;
mod wardens;

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::{EventQueue, Instant};
use surgetank_pool_core::id::{BenefactorId, Inode, MountId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::Transaction;
use surgetank_pool_core::meta::store::{MemoryStore, Stored};
use surgetank_pool_core::meta::{CommitId, Key, Name, Prefix};
use surgetank_pool_core::placement::Place;
use surgetank_pool_core::repair::{Inventory, Job};

use self::clients::{Client, Pending};
use self::drains::Drain;
use self::faults::Faults;
use self::history::{CallId, History, Looked, Looking};
use self::managers::Manager;
use self::nodes::{Moving, Node, ToNode};
use self::oracle::Oracle;
use self::wardens::Warden;
use crate::support::target::Target;

pub const ROOT: Inode = Inode(1);
pub const MOUNT: MountId = MountId(1);
/// Bytes of every chunk: its content is the number of its instance.
pub const CHUNK: u32 = 1 << 20;

/// What happens.
enum Event {
    ToNode(BenefactorId, usize, ToNode),
    FromNode(usize, Place, clients::FromNode),
    Ask(usize, Asker, u64, Operation),
    Reply(Asker, u64, Result<Reply, Refusal>),
    AtStore(usize, u64, CommitId, Transaction),
    Moved(BenefactorId, Moving),
    Probed(u64, BenefactorId, Option<u64>),
    Copied(u64, Box<Job>, Place),
    Adopted(u64, Box<Job>, Place),
    Inventoried(Place, Box<Inventory>),
    Brought(u64, surgetank_pool_core::draining::Job),
    AtTarget(u64, Box<surgetank_pool_core::publishing::Effect>),
    Read(usize, Box<oracle::Reading>),
    Look(usize, CallId, Box<Looking>),
    Looked(CallId, Box<Looked>),
    Up(BenefactorId),
    Tick,
}

/// Who asked a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    Client(usize),
    Warden(u64),
    Drain(u64),
    Janitor,
}

pub struct World {
    random: Random,
    now: Instant,
    queue: EventQueue<Event>,
    store: MemoryStore,
    nodes: BTreeMap<BenefactorId, Node>,
    managers: Vec<Manager>,
    clients: Vec<Client>,
    warden: Warden,
    drain: Drain,
    target: Target,
    temporary: BTreeMap<(Inode, Version), BTreeMap<(u32, u32), u64>>,
    oracle: Oracle,
    faults: Faults,
    history: History,
    numbers: u64,
    /// A broken promise.
    wrong: Option<String>,
    /// What the run has done.
    pub report: Report,
}

/// What runs did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub runs: u64,
    pub commits: u64,
    pub acknowledged: u64,
    /// Answers about names, versions and sizes.
    pub heard: u64,
    pub reads: u64,
    pub crashes: u64,
    pub power_cuts: u64,
    pub lease_losses: u64,
    pub repaired: u64,
    pub renamed: u64,
    pub hedged: u64,
    pub published: u64,
    /// Versions that were removed before the target had them.
    pub passed: u64,
    pub evicted: u64,
    pub failed_handles: u64,
    pub lost: u64,
    /// Benefactors that were taken out, and those that went.
    pub leaving: u64,
    pub left: u64,
}

impl<'a> std::ops::AddAssign<&'a Report> for Report {
    fn add_assign(&mut self, other: &'a Report) {
        let Report {
            runs,
            commits,
            acknowledged,
            heard,
            reads,
            crashes,
            power_cuts,
            lease_losses,
            repaired,
            renamed,
            hedged,
            published,
            passed,
            evicted,
            failed_handles,
            lost,
            leaving,
            left,
        } = other;
        self.runs += runs;
        self.commits += commits;
        self.acknowledged += acknowledged;
        self.heard += heard;
        self.reads += reads;
        self.crashes += crashes;
        self.power_cuts += power_cuts;
        self.lease_losses += lease_losses;
        self.repaired += repaired;
        self.renamed += renamed;
        self.hedged += hedged;
        self.published += published;
        self.passed += passed;
        self.evicted += evicted;
        self.failed_handles += failed_handles;
        self.lost += lost;
        self.leaving += leaving;
        self.left += left;
    }
}

/// How long faults come, and how long the calm may take.
const TROUBLE: Duration = Duration::from_secs(40);
const CALM_MAX: Duration = Duration::from_secs(900);
const TICK: Duration = Duration::from_millis(100);

/// Runs a seed; what it did is not asked.
#[allow(dead_code, reason = "the other test asks")]
pub fn run(seed: u64) -> Result<(), String> {
    report(seed).map(|_| ())
}

/// Runs a seed.
pub fn report(seed: u64) -> Result<Report, String> {
    report_of(World::new(seed, false))
}

/// Runs a seed with managers that answer with what they found when they were asked before.
#[allow(dead_code, reason = "the other test does not ask")]
pub fn run_with_stale_lookups(seed: u64) -> Result<(), String> {
    report_of(World::new(seed, true)).map(|_| ())
}

fn report_of(mut world: World) -> Result<Report, String> {
    let end = world.now + TROUBLE;
    world.until(end)?;
    world.calm();
    world.settle("files are read and drained", World::is_drained)?;
    world.read_all()?;
    world.history.check()?;
    world.report.runs = 1;
    world.report.heard = world.history.heard_so_far();
    world.unlink_all();
    world.settle("what was unlinked goes", World::is_empty)?;
    world.report.lost = world.oracle.lossable.len() as u64;
    Ok(world.report)
}

impl World {
    fn until(&mut self, end: Instant) -> Result<(), String> {
        while self.queue.next_at().is_some_and(|at| at <= end) {
            self.step()?;
        }
        self.now = end;
        Ok(())
    }

    /// Goes on until something is so.
    fn settle(&mut self, what: &str, done: fn(&Self) -> Result<(), String>) -> Result<(), String> {
        let end = self.now + CALM_MAX;
        let mut look_at = self.now;
        loop {
            if self.now >= look_at {
                if done(self).is_ok() {
                    return Ok(());
                }
                look_at = self.now + Duration::from_millis(500);
            }
            if self.now >= end {
                return Err(format!("{what}: it never comes to an end: {}", done(self).err().unwrap_or_default()));
            }
            self.step()?;
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let Some((at, event)) = self.queue.pop() else { return Err("nothing happens any more".to_owned()) };
        self.now = at;
        match event {
            Event::ToNode(id, client, message) => self.at_node(id, client, message),
            Event::FromNode(client, place, message) => self.node_answers(client, place, message),
            Event::Ask(manager, asker, request, operation) => self.asked(manager, asker, request, operation),
            Event::Reply(asker, request, reply) => self.replied(asker, request, reply),
            Event::AtStore(manager, process, id, transaction) => self.at_store(manager, process, id, &transaction),
            Event::Moved(id, moving) => self.moved(id, moving),
            Event::Probed(warden, id, answer) => self.probed(warden, id, answer),
            Event::Copied(warden, job, to) => self.copied(warden, job, to),
            Event::Adopted(warden, job, to) => self.adopted(warden, job, to),
            Event::Inventoried(place, inventory) => self.inventoried(place, &inventory),
            Event::Brought(drain, job) => self.brought(drain, job),
            Event::AtTarget(drain, effect) => self.at_target(drain, &effect),
            Event::Read(client, reading) => self.end_read(client, &reading),
            Event::Look(manager, call, looking) => self.look(manager, call, looking),
            Event::Looked(call, looked) => self.looked(call, *looked),
            Event::Up(id) => self.start_node(id),
            Event::Tick => {
                self.tick();
                self.queue.push(self.now + TICK, Event::Tick);
            }
        }
        match self.wrong.take() {
            Some(wrong) => Err(format!("at {:?}: {wrong}", self.now)),
            None => Ok(()),
        }
    }

    fn tick(&mut self) {
        self.tick_faults();
        self.tick_leases();
        self.tick_leaving();
        self.tick_clients();
        self.observe();
        self.tick_managers();
        self.tick_warden();
        self.tick_drain();
        self.janitor();
    }

    fn replied(&mut self, asker: Asker, request: u64, reply: Result<Reply, Refusal>) {
        match asker {
            Asker::Client(client) => self.client_replied(client, request, reply),
            Asker::Warden(number) => self.warden_replied(number, request, &reply),
            Asker::Drain(number) => self.drain_replied(number, request, &reply),
            Asker::Janitor => {}
        }
    }

    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.random.below(from.len() as u64) as usize).cloned()
    }

    fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.random.below(to - from + 1))
    }

    fn later(&mut self, from: u64, to: u64, event: Event) {
        let after = self.milliseconds(from, to);
        self.queue.push(self.now + after, event);
    }

    /// A message, which may be late, lost or doubled.
    fn send(&mut self, make: impl Fn() -> Event) {
        let noisy = self.faults.noisy;
        if noisy && self.random.chance(0.02) {
            return;
        }
        let slow = noisy && self.random.chance(0.02);
        let (from, to) = if slow { (50, 3000) } else { (1, 4) };
        self.later(from, to, make());
        if noisy && self.random.chance(0.02) {
            self.later(1, 2000, make());
        }
    }

    /// Asks some manager.
    fn ask(&mut self, asker: Asker, request: u64, operation: &Operation) {
        let manager = self.random.below(self.managers.len() as u64) as usize;
        self.later(1, 4, Event::Ask(manager, asker, request, operation.clone()));
    }

    /// Reads something of the store, or nothing if it does not answer.
    fn read_store<T>(&self, read: impl FnOnce(&MemoryStore) -> T) -> Option<T> {
        (!self.faults.store_gone).then(|| read(&self.store))
    }

    fn entry(&self, name: &Name) -> Option<Inode> {
        match self.store.get(&Key::Entry(ROOT, name.clone())).map(|stored| &stored.value) {
            Some(surgetank_pool_core::meta::value::Value::Entry(inode)) => Some(*inode),
            _ => None,
        }
    }

    /// All files are closed, have their copies, and are at the target.
    fn is_drained(&self) -> Result<(), String> {
        if self.nodes.values().any(|node| node.holdings.is_none() && !node.gone) {
            return Err("a benefactor has not come back".to_owned());
        }
        if self.clients.iter().any(|client| !client.is_idle()) {
            let busy: Vec<String> =
                self.clients.iter().filter(|client| !client.is_idle()).map(Client::describe).collect();
            return Err(format!("clients have not closed: {busy:?}"));
        }
        let journal = self.store.under(Prefix::Journal(MOUNT)).count();
        if journal > 0 {
            return Err(format!("{journal} entries are in the journal: {}", self.drain.describe()));
        }
        let writers = all_keys(&self.store).filter(|(key, _)| matches!(key, Key::Writer(..))).count();
        if writers > 0 {
            return Err(format!("{writers} writers are left"));
        }
        self.census()
    }

    /// No chunk is left.
    fn is_empty(&self) -> Result<(), String> {
        let nodes = all_keys(&self.store).filter(|(key, _)| matches!(key, Key::Node(_))).count();
        if nodes > 1 {
            let left = all_keys(&self.store)
                .filter(|(key, _)| !matches!(key, Key::Benefactor(_) | Key::Leaving(_)))
                .map(|(key, stored)| (key, &stored.value));
            return Err(format!("{nodes} nodes are left: {:?}", left.collect::<Vec<_>>()));
        }
        for node in self.nodes.values() {
            let left: Vec<_> = node.holdings.iter().flat_map(|holdings| holdings.instances()).take(5).collect();
            if !left.is_empty() || !node.ssd.is_empty() {
                return Err(format!("{:?} has {left:?} and {:?} left", node.place(), node.ssd.keys().take(3)));
            }
        }
        if self.target.0.is_empty() { Ok(()) } else { Err(format!("the target has {:?}", self.target)) }
    }
}

fn names() -> Vec<Name> {
    ["a", "b", "c", "d"].iter().filter_map(|name| Name::new(name.as_bytes()).ok()).collect()
}

type Requests = BTreeMap<u64, Pending>;

/// All keys but the receipts, which come last and are many.
fn all_keys(store: &MemoryStore) -> impl Iterator<Item = (&Key, &Stored)> {
    store.all().take_while(|(key, _)| !matches!(key, Key::Receipt(..)))
}
