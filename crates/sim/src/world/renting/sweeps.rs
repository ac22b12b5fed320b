//! Sweeps: volumes that nobody knows of are deleted, between a listing and a while later.

use surgetank_model::volume::{Transition, VolumeDescription, tag};
use surgetank_rental::Call;
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::sweep::{Action, Known, is_confirmed, orphans, singled};

use super::{ANSWER_MAX, DEVICE, OWNER, SWEEP_MAX};
use crate::world::{SimEvent, Step, World};

impl World<'_> {
    /// The daemon looks for volumes that nobody knows of.
    pub(in crate::world) fn sweep(&mut self) -> Step {
        let now = self.now;
        let (again, within) = (self.soon(SWEEP_MAX), self.soon(ANSWER_MAX));
        self.schedule(again, SimEvent::Sweep);
        if self.fault() {
            return Ok(());
        }
        let (faulty, copy) = (self.faulty, self.faulty && self.random.below(8) == 0);
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let listed = renting.cloud.list(now, tag::OWNER, OWNER, faulty);
        // One in eight is by a copy of this machine, which knows nothing of what is rented since.
        let mut known = Known::default();
        if !copy {
            let (volumes, nameless) = renting.process.rentals.volumes();
            known.expected.extend(volumes);
            known.creating.extend(nameless.then(|| DEVICE.to_owned()));
        }
        let listed = singled(&listed, &known);
        let suspects = listed.iter().filter(|volume| !known.expects(&volume.id));
        let suspects: Vec<VolumeDescription> = suspects.cloned().collect();
        for volume in suspects {
            let Some(epoch) = volume.tags.get(tag::DIRTY_EPOCH) else { continue };
            let ended = self.renting.as_ref().is_some_and(|renting| {
                parse_epoch(epoch).is_some_and(|epoch| renting.owner.has_ended(&volume.id, epoch))
            });
            let clean = self
                .superblock(&volume)
                .is_ok_and(|read| read.is_some_and(|label| label.clean && label.epoch.to_string() == *epoch));
            if ended || clean {
                known.reread_clean.insert(volume.id.clone(), epoch.clone());
            }
        }
        if let Some(renting) = &mut self.renting {
            renting.swept = (orphans(&listed, OWNER, &known), known.clone());
        }
        self.check_sweep(&listed, &known, copy)?;
        if copy && let Some(renting) = &mut self.renting {
            // It cannot detach what this machine has. What it deletes holds nothing: the rental sees it vanish.
            renting.swept.0.retain(|action| matches!(action, Action::Delete(_)));
        }
        self.schedule(within, SimEvent::Swept);
        Ok(())
    }

    /// A sweep takes nothing that may hold the newest data, and not what is being created.
    pub(super) fn check_sweep(&self, listed: &[VolumeDescription], known: &Known, copy: bool) -> Step {
        let Some(renting) = &self.renting else { return Ok(()) };
        let is_on_record = |volume: &VolumeDescription| {
            let token = volume.tags.get(tag::TOKEN);
            renting.journal.values().any(|record| record.volume.is_none() && Some(&record.token) == token)
        };
        for action in &renting.swept.0 {
            let (Action::Delete(id) | Action::Detach(id)) = action else { continue };
            let Some(volume) = listed.iter().find(|volume| volume.id == *id) else { continue };
            let tagged = volume.tags.get(tag::DIRTY_EPOCH);
            if tagged.is_some_and(|epoch| known.reread_clean.get(id) != Some(epoch)) {
                return Err(format!("a sweep takes the volume {}, which may hold the newest data", id.0));
            }
            if is_on_record(volume) && !copy {
                return Err(format!("a sweep takes the volume {}, which is being created", id.0));
            }
        }
        Ok(())
    }

    /// It deletes them.
    pub(in crate::world) fn swept(&mut self) -> Step {
        let now = self.now;
        let Some(renting) = &mut self.renting else { return Ok(()) };
        let (actions, known) = std::mem::take(&mut renting.swept);
        for action in actions {
            let Some(renting) = &mut self.renting else { return Ok(()) };
            let described = renting.cloud.describe(now, action.id());
            if !described.is_ok_and(|described| is_confirmed(&action, &described, OWNER, &known)) {
                continue;
            }
            match action {
                Action::Delete(id) => drop(self.carry_out_whole(&Call::ChangeState(id, Transition::Delete))?),
                Action::Detach(id) => drop(self.carry_out_whole(&Call::ChangeState(id, Transition::Detach))?),
                Action::Keep { .. } => {}
            }
        }
        Ok(())
    }
}
