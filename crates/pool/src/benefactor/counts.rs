//! What a benefactor counts of its answers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::chunks::{Reply, Request};

/// What a benefactor counts of its answers.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) put_bytes: AtomicU64,
    pub(super) put_refusals: AtomicU64,
    pub(super) put_errors: AtomicU64,
    pub(super) get_chunks: AtomicU64,
    pub(super) get_bytes: AtomicU64,
    pub(super) get_errors: AtomicU64,
    pub(super) drained_bytes: AtomicU64,
    pub(super) drain_errors: AtomicU64,
}

/// What was asked, as far as the answer is counted.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    /// To keep so many bytes.
    Put(u64),
    Get,
    Drain,
    Other,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Put(put) => Self::Put(put.bytes.len() as u64),
            Request::Get(_) | Request::Draft(_) => Self::Get,
            Request::DrainPart(_) | Request::DrainLost(_) | Request::SendPart(_) => Self::Drain,
            _ => Self::Other,
        }
    }
}

impl Counts {
    pub(super) fn answered(&self, asked: Asked, reply: &Reply) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.fetch_add(amount, Ordering::Relaxed);
        };
        match (asked, reply) {
            (Asked::Put(bytes), Reply::Stored(_)) => add(&self.put_bytes, bytes),
            (Asked::Put(_), Reply::Full) => add(&self.put_refusals, 1),
            (Asked::Put(_), Reply::Corrupt) => add(&self.put_errors, 1),
            (Asked::Get, Reply::Chunk(_, bytes)) => {
                add(&self.get_chunks, 1);
                add(&self.get_bytes, bytes.len() as u64);
            }
            (Asked::Get, Reply::Corrupt) => add(&self.get_errors, 1),
            (Asked::Drain, Reply::Drained(chunks)) => {
                add(&self.drained_bytes, chunks.iter().map(|(_, length, _)| u64::from(*length)).sum());
            }
            (Asked::Drain, Reply::Sent(sent)) => {
                add(&self.drained_bytes, sent.chunks.iter().map(|(length, _)| u64::from(*length)).sum());
            }
            (Asked::Drain, Reply::NotDrained(_) | Reply::Corrupt) => add(&self.drain_errors, 1),
            _ => {}
        }
    }
}
