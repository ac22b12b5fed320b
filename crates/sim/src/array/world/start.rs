//! Crashes, and the starts that follow.

use surgetank_array::effect::Target;
use surgetank_array::format::{BLOCK, SUPERBLOCKS_LENGTH};
use surgetank_array::{Assembly, Device, Engine, Plan, assemble};
use surgetank_model::EventQueue;

use super::{ARRAY, Memory, Phase, SimEvent, Step, World, config};
use crate::disk::{Disk, Faults};

impl World<'_> {
    /// Everything that runs ends; a new start follows.
    pub(super) fn crash(&mut self, power: bool) -> Step {
        // What a volume has forgotten but still shows, nobody can tell from what is on it: then the power fails, too.
        let power = power || self.disks.values().any(Disk::has_forgotten);
        let status = self.engine.status();
        self.report.crashes_in_opening += u64::from(!status.opened);
        self.report.crashes_in_copies += u64::from(!self.joining.is_empty());
        self.report.copied_bytes += status.slots.iter().filter_map(|s| s.join.map(|j| j.copied_bytes)).sum::<u64>();
        for disk in self.disks.values_mut() {
            // A flush that the crash interrupts forgets nothing.
            disk.set_faults(Faults::default());
            if power { disk.power_cut() } else { disk.submitter_crash() }
        }
        if power {
            self.report.power_cuts += 1;
            self.oracle.power_cut();
        } else {
            self.report.process_crashes += 1;
            self.oracle.daemon_crash();
        }
        if self.scenario.rots && self.random.below(2) == 0 {
            self.rot();
        }
        (self.memory, self.queue, self.tick_at) = (Memory::default(), EventQueue::default(), None);
        self.outstanding.clear();
        (self.final_flush, self.flush_untold, self.failed_at) = (None, false, None);
        self.start()
    }

    /// A bit of one copy of the bitmap of one volume flips.
    fn rot(&mut self) {
        let volumes: Vec<Target> = self.attached.iter().copied().collect();
        let target = volumes[self.random.below(volumes.len() as u64) as usize];
        let (at, bit) = (self.random.below(2 * u64::from(BLOCK)), self.random.below(8) as u8);
        if let Some(disk) = self.disks.get_mut(&target) {
            disk.rot(u64::from(SUPERBLOCKS_LENGTH) + at, bit);
        }
    }

    /// A start: what is on the volumes decides.
    fn start(&mut self) -> Step {
        let shown: Vec<Target> = if self.scenario.shows_all {
            self.disks.keys().copied().collect()
        } else {
            self.attached.iter().copied().collect()
        };
        if self.scenario.withholds && self.phase == Phase::Work && self.random.below(2) == 0 {
            let without = shown[self.random.below(shown.len() as u64) as usize];
            let some: Vec<Target> = shown.iter().copied().filter(|target| *target != without).collect();
            self.report.withheld_starts += 1;
            match self.assemble(&some) {
                Assembly::Refused(_) => self.report.refused += 1,
                Assembly::Whole(plan) | Assembly::Degraded(plan, _) => return self.serve(&plan),
            }
        }
        match self.assemble(&shown) {
            Assembly::Whole(plan) => self.serve(&plan),
            Assembly::Degraded(plan, _) => {
                self.report.degraded += 1;
                self.serve(&plan)
            }
            Assembly::Refused(reasons) => Err(format!("all members are there, and the array is refused: {reasons:?}")),
        }
    }

    fn assemble(&self, targets: &[Target]) -> Assembly {
        let head = |target: &Target| {
            let mut head = vec![0; SUPERBLOCKS_LENGTH as usize];
            let disk = self.disks.get(target);
            disk.inspect(|disk| disk.peek(0, &mut head));
            (*target, format!("{target:?}"), disk.map_or(0, Disk::size), head)
        };
        let heads: Vec<_> = targets.iter().map(head).collect();
        let devices: Vec<Device<'_>> = heads
            .iter()
            .map(|(target, name, size, head)| Device { target: *target, name, size: *size, head: Some(head) })
            .collect();
        assemble(Some(ARRAY), &devices)
    }

    fn serve(&mut self, plan: &Plan) -> Step {
        let size = plan.geometry.size();
        if size < self.size {
            return Err(format!("the array had {} bytes and has {size}", self.size));
        }
        self.grown(size);
        self.report.resumed += plan.joining.len() as u64;
        self.report.superseded += plan.superseded.len() as u64;
        self.joining = plan.joining.iter().map(|place| (place.target, place.slot)).collect();
        let known = plan.active.iter().chain(&plan.joining).chain(&plan.superseded);
        self.attached = known.map(|place| place.target).collect();
        self.set_faults();
        self.engine = Engine::new(config(self.scenario), self.now, plan);
        self.sweep = Some(0);
        self.queue.push(self.now, SimEvent::Submit);
        Ok(())
    }
}
