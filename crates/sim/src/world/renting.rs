//! The production controller and the production rental steer the boosts, over a provider that lies.
//!
//! Fault model: a call is refused (quota, capacity, attachment slots, for a while, for good), is throttled, is answered late or
//! twice, fails and is carried out all the same, at once or later, also after a crash; volumes cannot be made, and are not known for a while; listings lag behind;
//! tags fail; disks are slow to appear; a superblock cannot be read; the state directory cannot be written, and then holds the old record or the new one.
//! Users discard what is on a volume that is kept for want of a proof. Copies of the machine sweep, and
//! delete what their records say that they have rented.

mod asks;
mod calls;
mod copies;
mod stripes;
mod sweeps;
mod users;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_cache::{EffectId, EngineStage, Epoch, Event, Owner};
use surgetank_model::volume::VolumeId;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy::backoff::Backoff;
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Controller, Learned, Phase, Preset, ResumeAt, Step as PolicyStep, StepId};
use surgetank_rental::resume::{self, Lookup, Resume};
use surgetank_rental::sweep::{Action, Known};
use surgetank_rental::{Answer, Ask, AskId, Call, Ended, OwnerRecord, OwnerWriter, RentalRecord, Rentals, Slot};

use crate::disk::Disk;
use crate::scenario::{CrashScenario, Trigger};
use crate::world::cloud::Cloud;
use crate::world::lagging::allowance;
use crate::world::{SimEvent, Step, World, WorldPhase};
use users::Users;

/// How often the controller looks at the device.
const SAMPLING: Duration = Duration::from_millis(5);
/// Longest answer time of the provider; and of one that does not answer in time.
const ANSWER_MAX: Duration = Duration::from_millis(3);
const LATE_MAX: Duration = Duration::from_millis(1500);
/// Longest time that a write of the state directory takes.
const WRITE_MAX: Duration = Duration::from_millis(2);
/// The longest pause of a rental between two tries of anything.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest time between two sweeps, and within one.
const SWEEP_MAX: Duration = Duration::from_millis(400);
/// How long a failed recovery waits for the next try.
const RECOVERY_RETRY: Duration = Duration::from_millis(300);
const GRAIN: u64 = 256 << 10;
const SMALLEST: u64 = 768 << 10;
pub(super) const DEVICE: &str = "data";
/// Where a volume comes and goes that the engine does not use.
const SPARE: Slot = Slot(1);
const SPARE_TIMEOUT: Duration = Duration::from_millis(500);
const OWNER: &str = "us";

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is carried out and answered; twice.
    Done { twice: bool },
    /// It is refused.
    Refused,
    /// The provider has had too many.
    Throttled,
    /// It is carried out, and answered with an error.
    Lost,
    /// It is answered with an error, and carried out later.
    Later,
    /// It is carried out, or not, and answered when nobody waits any more.
    Late { done: bool },
}

/// What the daemon was doing: a crash forgets it.
#[derive(Debug)]
struct Process {
    controller: Controller,
    users: Users,
    rentals: Rentals,
    writer: OwnerWriter,
    /// The owner record as the daemon believes it to be durable.
    believed: OwnerRecord,
    /// An owner that is being written down, and the record of it.
    writing: Option<(EffectId, Option<OwnerRecord>)>,
    /// Asks that wait for that.
    waiting: Vec<AskId>,
    /// The attachment that is to be read back before anything else.
    recover: Option<Epoch>,
    /// What is open, for the engine or in another slot; no disk: the engine has that already.
    open: BTreeMap<Slot, (AskId, VolumeId, Option<Disk>)>,
    /// The release that was begun last.
    release: Option<StepId>,
    /// The growth that was begun last was on record before.
    grows_again: bool,
    /// Calls of the provider, with the answers so far of all members.
    calls: BTreeMap<AskId, (Call, Vec<Option<Answer>>)>,
    /// Calls on members: which one of which call, and what becomes of it.
    member_calls: Vec<((AskId, usize), Call, Fate)>,
    answers: VecDeque<(AskId, Answer)>,
    tick_at: Option<Instant>,
}

/// The controller, the rental, and what survives a crash of them.
#[derive(Debug)]
pub(super) struct Renting {
    process: Process,
    /// Probability that a call goes wrong, while faults last.
    faults: f64,
    cloud: Cloud,
    /// The records of the rentals that are durable.
    journal: BTreeMap<Slot, RentalRecord>,
    /// The owner record that is durable.
    owner: OwnerRecord,
    /// The volume whose disk the engine has or had last.
    in_use: Option<VolumeId>,
    /// Calls that are carried out when nobody waits for them any more.
    late: Vec<(Instant, Call)>,
    /// What a sweep is about to do, and what it knows.
    swept: (Vec<Action>, Known),
    /// The tag that is being set or removed.
    tagging: Option<(VolumeId, Option<Epoch>)>,
    /// What copies of this machine that have not started yet believe.
    copies: Vec<copies::CopiedState>,
    /// All tokens so far.
    tokens: BTreeSet<String>,
    /// What a user has discarded of which nothing proved that it does not count: the volume, and its tag.
    discarded: Option<(VolumeId, String)>,
}

/// The controller as it starts; what it has learnt is not kept over a crash.
fn controller(now: Instant, seed: u64, size: u64) -> Controller {
    let preset = if seed.is_multiple_of(2) { Preset::ADAPTIVE } else { Preset::PAPER };
    let (backing, caching) = (Bandwidth::from_mib_s(33), Bandwidth::from_mib_s(128));
    // For every fourth: enough for one full cache and some tenths of a second, at 0.125 AGBs a second for each MiB.
    let budgeted = (seed % 4 == 3).then_some(0.125 * (0.2 + 0.01 * (seed % 50) as f64));
    let config = Config {
        budget: Budget { agbs_per_hour: budgeted, ..Budget::default() },
        budget_reserve: Duration::from_millis(100),
        initial_size: Bytes::new(1 << 20),
        grain: Bytes::new(GRAIN),
        size_min: Bytes::new(SMALLEST),
        grows: true,
        inactivity_delay: Duration::from_millis(10 + seed % 40),
        boost_interval_min: Duration::ZERO,
        // Whatever saves time pays: boosts are what is tested, and volumes as small as these would never be rented.
        value_of_time: 1e9,
        backoff: Backoff {
            first: Duration::from_millis(5),
            cap: Duration::from_millis(100),
            permanent: Duration::from_millis(200),
        },
        create_timeout: Duration::from_millis(400),
        attach_timeout: Duration::from_millis(600),
        detach_timeout: Duration::from_millis(600),
        seed,
        ..Config::new(preset, backing, Bytes::new(size.max(SMALLEST)), caching)
    };
    Controller::new(now, config, Learned::default())
}

fn rental_config(scenario: &CrashScenario) -> surgetank_rental::Config {
    surgetank_rental::Config {
        device: DEVICE.to_owned(),
        owner_id: OWNER.to_owned(),
        volume_type: "fast".to_owned(),
        outage_patience: scenario.patience,
        longest_pause: LONGEST_PAUSE,
        volumes_leave: true,
        lag: allowance(scenario.lags),
    }
}

impl Process {
    fn new(now: Instant, scenario: &CrashScenario, size: u64, journal: Vec<RentalRecord>, owner: &OwnerRecord) -> Self {
        Self {
            controller: controller(now, scenario.seed, size),
            users: Users::default(),
            rentals: Rentals::new(rental_config(scenario), journal),
            writer: OwnerWriter::new(owner),
            believed: owner.clone(),
            writing: None,
            waiting: Vec::new(),
            recover: None,
            open: BTreeMap::new(),
            release: None,
            grows_again: false,
            calls: BTreeMap::new(),
            member_calls: Vec::new(),
            answers: VecDeque::new(),
            tick_at: None,
        }
    }
}

impl Renting {
    pub(super) fn new(scenario: &CrashScenario, size: u64, faults: f64) -> Self {
        let (seed, owner) = (scenario.seed, OwnerRecord::default());
        Self {
            process: Process::new(Instant::ZERO, scenario, size, Vec::new(), &owner),
            faults,
            cloud: Cloud::new(seed, scenario.cloud_faults, scenario.lags),
            journal: BTreeMap::new(),
            owner,
            in_use: None,
            late: Vec::new(),
            swept: Default::default(),
            tagging: None,
            copies: Vec::new(),
            tokens: BTreeSet::new(),
            discarded: None,
        }
    }

    /// Nothing is rented, nothing is on its way, and nothing is left.
    pub(super) fn is_idle(&self) -> bool {
        self.process.controller.phase() == Phase::Idle
            && self.process.rentals.records().next().is_none()
            && self.process.calls.is_empty()
            && self.late.is_empty()
            && self.cloud.is_empty()
    }

    /// The disks of rented volumes that the engine does not have.
    pub(super) fn disks(&mut self) -> impl Iterator<Item = &mut Disk> {
        let open = self.process.open.values_mut().filter_map(|(_, _, disk)| disk.as_mut());
        self.cloud.disks().chain(open)
    }

    /// The engine has no use for the disk any more.
    pub(super) fn return_disk(&mut self, disk: Disk) {
        if let Some(volume) = self.in_use.take().and_then(|id| self.cloud.volume(&id)) {
            volume.disk = Some(disk);
        }
    }

    /// For whoever looks for a bug.
    pub(super) fn summary(&self) -> String {
        let Self { journal, owner, in_use, late, swept, tagging, cloud, .. } = self;
        let Process { rentals, calls, writing, recover, .. } = &self.process;
        format!(
            "{rentals:?}; calls {calls:?}, journal {journal:?}, owner {owner:?}, in use {in_use:?}, late {late:?}, \
             swept {swept:?}, tagging {tagging:?}, writing {writing:?}, recover {recover:?}, {}",
            cloud.summary()
        )
    }

    fn close(&mut self, slot: Slot) {
        if let Some((_, id, Some(disk))) = self.process.open.remove(&slot)
            && let Some(volume) = self.cloud.volume(&id)
        {
            volume.disk = Some(disk);
        }
    }

    fn is_busy_with_owner(&self) -> bool {
        self.process.writing.is_some()
    }

    /// The record that was being written is durable.
    pub(super) fn recorded(&mut self) {
        if let Some(record) = self.process.writing.as_mut().and_then(|(_, record)| record.take()) {
            self.owner = record;
        }
    }

    /// The durable record says now that less is lost; so does what the daemon believes.
    pub(super) fn healed(&mut self, owner: &Owner) {
        self.owner.owner = owner.clone();
        self.process.believed.owner = owner.clone();
    }
}

impl World<'_> {
    /// Whether the caching volumes are rented by the production code.
    pub(super) fn rents(&self) -> bool {
        self.renting.is_some()
    }

    pub(super) fn observe(&mut self) -> Step {
        let (now, stage, observation) = (self.now, self.engine.status().stage, self.observed());
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let process = &mut renting.process;
        // A daemon that still recovers its cache does not steer yet.
        if stage != EngineStage::Recovering && process.recover.is_none() {
            if self.faulty {
                let announce = self.scenario.announce;
                process.users.ask(&mut process.controller, &mut self.random, now, announce);
            } else if self.phase == WorldPhase::Settle && now >= Instant::ZERO + users::LONGEST {
                process.controller.hint_detach(now);
            }
            process.controller.observe(now, observation);
            if process.controller.next_deadline().is_some_and(|deadline| deadline <= now) {
                process.controller.tick(now);
            }
        }
        let after = if self.outages.is_any_passing() { SAMPLING * 40 } else { SAMPLING };
        self.schedule(after, SimEvent::Observe);
        self.use_spare();
        self.discard_kept();
        self.drive()
    }

    pub(super) fn tick_rental(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.tick_at = None;
        renting.process.rentals.tick(now);
        self.drive()
    }

    /// What the engine says goes to the rental.
    pub(super) fn tell_rental(&mut self, event: &Event) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if *event == Event::Adopted {
            let (cloud, epoch) = (&renting.cloud, self.epoch.to_string());
            if !renting.in_use.as_ref().is_some_and(|id| cloud.is_tagged(id, &epoch)) {
                let tag = renting.in_use.as_ref().and_then(|id| cloud.dirty_epoch(id));
                return Err(format!("a volume is used whose tag is {tag:?}"));
            }
        }
        renting.process.rentals.event(now, event);
        if *event == Event::CacheDropped && renting.process.recover.take().is_some() {
            // The user discarded what could not be read back.
            if let Some(size) = renting.process.rentals.cache_mut().discard_data() {
                renting.process.controller.resume(now, ResumeAt::Attached { size });
            }
        }
        self.drive()
    }

    /// The kernel tells of a disk.
    pub(super) fn tell_rental_of_disks(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.rentals.disk_changed(now, true);
        self.drive()
    }

    /// Carries out what the controller and the rental want.
    pub(super) fn drive(&mut self) -> Step {
        loop {
            let now = self.now;
            let Some(renting) = &mut self.renting else { return Ok(()) };
            let process = &mut renting.process;
            while process.rentals.next_notice().is_some() {}
            if let Some((id, ask)) = process.rentals.next_ask() {
                if let Some(answer) = self.carry_out(id, ask)? {
                    self.complete(id, answer);
                }
            } else if let Some((slot, ended)) = process.rentals.next_ended() {
                match slot {
                    Slot::CACHE => self.task_ended(ended)?,
                    _ => self.spare_ended(ended),
                }
            } else if process.recover.is_none()
                && let Some((id, step)) = process.controller.next_step()
            {
                process.users.sees(&process.controller, now, &step)?;
                let timeout = process.controller.config().timeout(&step);
                if step == PolicyStep::Release {
                    process.release = Some(id);
                }
                let grows_to = if let PolicyStep::Grow { size } = step { Some(size) } else { None };
                process.rentals.begin(now, Slot::CACHE, id, step, timeout);
                if let Some(size) = grows_to {
                    process.grows_again =
                        process.rentals.cache().record().is_some_and(|record| record.size_at_most() >= size);
                    self.triggers(Trigger::Growth);
                }
            } else {
                #[cfg(debug_assertions)]
                process.rentals.check();
                self.check_discarded()?;
                self.check_sizes()?;
                break;
            }
        }
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let deadline = renting.process.rentals.next_deadline();
        if let Some(at) = deadline.filter(|at| renting.process.tick_at.is_none_or(|tick| *at < tick)) {
            renting.process.tick_at = Some(at);
            self.schedule_at(at, SimEvent::Tick);
        }
        Ok(())
    }

    fn complete(&mut self, id: AskId, answer: Answer) {
        let now = self.now;
        if let Some(renting) = &mut self.renting {
            renting.process.rentals.complete(now, id, answer);
        }
    }

    fn task_ended(&mut self, ended: Ended) -> Step {
        let (now, stage) = (self.now, self.engine.status().stage);
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let process = &mut renting.process;
        match ended {
            Ended::Step(id, surgetank_policy::StepOutcome::Done)
                if process.release == Some(id) && stage != EngineStage::PassThrough =>
            {
                return Err(format!("a volume counts as released that the engine uses: {stage:?}"));
            }
            Ended::Step(id, outcome) => {
                process.controller.complete(now, id, outcome);
                process.users.account(&process.controller, now);
            }
            Ended::Recovery(surgetank_policy::StepOutcome::Done) => {
                process.recover = None;
                let size = process.rentals.cache().record().map_or_else(Bytes::default, RentalRecord::size_at_most);
                process.controller.resume(now, ResumeAt::Adopted { size });
            }
            Ended::Recovery(_) => self.schedule(RECOVERY_RETRY, SimEvent::Recover),
        }
        Ok(())
    }

    /// Reads the cache back, again.
    pub(super) fn recover_rental(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if let Some(epoch) = renting.process.recover {
            renting.process.rentals.cache_mut().begin_recovery(now, epoch);
        }
        self.drive()
    }

    /// As a rotation will: a second volume is rented, attached, and discarded after a while.
    fn use_spare(&mut self) {
        let (now, wants) = (self.now, !self.faulty || self.random.below(16) == 0);
        let Some(renting) = self.renting.as_mut().filter(|_| wants) else { return };
        let rentals = &mut renting.process.rentals;
        if self.faulty && rentals.is_free(SPARE) {
            rentals.begin(now, SPARE, StepId(0), PolicyStep::Create { size: Bytes::new(GRAIN) }, Some(SPARE_TIMEOUT));
        } else {
            rentals.discard(now, SPARE);
        }
    }

    fn spare_ended(&mut self, ended: Ended) {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return };
        let rentals = &mut renting.process.rentals;
        match ended {
            Ended::Step(StepId(0), surgetank_policy::StepOutcome::Done) => {
                rentals.begin(now, SPARE, StepId(1), PolicyStep::Attach, Some(SPARE_TIMEOUT));
            }
            Ended::Step(_, surgetank_policy::StepOutcome::Done) => {}
            _ => rentals.discard(now, SPARE),
        }
    }

    fn fault(&mut self) -> bool {
        let faults = self.renting.as_ref().map_or(0.0, |renting| renting.faults);
        let strikes = self.faulty && self.random.chance(faults);
        self.report.provider_faults += u32::from(strikes);
        strikes
    }

    pub(super) fn soon(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64))
    }

    /// The answer, unless it comes later.
    fn carry_out(&mut self, id: AskId, ask: Ask) -> Step<Option<Answer>> {
        match ask {
            Ask::Persist(record) => {
                let answer = self.persist_rental(id.slot, record)?;
                let after = self.soon(WRITE_MAX);
                let Some(renting) = &mut self.renting else { return Ok(None) };
                renting.process.answers.push_back((id, answer));
                self.schedule(after, SimEvent::Answered);
                Ok(None)
            }
            Ask::Draw => {
                let (random, unix_ms) = (self.draw(), self.now.as_nanoseconds() / 1_000_000);
                Ok(Some(Answer::Drawn { random, unix_ms }))
            }
            Ask::Owner => Ok(self.owner_record(id)),
            Ask::Provider(call) => {
                self.check_call(id.slot, &call)?;
                Ok(self.call(id, call))
            }
            Ask::Volume(ask) => self.ask_volume(id, ask).map(Some),
            Ask::Engine(command) => self.command(id, command).map(Some),
            Ask::Serve => Ok(self.ask_for_service(id)),
        }
    }

    /// An answer that took its time.
    pub(super) fn answered(&mut self) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if let Some((id, answer)) = renting.process.answers.pop_front() {
            self.complete(id, answer);
        }
        self.drive()
    }

    /// The process is gone: what it was doing at the provider happens, or not, and every disk is where its volume is.
    pub(super) fn stop_renting(&mut self) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        [Slot::CACHE, SPARE].into_iter().for_each(|slot| renting.close(slot));
        renting.swept.0.clear();
        let calls = std::mem::take(&mut renting.process.member_calls);
        let changes = |call: &Call| !matches!(call, Call::Describe(_) | Call::List { .. });
        for (_, call, _) in calls.into_iter().filter(|(_, call, _)| changes(call)) {
            match self.random.below(3) {
                0 => drop(self.carry_out_call(&call)?),
                1 => {
                    let at = self.now + self.soon(LATE_MAX);
                    if let Some(renting) = &mut self.renting {
                        renting.late.push((at, call));
                    }
                }
                _ => {}
            }
        }
        self.stop_tagging();
        let Some(renting) = &mut self.renting else { return Ok(()) };
        // The engine is about to be asked for what the owner record says.
        let named = renting.owner.volume.clone();
        if renting.in_use.is_none()
            && renting.owner.owner != Owner::Backing
            && let Some(id) = named
        {
            let disk = renting.cloud.volume(&id).and_then(|volume| volume.disk.take());
            let Some(disk) = disk else { return Err(format!("the volume {} with newest data is missing", id.0)) };
            renting.in_use = Some(id);
            match renting.owner.owner {
                Owner::Lost { .. } => self.kept = Some(disk),
                Owner::Backing | Owner::Cache { .. } => self.disks.cache = Some(disk),
            }
        }
        Ok(())
    }

    /// The daemon has started again, its engine as the owner record says.
    pub(super) fn restart_renting(&mut self) -> Step {
        let (now, size, scenario) = (self.now, self.size, self.scenario);
        if !self.rents() {
            return Ok(());
        }
        let unknown = self.fault();
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let (record, owner) = (renting.journal.get(&Slot::CACHE).cloned(), renting.owner.clone());
        let id = owner.volume.clone().or_else(|| record.as_ref().and_then(|record| record.volume.clone()));
        let lookup = match id {
            None => Lookup::Unnamed,
            Some(_) if unknown => Lookup::Unknown("a fault".to_owned()),
            Some(id) => match renting.cloud.describe(now, &id) {
                Ok(description) => Lookup::Found(description),
                Err(_) if scenario.lags > 0.0 => Lookup::Unknown("it may be there all the same".to_owned()),
                Err(_) => Lookup::Missing,
            },
        };
        let resumed = resume::decide(DEVICE, record.as_ref(), &owner, &lookup);
        let record = match &resumed {
            Resume::Recover { rental, .. } => Some(rental.clone()),
            Resume::Lost { rental, .. } => rental.as_deref().cloned().or(record),
            Resume::Idle | Resume::Delete { .. } | Resume::Refuse { .. } => record,
        };
        if let Some(record) = record {
            renting.journal.insert(Slot::CACHE, record);
        }
        let records = renting.journal.values().cloned().collect();
        renting.process = Process::new(now, scenario, size, records, &owner);
        let process = &mut renting.process;
        match resumed {
            Resume::Idle => {}
            Resume::Delete { at } => process.controller.resume(now, at),
            Resume::Recover { epoch, .. } => {
                process.recover = Some(epoch);
                // Its disk is opened when the provider says that it is attached.
                if let Some(disk) = self.disks.cache.take() {
                    renting.return_disk(disk);
                }
                let after = Duration::from_micros(self.random.below(2_000));
                self.schedule(after, SimEvent::Recover);
            }
            Resume::Lost { ranges, rental, .. } => {
                if let Some(rental) = rental {
                    process.rentals.cache_mut().resume_lost(now, ranges.iter().map(|(_, length)| length).sum());
                    process.controller.resume(now, ResumeAt::Adopted { size: rental.size_at_most() });
                }
            }
            Resume::Refuse { reason } => return Err(format!("the device is refused: {reason}")),
        }
        let late: Vec<Instant> = self.renting.iter().flat_map(|renting| &renting.late).map(|(at, _)| *at).collect();
        late.into_iter().for_each(|at| self.schedule_at(at, SimEvent::Late));
        self.schedule(SAMPLING, SimEvent::Observe);
        let after = self.soon(SWEEP_MAX);
        self.schedule(after, SimEvent::Sweep);
        self.drive()
    }
}
