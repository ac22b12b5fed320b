//! Crashes and restarts.

use std::time::Duration;

use surgetank_cache::{Owner, Target};
use surgetank_model::RequestId;

use crate::disk::Disk;
use crate::driver::Driver;
use crate::scenario::CrashKind;
use crate::world::{Happening, Phase, Step, World};

/// How far a stop in order is, as the daemon's shard does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    No,
    /// Requests in flight are being answered.
    Answering,
    /// The last flush is in flight.
    Flushing(RequestId),
    Flushed,
}

impl World<'_> {
    /// Goes on with a stop in order, one step at a time. True if it did one.
    pub(super) fn stop(&mut self) -> Step<bool> {
        match self.stopping {
            Stopping::Answering if self.outstanding.is_empty() => {
                let id = RequestId(self.next_request);
                self.next_request += 1;
                self.stopping = Stopping::Flushing(id);
                let buffer = self.driver.buffer();
                self.driver.add_request(id, buffer);
                self.engine.flush(self.now, id);
                self.pump()?;
                Ok(true)
            }
            Stopping::Flushed => self.restart().map(|()| true),
            Stopping::No | Stopping::Answering | Stopping::Flushing(_) => Ok(false),
        }
    }

    /// What is in flight ends, and nothing new is begun; then the next daemon goes on.
    fn restart(&mut self) -> Step {
        self.report.restarts += 1;
        for target in [Target::Backing, Target::Cache] {
            self.unstick(target);
        }
        while self.disks.backing.in_flight() + self.disks.cache.as_ref().map_or(0, Disk::in_flight) > 0 {
            let (at, happening) = self.queue.pop().ok_or("an I/O in flight never ends")?;
            self.now = self.now.max(at);
            if let Happening::Effect(..) | Happening::Done(..) = happening {
                self.handle(happening)?;
            }
        }
        // It stays in the state directory.
        let owes = self.engine.owes_flush_failure();
        self.oracle.daemon_crash();
        self.interrupt_records();
        self.start_again()?;
        if owes {
            self.report.handed_over += 1;
            self.engine.owe_flush_failure();
        }
        self.pump()
    }

    /// The daemon is gone, or the whole machine; then it starts again.
    pub(super) fn crash(&mut self, kind: CrashKind) -> Step {
        if self.recovering {
            self.report.crashes_in_recovery += 1;
        }
        match kind {
            CrashKind::PowerCut => {
                self.report.power_cuts += 1;
                self.disks.backing.power_cut();
                self.disks.cache.iter_mut().chain(&mut self.spare).for_each(|disk| disk.power_cut());
                self.oracle.power_cut();
            }
            CrashKind::Daemon | CrashKind::Restart => {
                self.report.daemon_crashes += 1;
                self.disks.backing.submitter_crash();
                self.disks.cache.iter_mut().chain(&mut self.spare).for_each(|disk| disk.submitter_crash());
                self.oracle.daemon_crash();
            }
        }
        self.interrupt_records();
        self.trace.add(u64::from(kind == CrashKind::Daemon));
        if self.disks.backing.has_forgotten() {
            // Nobody is left who could tell the application.
            self.oracle.fail_flush();
        }
        self.unreported_failures = 0;
        self.start_again()?;
        self.pump()
    }

    fn start_again(&mut self) -> Step {
        self.forget();
        self.start_engine()?;
        if matches!(self.owner, Owner::Lost { .. }) {
            self.note_loss()?;
        }
        self.resume();
        self.restart_pilot()
    }

    /// What the daemon had in memory is gone.
    fn forget(&mut self) {
        self.queue.clear();
        self.driver = Driver::default();
        self.outstanding.clear();
        self.stopping = Stopping::No;
        self.waiting_for_reply = false;
        self.release_wanted = false;
        self.recovering = false;
        self.failing = false;
        self.healed = false;
        self.final_flush = None;
        self.flushed = false;
        self.swept = false;
        // A restart waits for the I/Os of the process before it.
        for target in [Target::Backing, Target::Cache] {
            self.unstick(target);
        }
        self.arm();
        self.idle_ticks = 0;
    }

    /// The application goes on, often by reading everything back.
    fn resume(&mut self) {
        if self.random.below(3) > 0 || self.left == 0 {
            self.sweep = Some(0);
        }
        self.phase = Phase::Work;
        let after = Duration::from_micros(self.random.below(1_000));
        self.schedule(after, Happening::Submit);
        self.schedule_first_control();
    }
}
