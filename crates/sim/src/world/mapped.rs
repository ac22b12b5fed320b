//! The kernel maps the device: straight to the backing volume, or to the daemon. The production code decides which, this is the
//! kernel that does it, and what is between the two.
//!
//! What it may do: a call takes its time, waits for what is in flight while new requests are held back, fails and leaves the old
//! table, or is broken off with the daemon. What goes straight to the backing volume goes on when the daemon dies; what the
//! daemon had in flight waits, and is given to the next one. After a power cut nothing is mapped: a helper maps the device
//! before the daemon starts, or nobody does, or somebody by hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_cache::{Engine, Owner, ReplyError, Target};
use surgetank_model::{Instant, Observation, Operation, Request, RequestId};
use surgetank_rental::mapping::{self, Found, Map, Mapping};
use surgetank_rental::{Answer, AskId};

use crate::content::SECTOR;
use crate::disk::{self, Disk, Finished, IoId, Ticket};
use crate::oracle::Oracle;
use crate::scenario::{CrashKind, Trigger};
use crate::world::renting::DEVICE;
use crate::world::{Expect, SimEvent, Step, World, config};

/// Marks I/Os of the backing volume that are not the engine's.
const STRAIGHT: u32 = 1 << 31;
/// Longest time between a power cut and the helper that maps the device.
const BOOT_MAX: Duration = Duration::from_millis(2);

/// How far a switch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The daemon is about to call the kernel.
    Called(Map),
    /// The kernel holds new requests back and waits for those in flight.
    Awaiting(Map),
    /// Nothing is in flight: the daemon is about to look again whether the device may be mapped straight.
    Quiet,
    /// The daemon has the kernel go on, with the new table or the old one.
    Resuming { swaps: bool },
    /// The daemon is about to hear that it has ended, and how.
    Over(Result<(), &'static str>),
}

/// A device that the kernel maps.
#[derive(Debug)]
pub(super) struct Mapped {
    /// The table that is live; `None`: there is no such device.
    live: Option<Map>,
    /// New requests are held back.
    suspended: bool,
    stage: Option<Stage>,
    /// Requests that have gone nowhere yet, oldest first.
    held: VecDeque<RequestId>,
    /// Requests in flight on the backing volume that the engine does not see, by the tag of their I/O.
    straight: BTreeMap<u32, RequestId>,
    next_tag: u32,
    /// Flushes that wait for the one in flight, as in the kernel: whoever is told of a failure is told before they end.
    flushes: VecDeque<RequestId>,
    /// Changes that a failed flush may have dropped while they were in flight: nothing is promised of them.
    dropped: BTreeSet<RequestId>,
    /// What went straight since the daemon started, as the kernel counts it.
    counted: Observation,
    /// Since when something is in flight straight, or the kernel was last asked.
    busy_since: Instant,
    /// The daemon's view; `None`: none runs.
    mapping: Option<Mapping>,
    serve: Option<AskId>,
    tick_at: Option<Instant>,
    /// Somebody has mapped it by hand, and nobody uses it yet.
    unused: bool,
}

impl Mapped {
    pub(super) fn new() -> Self {
        Self {
            live: Some(Map::Straight),
            suspended: false,
            stage: None,
            held: VecDeque::new(),
            straight: BTreeMap::new(),
            next_tag: 0,
            flushes: VecDeque::new(),
            dropped: BTreeSet::new(),
            counted: Observation::default(),
            busy_since: Instant::ZERO,
            mapping: Some(Mapping::new(Map::Straight)),
            serve: None,
            tick_at: None,
            unused: false,
        }
    }

    /// Whether no daemon runs.
    pub(super) fn is_away(&self) -> bool {
        self.mapping.is_none()
    }

    /// Whether requests go straight, and will go on to.
    fn is_straight(&self) -> bool {
        let settled = |mapping: &Mapping| mapping.map() == Map::Straight && mapping.trouble().is_none();
        self.live == Some(Map::Straight) && self.stage.is_none() && self.mapping.as_ref().is_some_and(settled)
    }

    /// Whether a request that comes now has somewhere to go.
    fn is_open(&self) -> bool {
        let target = match self.live {
            None => false,
            Some(Map::Straight) => !self.unused,
            Some(Map::Served) => self.mapping.is_some(),
        };
        target && !self.suspended
    }

    /// Requests that the engine does not have.
    fn elsewhere(&self) -> usize {
        self.held.len() + self.straight.len() + self.flushes.len()
    }

    fn is_elsewhere(&self, id: RequestId) -> bool {
        self.held.contains(&id) || self.flushes.contains(&id) || self.straight.values().any(|other| *other == id)
    }

    /// For whoever looks for a bug.
    pub(super) fn summary(&self) -> String {
        let Self { live, suspended, stage, held, straight, mapping, serve, .. } = self;
        format!(
            "live {live:?}, suspended {suspended}, {stage:?}, held {held:?}, straight {straight:?}, {mapping:?}, {serve:?}"
        )
    }
}

/// The next flush goes to the backing volume, which knows nothing of one that failed before: the application has been told.
fn nothing_is_owed(oracle: &Oracle, backing: &Disk) -> Step {
    let mut bytes = [0; SECTOR];
    for at in backing.forgotten_sectors() {
        backing.peek(at, &mut bytes);
        let sector = (at / SECTOR as u64) as u32;
        if oracle.is_relied_on(sector, &bytes) {
            return Err(format!(
                "the device is mapped straight, but nobody has told that a flush has forgotten sector {sector}"
            ));
        }
    }
    Ok(())
}

impl World<'_> {
    fn pace(&mut self) -> Duration {
        let longest = self.scenario.mapped.map_or(Duration::ZERO, |mapped| mapped.pace_max);
        Duration::from_nanos(self.random.below(longest.as_nanos() as u64 + 1))
    }

    fn switch_fails(&mut self) -> bool {
        let faults = self.scenario.mapped.map_or(0.0, |mapped| mapped.faults);
        self.faulty && self.random.chance(faults)
    }

    /// Whether a daemon runs.
    pub(super) fn is_up(&self) -> bool {
        self.mapped.as_ref().is_none_or(|mapped| !mapped.is_away())
    }

    /// Whether the device is as it is in calm.
    pub(super) fn is_mapped_for_calm(&self) -> bool {
        self.mapped.as_ref().is_none_or(Mapped::is_straight)
    }

    /// Requests that the engine has.
    pub(super) fn in_engine(&self) -> usize {
        self.outstanding.len() - self.mapped.as_ref().map_or(0, Mapped::elsewhere)
    }

    /// What the controller sees: also what went straight.
    pub(super) fn observed(&self) -> Observation {
        let mut observation = self.engine.observation(self.now);
        if let Some(mapped) = &self.mapped {
            observation.read_bytes += mapped.counted.read_bytes;
            observation.written_bytes += mapped.counted.written_bytes;
            observation.requests += mapped.counted.requests;
            observation.busy += mapped.counted.busy;
            if !mapped.straight.is_empty() {
                observation.busy += self.now.since(mapped.busy_since);
            }
        }
        observation
    }

    /// A request is there; it goes where the map says.
    pub(super) fn dispatch(&mut self, request: Request, expect: Expect) {
        match &mut self.mapped {
            Some(mapped) => mapped.held.push_back(request.id),
            None => self.send_to_engine(request, expect),
        }
    }

    /// After every event: carries on a switch, sends requests on their way, and does what the production code decides.
    pub(super) fn steer_map(&mut self) -> Step {
        while self.mapped.is_some() {
            self.end_waiting();
            let released = self.release_held()?;
            let served = self.decide_map()?;
            if !released && !served {
                return self.check_map();
            }
        }
        Ok(())
    }

    /// Newest data that are elsewhere are not mapped straight.
    fn check_map(&self) -> Step {
        let Some(mapped) = &self.mapped else { return Ok(()) };
        if mapped.live == Some(Map::Straight) && !mapped.unused && self.owner != Owner::Backing {
            return Err(format!("the device is mapped straight, but the owner is {:?}", self.owner));
        }
        Ok(())
    }

    /// True if a rental was answered.
    fn decide_map(&mut self) -> Step<bool> {
        let (now, transparent) = (self.now, self.engine.is_transparent());
        let rental = self.renting.as_ref().is_some_and(|renting| renting.wants_service());
        let Some(mapped) = &mut self.mapped else { return Ok(false) };
        let Some(mapping) = &mut mapped.mapping else { return Ok(false) };
        mapping.update(now, rental, transparent);
        if let Some(to) = mapping.next_switch() {
            if to == Map::Served {
                self.engine.enter_path(now);
            }
            mapped.stage = Some(Stage::Called(to));
            self.triggers(Trigger::Switch);
            let after = self.pace();
            self.schedule(after, SimEvent::Switch);
        }
        let Some(mapped) = &mut self.mapped else { return Ok(false) };
        let Some(mapping) = &mapped.mapping else { return Ok(false) };
        let deadline = mapping.next_deadline().filter(|at| mapped.tick_at.is_none_or(|tick| *at < tick));
        let service = mapping.service();
        if let Some(at) = deadline {
            mapped.tick_at = Some(at);
            self.schedule_at(at, SimEvent::MapTick);
        }
        let Some(mapped) = &mut self.mapped else { return Ok(false) };
        let Some((id, result)) = mapped.serve.take_if(|_| service.is_some()).zip(service) else { return Ok(false) };
        self.served(id, result)?;
        self.pump()?;
        Ok(true)
    }

    /// Time for the production code to look again.
    pub(super) fn tick_map(&mut self) {
        if let Some(mapped) = &mut self.mapped {
            mapped.tick_at = None;
        }
    }

    /// A rental wants the requests to come to the engine.
    pub(super) fn ask_for_service(&mut self, id: AskId) -> Option<Answer> {
        let Some(mapped) = &mut self.mapped else { return Some(Answer::Served(Ok(()))) };
        let service = mapped.mapping.as_ref().and_then(Mapping::service);
        if service.is_none() {
            mapped.serve = Some(id);
        }
        service.map(Answer::Served)
    }

    /// The next part of a switch.
    pub(super) fn switch(&mut self) -> Step {
        let (now, transparent, fails) = (self.now, self.engine.is_transparent(), self.switch_fails());
        let rental = self.renting.as_ref().is_some_and(|renting| renting.wants_service());
        let Some(mapped) = &mut self.mapped else { return Ok(()) };
        let Some(mapping) = &mut mapped.mapping else { return Ok(()) };
        let next = match mapped.stage.take() {
            Some(Stage::Called(_)) if fails => Stage::Over(Err("the table was refused")),
            Some(Stage::Called(to)) => {
                mapped.suspended = true;
                mapped.stage = Some(Stage::Awaiting(to));
                return Ok(());
            }
            Some(Stage::Quiet) => {
                mapping.update(now, rental, transparent);
                let swaps = mapping.is_wanted();
                self.report.switches_withdrawn += u32::from(!swaps && !rental);
                Stage::Resuming { swaps }
            }
            Some(Stage::Resuming { swaps }) => {
                mapped.suspended = false;
                if swaps && !fails {
                    mapped.live = Some(Map::Straight);
                    nothing_is_owed(&self.oracle, &self.disks.backing)?;
                }
                Stage::Over(match (swaps, fails) {
                    (true, false) => Ok(()),
                    (true, true) => Err("the tables were not swapped"),
                    (false, _) => Err("the daemon is needed again"),
                })
            }
            Some(Stage::Over(result)) => {
                let to = mapped.live;
                mapping.switched(now, result.map_err(str::to_owned));
                if result.is_ok() && Some(mapping.map()) != to {
                    return Err(format!("the kernel has mapped {to:?}, the daemon believes {:?}", mapping.map()));
                }
                self.report.switches_in += u32::from(result.is_ok() && to == Some(Map::Served));
                self.report.switches_out += u32::from(result.is_ok() && to == Some(Map::Straight));
                self.report.switch_failures += u32::from(result.is_err());
                return Ok(());
            }
            stage @ (Some(Stage::Awaiting(_)) | None) => {
                return Err(format!("a switch goes on that does not: {stage:?}"));
            }
        };
        mapped.stage = Some(next);
        let after = self.pace();
        self.schedule(after, SimEvent::Switch);
        Ok(())
    }

    /// Nothing is in flight any more for which a switch waits.
    fn end_waiting(&mut self) {
        let in_engine = self.in_engine();
        let Some(mapped) = &self.mapped else { return };
        let Some(Stage::Awaiting(to)) = mapped.stage else { return };
        let in_flight = match mapped.live {
            Some(Map::Straight) => mapped.straight.len() + mapped.flushes.len(),
            Some(Map::Served) | None => in_engine,
        };
        if in_flight > 0 {
            return;
        }
        let fails = self.switch_fails();
        let Some(mapped) = &mut self.mapped else { return };
        let next = match to {
            Map::Straight => Stage::Quiet,
            Map::Served => {
                mapped.suspended = false;
                if !fails {
                    mapped.live = Some(Map::Served);
                }
                Stage::Over(if fails { Err("the tables were not swapped") } else { Ok(()) })
            }
        };
        if mapped.is_away() {
            // The call has outlived its daemon; the process is gone only now.
            mapped.stage = None;
            return self.schedule_start();
        }
        mapped.stage = Some(next);
        let after = self.pace();
        self.schedule(after, SimEvent::Switch);
    }

    /// Sends requests that were held back on their way. True if there were any.
    fn release_held(&mut self) -> Step<bool> {
        let mut any = false;
        while let Some(mapped) = self.mapped.as_mut().filter(|mapped| mapped.is_open()) {
            let Some(id) = mapped.held.pop_front() else { break };
            let live = mapped.live;
            any = true;
            let outstanding = self.outstanding.iter().find(|outstanding| outstanding.request.id == id);
            let Some(&outstanding) = outstanding else {
                return Err(format!("{id:?} is held back but not outstanding"));
            };
            match live {
                Some(Map::Straight) => self.send_straight(outstanding.request, outstanding.expect)?,
                Some(Map::Served) | None => self.send_to_engine(outstanding.request, outstanding.expect),
            }
        }
        if any {
            self.pump()?;
        }
        Ok(any)
    }

    fn send_straight(&mut self, request: Request, expect: Expect) -> Step {
        let Request { id, operation, offset, length } = request;
        let Some(mapped) = &mut self.mapped else { return Ok(()) };
        if operation == Operation::Flush {
            let flushes = |other: &RequestId| {
                let same = |outstanding: &&super::Outstanding| outstanding.request.id == *other;
                self.outstanding.iter().find(same).is_some_and(|other| other.request.operation == Operation::Flush)
            };
            if mapped.straight.values().any(flushes) {
                mapped.flushes.push_back(id);
                return Ok(());
            }
        }
        let io = match (operation, expect) {
            (Operation::Write { fua }, Expect::Write(version)) => {
                let mut data = self.disks.backing.buffer();
                data.clear();
                data.resize(length as usize, 0);
                self.oracle.fill(version, (offset / SECTOR as u64) as u32, &mut data);
                disk::Io::Write { offset, data, fua }
            }
            (Operation::WriteZeroes { fua }, _) => disk::Io::Zero { offset, length, fua },
            (Operation::Discard, _) => disk::Io::Zero { offset, length, fua: false },
            (Operation::Flush, _) => disk::Io::Flush,
            (Operation::Read | Operation::Write { .. }, _) => disk::Io::Read { offset, length },
        };
        let tag = STRAIGHT | mapped.next_tag;
        mapped.next_tag = (mapped.next_tag + 1) & !STRAIGHT;
        if mapped.straight.is_empty() {
            mapped.busy_since = self.now;
        }
        mapped.straight.insert(tag, id);
        self.report.straight_requests += 1;
        let ticket = self.disks.backing.submit(self.now, tag, io).map_err(|misfit| misfit.0)?;
        if let Some(Ticket { io, effect_at, done_at }) = ticket {
            if effect_at < done_at {
                self.schedule_at(effect_at, SimEvent::Effect(Target::Backing, io));
            }
            self.schedule_at(done_at, SimEvent::Done(Target::Backing, io));
        }
        Ok(())
    }

    /// Whether an I/O that has ended is none of the engine's.
    pub(super) fn is_straight(finished: &Finished) -> bool {
        finished.tag & STRAIGHT != 0
    }

    /// The backing volume answers a request that the engine does not see.
    pub(super) fn straight_done(&mut self, finished: Finished) -> Step {
        let forgets = finished.flush && finished.result.is_err() && self.is_forgetful();
        self.report.forgotten += u32::from(forgets);
        let Some(mapped) = &mut self.mapped else { return Ok(()) };
        let id = mapped.straight.remove(&finished.tag).ok_or("an I/O that went straight has ended twice")?;
        if mapped.straight.is_empty() {
            mapped.counted.busy += self.now.since(mapped.busy_since);
        }
        if forgets {
            mapped.dropped.extend(mapped.straight.values());
        }
        let outstanding = self.outstanding.iter_mut().find(|outstanding| outstanding.request.id == id);
        let Some(outstanding) = outstanding else { return Err(format!("{id:?} went straight but is not outstanding")) };
        // Whatever the volume answers is the answer.
        outstanding.excused |= finished.result.is_err();
        let request = outstanding.request;
        if finished.result.is_ok() {
            let counted = &mut mapped.counted;
            counted.requests += 1;
            match request.operation {
                Operation::Read => counted.read_bytes += request.length,
                Operation::Write { .. } => counted.written_bytes += request.length,
                Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => {}
            }
        }
        self.report.answered_alone += u64::from(mapped.mapping.is_none());
        let next_flush = if finished.flush { mapped.flushes.pop_front() } else { None };
        self.reply(id, finished.result.map_err(|_| ReplyError::Io), finished.data)?;
        let waiting = self.outstanding.iter().find(|outstanding| Some(outstanding.request.id) == next_flush).copied();
        waiting.map_or(Ok(()), |flush| self.send_straight(flush.request, flush.expect))
    }

    /// Whether a failed flush may have dropped this change while it was in flight.
    pub(super) fn was_dropped(&mut self, id: RequestId) -> bool {
        self.mapped.as_mut().is_some_and(|mapped| mapped.dropped.remove(&id))
    }

    /// A crash is about to come: whether it hits a switch.
    pub(super) fn note_crash_in_switch(&mut self) {
        let in_switch = self.mapped.as_ref().is_some_and(|mapped| mapped.stage.is_some());
        self.report.crashes_in_switch += u32::from(in_switch);
    }

    /// The daemon alone has ended: I/Os that went straight go on.
    pub(super) fn interrupt_backing(&mut self) {
        match self.mapped {
            Some(_) => self.disks.backing.crash_of(|tag| tag & STRAIGHT == 0),
            None => self.disks.backing.submitter_crash(),
        }
    }

    /// What is in the queue and has nothing to do with the daemon.
    pub(super) fn keep_straight_events(&mut self) {
        let mut events = Vec::new();
        while let Some((at, event)) = self.queue.pop() {
            let of = |io: IoId| self.disks.backing.tag(io).is_some_and(|tag| tag & STRAIGHT != 0);
            if let SimEvent::Effect(Target::Backing, io) | SimEvent::Done(Target::Backing, io) = event
                && of(io)
            {
                events.push((at, event));
            }
        }
        events.into_iter().for_each(|(at, event)| self.schedule_at(at, event));
    }

    /// No daemon runs until it is started again.
    pub(super) fn leave(&mut self, kind: CrashKind) {
        self.engine = Engine::new(config(self.scenario, self.size));
        let (broken_off, done) = (self.random.below(2) == 0, self.random.below(2) == 0);
        let Some(mapped) = &mut self.mapped else { return };
        (mapped.mapping, mapped.serve, mapped.tick_at) = (None, None, None);
        if kind == CrashKind::PowerCut {
            *mapped = Mapped { live: None, mapping: None, ..Mapped::new() };
            let after = self.soon(BOOT_MAX);
            return self.schedule(after, SimEvent::Boot);
        }
        match mapped.stage.take() {
            None | Some(Stage::Called(_) | Stage::Over(_)) => {}
            // The kernel stops to wait when a signal comes, and goes on with the old table; or the signal comes too late.
            Some(Stage::Awaiting(Map::Served)) if !broken_off => mapped.stage = Some(Stage::Awaiting(Map::Served)),
            Some(Stage::Awaiting(_)) => mapped.suspended = false,
            Some(Stage::Quiet) => {}
            Some(Stage::Resuming { swaps }) if done => {
                mapped.suspended = false;
                if swaps {
                    mapped.live = Some(Map::Straight);
                }
            }
            Some(Stage::Resuming { .. }) => {}
        }
        // The next daemon is given what this one had in flight.
        let all = self.outstanding.iter().map(|outstanding| outstanding.request.id);
        let mut again: Vec<RequestId> = all.filter(|id| !mapped.is_elsewhere(*id)).collect();
        again.sort_unstable();
        again.into_iter().rev().for_each(|id| mapped.held.push_front(id));
        if mapped.stage.is_none() {
            self.schedule_start();
        }
    }

    fn schedule_start(&mut self) {
        let longest = self.scenario.mapped.map_or(Duration::ZERO, |mapped| mapped.absence_max);
        let after = self.soon(longest.max(Duration::from_nanos(1)));
        self.schedule(after, SimEvent::Start);
    }

    /// The machine boots: a helper maps the device before the daemon runs, if it may.
    pub(super) fn boot(&mut self) {
        let by_hand = self.scenario.mapped.is_some_and(|mapped| mapped.by_hand);
        let helped = self.random.below(4) > 0;
        let straight = self.renting.as_ref().is_some_and(|renting| mapping::straight_at_boot(renting.owner()));
        if let Some(mapped) = &mut self.mapped
            && (by_hand || straight && helped)
        {
            mapped.live = Some(Map::Straight);
            mapped.unused = !straight;
        }
        self.schedule_start();
    }

    /// The daemon starts and finds the device as it is.
    pub(super) fn start_mapped(&mut self) -> Step {
        let Some(owner) = self.renting.as_ref().map(|renting| renting.owner().clone()) else { return Ok(()) };
        let Some(mapped) = &mut self.mapped else { return Ok(()) };
        let found = mapped.live.map(|map| Found { map, suspended: mapped.suspended });
        self.report.found_suspended += u32::from(mapped.suspended);
        let begin = |found: Option<&Found>| mapping::at_start(DEVICE, &owner, false, found);
        let map = match begin(found.as_ref()) {
            Err(_) if mapped.unused => {
                // Somebody reads the message, and removes what was mapped by hand.
                self.report.refusals += 1;
                begin(None)
            }
            map => map,
        };
        let map = map.map_err(|reason| format!("the device is refused: {reason}"))?;
        (mapped.live, mapped.suspended, mapped.unused) = (Some(map), false, false);
        (mapped.mapping, mapped.counted) = (Some(Mapping::new(map)), Observation::default());
        mapped.busy_since = self.now;
        self.start()
    }
}
