//! The numbers of the NBD protocol and how its messages lie on the wire (all integers big-endian).
//!
//! Source: NBD (`docs/REFERENCES.md`).

/// Opens the handshake: "NBDMAGIC".
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Opens every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Opens a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, of server and client.
pub mod handshake_flag {
    /// Options get replies.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeroes after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub mod option {
    /// Choose an export, no reply possible.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// List exports.
    pub const LIST: u32 = 3;
    /// Go on under TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Ask for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod option_reply {
    /// The bit of errors.
    pub const ERROR: u32 = 1 << 31;
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERROR_UNSUPPORTED: u32 = ERROR | 1;
    /// The option's data make no sense.
    pub const ERROR_INVALID: u32 = ERROR | 3;
    /// TLS must be begun first.
    pub const ERROR_TLS_REQUIRED: u32 = ERROR | 5;
    /// No such export.
    pub const ERROR_UNKNOWN: u32 = ERROR | 6;
    /// The option's data are too long.
    pub const ERROR_TOO_BIG: u32 = ERROR | 9;
}

/// Pieces of information on an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod transmission_flag {
    /// The other flags mean something.
    pub const HAS_FLAGS: u16 = 1;
    /// FLUSH is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// DF is known.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; its data follow.
    pub const WRITE: u16 = 1;
    /// Leave.
    pub const DISCONNECT: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describe a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// Zeroes must be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk of data.
    pub const DONT_FRAGMENT: u16 = 1 << 2;
    /// One extent.
    pub const ONE_EXTENT: u16 = 1 << 3;
    /// Fail rather than write zeroes slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies.
pub mod chunk {
    /// The last chunk of its reply.
    pub const DONE: u16 = 1;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error for the whole request.
    pub const ERROR: u16 = (1 << 15) | 1;
}

/// Errors on the wire.
pub mod error {
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// Input/output error.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// No space, or beyond the end.
    pub const ENOSPC: u32 = 28;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// The server is going down.
    pub const ESHUTDOWN: u32 = 108;

    /// The wire error for an errno of this machine.
    #[must_use]
    pub fn from_errno(errno: i32) -> u32 {
        match errno {
            libc::EPERM | libc::EROFS | libc::EACCES => EPERM,
            libc::ENOMEM => ENOMEM,
            libc::EINVAL => EINVAL,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ENOSPC,
            libc::EOPNOTSUPP => ENOTSUP,
            libc::ESHUTDOWN => ESHUTDOWN,
            _ => EIO,
        }
    }
}

/// The metadata context that tells data from holes.
pub const CONTEXT_ALLOCATION: &str = "base:allocation";
/// The number we give to `base:allocation`.
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

/// Bytes of a request's header.
pub const REQUEST_LENGTH: usize = 28;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// `command_flag`s.
    pub flags: u16,
    /// A `command`, or anything.
    pub command: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// Reads big-endian integers off the front of a slice.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next so many bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and that many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).ok()?)
    }
}

impl RequestHeader {
    /// Parses a header; `None` if the magic is wrong: then nothing that follows can be trusted.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_LENGTH]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// The header as it lies on the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST_LENGTH);
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend(self.flags.to_be_bytes());
        out.extend(self.command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out
    }
}

/// Appends an option, as a client sends it.
pub fn encode_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// Appends a reply to an option; `kind` is an `option_reply`.
pub fn encode_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// Appends a simple reply's header; the data of a successful read follow it.
pub fn simple_reply(out: &mut Vec<u8>, error: u32, cookie: u64) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

fn chunk_header(out: &mut Vec<u8>, kind: u16, cookie: u64, length: u32) {
    out.extend(CHUNK_MAGIC.to_be_bytes());
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(length.to_be_bytes());
}

/// Appends the head of a structured read reply in one chunk; `length` bytes of data follow it.
pub fn data_chunk(out: &mut Vec<u8>, cookie: u64, offset: u64, length: u32) {
    // Reads are limited to 32 MiB, far from overflow.
    chunk_header(out, chunk::OFFSET_DATA, cookie, length.saturating_add(8));
    out.extend(offset.to_be_bytes());
}

/// Appends a structured error.
pub fn error_chunk(out: &mut Vec<u8>, cookie: u64, error: u32) {
    chunk_header(out, chunk::ERROR, cookie, 6);
    out.extend(error.to_be_bytes());
    out.extend(0u16.to_be_bytes());
}

/// Appends the extents of `base:allocation`, as (bytes, flags).
pub fn extents_chunk(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, u32)]) {
    chunk_header(out, chunk::BLOCK_STATUS, cookie, 4 + 8 * extents.len() as u32);
    out.extend(CONTEXT_ALLOCATION_ID.to_be_bytes());
    for (length, flags) in extents {
        out.extend(length.to_be_bytes());
        out.extend(flags.to_be_bytes());
    }
}
