//! The read caches of a daemon: each has a thread that rents its volumes, and gives them to the cache of the device that is served.
//!
//! A read cache lies directly over the backing volume, beneath the elastic engine: every write that reaches the backing volume passes
//! it, drains among them. A device may have a second one beneath the first, which answers what that one does not have.
//!
//! - [`manager`]: the thread, which drives the pure life cycle ([`surgetank_rental::read_cache`]);
//! - [`sharing`]: how much of what the machine has for all of them each may have; [`boosts`]: what boosts have of it;
//! - [`store`]: what is durable; [`status`]: what people are told.

mod boosts;
mod manager;
mod sharing;
pub mod status;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender;
use surgetank_device::Volume;
use surgetank_device::volume::read_cache::{ReadCacheHandle, ReadCacheVolume};
use surgetank_rental::read_cache::{Level, device_tag};

pub(crate) use self::boosts::BoostShare;
use self::manager::{Manager, Start};
use self::sharing::{Lease, Shares};
use self::status::{ReadCacheStatus, ShareStatus};
use self::store::Store;
use crate::arrays::Context;
use crate::config::{Config, ReadCacheConfig};
use crate::providers::Providers;
use crate::shared::Shared;

/// How long whoever asks for the status waits.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// What the thread of a read cache is told.
pub(crate) enum Message {
    /// A device is served over this cache.
    Serve(ReadCacheHandle),
    /// It has ended.
    Closed,
    Status(Sender<Option<Box<ReadCacheStatus>>>),
    DiskChanged,
}

/// One read cache.
struct Entry {
    /// `Err`: it cannot be looked after, and why.
    inbox: Result<Sender<Message>, String>,
    config: Option<ReadCacheConfig>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    entries: BTreeMap<(String, Level), Entry>,
    /// `None`: each has its members.
    shares: Option<Shares>,
}

/// All of them, by device and level. Clones are the same.
#[derive(Clone)]
pub struct ReadCaches(Arc<Inner>);

/// A cache over the backing volume of a device that is served. The volumes are closed when it ends.
pub(crate) struct Served {
    inbox: Sender<Message>,
    /// Its part of what all share.
    _lease: Option<Lease>,
    /// Which one it is.
    pub level: Level,
    /// To ask it.
    pub handle: ReadCacheHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        // The daemon may have ended.
        let _ = self.inbox.send(Message::Closed);
    }
}

impl ReadCaches {
    /// Goes on where the last run ended with each: those of the configuration, and those whose section is gone, which are deleted.
    pub(crate) fn start(config: &Config, providers: &Providers, context: &Context) -> Self {
        let mut names: BTreeSet<(String, Level)> = match store::caches(&context.state_directory) {
            Ok(caches) => caches.into_iter().collect(),
            Err(error) => {
                tracing::error!(%error, "the records of read caches cannot be looked for");
                BTreeSet::new()
            }
        };
        let of_device = |name: &String, level| config.devices.get(name)?.read_cache.as_ref()?.at(level).cloned();
        let all = config.devices.keys().flat_map(|name| Level::ALL.map(|level| (name.clone(), level)));
        names.extend(all.filter(|(name, level)| of_device(name, *level).is_some()));
        let context = Arc::new(context.clone());
        let entry = |(name, level): (String, Level)| {
            let shared = Arc::new(Shared::default());
            // Until the records are read, whatever carries its name may be its own.
            shared.set_rentals(Vec::new(), true);
            let of_device = of_device(&name, level);
            let (inbox, thread) = match start((&name, level), of_device.clone(), providers, &context, &shared) {
                Ok((inbox, thread)) => (Ok(inbox), Some(thread)),
                Err(why) => {
                    let why = format!("the read cache of device {name} cannot be looked after: {why}");
                    tracing::error!("{why}");
                    (Err(why), None)
                }
            };
            ((name, level), Entry { inbox, config: of_device, shared, thread: Mutex::new(thread) })
        };
        let entries = names.into_iter().map(entry).collect();
        Self(Arc::new(Inner { entries, shares: Shares::start(config, &context.state_directory) }))
    }

    /// What the sweep must know of them, by the tags of their volumes.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (String, Arc<Shared>)> {
        self.0.entries.iter().map(|((name, level), entry)| (device_tag(*level, name), entry.shared.clone()))
    }

    /// The backing volume of a device with its read caches before it, as many as it is to have, the first level in front. Their volumes come later.
    ///
    /// # Errors
    /// One sentence: there can be no cache before this backing volume.
    pub(crate) fn over(
        &self,
        device: &str,
        mut backing: Box<dyn Volume>,
    ) -> Result<(Box<dyn Volume>, Vec<Served>), String> {
        let mut served = Vec::new();
        for level in Level::ALL.into_iter().rev() {
            let (over, one) = self.level_over(device, level, backing)?;
            backing = over;
            served.extend(one);
        }
        Ok((backing, served))
    }

    fn level_over(
        &self,
        device: &str,
        level: Level,
        backing: Box<dyn Volume>,
    ) -> Result<(Box<dyn Volume>, Option<Served>), String> {
        let entry = self.0.entries.get(&(device.to_owned(), level));
        let entry = entry.and_then(|entry| Some((entry, entry.config.as_ref()?)));
        let Some((Entry { inbox: Ok(inbox), .. }, config)) = entry else { return Ok((backing, None)) };
        let engine = surgetank_readcache::Config::new(backing.size(), backing.logical_block());
        let (mut cache, handle) = ReadCacheVolume::new(backing, engine)
            .map_err(|error| format!("device {device} cannot have a read cache: {error}"))?;
        cache.set_timeout(config.timeout);
        let shares = self.0.shares.as_ref();
        let lease = shares.and_then(|shares| shares.serve((device, level), &mut cache, &handle));
        let gone = |_| "the read cache is not looked after any more: the daemon ends".to_owned();
        inbox.send(Message::Serve(handle.clone())).map_err(gone)?;
        Ok((Box::new(cache), Some(Served { inbox: inbox.clone(), _lease: lease, level, handle })))
    }

    /// What a device's boosts have of what read caches share; `None`: as much as their provider rents.
    pub(crate) fn boosts(&self, device: &str) -> Option<BoostShare> {
        self.0.shares.as_ref()?.boosts(device)
    }

    /// How those of a device stand; `None`: it has none.
    #[must_use]
    pub fn status(&self, device: &str) -> Option<ReadCacheStatus> {
        let level2 = self.status_of(device, Level::Second);
        let level2 =
            level2.map(|second| Box::new(ReadCacheStatus { share: self.share(device, Level::Second), ..second }));
        match self.status_of(device, Level::First) {
            Some(first) => Some(ReadCacheStatus { share: self.share(device, Level::First), level2, ..first }),
            // What is left of one whose section is gone.
            None => level2.map(|level2| ReadCacheStatus { level2: Some(level2), ..ReadCacheStatus::default() }),
        }
    }

    fn status_of(&self, device: &str, level: Level) -> Option<ReadCacheStatus> {
        let inbox = match &self.0.entries.get(&(device.to_owned(), level))?.inbox {
            Ok(inbox) => inbox,
            Err(why) => return Some(ReadCacheStatus::refused(why.clone())),
        };
        let (reply, answer) = crossbeam_channel::bounded(1);
        let asked = inbox.send(Message::Status(reply)).ok().and_then(|()| answer.recv_timeout(STATUS_TIMEOUT).ok());
        match asked {
            Some(status) => status.map(|status| *status),
            None => Some(ReadCacheStatus::refused("the read cache does not answer".to_owned())),
        }
    }

    fn share(&self, device: &str, level: Level) -> Option<ShareStatus> {
        self.0.shares.as_ref()?.status(device, level)
    }

    /// A disk came or went.
    pub(crate) fn disk_changed(&self) {
        for inbox in self.0.entries.values().filter_map(|entry| entry.inbox.as_ref().ok()) {
            // One that has ended waits for none.
            let _ = inbox.send(Message::DiskChanged);
        }
    }
}

/// Ends the threads when nobody asks any more.
impl Drop for ReadCaches {
    fn drop(&mut self) {
        let Some(inner) = Arc::get_mut(&mut self.0) else { return };
        inner.shares = None;
        for ((name, _), entry) in &mut inner.entries {
            entry.inbox = Err("the daemon ends".to_owned());
            let thread = entry.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!(device = name, "the thread of the read cache panicked");
            }
        }
    }
}

fn start(
    (device, level): (&str, Level),
    wanted: Option<ReadCacheConfig>,
    providers: &Providers,
    context: &Arc<Context>,
    shared: &Arc<Shared>,
) -> Result<(Sender<Message>, JoinHandle<()>), String> {
    let records = Store::new(&context.state_directory, device, level).read()?;
    let recorded = records.first().map(|(provider, _)| provider.clone());
    let configured = wanted.as_ref().map(|wanted| wanted.provider.to_owned());
    let Some(from) = recorded.or(configured) else { return Err("nothing is on record".to_owned()) };
    let open = |name: &str| {
        providers.named(name).cloned().ok_or_else(|| {
            format!("its volumes are rented from \"{name}\": put [provider.{name}] back until they are deleted")
        })
    };
    let rented_from = (from.clone(), open(&from)?);
    let wanted = match wanted {
        Some(wanted) => {
            let provider = open(wanted.provider)?;
            Some((wanted, provider))
        }
        None => None,
    };
    if wanted.is_none() {
        tracing::info!(device, "the section of the read cache is gone: its volumes are deleted");
    }
    let records = records.into_iter().map(|(_, record)| record).collect();
    let start = Start { device: device.to_owned(), level, wanted, records, rented_from, shared: shared.clone() };
    let (inbox, messages) = crossbeam_channel::unbounded();
    let manager = Manager::new(start, context.clone());
    let spawned = std::thread::Builder::new().name(format!("reads-{device}")).spawn(move || manager.run(&messages));
    Ok((inbox, spawned.map_err(|error| format!("a thread cannot be started: {error}"))?))
}
