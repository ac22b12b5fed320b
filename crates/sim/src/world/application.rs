//! The application: what it asks next, and whether the answers are right.

use std::time::Duration;

use surgetank_cache::ReplyError;
use surgetank_model::{Operation, Request, RequestId};

use crate::content::SECTOR;
use crate::oracle::Wrong;
use crate::workload::Wish;
use crate::world::stop::Stopping;
use crate::world::{Expect, Outstanding, SWEEP, SimEvent, Step, World, WorldPhase};

impl World<'_> {
    pub(super) fn submit_next(&mut self) -> Step {
        if !matches!(self.stopping, Stopping::No | Stopping::Done) {
            return Ok(());
        }
        if self.outstanding.len() >= self.scenario.depth as usize {
            self.waiting_for_reply = true;
            return Ok(());
        }
        let wish = match self.sweep {
            Some(offset) => {
                let length = SWEEP.min(self.size - offset);
                let end = offset + length;
                self.sweep = (end < self.size).then_some(end);
                Wish { operation: Operation::Read, offset, length }
            }
            None if self.left == 0 => {
                self.phase = WorldPhase::Settle;
                return Ok(());
            }
            None => {
                self.left -= 1;
                self.workload.wish()
            }
        };
        self.submit(wish);
        let think = self.workload.think_time();
        self.schedule(think, SimEvent::Submit);
        Ok(())
    }

    pub(super) fn submit(&mut self, wish: Wish) {
        let Wish { operation, offset, length } = wish;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let (first, count) = ((offset / SECTOR as u64) as u32, (length / SECTOR as u64) as u32);
        let expect = match operation {
            Operation::Read => Expect::Read(self.oracle.begin_read()),
            Operation::Write { .. } => Expect::Write(self.oracle.begin_write(first, count, false)),
            Operation::Discard | Operation::WriteZeroes { .. } => {
                Expect::Write(self.oracle.begin_write(first, count, true))
            }
            Operation::Flush => Expect::Flush(self.oracle.begin_flush()),
        };
        let request = Request { id, operation, offset, length };
        let excused = match operation {
            Operation::Flush => self.oracle.is_any_lost(),
            _ => self.touches_lost(&request),
        };
        self.outstanding.push(Outstanding { request, expect, at: self.now, excused });
        self.dispatch(request, expect);
    }

    pub(super) fn send_to_engine(&mut self, request: Request, expect: Expect) {
        let mut buffer = self.driver.buffer();
        match (request.operation, expect) {
            (Operation::Read, _) => buffer.resize(request.length as usize, 0x5a),
            (Operation::Write { .. }, Expect::Write(version)) => {
                buffer.resize(request.length as usize, 0);
                self.oracle.fill(version, (request.offset / SECTOR as u64) as u32, &mut buffer);
            }
            _ => {}
        }
        self.driver.add_request(request.id, buffer);
        self.engine.submit(self.now, request);
    }

    pub(super) fn reply(&mut self, id: RequestId, result: Result<(), ReplyError>, buffer: Vec<u8>) -> Step {
        let index = self.outstanding.iter().position(|outstanding| outstanding.request.id == id);
        let index = index.ok_or_else(|| format!("{id:?} is answered but not outstanding"))?;
        let Outstanding { request, expect, at, excused } = self.outstanding.swap_remove(index);
        self.report.requests += 1;
        self.books.answered(id);
        let first = (request.offset / SECTOR as u64) as u32;
        if let Err(error) = result {
            self.report.errors += 1;
            let is_flush = request.operation == Operation::Flush;
            let lost = if is_flush { self.oracle.is_any_lost() } else { self.touches_lost(&request) };
            let excused =
                excused || lost || self.has_waited_for_recovery() || !is_flush && self.touches_doubt(&request);
            if !excused && is_flush && self.unreported_failures > 0 {
                self.unreported_failures -= 1;
            } else if !(excused || is_flush && self.loss_untold.is_some()) {
                return Err(format!("{request:?} failed with {error:?}, but it has touched no fault"));
            }
            if self.phase == WorldPhase::Settle {
                let after = Duration::from_nanos(self.random.below(1_000_000_000));
                self.settle_at = self.now + after;
                self.schedule(after, SimEvent::Settle);
            }
            if is_flush && self.loss_untold.is_some_and(|since| id.0 >= since) {
                self.loss_untold = None;
                // The application had asked for these before it was told.
                let flushes = self.outstanding.iter_mut().filter(|other| other.request.operation == Operation::Flush);
                flushes.for_each(|flush| flush.excused = true);
            }
        }
        let checked = match expect {
            Expect::Read(moment) if result.is_ok() => self.oracle.end_read(moment, first, &buffer),
            Expect::Read(moment) => {
                self.oracle.drop_read(moment);
                Ok(())
            }
            Expect::Write(version) => {
                let fua =
                    matches!(request.operation, Operation::Write { fua: true } | Operation::WriteZeroes { fua: true });
                self.oracle.end_write(version, result.is_ok(), fua);
                if self.was_dropped(id) {
                    self.oracle.drop_promise(version);
                }
                Ok(())
            }
            Expect::Flush(moment) => {
                match result {
                    Ok(()) => {
                        self.oracle.end_flush(moment).map_err(|wrong| wrong.0)?;
                        self.books.promise(at);
                        self.flushed = self.final_flush == Some(id);
                    }
                    Err(_) if self.is_forgetful() => self.oracle.fail_flush(),
                    Err(_) => self.oracle.tell_loss(moment),
                }
                Ok(())
            }
        };
        self.driver.recycle(buffer);
        self.stop_flushed(id, result);
        if self.waiting_for_reply {
            self.waiting_for_reply = false;
            self.schedule(Duration::ZERO, SimEvent::Submit);
        }
        checked.map_err(|Wrong(what)| format!("{request:?}: {what}"))
    }
}
