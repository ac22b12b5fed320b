//! The process that drains and publishes, and the target, which now and then does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::{Bytes, Instant};
use surgetank_pool_core::draining::{self, Draining, Job};
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::store::Write;
use surgetank_pool_core::meta::value::{Change, FileState, Kind, Value};
use surgetank_pool_core::meta::{Key, Prefix, Role};
use surgetank_pool_core::publishing::{Effect, Outcome, Publisher};

use super::oracle::Content;
use super::{Asker, Event, MOUNT, World};

/// See the module.
pub struct Drain {
    pub number: u64,
    pub down: Instant,
    owner: bool,
    publisher: Publisher,
    draining: Draining,
    known: BTreeSet<Job>,
    recording: BTreeMap<u64, (u64, Operation, Instant)>,
}

impl Drain {
    pub fn new(number: u64) -> Self {
        let config = draining::Config {
            at_once: 2,
            age_max: Duration::from_secs(20),
            pause: Duration::from_millis(200),
            pause_max: Duration::from_secs(5),
            beside: None,
            evict_to: 10,
            evict_above: 20,
        };
        Self {
            number,
            down: Instant::ZERO,
            owner: false,
            publisher: Publisher::new(),
            draining: Draining::new(config),
            known: BTreeSet::new(),
            recording: BTreeMap::new(),
        }
    }

    pub fn describe(&self) -> String {
        format!("{:?} {:?} {:?}", self.draining, self.publisher, self.recording)
    }
}

impl World {
    pub(super) fn stop_drain(&mut self) {
        let number = self.drain.number + 1;
        self.drain = Drain { down: self.now + self.milliseconds(100, 3000), ..Drain::new(number) };
    }

    pub(super) fn tick_drain(&mut self) {
        if self.drain.down > self.now || self.faults.store_gone {
            return;
        }
        let number = self.drain.number;
        if !self.drain.owner {
            self.drain.owner = true;
            let owner = Write::Put(Key::Owner(Role::Publisher(MOUNT)), Value::Owner(number));
            self.put(vec![owner]);
            // What is complete under a temporary name is used again.
            for (inode, version) in self.temporary.keys() {
                self.drain.publisher.drained(*inode, *version);
            }
        }
        let now = self.now;
        for (key, stored) in self.store.under(Prefix::Journal(MOUNT)) {
            if let (Key::Journal(_, journal), Value::Journal(change)) = (key, &stored.value) {
                self.drain.publisher.journalled(stored.created, *journal, change.clone());
            }
        }
        let wanted: Vec<(Inode, Version)> = self.drain.publisher.wanted().collect();
        for (inode, version) in wanted {
            let job = Job { mount: MOUNT, inode, version };
            if self.drain.known.insert(job) {
                self.drain.draining.wanted(job, Bytes::from_mib(1), now);
            }
        }
        while let Some(job) = self.drain.draining.next_job(now) {
            self.later(20, 300, Event::Brought(number, job));
        }
        self.pass_over();
        while let Some(effect) = self.drain.publisher.next_effect() {
            self.later(5, 50, Event::AtTarget(number, Box::new(effect)));
        }
        while let Some((journal, ended)) = self.drain.publisher.next_record() {
            if ended == PublicationEnd::Lost {
                self.is_rightly_lost(journal);
            }
            let operation = Operation::Published {
                publisher: number,
                mount: MOUNT,
                journal,
                ended,
                placed: Vec::new(),
                about: None,
            };
            let request = self.number();
            self.ask_once(Asker::Drain(number), request, &operation);
            self.drain.recording.insert(request, (journal, operation, now));
        }
        let late: Vec<u64> = self
            .drain
            .recording
            .iter()
            .filter(|(_, (.., at))| now.since(*at) > Duration::from_secs(2))
            .map(|(request, _)| *request)
            .collect();
        for request in late {
            if let Some((_, operation, at)) = self.drain.recording.get_mut(&request) {
                *at = now;
                let operation = operation.clone();
                self.ask_once(Asker::Drain(number), request, &operation);
            }
        }
        self.evict();
    }

    /// The target goes on behind what was removed before it had that.
    fn pass_over(&mut self) {
        let Some(effect) = self.drain.publisher.passable() else { return };
        let Change::Publish { inode, version, path } = &effect.change else { return };
        if effect.maybe_done && self.target.0.get(path) == Some(&Some((*inode, *version))) {
            return;
        }
        if super::all_keys(&self.store).any(|(_, stored)| stored.value == Value::Entry(*inode)) {
            self.wrong(format!("{inode} {version:?} is passed over, and has a name"));
        }
        self.drain.publisher.pass_over(effect.journal, !self.target.0.contains_key(path));
        self.drain.draining.unwanted(&Job { mount: MOUNT, inode: *inode, version: *version });
        self.report.passed += 1;
    }

    fn is_rightly_lost(&mut self, journal: u64) {
        let change = match self.store.get(&Key::Journal(MOUNT, journal)).map(|stored| &stored.value) {
            Some(Value::Journal(change)) => change.clone(),
            _ => return,
        };
        if let Change::Publish { inode, version, .. } = change
            && !self.oracle.lossable.contains(&inode)
        {
            self.wrong(format!("{inode} {version:?} counts as lost, and was promised"));
        }
    }

    /// The bytes of a version are read, and written to the target.
    pub(super) fn brought(&mut self, number: u64, job: Job) {
        if number != self.drain.number {
            return;
        }
        if self.faults.target_gone > self.now {
            self.drain.draining.failed(self.now, &job);
            return;
        }
        let Job { inode, version, .. } = job;
        let Some(reading) = self.snapshot(inode, Some(version)) else {
            self.drain.draining.unwanted(&job);
            return;
        };
        match self.read_content(&reading) {
            Content::All(content) => {
                let chunks = content.into_iter().flat_map(|(group, chunks)| {
                    chunks.into_iter().map(move |(chunk, number)| ((group, chunk), number))
                });
                self.temporary.insert((inode, version), chunks.collect());
                self.drain.draining.drained(&job);
                self.drain.publisher.drained(inode, version);
            }
            Content::Failed(_) if self.is_lost(inode, version) => {
                self.drain.draining.unwanted(&job);
                self.drain.publisher.lost(inode, version);
            }
            Content::Failed(_) => self.drain.draining.interrupted(&job),
            Content::Wrong(what) => self.wrong(format!("the drain reads {what}")),
        }
    }

    pub(super) fn at_target(&mut self, number: u64, effect: &Effect) {
        if number != self.drain.number && self.random.chance(0.5) {
            return;
        }
        if self.faults.target_gone > self.now {
            self.drain_completes(number, effect.journal, Outcome::Later);
            return;
        }
        // A process that has ended does nothing more; what it had sent may still take place before the next one begins.
        if number != self.drain.number {
            return;
        }
        if let Change::Publish { inode, version, .. } = &effect.change {
            let expected = self.oracle.chunks_of(*inode, *version);
            if self.temporary.get(&(*inode, *version)) != Some(&expected) {
                let has = self.temporary.get(&(*inode, *version));
                self.wrong(format!(
                    "{inode} {version:?} is published with {has:?}, and was committed with {expected:?}"
                ));
                return;
            }
            self.oracle.published.insert((*inode, *version));
            self.report.published += 1;
        }
        let complete = |of: (Inode, Version)| self.temporary.contains_key(&of);
        match self.target.change(&effect.change, effect.maybe_done || self.oracle.any_lost, &complete) {
            Ok(()) => self.drain_completes(number, effect.journal, Outcome::Done),
            Err(what) => self.wrong(what),
        }
    }

    fn drain_completes(&mut self, number: u64, journal: u64, outcome: Outcome) {
        if number == self.drain.number {
            self.drain.publisher.complete(journal, outcome);
        }
    }

    pub(super) fn drain_replied(&mut self, number: u64, request: u64, reply: &Result<Reply, Refusal>) {
        if number != self.drain.number {
            return;
        }
        let Some((journal, ..)) = self.drain.recording.remove(&request) else { return };
        match reply {
            // The second answer to a request that was asked twice.
            Ok(_) | Err(Refusal::NotFound) => drop(self.drain.publisher.recorded(journal)),
            Err(_) => {}
        }
    }

    /// Room is made of what the target has.
    fn evict(&mut self) {
        if !self.random.chance(0.1) {
            return;
        }
        let bytes = |inode: Inode| {
            let groups = self.store.under(Prefix::Groups(inode));
            let all = groups.map(|(_, stored)| if let Value::Group(group) = &stored.value { group.bytes } else { 0 });
            Bytes::new(all.sum())
        };
        let drained = super::all_keys(&self.store).filter_map(|(key, stored)| match (key, &stored.value) {
            (Key::Node(inode), Value::Node(node)) if node.kind == Kind::File(FileState::Drained) => {
                Some((*inode, bytes(*inode), self.now))
            }
            _ => None,
        });
        let drained: Vec<_> = drained.collect();
        let used = Bytes::new(drained.iter().map(|(_, bytes, _)| bytes.get()).sum());
        for inode in self.drain.draining.evictions(used, Bytes::from_mib(40), &drained) {
            self.ask_to_evict(inode);
        }
    }
}
