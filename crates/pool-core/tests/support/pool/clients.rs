//! Sessions that create, write, sync, read, rename and unlink.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Put, SealOrder, Table};
use surgetank_pool_core::client::{Config, Effect, PutAnswer, Source, Writer};
use surgetank_pool_core::id::{Inode, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::Lease;
use surgetank_pool_core::meta::value::{Group, Value};
use surgetank_pool_core::meta::{Key, Name, Prefix};
use surgetank_pool_core::placement::{Candidate, Media, Place, Protection, Request, place, substitute};

use surgetank_pool_core::runs::Runs;

use super::nodes::ToNode;
use super::oracle::{Policy, Reading};
use super::{Asker, CHUNK, Event, MOUNT, ROOT, Requests, World, names};

/// What a benefactor answers.
#[derive(Clone)]
pub enum FromNode {
    Put(Instance, PutAnswer),
    Sealed(GroupOf, SealOrder, Vec<u32>),
    /// It is in another life.
    Over(Inode),
}

/// What a client waits for.
pub struct Pending {
    operation: Operation,
    sent_at: Instant,
    what: For,
}

#[derive(Clone)]
enum For {
    Create(Policy),
    Open,
    Commit(Inode, u64),
    Close(Inode),
    Name,
}

/// A file that is open for writing.
pub struct Open {
    pub writer: Writer,
    pub policy: Policy,
    /// The group that this client writes.
    group: u32,
    /// What was written, and what each sync is to cover.
    written: BTreeMap<u32, u64>,
    syncs: BTreeMap<u64, BTreeMap<u32, u64>>,
    next_sync: u64,
    closing: bool,
    close_sent: bool,
    settle_at: Option<(Instant, Vec<u32>)>,
}

/// See the module.
pub struct Client {
    pub session: SessionId,
    pub lease_until: Instant,
    /// It is stopped until then: it sends and hears nothing.
    pub stalled: Instant,
    pub registered: bool,
    pub files: BTreeMap<Inode, Open>,
    requests: Requests,
}

impl Client {
    pub fn new(session: u64) -> Self {
        Self {
            session: SessionId(session),
            lease_until: Instant::ZERO,
            stalled: Instant::ZERO,
            registered: false,
            files: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.files.is_empty() && self.requests.is_empty()
    }

    pub fn describe(&self) -> String {
        let files: Vec<_> = self.files.iter().map(|(inode, open)| (inode, &open.writer)).collect();
        let requests: Vec<_> = self.requests.values().map(|pending| &pending.operation).collect();
        format!("{:?}: {files:?} {requests:?}", self.session)
    }
}

const SESSION_LEASES: u64 = 1_000_000_000;

pub fn lease_of(session: SessionId) -> Lease {
    Lease(SESSION_LEASES + session.0)
}

impl World {
    pub(super) fn tick_clients(&mut self) {
        for at in 0..self.clients.len() {
            if self.clients[at].stalled > self.now {
                continue;
            }
            if !self.faults.calm && !self.faults.scripted && self.random.chance(0.25) {
                self.act(at);
            }
            let inodes: Vec<Inode> = self.clients[at].files.keys().copied().collect();
            for inode in inodes {
                if let Some(open) = self.clients[at].files.get_mut(&inode) {
                    open.writer.tick(self.now);
                }
                if let Some((_, groups)) = self.clients[at].files.get_mut(&inode).and_then(|open| open.settle_at.take())
                {
                    self.settle_commit(at, inode, &groups);
                }
                self.run_writer(at, inode);
            }
            let late: Vec<u64> = self.clients[at]
                .requests
                .iter()
                .filter(|(_, pending)| self.now.since(pending.sent_at) > Duration::from_secs(2))
                .map(|(request, _)| *request)
                .collect();
            for request in late {
                // A commit is sent again by its writer; what has a number of its own is never asked twice, since the first may come late.
                let Some(pending) = self.clients[at].requests.remove(&request) else { continue };
                if let For::Close(inode) = pending.what {
                    let (session, journal) = (self.clients[at].session, self.number());
                    self.request(at, For::Close(inode), Operation::Close { inode, session, journal });
                }
            }
            if self.faults.calm {
                let closing: Vec<Inode> = self.clients[at].files.keys().copied().collect();
                closing.into_iter().for_each(|inode| self.close(at, inode));
                // What it opened and never heard of is closed with its session.
                let session = self.clients[at].session;
                let is_writer = |key: &Key| matches!(key, Key::Writer(_, of) if *of == session);
                if self.clients[at].is_idle() && super::all_keys(&self.store).any(|(key, _)| is_writer(key)) {
                    self.end_session(at);
                }
            }
        }
    }

    fn request(&mut self, at: usize, what: For, operation: Operation) {
        let request = self.number();
        self.ask(Asker::Client(at), request, &operation);
        self.history.asked((Asker::Client(at), request), &operation);
        let pending = Pending { operation, sent_at: self.now, what };
        self.clients[at].requests.insert(request, pending);
    }

    /// A client does something.
    fn act(&mut self, at: usize) {
        let name = {
            let all = names();
            self.pick(&all)
        };
        let Some(name) = name else { return };
        let session = self.clients[at].session;
        let open: Vec<Inode> = self.clients[at].files.keys().copied().collect();
        match self.random.below(20) {
            0..=2 => self.create(at, name),
            3 => {
                let inode = self.read_store(|_| ()).and_then(|()| self.entry(&name));
                if let Some(inode) = inode.filter(|inode| !self.clients[at].files.contains_key(inode)) {
                    let writer = (session, lease_of(session));
                    self.request(at, For::Open, Operation::OpenForWriting { inode, writer, rewrites: false });
                }
            }
            4 => {
                let journal = self.number();
                self.oracle.unlinks.extend(self.entry(&name));
                self.request(at, For::Name, Operation::Unlink { at: (ROOT, name), journal });
            }
            5 => {
                let all = names();
                let Some(to) = self.pick(&all) else { return };
                let journal = self.number();
                self.request(
                    at,
                    For::Name,
                    Operation::Rename { from: (ROOT, name), to: (ROOT, to), replace: true, journal },
                );
            }
            6 | 7 => self.begin_read(at, &name),
            8..=14 => {
                if let Some(inode) = self.pick(&open) {
                    for _ in 0..=self.random.below(4) {
                        let chunk = u32::try_from(self.random.below(6)).unwrap_or_default();
                        self.write(at, inode, chunk);
                    }
                }
            }
            15..=17 => {
                if let Some(inode) = self.pick(&open) {
                    self.sync(at, inode);
                }
            }
            _ => {
                if let Some(inode) = self.pick(&open) {
                    self.close(at, inode);
                }
            }
        }
        open.into_iter().for_each(|inode| self.run_writer(at, inode));
    }

    pub(super) fn create(&mut self, at: usize, name: Name) {
        let session = self.clients[at].session;
        let policy = self.oracle.policies[self.random.below(self.oracle.policies.len() as u64) as usize];
        let writer = (session, lease_of(session));
        let fresh = self.number();
        let create = Operation::Create { at: (ROOT, name), fresh, writer, owner: (0o644, 1, 1) };
        self.request(at, For::Create(policy), create);
    }

    pub(super) fn write(&mut self, at: usize, inode: Inode, chunk: u32) {
        let number = self.number();
        let Some(open) = self.clients[at].files.get(&inode).filter(|open| !open.closing) else { return };
        let group = open.group;
        if !open.writer.has_group(group) && !self.open_group(at, inode, group) {
            return;
        }
        let now = self.now;
        let client = &mut self.clients[at];
        let Some(open) = client.files.get_mut(&inode) else { return };
        let instance = Instance { session: client.session, number };
        let entry = Entry { instance, length: CHUNK, crc: number as u32 };
        let size = (u64::from(group) * 6 + u64::from(chunk) + 1) * u64::from(CHUNK);
        if open.writer.write(now, (group, chunk), entry, size).is_ok() {
            open.written.insert(chunk, number);
            self.warden.foreground(now);
        }
    }

    /// Opens a group for a writer: where it is, and what is in it; or where it is to be.
    fn open_group(&mut self, at: usize, inode: Inode, index: u32) -> bool {
        if self.faults.store_gone {
            return false;
        }
        let Some(policy) = self.clients[at].files.get(&inode).map(|open| open.policy) else { return false };
        let newest = self.newest_group(inode, index);
        let (layout, table) = match newest {
            Some((version, group)) => {
                let of = GroupOf { inode, group: index };
                let mut table = Table::new();
                for column in &group.layout.columns {
                    let part = column.places.iter().find_map(|place| self.table_at(*place, of, version, group.by));
                    match part {
                        Some(part) => table.extend(part),
                        None => return false,
                    }
                }
                (group.layout, table)
            }
            // What has left the pool is written anew, whole: here no file is opened again after that.
            None if self.oracle.evicted.contains(&inode) => return false,
            None => {
                let candidates = self.candidates();
                let request = Request {
                    bytes: Bytes::from_mib(6),
                    protection: Protection::Copies(policy.copies),
                    media: policy.media,
                    width_max: 2,
                    spread: self.number(),
                };
                match place(&request, &candidates) {
                    Ok(layout) => (layout, Table::new()),
                    Err(_) => return false,
                }
            }
        };
        let over: Vec<Place> = layout.places().into_iter().filter(|place| !self.is_registered(*place)).collect();
        let now = self.now;
        if let Some(open) = self.clients[at].files.get_mut(&inode) {
            open.writer.open_group(now, index, &layout, table);
            over.into_iter().for_each(|place| open.writer.life_over(now, place));
        }
        true
    }

    pub(super) fn newest_group(&self, inode: Inode, index: u32) -> Option<(Version, Group)> {
        let groups = self.store.under(Prefix::Groups(inode)).filter_map(|(key, stored)| match (key, &stored.value) {
            (Key::Group(_, at, version), Value::Group(group)) if *at == index => Some((*version, group.clone())),
            _ => None,
        });
        groups.last()
    }

    /// The table that a benefactor has, whatever its life.
    fn table_at(&self, place: Place, of: GroupOf, version: Version, by: SessionId) -> Option<Table> {
        self.nodes.get(&place.id)?.holdings.as_ref()?.tables_of(of).remove(&(version, by))
    }

    pub(super) fn is_registered(&self, place: Place) -> bool {
        let alive = self.store.get(&Key::Benefactor(place.id)).map(|stored| &stored.value);
        alive == Some(&Value::Benefactor(place))
    }

    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let nodes = self.nodes.values().filter(|node| self.is_registered(node.place()));
        nodes.map(super::nodes::Node::candidate).collect()
    }

    pub(super) fn sync(&mut self, at: usize, inode: Inode) {
        let now = self.now;
        let Some(open) = self.clients[at].files.get_mut(&inode) else { return };
        open.next_sync += 1;
        let id = open.next_sync;
        open.syncs.insert(id, open.written.clone());
        open.writer.sync(now, id);
    }

    pub(super) fn close(&mut self, at: usize, inode: Inode) {
        let Some(open) = self.clients[at].files.get_mut(&inode).filter(|open| !open.closing) else { return };
        open.closing = true;
        self.sync(at, inode);
    }

    /// Carries out what a writer wants.
    pub(super) fn run_writer(&mut self, at: usize, inode: Inode) {
        loop {
            let session = self.clients[at].session;
            let Some(open) = self.clients[at].files.get_mut(&inode) else { return };
            let policy = open.policy;
            if let Some((id, result)) = open.writer.next_answer() {
                let covered = open.syncs.remove(&id).unwrap_or_default();
                let (group, closing) = (open.group, open.closing);
                match result {
                    Ok(version) => self.acknowledged(inode, version, group, &covered),
                    Err(_) => {
                        self.report.failed_handles += 1;
                        self.failed_handle(at, inode);
                        return;
                    }
                }
                let open = self.clients[at].files.get_mut(&inode);
                if let Some(open) = open.filter(|open| closing && open.syncs.is_empty() && !open.close_sent) {
                    open.close_sent = true;
                    let journal = self.number();
                    self.request(at, For::Close(inode), Operation::Close { inode, session, journal });
                }
                continue;
            }
            let Some(effect) = open.writer.next_effect() else { return };
            let durable = policy.media == Media::Ssd;
            match effect {
                Effect::Put { to, entry, source, .. } => {
                    let damaged = self.faults.noisy && self.random.chance(0.01);
                    let from = match source {
                        Source::Client => None,
                        Source::Benefactor(place) => Some(place),
                    };
                    let put = Put { incarnation: to.incarnation, inode, mount: Some(MOUNT), entry };
                    self.send_to(at, to, ToNode::Put { put, durable, damaged, from });
                }
                Effect::Withdraw(to, instance) => self.send_to(at, to, ToNode::Withdraw(to, instance)),
                Effect::Seal { at: to, of, version, order, table } => {
                    self.send_to(at, to, ToNode::Seal { at: to, of, version, session, order, table });
                }
                Effect::Place { group, column, beside } => {
                    let domains: Vec<_> = beside.iter().map(|place| self.nodes[&place.id].domain).collect();
                    let candidates = self.candidates();
                    let found = match self.faults.store_gone {
                        true => None,
                        false => substitute(Bytes::from_mib(6), policy.media, &domains, &beside, &candidates),
                    };
                    self.report.hedged += u64::from(found.is_some() && beside.len() >= policy.copies as usize);
                    let now = self.now;
                    if let Some(open) = self.clients[at].files.get_mut(&inode) {
                        open.writer.placed(now, group, column, found.map(|(place, _)| place));
                    }
                }
                Effect::Commit { id, on, size, groups } => {
                    let groups = groups.into_iter().map(|(index, layout, table)| {
                        let digest = u32::try_from(self.oracle.tables.len()).unwrap_or_default();
                        let bytes = table.len() as u64 * u64::from(CHUNK);
                        self.oracle.tables.push(table);
                        (index, Group { layout, bytes, digest, by: session, absent: Runs::NONE, holes: Runs::NONE })
                    });
                    let (groups, on) = (groups.collect(), (on, 0));
                    let commit = Operation::Commit { inode, session, on, size, groups, close: None };
                    self.request(at, For::Commit(inode, id), commit);
                }
                Effect::Settle(groups) => self.settle_commit(at, inode, &groups),
                Effect::Committed(_) => {}
            }
        }
    }

    fn settle_commit(&mut self, at: usize, inode: Inode, groups: &[u32]) {
        let now = self.now;
        let node = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node.version,
            _ => return,
        };
        let newest = groups.iter().filter_map(|group| {
            let (version, of) = self.newest_group(inode, *group)?;
            Some((*group, (version, of.by)))
        });
        let newest = newest.collect();
        let gone = self.faults.store_gone;
        let Some(open) = self.clients[at].files.get_mut(&inode) else { return };
        if gone {
            open.settle_at = Some((now, groups.to_vec()));
        } else {
            open.writer.settled(now, node, &newest);
        }
    }

    fn send_to(&mut self, at: usize, to: Place, message: ToNode) {
        if self.faults.is_cut(at, to.id, self.now) {
            return;
        }
        self.send(|| Event::ToNode(to.id, at, message.clone()));
    }

    pub(super) fn node_answers(&mut self, at: usize, place: Place, message: FromNode) {
        if self.clients[at].stalled > self.now || self.faults.is_cut(at, place.id, self.now) {
            return;
        }
        let now = self.now;
        let files = &mut self.clients[at].files;
        let mut run = Vec::new();
        match message {
            FromNode::Put(instance, answer) => {
                for (inode, open) in files.iter_mut() {
                    // An answer of a former session is none.
                    if open.writer.owns(instance) {
                        open.writer.answer(now, place, instance, answer);
                        run.push(*inode);
                    }
                }
            }
            FromNode::Sealed(of, order, missing) => {
                if let Some(open) = files.get_mut(&of.inode) {
                    open.writer.sealed(now, place, of.group, order, &missing);
                    run.push(of.inode);
                }
            }
            FromNode::Over(inode) => {
                if let Some(open) = files.get_mut(&inode) {
                    open.writer.life_over(now, place);
                    run.push(inode);
                }
            }
        }
        run.into_iter().for_each(|inode| self.run_writer(at, inode));
    }

    pub(super) fn client_replied(&mut self, at: usize, request: u64, reply: Result<Reply, Refusal>) {
        if self.clients[at].stalled > self.now {
            return;
        }
        let Some(pending) = self.clients[at].requests.remove(&request) else { return };
        self.history.replied((Asker::Client(at), request), &reply);
        let now = self.now;
        match (pending.what, reply) {
            (For::Create(policy), Ok(Reply::Inode(inode))) => self.opened(at, inode, policy, Version::NONE),
            (For::Open, Ok(Reply::Version(version))) => {
                let Operation::OpenForWriting { inode, .. } = pending.operation else { return };
                if let Some(policy) = self.oracle.files.get(&inode).map(|file| file.policy) {
                    self.opened(at, inode, policy, version);
                }
            }
            (For::Commit(inode, id), reply) => {
                let reply = match reply {
                    Ok(Reply::Version(version)) => Ok(version),
                    Ok(_) => return,
                    Err(refusal) => Err(refusal),
                };
                if let Some(open) = self.clients[at].files.get_mut(&inode) {
                    open.writer.committed(now, id, Some(reply));
                }
                self.run_writer(at, inode);
            }
            (For::Close(inode), _) => drop(self.clients[at].files.remove(&inode)),
            _ => {}
        }
    }

    fn opened(&mut self, at: usize, inode: Inode, policy: Policy, on: Version) {
        let session = self.clients[at].session;
        // The reply may be of a session that has ended meanwhile.
        if self.store.get(&Key::Writer(inode, session)).is_none() {
            return;
        }
        self.oracle.opened(inode, policy);
        let size = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node.size,
            _ => return,
        };
        let config = Config {
            copies: policy.copies as usize,
            timeout: Duration::from_secs(1),
            attempts: 3,
            pause: Duration::from_millis(200),
            hedge_least: Duration::from_millis(100),
        };
        let open = Open {
            writer: Writer::new(config, inode, session, on, size),
            policy,
            group: u32::try_from(at).unwrap_or_default(),
            written: BTreeMap::new(),
            syncs: BTreeMap::new(),
            next_sync: 0,
            closing: false,
            close_sent: false,
            settle_at: None,
        };
        self.clients[at].files.entry(inode).or_insert(open);
    }

    /// A handle has failed: so does every sync and write from then on, whatever is tried.
    fn failed_handle(&mut self, at: usize, inode: Inode) {
        let now = self.now;
        let Some(mut open) = self.clients[at].files.remove(&inode) else { return };
        open.writer.sync(now, u64::MAX);
        while let Some((id, result)) = open.writer.next_answer() {
            if result.is_ok() {
                self.wrong(format!("sync {id} of {inode} says that all is well after the file has failed"));
            }
        }
        let instance = Instance { session: self.clients[at].session, number: 0 };
        let entry = Entry { instance, length: CHUNK, crc: 0 };
        if open.writer.write(now, (open.group, 0), entry, 0).is_ok() {
            self.wrong(format!("{inode} is written after it has failed"));
        }
        // What it has open for writing ends with the session, or now.
        let (session, journal) = (self.clients[at].session, self.number());
        self.request(at, For::Close(inode), Operation::Close { inode, session, journal });
    }

    /// Its session has ended in the store: it hears of it, and begins another.
    pub(super) fn session_over(&mut self, at: usize) {
        let inodes: Vec<Inode> = self.clients[at].files.keys().copied().collect();
        for inode in inodes {
            if let Some(open) = self.clients[at].files.get_mut(&inode) {
                open.writer.session_ended();
                open.writer.sync(self.now, u64::MAX - 1);
            }
            self.run_writer(at, inode);
        }
        let session = self.number();
        let fresh = Client { stalled: self.clients[at].stalled, ..Client::new(session) };
        self.clients[at] = fresh;
    }

    fn begin_read(&mut self, at: usize, name: &Name) {
        if self.faults.store_gone {
            return;
        }
        if let Some(inode) = self.entry(name) {
            let reading = self.snapshot(inode, None);
            if let Some(reading) = reading {
                self.later(1, 30, Event::Read(at, Box::new(reading)));
            }
        }
    }

    pub(super) fn end_read(&mut self, _: usize, reading: &Reading) {
        self.check_read(reading, false);
    }
}
