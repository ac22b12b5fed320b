//! The thread of one array: it tells the life cycle what people ask and what has happened, and carries out what that asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_array::effect::Target;
use surgetank_device::Volume;
use surgetank_device::volume::array::{Answer as Joining, ArrayHandle};
use surgetank_model::{Instant, Lag};
use surgetank_policy::backoff::Backoff;
use surgetank_provider::Provider;
use surgetank_rental::array::{self, Array, ArrayRecord, Ended, Event};
use surgetank_rental::rental::Notice;
use surgetank_rental::{AskId, Slot};

use super::credits::Metered;
use super::rotating::Rotating;
use super::store::ArrayStore;
use super::{Context, Message, Reply, status};
use crate::clock::unix_ms;
use crate::config::{ArrayConfig, Use};
use crate::crash::crash_point;
use crate::credits::CreditRecord;
use crate::members::Done;
use crate::opening::Opened;
use crate::shared::Shared;

/// How often an array that is served is asked what has happened: while members are replaced, and otherwise.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long a volume may take to be created, and to be attached or detached.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(120));
/// How long a member that cannot be attached is waited for at a start.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) config: ArrayConfig,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) context: Arc<Context>,
    pub(super) store: ArrayStore,
    pub(super) shared: Arc<Shared>,
    pub(super) device: Option<String>,
    pub(super) life: Array,
    pub(super) done: (Sender<Done>, Receiver<Done>),
    /// Volumes that are open and not given to the array, by the ask that opened them.
    pub(super) open: BTreeMap<Slot, (AskId, Opened)>,
    /// The credits of volumes that this daemon holds to them.
    pub(super) meters: BTreeMap<Slot, Metered>,
    /// What is on record of them, and when it is next written.
    pub(super) credits: CreditRecord,
    pub(super) credits_due: Instant,
    /// The volumes that the array was given, by the numbers under which it knows them.
    pub(super) targets: BTreeMap<Target, Slot>,
    pub(super) next_target: u32,
    /// The array that is served.
    pub(super) handle: Option<ArrayHandle>,
    /// The array on its way to who opens it.
    pub(super) opened: Option<Box<dyn Volume>>,
    /// Members that were given to the array, which has not said whether it takes them.
    pub(super) joins: Vec<(AskId, Joining)>,
    creators: Vec<Reply<()>>,
    openers: Vec<Reply<Box<dyn Volume>>>,
    pub(super) deleters: Vec<Reply<()>>,
    /// Of the array that is served.
    pub(super) rotating: Option<Rotating>,
    /// Bytes of a region of the array that is served.
    pub(super) region: u32,
    /// Members replaced since the daemon started.
    pub(super) replaced: u64,
}

impl Manager {
    pub(super) fn new(
        name: &str,
        config: ArrayConfig,
        provider: Arc<dyn Provider>,
        context: Arc<Context>,
        store: ArrayStore,
        record: Option<ArrayRecord>,
        (shared, device): (Arc<Shared>, Option<String>),
    ) -> Result<Self, String> {
        if let Some(record) = &record {
            check(&config, record)?;
        }
        let life = life(name, &config, &context, provider.lag(), record);
        let (credits, credits_due) = (CreditRecord::open(store.credits()), context.clock.now());
        let manager = Self {
            name: name.to_owned(),
            config,
            provider,
            context,
            store,
            shared,
            device,
            life,
            done: crossbeam_channel::unbounded(),
            open: BTreeMap::new(),
            meters: BTreeMap::new(),
            credits,
            credits_due,
            targets: BTreeMap::new(),
            next_target: 0,
            handle: None,
            opened: None,
            joins: Vec::new(),
            creators: Vec::new(),
            openers: Vec::new(),
            deleters: Vec::new(),
            rotating: None,
            region: 0,
            replaced: 0,
        };
        manager.publish();
        Ok(manager)
    }

    pub(super) fn now(&self) -> Instant {
        self.context.clock.now()
    }

    /// Runs until nobody is left who could ask.
    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        crate::planted::plant();
        let done = self.done.1.clone();
        loop {
            self.go_on();
            if self.rotate() {
                self.go_on();
            }
            self.write_credits_if_due();
            let wait = self.context.clock.until(Some(self.next_wake()));
            let timeout = wait.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
            crossbeam_channel::select_biased! {
                recv(inbox) -> message => match message {
                    Ok(message) => self.message(message),
                    Err(_) => break,
                },
                recv(done) -> done => if let Ok(done) = done {
                    self.done(done);
                },
                recv(timeout) -> _ => {
                    let now = self.now();
                    self.life.tick(now);
                }
            }
        }
        self.write_credits();
        self.write_learned();
    }

    fn next_wake(&self) -> Instant {
        let busy = !self.joins.is_empty() || !self.life.status().wanted.is_empty();
        let look = self.handle.is_some().then(|| self.now() + if busy { LOOK.0 } else { LOOK.1 });
        [look, self.life.next_deadline()].into_iter().flatten().min().unwrap_or(self.now() + LOOK.1 * 60)
    }

    fn message(&mut self, message: Message) {
        let now = self.now();
        match message {
            Message::Create(reply) => match self.life.create(now) {
                Ok(()) => self.creators.push(reply),
                Err(why) => answer(&reply, Err(why)),
            },
            Message::Assemble(id, reply) => answer(&reply, self.assemble(id.as_deref())),
            Message::Open(reply) => match self.life.open(now) {
                Ok(()) => self.openers.push(reply),
                Err(why) => answer(&reply, Err(why)),
            },
            Message::Replace(slot, reply) => {
                let slots = slot.map_or_else(|| (0..self.config.members).collect(), |slot| vec![slot]);
                let replaced = self.affords(slots.len()).and_then(|()| self.life.replace(now, &slots));
                if replaced.is_ok() {
                    self.asked_for(&slots);
                }
                answer(&reply, replaced.map(|()| slots));
            }
            Message::Delete(reply) => match self.life.delete(now) {
                Ok(()) => self.deleters.push(reply),
                Err(why) => answer(&reply, Err(why)),
            },
            Message::Status(reply) => answer(&reply, Ok(Box::new(status::of(self)))),
            Message::DiskChanged => self.life.disk_changed(now),
        }
    }

    /// Carries out what is asked, tells what has happened, and answers who waits.
    fn go_on(&mut self) {
        loop {
            self.look();
            let mut moved = false;
            while let Some((id, ask)) = self.life.next_ask() {
                moved = true;
                if let Some(answer) = self.answer(id, ask) {
                    let now = self.now();
                    self.life.complete(now, id, answer);
                }
                self.publish();
            }
            while let Some(ended) = self.life.next_ended() {
                moved = true;
                self.ended(ended);
            }
            if !moved {
                break;
            }
        }
        while let Some(notice) = self.life.next_notice() {
            let array = &self.name;
            match notice {
                Notice::NotDone(what) => tracing::debug!(array, what, "not done"),
                Notice::Warning(what) => tracing::warn!(array, "{what}"),
                Notice::Error(what) => tracing::error!(array, "{what}"),
                Notice::Passed(what) => tracing::info!(array, "{what}"),
            }
        }
        self.publish();
    }

    /// Lets the sweep know what is rented.
    fn publish(&self) {
        let (volumes, nameless) = self.life.volumes();
        self.shared.set_rentals(volumes, nameless);
    }

    /// What the array that is served has done.
    fn look(&mut self) {
        let Some(handle) = &self.handle else { return };
        let (events, released) = (handle.take_events(), handle.take_released());
        // Closed before the life cycle hears of it.
        drop(released);
        let now = self.now();
        for event in events {
            let event = match event {
                surgetank_array::Event::Replaced { slot, by } => {
                    let Some(place) = self.targets.get(&by).copied() else { continue };
                    crash_point("array-replaced", "before");
                    Event::Replaced { slot, place }
                }
                surgetank_array::Event::Dropped { slot, .. } => Event::Dropped { slot },
                surgetank_array::Event::Released(target) => {
                    let Some(place) = self.targets.remove(&target) else { continue };
                    self.meters.remove(&place);
                    Event::Released(place)
                }
                surgetank_array::Event::Grown { size } => {
                    tracing::info!(
                        array = self.name,
                        "the array has {size} bytes now: `surgetank resize` passes them on"
                    );
                    continue;
                }
            };
            self.life.event(now, event);
        }
        let mut answered = Vec::new();
        self.joins.retain(|(id, joining)| match joining.wait(Duration::ZERO) {
            None => true,
            Some(result) => {
                answered.push((*id, result.map_err(|refusal| refusal.to_string())));
                false
            }
        });
        for (id, result) in answered {
            self.life.complete(now, id, array::Answer::Joined(result));
        }
    }

    fn ended(&mut self, ended: Ended) {
        let name = &self.name.clone();
        match ended {
            Ended::Created(result) => {
                match &result {
                    Ok(()) => tracing::info!(array = name, "created, of {} members", self.config.members),
                    Err(why) => tracing::error!(array = name, "not created, and what was rented is deleted: {why}"),
                }
                let result = result.map_err(|why| {
                    format!("the array {name} was not created: {why}; what was rented for it is deleted")
                });
                self.creators.drain(..).for_each(|reply| answer(&reply, result.clone()));
            }
            Ended::Opened(Ok(())) => {
                self.begin_rotating();
                let mut openers = self.openers.drain(..);
                match (openers.next(), self.opened.take()) {
                    (Some(reply), Some(volume)) => answer(&reply, Ok(volume)),
                    (Some(reply), None) => answer(&reply, Err(format!("the array {name} was closed"))),
                    (None, _) => {}
                }
            }
            Ended::Opened(Err(why)) => self.openers.drain(..).for_each(|reply| answer(&reply, Err(why.clone()))),
            Ended::NotReplaced { slot, refusal } => self.was_not_replaced(slot, refusal),
            Ended::Replaced(slot) => {
                self.replaced += 1;
                self.was_replaced(slot);
                crash_point("array-replaced", "after");
                tracing::info!(array = name, "slot {slot} has a new member");
            }
            Ended::Deleted => {
                tracing::info!(array = name, "nothing is left of it");
                self.deleters.drain(..).for_each(|reply| answer(&reply, Ok(())));
            }
        }
    }
}

pub(super) fn answer<T>(reply: &Reply<T>, result: Result<T, String>) {
    // Whoever asked may have gone.
    let _ = reply.send(result);
}

/// Whether the configuration speaks of the array that is on record.
fn check(config: &ArrayConfig, record: &ArrayRecord) -> Result<(), String> {
    let members = record.facts.members.len();
    if record.facts.stage == array::Stage::Made && members > 0 && members != config.members as usize {
        return Err(format!(
            "it has {members} members, and its section says {}: write members = {members}, since a stripe keeps its number of members",
            config.members
        ));
    }
    let smallest =
        record.facts.members.iter().filter_map(|place| record.volume(*place)).map(|volume| volume.size).min();
    match smallest {
        Some(size) if size > config.member_size => Err(format!(
            "its members have {size}, and its section says {}: write member_size = \"{size}\", or more if it is to grow",
            config.member_size
        )),
        _ => Ok(()),
    }
}

/// The life cycle, from what is on record.
pub(super) fn life(
    name: &str,
    config: &ArrayConfig,
    context: &Context,
    lag: Lag,
    record: Option<ArrayRecord>,
) -> Array {
    let now = context.clock.now();
    let since = u64::try_from(now.since(Instant::ZERO).as_millis()).unwrap_or(0);
    let config = array::Config {
        name: name.to_owned(),
        owner_id: context.owner_id.clone(),
        volume_type: config.volume_type.clone(),
        members: config.members,
        member_size: config.member_size,
        hold: match config.usage {
            Use::Persistent => Duration::ZERO,
            Use::Ephemeral { hold } => hold,
        },
        replaced_at_once: config.rotate_at_once,
        timeouts: TIMEOUTS,
        open_patience: OPEN_PATIENCE,
        backoff: Backoff::default(),
        unix_ms_at_zero: unix_ms().saturating_sub(since),
        lag,
        seed: rand::random(),
    };
    Array::new(config, now, record)
}
