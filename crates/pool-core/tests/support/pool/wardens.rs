//! The process that watches the benefactors, has copies made again, and compares inventories with the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::{Admission, GroupOf, Put, Table};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation, Inode, MountId, SessionId, Version};
use surgetank_pool_core::membership::{self, Change, Membership};
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::{MemoryStore, Write};
use surgetank_pool_core::meta::value::{FileState, Group, Kind, Value};
use surgetank_pool_core::meta::{Key, Prefix, Role};
use surgetank_pool_core::placement::{Layout, Place, Stripe, substitute};
use surgetank_pool_core::repair::{Config, InStore, Inventory, Job, Of, Repair, reconcile};

use super::nodes::FREE_SSD;
use super::{Asker, Event, World};
use surgetank_pool_core::placement::Media;

const AT_ONCE: usize = 2;

/// What the store is asked to record.
struct Relocating {
    operation: Operation,
    of: Of,
    from: Place,
    to: Place,
    job: Option<u64>,
    sent_at: Instant,
}

/// See the module.
pub struct Warden {
    pub number: u64,
    pub down: Instant,
    membership: Membership,
    pub repair: Repair,
    leased: BTreeMap<BenefactorId, Incarnation>,
    known: BTreeMap<Of, Layout>,
    jobs: BTreeMap<u64, (Of, Place)>,
    relocating: BTreeMap<u64, Relocating>,
    owner: bool,
}

impl Warden {
    pub fn new(number: u64) -> Self {
        let config = Config {
            idle: Bandwidth::from_mib_s(200),
            beside: Bandwidth::from_mib_s(50),
            foreground_for: Duration::from_secs(1),
            at_once: AT_ONCE,
            retry: Duration::from_millis(500),
        };
        let members = membership::Config {
            probe_timeout: Duration::from_millis(300),
            probe_interval: Duration::from_millis(200),
            grace: Duration::from_secs(6),
            hold_max: Duration::from_secs(20),
            together: Duration::from_secs(2),
            ..membership::Config::default()
        };
        Self {
            number,
            down: Instant::ZERO,
            membership: Membership::new(members),
            repair: Repair::new(config),
            leased: BTreeMap::new(),
            known: BTreeMap::new(),
            jobs: BTreeMap::new(),
            relocating: BTreeMap::new(),
            owner: false,
        }
    }

    pub fn foreground(&mut self, now: Instant) {
        self.repair.foreground(now);
    }
}

/// The store as an inventory is compared with it.
struct View<'a> {
    store: &'a MemoryStore,
    of: BenefactorId,
    brought: BTreeSet<(Of, BenefactorId)>,
}

impl InStore for View<'_> {
    fn version(&self, inode: Inode) -> Option<Version> {
        match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => Some(node.version),
            _ => None,
        }
    }

    fn mount(&self, inode: Inode) -> Option<MountId> {
        match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => Some(node.mount),
            _ => None,
        }
    }

    fn has_session(&self, session: SessionId) -> bool {
        self.store.get(&Key::Session(session)).is_some()
    }

    fn is_copied(&self, inode: Inode) -> bool {
        self.store.under(Prefix::Writers(inode)).next().is_some()
            || self.brought.iter().any(|(of, to)| of.group.inode == inode && *to == self.of)
    }

    fn evicted(&self, inode: Inode) -> Option<Version> {
        match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) if node.kind == Kind::File(FileState::Evicted) => Some(node.version),
            _ => None,
        }
    }

    fn versions(&self, group: GroupOf) -> BTreeMap<(Version, SessionId), bool> {
        let all =
            self.store.under(Prefix::Groups(group.inode)).filter_map(|(key, stored)| match (key, &stored.value) {
                (Key::Group(_, index, version), Value::Group(of)) if *index == group.group => {
                    let named = of.layout.places().iter().any(|place| place.id == self.of);
                    let brought = self.brought.contains(&(Of { group, version: *version, by: of.by }, self.of));
                    Some(((*version, of.by), named || brought))
                }
                _ => None,
            });
        all.collect()
    }
}

impl World {
    pub(super) fn stop_warden(&mut self) {
        let number = self.warden.number + 1;
        self.warden = Warden { down: self.now + self.milliseconds(100, 3000), ..Warden::new(number) };
    }

    pub(super) fn tick_warden(&mut self) {
        if self.warden.down > self.now || self.faults.store_gone {
            return;
        }
        if !self.warden.owner {
            self.warden.owner = true;
            let owner = Write::Put(Key::Owner(Role::Warden), Value::Owner(self.warden.number));
            self.put(vec![owner]);
        }
        self.watch_leases();
        self.watch_groups();
        let leaving = self.nodes.keys().copied().filter(|id| self.is_leaving(*id)).collect();
        self.warden.repair.leave(leaving);
        let now = self.now;
        self.warden.membership.tick(now);
        while let Some((id, _)) = self.warden.membership.next_probe(now) {
            let number = self.warden.number;
            if let Some(node) = self.nodes.get(&id).filter(|node| node.holdings.is_some()) {
                let incarnation = node.incarnation;
                self.later(1, 8, Event::Probed(number, id, Some(incarnation)));
            } else {
                self.later(1, 8, Event::Probed(number, id, None));
            }
        }
        while let Some(change) = self.warden.membership.next_change() {
            let repair = &mut self.warden.repair;
            match change {
                Change::Joined(id, incarnation) | Change::Returned { id, incarnation, .. } => {
                    repair.alive(id, incarnation)
                }
                Change::Died(id, _) => repair.died(id),
                Change::Left(id) => repair.left(id),
                Change::HoldBegan { .. } => repair.hold(true),
                Change::HoldEnded => repair.hold(false),
            }
        }
        let unasked: Vec<Place> = self.warden.repair.unasked().collect();
        for place in unasked {
            let node = self.nodes.get(&place.id).filter(|node| node.place() == place);
            if let Some(holdings) = node.and_then(|node| node.holdings.as_ref()) {
                let has =
                    holdings.tables().map(|((group, version, by), _)| Of { group: *group, version: *version, by: *by });
                self.warden.repair.inventory(place, &has.collect());
            }
        }
        self.begin_repairs();
        let chance = if self.faults.calm { 0.8 } else { 0.2 };
        let ids: Vec<BenefactorId> = self.nodes.keys().copied().collect();
        if self.random.chance(chance)
            && let Some(id) = self.pick(&ids)
        {
            self.take_inventory(id);
        }
    }

    fn watch_leases(&mut self) {
        let mut alive: BTreeMap<BenefactorId, Incarnation> = super::all_keys(&self.store)
            .filter_map(|(key, stored)| match (key, &stored.value) {
                (Key::Benefactor(id), Value::Benefactor(place)) => Some((*id, place.incarnation)),
                _ => None,
            })
            .collect();
        // Those that leave have a lease, and no life that a commit may name.
        let leaving = self.nodes.values().filter(|node| node.leased && self.is_leaving(node.id));
        alive.extend(leaving.map(|node| (node.id, Incarnation(node.incarnation))));
        let now = self.now;
        let Warden { membership, leased, .. } = &mut self.warden;
        for (id, incarnation) in leased.iter().filter(|(id, incarnation)| alive.get(id) != Some(incarnation)) {
            membership.lease_lost(now, *id, *incarnation);
        }
        for (id, incarnation) in alive.iter().filter(|(id, incarnation)| leased.get(id) != Some(incarnation)) {
            membership.leased(now, *id, *incarnation);
        }
        *leased = alive;
    }

    fn watch_groups(&mut self) {
        let now: BTreeMap<Of, &Group> = super::all_keys(&self.store)
            .filter_map(|(key, stored)| match (key, &stored.value) {
                (Key::Group(inode, group, version), Value::Group(of)) => {
                    Some((Of { group: GroupOf { inode: *inode, group: *group }, version: *version, by: of.by }, of))
                }
                _ => None,
            })
            .collect();
        let Warden { repair, known, .. } = &mut self.warden;
        let gone: Vec<Of> = known.keys().filter(|of| !now.contains_key(of)).copied().collect();
        for of in gone {
            known.remove(&of);
            repair.group_gone(of);
        }
        for (of, group) in now {
            if known.get(&of) != Some(&group.layout) {
                known.insert(of, group.layout.clone());
                repair.group(of, &group.layout, Bytes::new(group.bytes));
            }
        }
    }

    pub(super) fn probed(&mut self, number: u64, id: BenefactorId, answer: Option<u64>) {
        if number != self.warden.number {
            return;
        }
        match answer {
            Some(incarnation) => self.warden.membership.probe_answered(self.now, id, Incarnation(incarnation)),
            None => self.warden.membership.probe_failed(self.now, id),
        }
    }

    fn begin_repairs(&mut self) {
        let now = self.now;
        if let Some((of, from, to)) = self.warden.repair.next_renamed()
            && !self.warden.relocating.values().any(|relocating| relocating.of == of)
        {
            self.relocate(of, from, to, None);
        }
        while let Some(job) = self.warden.repair.next_job(now) {
            if self.warden.membership.holds() {
                self.wrong(format!("{:?} is copied while most leases are gone", job.of));
            }
            let to = self.substitute_for(&job);
            let Some(to) = to else {
                self.warden.repair.ended(now, job.id, false);
                continue;
            };
            self.warden.jobs.insert(job.id, (job.of, to));
            if self.warden.jobs.len() > AT_ONCE {
                self.wrong(format!("{} copies are made at once", self.warden.jobs.len()));
                return;
            }
            let number = self.warden.number;
            self.later(10, 200, Event::Copied(number, Box::new(job), to));
        }
        // What was not answered is asked again: what repair has brought counts as long as nobody knows.
        let late: Vec<u64> = self
            .warden
            .relocating
            .iter()
            .filter(|(_, relocating)| now.since(relocating.sent_at) > Duration::from_secs(2))
            .map(|(request, _)| *request)
            .collect();
        for request in late {
            if let Some(relocating) = self.warden.relocating.get_mut(&request) {
                relocating.sent_at = now;
                let operation = relocating.operation.clone();
                let number = self.warden.number;
                self.ask_once(Asker::Warden(number), request, &operation);
            }
        }
    }

    fn substitute_for(&self, job: &Job) -> Option<Place> {
        let columns = || job.layout.columns.iter().filter(|column| column.places.contains(&job.instead_of));
        let others: Vec<Place> = columns()
            .flat_map(|column| column.places.iter().copied())
            .filter(|place| *place != job.instead_of)
            .collect();
        let beside: Vec<Domain> = others.iter().map(|place| self.nodes[&place.id].domain).collect();
        let media = self.oracle.files.get(&job.of.group.inode).map_or(Media::Any, |file| file.policy.media);
        substitute(Bytes::from_mib(6), media, &beside, &job.without(), &self.candidates()).map(|(place, _)| place)
    }

    /// The chunks of a place, by the tables of the others in its columns; and who has them.
    fn part_of(&self, job: &Job) -> Option<(Table, BTreeMap<u32, Place>)> {
        let stripe = Stripe::new(&job.layout);
        let (mut part, mut sources) = (Table::new(), BTreeMap::new());
        for (at, column) in (0..).zip(&job.layout.columns).filter(|(_, column)| column.places.contains(&job.instead_of))
        {
            let found = column.places.iter().find_map(|place| {
                let node = self.nodes.get(&place.id)?;
                let table = node.holdings.as_ref()?.tables_of(job.of.group).remove(&(job.of.version, job.of.by))?;
                Some((node.place(), table))
            });
            let (source, table) = found?;
            for (chunk, entry) in table.into_iter().filter(|(chunk, _)| stripe.column((*chunk).into()) == at) {
                part.insert(chunk, entry);
                sources.insert(chunk, source);
            }
        }
        Some((part, sources))
    }

    fn fail_job(&mut self, job: u64) {
        self.warden.jobs.remove(&job);
        self.warden.repair.ended(self.now, job, false);
    }

    pub(super) fn copied(&mut self, number: u64, job: Box<Job>, to: Place) {
        if number != self.warden.number {
            return;
        }
        let part = self.part_of(&job);
        let Some((part, sources)) = part else { return self.fail_job(job.id) };
        for (chunk, entry) in &part {
            let content = self.nodes.get_mut(&sources[chunk].id).and_then(|node| {
                let holdings = node.holdings.as_mut()?;
                let (found, location) = holdings.find(job.of.group, job.of.version, job.of.by, *chunk)?;
                let content = node.content(found.instance, location);
                node.holdings.as_mut()?.read(found.instance);
                content
            });
            let Some(node) = self.nodes.get_mut(&to.id) else { return };
            let Some(holdings) = node.holdings.as_mut().filter(|_| content.is_some()) else {
                return self.fail_job(job.id);
            };
            let put = Put { incarnation: to.incarnation, inode: job.of.group.inode, mount: None, entry: *entry };
            match holdings.put_copy(&put, FREE_SSD) {
                Admission::Room(piece) => {
                    holdings.stored(entry.instance, true);
                    node.store_chunk(piece, content.unwrap_or_default());
                }
                Admission::Here => {}
                _ => {
                    holdings.close_filling();
                    self.work(to.id);
                    return self.fail_job(job.id);
                }
            }
        }
        self.work(to.id);
        self.later(5, 50, Event::Adopted(number, job, to));
    }

    pub(super) fn adopted(&mut self, number: u64, job: Box<Job>, to: Place) {
        if number != self.warden.number {
            return;
        }
        let Some((part, _)) = self.part_of(&job) else { return self.fail_job(job.id) };
        let media = self.oracle.files.get(&job.of.group.inode).map_or(Media::Any, |file| file.policy.media);
        let Some(node) = self.nodes.get_mut(&to.id).filter(|node| node.place() == to) else {
            return self.fail_job(job.id);
        };
        let Some(holdings) = node.holdings.as_mut() else { return self.fail_job(job.id) };
        if media == Media::Ssd && part.values().any(|entry| !holdings.is_on_ssd(entry.instance)) {
            holdings.close_filling();
            self.work(to.id);
            self.later(20, 100, Event::Adopted(number, job, to));
            return;
        }
        let key = (job.of.group, job.of.version, job.of.by);
        if holdings.adopt(key, &part, job.layout.places().contains(&to)).is_err() {
            return self.fail_job(job.id);
        }
        node.log(key);
        self.relocate(job.of, job.instead_of, to, Some(job.id));
    }

    fn relocate(&mut self, of: Of, from: Place, to: Place, job: Option<u64>) {
        let (request, warden) = (self.number(), self.warden.number);
        let group = (of.group.group, of.version);
        let operation = Operation::Relocate { warden, inode: of.group.inode, group, from, to };
        self.ask_once(Asker::Warden(warden), request, &operation);
        let relocating = Relocating { operation, of, from, to, job, sent_at: self.now };
        self.warden.relocating.insert(request, relocating);
    }

    pub(super) fn warden_replied(&mut self, number: u64, request: u64, reply: &Result<Reply, Refusal>) {
        if number != self.warden.number {
            return;
        }
        let Some(Relocating { job, from, to, .. }) = self.warden.relocating.remove(&request) else { return };
        let done = reply.is_ok();
        self.report.repaired += u64::from(done && from.id != to.id);
        self.report.renamed += u64::from(done && from.id == to.id);
        if let Some(job) = job {
            self.warden.jobs.remove(&job);
            self.warden.repair.ended(self.now, job, done);
        }
    }

    fn take_inventory(&mut self, id: BenefactorId) {
        let Some(node) = self.nodes.get(&id) else { return };
        let (place, Some(holdings)) = (node.place(), node.holdings.as_ref()) else { return };
        let tables =
            holdings.tables().map(|((group, version, by), _)| Of { group: *group, version: *version, by: *by });
        let inventory = Inventory {
            tables: tables.collect(),
            drafts: holdings.drafts().map(|(instance, inode)| (instance.session, inode)).collect(),
            copies: holdings.copies().collect(),
            withdrawn: holdings.withdrawn_by(),
            of_unknown_mounts: holdings.of_unknown_mounts(),
        };
        self.later(1, 100, Event::Inventoried(place, Box::new(inventory)));
    }

    /// The store is read after the inventory was taken.
    pub(super) fn inventoried(&mut self, place: Place, inventory: &Inventory) {
        if self.faults.store_gone || self.warden.down > self.now || !self.warden.owner {
            return;
        }
        let brought = self.warden.jobs.values().map(|(of, to)| (*of, to.id));
        let renamed = self.warden.relocating.values().map(|relocating| (relocating.of, relocating.to.id));
        let view = View { store: &self.store, of: place.id, brought: brought.chain(renamed).collect() };
        let words = reconcile(inventory, &view);
        let noisy = self.faults.noisy;
        for word in words {
            if noisy && self.random.chance(0.1) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(&place.id).filter(|node| node.place() == place) else { return };
            let Some(holdings) = node.holdings.as_mut() else { return };
            word.tell(holdings);
            let kept: BTreeSet<_> = holdings.tables().map(|(key, _)| *key).collect();
            node.log.retain(|key, _| kept.contains(key));
        }
        if !noisy {
            self.keeps_nothing_obsolete(place, inventory);
        }
        self.work(place.id);
    }

    /// A file has each version once: a table of one that the file has, and that is not in the store, takes room in vain.
    fn keeps_nothing_obsolete(&mut self, place: Place, inventory: &Inventory) {
        let Some(holdings) = self.nodes.get(&place.id).and_then(|node| node.holdings.as_ref()) else { return };
        let is_over = |of: &&Of| {
            let at = Key::Group(of.group.inode, of.group.group, of.version);
            let group = self.store.get(&at).map(|stored| &stored.value);
            let is_stored = matches!(group, Some(Value::Group(group)) if group.by == of.by);
            let file = self.store.get(&Key::Node(of.group.inode)).map(|stored| &stored.value);
            !is_stored && matches!(file, Some(Value::Node(node)) if node.version >= of.version)
        };
        let is_kept = |of: &&Of| holdings.table(of.group, of.version, of.by).is_some();
        if let Some(of) = inventory.tables.iter().filter(is_over).find(is_kept) {
            self.wrong(format!("{of:?} was sealed, will never be committed, and is kept"));
        }
    }

    pub(super) fn is_lost(&self, inode: Inode, version: Version) -> bool {
        let groups = self.groups_at(inode, version);
        let of = |index: u32, version: Version, group: &Group| Of {
            group: GroupOf { inode, group: index },
            version,
            by: group.by,
        };
        let groups: Vec<_> =
            groups.iter().map(|(index, (version, group))| (of(*index, *version, group), &group.layout)).collect();
        self.warden.repair.is_lost(&groups)
    }
}
