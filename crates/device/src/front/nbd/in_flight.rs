//! The requests that the engine has.

use surgetank_model::{ClientId, Operation};

use crate::front::Token;

/// A connection's name: its slot, and a serial number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

impl Key {
    /// The connection as whoever serves its requests knows it.
    pub(super) fn client(self) -> ClientId {
        ClientId(self.serial.into())
    }
}

/// A request that the engine has.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) connection: Key,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) operation: Operation,
    /// Flush before the answer: FUA for an operation that has none of its own.
    pub(super) then_flush: bool,
}

impl InFlight {
    /// Bytes of its buffer.
    pub(super) fn memory(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.length as usize,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => 0,
        }
    }
}

/// Requests by token.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<InFlight>>,
    idle: Vec<u64>,
    bytes: usize,
}

impl Requests {
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    /// Bytes of the buffers, also of requests whose connection is gone.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, request: InFlight) -> Token {
        self.bytes += request.memory();
        match self.idle.pop() {
            Some(token) => {
                self.slots[token as usize] = Some(request);
                Token(token)
            }
            None => {
                self.slots.push(Some(request));
                Token(self.slots.len() as u64 - 1)
            }
        }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<InFlight> {
        let request = self.slots.get_mut(usize::try_from(token.0).ok()?)?.take()?;
        self.idle.push(token.0);
        self.bytes -= request.memory();
        Some(request)
    }
}
