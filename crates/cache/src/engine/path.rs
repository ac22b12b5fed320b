//! An engine that is not always in the path of the device's requests: while the device is calm, the kernel may map it straight
//! to the backing volume.

use surgetank_model::{Instant, RequestId};

use super::lifecycle::Step;
use super::{Engine, EngineStage};
use crate::planted::{Bug, planted};

impl Engine {
    /// Whether the device could be mapped straight to the backing volume if nothing were in flight: the engine would answer
    /// every request as that volume does, and the application is owed nothing that only the engine knows of.
    ///
    /// Requests in flight may change that until the last of them is answered, so whoever maps the device asks again when it
    /// holds new ones back and none is in flight. The answer may be `false` for a moment without need.
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        self.is_without_cache() && self.owners.is_empty() && !self.owner_in_flight && !self.may_owe_flush_failure()
    }

    /// No cache is attached, adopted, recovered or released, and nothing is lost.
    fn is_without_cache(&self) -> bool {
        let idle = self.stage == EngineStage::PassThrough && self.step == Step::None;
        idle && self.boost.is_none() && self.recovery.is_none() && self.loss.is_none()
    }

    /// A flush of the backing volume has failed, or one in flight may fail, and a flush that the engine answers must tell the
    /// application so: the volume itself answers the next one as if nothing had happened.
    fn may_owe_flush_failure(&self) -> bool {
        // A flush in flight that the application waits for is told by its reply.
        let told = |id: RequestId| self.is_told(id);
        let unseen = self.backing.flushes.is_flushing() && !self.backing.is_awaited_by(told);
        self.owes_flush_failure() || unseen || self.requests.values().any(|active| active.forgotten)
    }

    /// Requests will come here that went straight to the backing volume until now. Called before the kernel is asked to switch,
    /// since the first of them may be here before the switch is known to have ended.
    ///
    /// What was written there meanwhile is not known to be durable, and the application counts on its next flush for it.
    pub fn enter_path(&mut self, now: Instant) {
        self.pass_to(now);
        self.last_activity = self.now;
        if !planted(Bug::UnseenWritesDurable) {
            self.backing.wrote_for_application(false);
            self.unseen_writes = true;
        }
    }

    /// Counts what was written while the engine was not in the path, up to the first request that it gets: a flush of its own
    /// may have come in between, and does not cover all of that.
    pub(super) fn count_unseen_writes(&mut self) {
        if std::mem::take(&mut self.unseen_writes) {
            self.backing.wrote_for_application(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use surgetank_model::{Limits, Operation, ReadFill, Request};

    use super::*;
    use crate::effect::{Effect, EffectId, IoFailure, Outcome, Owner, ReplyError, Target};
    use crate::engine::{Attach, Config};
    use crate::format::Epoch;

    const BLOCK: u64 = 4096;

    fn config() -> Config {
        let outage_patience = Duration::from_secs(60);
        Config { size: 64 * BLOCK, logical_block: 512, backing_limits: Limits::NONE, outage_patience }
    }

    /// An engine whose effects are answered by hand.
    struct Bench {
        engine: Engine,
        effects: Vec<Effect>,
        replies: Vec<(u64, Result<(), ReplyError>)>,
        next: u64,
    }

    impl Bench {
        fn new(engine: Engine) -> Self {
            Self { engine, effects: Vec::new(), replies: Vec::new(), next: 1 }
        }

        fn take(&mut self) {
            while let Some(effect) = self.engine.next_effect() {
                match effect {
                    Effect::Reply { request, result } => self.replies.push((request.0, result)),
                    Effect::Allocate { .. } | Effect::Release { .. } | Effect::Copy { .. } | Effect::Zero { .. } => {}
                    effect => self.effects.push(effect),
                }
            }
        }

        fn submit(&mut self, operation: Operation) -> u64 {
            let (id, length) = (RequestId(self.next), if operation == Operation::Flush { 0 } else { BLOCK });
            self.next += 1;
            self.engine.submit(Instant::ZERO, Request { id, operation, offset: 0, length });
            self.take();
            id.0
        }

        fn end(&mut self, of: impl Fn(&Effect) -> bool, outcome: Result<(), IoFailure>) {
            let place = self.effects.iter().position(of).expect("such an effect is in flight");
            let id = name(&self.effects.remove(place));
            let outcome = outcome.map_or_else(Outcome::Failed, |()| Outcome::Done);
            self.engine.complete(Instant::ZERO, id, outcome);
            self.take();
        }

        fn end_all(&mut self) {
            while !self.effects.is_empty() {
                self.end(|_| true, Ok(()));
            }
        }

        fn answer(&self, request: u64) -> Option<Result<(), ReplyError>> {
            self.replies.iter().find(|(id, _)| *id == request).map(|(_, result)| *result)
        }

        fn flushes_in_flight(&self) -> usize {
            self.effects.iter().filter(|effect| is_flush(effect)).count()
        }
    }

    fn name(effect: &Effect) -> EffectId {
        match effect {
            Effect::Read { id, .. }
            | Effect::Write { id, .. }
            | Effect::Append { id, .. }
            | Effect::WriteSuperblock { id, .. }
            | Effect::WriteTable { id, .. }
            | Effect::WriteIndex { id, .. }
            | Effect::Flush { id, .. }
            | Effect::Discard { id, .. }
            | Effect::WriteZeroes { id, .. }
            | Effect::Parse { id, .. }
            | Effect::PersistOwner { id, .. }
            | Effect::RecordHealed { id, .. } => *id,
            other => panic!("{other:?} has no answer"),
        }
    }

    fn is_flush(effect: &Effect) -> bool {
        matches!(effect, Effect::Flush { target: Target::Backing, .. })
    }

    fn is_write(effect: &Effect) -> bool {
        matches!(effect, Effect::Write { .. })
    }

    const WRITE: Operation = Operation::Write { fua: false };

    #[test]
    fn requests_in_flight_that_end_well_owe_nothing() {
        let mut bench = Bench::new(Engine::new(config()));
        assert!(bench.engine.is_transparent());
        for operation in [WRITE, Operation::Read, Operation::Flush] {
            bench.submit(operation);
            assert!(bench.engine.is_transparent(), "{operation:?}");
        }
        bench.end_all();
        assert!(bench.engine.is_transparent());
        assert!(bench.replies.len() == 3 && bench.replies.iter().all(|(_, result)| result.is_ok()));
    }

    #[test]
    fn a_flush_that_failed_is_owed_until_the_application_was_told() {
        let mut bench = Bench::new(Engine::new(config()));
        let write = bench.submit(WRITE);
        let first = bench.submit(Operation::Flush);
        bench.end(is_flush, Err(IoFailure::Io));
        assert_eq!(bench.answer(first), Some(Err(ReplyError::Io)));
        assert!(!bench.engine.is_transparent(), "a write in flight may have been forgotten");
        bench.end(is_write, Ok(()));
        assert_eq!(bench.answer(write), Some(Ok(())));
        assert!(!bench.engine.is_transparent(), "that is still to be told");
        let second = bench.submit(Operation::Flush);
        assert!(!bench.engine.is_transparent() || bench.answer(second).is_some(), "it is being told");
        bench.end_all();
        assert_eq!(bench.answer(second), Some(Err(ReplyError::Io)));
        assert!(bench.engine.is_transparent());
    }

    #[test]
    fn a_flush_that_nobody_would_hear_of_is_awaited() {
        let mut bench = Bench::new(Engine::new(config()));
        bench.submit(WRITE);
        bench.end_all();
        bench.engine.flush(Instant::ZERO, RequestId(1000));
        bench.take();
        assert!(!bench.engine.is_transparent());
        bench.end(is_flush, Err(IoFailure::Io));
        assert!(!bench.engine.is_transparent() && bench.engine.owes_flush_failure());
        let told = bench.submit(Operation::Flush);
        bench.end_all();
        assert!(bench.answer(told) == Some(Err(ReplyError::Io)) && bench.engine.is_transparent());
    }

    #[test]
    fn what_an_earlier_engine_owed_is_owed() {
        let mut engine = Engine::new(config());
        engine.owe_flush_failure();
        assert!(!engine.is_transparent());
    }

    #[test]
    fn losses_and_recoveries_are_not_transparent() {
        let lost = Engine::with_lost(config(), Epoch([1; 16]), &[(0, BLOCK)]);
        assert!(!lost.is_transparent() && !Engine::awaiting_recovery(config()).is_transparent());
        let mut bench = Bench::new(lost);
        bench.submit(WRITE);
        bench.end(is_write, Ok(()));
        assert!(!bench.engine.is_transparent(), "what was healed is to be flushed");
        bench.end(is_flush, Ok(()));
        assert!(!bench.engine.is_transparent(), "and recorded");
        bench.end(|effect| matches!(effect, Effect::PersistOwner { .. }), Ok(()));
        assert!(bench.engine.is_transparent());
    }

    #[test]
    fn a_boost_is_not_transparent_from_its_adoption_until_its_end_is_recorded() {
        let mut bench = Bench::new(Engine::new(config()));
        let epoch = Epoch([1; 16]);
        let (cache_size, cache_limits, read_fill) = (4 << 20, Limits::NONE, ReadFill::Never);
        let attach = Attach { epoch, cache_size, cache_limits, split: false, read_fill, indexes: false };
        bench.engine.adopt(Instant::ZERO, attach).expect("it fits");
        bench.take();
        let mut last = None;
        while !bench.effects.is_empty() {
            assert!(!bench.engine.is_transparent());
            bench.end(|_| true, Ok(()));
        }
        assert_eq!(bench.engine.status().stage, EngineStage::Absorb);
        bench.engine.release(Instant::ZERO).expect("it is adopted");
        bench.take();
        while let Some(effect) = bench.effects.first() {
            assert!(!bench.engine.is_transparent());
            last = Some(format!("{effect:?}"));
            let first = name(effect);
            bench.end(|effect| name(effect) == first, Ok(()));
        }
        assert!(bench.engine.is_transparent());
        let recorded = last.is_some_and(|last| last.contains(&format!("{:?}", Owner::Backing)));
        assert!(recorded, "the owner record is the last that is awaited");
    }

    #[test]
    fn the_first_flush_reaches_the_backing_volume() {
        let mut bench = Bench::new(Engine::new(config()));
        bench.submit(Operation::Flush);
        bench.end_all();
        bench.submit(Operation::Flush);
        assert_eq!(bench.flushes_in_flight(), 0, "nothing was written since");
        bench.engine.enter_path(Instant::ZERO);
        assert!(bench.engine.is_transparent());
        let flush = bench.submit(Operation::Flush);
        assert_eq!((bench.flushes_in_flight(), bench.answer(flush)), (1, None));
        bench.end_all();
        assert_eq!(bench.answer(flush), Some(Ok(())));
    }

    #[test]
    fn a_flush_of_our_own_during_the_switch_covers_too_little() {
        let mut bench = Bench::new(Engine::new(config()));
        bench.engine.enter_path(Instant::ZERO);
        bench.engine.flush(Instant::ZERO, RequestId(1000));
        bench.take();
        bench.end_all();
        bench.submit(Operation::Flush);
        assert_eq!(bench.flushes_in_flight(), 1, "the kernel went on writing meanwhile");
    }

    #[test]
    fn what_was_written_straight_counts_as_the_applications_own() {
        let mut bench = Bench::new(Engine::new(config()));
        bench.submit(Operation::Flush);
        bench.end_all();
        bench.engine.enter_path(Instant::ZERO);
        bench.engine.flush(Instant::ZERO, RequestId(1000));
        bench.take();
        bench.end(is_flush, Err(IoFailure::Io));
        assert!(bench.engine.owes_flush_failure());
    }
}
