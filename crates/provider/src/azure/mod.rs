//! Azure: managed disks, attached to the virtual machine that this machine is.
//!
//! Not yet run on the real cloud, but against a fake of it (`fakes`) that Azure's own client uses, and whose record of requests is
//! checked by that client's model of the interface (`tests/azure`).

mod account;
mod arm;
mod config;
mod disk;
mod errors;
mod known;
mod login;
mod looks;
mod machine;
mod tags;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use surgetank_model::Bytes;

pub use config::AzureConfig;

use crate::account::takes_over;
use crate::clock::{Clock, SystemClock};
use crate::cloud::rates::Turns;
use crate::{
    Change, CreateVolume, Home, Lag, Provider, ProviderConfig, ProviderError, Transition, Verb, VolumeDescription,
    VolumeId, VolumeState, decide_growth, tag,
};
use account::Renter;
use arm::{Accepted, Arm, Operation, Progress};
use disk::{Disk, Seen, is_our_id};
use errors::Failure;
use known::{Doing, Known, Pending};
use machine::Machine;

/// How often tags are written that somebody else overwrites.
const WRITES_MAX: usize = 5;
/// How long an operation is waited for that has to end within a call, and how often it is asked for. Whoever calls waits for little longer.
const FINISHED_WITHIN: Duration = Duration::from_secs(2);
const FINISHED_LOOK: Duration = Duration::from_millis(200);

/// Disks of a resource group.
pub struct AzureProvider {
    config: AzureConfig,
    arm: Arm,
    clock: Arc<dyn Clock>,
    turns: Turns,
    known: Known,
    /// The unit from which a free one is looked for.
    next_unit: AtomicU32,
    /// Held while tags are read and written, as Azure takes all of a disk's at once.
    tagging: Mutex<()>,
    /// Held while the machine is read and a change of it is asked for, so that each change knows those before it.
    turning: Mutex<()>,
}

impl std::fmt::Debug for AzureProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AzureProvider").field("config", &self.config).field("arm", &self.arm).finish_non_exhaustive()
    }
}

impl From<Transition> for Doing {
    fn from(transition: Transition) -> Self {
        match transition {
            Transition::Attach => Self::Attach,
            Transition::Detach => Self::Detach,
            Transition::Delete => Self::Delete,
        }
    }
}

impl AzureProvider {
    /// Prepares the client, and asks nobody.
    ///
    /// # Errors
    /// `Invalid`: the configuration.
    pub fn open(config: AzureConfig) -> Result<Self, ProviderError> {
        Self::open_at(config, Arc::new(SystemClock))
    }

    /// The same by another clock, for tests.
    ///
    /// # Errors
    /// As [`AzureProvider::open`].
    pub fn open_at(config: AzureConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        config.check().map_err(ProviderError::Invalid)?;
        let arm = Arm::new(&config, Arc::clone(&clock))?;
        let turns = Turns::new("Azure", "[provider.azure]", config.reads_per_s, config.writes_per_s);
        let (known, next_unit, tagging, turning) =
            (Known::default(), AtomicU32::new(0), Mutex::default(), Mutex::default());
        Ok(Self { config, arm, clock, turns, known, next_unit, tagging, turning })
    }

    /// The id of this machine.
    fn here(&self) -> Result<String, ProviderError> {
        Ok(self.arm.place()?.id("virtualmachines", self.arm.instance()?))
    }

    /// Why a change of a disk was not carried out.
    fn error_of(&self, failure: Failure, disk: &str, state: VolumeState) -> ProviderError {
        match self.arm.place() {
            Ok(place) => failure.told(|refusal| refusal.of_disk(disk, place, state)),
            Err(error) => error,
        }
    }

    /// The same of one that was asked for: what was told of the disk may be so no more.
    fn refused(&self, failure: Failure, disk: &str, state: VolumeState) -> ProviderError {
        // Of what was surely refused, as by a rate, nothing else has to be asked.
        if failure.is_in_doubt() {
            self.known.forget(disk);
        } else {
            self.known.is_stale(disk);
        }
        self.error_of(failure, disk, state)
    }

    /// A change was accepted, or waits for its turn (`operation` is `None`); `unit` is the one at which a disk is attached.
    fn begins(
        &self,
        doing: Doing,
        operation: Option<Operation>,
        disk: &Disk,
        unit: Option<u32>,
        under_way: VolumeState,
    ) {
        let begun_ms = self.clock.now_ms();
        let waited = self.known.pending(&disk.name).flatten().filter(|there| there.doing == doing);
        let is_in_doubt = operation.is_none() && waited.is_some_and(|there| there.is_in_doubt);
        let pending = Pending { doing, operation, is_in_doubt, disk: disk.clone(), unit, begun_ms };
        let told = Seen::under_way(disk.clone(), under_way);
        self.known.begins(&disk.name, pending, told, begun_ms, |_| false);
    }

    /// A disk was read just now, after its tags were set: where this machine has it, it has it still.
    fn retagged(&self, name: &str, disk: &Disk) {
        let (now_ms, tags) = (self.clock.now_ms(), &disk.tags);
        self.known.alters(name, |entry| {
            if let Some(pending) = &mut entry.pending {
                pending.disk.tags.clone_from(tags);
            }
            if let Some((at_ms, seen)) = &mut entry.told {
                seen.disk.tags.clone_from(tags);
                if seen.state == VolumeState::Attached && disk.machine == seen.disk.machine {
                    *at_ms = now_ms;
                }
            }
        });
    }

    /// This machine.
    fn machine(&self) -> Result<Arc<Machine>, ProviderError> {
        self.arm.machine().map(Arc::new)
    }

    /// One at a time reads the machine and asks for a change of it.
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an attach back that waits for its turn. Whether that was all: one that may have been sent all the same has to be looked at.
    fn takes_back(&self, name: &str, _turn: &MutexGuard<'_, ()>) -> bool {
        let waiting = self.known.pending(name).flatten().filter(Pending::is_attach_that_waits);
        if waiting.is_some() {
            self.known.forget(name);
        }
        waiting.is_some_and(|pending| !pending.is_in_doubt)
    }

    /// Asks for a change of the machine, unless it was to be attached and nothing was sent: that is taken back.
    /// `read` is the machine as it was just read, after so many changes.
    fn ask_of_machine(
        &self,
        name: &str,
        transition: Transition,
        disk: &Disk,
        read: Option<(Arc<Machine>, u64)>,
    ) -> Result<Change, Failure> {
        let turn = self.turn();
        if transition == Transition::Detach && self.takes_back(name, &turn) {
            return Ok(Change::Changed);
        }
        // Another thread has asked for the same meanwhile.
        if self.known.pending(name).flatten().is_some_and(|pending| pending.doing == transition.into()) {
            return Ok(Change::Identity);
        }
        // What is a moment old, or was read before another change, does not say which units are free. Who detaches needs none.
        let read = read.filter(|(_, changes)| self.known.changes() == *changes).map(|(machine, _)| machine);
        let machine = match (read, transition) {
            (None, Transition::Attach) => Some(self.machine()?),
            (read, _) => read,
        };
        self.ask_in_turn(name, transition, disk, machine.as_deref()).map(|()| Change::Changed)
    }

    /// Asks for a change of the machine, or lets it wait, if the machine is being changed: Azure takes one at a time, and says so if
    /// nobody has looked.
    fn ask_in_turn(
        &self,
        name: &str,
        transition: Transition,
        disk: &Disk,
        machine: Option<&Machine>,
    ) -> Result<(), Failure> {
        let (doing, state) = (Doing::from(transition), transition.under_way());
        let begins = |operation, unit| self.begins(doing, operation, disk, unit, state);
        if machine.is_some_and(|machine| machine.is_changing) {
            begins(None, None);
            return Ok(());
        }
        let unit = match (transition, machine) {
            (Transition::Attach, Some(machine)) => Some(self.unit(machine)?),
            _ => None,
        };
        let body = self.change_of_machine(name, unit)?;
        match self.arm.attach_or_detach(&body) {
            Ok(Accepted { operation: Some(operation), .. }) => begins(Some(operation), unit),
            // It is done, or nobody tells when it is: the disk and the machine do.
            Ok(Accepted { operation: None, .. }) => self.known.forget(name),
            Err(Failure::Refused(refusal)) if refusal.is_busy() => begins(None, None),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// This machine, as volumes that it rents name it.
    fn renter(&self, machine: &Machine) -> Result<Renter, ProviderError> {
        Ok(Renter::new(self.arm.place()?, &machine.name, &machine.unique))
    }

    /// A free unit of the machine.
    fn unit(&self, machine: &Machine) -> Result<u32, ProviderError> {
        let unit = machine.free_unit(self.next_unit.load(Ordering::Relaxed))?;
        self.next_unit.store(unit + 1, Ordering::Relaxed);
        Ok(unit)
    }

    /// What attaches a disk at a unit, or detaches it.
    fn change_of_machine(&self, name: &str, unit: Option<u32>) -> Result<Value, ProviderError> {
        let id = self.arm.place()?.id("disks", name);
        let Some(unit) = unit else { return Ok(json!({ "dataDisksToDetach": [{ "diskId": id }] })) };
        // The newest data may be on it when the machine is deleted, and a cache of the host's would lose what was flushed.
        let disk = json!({ "diskId": id, "lun": unit, "caching": "None", "deleteOption": "Detach" });
        Ok(json!({ "dataDisksToAttach": [disk] }))
    }

    /// Waits for a change that has to end within the call. One that takes long is no reason to hold the caller, who asks again.
    /// `is_there` looks itself, where nobody tells.
    fn finish(&self, accepted: Accepted, is_there: impl Fn() -> Result<bool, ProviderError>) -> Result<(), Failure> {
        let Some(operation) = accepted.operation else { return Ok(()) };
        let began = Instant::now();
        loop {
            match self.arm.operation(&operation)? {
                Progress::Ended(ended) => return ended.map_err(Failure::Refused),
                Progress::Hidden if is_there()? => return Ok(()),
                Progress::Running | Progress::Hidden if began.elapsed() < FINISHED_WITHIN => {
                    std::thread::sleep(FINISHED_LOOK);
                }
                Progress::Running | Progress::Hidden => {
                    return Err(Failure::Other(ProviderError::Transient(
                        "Azure has accepted a change and has not carried it out yet: it is asked for again".to_owned(),
                    )));
                }
            }
        }
    }
}

impl Provider for AzureProvider {
    fn home(&self) -> Home {
        Home::Disks
    }

    /// There is one disk of a name, and nobody is told who made it.
    fn create_is_exclusive(&self) -> bool {
        false
    }

    /// Nothing is promised of when a new disk is described.
    fn lag(&self) -> Lag {
        Lag::CLOUD
    }

    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError> {
        let (name, gib) = (disk::name(&request.token)?, disk::gib(request.size)?);
        let bought = self.config.bought(&request.volume_type)?;
        self.config.check_disk(&request.volume_type, request.size)?;
        let wanted = Disk::wanted(request, &name, gib)?;
        self.turns.take(Verb::Create)?;
        let present = |seen: Seen| {
            seen.disk.check(request, gib)?;
            Ok((seen.describe(), Change::Identity))
        };
        // Always: a second creation would set what has changed since, such as the tags, to what it was.
        let (changes, is_pending) = (self.known.changes(), self.known.pending(&name).flatten().is_some());
        let read = if is_pending { None } else { Some(self.machine()?) };
        let seen = read.as_ref().map_or_else(|| self.look(&name), |machine| self.look_at(&name, machine, changes));
        if let Some(seen) = seen? {
            return present(seen);
        }
        let machine = read.map_or_else(|| self.machine(), Ok)?;
        let wanted = wanted.marked(&self.renter(&machine)?)?;
        let body = wanted.body(&machine, &bought);
        match self.arm.create(&name, &body) {
            Ok(Accepted { operation, .. }) => {
                if operation.is_some() {
                    self.begins(Doing::Create, operation, &wanted, None, VolumeState::Creating);
                }
                Ok((Seen::under_way(wanted, VolumeState::Creating).describe(), Change::Changed))
            }
            // Somebody else makes it, or has made it, and it may not be described yet.
            Err(Failure::Refused(refusal)) if refusal.exists() || refusal.is_busy() => {
                let creating = Seen::under_way(wanted, VolumeState::Creating);
                self.look(&name)?.map_or_else(|| Ok((creating.describe(), Change::Identity)), present)
            }
            Err(failure) => Err(failure.general()),
        }
    }

    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError> {
        self.turns.take(transition.into())?;
        let name = &*id.0;
        if !is_our_id(name) {
            return transition.decide(id, None);
        }
        // Before a look, which would ask for it.
        if transition == Transition::Detach && self.takes_back(name, &self.turn()) {
            return Ok(Change::Changed);
        }
        let mut recent = self.known.recent(name, self.clock.now_ms());
        let (seen, read) = loop {
            let (is_recent, changes) = (recent.is_some(), self.known.changes());
            let Some(seen) = recent.take().map_or_else(|| self.look(name), |seen| Ok(Some(seen)))? else {
                return transition.decide(id, None);
            };
            let elsewhere = if seen.disk.machine.is_some() { seen.disk.elsewhere(&self.here()?) } else { None };
            let decided = match (transition, elsewhere) {
                (Transition::Attach | Transition::Detach, Some(other)) => Err(ProviderError::Conflict {
                    id: id.clone(),
                    state: seen.state,
                    reason: format!("the machine {other} has it: detach it there"),
                }),
                _ => transition.decide(id, Some(seen.state)),
            };
            match decided {
                Ok(Change::Changed) => {
                    let read = seen.machine.clone().filter(|_| !is_recent).map(|machine| (machine, changes));
                    break (seen, read);
                }
                // Nothing is left undone because of what was so a moment ago.
                _ if is_recent => {}
                decided => return decided,
            }
        };
        let answer = match transition {
            Transition::Attach | Transition::Detach => self.ask_of_machine(name, transition, &seen.disk, read),
            Transition::Delete => self.arm.delete(name).map(|Accepted { operation, is_vain }| {
                match operation {
                    Some(_) => self.begins(Doing::Delete, operation, &seen.disk, None, VolumeState::Deleting),
                    None => self.known.forget(name),
                }
                if is_vain { Change::Identity } else { Change::Changed }
            }),
        };
        match answer.map_err(|failure| self.refused(failure, name, seen.state)) {
            Ok(change) => Ok(change),
            Err(ProviderError::NotFound(_)) if transition == Transition::Delete => Ok(Change::Identity),
            Err(error) => Err(error),
        }
    }

    /// Not every size can while it is attached: Azure refuses those that cannot.
    fn grows(&self) -> bool {
        self.config.grow_in_place
    }

    fn grow(&self, id: &VolumeId, size: Bytes) -> Result<Change, ProviderError> {
        if !self.grows() {
            return Err(ProviderError::Invalid(
                "disks do not grow in place unless grow_in_place in [provider.azure] is true".to_owned(),
            ));
        }
        self.turns.take(Verb::Grow)?;
        let name = &*id.0;
        let seen = if is_our_id(name) { self.look(name)? } else { None };
        let present = seen.as_ref().map(|seen| (seen.state, seen.disk.size()));
        if decide_growth(id, present, size)? == Change::Identity {
            return Ok(Change::Identity);
        }
        let Some(seen) = seen else { return Err(ProviderError::NotFound(id.clone())) };
        match self.known.pending(name).flatten() {
            Some(pending) if pending.doing != Doing::Grow => {
                let reason = "wait until it is attached or detached".to_owned();
                return Err(ProviderError::Conflict { id: id.clone(), state: seen.state, reason });
            }
            Some(_) => return Ok(Change::Identity),
            // To which size, the disk does not say: whoever sees that it is too small asks again.
            None if seen.disk.is_changing => return Ok(Change::Identity),
            None => {}
        }
        let body = json!({ "properties": { "diskSizeGB": disk::gib(size)? } });
        match self.arm.update(name, &body) {
            Ok(Accepted { operation, .. }) => {
                if operation.is_some() {
                    self.begins(Doing::Grow, operation, &seen.disk, None, seen.state);
                }
                Ok(Change::Changed)
            }
            Err(failure) => Err(self.refused(failure, name, seen.state)),
        }
    }

    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError> {
        let name = &*id.0;
        if !is_our_id(name) {
            return Err(ProviderError::NotFound(id.clone()));
        }
        // What waits for its turn is asked for when somebody looks.
        let (now_ms, waits) = (self.clock.now_ms(), |pending: &Pending| pending.operation.is_none());
        let shown = self.known.shown(name, now_ms, |seen| seen.state);
        let shown = match self.known.pending(name).flatten().is_some_and(|pending| waits(&pending)) {
            true => shown.and_then(|_| self.known.recent(name, now_ms)),
            false => shown,
        };
        if let Some(seen) = shown {
            return Ok(seen.describe());
        }
        self.turns.take(Verb::Describe)?;
        Ok(self.look(name)?.ok_or_else(|| ProviderError::NotFound(id.clone()))?.describe())
    }

    fn disk_changed(&self) {
        self.known.disk_changed(self.clock.now_ms());
    }

    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError> {
        self.turns.take(Verb::List)?;
        // Before the disks are read: what ends in between shows there.
        let machine = self.machine()?;
        let (place, here) = (self.arm.place()?, self.here()?);
        let mut disks = self.all(|body| tags::of_body(body, key) == Some(value))?;
        disks.retain(|disk| disk.tags.get(key).is_some_and(|there| there == value));
        let described = disks.into_iter().map(|disk| {
            // What this process has asked for counts as long as the disk and the machine may not show it.
            let recent = self.known.recent(&disk.name, self.clock.now_ms());
            let pending = recent.and_then(|_| self.known.pending(&disk.name).flatten());
            match pending.and_then(|pending| pending.doing.under_way()) {
                Some(state) => Seen::under_way(disk, state).describe(),
                None => Seen::at(disk, place, &here, &machine).describe(),
            }
        });
        Ok(described.collect())
    }

    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError> {
        self.turns.take(Verb::SetTag)?;
        let name = &*id.0;
        let absent = || ProviderError::NotFound(id.clone());
        if !is_our_id(name) {
            return Err(absent());
        }
        let renter = if takes_over(key, value) { Some(self.renter(&self.arm.machine()?)?.to_string()) } else { None };
        let _tagging = self.tagging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut change = Change::Identity;
        for _ in 0..WRITES_MAX {
            // Just before they are written, as no condition guards them; and once more afterwards, as somebody else may have written.
            let disk = self.disk(name)?.ok_or_else(absent)?;
            let mut wanted = disk.tags.clone();
            tags::set(&mut wanted, key, value)?;
            if renter.is_some() {
                tags::set(&mut wanted, tag::HOST, renter.as_deref())?;
            }
            if wanted == disk.tags {
                self.retagged(name, &disk);
                return Ok(change);
            }
            let is_so = || {
                let disk = self.disk(name)?;
                Ok::<_, ProviderError>(disk.filter(|disk| disk.tags == wanted && !disk.is_changing))
            };
            let is_there = || Ok(self.disk(name)?.is_none_or(|disk| disk.tags == wanted));
            let finished = self.arm.update(name, &json!({ "tags": wanted })).and_then(|accepted| {
                // They are read in any case, and then nobody has to be asked whether they are set.
                std::thread::sleep(if accepted.operation.is_some() { FINISHED_LOOK } else { Duration::ZERO });
                if let Some(disk) = is_so()? {
                    return Ok(Some(disk));
                }
                self.finish(accepted, is_there).map(|()| None)
            });
            change = Change::Changed;
            if let Some(disk) = finished.map_err(|failure| self.error_of(failure, name, VolumeState::Available))? {
                self.retagged(name, &disk);
                return Ok(change);
            }
        }
        Err(ProviderError::Transient(format!(
            "the tags of the disk {name} are changed again and again by somebody else: find out who does that"
        )))
    }
}
