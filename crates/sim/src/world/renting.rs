//! The production controller and the production rental steer the boosts, over a provider that lies.
//!
//! Fault model: a call is refused (quota, capacity, attachment slots, for a while, for good), is answered late or twice, fails
//! and is carried out all the same, at once or later, also after a crash; listings lag behind; tags fail; disks are slow to
//! appear; the state directory cannot be written, and then holds the old record or the new one.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_cache::format::{LogState, SUPERBLOCKS_LENGTH, choose_superblock};
use surgetank_cache::{EffectId, Epoch, Event, IoFailure, Outcome, Owner, Stage};
use surgetank_model::volume::{ProviderError, VolumeDescription, VolumeId, VolumeState, tag};
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy::backoff::Backoff;
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Controller, Learned, Name, Phase, ResumeAt};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::resume::{self, Lookup, Resume};
use surgetank_rental::sweep::{Action, Known, orphans};
use surgetank_rental::{
    Answer, Ask, AskId, Call, Command, Ended, Opened, Opening, OwnerRecord, OwnerWrite, OwnerWriter, Presence, Rental,
    RentalRecord, VolumeAsk,
};

use crate::disk::Disk;
use crate::world::cloud::Cloud;
use crate::world::record::Entry;
use crate::world::{Happening, Step, World};

/// How often the controller looks at the device.
const SAMPLING: Duration = Duration::from_millis(5);
/// Longest answer time of the provider; and of one that does not answer in time.
const ANSWER_MAX: Duration = Duration::from_millis(3);
const LATE_MAX: Duration = Duration::from_millis(1500);
/// Longest time that a write of the state directory takes.
const WRITE_MAX: Duration = Duration::from_millis(2);
/// Longest time between two sweeps, and within one.
const SWEEP_MAX: Duration = Duration::from_millis(400);
/// How long a failed recovery waits for the next try.
const RECOVERY_RETRY: Duration = Duration::from_millis(300);
const GRAIN: u64 = 256 << 10;
const SMALLEST: u64 = 768 << 10;
const DEVICE: &str = "data";
const OWNER: &str = "us";

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is carried out and answered; twice.
    Done { twice: bool },
    /// It is refused.
    Refused,
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
    rental: Rental,
    writer: OwnerWriter,
    /// The owner record as the daemon believes it to be durable.
    believed: OwnerRecord,
    /// An owner that is being written down, and the record of it.
    writing: Option<(EffectId, Option<OwnerRecord>)>,
    /// Asks that wait for that.
    waiting: Vec<AskId>,
    /// The attachment that is to be read back before anything else.
    recover: Option<Epoch>,
    /// What is open for the engine; no disk: it has that already.
    open: Option<(AskId, VolumeId, Option<Disk>)>,
    calls: Vec<(AskId, Call, Fate)>,
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
    /// The record of the rental that is durable.
    journal: Option<RentalRecord>,
    /// The owner record that is durable.
    owner: OwnerRecord,
    /// The volume whose disk the engine has or had last.
    in_use: Option<VolumeId>,
    /// Calls that are carried out when nobody waits for them any more.
    late: Vec<(Instant, Call)>,
    /// What a sweep is about to do.
    swept: Vec<Action>,
    /// The tag that is being set or removed.
    tagging: Option<(VolumeId, Option<Epoch>)>,
    /// All tokens so far.
    tokens: BTreeSet<String>,
}

/// The controller as it starts; what it has learnt is not kept over a crash.
fn controller(now: Instant, seed: u64, size: u64) -> Controller {
    let name = if seed.is_multiple_of(2) { Name::Adaptive } else { Name::Paper };
    let (backing, caching) = (Bandwidth::from_mib_s(33), Bandwidth::from_mib_s(128));
    // For every fourth: enough for one full cache and some tenths of a second, at 0.125 AGBs a second for each MiB.
    let budgeted = (seed % 4 == 3).then_some(0.125 * (0.2 + 0.01 * (seed % 50) as f64));
    let config = Config {
        budget: Budget { agbs_per_hour: budgeted, ..Budget::default() },
        budget_reserve: Duration::from_millis(100),
        initial_size: Bytes::new(1 << 20),
        grain: Bytes::new(GRAIN),
        size_min: Bytes::new(SMALLEST),
        inactivity_delay: Duration::from_millis(10 + seed % 40),
        boost_interval_min: Duration::ZERO,
        backoff: Backoff {
            first: Duration::from_millis(5),
            cap: Duration::from_millis(100),
            permanent: Duration::from_millis(200),
        },
        create_timeout: Duration::from_millis(400),
        attach_timeout: Duration::from_millis(600),
        detach_timeout: Duration::from_millis(600),
        seed,
        ..Config::new(name, backing, Bytes::new(size.max(SMALLEST)), caching)
    };
    Controller::new(now, config, Learned::default())
}

impl Process {
    fn new(
        now: Instant,
        seed: u64,
        size: u64,
        patience: Duration,
        journal: Option<RentalRecord>,
        owner: &OwnerRecord,
    ) -> Self {
        let config = surgetank_rental::Config {
            device: DEVICE.to_owned(),
            owner_id: OWNER.to_owned(),
            volume_type: "fast".to_owned(),
            outage_patience: patience,
            longest_pause: Duration::from_secs(2),
        };
        Self {
            controller: controller(now, seed, size),
            rental: Rental::new(config, journal),
            writer: OwnerWriter::new(owner),
            believed: owner.clone(),
            writing: None,
            waiting: Vec::new(),
            recover: None,
            open: None,
            calls: Vec::new(),
            answers: VecDeque::new(),
            tick_at: None,
        }
    }
}

impl Renting {
    pub(super) fn new(seed: u64, size: u64, patience: Duration, faults: f64) -> Self {
        let owner = OwnerRecord::default();
        Self {
            process: Process::new(Instant::ZERO, seed, size, patience, None, &owner),
            faults,
            cloud: Cloud::default(),
            journal: None,
            owner,
            in_use: None,
            late: Vec::new(),
            swept: Vec::new(),
            tagging: None,
            tokens: BTreeSet::new(),
        }
    }

    /// Nothing is rented, nothing is on its way, and nothing is left.
    pub(super) fn is_idle(&self) -> bool {
        self.process.controller.phase() == Phase::Idle
            && self.process.rental.record().is_none()
            && self.process.calls.is_empty()
            && self.late.is_empty()
            && self.cloud.is_empty()
    }

    /// The disks of rented volumes that the engine does not have.
    pub(super) fn disks(&mut self) -> impl Iterator<Item = &mut Disk> {
        let open = self.process.open.iter_mut().filter_map(|(_, _, disk)| disk.as_mut());
        self.cloud.disks().chain(open)
    }

    /// The engine has no use for the disk any more.
    pub(super) fn give_back(&mut self, disk: Disk) {
        if let Some(volume) = self.in_use.take().and_then(|id| self.cloud.volume(&id)) {
            volume.disk = Some(disk);
        }
    }

    /// For whoever looks for a bug.
    pub(super) fn summary(&self) -> String {
        let Self { journal, owner, in_use, late, swept, tagging, cloud, .. } = self;
        let Process { rental, calls, writing, recover, .. } = &self.process;
        format!(
            "{rental:?}; calls {calls:?}, journal {journal:?}, owner {owner:?}, in use {in_use:?}, late {late:?}, \
             swept {swept:?}, tagging {tagging:?}, writing {writing:?}, recover {recover:?}, {}",
            cloud.summary()
        )
    }

    fn close(&mut self) {
        if let Some((_, id, Some(disk))) = self.process.open.take()
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
        let (now, stage, observation) = (self.now, self.engine.status().stage, self.engine.observation());
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let process = &mut renting.process;
        // A daemon that still recovers its cache does not steer yet.
        if stage != Stage::Recovering && process.recover.is_none() {
            process.controller.observe(now, observation);
            if process.controller.next_deadline().is_some_and(|deadline| deadline <= now) {
                process.controller.tick(now);
            }
        }
        let after = if self.outages.is_any_passing() { SAMPLING * 40 } else { SAMPLING };
        self.schedule(after, Happening::Observe);
        self.drive()
    }

    pub(super) fn tick_rental(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.tick_at = None;
        renting.process.rental.tick(now);
        self.drive()
    }

    /// What the engine says goes to the rental.
    pub(super) fn tell_rental(&mut self, event: &Event) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if *event == Event::Adopted {
            let tagged = renting.in_use.as_ref().and_then(|id| renting.cloud.dirty_epoch(id));
            if tagged != Some(&self.epoch.to_string()) {
                return Err(format!("a volume is used whose tag is {tagged:?}"));
            }
        }
        renting.process.rental.event(now, event);
        if *event == Event::CacheDropped && renting.process.recover.take().is_some() {
            // The user gave up what could not be read back.
            if let Some(size) = renting.process.rental.give_up() {
                renting.process.controller.resume(now, ResumeAt::Attached { size });
            }
        }
        self.drive()
    }

    /// The kernel tells of a disk.
    pub(super) fn tell_rental_of_disks(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.rental.disk_changed(now, true);
        self.drive()
    }

    /// Carries out what the controller and the rental want.
    pub(super) fn drive(&mut self) -> Step {
        loop {
            let now = self.now;
            let Some(renting) = &mut self.renting else { return Ok(()) };
            let process = &mut renting.process;
            while process.rental.next_notice().is_some() {}
            if let Some((id, ask)) = process.rental.next_ask() {
                if let Some(answer) = self.carry_out(id, ask)? {
                    self.complete(id, answer);
                }
            } else if let Some(ended) = process.rental.next_ended() {
                self.task_ended(ended);
            } else if process.recover.is_none()
                && let Some((id, step)) = process.controller.next_step()
            {
                let timeout = process.controller.config().timeout(&step);
                process.rental.begin(now, id, step, timeout);
            } else {
                process.rental.check();
                break;
            }
        }
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let deadline = renting.process.rental.next_deadline();
        if let Some(at) = deadline.filter(|at| renting.process.tick_at.is_none_or(|tick| *at < tick)) {
            renting.process.tick_at = Some(at);
            self.schedule_at(at, Happening::Tick);
        }
        Ok(())
    }

    fn complete(&mut self, id: AskId, answer: Answer) {
        let now = self.now;
        if let Some(renting) = &mut self.renting {
            renting.process.rental.complete(now, id, answer);
        }
    }

    fn task_ended(&mut self, ended: Ended) {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return };
        let process = &mut renting.process;
        match ended {
            Ended::Step(id, outcome) => process.controller.complete(now, id, outcome),
            Ended::Recovery(surgetank_policy::Outcome::Done) => {
                process.recover = None;
                let size = process.rental.record().map_or_else(Bytes::default, |record| record.size);
                process.controller.resume(now, ResumeAt::Adopted { size });
            }
            Ended::Recovery(_) => self.schedule(RECOVERY_RETRY, Happening::Recover),
        }
    }

    /// Reads the cache back, again.
    pub(super) fn recover_rental(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if let Some(epoch) = renting.process.recover {
            renting.process.rental.begin_recovery(now, epoch);
        }
        self.drive()
    }

    fn fault(&mut self) -> bool {
        let faults = self.renting.as_ref().map_or(0.0, |renting| renting.faults);
        let strikes = self.faulty && self.random.chance(faults);
        self.report.provider_faults += u32::from(strikes);
        strikes
    }

    fn soon(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64))
    }

    /// The answer, unless it comes later.
    fn carry_out(&mut self, id: AskId, ask: Ask) -> Step<Option<Answer>> {
        match ask {
            Ask::Persist(record) => {
                let answer = self.persist_rental(record)?;
                let after = self.soon(WRITE_MAX);
                let Some(renting) = &mut self.renting else { return Ok(None) };
                renting.process.answers.push_back((id, answer));
                self.schedule(after, Happening::Answered);
                Ok(None)
            }
            Ask::Draw => {
                let mut random = [0; 16];
                random[..8].copy_from_slice(&self.random.next_u64().to_le_bytes());
                random[8..].copy_from_slice(&self.random.next_u64().to_le_bytes());
                Ok(Some(Answer::Drawn { random, unix_ms: self.now.as_nanoseconds() / 1_000_000 }))
            }
            Ask::Owner => Ok(self.owner_record(id)),
            Ask::Provider(call) => {
                self.check_call(&call)?;
                self.call(id, call);
                Ok(None)
            }
            Ask::Volume(ask) => self.ask_volume(id, ask).map(Some),
            Ask::Engine(command) => self.command(command).map(Some),
        }
    }

    fn persist_rental(&mut self, record: Option<RentalRecord>) -> Step<Answer> {
        let fails = self.random.below(4) == 0 && self.fault();
        let written = !fails || self.random.below(2) == 0;
        let ended = record.is_none();
        self.check_tokens(record.as_ref())?;
        if let Some(renting) = self.renting.as_mut().filter(|_| written) {
            self.report.rentals += u32::from(ended && renting.journal.is_some());
            renting.journal = record;
        }
        Ok(Answer::Persisted(if fails { Err("no space".to_owned()) } else { Ok(()) }))
    }

    /// A token names one volume for ever, and a volume that is listed is not forgotten.
    fn check_tokens(&mut self, record: Option<&RentalRecord>) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let begins = renting.process.rental.record().is_none();
        let before = renting.journal.as_ref().map(|record| record.token.clone());
        match (record, before) {
            (Some(record), _) if begins && !renting.tokens.insert(record.token.clone()) => {
                return Err(format!("the token {} was used before", record.token));
            }
            (None, Some(token)) if !token.is_empty() => {
                let listed = renting.cloud.list(now, tag::TOKEN, &token, true);
                let left = listed.iter().find(|volume| volume.state != VolumeState::Deleting);
                if let Some(volume) = left {
                    return Err(format!("the volume {} is forgotten, which is {:?}", volume.id.0, volume.state));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The owner record, once what is being written is durable.
    fn owner_record(&mut self, id: AskId) -> Option<Answer> {
        let fails = self.random.below(4) == 0 && self.fault();
        let renting = self.renting.as_mut()?;
        if renting.is_busy_with_owner() {
            renting.process.waiting.push(id);
            return None;
        }
        let believed = renting.process.believed.clone();
        if renting.owner != believed {
            // A write that failed half-way is made good first.
            if fails {
                return Some(Answer::Owner(Err("no space".to_owned())));
            }
            renting.owner = believed.clone();
            self.owner = believed.owner.clone();
        }
        Some(Answer::Owner(Ok(believed.in_short())))
    }

    /// The engine has an owner written down.
    pub(super) fn write_owner(&mut self, id: EffectId, owner: Owner) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.process.writing = Some((id, None));
        let write = renting.process.writer.begin(owner);
        self.go_on_writing(write)
    }

    fn go_on_writing(&mut self, write: OwnerWrite) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        match write {
            OwnerWrite::Tag { volume, epoch } => {
                renting.tagging = Some((volume, epoch));
                let after = self.soon(ANSWER_MAX);
                self.schedule(after, Happening::Tag);
                Ok(())
            }
            OwnerWrite::Record(record) => {
                let Some((id, writing)) = &mut renting.process.writing else { return Ok(()) };
                let (id, owner) = (*id, record.owner.clone());
                *writing = Some(record);
                self.record(id, Entry::Owner(owner))
            }
            OwnerWrite::Done(result) => {
                let Some((id, _)) = renting.process.writing.take() else { return Ok(()) };
                let waiting = std::mem::take(&mut renting.process.waiting);
                let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed(IoFailure::Io) };
                let touched = self.books.end(self.now, id, &outcome, None, None);
                self.touch(&touched);
                self.engine.complete(self.now, id, outcome);
                for id in waiting {
                    if let Some(answer) = self.owner_record(id) {
                        self.complete(id, answer);
                    }
                }
                self.drive()
            }
        }
    }

    /// The tag of the caching volume is set or removed.
    pub(super) fn tag(&mut self) -> Step {
        let tagging = self.renting.as_mut().and_then(|renting| renting.tagging.take());
        let Some((volume, epoch)) = tagging else { return Ok(()) };
        let fails = self.fault();
        let carried = !fails || self.random.below(2) == 0;
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let text = epoch.map(|epoch| epoch.to_string());
        let mut result = Err("the tag could not be set".to_owned());
        if carried {
            let set = renting.cloud.set_tag(now, &volume, tag::DIRTY_EPOCH, text.as_deref());
            result = set.map_err(|()| "no such volume".to_owned());
        }
        let result = if fails { Err("a fault".to_owned()) } else { result };
        let write = renting.process.writer.written(result);
        self.go_on_writing(write)
    }

    /// The write of the owner record has ended.
    pub(super) fn owner_recorded(&mut self, result: Result<(), String>) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if result.is_ok() {
            renting.process.believed = renting.owner.clone();
        }
        let write = renting.process.writer.written(result);
        self.go_on_writing(write)
    }

    /// The intent is durable before the call, and no call overtakes another one.
    fn check_call(&self, call: &Call) -> Step {
        let Some(renting) = &self.renting else { return Ok(()) };
        if let Call::Create(request) = call
            && renting.journal.as_ref().is_none_or(|record| record.token != request.token)
        {
            return Err("a volume is created before that is on record".to_owned());
        }
        match renting.process.calls.first() {
            Some((_, under_way, _)) => Err(format!("{call:?} is called while {under_way:?} is under way")),
            None => Ok(()),
        }
    }

    fn call(&mut self, id: AskId, call: Call) {
        let fate = if !self.fault() {
            Fate::Done { twice: self.faulty && self.random.below(8) == 0 }
        } else {
            match self.random.below(5) {
                0 => Fate::Refused,
                1 => Fate::Lost,
                2 => Fate::Later,
                3 => Fate::Late { done: self.random.below(2) == 0 },
                _ => Fate::Refused,
            }
        };
        let after = match fate {
            Fate::Late { .. } => ANSWER_MAX + self.soon(LATE_MAX),
            _ => self.soon(ANSWER_MAX),
        };
        if let Some(renting) = &mut self.renting {
            renting.process.calls.push((id, call, fate));
            self.schedule(after, Happening::Called(id));
        }
    }

    /// The provider answers.
    pub(super) fn called(&mut self, id: AskId) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let calls = &mut renting.process.calls;
        let Some(place) = calls.iter().position(|(other, ..)| *other == id) else { return Ok(()) };
        let (_, call, fate) = calls.remove(place);
        let carried = match fate {
            Fate::Done { .. } | Fate::Lost | Fate::Late { done: true } => Some(self.carry_out_call(&call)?),
            Fate::Refused | Fate::Later | Fate::Late { done: false } => None,
        };
        if fate == Fate::Later {
            let at = self.now + self.soon(LATE_MAX);
            if let Some(renting) = &mut self.renting {
                renting.late.push((at, call.clone()));
            }
            self.schedule_at(at, Happening::Late);
        }
        let answer = match (carried, fate) {
            (Some(answer), Fate::Done { .. }) => answer,
            _ => {
                let error = match self.random.below(if fate == Fate::Refused { 6 } else { 1 }) {
                    1 => ProviderError::Quota("all of it".to_owned()),
                    2 => ProviderError::Capacity("none".to_owned()),
                    3 => ProviderError::AttachLimit("no slot".to_owned()),
                    4 => ProviderError::Invalid("no permission".to_owned()),
                    _ => ProviderError::Transient("a fault".to_owned()),
                };
                match call {
                    Call::Create(_) | Call::Describe(_) => Answer::Described(Err(error)),
                    Call::List { .. } => Answer::Listed(Err(error)),
                    Call::Attach(_) | Call::Detach(_) | Call::Delete(_) => Answer::Changed(Err(error)),
                }
            }
        };
        self.complete(id, answer.clone());
        if fate == (Fate::Done { twice: true }) {
            self.complete(id, answer);
        }
        self.drive()
    }

    /// Carries a call out, unless that would lose data.
    fn carry_out_call(&mut self, call: &Call) -> Step<Answer> {
        let (now, faulty) = (self.now, self.faulty);
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        if let Call::Delete(id) = call {
            let may_be_needed = match &renting.owner.owner {
                Owner::Backing => false,
                Owner::Cache { .. } | Owner::Lost { .. } => renting.owner.volume.as_ref() == Some(id),
            };
            if may_be_needed || renting.in_use.as_ref() == Some(id) {
                return Err(format!("the volume {} is deleted, which may hold the only copy", id.0));
            }
        }
        if let Call::Detach(id) = call
            && renting.in_use.as_ref() == Some(id)
        {
            return Err(format!("the volume {} is detached, which the engine uses", id.0));
        }
        renting.cloud.carry_out(now, call, &mut self.random, faulty)
    }

    /// What the provider was asked long ago happens now.
    pub(super) fn late(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let due: Vec<Call> = renting.late.extract_if(.., |(at, _)| *at <= now).map(|(_, call)| call).collect();
        for call in due {
            // What a volume in use was asked before it was in use does it no harm.
            let harms = matches!(&call, Call::Detach(id) | Call::Delete(id) if self.is_needed(id));
            if !harms {
                self.carry_out_call(&call)?;
            }
        }
        Ok(())
    }

    fn is_needed(&self, id: &VolumeId) -> bool {
        self.renting.as_ref().is_some_and(|renting| {
            let open = renting.process.open.as_ref().is_some_and(|(_, open, _)| open == id);
            open || renting.in_use.as_ref() == Some(id)
        })
    }

    /// An answer that took its time.
    pub(super) fn answered(&mut self) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        if let Some((id, answer)) = renting.process.answers.pop_front() {
            self.complete(id, answer);
        }
        self.drive()
    }

    fn ask_volume(&mut self, id: AskId, ask: VolumeAsk) -> Step<Answer> {
        let (now, gone) = (self.now, self.outages.is_cache_gone() || self.vanished);
        let stage = self.engine.status().stage;
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        Ok(match ask {
            VolumeAsk::Serials => Answer::Serials(Vec::new()),
            VolumeAsk::Open { description, opening, .. } => {
                renting.close();
                if !renting.cloud.has_appeared(now, &description.id) {
                    return Ok(Answer::Opened(Ok(Opened::Absent)));
                }
                if gone {
                    return Ok(Answer::Opened(Err("it does not answer".to_owned())));
                }
                let again = matches!(opening, Opening::Again(_));
                let has_disk = renting.in_use.as_ref() == Some(&description.id);
                let disk = match (again && has_disk, stage) {
                    (true, Stage::Lost) => self.kept.take(),
                    (true, _) => None,
                    (false, _) => renting.cloud.volume(&description.id).and_then(|volume| volume.disk.take()),
                };
                if disk.is_none() && !(again && has_disk && stage != Stage::Lost) {
                    return Err(format!("the volume {} is opened, which is open", description.id.0));
                }
                renting.process.open = Some((id, description.id, disk));
                Answer::Opened(Ok(Opened::Open))
            }
            VolumeAsk::Close(opened) => {
                if renting.process.open.as_ref().is_some_and(|(by, ..)| *by == opened) {
                    renting.close();
                }
                Answer::Closed
            }
            VolumeAsk::Superblock(description) => Answer::Superblock(self.superblock(&description)),
            VolumeAsk::Look if gone => Answer::Looked(Presence::Gone),
            VolumeAsk::Look => Answer::Looked(Presence::Here),
        })
    }

    fn superblock(&mut self, description: &VolumeDescription) -> Result<Option<(bool, Epoch)>, String> {
        let out = self.outages.is_any_passing() || self.vanished;
        let disk = self.renting.as_mut().and_then(|renting| renting.cloud.volume(&description.id)?.disk.as_ref());
        let disk = disk.filter(|_| !out).ok_or("it cannot be read")?;
        let mut area = [0; SUPERBLOCKS_LENGTH as usize];
        disk.peek(0, &mut area);
        Ok(choose_superblock(&area).map(|superblock| (superblock.state == LogState::Clean, superblock.epoch)))
    }

    fn command(&mut self, command: Command) -> Step<Answer> {
        let began = |result: Result<(), String>| Answer::Began(result);
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        Ok(match command {
            Command::Mode(mode) => {
                self.set_mode(mode);
                began(Ok(()))
            }
            Command::Adopt(epoch) => {
                let Some((_, id, Some(disk))) = renting.process.open.take() else {
                    return Err("a volume is adopted that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(id.clone()));
                renting.in_use = Some(id);
                self.cache_size = disk.size();
                self.disks.cache = Some(disk);
                self.apply_trouble();
                self.adopt_as(epoch)?;
                began(Ok(()))
            }
            Command::Recover(_) => {
                let Some((_, id, Some(disk))) = renting.process.open.take() else {
                    return Err("a volume is read back that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(id.clone()));
                renting.in_use = Some(id);
                self.disks.cache = Some(disk);
                self.apply_trouble();
                self.recover()?;
                began(Ok(()))
            }
            Command::Restore(_) => {
                let Some((_, id, Some(disk))) = renting.process.open.take() else {
                    return Err("a volume is restored that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(id));
                self.kept = Some(disk);
                self.restore()?;
                began(if self.restoring { Ok(()) } else { Err("it cannot be restored now".to_owned()) })
            }
            Command::Returned => {
                renting.process.open = None;
                self.engine.cache_returned(self.now);
                began(Ok(()))
            }
            Command::Gone => {
                self.books.cache_failures += 1;
                self.books.notice_outage(self.now);
                self.engine.cache_gone(self.now);
                began(Ok(()))
            }
            Command::Release => {
                let released = self.engine.release(self.now);
                self.release_wanted |= released.is_ok();
                began(released.map_err(|rejected| rejected.to_string()))
            }
            Command::Close => {
                renting.close();
                let used = !matches!(self.engine.status().stage, Stage::PassThrough | Stage::Recovering | Stage::Lost);
                if self.disks.cache.is_some() && !used {
                    let disk = self.let_go()?;
                    if let Some(renting) = &mut self.renting {
                        renting.give_back(disk);
                    }
                } else if self.disks.cache.is_some() {
                    return Err("a volume is closed that the engine uses".to_owned());
                }
                began(Ok(()))
            }
            Command::Sample => {
                Answer::Sampled { stage: self.engine.status().stage, unplugged: self.outages.is_cache_gone() }
            }
        })
    }

    /// The daemon looks for volumes that nobody knows of.
    pub(super) fn sweep(&mut self) -> Step {
        let now = self.now;
        let (again, within) = (self.soon(SWEEP_MAX), self.soon(ANSWER_MAX));
        self.schedule(again, Happening::Sweep);
        if self.fault() {
            return Ok(());
        }
        let (faulty, copy) = (self.faulty, self.faulty && self.random.below(8) == 0);
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let listed = renting.cloud.list(now, tag::OWNER, OWNER, faulty);
        // One in eight is by a copy of this machine, which knows nothing of what is rented since.
        let record = renting.process.rental.record().filter(|_| !copy);
        let mut known = Known::default();
        known.expected.extend(record.and_then(|record| record.volume.clone()));
        if record.is_some_and(|record| record.volume.is_none()) {
            known.creating.insert(DEVICE.to_owned());
        }
        let suspects = listed.iter().filter(|volume| !known.expected.contains(&volume.id));
        let suspects: Vec<VolumeDescription> = suspects.cloned().collect();
        for volume in suspects {
            let Some(epoch) = volume.tags.get(tag::DIRTY_EPOCH) else { continue };
            let ended = self.renting.as_ref().is_some_and(|renting| {
                parse_epoch(epoch).is_some_and(|epoch| renting.owner.has_ended(&volume.id, epoch))
            });
            let clean = self
                .superblock(&volume)
                .is_ok_and(|read| read.is_some_and(|(clean, of)| clean && of.to_string() == *epoch));
            if ended || clean {
                known.reread_clean.insert(volume.id.clone(), epoch.clone());
            }
        }
        if let Some(renting) = &mut self.renting {
            renting.swept = orphans(&listed, OWNER, &known);
        }
        self.check_sweep(&listed, &known, copy)?;
        if copy && let Some(renting) = &mut self.renting {
            // It cannot detach what this machine has, and what it deletes holds nothing: the rental sees it vanish.
            renting.swept.clear();
        }
        self.schedule(within, Happening::Swept);
        Ok(())
    }

    /// A sweep takes nothing that may hold the newest data, and not what is being created.
    fn check_sweep(&self, listed: &[VolumeDescription], known: &Known, copy: bool) -> Step {
        let Some(renting) = &self.renting else { return Ok(()) };
        let token = renting.journal.as_ref().map(|record| &record.token);
        for action in &renting.swept {
            let (Action::Delete(id) | Action::Detach(id)) = action else { continue };
            let Some(volume) = listed.iter().find(|volume| volume.id == *id) else { continue };
            let tagged = volume.tags.get(tag::DIRTY_EPOCH);
            if tagged.is_some_and(|epoch| known.reread_clean.get(id) != Some(epoch)) {
                return Err(format!("a sweep takes the volume {}, which may hold the newest data", id.0));
            }
            if volume.tags.get(tag::TOKEN).is_some_and(|of| Some(of) == token) && known.expected.is_empty() && !copy {
                return Err(format!("a sweep takes the volume {}, which is being created", id.0));
            }
        }
        Ok(())
    }

    /// It deletes them.
    pub(super) fn swept(&mut self) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        for action in std::mem::take(&mut renting.swept) {
            match action {
                Action::Delete(id) => drop(self.carry_out_call(&Call::Delete(id))?),
                Action::Detach(id) => drop(self.carry_out_call(&Call::Detach(id))?),
                Action::Keep { .. } => {}
            }
        }
        Ok(())
    }

    /// The process is gone: what it was doing at the provider happens, or not, and every disk is where its volume is.
    pub(super) fn stop_renting(&mut self) -> Step {
        let Some(renting) = &mut self.renting else { return Ok(()) };
        renting.close();
        renting.swept.clear();
        let calls = std::mem::take(&mut renting.process.calls);
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
        let tagged = self.random.below(2) == 0;
        if let Some(renting) = &mut self.renting
            && let Some((volume, epoch)) = renting.tagging.take()
            && tagged
        {
            let text = epoch.map(|epoch| epoch.to_string());
            // A volume that is gone needs no tag.
            let _ = renting.cloud.set_tag(self.now, &volume, tag::DIRTY_EPOCH, text.as_deref());
        }
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
        let (now, size, seed, patience) = (self.now, self.size, self.scenario.seed, self.scenario.patience);
        if !self.rents() {
            return Ok(());
        }
        let unknown = self.fault();
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let (record, owner) = (renting.journal.clone(), renting.owner.clone());
        let id = owner.volume.clone().or_else(|| record.as_ref().and_then(|record| record.volume.clone()));
        let lookup = match id {
            None => Lookup::Unnamed,
            Some(_) if unknown => Lookup::Unknown("a fault".to_owned()),
            Some(id) => renting.cloud.describe(now, &id).map_or(Lookup::Missing, Lookup::Found),
        };
        let resumed = resume::decide(DEVICE, record.as_ref(), &owner, &lookup);
        let record = match &resumed {
            Resume::Recover { rental, .. } => Some(rental.clone()),
            Resume::Lost { rental, .. } => rental.as_deref().cloned().or(record),
            Resume::Idle | Resume::GiveBack { .. } | Resume::Refuse { .. } => record,
        };
        renting.journal.clone_from(&record);
        renting.process = Process::new(now, seed, size, patience, record, &owner);
        let process = &mut renting.process;
        match resumed {
            Resume::Idle => {}
            Resume::GiveBack { at } => process.controller.resume(now, at),
            Resume::Recover { epoch, .. } => {
                process.recover = Some(epoch);
                // Its disk is opened when the provider says that it is attached.
                if let Some(disk) = self.disks.cache.take() {
                    renting.give_back(disk);
                }
                let after = Duration::from_micros(self.random.below(2_000));
                self.schedule(after, Happening::Recover);
            }
            Resume::Lost { ranges, rental, .. } => {
                if let Some(rental) = rental {
                    process.rental.resume_lost(now, ranges.iter().map(|(_, length)| length).sum());
                    process.controller.resume(now, ResumeAt::Adopted { size: rental.size });
                }
            }
            Resume::Refuse { reason } => return Err(format!("the device is refused: {reason}")),
        }
        let late: Vec<Instant> = self.renting.iter().flat_map(|renting| &renting.late).map(|(at, _)| *at).collect();
        late.into_iter().for_each(|at| self.schedule_at(at, Happening::Late));
        self.schedule(SAMPLING, Happening::Observe);
        let after = self.soon(SWEEP_MAX);
        self.schedule(after, Happening::Sweep);
        self.drive()
    }
}
