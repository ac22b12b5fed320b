//! Where disks are, by what Azure tells of them, of the machine and of the changes that this process has asked for.

use std::sync::Arc;

use serde_json::Value;

use super::arm::{Operation, Progress};
use super::disk::{Disk, Seen, is_our_name};
use super::errors::{Failure, Refusal};
use super::known::{Doing, Pending};
use super::machine::Machine;
use super::{AzureProvider, tags};
use crate::cloud::failure::{Meaning, unless_absent};
use crate::{Change, ProviderError, Transition, VolumeId, VolumeState, tag};

impl AzureProvider {
    /// The disk itself; `None`: Azure says that there is none.
    pub(super) fn disk(&self, name: &str) -> Result<Option<Disk>, ProviderError> {
        let body = match self.arm.disk(name) {
            Ok(body) => body,
            Err(failure) => {
                return unless_absent(self.error_of(failure, name, VolumeState::Creating));
            }
        };
        let disk = Disk::read(&body)?;
        if disk.name == name {
            return Ok(Some(disk));
        }
        // In other letters it may be the same one.
        Err(ProviderError::Transient(format!("Azure was asked for the disk {name} and describes {}", disk.name)))
    }

    /// The disks that pass and are ours by their names, by name.
    pub(super) fn all(&self, passes: impl Fn(&Value) -> bool) -> Result<Vec<Disk>, ProviderError> {
        let is_ours =
            |body: &Value| body["name"].as_str().is_some_and(|name| is_our_name(name, tags::of_body(body, tag::TOKEN)));
        let bodies = self.arm.disks(|body| passes(body) && is_ours(body))?;
        let mut disks = bodies.iter().map(Disk::read).collect::<Result<Vec<Disk>, _>>()?;
        // One that was made meanwhile moves the pages.
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        disks.dedup_by(|a, b| a.name == b.name);
        Ok(disks)
    }

    /// Where a disk is; `None`: nowhere. A change that has failed is told as an error, once.
    pub(super) fn look(&self, name: &str) -> Result<Option<Seen>, ProviderError> {
        match self.known.pending(name).flatten() {
            Some(pending) => match &pending.operation {
                Some(operation) => self.look_on(name, &pending, operation),
                None => self.look_in_turn(name, &pending),
            },
            None => self.look_itself(name),
        }
    }

    /// The same, by the disk and the machine themselves.
    fn look_itself(&self, name: &str) -> Result<Option<Seen>, ProviderError> {
        let changes = self.known.changes();
        self.look_at(name, &self.machine()?, changes)
    }

    /// The same, with the machine as it was before the disk is read, after so many changes: what ends in between shows there.
    pub(super) fn look_at(
        &self,
        name: &str,
        machine: &Arc<Machine>,
        changes: u64,
    ) -> Result<Option<Seen>, ProviderError> {
        let seen = self.read(name, machine)?;
        if let Some(seen) = &seen {
            self.known.told(name, seen.clone(), self.clock.now_ms(), changes);
        }
        Ok(seen)
    }

    /// The same, which serves for nothing else: it may not show yet what was asked for.
    fn read(&self, name: &str, machine: &Arc<Machine>) -> Result<Option<Seen>, ProviderError> {
        let (place, here) = (self.arm.place()?, self.here()?);
        let seen = self.disk(name)?.map(|disk| Seen::at(disk, place, &here, machine));
        if seen.is_none() && machine.held(&place.id("disks", name)).is_some() {
            return Err(ProviderError::Transient(format!(
                "Azure says that there is no disk {name}, and that this machine has it: wait until it describes the disk, or detach it by hand if it is really gone"
            )));
        }
        Ok(seen)
    }

    /// Where a disk is of which a change was accepted.
    fn look_on(&self, name: &str, pending: &Pending, operation: &Operation) -> Result<Option<Seen>, ProviderError> {
        let changes = self.known.changes();
        if let Some(seen) = self.look_alone(name, pending, changes)? {
            return Ok(Some(seen));
        }
        let progress = match self.arm.operation(operation) {
            Ok(progress) => progress,
            Err(failure) => return self.look_despite(name, pending, failure.general()),
        };
        match progress {
            Progress::Running => {
                // Nor is its word that it goes on taken for ever.
                if !pending.is_new(self.clock.now_ms()) {
                    let seen = self.read(name, &self.machine()?)?;
                    if pending.is_done(seen.as_ref()) {
                        self.known.ends(name, |there| there.is(pending));
                        return Ok(seen);
                    }
                }
                match pending.doing.under_way() {
                    Some(state) => Ok(Some(self.goes_on(name, pending, state, changes))),
                    None => self.look_itself(name),
                }
            }
            // The word of an operation is not taken for what it has done. Of a disk that is gone the machine has nothing to say.
            Progress::Ended(Ok(())) => {
                self.known.ends(name, |there| there.is(pending));
                match pending.doing {
                    Doing::Delete if self.disk(name)?.is_none() => Ok(None),
                    _ => self.look_itself(name),
                }
            }
            Progress::Ended(Err(refusal)) => self.look_after_failure(name, pending, refusal),
            Progress::Hidden => self.look_without_word(name, pending, changes),
        }
    }

    /// Where a disk is that this process makes, attaches or detaches, if the disk itself shows that this is done.
    fn look_alone(&self, name: &str, pending: &Pending, changes: u64) -> Result<Option<Seen>, ProviderError> {
        let tells = match pending.doing {
            Doing::Create | Doing::Attach => true,
            // What could not be attached says that nobody has it, and stays in the machine's list.
            Doing::Detach => pending.disk.machine.is_some(),
            // That one is not there does not show that it was deleted, and of growth the operation tells as much.
            Doing::Delete | Doing::Grow => false,
        };
        if !tells {
            return Ok(None);
        }
        let disk = match self.disk(name) {
            Ok(Some(disk)) => disk,
            // Who wants fewer calls gets no others.
            Err(error @ ProviderError::Throttled { .. }) => return Err(error),
            // Who may not read the disk may be told by the operation.
            Ok(None) | Err(_) => return Ok(None),
        };
        let seen = Seen::alone(disk, &self.here()?, pending.unit);
        // Where a new disk is that a machine has already, that machine says. An attach may yet fail while the disk is being changed.
        let is_told_elsewhere = match pending.doing {
            Doing::Create => seen.disk.machine.is_some(),
            _ => pending.doing == Doing::Attach && seen.disk.is_changing,
        };
        if !pending.is_done(Some(&seen)) || is_told_elsewhere {
            return Ok(None);
        }
        self.known.ends(name, |there| there.is(pending));
        self.known.told(name, seen.clone(), self.clock.now_ms(), changes);
        Ok(Some(seen))
    }

    /// A change is on the way.
    fn goes_on(&self, name: &str, pending: &Pending, state: VolumeState, changes: u64) -> Seen {
        let seen = Seen::under_way(pending.disk.clone(), state);
        self.known.told(name, seen.clone(), self.clock.now_ms(), changes);
        seen
    }

    /// Where a disk is of which a change was accepted, and nobody tells what has become of it: the disk and the machine do, which may
    /// not show yet that it has begun.
    fn look_without_word(&self, name: &str, pending: &Pending, changes: u64) -> Result<Option<Seen>, ProviderError> {
        let seen = self.read(name, &self.machine()?)?;
        if pending.is_shown(seen.as_ref()) || !pending.is_new(self.clock.now_ms()) {
            self.known.ends(name, |there| there.is(pending));
            return Ok(seen);
        }
        Ok(match pending.doing.under_way() {
            Some(state) => Some(self.goes_on(name, pending, state, changes)),
            None => seen,
        })
    }

    /// Where a disk is of which a change was accepted, and whoever asks how it goes on meets this error: if it is done, or after some
    /// minutes, the disk and the machine say.
    fn look_despite(&self, name: &str, pending: &Pending, error: ProviderError) -> Result<Option<Seen>, ProviderError> {
        let is_new = pending.is_new(self.clock.now_ms());
        // Who wants fewer calls gets no others.
        if is_new && matches!(error, ProviderError::Throttled { .. }) {
            return Err(error);
        }
        match self.machine().and_then(|machine| self.read(name, &machine)) {
            Ok(seen) if !is_new || pending.is_done(seen.as_ref()) => {
                self.known.ends(name, |there| there.is(pending));
                Ok(seen)
            }
            Err(of_look) if !is_new => Err(of_look),
            _ => Err(error),
        }
    }

    /// Where a disk is of which a change was accepted and has failed: what was made nevertheless is there.
    fn look_after_failure(
        &self,
        name: &str,
        pending: &Pending,
        refusal: Refusal,
    ) -> Result<Option<Seen>, ProviderError> {
        let seen = self.look_itself(name)?;
        self.known.ends(name, |there| there.is(pending));
        if pending.is_done(seen.as_ref()) {
            return Ok(seen);
        }
        let state = match pending.doing {
            Doing::Create => return Err(refusal.general()),
            Doing::Detach => VolumeState::Attached,
            Doing::Attach | Doing::Delete | Doing::Grow => VolumeState::Available,
        };
        Err(self.error_of(Failure::Refused(refusal), name, state))
    }

    /// Where a disk is of which a change waits for its turn: it is asked for as soon as nothing else is done to the machine.
    fn look_in_turn(&self, name: &str, pending: &Pending) -> Result<Option<Seen>, ProviderError> {
        let turn = self.turn();
        if !self.known.pending(name).flatten().is_some_and(|there| there.is(pending)) {
            drop(turn);
            // Another thread has asked for it meanwhile.
            return self.look(name);
        }
        let changes = self.known.changes();
        let machine = self.machine()?;
        let Some(seen) = self.look_at(name, &machine, changes)? else {
            self.known.ends(name, |there| there.is(pending));
            return Ok(None);
        };
        let transition = if pending.doing == Doing::Detach { Transition::Detach } else { Transition::Attach };
        if transition.decide(&VolumeId(name.to_owned()), Some(seen.state)) != Ok(Change::Changed) {
            // Whoever has done so, there is nothing left to ask for.
            self.known.ends(name, |there| there.is(pending));
            return Ok(Some(seen));
        }
        match self.ask_in_turn(name, transition, &seen.disk, Some(&*machine)) {
            Ok(()) => Ok(Some(Seen::under_way(seen.disk, transition.under_way()))),
            Err(failure) => {
                // What passes is asked for again: nobody else remembers that it was to be done. What may have been sent is not taken
                // back as if it had not.
                if !failure.passes() {
                    self.known.ends(name, |there| there.is(pending));
                } else if failure.is_in_doubt() {
                    self.known.alters(name, |entry| {
                        entry.told = None;
                        if let Some(there) = entry.pending.as_mut().filter(|there| there.is(pending)) {
                            there.is_in_doubt = true;
                        }
                    });
                }
                Err(self.error_of(failure, name, seen.state))
            }
        }
    }
}
