//! The fixed newstyle handshake: bytes in, bytes out, no sockets.

use surgetank_nbd::wire::{self, Reader, handshake_flag, info, option, option_reply, transmission_flag};

use super::transmission::Session;
use crate::front::Export;

/// The longest data of an option that is looked at, in bytes: a name (4096 by the specification) and some metadata
/// contexts. Longer ones are skipped and refused.
pub const OPTION_LENGTH_MAX: usize = 16 << 10;
/// The longest option that is skipped, in bytes; a client with longer ones is cut off.
pub const OPTION_SKIP_MAX: u32 = 32 << 20;
/// The block size that we ask clients to prefer, in bytes.
pub const PREFERRED_BLOCK: u32 = 4096;
/// The longest name in an option, in bytes.
const NAME_MAX: usize = 4096;

/// What the handshake has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    More,
    /// An option was answered; the input may hold more.
    Continue,
    /// TLS begins once the output is sent; everything after that is told under it.
    Tls,
    /// The client chose the export.
    Transmission(Session),
    /// The connection ends once the output is sent.
    Close,
}

#[derive(Clone, Copy, Debug)]
enum HandshakeState {
    ClientFlags,
    Option,
    Skip { remaining: u32, option: u32 },
    Closed,
}

/// What is demanded of the connection, and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    NotOffered,
    Required,
    Established,
}

/// The server's side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    export: Export,
    state: HandshakeState,
    tls: Tls,
    no_zeroes: bool,
    structured: bool,
    allocation_context: bool,
}

impl Handshake {
    /// For one export, which is also the default one (the empty name).
    #[must_use]
    pub fn new(export: Export) -> Self {
        Self {
            export,
            state: HandshakeState::ClientFlags,
            tls: Tls::NotOffered,
            no_zeroes: false,
            structured: false,
            allocation_context: false,
        }
    }

    /// Says nothing of the export before TLS is begun ("FORCEDTLS").
    #[must_use]
    pub fn requiring_tls(mut self) -> Self {
        self.tls = Tls::Required;
        self
    }

    /// Appends what the server says first.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend(wire::MAGIC.to_be_bytes());
        out.extend(wire::OPTION_MAGIC.to_be_bytes());
        out.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    }

    /// Takes at most one message off the front of `input` and appends its answer to `out`. Gives the bytes used, which
    /// must not be offered again.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        match self.state {
            HandshakeState::ClientFlags => self.client_flags(input),
            HandshakeState::Option => self.option(input, out),
            HandshakeState::Skip { remaining, option } => {
                let used = input.len().min(remaining as usize);
                let remaining = remaining - used as u32;
                if remaining > 0 {
                    self.state = HandshakeState::Skip { remaining, option };
                    return (used, Progress::More);
                }
                wire::encode_option_reply(out, option, option_reply::ERROR_TOO_BIG, b"the option is too long");
                self.state = HandshakeState::Option;
                (used, Progress::Continue)
            }
            HandshakeState::Closed => (input.len(), Progress::Close),
        }
    }

    fn close(&mut self, used: usize) -> (usize, Progress) {
        self.state = HandshakeState::Closed;
        (used, Progress::Close)
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Progress) {
        let Some(flags) = Reader(input).u32() else { return (0, Progress::More) };
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return self.close(4);
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.state = HandshakeState::Option;
        (4, Progress::Continue)
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        let mut reader = Reader(input);
        let (Some(magic), Some(option), Some(length)) = (reader.u64(), reader.u32(), reader.u32()) else {
            return (0, Progress::More);
        };
        const HEADER: usize = 16;
        if magic != wire::OPTION_MAGIC || length > OPTION_SKIP_MAX {
            return self.close(HEADER);
        }
        if length as usize > OPTION_LENGTH_MAX {
            if option == option::EXPORT_NAME {
                return self.close(HEADER);
            }
            self.state = HandshakeState::Skip { remaining: length, option };
            return (HEADER, Progress::Continue);
        }
        let Some(data) = reader.bytes(length as usize) else { return (0, Progress::More) };
        let used = HEADER + data.len();
        let progress = self.answer_option(option, data, out);
        if matches!(progress, Progress::Close | Progress::Transmission(_)) {
            self.state = HandshakeState::Closed;
        }
        (used, progress)
    }

    fn answer_option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        match option {
            option::STARTTLS if self.tls != Tls::NotOffered => return self.start_tls(data, out),
            // There is no answer to this one but the export.
            option::EXPORT_NAME if self.tls == Tls::Required => return Progress::Close,
            option if self.tls == Tls::Required && option != option::ABORT => {
                wire::encode_option_reply(
                    out,
                    option,
                    option_reply::ERROR_TLS_REQUIRED,
                    b"this server wants TLS first",
                );
                return Progress::Continue;
            }
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                wire::encode_option_reply(out, option, option_reply::ACK, &[]);
                return Progress::Close;
            }
            option::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let mut entry = (name.len() as u32).to_be_bytes().to_vec();
                entry.extend(name);
                wire::encode_option_reply(out, option, option_reply::SERVER, &entry);
                wire::encode_option_reply(out, option, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                wire::encode_option_reply(out, option, option_reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                wire::encode_option_reply(out, option, option_reply::ERROR_INVALID, b"this option has no data");
            }
            option::INFO | option::GO => return self.info(option, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, out),
            _ => wire::encode_option_reply(out, option, option_reply::ERROR_UNSUPPORTED, &[]),
        }
        Progress::Continue
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Progress {
        if self.tls == Tls::Established || !data.is_empty() {
            wire::encode_option_reply(
                out,
                option::STARTTLS,
                option_reply::ERROR_INVALID,
                b"TLS begins once, and the option is empty",
            );
            return Progress::Continue;
        }
        self.tls = Tls::Established;
        wire::encode_option_reply(out, option::STARTTLS, option_reply::ACK, &[]);
        Progress::Tls
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    fn session(&self) -> Session {
        Session { structured: self.structured, allocation_context: self.structured && self.allocation_context }
    }

    fn flags(&self) -> u16 {
        use transmission_flag as flag;
        let base = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_TRIM
            | flag::SEND_WRITE_ZEROES
            | flag::CAN_MULTI_CONN;
        if self.structured { base | flag::SEND_DF } else { base }
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Progress {
        if !self.is_ours(name) {
            return Progress::Close;
        }
        out.extend(self.export.size.to_be_bytes());
        out.extend(self.flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Progress::Transmission(self.session())
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let mut reader = Reader(data);
        let request = reader.counted().filter(|name| name.len() <= NAME_MAX).and_then(|name| {
            let count = reader.u16()?;
            let wanted = (0..count).map(|_| reader.u16()).collect::<Option<Vec<u16>>>()?;
            reader.0.is_empty().then_some((name, wanted))
        });
        let Some((name, wanted)) = request else {
            wire::encode_option_reply(out, option, option_reply::ERROR_INVALID, b"malformed option");
            return Progress::Continue;
        };
        if !self.is_ours(name) {
            wire::encode_option_reply(out, option, option_reply::ERROR_UNKNOWN, b"no such export");
            return Progress::Continue;
        }
        let mut export = info::EXPORT.to_be_bytes().to_vec();
        export.extend(self.export.size.to_be_bytes());
        export.extend(self.flags().to_be_bytes());
        wire::encode_option_reply(out, option, option_reply::INFO, &export);
        let mut blocks = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [self.export.logical_block, PREFERRED_BLOCK, surgetank_model::Request::LENGTH_MAX as u32] {
            blocks.extend(size.to_be_bytes());
        }
        wire::encode_option_reply(out, option, option_reply::INFO, &blocks);
        if wanted.contains(&info::NAME) {
            let mut name = info::NAME.to_be_bytes().to_vec();
            name.extend(self.export.name.as_bytes());
            wire::encode_option_reply(out, option, option_reply::INFO, &name);
        }
        wire::encode_option_reply(out, option, option_reply::ACK, &[]);
        if option == option::GO { Progress::Transmission(self.session()) } else { Progress::Continue }
    }

    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.allocation_context = false;
        }
        let mut reader = Reader(data);
        let request = reader.counted().filter(|name| name.len() <= NAME_MAX).and_then(|name| {
            let count = reader.u32()?;
            let mut matched = count == 0 && !set;
            for _ in 0..count {
                let query = reader.counted()?;
                matched |= query == wire::CONTEXT_ALLOCATION.as_bytes() || (!set && query == b"base:");
            }
            reader.0.is_empty().then_some((name, matched))
        });
        let Some((name, matched)) = request else {
            return wire::encode_option_reply(out, option, option_reply::ERROR_INVALID, b"malformed option");
        };
        if set && !self.structured {
            return wire::encode_option_reply(
                out,
                option,
                option_reply::ERROR_INVALID,
                b"ask for structured replies first",
            );
        }
        if !self.is_ours(name) {
            return wire::encode_option_reply(out, option, option_reply::ERROR_UNKNOWN, b"no such export");
        }
        if matched {
            let id = if set { wire::CONTEXT_ALLOCATION_ID } else { 0 };
            let mut entry = id.to_be_bytes().to_vec();
            entry.extend(wire::CONTEXT_ALLOCATION.as_bytes());
            wire::encode_option_reply(out, option, option_reply::META_CONTEXT, &entry);
            self.allocation_context = set;
        }
        wire::encode_option_reply(out, option, option_reply::ACK, &[]);
    }
}
