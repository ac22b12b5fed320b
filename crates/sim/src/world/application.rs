//! The application: what it asks next, and whether the answers are right.

use std::time::Duration;

use surgetank_cache::ReplyError;
use surgetank_model::{Operation, Request, RequestId};

use crate::content::SECTOR;
use crate::oracle::Wrong;
use crate::workload::Wish;
use crate::world::restart::Stopping;
use crate::world::{Expect, Happening, Outstanding, Phase, SWEEP, Step, World};

impl World<'_> {
    pub(super) fn submit_next(&mut self) -> Step {
        if self.stopping != Stopping::No {
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
                self.phase = Phase::Settle;
                return Ok(());
            }
            None => {
                self.left -= 1;
                self.workload.wish()
            }
        };
        self.submit(wish);
        let think = self.workload.think_time();
        self.schedule(think, Happening::Submit);
        Ok(())
    }

    pub(super) fn submit(&mut self, wish: Wish) {
        let Wish { operation, offset, length } = wish;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let (first, count) = ((offset / SECTOR as u64) as u32, (length / SECTOR as u64) as u32);
        let mut buffer = self.driver.buffer();
        let expect = match operation {
            Operation::Read => {
                buffer.resize(length as usize, 0x5a);
                Expect::Read(self.oracle.begin_read())
            }
            Operation::Write { .. } => {
                let version = self.oracle.begin_write(first, count, false);
                buffer.resize(length as usize, 0);
                self.oracle.fill(version, first, &mut buffer);
                Expect::Write(version)
            }
            Operation::Discard | Operation::WriteZeroes { .. } => {
                Expect::Write(self.oracle.begin_write(first, count, true))
            }
            Operation::Flush => Expect::Flush(self.oracle.begin_flush()),
        };
        let request = Request { id, operation, offset, length };
        self.driver.add_request(id, buffer);
        self.outstanding.push(Outstanding { request, expect });
        self.engine.submit(self.now, request);
    }

    pub(super) fn reply(&mut self, id: RequestId, result: Result<(), ReplyError>, buffer: Vec<u8>) -> Step {
        if self.stopping == Stopping::Flushing(id) {
            self.stopping = Stopping::Flushed;
            self.driver.recycle(buffer);
            return Ok(());
        }
        let index = self.outstanding.iter().position(|outstanding| outstanding.request.id == id);
        let index = index.ok_or_else(|| format!("{id:?} is answered but not outstanding"))?;
        let Outstanding { request, expect } = self.outstanding.swap_remove(index);
        self.report.requests += 1;
        let (first, count) = ((request.offset / SECTOR as u64) as u32, (request.length / SECTOR as u64) as u32);
        if let Err(error) = result {
            self.report.errors += 1;
            // A partial write of a lost block cannot be merged with what is lost.
            let (first_block, end_block) = (first & !7, (first + count).next_multiple_of(8));
            let lost = error == ReplyError::Io && self.oracle.is_lost(first_block, end_block - first_block);
            let excused = id.0 < self.faults_until || self.failing || self.vanished || (lost && !self.swept);
            if !excused && request.operation == Operation::Flush && self.unreported_failures > 0 {
                self.unreported_failures -= 1;
            } else if !excused {
                return Err(format!("{request:?} failed with {error:?}, but no volume has a fault"));
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
                Ok(())
            }
            Expect::Flush(moment) => {
                match result {
                    Ok(()) => {
                        self.oracle.end_flush(moment);
                        self.flushed = self.final_flush == Some(id);
                    }
                    Err(_) if self.is_forgetful() => self.oracle.fail_flush(),
                    Err(_) => {}
                }
                Ok(())
            }
        };
        self.driver.recycle(buffer);
        if self.waiting_for_reply {
            self.waiting_for_reply = false;
            self.schedule(Duration::ZERO, Happening::Submit);
        }
        checked.map_err(|Wrong(what)| format!("{request:?}: {what}"))
    }
}
