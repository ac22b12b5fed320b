//! A benefactor's SSD: a log of chunks and tables in segment files, which the benefactor's next life reads (decision 0041).

mod directory;
mod log;
mod record;
mod tier;

use std::io;
use std::sync::Arc;

pub use self::directory::{BadDirectory, Directory};
pub use self::log::{Found, Log, NotAppended, NotOurs};
pub use self::record::Owner;
pub(super) use self::tier::{Tier, run};

/// Where segments are. Calls come from several threads.
pub trait Disk: Send + Sync + 'static {
    /// How many there are.
    fn segments(&self) -> u32;

    /// Bytes of each.
    fn size(&self) -> u64;

    /// What to call it in messages.
    fn name(&self) -> String;

    /// Reads bytes of a segment.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Drops what the system has in memory of flushed bytes of a segment: the next read is of the medium. Whether it does is its own matter.
    fn uncache(&self, segment: u32, offset: u64, length: u64);

    /// Writes bytes of a segment: they survive a power cut after the next [`Disk::sync`].
    ///
    /// # Errors
    /// The system's: which of the bytes are written is unknown then.
    fn write(&self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns once all that was written to a segment survives a power cut.
    ///
    /// # Errors
    /// The system's: what was written since the last call may never survive one.
    fn sync(&self, segment: u32) -> io::Result<()>;
}

/// What a benefactor lends of SSD.
#[derive(Clone)]
pub struct Ssd(pub Arc<dyn Disk>);

impl std::fmt::Debug for Ssd {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Ssd({})", self.0.name())
    }
}
