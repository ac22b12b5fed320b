//! What a rental asks of the disks of its machine and of the engine.

use surgetank_cache::EngineStage;
use surgetank_cache::format::{BLOCK, LogState, SUPERBLOCKS_LENGTH, choose_superblock};
use surgetank_model::volume::{VolumeDescription, VolumeState};
use surgetank_rental::stripe;
use surgetank_rental::{
    Answer, AskId, Command, Label, Obstacle, Opened, Opening, OwnerRecord, Presence, Slot, VolumeAsk,
};

use super::Renting;
use crate::disk::Disk;
use crate::world::{Step, World};

impl Renting {
    /// Whether the rental of the caching volume wants the requests of the device to come to the engine.
    pub(in crate::world) fn wants_service(&self) -> bool {
        self.process.rentals.cache().wants_service()
    }

    /// The provider says that the volume in use has failed, or does not any more.
    pub(in crate::world) fn set_ailing(&mut self, ails: bool) -> bool {
        self.cloud.set_ailing(self.in_use.as_ref().filter(|_| ails))
    }

    /// The owner record that is durable.
    pub(in crate::world) fn owner(&self) -> &OwnerRecord {
        &self.owner
    }
}

impl World<'_> {
    /// The requests come to the engine, or not.
    pub(in crate::world) fn served(&mut self, id: AskId, result: Result<(), String>) -> Step {
        self.complete(id, Answer::Served(result));
        self.drive()
    }

    pub(super) fn ask_volume(&mut self, id: AskId, ask: VolumeAsk) -> Step<Answer> {
        if matches!(ask, VolumeAsk::Superblock(_)) && self.fault() {
            return Ok(Answer::Superblock(Err("it cannot be read now".to_owned().into())));
        }
        let (now, gone) = (self.now, self.outages.is_cache_gone() || self.vanished);
        let stage = self.engine.status().stage;
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        Ok(match ask {
            VolumeAsk::Identities => Answer::Identities(Some(Vec::new())),
            VolumeAsk::Open { description, opening, .. } => {
                renting.close(id.slot);
                let VolumeDescription { id: volume, members, .. } = &description;
                if members.iter().any(|member| !matches!(member.state, VolumeState::Attached | VolumeState::Deleting)) {
                    return Err(format!("the volume {} is opened, of which a part is not attached", volume.0));
                }
                if stripe::is_stripe(volume) && members.len() < stripe::members(volume).len() {
                    return Ok(Answer::Opened(Ok(Opened::Refused("a member of the stripe is missing".to_owned()))));
                }
                if !renting.cloud.has_appeared(now, &description.id) {
                    return Ok(Answer::Opened(Ok(Opened::Absent)));
                }
                if gone {
                    return Ok(Answer::Opened(Err("it does not answer".to_owned().into())));
                }
                let again = matches!(opening, Opening::Again(_));
                let has_disk = renting.in_use.as_ref() == Some(&description.id);
                let disk = match (again && has_disk, stage) {
                    (true, EngineStage::Lost) => self.kept.take(),
                    (true, _) => None,
                    (false, _) => renting.cloud.volume(&description.id).and_then(|volume| volume.disk.take()),
                };
                if disk.is_none() && !(again && has_disk && stage != EngineStage::Lost) {
                    return Err(format!("the volume {} is opened, which is open", description.id.0));
                }
                renting.process.open.insert(id.slot, (id, description.id, disk));
                Answer::Opened(Ok(Opened::Open))
            }
            VolumeAsk::Close(opened) => {
                if renting.process.open.get(&opened.slot).is_some_and(|(by, ..)| *by == opened) {
                    renting.close(opened.slot);
                }
                Answer::Closed
            }
            VolumeAsk::Superblock(description) => {
                Answer::Superblock(self.superblock(&description).map_err(Obstacle::from))
            }
            VolumeAsk::Look if gone => Answer::Looked(Presence::Gone),
            VolumeAsk::Look => Answer::Looked(Presence::Here),
        })
    }

    pub(super) fn superblock(&mut self, description: &VolumeDescription) -> Result<Option<Label>, String> {
        let out = self.outages.is_any_passing() || self.vanished;
        let disk = self.renting.as_mut().and_then(|renting| renting.cloud.volume(&description.id)?.disk.as_ref());
        let disk = disk.filter(|_| !out).ok_or("it cannot be read")?;
        Ok(label(disk))
    }

    pub(super) fn command(&mut self, id: AskId, command: Command) -> Step<Answer> {
        let began = |result: Result<(), String>| Answer::Began(result);
        let Some(renting) = &mut self.renting else { return Err("nobody rents".to_owned()) };
        if id.slot != Slot::CACHE && command != Command::Close {
            return Err(format!("{command:?} for a volume that is not the engine's"));
        }
        Ok(match command {
            Command::Mode(mode) => {
                self.set_mode(mode);
                began(Ok(()))
            }
            Command::Adopt(epoch) => {
                let Some((_, volume, Some(disk))) = renting.process.open.remove(&id.slot) else {
                    return Err("a volume is adopted that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(volume.clone()));
                renting.in_use = Some(volume);
                self.cache_size = disk.size();
                self.disks.cache = Some(disk);
                self.apply_trouble();
                self.adopt_as(epoch)?;
                began(Ok(()))
            }
            Command::Recover(_) => {
                let Some((_, volume, Some(disk))) = renting.process.open.remove(&id.slot) else {
                    return Err("a volume is read back that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(volume.clone()));
                renting.in_use = Some(volume);
                self.cache_size = disk.size();
                self.disks.cache = Some(disk);
                self.apply_trouble();
                self.recover()?;
                began(Ok(()))
            }
            Command::Restore(_) => {
                let Some((_, volume, Some(disk))) = renting.process.open.remove(&id.slot) else {
                    return Err("a volume is restored that is not open".to_owned());
                };
                renting.process.writer.set_volume(Some(volume));
                self.kept = Some(disk);
                self.restore()?;
                began(if self.restoring { Ok(()) } else { Err("it cannot be restored now".to_owned()) })
            }
            Command::Returned => {
                renting.process.open.remove(&id.slot);
                self.engine.cache_returned(self.now);
                began(Ok(()))
            }
            Command::Gone => {
                self.books.cache_failures += 1;
                self.books.notice_outage(self.now);
                self.engine.cache_gone(self.now);
                began(Ok(()))
            }
            Command::Grow(size) => {
                let Some(disk) = self.disks.cache.as_mut() else {
                    return Ok(Answer::Grows(Err("there is no caching volume in use".to_owned())));
                };
                // The machine sees it a little later.
                if disk.size() < size.get() && self.random.below(3) == 0 {
                    return Ok(Answer::Grows(Ok(false)));
                }
                if disk.size() < size.get() {
                    disk.grow(size.get());
                }
                self.cache_size = self.cache_size.max(size.get());
                let again = renting.process.grows_again;
                Answer::Grows(self.tell_growth(size.get(), again).map(|()| true))
            }
            Command::Release => {
                let released = self.engine.release(self.now);
                self.release_wanted |= released.is_ok();
                began(released.map_err(|rejected| rejected.to_string()))
            }
            Command::Close => {
                renting.close(id.slot);
                if id.slot != Slot::CACHE {
                    return Ok(began(Ok(())));
                }
                let used = !matches!(
                    self.engine.status().stage,
                    EngineStage::PassThrough | EngineStage::Recovering | EngineStage::Lost
                );
                if self.disks.cache.is_some() && !used {
                    let disk = self.release_cache()?;
                    if let Some(renting) = &mut self.renting {
                        renting.return_disk(disk);
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
}

/// What the medium says of its log.
pub(super) fn label(disk: &Disk) -> Option<Label> {
    let mut area = [0; SUPERBLOCKS_LENGTH as usize];
    disk.peek(0, &mut area);
    let superblock = choose_superblock(&area)?;
    let begins_segment = |offset: u64| {
        let mut block = [0; BLOCK as usize];
        disk.peek(offset, &mut block);
        superblock.has_written(&block)
    };
    let written = superblock.segment_offsets().any(begins_segment);
    Some(Label { epoch: superblock.epoch, clean: superblock.state == LogState::Clean, written })
}
