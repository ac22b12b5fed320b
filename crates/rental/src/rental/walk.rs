//! What a walk asks, and what it makes of the answers.

use std::time::Duration;

use surgetank_cache::{EngineStage, Epoch, Owner};
use surgetank_model::Instant;
use surgetank_model::volume::{Change, ProviderError, Transition, VolumeDescription, VolumeId};
use surgetank_policy::Refusal;

use super::sighting::Sighting;
use super::{Lane, POLL, Pause, Rental, Walk, Walked, mixed_up, refused};
use crate::ask::{Answer, Ask, AskId, Call, Command, Label, Obstacle, VolumeAsk};
use crate::owner::{OwnerRecord, parse_epoch};
use crate::planted::{Bug, planted};
use crate::record::{RentalRecord, RentalStage, Slot};
use crate::stripe;

impl Rental {
    pub(super) fn emit(&mut self, ask: Ask) -> AskId {
        let id = AskId { slot: self.slot, number: self.next_ask };
        self.next_ask += 1;
        match &ask {
            Ask::Provider(call) => self.call = Some((id, call.clone())),
            Ask::Persist(record) => self.writing = Some((id, record.clone())),
            Ask::Draw | Ask::Owner | Ask::Volume(_) | Ask::Engine(_) | Ask::Serve => {}
        }
        self.asks.push_back((id, ask));
        id
    }

    /// Whether the engine was told.
    pub(super) fn told(&mut self, told: bool) {
        if let Some(running) = &mut self.running {
            running.told = told;
        }
    }

    pub(super) fn is_told(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.told)
    }

    pub(super) fn walk(&mut self) -> &mut Walk {
        match self.lane {
            Lane::Task => &mut self.task_walk,
            Lane::Outage => &mut self.outage_walk,
        }
    }

    /// The answer to an ask in this walk.
    pub(super) fn ask(&mut self, ask: Ask) -> Walked<Answer> {
        self.ask_and_when(ask).map(|(answer, _)| answer)
    }

    /// The same, and when it came: a walk that runs anew takes an answer again, which is as old as it was.
    fn ask_and_when(&mut self, ask: Ask) -> Walked<(Answer, Instant)> {
        if let Some((_, answer, at)) = self.walk().known.iter().find(|(known, ..)| *known == ask) {
            return match answer.clone() {
                Answer::EngineEnded(why) => Err(Pause::Refused(Refusal::Permanent(why))),
                answer => Ok((answer, *at)),
            };
        }
        let id = match (&ask, &self.call) {
            // It is under way already: its answer serves.
            (Ask::Provider(call), Some((id, under_way))) if call == under_way => *id,
            (Ask::Provider(_), Some(_)) if !planted(Bug::CallsOvertake) => {
                self.walk().queued = true;
                return Err(Pause::Asked);
            }
            (Ask::Persist(_), _) if self.writing.is_some() => {
                self.walk().queued = true;
                return Err(Pause::Asked);
            }
            _ => self.emit(ask.clone()),
        };
        self.walk().awaited = Some((id, ask));
        Err(Pause::Asked)
    }

    /// Changes the record, durably. An unchanged one is not written.
    pub(super) fn note(&mut self, change: impl FnOnce(&mut RentalRecord)) -> Walked {
        let Some(mut record) = self.record.clone() else { return Ok(()) };
        change(&mut record);
        if self.record.as_ref() == Some(&record) {
            return Ok(());
        }
        self.persist(Some(record))
    }

    pub(super) fn persist(&mut self, record: Option<RentalRecord>) -> Walked {
        match self.ask(Ask::Persist(record))? {
            Answer::Persisted(Err(why)) => {
                Err(Pause::Refused(Refusal::Transient(format!("the state directory cannot be written: {why}"))))
            }
            Answer::Persisted(Ok(())) => Ok(()),
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn volume(&self) -> Option<VolumeId> {
        self.record.as_ref().and_then(|record| record.volume.clone())
    }

    pub(super) fn stage(&self) -> Option<RentalStage> {
        self.record.as_ref().map(|record| record.stage)
    }

    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.record.as_ref().and_then(|record| parse_epoch(record.epoch.as_deref()?))
    }

    /// The longest pause between two looks at a change, or at a volume that is not known: one that lags is looked at often enough to
    /// be believed.
    pub(super) fn longest_poll(&self) -> Duration {
        self.config.lag.look_every().map_or(POLL.1, |most| POLL.1.min(most))
    }

    /// What is known of a volume; `None`: it is certain that there is none. As long as it is not, it is waited for, and so it is when
    /// a part of it is not known.
    pub(super) fn describe(&mut self, id: &VolumeId) -> Walked<Option<VolumeDescription>> {
        let (answer, at) = self.ask_and_when(Ask::Provider(Call::Describe(id.clone())))?;
        let described = match answer {
            Answer::Described(Ok(description)) => Some(description),
            Answer::Described(Err(ProviderError::NotFound(_))) => None,
            Answer::Described(Err(error)) => return Err(refused(error)),
            answer => return Err(mixed_up(&answer)),
        };
        let lag = self.config.lag;
        let is_believed = Sighting::of(&mut self.sighting, id).is_believed(at, described.as_ref(), lag);
        if described.as_ref().is_some_and(stripe::is_whole) {
            self.note(|record| record.missing = None)?;
        } else if !is_believed {
            self.note_missing(id)?;
            return Err(Pause::Wait);
        }
        Ok(described)
    }

    /// Writes down that a volume is not known, so that the wait goes on in the next process should this one end meanwhile: one that is
    /// restarted more often than a provider may lag would else wait for ever. Of a volume in use only its own look is told, which
    /// a start repeats.
    fn note_missing(&mut self, id: &VolumeId) -> Walked {
        if self.lane == Lane::Outage {
            return Ok(());
        }
        let (_, unix_ms) = self.draw()?;
        let (lag, record) =
            (self.config.lag.longest(), self.record.as_ref().and_then(|record| record.missing.as_ref()));
        let noted = Sighting::of(&mut self.sighting, id).note_missing(record, unix_ms, lag);
        noted.map_or(Ok(()), |missing| self.note(|record| record.missing = Some(missing)))
    }

    pub(super) fn change_state(&mut self, id: VolumeId, transition: Transition) -> Walked<Change> {
        match self.ask(Ask::Provider(Call::ChangeState(id, transition)))? {
            Answer::Changed(changed) => changed.map_err(refused),
            answer => Err(mixed_up(&answer)),
        }
    }

    /// The owner record, as it is durable.
    pub(super) fn owner_record(&mut self) -> Walked<OwnerRecord> {
        match self.ask(Ask::Owner)? {
            Answer::Owner(Ok(record)) => Ok(record),
            Answer::Owner(Err(error)) => {
                Err(Pause::Refused(Refusal::Transient(format!("the owner record cannot be written: {error}"))))
            }
            answer => Err(mixed_up(&answer)),
        }
    }

    /// Makes sure that the owner record says so, durably, or, for a volume that the engine does not use, names another one.
    pub(super) fn owner_is_backing(&mut self) -> Walked {
        let record = self.owner_record()?;
        let names_another = record.volume.is_some() && record.volume != self.volume();
        if record.owner == Owner::Backing || self.slot != Slot::CACHE && names_another {
            return Ok(());
        }
        Err(Pause::Refused(Refusal::Transient("the owner record still names the caching volume".to_owned())))
    }

    /// Tells the engine something. The inner error says why it did not begin.
    pub(super) fn tell(&mut self, command: Command) -> Walked<Result<(), String>> {
        match self.ask(Ask::Engine(command))? {
            Answer::Began(began) => Ok(began),
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn sample(&mut self) -> Walked<(EngineStage, bool)> {
        match self.ask(Ask::Engine(Command::Sample))? {
            Answer::Sampled { stage, unplugged } => Ok((stage, unplugged)),
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn close(&mut self) -> Walked {
        match self.ask(Ask::Engine(Command::Close))? {
            Answer::Began(_) => {
                self.open = false;
                self.outage.closed();
                Ok(())
            }
            answer => Err(mixed_up(&answer)),
        }
    }

    pub(super) fn superblock(&mut self, description: &VolumeDescription) -> Walked<Result<Option<Label>, String>> {
        match self.ask(Ask::Volume(VolumeAsk::Superblock(description.clone())))? {
            Answer::Superblock(read) => Ok(self.reached(read)),
            answer => Err(mixed_up(&answer)),
        }
    }

    /// Remembers who keeps the volume from being opened or read, until it is tried again.
    pub(super) fn reached<T>(&mut self, result: Result<T, Obstacle>) -> Result<T, String> {
        self.held = match &result {
            Err(Obstacle::Held(why)) => Some(why.clone()),
            Ok(_) | Err(Obstacle::Failed(_)) => None,
        };
        result.map_err(|obstacle| obstacle.to_string())
    }
}
