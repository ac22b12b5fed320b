//! One run: the life cycle, its provider, the array that it serves, a user, and crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use surgetank_model::event_queue::EventQueue;
use surgetank_model::random::Random;
use surgetank_model::volume::{VolumeId, tag};
use surgetank_model::{Bytes, Instant};
use surgetank_policy::backoff::Backoff;
use surgetank_rental::array::{self, Answer, Array, ArrayRecord, Ask, Ended, Event, Stage, device_tag};
use surgetank_rental::sweep::{Action, Known, is_confirmed, orphans};
use surgetank_rental::{AskId, Call, RentalRecord, Slot};

use super::Scenario;
use super::media::Media;
use crate::disk::Disk;
use crate::world::cloud::Cloud;
use crate::world::lagging::allowance;

const OWNER: &str = "us";
const ARRAY: &str = "scratch";
const MEMBER: u64 = 1 << 20;
/// Longest time until an ask is answered, and a call that goes wrong is carried out.
const ANSWER_MAX: Duration = Duration::from_millis(3);
pub(super) const LATE_MAX: Duration = Duration::from_millis(900);
/// Longest time of a copy, and between two of its steps.
const COPY_MAX: Duration = Duration::from_millis(60);
/// Longest time for which a volume is out of reach after a crash: longer than a start waits for it.
const OUT_OF_REACH_MAX: Duration = Duration::from_millis(3000);
const SWEEP: Duration = Duration::from_millis(150);
const NOW_AND_THEN: Duration = Duration::from_millis(700);
/// A run that lasts longer does not come to rest.
const LONGEST: Duration = Duration::from_secs(900);
/// Faults end after this.
const FAULTS: Duration = Duration::from_secs(6);
/// What was refused late happens, and listings know everything, once it has been quiet for so long.
const QUIET: Duration = Duration::from_secs(8);

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, ask {asks}, {at}: {what}\n  scenario: {scenario}\n  status: {status}")]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Asks so far.
    pub asks: u64,
    /// Virtual time.
    pub at: Instant,
    /// What is wrong.
    pub what: String,
    /// The scenario's values.
    pub scenario: String,
    /// The life cycle's own view, and the volumes.
    pub status: String,
}

/// What runs did, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Asks.
    pub asks: u64,
    /// Crashes.
    pub crashes: u64,
    /// Of those, while a new member was on its way or joining.
    pub crashes_in_replacements: u64,
    /// Calls and writes that went wrong.
    pub faults: u64,
    /// Calls that were throttled.
    pub throttled: u64,
    /// Volumes that could not be made.
    pub failed_volumes: u64,
    /// Answers that a volume is not there which was.
    pub unknown: u64,
    /// Listings from before.
    pub stale: u64,
    /// Volumes that a creation made besides.
    pub twins: u64,
    /// Creations that failed or were cut short.
    pub undone: u64,
    /// Members replaced.
    pub replaced: u64,
    /// Copies that a start went on with.
    pub resumed: u64,
    /// Starts at which a member was out of reach.
    pub refused: u64,
    /// Volumes that a sweep deleted.
    pub swept: u64,
}

impl AddAssign<&Self> for Report {
    fn add_assign(&mut self, other: &Self) {
        self.asks += other.asks;
        self.crashes += other.crashes;
        self.crashes_in_replacements += other.crashes_in_replacements;
        self.faults += other.faults;
        self.throttled += other.throttled;
        self.failed_volumes += other.failed_volumes;
        self.unknown += other.unknown;
        self.stale += other.stale;
        self.twins += other.twins;
        self.undone += other.undone;
        self.replaced += other.replaced;
        self.resumed += other.resumed;
        self.refused += other.refused;
        self.swept += other.swept;
    }
}

pub(super) type Step<T = ()> = Result<T, String>;

/// What happens.
#[derive(Debug)]
pub(super) enum SimEvent {
    /// An ask is answered.
    Answer(AskId, Box<Ask>),
    /// A call that nobody waits for is carried out; also after a crash.
    Late(Box<Call>),
    /// The array that is served goes on with a slot.
    Engine(u32),
    Sweep,
    /// The user wants something, as soon as something has ended and now and then.
    User,
    NowAndThen,
    Tick,
}

/// How far a replacement is in the array that is served.
#[derive(Clone, Debug)]
pub(super) enum Copy {
    Copying(Slot, VolumeId),
    /// The new member counts on the media; then the life cycle is told, and the old one is.
    Switched {
        new: (Slot, VolumeId),
        old: (Slot, VolumeId),
    },
    Told {
        old: (Slot, VolumeId),
    },
    Dropped(Slot, VolumeId),
}

/// See the module.
pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    pub now: Instant,
    pub random: Random,
    /// Events of a process that died are of an earlier life.
    pub life_number: u64,
    pub queue: EventQueue<(u64, SimEvent)>,
    pub life: Array,
    pub durable: Option<ArrayRecord>,
    pub cloud: Cloud,
    pub media: Media,
    /// Volumes that are open and not given to the array.
    pub open: BTreeMap<Slot, (AskId, VolumeId, Disk)>,
    /// Volumes that the array has.
    pub given: BTreeMap<Slot, (VolumeId, Disk)>,
    pub copies: BTreeMap<u32, Copy>,
    pub calls: Vec<Call>,
    /// A volume that cannot be opened until then.
    pub out_of_reach: Option<(VolumeId, Instant)>,
    pub persisting: Option<Option<ArrayRecord>>,
    /// The user was told that the array is there, and has not asked for its deletion.
    pub promised: bool,
    deleting: bool,
    asks_left: u64,
    crashes: std::slice::Iter<'a, u64>,
    replacements: std::slice::Iter<'a, u32>,
    quiet_since: Instant,
    pub report: Report,
}

/// Runs a scenario.
///
/// # Errors
/// The first promise that is broken.
pub fn run(scenario: &Scenario) -> Result<Report, Failure> {
    let mut world = World::new(scenario);
    let ended = world.run();
    ended.map(|()| world.report.clone()).map_err(|what| Failure {
        seed: scenario.seed,
        asks: world.report.asks,
        at: world.now,
        what,
        scenario: format!("{scenario:?}"),
        status: format!("{:?}; {}", world.life.status(), world.cloud.summary()),
    })
}

fn config(scenario: &Scenario) -> array::Config {
    array::Config {
        name: ARRAY.to_owned(),
        owner_id: OWNER.to_owned(),
        volume_type: "fast".to_owned(),
        members: scenario.members,
        member_size: Bytes::new(MEMBER),
        hold: if scenario.holds { Duration::from_secs(2) } else { Duration::ZERO },
        replaced_at_once: 1,
        timeouts: (Duration::from_millis(700), Duration::from_millis(700)),
        open_patience: Duration::from_millis(1500),
        backoff: Backoff {
            first: Duration::from_millis(20),
            cap: Duration::from_millis(300),
            permanent: Duration::from_millis(300),
        },
        unix_ms_at_zero: 1_000_000,
        lag: allowance(scenario.lags),
        seed: scenario.seed,
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut crashes = scenario.crashes.iter();
        let asks_left = crashes.next().copied().unwrap_or(u64::MAX);
        Self {
            now: Instant::ZERO,
            random: Random::from_seed(scenario.seed),
            life_number: 0,
            queue: EventQueue::default(),
            life: Array::new(config(scenario), Instant::ZERO, None),
            durable: None,
            cloud: Cloud::new(scenario.seed, scenario.cloud_faults, scenario.lags),
            media: Media::default(),
            open: BTreeMap::new(),
            given: BTreeMap::new(),
            copies: BTreeMap::new(),
            calls: Vec::new(),
            out_of_reach: None,
            persisting: None,
            promised: false,
            deleting: false,
            asks_left,
            crashes,
            replacements: scenario.replacements.iter(),
            quiet_since: Instant::ZERO,
            report: Report::default(),
            scenario,
        }
    }

    pub(super) fn faulty(&self) -> bool {
        self.scenario.faults + self.scenario.cloud_faults > 0.0 && self.now < Instant::ZERO + FAULTS
    }

    pub(super) fn fault(&mut self) -> bool {
        let fault = self.faulty() && self.random.chance(self.scenario.faults);
        self.report.faults += u64::from(fault);
        fault
    }

    pub(super) fn soon(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64))
    }

    pub(super) fn after(&mut self, most: Duration, event: SimEvent) {
        let at = self.now + self.soon(most);
        self.queue.push(at, (self.life_number, event));
    }

    fn run(&mut self) -> Step {
        self.queue.push(Instant::ZERO, (0, SimEvent::NowAndThen));
        self.after(SWEEP, SimEvent::Sweep);
        while let Some((at, (number, event))) = self.queue.pop() {
            self.now = at;
            if at > Instant::ZERO + LONGEST {
                return Err("the run does not come to rest".to_owned());
            }
            let lasting = matches!(event, SimEvent::Late(_) | SimEvent::Sweep | SimEvent::NowAndThen);
            if number != self.life_number && !lasting {
                continue;
            }
            match event {
                SimEvent::Answer(id, ask) => self.answer(id, *ask)?,
                SimEvent::Late(call) => drop(self.carry_out(&call)?),
                SimEvent::Engine(_) if self.dies() => self.crash()?,
                SimEvent::Engine(slot) => self.engine(slot)?,
                SimEvent::Sweep => self.sweep()?,
                SimEvent::User => self.user()?,
                SimEvent::NowAndThen => {
                    self.queue.push(self.now + NOW_AND_THEN, (0, SimEvent::NowAndThen));
                    self.user()?;
                }
                SimEvent::Tick => self.life.tick(self.now),
            }
            self.drive()?;
            if self.is_over()? {
                return Ok(());
            }
        }
        Err("nothing happens any more".to_owned())
    }

    /// Lets the life cycle ask, until the process dies.
    fn drive(&mut self) -> Step {
        #[cfg(debug_assertions)]
        self.life.check();
        while let Some((id, ask)) = self.life.next_ask() {
            self.quiet_since = self.now;
            if self.dies() {
                return self.crash();
            }
            self.report.asks += 1;
            self.begin(id, &ask)?;
            self.after(ANSWER_MAX, SimEvent::Answer(id, Box::new(ask)));
        }
        while let Some(ended) = self.life.next_ended() {
            self.ended(ended)?;
        }
        while self.life.next_notice().is_some() {}
        if let Some(at) = self.life.next_deadline() {
            self.queue.push(at.max(self.now), (self.life_number, SimEvent::Tick));
        }
        Ok(())
    }

    /// Whether this is what the process does not live to do.
    fn dies(&mut self) -> bool {
        let dies = self.asks_left == 0;
        self.asks_left = self.asks_left.saturating_sub(1);
        dies
    }

    fn ended(&mut self, ended: Ended) -> Step {
        match ended {
            Ended::Created(Ok(())) => self.promised = true,
            Ended::Created(Err(_)) => {
                self.report.undone += 1;
                return Ok(());
            }
            Ended::Opened(Ok(())) => {}
            Ended::Opened(Err(_)) => {
                if !self.faulty() && self.now > Instant::ZERO + FAULTS + QUIET {
                    return Err("the array is not served although nothing fails any more".to_owned());
                }
                self.report.refused += 1;
            }
            Ended::Replaced(_) => {
                self.report.replaced += 1;
            }
            Ended::NotReplaced { .. } => return Ok(()),
            Ended::Deleted => {}
        }
        self.after(COPY_MAX, SimEvent::User);
        Ok(())
    }

    /// What the user wants next.
    fn user(&mut self) -> Step {
        let now = self.now;
        // Refused while something else is under way: the user asks again.
        match self.life.status().stage {
            None if self.deleting => {}
            None => drop(self.life.create(now)),
            Some(Stage::Made) if self.deleting && self.given.is_empty() => {
                if self.life.delete(now).is_ok() {
                    self.promised = false;
                }
            }
            Some(Stage::Made) if !self.life.status().is_served => drop(self.life.open(now)),
            Some(Stage::Made) if self.life.status().wanted.is_empty() => match self.replacements.next() {
                Some(slot) => self.life.replace(now, &[*slot])?,
                None if self.scenario.deletes_early => self.begin_deleting(),
                None => {}
            },
            Some(_) => {}
        }
        Ok(())
    }

    fn begin_deleting(&mut self) {
        self.deleting = true;
        self.close_array();
        self.life.closed(self.now);
    }

    /// The device over the array has ended.
    fn close_array(&mut self) {
        for (_, (id, disk)) in std::mem::take(&mut self.given) {
            self.put_away(&id, disk);
        }
        self.copies.clear();
    }

    pub(super) fn put_away(&mut self, id: &VolumeId, disk: Disk) {
        if let Some(volume) = self.cloud.volume(id) {
            volume.disk = Some(disk);
        }
    }

    /// The process dies.
    fn crash(&mut self) -> Step {
        self.report.crashes += 1;
        let joining = |part| matches!(part, array::Part::Coming | array::Part::Joining);
        let replaces = self.promised && self.life.status().volumes.iter().any(|volume| joining(volume.part));
        self.report.crashes_in_replacements += u64::from(replaces);
        self.life_number += 1;
        self.asks_left = self.crashes.next().copied().unwrap_or(u64::MAX);
        for (_, (_, id, disk)) in std::mem::take(&mut self.open) {
            self.put_away(&id, disk);
        }
        self.close_array();
        for call in std::mem::take(&mut self.calls) {
            match self.random.below(3) {
                0 => drop(self.carry_out(&call)?),
                1 => self.after(LATE_MAX, SimEvent::Late(Box::new(call))),
                _ => {}
            }
        }
        if let Some(record) = self.persisting.take().filter(|_| self.random.below(2) == 0) {
            self.set_durable(record)?;
        }
        self.lose_reach();
        self.life = Array::new(config(self.scenario), self.now, self.durable.clone());
        self.after(ANSWER_MAX, SimEvent::User);
        self.drive()
    }

    /// The record is replaced. A start would find no member where it names a volume that counts no more.
    pub(super) fn set_durable(&mut self, record: Option<ArrayRecord>) -> Step {
        if let Some(record) = &record {
            record.check().map_err(|why| format!("the record {why}"))?;
            let counts_no_more = |place: &&Slot| record.volume(**place).is_some_and(|volume| volume.disposable);
            if record.facts.stage == Stage::Made
                && let Some(place) = record.facts.members.iter().find(counts_no_more)
            {
                return Err(format!("the volume in {place:?} counts no more, and the record names no successor"));
            }
        }
        let is_kept =
            |volume: &RentalRecord| record.as_ref().is_some_and(|record| record.volume(volume.slot).is_some());
        let before = self.durable.iter().flat_map(|record| &record.volumes);
        let mut forgotten = before.filter(|volume| !is_kept(volume)).filter_map(|volume| volume.volume.as_ref());
        forgotten.try_for_each(|id| self.cloud.check_gone(id))?;
        self.durable = record;
        Ok(())
    }

    /// The machine comes back, sometimes without one of the volumes for a while.
    fn lose_reach(&mut self) {
        let ids = self.cloud.ids();
        let lost = self.faulty() && !ids.is_empty() && self.random.below(3) == 0;
        self.out_of_reach = lost.then(|| {
            let id = ids[self.random.below(ids.len() as u64) as usize].clone();
            (id, self.now + self.soon(OUT_OF_REACH_MAX))
        });
        self.report.faults += u64::from(lost);
    }

    /// As the daemon does, with what it knows after the listing.
    fn sweep(&mut self) -> Step {
        self.after(SWEEP, SimEvent::Sweep);
        let listed = self.cloud.list(self.now, tag::OWNER, OWNER, self.faulty());
        let (volumes, nameless) = self.life.volumes();
        let mut known = Known { expected: volumes.into_iter().collect(), ..Known::default() };
        if nameless {
            known.creating = BTreeSet::from([device_tag(ARRAY)]);
        }
        for action in orphans(&listed, OWNER, &known) {
            let described = self.cloud.describe(self.now, action.id());
            if !described.is_ok_and(|described| is_confirmed(&action, &described, OWNER, &known)) {
                continue;
            }
            let call = match action {
                Action::Delete(id) => Call::ChangeState(id, surgetank_model::volume::Transition::Delete),
                Action::Detach(id) => Call::ChangeState(id, surgetank_model::volume::Transition::Detach),
                Action::Keep { .. } => continue,
            };
            self.report.swept += 1;
            self.quiet_since = self.now;
            self.carry_out(&call)?;
        }
        Ok(())
    }

    /// Whether everything that was asked for is done, and nothing too much is left.
    fn is_over(&mut self) -> Step<bool> {
        let calm = self.now > self.quiet_since + QUIET && self.now > Instant::ZERO + FAULTS + QUIET;
        let status = self.life.status();
        if !calm || !self.deleting && (self.replacements.len() > 0 || !status.wanted.is_empty()) {
            return Ok(false);
        }
        if status.stage == Some(Stage::Made) && !self.deleting {
            let there = self.cloud.list(self.now, tag::OWNER, OWNER, false);
            let mut there: Vec<&VolumeId> = there.iter().map(|volume| &volume.id).collect();
            let mut members: Vec<&VolumeId> = self.media.members().iter().collect();
            there.sort();
            members.sort();
            if there != members {
                return Err(format!("the volumes are {there:?}, and the members {members:?}"));
            }
            self.begin_deleting();
            self.quiet_since = self.now;
            return Ok(false);
        }
        if !self.deleting || status.stage.is_some() {
            return Ok(false);
        }
        if !self.cloud.is_empty() || self.durable.is_some() {
            return Err(format!("something is left of it: {}; record {:?}", self.cloud.summary(), self.durable));
        }
        Ok(true)
    }

    /// The array that is served has moved on with a slot.
    fn engine(&mut self, slot: u32) -> Step {
        let Some(copy) = self.copies.remove(&slot) else { return Ok(()) };
        let next = match copy {
            Copy::Copying(place, id) if self.fault() => {
                self.media.retire(&id);
                self.life.event(self.now, Event::Dropped { slot });
                Some(Copy::Dropped(place, id))
            }
            Copy::Copying(place, id) => {
                let member = self.media.members()[slot as usize].clone();
                let old = self.given.iter().find(|(_, (id, _))| *id == member).map(|(place, _)| *place);
                let old = old.ok_or("the array does not have its own member")?;
                self.media.switch(slot as usize, &id);
                Some(Copy::Switched { new: (place, id), old: (old, member) })
            }
            Copy::Switched { new, old } => {
                self.life.event(self.now, Event::Replaced { slot, place: new.0 });
                Some(Copy::Told { old })
            }
            Copy::Told { old: (place, id) } | Copy::Dropped(place, id) => {
                self.media.retire(&id);
                if let Some((id, disk)) = self.given.remove(&place) {
                    self.put_away(&id, disk);
                }
                self.life.event(self.now, Event::Released(place));
                None
            }
        };
        if let Some(next) = next {
            self.copies.insert(slot, next);
            self.after(COPY_MAX, SimEvent::Engine(slot));
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, id: AskId, answer: Answer) {
        self.life.complete(self.now, id, answer);
    }

    pub(super) fn begin_copy(&mut self, slot: u32, copy: Copy) {
        self.copies.insert(slot, copy);
        self.after(COPY_MAX, SimEvent::Engine(slot));
    }
}
