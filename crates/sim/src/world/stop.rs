//! The daemon stops in order: it takes no more requests, answers what it has, flushes, and starts again.

use surgetank_cache::{EngineStage, ReplyError};
use surgetank_model::{Operation, RequestId};

use crate::scenario::CrashKind;
use crate::workload::Wish;
use crate::world::{Step, World, WorldPhase};

/// Events after which a stop does not wait any longer for a moment without I/O.
const EVENTS_MAX: u64 = 2000;

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    No,
    /// What has been taken is answered first.
    Answering,
    /// The flush of the daemon.
    Flushing(RequestId),
    /// The engine was told; since this event.
    Told(u64),
    /// It has closed what it had; since this event.
    Stopped(u64),
    Done,
}

impl World<'_> {
    /// Begins a stop when it is due, and carries it on.
    pub(super) fn stop(&mut self) -> Step {
        let Some(stop) = self.scenario.stop else { return Ok(()) };
        match self.stopping {
            Stopping::No if self.phase == WorldPhase::Work && self.is_due(stop.at_event) => {
                let in_use = matches!(self.engine.status().stage, EngineStage::Absorb | EngineStage::Drain);
                if in_use && self.outages.is_calm() && !self.rents() {
                    self.stopping = Stopping::Answering;
                }
            }
            Stopping::Answering if self.outstanding.is_empty() => {
                self.stopping = Stopping::Flushing(RequestId(self.next_request));
                self.submit(Wish { operation: Operation::Flush, offset: 0, length: 0 });
            }
            Stopping::Told(since) | Stopping::Stopped(since) => {
                let stopped = matches!(self.stopping, Stopping::Stopped(_));
                let idle = self.disks.backing.in_flight() == 0
                    && self.recording.is_empty()
                    && self.disks.cache.as_ref().is_none_or(|disk| disk.in_flight() == 0);
                if idle && stopped || self.report.events > since + EVENTS_MAX {
                    self.stopping = Stopping::Done;
                    self.report.stops += 1;
                    if stop.rots {
                        self.rot_stored();
                    }
                    return self.restart_process(CrashKind::Daemon, true);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The flush before a stop was answered.
    pub(super) fn stop_flushed(&mut self, id: RequestId, result: Result<(), ReplyError>) {
        if self.stopping == Stopping::Flushing(id) {
            // A daemon that cannot flush stops all the same.
            let since = self.report.events;
            self.stopping = match result {
                Ok(()) => Stopping::Told(since),
                Err(_) => Stopping::Stopped(since),
            };
            if result.is_ok() {
                self.engine.stop(self.now);
            }
        }
    }

    /// The engine has stopped.
    pub(super) fn engine_stopped(&mut self) {
        if let Stopping::Told(since) = self.stopping {
            self.stopping = Stopping::Stopped(since);
        }
    }
}
