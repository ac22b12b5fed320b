//! The arrays of a daemon: each has a thread that rents its volumes, and replaces its members while a device serves it.
//!
//! - [`manager`]: the thread, which drives the pure life cycle ([`surgetank_rental::array`]);
//! - [`carrying`]: how it carries out what that asks; [`store`]: what is durable; [`assembling`]: without it;
//! - [`credits`]: what members have of theirs, over restarts;
//! - [`rotating`]: when members are replaced by themselves;
//! - [`offline`]: arrays without a daemon; [`status`]: what people are told.

mod assembling;
mod carrying;
mod credits;
mod manager;
pub mod offline;
mod rotating;
pub mod status;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender};
use surgetank_device::Volume;
use surgetank_device::discovery::Disks;
use surgetank_model::toml_error::nearest;
use surgetank_provider::Provider;
use surgetank_rental::array::device_tag;

use self::manager::Manager;
pub(crate) use self::rotating::remarks;
use self::status::{ArrayStatus, ArraysReport};
use self::store::ArrayStore;
use crate::clock::Clock;
use crate::config::{ArrayConfig, Backing, Config};
use crate::opening::Decorator;
use crate::providers::Providers;
use crate::shared::Shared;

/// How long a device waits for the array under it when it starts.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long whoever creates or deletes an array waits: a provider may take minutes for its volumes.
const LONG_TIMEOUT: Duration = Duration::from_secs(280);
/// How long whoever asks for something that is done at once waits.
const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

/// With what arrays and read caches work.
#[derive(Clone)]
pub(crate) struct Context {
    /// The state directory, and its random name.
    pub state_directory: PathBuf,
    pub owner_id: String,
    pub clock: Clock,
    pub disks: Disks,
    pub decorator: Option<Decorator>,
}

/// What is answered.
pub(crate) type Reply<T> = Sender<Result<T, String>>;

/// What the thread of an array is told.
pub(crate) enum Message {
    Create(Reply<()>),
    /// Of the volumes that are found, those of this array alone, if it is named.
    Assemble(Option<String>, Reply<Vec<String>>),
    Open(Reply<Box<dyn Volume>>),
    Replace(Option<u32>, Reply<Vec<u32>>),
    Delete(Reply<()>),
    Status(Reply<Box<ArrayStatus>>),
    DiskChanged,
}

/// One array.
struct Entry {
    /// `None`: it cannot be looked after, and why.
    inbox: Result<Sender<Message>, String>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The device over it, if one is configured.
    device: Option<String>,
}

/// All of them. Clones are the same.
#[derive(Clone, Default)]
pub struct Arrays(Arc<BTreeMap<String, Entry>>);

impl Arrays {
    /// Goes on where the last run ended with each. One that cannot be looked after is told when it is asked for.
    pub(crate) fn start(config: &Config, providers: &Providers, context: Context) -> Self {
        let context = Arc::new(context);
        let entry = |(name, array): (&String, &ArrayConfig)| {
            let shared = Arc::new(Shared::default());
            // Until the record is read, whatever carries its name may be its own.
            shared.set_rentals(Vec::new(), true);
            let over = |(device, config): (&String, &crate::config::DeviceConfig)| {
                (config.backing == Backing::Array(name.clone())).then(|| device.clone())
            };
            let device = config.devices.iter().find_map(over);
            let started = providers.named(array.provider).ok_or_else(|| "its provider is not open".to_owned());
            let started = started
                .and_then(|provider| start(name, array, provider.clone(), &context, (shared.clone(), device.clone())));
            let (inbox, thread) = match started {
                Ok((inbox, thread)) => (Ok(inbox), Some(thread)),
                Err(why) => {
                    let why = format!("array {name} cannot be looked after: {why}");
                    tracing::error!("{why}");
                    (Err(why), None)
                }
            };
            (name.clone(), Entry { inbox, shared, thread: Mutex::new(thread), device })
        };
        Self(Arc::new(config.arrays.iter().map(entry).collect()))
    }

    /// What the sweep must know of them, by the tags of their volumes.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (String, Arc<Shared>)> {
        self.0.iter().map(|(name, entry)| (device_tag(name), entry.shared.clone()))
    }

    fn entry(&self, name: &str) -> Result<&Entry, String> {
        self.0.get(name).ok_or_else(|| {
            let remedy = match nearest(name, self.0.keys().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if self.0.is_empty() => format!("add a section [array.{name}]"),
                None => format!("it has {}", self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ")),
            };
            format!("there is no array \"{name}\" in this configuration: {remedy}")
        })
    }

    fn ask<T>(&self, name: &str, timeout: Duration, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, String> {
        let inbox = self.entry(name)?.inbox.as_ref().map_err(Clone::clone)?;
        let gone = || format!("the array {name} is not looked after any more: the daemon ends");
        let (reply, answer) = crossbeam_channel::bounded(1);
        inbox.send(message(reply)).map_err(|_| gone())?;
        answer.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Disconnected => gone(),
            RecvTimeoutError::Timeout => format!(
                "the array {name} has not answered for {} s, and goes on: `surgetank array status {name}` says how far it is",
                timeout.as_secs()
            ),
        })?
    }

    /// Rents and formats its members. Answers when that is done.
    ///
    /// # Errors
    /// One sentence: it exists, or could not be created; then nothing of it is left, or is being deleted.
    pub fn create(&self, name: &str) -> Result<(), String> {
        self.ask(name, LONG_TIMEOUT, Message::Create)
    }

    /// Finds its volumes by their tags and by what is on them. Answers what should be known.
    ///
    /// # Errors
    /// One sentence: it is on record, or its volumes make none.
    pub fn assemble(&self, name: &str, id: Option<&str>) -> Result<Vec<String>, String> {
        self.ask(name, LONG_TIMEOUT, |reply| Message::Assemble(id.map(str::to_owned), reply))
    }

    /// The array as a volume, for the device over it.
    ///
    /// # Errors
    /// One sentence: there is none, or a member is missing.
    pub fn open(&self, name: &str) -> Result<Box<dyn Volume>, String> {
        self.ask(name, OPEN_TIMEOUT, Message::Open)
    }

    /// Has the members of one slot or of all be replaced. Answers which slots.
    ///
    /// # Errors
    /// One sentence: no device serves it, or it has no such slot.
    pub fn rotate(&self, name: &str, slot: Option<u32>) -> Result<Vec<u32>, String> {
        self.ask(name, SHORT_TIMEOUT, |reply| Message::Replace(slot, reply))
    }

    /// Deletes it with its data. Answers when nothing is left of it.
    ///
    /// # Errors
    /// One sentence: there is none, or a device uses it.
    pub fn delete(&self, name: &str) -> Result<(), String> {
        self.ask(name, LONG_TIMEOUT, Message::Delete)
    }

    /// How one stands, or all.
    ///
    /// # Errors
    /// There is no such array.
    pub fn status(&self, name: Option<&str>) -> Result<ArraysReport, String> {
        let names = match name {
            Some(name) => {
                self.entry(name)?;
                vec![name]
            }
            None => self.0.keys().map(String::as_str).collect(),
        };
        let status = |name: &str| {
            let answer = self.ask(name, SHORT_TIMEOUT, Message::Status);
            answer.map_or_else(|why| ArrayStatus::refused(name, why), |status| *status)
        };
        Ok(ArraysReport { arrays: names.into_iter().map(status).collect() })
    }

    /// The device that is configured over one.
    #[must_use]
    pub fn device_over(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.device.as_deref()
    }

    /// A disk came or went.
    pub(crate) fn disk_changed(&self) {
        for inbox in self.0.values().filter_map(|entry| entry.inbox.as_ref().ok()) {
            // One that has ended waits for none.
            let _ = inbox.send(Message::DiskChanged);
        }
    }
}

/// Whether there is an array, as far as the state directory knows.
///
/// # Errors
/// One sentence: its record cannot be read.
pub(crate) fn is_on_record(config: &Config, name: &str) -> Result<bool, String> {
    let Some(array) = config.arrays.get(name) else { return Ok(false) };
    Ok(ArrayStore::new(&config.state_directory, name, array.provider).read()?.is_some())
}

/// Ends the threads when nobody asks any more.
impl Drop for Arrays {
    fn drop(&mut self) {
        let Some(entries) = Arc::get_mut(&mut self.0) else { return };
        for (name, entry) in entries.iter_mut() {
            entry.inbox = Err(format!("the array {name} is not looked after any more: the daemon ends"));
            let thread = entry.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!(array = name, "the thread of the array panicked");
            }
        }
    }
}

fn start(
    name: &str,
    config: &ArrayConfig,
    provider: Arc<dyn Provider>,
    context: &Arc<Context>,
    (shared, device): (Arc<Shared>, Option<String>),
) -> Result<(Sender<Message>, JoinHandle<()>), String> {
    let store = ArrayStore::new(&context.state_directory, name, config.provider);
    let record = store.read()?;
    let (inbox, messages) = crossbeam_channel::unbounded();
    let config = config.clone();
    let manager = Manager::new(name, config, provider, context.clone(), store, record, (shared, device))?;
    let spawned = std::thread::Builder::new().name(format!("array-{name}")).spawn(move || manager.run(&messages));
    Ok((inbox, spawned.map_err(|error| format!("a thread cannot be started: {error}"))?))
}
