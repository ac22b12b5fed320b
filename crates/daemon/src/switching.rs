//! Drives the map of a device that the kernel maps: shows the machine that decides what holds, switches on a thread of its own,
//! and counts what goes straight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_model::Instant;
use surgetank_rental::mapping::{Map, Mapping};

use crate::effects::Moved;
use crate::exports::dm::Mapped;
use crate::kernel_statistics::KernelStatistics;
use crate::shard::{Sample, ShardHandle};

/// How a switch has ended.
pub type Switched = Result<(), String>;

/// See the module.
pub struct Switching {
    name: String,
    mapping: Mapping,
    mapped: Arc<Mapped>,
    shard: ShardHandle,
    done: (Sender<Switched>, Receiver<Switched>),
    /// Whether the switch under way is still wanted.
    wanted: Arc<AtomicBool>,
    traffic: Traffic,
}

/// What has gone straight since the daemon's start.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    /// What the kernel had counted at the start.
    before: Option<KernelStatistics>,
    straight: Moved,
    requests: u64,
    /// Of all requests.
    busy: Duration,
}

impl Traffic {
    /// The kernel counts all requests, the engine those that it has answered: the rest went straight. Those in flight are in
    /// one count and not yet in the other, so what is known to have gone straight never shrinks.
    fn note(&mut self, kernel: KernelStatistics, sample: &Sample) {
        let before = *self.before.get_or_insert(kernel);
        let rest = |all: u64, before: u64, served: u64| all.saturating_sub(before).saturating_sub(served);
        let served = sample.observation;
        let read = rest(kernel.read_bytes, before.read_bytes, served.read_bytes);
        let written = rest(kernel.written_bytes, before.written_bytes, served.written_bytes);
        let requests = rest(kernel.requests, before.requests, served.requests);
        self.straight.read_bytes = self.straight.read_bytes.max(read);
        self.straight.written_bytes = self.straight.written_bytes.max(written);
        self.requests = self.requests.max(requests);
        self.busy = self.busy.max(kernel.busy.saturating_sub(before.busy));
    }

    /// The sample as if all requests had passed through the engine.
    fn complete(&self, sample: &mut Sample) {
        let Self { straight: Moved { read_bytes, written_bytes }, requests, .. } = *self;
        sample.observation.read_bytes += read_bytes;
        sample.observation.written_bytes += written_bytes;
        sample.observation.requests += requests;
        // The kernel counts this for requests that go straight and for others alike.
        sample.observation.busy = sample.observation.busy.max(self.busy);
        sample.backing.read_bytes += read_bytes;
        sample.backing.written_bytes += written_bytes;
    }
}

impl Switching {
    /// Begins with this map.
    #[must_use]
    pub fn new(name: &str, mapped: Arc<Mapped>, map: Map, shard: ShardHandle) -> Self {
        let (mapping, done) = (Mapping::new(map), crossbeam_channel::unbounded());
        let (wanted, traffic) = (Arc::default(), Traffic::default());
        Self { name: name.to_owned(), mapping, mapped, shard, done, wanted, traffic }
    }

    /// Where a switch says that it has ended, for [`Switching::done`].
    #[must_use]
    pub fn answers(&self) -> Receiver<Switched> {
        self.done.1.clone()
    }

    /// A switch has ended.
    pub fn done(&mut self, now: Instant, result: Switched) {
        match &result {
            Ok(()) => tracing::debug!(device = self.name, "switched"),
            Err(why) => tracing::warn!(device = self.name, why, "not switched"),
        }
        self.mapping.switched(now, result);
    }

    /// What holds now: whether a rental wants the daemon to be asked, and whether the engine only passes requests on.
    pub fn update(&mut self, now: Instant, rental: bool, transparent: bool) {
        self.mapping.update(now, rental, transparent);
        let next = self.mapping.next_switch();
        self.wanted.store(self.mapping.is_wanted(), Ordering::Release);
        let Some(to) = next else { return };
        let (mapped, shard, done) = (self.mapped.clone(), self.shard.clone(), self.done.0.clone());
        let wanted = self.wanted.clone();
        let spawned = std::thread::Builder::new().name("switch".into()).spawn(move || {
            // It maps a disk that memory may be written back to: it must not wait for that while requests are held.
            if let Err(error) = surgetank_device::front::reclaim::mark_io_flusher() {
                tracing::debug!(%error, "not marked as serving a block device");
            }
            // The device may have ended.
            let _ = done.send(mapped.switch(to, &shard, &wanted));
        });
        if let Err(error) = spawned {
            self.done(now, Err(format!("a thread cannot be started: {error}")));
        }
    }

    /// Whether requests come to the daemon now; `None`: a switch will tell.
    #[must_use]
    pub fn service(&self) -> Option<Result<(), String>> {
        self.mapping.service()
    }

    /// The map, for people.
    #[must_use]
    pub fn map(&self) -> &'static str {
        match self.mapping.map() {
            Map::Straight => "straight",
            Map::Served => "served",
        }
    }

    /// Why the last switch failed.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.mapping.trouble()
    }

    /// When [`Switching::update`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.mapping.next_deadline()
    }

    /// Adds to a sample what went straight.
    pub fn complete(&mut self, sample: &mut Sample) {
        if let Some(kernel) = self.mapped.statistics() {
            self.traffic.note(kernel, sample);
        }
        self.traffic.complete(sample);
    }
}
