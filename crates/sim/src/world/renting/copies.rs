//! Copies of this machine: a snapshot of its disk starts elsewhere, with a daemon that believes to own the device.

use std::time::Duration;

use surgetank_cache::Owner;
use surgetank_model::volume::{ProviderError, Transition, VolumeId, VolumeState};
use surgetank_policy::{ResumeAt, Step as PolicyStep, StepId};
use surgetank_rental::resume::{self, Lookup, Resume};
use surgetank_rental::{
    Answer, Ask, Call, Command, Ended, Label, Obstacle, Opened, OwnerRecord, Presence, Rental, RentalRecord, Slot,
    VolumeAsk,
};

use super::asks::label;
use super::calls::is_of;
use super::{DEVICE, rental_config};
use crate::world::{SimEvent, Step, World};

/// Longest time from a snapshot to the start of the copy.
const STARTS_MAX: Duration = Duration::from_millis(400);
/// Asks after which a copy is taken to wait for something that it will not be told.
const ASKS_MAX: u32 = 60;

/// What is durable.
#[derive(Clone, Debug)]
pub(super) struct CopiedState {
    journal: Option<RentalRecord>,
    owner: OwnerRecord,
}

impl World<'_> {
    /// One durable record in sixteen is what somebody takes a snapshot of.
    pub(super) fn copy_machine(&mut self) {
        if !self.faulty || self.random.below(16) > 0 {
            return;
        }
        let after = self.soon(STARTS_MAX);
        if let Some(renting) = &mut self.renting {
            renting.copies.push(CopiedState {
                journal: renting.journal.get(&Slot::CACHE).cloned(),
                owner: renting.owner.clone(),
            });
            self.schedule(after, SimEvent::Copied);
        }
    }

    /// The copies start, and delete what they believe to have rented.
    pub(in crate::world) fn run_copies(&mut self) -> Step {
        let copies = self.renting.as_mut().map(|renting| std::mem::take(&mut renting.copies)).unwrap_or_default();
        for CopiedState { journal, owner } in copies {
            let id = owner.volume.clone().or_else(|| journal.as_ref().and_then(|record| record.volume.clone()));
            let Some(renting) = &mut self.renting else { return Ok(()) };
            let lookup = match id.map(|id| renting.cloud.describe(self.now, &id)) {
                None => Lookup::Unnamed,
                Some(Ok(description)) => Lookup::Found(description),
                Some(Err(_)) => Lookup::Missing,
            };
            if let Resume::Delete { at } = resume::decide(DEVICE, journal.as_ref(), &owner, &lookup) {
                let steps = match at {
                    ResumeAt::Created { .. } => vec![PolicyStep::Delete],
                    _ => vec![PolicyStep::Detach, PolicyStep::Delete],
                };
                self.delete_copied(journal, &owner, steps)?;
            }
        }
        Ok(())
    }

    fn delete_copied(&mut self, journal: Option<RentalRecord>, owner: &OwnerRecord, steps: Vec<PolicyStep>) -> Step {
        let mut rental = Rental::new(rental_config(self.scenario), Slot::CACHE, journal);
        let mut asks = 0;
        for (step, number) in steps.into_iter().zip(0..) {
            rental.begin(self.now, StepId(number), step, None);
            let ended = loop {
                while rental.next_notice().is_some() {}
                if let Some(ended) = rental.next_ended() {
                    break ended;
                }
                asks += 1;
                match rental.next_ask() {
                    Some((id, ask)) if asks < ASKS_MAX => {
                        let answer = self.answer_copy(ask, owner)?;
                        rental.complete(self.now, id, answer);
                    }
                    // It waits for a change that takes time: the copy is stopped before that.
                    _ => return Ok(()),
                }
            };
            if !matches!(ended, Ended::Step(_, surgetank_policy::StepOutcome::Done)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The copy sees the volumes, and has none of their disks.
    fn answer_copy(&mut self, ask: Ask, owner: &OwnerRecord) -> Step<Answer> {
        Ok(match ask {
            Ask::Persist(_) => Answer::Persisted(Ok(())),
            Ask::Draw => Answer::Drawn { random: [0; 16], unix_ms: 0 },
            Ask::Owner => Answer::Owner(Ok(owner.clone())),
            Ask::Provider(call) => self.copy_calls(&call)?,
            Ask::Volume(VolumeAsk::Identities) => Answer::Identities(Some(Vec::new())),
            Ask::Volume(VolumeAsk::Open { .. }) => Answer::Opened(Ok(Opened::Absent)),
            Ask::Volume(VolumeAsk::Close(_)) => Answer::Closed,
            Ask::Volume(VolumeAsk::Superblock(description)) => {
                Answer::Superblock(self.copy_reads(&description.id).map_err(Obstacle::from))
            }
            Ask::Volume(VolumeAsk::Look) => Answer::Looked(Presence::Here),
            Ask::Engine(Command::Sample) => {
                Answer::Sampled { stage: surgetank_cache::EngineStage::PassThrough, unplugged: false }
            }
            Ask::Engine(_) => Answer::Began(Ok(())),
            Ask::Serve => Answer::Served(Ok(())),
        })
    }

    /// One time in two the volume can be read from two machines at once, as files and shared disks can. One that reads as clean
    /// is not shown: its daemon has not yet written down that it has ended.
    fn copy_reads(&mut self, id: &VolumeId) -> Result<Option<Label>, String> {
        let elsewhere = || "it is attached elsewhere".to_owned();
        let reads = self.random.below(2) == 0;
        let Some(renting) = self.renting.as_mut().filter(|_| reads) else { return Err(elsewhere()) };
        let disk = match is_of(id, renting.in_use.as_ref()) {
            true => self.disks.cache.as_ref(),
            false => renting.cloud.volume(id).and_then(|volume| volume.disk.as_ref()),
        };
        let found = label(disk.ok_or_else(elsewhere)?);
        if found.is_some_and(|label| label.clean) { Err(elsewhere()) } else { Ok(found) }
    }

    /// A provider detaches a volume from whichever machine has it, and deletes it, for whoever has the right.
    fn copy_calls(&mut self, call: &Call) -> Step<Answer> {
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        if let Call::ChangeState(id, Transition::Attach) = call {
            let reason = "it is of another machine".to_owned();
            let conflict = ProviderError::Conflict { id: id.clone(), state: VolumeState::Available, reason };
            return Ok(call.failed(conflict));
        }
        if let Call::ChangeState(id, Transition::Detach | Transition::Delete) = call {
            let named = renting.owner.owner != Owner::Backing && is_of(id, renting.owner.volume.as_ref());
            let disk = match is_of(id, renting.in_use.as_ref()) {
                true => self.disks.cache.as_ref().or(self.kept.as_ref()),
                false => renting.cloud.volume(id).and_then(|volume| volume.disk.as_ref()),
            };
            let is_empty = disk.and_then(label).is_some_and(|label| !label.written);
            if named && !is_empty {
                return Err(format!("a copy of the machine takes the volume {}, which may hold the newest data", id.0));
            }
            if renting.cloud.volume(id).is_some_and(|volume| volume.disk.is_none()) {
                // It is open, and nothing is on it: this provider does not take it from a machine that uses it.
                let reason = "it is open elsewhere".to_owned();
                let conflict = ProviderError::Conflict { id: id.clone(), state: VolumeState::Attached, reason };
                return Ok(call.failed(conflict));
            }
        }
        self.carry_out_whole(call)
    }
}
