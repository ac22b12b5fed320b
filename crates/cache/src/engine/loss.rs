//! What a failed cache took with it: what is lost, what heals it, and the record of both.

use std::collections::VecDeque;
use std::ops::Range;

use surgetank_model::{Instant, RequestId};

use super::lifecycle::Step;
use super::{Engine, Event, Recorder, Rejected, Stage};
use crate::effect::{IoFailure, Owner, ReplyError};
use crate::format::Epoch;
use crate::ranges::RangeSet;

/// What a failed cache took with it.
#[derive(Debug)]
pub(super) struct Loss {
    epoch: Epoch,
    /// Bytes of the device that answer EIO.
    ranges: RangeSet,
    /// No flush has told the application since. Those that waited for the cache may not cover all that is lost.
    pub(super) untold: bool,
    /// Grows when ranges are overwritten.
    version: u64,
    /// The version that the owner record holds.
    recorded: u64,
    /// Flushes that wait until the record holds what they cover.
    waiting: VecDeque<(RequestId, u64, RangeSet)>,
    recording: Option<(u64, bool)>,
}

impl Loss {
    pub(super) fn new(epoch: Epoch, ranges: RangeSet) -> Self {
        Self { epoch, ranges, untold: false, version: 0, recorded: 0, waiting: VecDeque::new(), recording: None }
    }

    pub(super) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Requests that wait until the record holds what they healed or cover.
    pub(super) fn into_waiting(self) -> Vec<RequestId> {
        self.waiting.into_iter().map(|(request, ..)| request).collect()
    }

    pub(super) fn total(&self) -> u64 {
        self.ranges.total()
    }

    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.ranges.overlaps(bytes)
    }

    pub(super) fn pairs(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|range| (range.start, range.end - range.start)).collect()
    }

    /// A range has been overwritten: it is not lost any more. Says whether the owner record must learn of it, or of an
    /// earlier overwriting that may have been the same range's, before the reply.
    pub(super) fn heal(&mut self, bytes: &Range<u64>) -> bool {
        self.version += u64::from(self.ranges.remove(bytes));
        self.version != self.recorded
    }

    /// What the owner record should say now, if it does not.
    pub(super) fn unrecorded(&self) -> Option<(u64, RangeSet)> {
        (self.version != self.recorded).then(|| (self.version, self.ranges.clone()))
    }
}

impl Engine {
    /// The user accepts the loss: lost ranges, or all that an unrecovered cache holds, read as the backing volume has
    /// them. Ends in `CacheDropped`.
    ///
    /// # Errors
    /// If nothing is lost.
    pub fn accept_loss(&mut self, now: Instant) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        self.stirred = true;
        let unrecovered = self.stage == Stage::Recovering && self.recovery.is_none();
        if !(self.stage == Stage::Lost || unrecovered) || self.step != Step::None {
            return Err(Rejected("nothing is lost: there is no loss to accept".to_owned()));
        }
        self.step = Step::AcceptLoss;
        self.enter_step();
        Ok(())
    }

    pub(super) fn loss_accepted(&mut self) {
        self.forget_loss();
        self.events.push_back(Event::CacheDropped);
    }

    fn forget_loss(&mut self) {
        if let Some(loss) = self.loss.take() {
            for (request, ..) in loss.waiting {
                self.reply(request);
            }
        }
        self.end_boost();
    }

    /// A flush covers writes over lost ranges: it is answered when the owner record knows of them.
    pub(super) fn persist_loss(&mut self, id: RequestId) {
        let snapshot = self.requests.get_mut(&id).and_then(|active| active.loss.take());
        match (snapshot, self.loss.as_mut()) {
            (Some((version, ranges)), Some(loss)) if version > loss.recorded => {
                loss.waiting.push_back((id, version, ranges));
                self.record_loss();
            }
            _ => self.reply(id),
        }
    }

    fn record_loss(&mut self) {
        // What stays lost is being recorded as a whole, and answers who waits.
        if self.is_recording_loss() {
            return;
        }
        let Some(loss) = self.loss.as_mut().filter(|loss| loss.recording.is_none()) else { return };
        let Some((_, version, ranges)) = loss.waiting.iter().max_by_key(|(_, version, _)| *version) else { return };
        loss.recording = Some((*version, ranges.is_empty()));
        let owner = if ranges.is_empty() {
            Owner::Backing
        } else {
            let ranges = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
            Owner::Lost { epoch: loss.epoch, ranges }
        };
        self.persist_owner(Recorder::Loss, owner);
    }

    pub(super) fn loss_persisted(&mut self, result: Result<(), IoFailure>) {
        let Some(loss) = self.loss.as_mut() else { return };
        let Some((recorded, all_healed)) = loss.recording.take() else { return };
        let waiting = std::mem::take(&mut loss.waiting);
        let (done, later): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|(_, version, _)| *version <= recorded);
        loss.waiting = later;
        if result.is_ok() {
            loss.recorded = recorded;
        }
        for (request, ..) in done {
            if result.is_err() {
                self.fail_request(request, ReplyError::Io);
            }
            self.reply(request);
        }
        // While the volume is being read back, its end is the end of the loss.
        if result.is_ok() && all_healed && self.boost.is_none() && self.recovery.is_none() {
            self.forget_loss();
            self.events.push_back(Event::CacheDropped);
            return;
        }
        self.record_loss();
    }
}
