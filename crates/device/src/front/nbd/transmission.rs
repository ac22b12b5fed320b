//! The transmission phase: bytes in, requests out, no sockets.

use surgetank_model::{Operation, Request};
use surgetank_nbd::wire::{REQUEST_LENGTH, RequestHeader, command, command_flag, error};

use crate::buffer::Buffer;
use crate::front::Export;

/// What the handshake agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Reads and block status get structured replies.
    pub structured: bool,
    /// `base:allocation` was chosen.
    pub allocation_context: bool,
}

/// What a request's header asks for, checked against the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// For the engine. A write's data follow the header.
    Execute {
        /// What to do.
        operation: Operation,
        /// Flush once done: FUA for an operation that has none of its own.
        then_flush: bool,
    },
    /// Describe the range; at most one extent if so.
    BlockStatus {
        /// Only the first extent.
        one: bool,
    },
    /// An error (of `wire::error`). If it was a write its data follow the header and are skipped.
    Refuse(u32),
    /// The client leaves; requests in flight are still answered.
    Disconnect,
}

/// Checks a request.
#[must_use]
pub fn check(header: &RequestHeader, export: &Export, session: Session) -> Intake {
    let flags = header.flags;
    let fua = flags & command_flag::FUA != 0;
    let allowed = command_flag::FUA
        | match header.command {
            command::READ if session.structured => command_flag::DONT_FRAGMENT,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::ONE_EXTENT,
            _ => 0,
        };
    let (operation, beyond) = match header.command {
        command::READ => (Some(Operation::Read), error::EINVAL),
        command::WRITE => (Some(Operation::Write { fua }), error::ENOSPC),
        command::DISCONNECT => return Intake::Disconnect,
        command::FLUSH if flags & !allowed == 0 => {
            return Intake::Execute { operation: Operation::Flush, then_flush: false };
        }
        command::TRIM => (Some(Operation::Discard), error::EINVAL),
        command::WRITE_ZEROES => (Some(Operation::WriteZeroes { fua }), error::ENOSPC),
        command::BLOCK_STATUS if session.allocation_context => (None, error::EINVAL),
        _ => return Intake::Refuse(error::EINVAL),
    };
    let moves_bytes = matches!(header.command, command::READ | command::WRITE);
    if flags & !allowed != 0 || (moves_bytes && u64::from(header.length) > Request::LENGTH_MAX) {
        return Intake::Refuse(error::EINVAL);
    }
    match export.check(header.offset, u64::from(header.length)) {
        Err(libc::ENOSPC) => return Intake::Refuse(beyond),
        Err(_) => return Intake::Refuse(error::EINVAL),
        Ok(()) => {}
    }
    if header.command == command::WRITE_ZEROES && flags & command_flag::FAST_ZERO != 0 {
        // We cannot promise that zeroing is faster than writing: the backing volume may write each zero.
        return Intake::Refuse(error::ENOTSUP);
    }
    match operation {
        Some(operation) => Intake::Execute { operation, then_flush: fua && operation == Operation::Discard },
        None => Intake::BlockStatus { one: flags & command_flag::ONE_EXTENT != 0 },
    }
}

/// A request that has arrived whole.
#[derive(Debug)]
pub struct Arrival {
    /// Its header.
    pub header: RequestHeader,
    /// What it asks for.
    pub intake: Intake,
    /// The data of a write that is executed.
    pub data: Option<Buffer>,
}

/// What [`Receiver::advance`] found.
#[derive(Debug)]
pub enum Received {
    /// More input is needed.
    More,
    /// A request.
    Request(Arrival),
    /// The stream makes no sense any more; close the connection.
    Broken,
}

#[derive(Debug)]
enum ReceiveState {
    Header,
    Data { header: RequestHeader, intake: Intake, buffer: Buffer, filled: usize },
    Skip { header: RequestHeader, error: u32, remaining: usize },
    Broken,
}

/// Cuts a stream of bytes into requests. The data of writes go straight into their buffers: offered with
/// [`Receiver::room`] to whoever reads the stream, or copied from the input.
#[derive(Debug)]
pub struct Receiver {
    session: Session,
    state: ReceiveState,
}

impl Receiver {
    /// At the start of a transmission.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session, state: ReceiveState::Header }
    }

    /// What the handshake agreed on.
    #[must_use]
    pub fn session(&self) -> Session {
        self.session
    }

    /// Bytes of memory held for a write that is still arriving.
    #[must_use]
    pub fn held(&self) -> usize {
        if let ReceiveState::Data { buffer, .. } = &self.state { buffer.len() } else { 0 }
    }

    /// The rest of the data of a write, to be read from the stream before anything else; empty if there is none.
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.state {
            ReceiveState::Data { buffer, filled, .. } => {
                let filled = *filled;
                buffer.unique().map(|bytes| &mut bytes[filled..]).unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// Counts `length` bytes that were read into [`Receiver::room`].
    pub fn filled(&mut self, length: usize) {
        if let ReceiveState::Data { buffer, filled, .. } = &mut self.state {
            *filled = (*filled + length).min(buffer.len());
        }
    }

    /// Takes what it can off the front of `input`, up to one whole request, and gives the bytes used. `allocate` makes
    /// a write's buffer of that many bytes.
    pub fn advance(
        &mut self,
        input: &[u8],
        export: &Export,
        allocate: &mut dyn FnMut(usize) -> Buffer,
    ) -> (usize, Received) {
        let mut used = 0;
        loop {
            match &mut self.state {
                ReceiveState::Broken => return (input.len(), Received::Broken),
                ReceiveState::Header => {
                    let Some(bytes) = input[used..].first_chunk::<REQUEST_LENGTH>() else {
                        return (used, Received::More);
                    };
                    used += REQUEST_LENGTH;
                    let Some(header) = RequestHeader::parse(bytes) else {
                        self.state = ReceiveState::Broken;
                        return (used, Received::Broken);
                    };
                    let intake = check(&header, export, self.session);
                    if header.command != command::WRITE {
                        return (used, Received::Request(Arrival { header, intake, data: None }));
                    }
                    self.state = match intake {
                        Intake::Refuse(error) => {
                            ReceiveState::Skip { header, error, remaining: header.length as usize }
                        }
                        _ => ReceiveState::Data { header, intake, buffer: allocate(header.length as usize), filled: 0 },
                    };
                }
                ReceiveState::Data { header, intake, buffer, filled } => {
                    let Some(memory) = buffer.unique() else {
                        // Only a caller that kept a handle on a buffer it allocated for us gets here.
                        self.state = ReceiveState::Broken;
                        return (used, Received::Broken);
                    };
                    let length = (input.len() - used).min(memory.len() - *filled);
                    memory[*filled..*filled + length].copy_from_slice(&input[used..used + length]);
                    used += length;
                    *filled += length;
                    if *filled < memory.len() {
                        return (used, Received::More);
                    }
                    let (header, intake, buffer) = (*header, *intake, buffer.clone());
                    self.state = ReceiveState::Header;
                    return (used, Received::Request(Arrival { header, intake, data: Some(buffer) }));
                }
                ReceiveState::Skip { header, error, remaining } => {
                    let length = (input.len() - used).min(*remaining);
                    used += length;
                    *remaining -= length;
                    if *remaining > 0 {
                        return (used, Received::More);
                    }
                    let arrival = Arrival { header: *header, intake: Intake::Refuse(*error), data: None };
                    self.state = ReceiveState::Header;
                    return (used, Received::Request(arrival));
                }
            }
        }
    }
}
