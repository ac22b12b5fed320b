//! Crashes and restarts.

use std::time::Duration;

use surgetank_cache::{Owner, Target};

use crate::disk::Disk;
use crate::driver::Driver;
use crate::scenario::CrashKind;
use crate::world::stop::Stopping;
use crate::world::{SimEvent, Step, World, WorldPhase};

impl World<'_> {
    /// The daemon is gone, or the whole machine; then it starts again.
    pub(super) fn crash(&mut self, kind: CrashKind) -> Step {
        if kind == CrashKind::Daemon && !self.is_up() {
            self.arm();
            return Ok(());
        }
        self.note_crash_in_switch();
        self.doubt_rot();
        self.restart_process(kind, false)
    }

    /// The process ends, `orderly` or not, and starts again.
    pub(super) fn restart_process(&mut self, kind: CrashKind, orderly: bool) -> Step {
        if self.recovering {
            self.report.crashes_in_recovery += 1;
        }
        match kind {
            CrashKind::PowerCut => {
                self.report.power_cuts += 1;
                self.disks.backing.power_cut();
                let caches = self.disks.cache.iter_mut().chain(&mut self.spare).chain(&mut self.kept);
                let caches = caches.chain(self.renting.iter_mut().flat_map(|renting| renting.disks()));
                caches.for_each(|disk| disk.power_cut());
                self.oracle.power_cut();
            }
            CrashKind::Daemon => {
                self.report.daemon_crashes += u32::from(!orderly);
                self.interrupt_backing();
                let caches = self.disks.cache.iter_mut().chain(&mut self.spare).chain(&mut self.kept);
                let caches = caches.chain(self.renting.iter_mut().flat_map(|renting| renting.disks()));
                caches.for_each(|disk| disk.submitter_crash());
                // Where the kernel maps the device, every request is answered in the end.
                if self.mapped.is_none() {
                    self.oracle.daemon_crash();
                }
            }
        }
        self.interrupt_records();
        self.stop_renting()?;
        self.trace.add(u64::from(kind == CrashKind::Daemon));
        self.deceived |= self.disks.cache.as_ref().is_some_and(Disk::has_forgotten);
        let told = kind == CrashKind::Daemon && self.mapped.is_some() && self.is_mapped_for_calm();
        if self.disks.backing.has_forgotten() && !told || self.deceived {
            // Nobody is left who could tell the application.
            self.oracle.fail_flush();
        }
        self.unreported_failures = 0;
        self.loss_untold = None;
        self.oracle.forget_loss();
        self.forget(kind);
        if self.mapped.is_some() {
            self.leave(kind);
            self.resume();
            return Ok(());
        }
        self.start()
    }

    /// The process starts again.
    pub(super) fn start(&mut self) -> Step {
        self.start_engine()?;
        if matches!(self.owner, Owner::Lost { .. }) {
            self.note_loss()?;
        }
        if self.mapped.is_none() {
            self.resume();
        }
        self.restart_renting()?;
        self.pump()
    }

    /// What the daemon had in memory is gone.
    fn forget(&mut self, kind: CrashKind) {
        self.driver = Driver::default();
        if self.mapped.is_some() && kind == CrashKind::Daemon {
            self.keep_straight_events();
        } else {
            self.queue.clear();
            self.outstanding.clear();
        }
        self.waiting_for_reply = false;
        self.release_wanted = false;
        self.finish = None;
        self.recovering = false;
        self.restoring = false;
        self.recover_failures = 0;
        self.recover_failed = None;
        self.unknown_recoveries = 0;
        if self.stopping != Stopping::Done {
            self.stopping = Stopping::No;
        }
        self.healed = false;
        self.final_flush = None;
        self.flushed = false;
        self.settle_at = self.now;
        self.swept = false;
        // A restart waits for the I/Os of the process before it.
        for target in [Target::Backing, Target::Cache] {
            self.unstick(target);
        }
        self.arm();
        self.idle_ticks = 0;
        self.schedule_ends_of_outages();
        self.disturb();
    }

    /// The application goes on, often by reading everything back.
    fn resume(&mut self) {
        if self.random.below(3) > 0 || self.left == 0 {
            self.sweep = Some(0);
        }
        self.phase = WorldPhase::Work;
        let after = Duration::from_micros(self.random.below(1_000));
        self.schedule(after, SimEvent::Submit);
        self.schedule_first_control();
    }
}
