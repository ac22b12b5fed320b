//! What a front asks of an elastic device.

/// Names a request from submission to reply; unique among the requests in flight on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a client of one device among those that it has: a connection, or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What a request to a device does, or an I/O on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer.
    Read,
    /// Write the buffer.
    Write {
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Make everything completed before this durable. Has no range.
    Flush,
    /// The range's content is no longer needed; reads afterwards return zeroes.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
}

/// When a read miss installs its data in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFill {
    /// Never.
    #[default]
    Never,
    /// When the same range missed before, lately.
    SecondHit,
    /// Always (the papers).
    Always,
}

/// A request to an elastic device. Offsets and lengths are multiples of the logical block size (512 bytes at least).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name; also names its buffer, which the driver keeps until the reply.
    pub id: RequestId,
    /// What it does.
    pub operation: Operation,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes. For `Read` and `Write` at most [`Request::LENGTH_MAX`]; zero for `Flush`.
    pub length: u64,
}

impl Request {
    /// The longest read or write that a front may submit, in bytes; fronts split what is longer.
    pub const LENGTH_MAX: u64 = 32 << 20;
}

/// A range of a request's buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRange {
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}
