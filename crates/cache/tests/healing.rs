//! What healing costs: what is healed, not what is lost. Counts, not times; `make bench ARGS=losses` has the times.

use surgetank_cache::{
    Config, Effect, EffectId, Engine, EngineStage, Epoch, Event, IoFailure, Outcome, Owner, ReplyError,
};
use surgetank_model::{Instant, Limits, Operation, Request, RequestId};

const BLOCK: u64 = 4096;
const WRITE: Operation = Operation::Write { fua: false };

/// What an engine asked of its driver.
#[derive(Debug, Default)]
struct Asked {
    flushes: u32,
    /// Ranges of each record.
    records: Vec<Vec<(u64, u64)>>,
    owners: Vec<Owner>,
    replies: Vec<(RequestId, Result<(), ReplyError>)>,
    in_flight: Vec<EffectId>,
}

struct Device {
    engine: Engine,
    asked: Asked,
    next: u64,
}

impl Device {
    /// With every other block lost.
    fn new(ranges: u64) -> Self {
        let outage_patience = std::time::Duration::from_secs(60);
        let config =
            Config { size: 2 * ranges * BLOCK, logical_block: 512, backing_limits: Limits::NONE, outage_patience };
        let lost: Vec<_> = (0..ranges).map(|number| (2 * number * BLOCK, BLOCK)).collect();
        let engine = Engine::with_lost(config, Epoch([1; 16]), &lost);
        Self { engine, asked: Asked::default(), next: 0 }
    }

    fn submit(&mut self, operation: Operation, offset: u64, length: u64) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        self.engine.submit(Instant::ZERO, Request { id, operation, offset, length });
        id
    }

    /// Takes the effects that the engine has now.
    fn take(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            let asked = &mut self.asked;
            match effect {
                Effect::Write { id, .. } | Effect::Discard { id, .. } | Effect::Read { id, .. } => {
                    asked.in_flight.push(id);
                }
                Effect::Flush { id, .. } => {
                    asked.flushes += 1;
                    asked.in_flight.push(id);
                }
                Effect::RecordHealed { id, ranges, .. } => {
                    asked.records.push(ranges);
                    asked.in_flight.push(id);
                }
                Effect::PersistOwner { id, owner } => {
                    asked.owners.push(owner);
                    asked.in_flight.push(id);
                }
                Effect::Reply { request, result } => asked.replies.push((request, result)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Ends everything that is in flight.
    fn end(&mut self, outcome: impl Fn() -> Outcome) {
        self.take();
        for id in std::mem::take(&mut self.asked.in_flight) {
            self.engine.complete(Instant::ZERO, id, outcome());
        }
        self.take();
    }

    fn end_all(&mut self) {
        self.take();
        while !self.asked.in_flight.is_empty() {
            self.end(|| Outcome::Done);
        }
    }
}

#[test]
fn overwrites_together_share_a_flush_and_a_record_as_long_as_they() {
    for ranges in [1000, 100_000] {
        let mut device = Device::new(ranges);
        for round in 0..4 {
            device.asked = Asked::default();
            let offsets: Vec<u64> = (0..64).map(|number| 2 * (round * 64 + number) * BLOCK).collect();
            offsets.iter().for_each(|&offset| _ = device.submit(WRITE, offset, BLOCK));
            device.end_all();
            let asked = &device.asked;
            assert_eq!(asked.replies.len(), 64);
            assert!(asked.replies.iter().all(|(_, result)| result.is_ok()));
            // The first write to end is recorded alone, at worst, and the others together.
            assert!(asked.flushes <= 2 && asked.records.len() <= 2 && asked.owners.is_empty(), "{asked:?}");
            assert_eq!(asked.records.concat(), offsets.iter().map(|&offset| (offset, BLOCK)).collect::<Vec<_>>());
        }
        assert_eq!(device.engine.status().lost_ranges as u64, ranges - 256);
        assert_eq!(device.engine.lost_ranges(2), [(512 * BLOCK, BLOCK), (514 * BLOCK, BLOCK)]);
    }
}

#[test]
fn a_wide_overwrite_is_one_range_and_others_do_not_wait() {
    let mut device = Device::new(10_000);
    device.submit(Operation::Discard, 0, 15_000 * BLOCK);
    device.end_all();
    // From the first lost byte to the last.
    assert_eq!(device.asked.records, [vec![(0, 14_999 * BLOCK)]]);
    // What was never lost, or is healed, is written as ever.
    device.asked = Asked::default();
    for offset in [BLOCK, 15_001 * BLOCK, 0] {
        device.submit(WRITE, offset, BLOCK);
    }
    device.end_all();
    assert_eq!((device.asked.flushes, device.asked.records.len(), device.asked.replies.len()), (0, 0, 3));
    // The last one ends the loss.
    device.submit(WRITE, 15_000 * BLOCK, 5000 * BLOCK / 2);
    device.submit(WRITE, 17_500 * BLOCK, 5000 * BLOCK / 2);
    device.end_all();
    assert_eq!(device.asked.owners, [Owner::Backing]);
    assert_eq!(device.engine.next_event(), Some(Event::CacheDropped));
    assert_eq!(device.engine.status().stage, EngineStage::PassThrough);
}

#[test]
fn a_healing_is_answered_when_it_is_on_record() {
    let mut device = Device::new(10);
    let id = device.submit(WRITE, 0, BLOCK);
    // The write, the flush, the record.
    for _ in 0..2 {
        device.end(|| Outcome::Done);
        assert_eq!(device.asked.replies, []);
    }
    device.end(|| Outcome::Done);
    assert_eq!(device.asked.replies, [(id, Ok(()))]);
    // Without a record the write fails, and the next one over it is not answered without one either.
    let failed = device.submit(WRITE, 2 * BLOCK, BLOCK);
    device.end(|| Outcome::Done);
    device.end(|| Outcome::Done);
    device.end(|| Outcome::Failed(IoFailure::Io));
    assert_eq!(device.asked.replies.last(), Some(&(failed, Err(ReplyError::Io))));
    let again = device.submit(WRITE, 2 * BLOCK, BLOCK);
    device.end_all();
    assert_eq!(device.asked.replies.last(), Some(&(again, Ok(()))));
    assert_eq!(device.asked.records.last(), Some(&vec![(2 * BLOCK, BLOCK)]));
}

/// What a failed flush may have forgotten is lost again, and only a flush of the application tells it of that failure.
#[test]
fn a_failed_flush_undoes_healing_and_is_told_by_a_flush() {
    let mut device = Device::new(10);
    // Never lost, acknowledged, and forgotten below.
    device.submit(WRITE, BLOCK, BLOCK);
    device.end_all();
    let failed = device.submit(WRITE, 0, BLOCK);
    device.end(|| Outcome::Done);
    device.end(|| Outcome::Failed(IoFailure::Io));
    assert_eq!(device.asked.replies.last(), Some(&(failed, Err(ReplyError::Io))));
    assert_eq!(device.engine.lost_ranges(1), [(0, BLOCK)]);
    assert!(device.engine.owes_flush_failure());
    let healing = device.submit(WRITE, 2 * BLOCK, BLOCK);
    device.end_all();
    assert_eq!(device.asked.replies.last(), Some(&(healing, Ok(()))));
    let last = RequestId(1000);
    device.engine.flush(Instant::ZERO, last);
    device.end_all();
    assert_eq!(device.asked.replies.last(), Some(&(last, Ok(()))));
    assert!(device.engine.owes_flush_failure(), "no application has been told");
    let told = device.submit(Operation::Flush, 0, 0);
    device.end_all();
    assert_eq!(device.asked.replies.last(), Some(&(told, Err(ReplyError::Io))));
    assert!(!device.engine.owes_flush_failure());
    let fine = device.submit(Operation::Flush, 0, 0);
    device.end_all();
    assert_eq!(device.asked.replies.last(), Some(&(fine, Ok(()))));
    assert_eq!(device.asked.records, [vec![(2 * BLOCK, BLOCK)]]);
}
