//! How asks are carried out, or not, and what no ask may ever be.

use surgetank_model::volume::{ProviderError, Transition, VolumeDescription, VolumeId};
use surgetank_rental::array::{Answer, Ask};
use surgetank_rental::ask::{Opened, Opening, VolumeAsk};
use surgetank_rental::{Answer as Answered, Ask as Asked, AskId, Call, Slot};

use crate::disk::Disk;

use super::world::{Copy, LATE_MAX, SimEvent, Step, World};

impl World<'_> {
    /// What is true of an ask before it is carried out.
    pub(super) fn begin(&mut self, _id: AskId, ask: &Ask) -> Step {
        match ask {
            Ask::Persist(record) => {
                let before = self.persisting.replace(record.clone());
                before.map_or(Ok(()), |_| Err("two records are written at once".to_owned()))?;
            }
            Ask::Rental(Asked::Provider(call)) => {
                if let Call::Create(request) = call {
                    let known = self
                        .durable
                        .iter()
                        .flat_map(|record| &record.volumes)
                        .any(|volume| volume.token == request.token);
                    if !known {
                        return Err("a volume is created before that is on record".to_owned());
                    }
                }
                self.calls.push(call.clone());
            }
            // Asks are taken in order, and this one is done at once.
            Ask::Rental(Asked::Volume(VolumeAsk::Close(opened))) => {
                let is_it = |(_, (by, ..)): &(&Slot, &(AskId, VolumeId, Disk))| by == opened;
                let places: Vec<Slot> = self.open.iter().filter(is_it).map(|(place, _)| *place).collect();
                places.into_iter().for_each(|place| self.close(place));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, id: AskId, ask: Ask) -> Step {
        let answer = match ask {
            Ask::Persist(record) => {
                self.persisting = None;
                let fails = self.fault();
                if !fails || self.random.below(2) == 0 {
                    self.set_durable(record)?;
                }
                Answer::Persisted(if fails { Err("no room".to_owned()) } else { Ok(()) })
            }
            Ask::Draw => Answer::Drawn(self.bits()),
            Ask::Rental(ask) => Answer::Rental(self.rental(id, ask)?),
            Ask::Format(places) => Answer::Formatted(self.format(&places)?),
            Ask::Serve(places) => Answer::Served(self.serve(&places)?),
            Ask::Join { place, slot } => Answer::Joined(self.join(place, slot)?),
        };
        self.complete(id, answer);
        Ok(())
    }

    fn bits(&mut self) -> [u8; 16] {
        let mut bits = [0; 16];
        for half in bits.chunks_mut(8) {
            half.copy_from_slice(&self.random.next_u64().to_le_bytes());
        }
        bits
    }

    fn rental(&mut self, id: AskId, ask: Asked) -> Step<Answered> {
        Ok(match ask {
            Asked::Draw => Answered::Drawn { random: self.bits(), unix_ms: 1 },
            Asked::Provider(call) => self.call(&call)?,
            Asked::Volume(VolumeAsk::Identities) => Answered::Identities(Some(Vec::new())),
            Asked::Volume(VolumeAsk::Open { description, opening, .. }) => self.open(id, &description, &opening)?,
            Asked::Volume(VolumeAsk::Close(_)) => Answered::Closed,
            Asked::Engine(_) => {
                self.close(id.slot);
                Answered::Began(Ok(()))
            }
            ask => return Err(format!("an array asks for {ask:?}")),
        })
    }

    fn close(&mut self, place: Slot) {
        if let Some((_, id, disk)) = self.open.remove(&place) {
            self.put_away(&id, disk);
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

    /// Carries a call out, unless that would lose data.
    pub(super) fn carry_out(&mut self, call: &Call) -> Step<Answered> {
        if let Call::ChangeState(id, transition @ (Transition::Detach | Transition::Delete)) = call
            && self.promised
            && self.media.counts(id)
        {
            return Err(format!("{transition:?} of the volume {}, which counts", id.0));
        }
        let (now, faulty) = (self.now, self.faulty());
        let answer = self.cloud.carry_out(now, call, &mut self.random, faulty);
        self.report.failed_volumes = u64::from(self.cloud.failed);
        self.report.unknown = u64::from(self.cloud.lagging.unknown);
        self.report.stale = u64::from(self.cloud.lagging.stale);
        self.report.twins = u64::from(self.cloud.lagging.twins);
        answer
    }

    fn open(&mut self, id: AskId, description: &VolumeDescription, opening: &Opening) -> Step<Answered> {
        let volume = &description.id;
        if matches!(opening, Opening::Fresh { .. }) && self.media.is_written(volume) {
            return Err(format!("the volume {} was written, and is taken for a blank one", volume.0));
        }
        if self.fault() {
            return Ok(Answered::Opened(Err("it is held".to_owned().into())));
        }
        let is_lost = |(lost, until): &(VolumeId, _)| lost == volume && self.now < *until;
        if self.out_of_reach.as_ref().is_some_and(is_lost) || !self.cloud.has_appeared(self.now, volume) {
            return Ok(Answered::Opened(Ok(Opened::Absent)));
        }
        self.close(id.slot);
        let Some(disk) = self.cloud.volume(volume).and_then(|volume| volume.disk.take()) else {
            return Err(format!("the volume {} is opened twice", volume.0));
        };
        self.open.insert(id.slot, (id, volume.clone(), disk));
        Ok(Answered::Opened(Ok(Opened::Open)))
    }

    /// Nothing is written to a volume before its record and its tag say that it may count.
    fn may_write(&mut self, place: Slot) -> Step {
        let record = self.durable.as_ref().and_then(|record| record.volume(place)).cloned();
        let Some(record) = record.filter(|record| !record.disposable && record.epoch.is_some()) else {
            return Err(format!("the volume in {place:?} is written before the record says that it may count"));
        };
        let tag = record.volume.as_ref().and_then(|id| self.cloud.dirty_epoch(id));
        if tag != record.epoch {
            return Err(format!("the volume in {place:?} is written before its tag says that it may count"));
        }
        Ok(())
    }

    fn volumes(&self, places: &[Slot]) -> Step<Vec<(Slot, VolumeId)>> {
        let volume = |place: &Slot| {
            let (_, id, _) = self.open.get(place).ok_or_else(|| format!("the volume in {place:?} is not open"))?;
            Ok((*place, id.clone()))
        };
        places.iter().map(volume).collect()
    }

    fn format(&mut self, places: &[Slot]) -> Step<Result<(), String>> {
        places.iter().try_for_each(|place| self.may_write(*place))?;
        let volumes: Vec<VolumeId> = self.volumes(places)?.into_iter().map(|(_, id)| id).collect();
        if self.fault() {
            let done = self.random.below(volumes.len() as u64) as usize;
            self.media.format(&volumes, done);
            return Ok(Err("a member failed".to_owned()));
        }
        self.media.format(&volumes, volumes.len());
        Ok(Ok(()))
    }

    fn serve(&mut self, places: &[Slot]) -> Step<Result<surgetank_rental::array::Found, String>> {
        if !self.given.is_empty() {
            return Err("an array is served twice".to_owned());
        }
        let open = self.volumes(places)?;
        let found = match self.media.assemble(&open) {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let name = |place: &Slot| open.iter().find(|(other, _)| other == place).map(|(_, id)| id.clone());
        let active: Vec<Option<VolumeId>> = found.active.iter().map(name).collect();
        if active.iter().flatten().ne(self.media.members()) {
            return Err(format!("the array is served by {active:?}, and its data is on {:?}", self.media.members()));
        }
        let joining = found.joining.iter().map(|(_, place)| *place);
        for place in found.active.iter().copied().chain(joining).chain(found.superseded.iter().copied()) {
            if let Some((_, id, disk)) = self.open.remove(&place) {
                self.given.insert(place, (id, disk));
            }
        }
        for (slot, place) in &found.joining {
            if let Some(id) = name(place) {
                self.report.resumed += 1;
                self.begin_copy(*slot, Copy::Copying(*place, id));
            }
        }
        for (number, place) in (1000..).zip(&found.superseded) {
            if let Some(id) = name(place) {
                self.begin_copy(number, Copy::Told { old: (*place, id) });
            }
        }
        Ok(Ok(found))
    }

    fn join(&mut self, place: Slot, slot: u32) -> Step<Result<(), String>> {
        self.may_write(place)?;
        if self.fault() || self.copies.contains_key(&slot) {
            self.close(place);
            return Ok(Err("not now".to_owned()));
        }
        let (_, id, disk) = self.open.remove(&place).ok_or("a volume joins that is not open")?;
        self.media.join(slot as usize, &id);
        self.given.insert(place, (id.clone(), disk));
        self.begin_copy(slot, Copy::Copying(place, id));
        Ok(Ok(()))
    }
}
