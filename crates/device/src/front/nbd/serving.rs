//! Requests in, answers out: what the server does with the bytes of its connections.

use surgetank_model::Operation;

use super::connection::{Connection, ConnectionPhase, Fate};
use super::handshake::Progress;
use super::in_flight::{InFlight, Key};
use super::transmission::{Arrival, Intake, Received, Receiver};
use surgetank_nbd::wire;

use super::{Extent, Limits, NbdFront};
use crate::buffer::Buffer;
use crate::front::Submission;

/// A connection with this many bytes of heads unsent is not read from.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// The most extents in one answer to BLOCK_STATUS.
const EXTENTS_MAX: usize = 1024;
/// Reads from one connection in its turn: one that sends what makes no request must not keep the others waiting.
const READS_MAX: u32 = 64;

impl NbdFront {
    /// Reads and parses one connection until `share` requests came, nothing is left, or it holds enough.
    pub(super) fn serve(&mut self, key: Key, share: usize, sink: &mut Vec<Submission>) {
        let limit = sink.len() + share;
        let mut reads = 0;
        loop {
            let (limits, overloaded) = (self.limits, self.is_overloaded());
            let Some(connection) = self.get(key) else { return };
            connection.paused = overloaded || is_full(connection, limits);
            if connection.is_deserted() {
                return self.close(key);
            }
            if connection.ending || connection.paused {
                return;
            }
            if sink.len() >= limit || reads >= READS_MAX {
                return self.activate(key);
            }
            let fate = match &connection.phase {
                ConnectionPhase::Handshake(_) => self.step_handshake(key),
                ConnectionPhase::Transmission(_) => self.step_transmission(key, sink),
            };
            match fate {
                Step::Parsed => {}
                Step::Lost => return self.close(key),
                Step::Starved => {
                    let Some(connection) = self.get(key) else { return };
                    if !connection.readable {
                        return;
                    }
                    reads += 1;
                    if connection.fill() == Fate::Lost {
                        return self.close(key);
                    }
                }
            }
        }
    }

    fn step_handshake(&mut self, key: Key) -> Step {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let entry = self.connections.get_mut(key.slot as usize);
        let step = match entry {
            Some(Some((serial, connection))) if *serial == key.serial => {
                let (phase, input) = connection.parts();
                let ConnectionPhase::Handshake(handshake) = phase else { return Step::Parsed };
                let (used, progress) = handshake.advance(input, &mut out);
                connection.consume(used);
                if !out.is_empty() {
                    connection.heads(0, |heads| heads.extend_from_slice(&out));
                }
                match progress {
                    Progress::More => Step::Starved,
                    Progress::Continue => Step::Parsed,
                    Progress::Transmission(session) => {
                        connection.phase = ConnectionPhase::Transmission(Receiver::new(session));
                        Step::Parsed
                    }
                    Progress::Tls => match &self.tls {
                        Some(credentials) if connection.begin_tls(credentials) == Fate::Open => Step::Parsed,
                        _ => Step::Lost,
                    },
                    Progress::Close => {
                        connection.ending = true;
                        Step::Parsed
                    }
                }
            }
            _ => Step::Lost,
        };
        self.scratch = out;
        self.mark_dirty(key);
        step
    }

    fn step_transmission(&mut self, key: Key, sink: &mut Vec<Submission>) -> Step {
        let Some(Some((_, connection))) = self.connections.get_mut(key.slot as usize) else { return Step::Lost };
        let (phase, input) = connection.parts();
        let ConnectionPhase::Transmission(receiver) = phase else { return Step::Parsed };
        let pool = &self.pool;
        let (used, received) = receiver.advance(input, &self.export, &mut |length| pool.take(length));
        connection.consume(used);
        match received {
            Received::More => Step::Starved,
            Received::Broken => Step::Lost,
            Received::Request(arrival) => {
                self.take_request(key, arrival, sink);
                Step::Parsed
            }
        }
    }

    fn take_request(&mut self, key: Key, arrival: Arrival, sink: &mut Vec<Submission>) {
        let Arrival { header, intake, data } = arrival;
        match intake {
            Intake::Execute { operation, then_flush } => {
                let length = if operation == Operation::Flush { 0 } else { header.length };
                let offset = if operation == Operation::Flush { 0 } else { header.offset };
                let buffer = if operation == Operation::Read { Some(self.pool.take(length as usize)) } else { data };
                let bytes = buffer.as_ref().map_or(0, Buffer::len);
                if let Some(connection) = self.get(key) {
                    connection.requests += 1;
                    connection.bytes += bytes;
                }
                let token = self.requests.insert(InFlight {
                    connection: key,
                    cookie: header.cookie,
                    offset,
                    length,
                    operation,
                    then_flush,
                });
                let length = u64::from(length);
                sink.push(Submission { token, client: key.client(), operation, offset, length, buffer });
            }
            Intake::BlockStatus { one } => {
                let extents = self.describe(header.offset, header.length, one);
                self.answer(key, |heads| wire::extents_chunk(heads, header.cookie, &extents));
            }
            Intake::Refuse(error) => {
                let structured = matches!(header.command, wire::command::READ | wire::command::BLOCK_STATUS);
                self.answer_error(key, header.cookie, structured, error);
            }
            Intake::Disconnect => {
                if let Some(connection) = self.get(key) {
                    connection.ending = true;
                }
                self.mark_dirty(key);
            }
        }
    }

    /// Answers a request that never was in flight.
    fn answer(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(connection) = self.get(key) {
            connection.requests += 1;
            connection.heads(1, write);
            self.mark_dirty(key);
        }
    }

    fn answer_error(&mut self, key: Key, cookie: u64, may_be_chunk: bool, error: u32) {
        let chunk = may_be_chunk && self.is_structured(key);
        self.answer(key, |heads| match chunk {
            true => wire::error_chunk(heads, cookie, error),
            false => wire::simple_reply(heads, error, cookie),
        });
    }

    fn is_structured(&mut self, key: Key) -> bool {
        let connection = self.get(key);
        matches!(connection, Some(Connection { phase: ConnectionPhase::Transmission(receiver), .. }) if receiver.session().structured)
    }

    fn describe(&mut self, offset: u64, length: u32, one: bool) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        if let Some(extents) = &mut self.extents {
            extents(offset, u64::from(length), &mut found);
        }
        if found.is_empty() {
            found.push(Extent { length: u64::from(length), hole: false, zero: false });
        }
        let mut left = length;
        let mut answer: Vec<(u32, u32)> = Vec::new();
        for extent in found {
            let bytes = u32::try_from(extent.length).unwrap_or(u32::MAX).min(left);
            let flags = u32::from(extent.hole) | u32::from(extent.zero) << 1;
            if bytes == 0 || answer.len() == if one { 1 } else { EXTENTS_MAX } {
                break;
            }
            answer.push((bytes, flags));
            left -= bytes;
        }
        if answer.is_empty() { vec![(length, 0)] } else { answer }
    }

    /// Whether the engine has as much as all connections together may hold. Only connections that come and go with
    /// requests in flight get it there; then all wait for the engine.
    pub(super) fn is_overloaded(&self) -> bool {
        let Limits { connections, requests, bytes, .. } = self.limits;
        self.requests.count() >= connections.saturating_mul(requests)
            || self.requests.bytes() >= connections.saturating_mul(bytes)
    }

    pub(super) fn resume_all(&mut self) {
        let paused = self.connections.iter().enumerate().filter_map(|(slot, entry)| match entry {
            Some((serial, connection)) if connection.paused => Some(Key { slot: slot as u32, serial: *serial }),
            _ => None,
        });
        for key in paused.collect::<Vec<Key>>() {
            self.activate(key);
        }
        self.wake.raise();
    }

    pub(super) fn answer_request(&mut self, request: &InFlight, result: Result<(), i32>, buffer: Option<Buffer>) {
        let key = request.connection;
        let structured = request.operation == Operation::Read && self.is_structured(key);
        let Some(Some((_, connection))) = self.connections.get_mut(key.slot as usize) else { return };
        let (cookie, offset, length) = (request.cookie, request.offset, request.length);
        let result = result.map_err(wire::error::from_errno);
        match (request.operation, result, buffer) {
            (Operation::Read, Ok(()), Some(buffer)) if buffer.len() == length as usize => {
                connection.heads(0, |heads| match structured {
                    true => wire::data_chunk(heads, cookie, offset, length),
                    false => wire::simple_reply(heads, 0, cookie),
                });
                connection.data(buffer);
            }
            (operation, result, _) => {
                connection.bytes -= request.memory();
                // A read that comes back without its data has failed.
                let lost = if operation == Operation::Read { wire::error::EIO } else { 0 };
                let error = result.err().unwrap_or(lost);
                connection.heads(1, |heads| match structured {
                    true => wire::error_chunk(heads, cookie, error),
                    false => wire::simple_reply(heads, error, cookie),
                });
            }
        }
        self.mark_dirty(key);
    }
}

/// What one step of parsing came to.
enum Step {
    Parsed,
    Starved,
    Lost,
}

/// Whether it holds as much as a connection may.
pub(super) fn is_full(connection: &Connection, limits: Limits) -> bool {
    connection.requests >= limits.requests
        || connection.bytes >= limits.bytes
        || connection.waiting() >= WAITING_BYTES_MAX
}
