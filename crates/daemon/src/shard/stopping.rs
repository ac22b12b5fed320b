//! How a shard ends: nothing is torn off, and a flush that failed is left to whoever comes next.

use std::time::Duration;

use surgetank_cache::EngineStage;
use surgetank_model::Instant;

use super::Running;
use crate::buffers::Origin;
use crate::owner::Entry;

/// How long the shard waits for requests in flight when it stops, before it answers them with `ESHUTDOWN`.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while the caching volume fails: some of them may wait for it, and nobody knows for how long.
const FAILING_TIMEOUT: Duration = Duration::from_secs(2);

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    No,
    /// Requests in flight are being answered.
    Answering {
        since: Instant,
    },
    /// The last flush is in flight.
    Flushing {
        until: Instant,
    },
    /// The log is being closed.
    Closing {
        until: Instant,
    },
}

impl Running {
    /// Has it on record whether an application is still to be told that a flush has failed; if it is, the next daemon
    /// tells it. That it was told is recorded after the reply.
    pub(super) fn keep_flush_failure(&mut self) {
        let owed = self.engine.owes_flush_failure();
        if owed != self.owes_flush_failure {
            self.owes_flush_failure = owed;
            if owed {
                tracing::warn!(
                    device = self.name,
                    "the backing volume did not flush: the application's next flush fails"
                );
            }
            (self.record)(Entry::FlushFailure { owed });
        }
    }

    /// The last flush was answered: the log is closed, so that the next recovery knows that every record in it was
    /// whole.
    pub(super) fn close_log(&mut self) {
        let now = self.clock.now();
        self.stopping = Stopping::Closing { until: now + STOP_TIMEOUT };
        self.engine.stop(now);
    }

    /// Stops in four steps: answer what is in flight, flush once more, close the log, end.
    pub(super) fn stop_when_idle(&mut self) {
        let now = self.clock.now();
        match self.stopping {
            Stopping::No => {}
            Stopping::Answering { since } => {
                if self.intake.is_empty() || now >= since + self.answer_timeout() {
                    self.stopping = Stopping::Flushing { until: now + STOP_TIMEOUT };
                    let id = self.buffers.insert(Origin::Shutdown, None);
                    self.engine.flush(now, id);
                    self.work();
                    self.ended |= self.flush_waits_for_volume();
                }
            }
            Stopping::Flushing { until } => self.ended |= now >= until || self.flush_waits_for_volume(),
            Stopping::Closing { until } => self.ended |= now >= until,
        }
    }

    /// How long requests in flight are waited for. What is not answered is not acknowledged, so nothing is lost with it.
    fn answer_timeout(&self) -> Duration {
        match self.engine.status().stage {
            // All of them wait for the recovery.
            EngineStage::Recovering => Duration::ZERO,
            EngineStage::Failing => FAILING_TIMEOUT,
            EngineStage::PassThrough
            | EngineStage::Adopting
            | EngineStage::Absorb
            | EngineStage::Drain
            | EngineStage::Releasing
            | EngineStage::Lost => STOP_TIMEOUT,
        }
    }

    /// When the present step of stopping is waited for no longer.
    pub(super) fn stop_deadline(&self) -> Option<Instant> {
        match self.stopping {
            Stopping::No => None,
            Stopping::Answering { since } => Some(since + self.answer_timeout()),
            Stopping::Flushing { until } | Stopping::Closing { until } => Some(until),
        }
    }

    /// Whether the last flush is answered only when the caching volume is back. Nobody waits for that: what is on the
    /// volume stays there under its owner record, and the next daemon goes on with it.
    fn flush_waits_for_volume(&self) -> bool {
        match self.engine.status().stage {
            // Nothing was changed since this daemon began.
            EngineStage::Recovering => true,
            // The backing volume has flushed, and nothing is being drained.
            EngineStage::Failing => self.volumes.in_flight() == 0,
            EngineStage::PassThrough
            | EngineStage::Adopting
            | EngineStage::Absorb
            | EngineStage::Drain
            | EngineStage::Releasing
            | EngineStage::Lost => false,
        }
    }

    /// Ends: I/O in flight is waited for (it may not be torn off its memory), new effects are not started, and what
    /// was not answered is answered with `ESHUTDOWN`.
    pub(super) fn finish(&mut self) {
        let until = self.clock.now() + STOP_TIMEOUT;
        let mut keys = Vec::new();
        while self.volumes.in_flight() > 0 && self.clock.now() < until {
            let now = self.clock.now();
            self.volumes.poll(now, &mut self.outcomes);
            // A flush that fails now is still to be told.
            self.outcomes.drain(..).for_each(|(effect, outcome)| self.engine.complete(now, effect, outcome));
            if self.volumes.in_flight() == 0 {
                break;
            }
            let deadline = [self.volumes.next_deadline(), Some(until)].into_iter().flatten().min();
            if self.poller.wait(self.clock.until(deadline), &mut keys).is_err() {
                break;
            }
        }
        self.keep_flush_failure();
        for answer in self.intake.abandon() {
            self.answer(answer);
        }
        self.front.flush();
        self.detach();
        for answer in self.closing.drain(..) {
            let _ = answer.send(());
        }
    }
}
