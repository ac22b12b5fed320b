//! Crash tests of the life of a read cache's volumes: the production life cycle of `surgetank_rental::read_cache` over a provider that
//! lies.
//!
//! Calls of the provider are refused, late, lost or carried out long after, writes of records fail, members fail and vanish, the device
//! comes and goes, and the process dies at any ask. What must hold: no volume is created before that is on record; none is taken for a
//! blank one after it was written; no place has two; in the end there is one volume a place, all in use, and after the section was
//! removed none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use surgetank_model::event_queue::EventQueue;
use surgetank_model::random::Random;
use surgetank_model::volume::{ProviderError, Transition, VolumeId, tag};
use surgetank_model::{Bytes, Instant};
use surgetank_policy::backoff::Backoff;
use surgetank_rental::ask::{Opened, Opening, VolumeAsk};
use surgetank_rental::read_cache::{Answer, Ask, Config, Event, Level, Part, ReadCache, device_tag};
use surgetank_rental::sweep::{Action, Known, is_confirmed, orphans};
use surgetank_rental::{Answer as Answered, Ask as Asked, AskId, Call, RentalRecord, Slot};

use crate::disk::Disk;
use crate::scenario::{cloud_faults, lags};
use crate::world::cloud::Cloud;
use crate::world::lagging::allowance;

const OWNER: &str = "us";
const DEVICE: &str = "data";
const MEMBER: u64 = 1 << 20;
/// Longest time until an ask is answered, and a call that goes wrong is carried out.
const ANSWER_MAX: Duration = Duration::from_millis(3);
const LATE_MAX: Duration = Duration::from_millis(900);
/// Longest time until something happens to a member, and until a failed one is released.
const TROUBLE_MAX: Duration = Duration::from_millis(800);
const RELEASE_MAX: Duration = Duration::from_millis(60);
const SWEEP: Duration = Duration::from_millis(150);
/// Faults end after this, and what was refused late has happened after that.
const FAULTS: Duration = Duration::from_secs(6);
const QUIET: Duration = Duration::from_secs(8);
/// A run that lasts longer does not come to rest.
const LONGEST: Duration = Duration::from_secs(900);

/// One run. Everything in it follows from this.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of everything that is drawn in the run.
    pub seed: u64,
    /// Volumes of the cache at first, and after the first crash.
    pub members: (u32, u32),
    /// Asks after which the process dies, counted from the start or the crash before.
    pub crashes: Vec<u64>,
    /// Share of the calls that go wrong, and of the writes of records.
    pub faults: f64,
    /// Probability that a call is throttled, and that a volume cannot be made, while there are faults.
    pub cloud_faults: f64,
    /// Probability that the provider does not know a volume for a while, and that a listing is one from before.
    pub lags: f64,
    /// Members fail, and the device comes and goes, while there are faults.
    pub troubles: bool,
}

impl Scenario {
    /// That of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = Random::from_seed(seed ^ 0x3e3b_0002);
        let members = 1 + random.below(4) as u32;
        let then = if random.below(3) == 0 { random.below(5) as u32 } else { members };
        Self {
            seed,
            members: (members, then),
            crashes: (0..random.below(7)).map(|_| random.below(60)).collect(),
            faults: [0.0, 0.02, 0.08, 0.25][random.below(4) as usize],
            cloud_faults: cloud_faults(seed),
            lags: lags(seed),
            troubles: random.below(4) > 0,
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}\n  scenario: {scenario}\n  status: {status}")]
pub struct Failure {
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
    /// Volumes that the cache was given.
    pub added: u64,
    /// Of those, ones that it had before a restart.
    pub adopted: u64,
    /// Members that failed.
    pub failed: u64,
    /// Volumes that a sweep detached or deleted.
    pub swept: u64,
}

impl AddAssign<&Self> for Report {
    fn add_assign(&mut self, other: &Self) {
        self.asks += other.asks;
        self.crashes += other.crashes;
        self.faults += other.faults;
        self.throttled += other.throttled;
        self.failed_volumes += other.failed_volumes;
        self.unknown += other.unknown;
        self.stale += other.stale;
        self.twins += other.twins;
        self.added += other.added;
        self.adopted += other.adopted;
        self.failed += other.failed;
        self.swept += other.swept;
    }
}

type Step<T = ()> = Result<T, String>;

#[derive(Debug)]
enum SimEvent {
    Answer(AskId, Box<Ask>),
    /// A call that nobody waits for is carried out; also after a crash.
    Late(Box<Call>),
    Released(Slot, VolumeId),
    /// A member fails or vanishes, or the device comes or goes.
    Trouble,
    Sweep,
    Tick,
}

struct World<'a> {
    scenario: &'a Scenario,
    now: Instant,
    random: Random,
    /// Events of a process that died are of an earlier life.
    life_number: u64,
    queue: EventQueue<(u64, SimEvent)>,
    life: ReadCache,
    members: u32,
    durable: BTreeMap<Slot, RentalRecord>,
    cloud: Cloud,
    /// Volumes that were written.
    written: BTreeSet<VolumeId>,
    open: BTreeMap<Slot, (AskId, VolumeId, Disk)>,
    given: BTreeMap<Slot, (VolumeId, Disk)>,
    adding: BTreeMap<AskId, Result<(), String>>,
    calls: Vec<Call>,
    persisting: BTreeMap<Slot, Option<RentalRecord>>,
    asks_left: u64,
    crashes: std::slice::Iter<'a, u64>,
    quiet_since: Instant,
    report: Report,
}

/// Runs a scenario.
///
/// # Errors
/// The first promise that is broken.
pub fn run(scenario: &Scenario) -> Result<Report, Failure> {
    let mut world = World::new(scenario);
    let ended = world.run();
    ended.map(|()| world.report.clone()).map_err(|what| Failure {
        at: world.now,
        what,
        scenario: format!("{scenario:?}"),
        status: format!("{:?}; {}", world.life.status(), world.cloud.summary()),
    })
}

fn config(scenario: &Scenario, members: u32) -> Config {
    let (first, cap) = (Duration::from_millis(20), Duration::from_millis(300));
    Config {
        level: Level::First,
        device: DEVICE.to_owned(),
        owner_id: OWNER.to_owned(),
        volume_type: "fast".to_owned(),
        members,
        member_size: Bytes::new(MEMBER),
        timeouts: (Duration::from_millis(700), Duration::from_millis(700)),
        backoff: Backoff { first, cap, permanent: cap },
        lag: allowance(scenario.lags),
        seed: scenario.seed,
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut crashes = scenario.crashes.iter();
        Self {
            now: Instant::ZERO,
            random: Random::from_seed(scenario.seed),
            life_number: 0,
            queue: EventQueue::default(),
            life: ReadCache::new(config(scenario, scenario.members.0), Instant::ZERO, Vec::new()),
            members: scenario.members.0,
            durable: BTreeMap::new(),
            cloud: Cloud::new(scenario.seed, scenario.cloud_faults, scenario.lags),
            written: BTreeSet::new(),
            open: BTreeMap::new(),
            given: BTreeMap::new(),
            adding: BTreeMap::new(),
            calls: Vec::new(),
            persisting: BTreeMap::new(),
            asks_left: crashes.next().copied().unwrap_or(u64::MAX),
            crashes,
            quiet_since: Instant::ZERO,
            report: Report::default(),
            scenario,
        }
    }

    fn faulty(&self) -> bool {
        self.now < Instant::ZERO + FAULTS
    }

    fn fault(&mut self) -> bool {
        let fault = self.faulty() && self.random.chance(self.scenario.faults);
        self.report.faults += u64::from(fault);
        fault
    }

    fn after(&mut self, most: Duration, event: SimEvent) {
        let at = self.now + Duration::from_nanos(self.random.below(most.as_nanos() as u64));
        self.queue.push(at, (self.life_number, event));
    }

    fn run(&mut self) -> Step {
        self.life.serve(self.now);
        self.after(SWEEP, SimEvent::Sweep);
        self.after(TROUBLE_MAX, SimEvent::Trouble);
        self.drive()?;
        while let Some((at, (number, event))) = self.queue.pop() {
            self.now = at;
            if at > Instant::ZERO + LONGEST {
                return Err("the run does not come to rest".to_owned());
            }
            let lasting = matches!(event, SimEvent::Late(_) | SimEvent::Sweep | SimEvent::Trouble);
            if number != self.life_number && !lasting {
                continue;
            }
            match event {
                SimEvent::Answer(id, ask) => self.answer(id, *ask)?,
                SimEvent::Late(call) => drop(self.carry_out(&call)?),
                SimEvent::Released(place, released) => {
                    // The cache may have been closed meanwhile.
                    let given = self.given.get(&place).is_some_and(|(id, _)| *id == released);
                    if given && let Some((id, disk)) = self.given.remove(&place) {
                        self.put_away(&id, disk);
                        self.life.event(self.now, Event::Released(place));
                    }
                }
                SimEvent::Trouble => self.trouble(),
                SimEvent::Sweep => self.sweep()?,
                SimEvent::Tick => self.life.tick(self.now),
            }
            self.drive()?;
            if self.is_over()? {
                return Ok(());
            }
        }
        Err("nothing happens any more".to_owned())
    }

    fn drive(&mut self) -> Step {
        #[cfg(debug_assertions)]
        self.life.check();
        while let Some((id, ask)) = self.life.next_ask() {
            self.quiet_since = self.now;
            if self.asks_left == 0 {
                return self.crash();
            }
            self.asks_left -= 1;
            self.report.asks += 1;
            self.begin(&ask, id)?;
            self.after(ANSWER_MAX, SimEvent::Answer(id, Box::new(ask)));
        }
        while self.life.next_notice().is_some() {}
        if let Some(at) = self.life.next_deadline() {
            self.queue.push(at.max(self.now), (self.life_number, SimEvent::Tick));
        }
        Ok(())
    }

    fn begin(&mut self, ask: &Ask, id: AskId) -> Step {
        match ask {
            Ask::Rental(Asked::Persist(record)) => {
                let before = self.persisting.insert(id.slot, record.clone());
                before.map_or(Ok(()), |_| Err("two records of a place are written at once".to_owned()))
            }
            Ask::Rental(Asked::Provider(call)) => {
                if let Call::Create(request) = call
                    && !self.durable.values().any(|record| record.token == request.token)
                {
                    return Err("a volume is created before that is on record".to_owned());
                }
                self.calls.push(call.clone());
                Ok(())
            }
            Ask::Rental(Asked::Volume(VolumeAsk::Close(opened))) => {
                let is_it = |(_, (by, ..)): &(&Slot, &(AskId, VolumeId, Disk))| by == opened;
                let places: Vec<Slot> = self.open.iter().filter(is_it).map(|(place, _)| *place).collect();
                places.into_iter().for_each(|place| self.close(place));
                Ok(())
            }
            // The volume is given at once, and the cache answers later.
            Ask::Add(place) => {
                let added = self.add(*place)?;
                self.adding.insert(id, added);
                Ok(())
            }
            Ask::Rental(_) => Ok(()),
        }
    }

    fn answer(&mut self, id: AskId, ask: Ask) -> Step {
        let answer = match ask {
            Ask::Rental(ask) => Answer::Rental(self.rental(id, ask)?),
            Ask::Add(_) => Answer::Added(self.adding.remove(&id).unwrap_or_else(|| Err("it was closed".to_owned()))),
        };
        self.life.complete(self.now, id, answer);
        Ok(())
    }

    fn rental(&mut self, id: AskId, ask: Asked) -> Step<Answered> {
        Ok(match ask {
            Asked::Draw => Answered::Drawn { random: self.bits(), unix_ms: 1 },
            Asked::Persist(record) => {
                self.persisting.remove(&id.slot);
                let fails = self.fault();
                if !fails || self.random.below(2) == 0 {
                    self.set_durable(id.slot, record)?;
                }
                Answered::Persisted(if fails { Err("no room".to_owned()) } else { Ok(()) })
            }
            Asked::Provider(call) => self.call(&call)?,
            Asked::Volume(VolumeAsk::Identities) => Answered::Identities(Some(Vec::new())),
            Asked::Volume(VolumeAsk::Open { description, opening, .. }) => {
                let volume = &description.id;
                if matches!(opening, Opening::Fresh { .. }) && self.written.contains(volume) {
                    return Err(format!("the volume {} was written, and is taken for a blank one", volume.0));
                }
                if self.fault() {
                    return Ok(Answered::Opened(Err("it is held".to_owned().into())));
                }
                if !self.cloud.has_appeared(self.now, volume) {
                    return Ok(Answered::Opened(Ok(Opened::Absent)));
                }
                self.close(id.slot);
                let Some(disk) = self.cloud.volume(volume).and_then(|volume| volume.disk.take()) else {
                    return Err(format!("the volume {} is opened twice", volume.0));
                };
                self.open.insert(id.slot, (id, volume.clone(), disk));
                Answered::Opened(Ok(Opened::Open))
            }
            Asked::Volume(VolumeAsk::Close(_)) => Answered::Closed,
            Asked::Engine(_) => {
                self.close(id.slot);
                Answered::Began(Ok(()))
            }
            ask => return Err(format!("a read cache asks for {ask:?}")),
        })
    }

    fn bits(&mut self) -> [u8; 16] {
        let mut bits = [0; 16];
        for half in bits.chunks_mut(8) {
            half.copy_from_slice(&self.random.next_u64().to_le_bytes());
        }
        bits
    }

    fn set_durable(&mut self, place: Slot, record: Option<RentalRecord>) -> Step {
        match record {
            Some(record) => _ = self.durable.insert(place, record),
            None => {
                if let Some(id) = self.durable.remove(&place).and_then(|record| record.volume) {
                    self.cloud.check_gone(&id)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, place: Slot) -> Step<Result<(), String>> {
        let Some((_, id, disk)) = self.open.remove(&place) else {
            return Err(format!("the volume in {place:?} is given to the cache, and is not open"));
        };
        if self.fault() {
            self.put_away(&id, disk);
            return Ok(Err("not now".to_owned()));
        }
        self.report.added += 1;
        self.report.adopted += u64::from(!self.written.insert(id.clone()));
        match self.given.insert(place, (id, disk)) {
            Some(_) => Err(format!("the cache has two volumes of {place:?}")),
            None => Ok(Ok(())),
        }
    }

    fn close(&mut self, place: Slot) {
        if let Some((_, id, disk)) = self.open.remove(&place) {
            self.put_away(&id, disk);
        }
    }

    fn put_away(&mut self, id: &VolumeId, disk: Disk) {
        if let Some(volume) = self.cloud.volume(id) {
            volume.disk = Some(disk);
        }
    }

    /// Carried out and answered, or refused, or carried out and answered with an error, at once or later.
    fn call(&mut self, call: &Call) -> Step<Answered> {
        if let Some(place) = self.calls.iter().position(|other| other == call) {
            self.calls.remove(place);
        }
        if self.faulty() && self.cloud.throttles() {
            self.report.throttled += 1;
            return Ok(call.failed(self.cloud.too_many()));
        }
        if !self.fault() {
            return self.carry_out(call);
        }
        match self.random.below(3) {
            0 => drop(self.carry_out(call)?),
            1 => self.after(LATE_MAX, SimEvent::Late(Box::new(call.clone()))),
            _ => {}
        }
        Ok(call.failed(match self.random.below(4) {
            0 => ProviderError::Quota("all of it".to_owned()),
            1 => ProviderError::Capacity("none".to_owned()),
            2 => ProviderError::AttachLimit("no slot".to_owned()),
            _ => ProviderError::Transient("a fault".to_owned()),
        }))
    }

    fn carry_out(&mut self, call: &Call) -> Step<Answered> {
        let (now, faulty) = (self.now, self.faulty());
        let answer = self.cloud.carry_out(now, call, &mut self.random, faulty);
        self.report.failed_volumes = u64::from(self.cloud.failed);
        self.report.unknown = u64::from(self.cloud.lagging.unknown);
        self.report.stale = u64::from(self.cloud.lagging.stale);
        self.report.twins = u64::from(self.cloud.lagging.twins);
        answer
    }

    fn trouble(&mut self) {
        self.after(TROUBLE_MAX, SimEvent::Trouble);
        if !self.faulty() || !self.scenario.troubles {
            return;
        }
        let given: Vec<(Slot, VolumeId)> = self.given.iter().map(|(place, (id, _))| (*place, id.clone())).collect();
        match self.random.below(4) {
            0 => {
                self.close_cache();
                self.life.closed(self.now);
                self.life.serve(self.now);
            }
            _ if given.is_empty() => {}
            _ => {
                let (place, id) = given[self.random.below(given.len() as u64) as usize].clone();
                self.report.failed += 1;
                self.life.event(self.now, Event::Failed { place, why: "it is gone".to_owned() });
                self.after(RELEASE_MAX, SimEvent::Released(place, id));
            }
        }
    }

    /// The device has ended.
    fn close_cache(&mut self) {
        self.adding.clear();
        for (_, (id, disk)) in std::mem::take(&mut self.given) {
            self.put_away(&id, disk);
        }
    }

    fn crash(&mut self) -> Step {
        self.report.crashes += 1;
        self.asks_left = self.crashes.next().copied().unwrap_or(u64::MAX);
        for call in std::mem::take(&mut self.calls) {
            match self.random.below(3) {
                0 => drop(self.carry_out(&call)?),
                1 => self.after(LATE_MAX, SimEvent::Late(Box::new(call))),
                _ => {}
            }
        }
        for (place, record) in std::mem::take(&mut self.persisting) {
            if self.random.below(2) == 0 {
                self.set_durable(place, record)?;
            }
        }
        self.members = self.scenario.members.1;
        self.restart()
    }

    fn restart(&mut self) -> Step {
        self.life_number += 1;
        self.persisting.clear();
        self.calls.clear();
        self.open.keys().copied().collect::<Vec<_>>().into_iter().for_each(|place| self.close(place));
        self.close_cache();
        let records = self.durable.values().cloned().collect();
        self.life = ReadCache::new(config(self.scenario, self.members), self.now, records);
        if self.members > 0 {
            self.life.serve(self.now);
        }
        self.drive()
    }

    /// As the daemon does, with what it knows after the listing.
    fn sweep(&mut self) -> Step {
        self.after(SWEEP, SimEvent::Sweep);
        let listed = self.cloud.list(self.now, tag::OWNER, OWNER, self.faulty());
        let (volumes, nameless) = self.life.volumes();
        let mut known = Known { expected: volumes.into_iter().collect(), ..Known::default() };
        if nameless {
            known.creating = BTreeSet::from([device_tag(Level::First, DEVICE)]);
        }
        for action in orphans(&listed, OWNER, &known) {
            let described = self.cloud.describe(self.now, action.id());
            if !described.is_ok_and(|described| is_confirmed(&action, &described, OWNER, &known)) {
                continue;
            }
            let call = match action {
                Action::Delete(id) => Call::ChangeState(id, Transition::Delete),
                Action::Detach(id) => Call::ChangeState(id, Transition::Detach),
                Action::Keep { id, .. } => {
                    return Err(format!("the volume {} is kept, and nothing on it counts", id.0));
                }
            };
            self.report.swept += 1;
            self.quiet_since = self.now;
            self.carry_out(&call)?;
        }
        Ok(())
    }

    fn is_over(&mut self) -> Step<bool> {
        if self.now < self.quiet_since + QUIET || self.now < Instant::ZERO + FAULTS + QUIET {
            return Ok(false);
        }
        if self.members > 0 {
            let status = self.life.status();
            let serving = status.volumes.iter().filter(|volume| volume.part == Part::Serving).count();
            let (all, there) = (self.members as usize, self.cloud.ids().len());
            if (serving, status.volumes.len(), there, self.given.len()) != (all, all, all, all) {
                return Err(format!("{serving} of {all} members serve, and {there} volumes are there"));
            }
            self.members = 0;
            self.quiet_since = self.now;
            self.restart()?;
            return Ok(false);
        }
        match self.cloud.is_empty() && self.durable.is_empty() && self.life.is_empty() {
            true => Ok(true),
            false => Err(format!("something is left: {}; records {:?}", self.cloud.summary(), self.durable)),
        }
    }
}
