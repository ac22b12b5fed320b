//! A volume whose bytes lie in the staging pool: one file of a mount, of which this process has all locks while it is open.
//!
//! A thread with the pool's client does the I/Os one after the other; the volume's owner passes them to it and is woken. A write has
//! ended when its bytes are here, in chunks that are put to their benefactors meanwhile; a flush, and a write with `fua`, when the pool
//! has committed all that was written before. What is not committed is kept here, so that it is written again when a benefactor, a
//! manager or the session ends in the middle.
//!
//! - [`contents`]: the chunks that are kept, and what a file is to its reader;
//! - [`worker`]: the thread.

mod contents;
mod worker;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_pool::client;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{Completion, Failure, Volume, VolumeIo};
use crate::event::EventFd;
use crate::waking::Raised;

/// Bytes of a logical block.
const BLOCK: u32 = 512;
/// How long who drops a volume waits for what is done last.
const END: Duration = Duration::from_secs(3);
/// Volumes have a multiple of so many bytes: a chunk of the pool.
pub const GRAIN: u64 = surgetank_pool::chunks::CHUNK;

/// Which file of a pool it is.
#[derive(Clone, Debug)]
pub struct PoolFile {
    /// The pool and the mount. The time that this allows is for one attempt: a volume goes on trying.
    pub client: client::Config,
    /// The file's path in the mount.
    pub path: String,
    /// The volume's size in bytes, a multiple of [`GRAIN`]. What lies behind the file's end was never written, and reads as zeroes.
    pub size: u64,
}

/// Why a volume of a pool cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// Somebody has it open, or a process that ended had: then its session ends soon.
    #[error("the file {0} of the pool is in use by another session")]
    InUse(String),
    /// One sentence.
    #[error("{0}")]
    Failed(String),
}

/// What both threads have.
struct Shared {
    event: EventFd,
    raised: Raised,
    ended: Mutex<Vec<Completion>>,
}

impl Shared {
    fn end(&self, token: u64, result: Result<(), Failure>) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(Completion { token, result });
        self.raised.raise(&self.event);
    }
}

/// A volume in the pool. When it is dropped, what was written is committed if the pool takes it soon, and the locks are returned.
pub struct PoolVolume {
    shared: Arc<Shared>,
    /// The thread ends without it.
    ios: Option<UnboundedSender<VolumeIo>>,
    /// Disconnected once the thread has ended.
    running: Receiver<Result<u64, NotOpened>>,
    size: u64,
    inode: u64,
    /// Refused at once.
    refused: Vec<Completion>,
}

impl PoolVolume {
    /// Opens a volume whose file is there.
    ///
    /// # Errors
    /// [`NotOpened`].
    pub fn open(file: PoolFile) -> Result<Self, NotOpened> {
        let failed =
            |error: io::Error| NotOpened::Failed(format!("{} of the pool cannot be opened: {error}", file.path));
        if file.size == 0 || !file.size.is_multiple_of(GRAIN) {
            let sentence = format!("a volume of {} bytes in the pool: its size is a multiple of {GRAIN}", file.size);
            return Err(NotOpened::Failed(sentence));
        }
        let event = EventFd::new().map_err(failed)?;
        let shared = Arc::new(Shared { event, raised: Raised::new(), ended: Mutex::new(Vec::new()) });
        let (ios, queue) = unbounded_channel();
        let (tell, opened) = sync_channel(1);
        let (size, of_worker, asked) = (file.size, Arc::clone(&shared), file.clone());
        let run = move || worker::run(asked, &of_worker, queue, &tell);
        Builder::new().name("pool-volume".to_owned()).spawn(run).map_err(failed)?;
        let gone = || Err(NotOpened::Failed(format!("{} of the pool: its thread has ended", file.path)));
        let inode = opened.recv().unwrap_or_else(|_| gone())?;
        Ok(Self { shared, ios: Some(ios), running: opened, size, inode, refused: Vec::new() })
    }

    /// The file's number in the pool.
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.inode
    }
}

impl Drop for PoolVolume {
    fn drop(&mut self) {
        self.ios = None;
        // The process may end next: what was written and not flushed would end with it.
        let _ = self.running.recv_timeout(END);
    }
}

impl Volume for PoolVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u32 {
        BLOCK
    }

    fn submit(&mut self, _now: Instant, io: VolumeIo) {
        let token = io.token;
        let checked = io.check(self.size, BLOCK);
        let sent = checked.and_then(|()| match &self.ios {
            Some(ios) => ios.send(io).map_err(|_| Failure::Gone),
            None => Err(Failure::Gone),
        });
        if let Err(failure) = sent {
            self.refused.push(Completion { token, result: Err(failure) });
            self.shared.raised.raise(&self.shared.event);
        }
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) {
        self.shared.raised.clear(&self.shared.event);
        completions.append(&mut self.refused);
        completions.append(&mut self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.event.as_fd())
    }
}
