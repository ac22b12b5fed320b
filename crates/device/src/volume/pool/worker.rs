//! The thread that has the pool's client.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use surgetank_model::Operation;
use surgetank_pool::client::{Error, PoolClient, Writer};
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::locks::{Lock, Range, Ranges};
use surgetank_pool_core::meta::operation::{Granted, Locking, Refusal};
use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout};

use super::contents::{CHUNK, Contents, Wanted};
use super::{Failure, GRAIN, NotOpened, PoolFile, Shared, VolumeIo};

/// Threads that send and receive chunks.
const THREADS: usize = 2;
/// Bytes that are kept until they are committed, at most; more are committed without being asked.
const UNCOMMITTED_MAX: usize = 64 << 20;
/// The pause before the pool is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long this volume's own former session may have the locks of the file, after it was lost.
const FORMER: Duration = Duration::from_secs(60);
/// How long what is done at the end may take.
const END: Duration = Duration::from_secs(5);
/// Zeroes are written in pieces of so many bytes.
static ZEROES: [u8; CHUNK] = [0; CHUNK];

/// Serves the I/Os of a volume until it is dropped. Whether it was opened is told once.
pub(super) fn run(
    file: PoolFile,
    shared: &Arc<Shared>,
    queue: UnboundedReceiver<VolumeIo>,
    tell: &SyncSender<Result<u64, NotOpened>>,
) {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).thread_name("pool-client").enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell.send(Err(NotOpened::Failed(format!("{} of the pool cannot be opened: {error}", file.path))));
            return;
        }
    };
    runtime.block_on(async {
        match Session::begin(&file).await {
            Ok(session) => {
                let _ = tell.send(Ok(session.inode.0));
                Worker::new(file, Arc::clone(shared), queue, session).serve().await;
            }
            Err(Lost::InUse) => drop(tell.send(Err(NotOpened::InUse(file.path)))),
            Err(Lost::Pool(error)) => drop(tell.send(Err(NotOpened::Failed(error.to_string())))),
        }
    });
    runtime.shutdown_background();
}

/// Why there is no session with the file open.
enum Lost {
    InUse,
    Pool(Error),
}

/// A session that has all locks of the file, and writes it.
struct Session {
    client: PoolClient,
    inode: Inode,
    writer: Writer,
}

impl Session {
    async fn begin(file: &PoolFile) -> Result<Self, Lost> {
        let client = PoolClient::begin(file.client.clone()).await.map_err(Lost::Pool)?;
        match Self::open(&client, file).await {
            Ok((inode, writer)) => Ok(Self { client, inode, writer }),
            Err(lost) => {
                // Nobody waits for the end of a session that has nothing.
                let _ = client.finish().await;
                Err(lost)
            }
        }
    }

    async fn open(client: &PoolClient, file: &PoolFile) -> Result<(Inode, Writer), Lost> {
        let inode = client.stat(&file.path).await.map_err(Lost::Pool)?.inode;
        let mut all = Ranges::default();
        all.set(Range { first: 0, last: u64::MAX }, Some(Lock::Alone));
        let locked = client.lock_node(inode, &Ranges::default(), &all, Locking::Ranges, &file.path).await;
        match locked.map_err(Lost::Pool)? {
            Granted::Ranges | Granted::Whole => {}
            Granted::Locked(..) | Granted::Recalled => return Err(Lost::InUse),
        }
        let writer = client.write_node(inode, &file.path).await.map_err(Lost::Pool)?;
        Ok((inode, writer))
    }
}

struct Worker {
    file: PoolFile,
    shared: Arc<Shared>,
    queue: UnboundedReceiver<VolumeIo>,
    session: Option<Session>,
    contents: Contents,
    /// Bytes of the file as committed.
    committed: u64,
    /// The newest commit of this volume.
    version: Version,
    /// A commit is under way, or its answer was lost.
    is_in_doubt: bool,
    /// Somebody else has the file by now, or it is no more.
    is_gone: bool,
}

impl Worker {
    fn new(file: PoolFile, shared: Arc<Shared>, queue: UnboundedReceiver<VolumeIo>, session: Session) -> Self {
        let (committed, version) = (session.writer.size(), session.writer.version());
        let (contents, is_in_doubt, is_gone) = (Contents::default(), false, false);
        Self { file, shared, queue, session: Some(session), contents, committed, version, is_in_doubt, is_gone }
    }

    async fn serve(mut self) {
        while let Some(io) = self.queue.recv().await {
            let result = self.perform(&io).await;
            self.shared.end(io.token, result);
        }
        if timeout(END, self.commit()).await.is_err() {
            tracing::warn!("{} of the pool was closed before everything was committed", self.file.path);
        }
        // The session lasts for another moment, so that a volume that is deleted now is not brought to the target first.
        if let Some(session) = self.session {
            let _ = timeout(END, session.client.leave_locks(session.inode, &self.file.path)).await;
        }
    }

    async fn perform(&mut self, io: &VolumeIo) -> Result<(), Failure> {
        let fua = match io.operation {
            Operation::Read => return self.read(io).await,
            Operation::Flush => return self.commit().await,
            Operation::Write { fua } => {
                self.write(io).await?;
                fua
            }
            Operation::WriteZeroes { fua } => {
                self.zero(io).await?;
                fua
            }
            Operation::Discard => {
                self.zero(io).await?;
                false
            }
        };
        if fua { self.commit().await } else { Ok(()) }
    }

    async fn read(&mut self, io: &VolumeIo) -> Result<(), Failure> {
        if self.is_gone {
            return Err(Failure::Gone);
        }
        let mut at = io.offset;
        for slice in &io.memory {
            let mut done = 0;
            while done < slice.len() {
                let (chunk, within) = place(at);
                let length = (CHUNK - within).min(slice.len() - done);
                let to = slice.slice(done, length);
                loop {
                    let source = match self.contents.read(chunk, within, length) {
                        Ok(bytes) => bytes,
                        // Nobody has written there.
                        Err(_) if chunk * GRAIN >= self.committed => &ZEROES[..length],
                        Err(wanted) => {
                            self.fetch(wanted).await?;
                            continue;
                        }
                    };
                    // SAFETY: the memory of a read in flight is the volume's to write to, and it is no chunk's.
                    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to.as_ptr(), length) };
                    break;
                }
                (done, at) = (done + length, at + length as u64);
            }
        }
        Ok(())
    }

    async fn write(&mut self, io: &VolumeIo) -> Result<(), Failure> {
        let mut slices = io.memory.iter().cloned();
        let mut rest = slices.next();
        let (mut at, end) = (io.offset, io.offset + io.length);
        while at < end {
            let (chunk, within) = place(at);
            let length = u64::min(GRAIN - within as u64, end - at) as usize;
            let (mut parts, mut left) = (Vec::new(), length);
            while left > 0 {
                let Some(slice) = rest.take() else { return Err(Failure::Io) };
                let taken = left.min(slice.len());
                parts.push(slice.slice(0, taken));
                rest = if taken < slice.len() { Some(slice.slice(taken, slice.len() - taken)) } else { slices.next() };
                left -= taken;
            }
            // SAFETY: nobody changes the memory of a write in flight.
            let parts: Vec<&[u8]> = parts.iter().map(|part| unsafe { part.bytes() }).collect();
            self.put(chunk, within, &parts).await?;
            at += length as u64;
        }
        Ok(())
    }

    async fn zero(&mut self, io: &VolumeIo) -> Result<(), Failure> {
        let (mut at, end) = (io.offset, io.offset + io.length);
        while at < end {
            let (chunk, within) = place(at);
            let length = u64::min(GRAIN - within as u64, end - at) as usize;
            if chunk * GRAIN < self.committed || self.contents.has(chunk) {
                self.put(chunk, within, &[&ZEROES[..length]]).await?;
            }
            at += length as u64;
        }
        Ok(())
    }

    /// Writes within a chunk. One that is written to its end is put to its benefactors at once.
    async fn put(&mut self, chunk: u64, within: usize, parts: &[&[u8]]) -> Result<(), Failure> {
        if self.is_gone {
            return Err(Failure::Gone);
        }
        if self.contents.uncommitted() >= UNCOMMITTED_MAX && !self.contents.has(chunk) {
            self.commit().await?;
        }
        let fresh = chunk * GRAIN >= self.committed;
        while let Err(wanted) = self.contents.write(chunk, within, fresh, parts) {
            self.fetch(wanted).await?;
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if within + length < CHUNK {
            return Ok(());
        }
        self.ready().await?;
        match self.stage(chunk).await {
            Ok(()) => Ok(()),
            // What is kept here is put again.
            Err(error) => self.failed(error).await,
        }
    }

    /// Reads a chunk as the pool has it.
    async fn fetch(&mut self, Wanted(chunk): Wanted) -> Result<(), Failure> {
        loop {
            let session = self.ready().await?;
            match session.writer.read_at(chunk * GRAIN, CHUNK).await {
                Ok(bytes) if bytes.len() == CHUNK => {
                    self.contents.learn(chunk, bytes);
                    return Ok(());
                }
                Ok(_) => {
                    tracing::error!("{} of the pool: the chunk {chunk} is shorter than it was written", self.file.path);
                    return Err(Failure::Io);
                }
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Everything that was written is committed.
    async fn commit(&mut self) -> Result<(), Failure> {
        loop {
            if self.contents.drafts().is_empty() {
                return if self.is_gone { Err(Failure::Gone) } else { Ok(()) };
            }
            while let Some(wanted) = self.contents.incomplete() {
                self.fetch(wanted).await?;
            }
            self.ready().await?;
            match self.try_commit().await {
                Ok(()) => return Ok(()),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    async fn try_commit(&mut self) -> Result<(), Error> {
        for chunk in self.contents.drafts() {
            self.stage(chunk).await?;
        }
        let Some(session) = &mut self.session else { return Ok(()) };
        self.is_in_doubt = true;
        session.writer.sync().await?;
        (self.committed, self.version) = (session.writer.size(), session.writer.version());
        self.is_in_doubt = false;
        self.contents.committed();
        Ok(())
    }

    /// The writer gets a chunk, if it is whole and the writer does not have it.
    async fn stage(&mut self, chunk: u64) -> Result<(), Error> {
        let (Some(bytes), Some(session)) = (self.contents.stage(chunk), &mut self.session) else { return Ok(()) };
        session.writer.write_bytes_at(chunk * GRAIN, &bytes).await?;
        self.contents.staged(chunk);
        Ok(())
    }

    /// Something was not done: what is kept is written again, to a new session unless the present one lasts, or it fails.
    async fn failed(&mut self, error: Error) -> Result<(), Failure> {
        let path = self.file.path.clone();
        let failure = match &error {
            Error::Unreadable { .. } => {
                tracing::error!("{error}");
                return Err(self.reopened(Failure::Io).await);
            }
            // There is room for it once its user has less.
            Error::NoRoom { .. } | Error::Refused(_, Refusal::OverQuota(_)) => {
                tracing::warn!("{error}");
                return Err(self.reopened(Failure::NoSpace).await);
            }
            Error::SessionEnded(_) | Error::Managers(_) | Error::QuotaUnknown(..) | Error::Timeout(..) => {
                tracing::warn!("{path} of the pool is opened again: {error}");
                None
            }
            Error::Refused(_, Refusal::NotTheWriter | Refusal::Benefactors(_) | Refusal::InUse) => None,
            _ => Some(Failure::Gone),
        };
        self.forget_session();
        if failure.is_some() {
            tracing::error!("{path} of the pool can be used no more: {error}");
            self.is_gone = true;
        }
        failure.map_or(Ok(()), Err)
    }

    /// A writer that has failed does nothing more: the file is opened anew, in the same session.
    async fn reopened(&mut self, failure: Failure) -> Failure {
        self.contents.writer_ended();
        if let Some(Session { client, inode, writer }) = self.session.take() {
            let abandoned = writer.abandon().await.is_ok();
            if let (true, Ok(writer)) = (abandoned, client.write_node(inode, &self.file.path).await) {
                self.session = Some(Session { client, inode, writer });
            }
        }
        failure
    }

    fn forget_session(&mut self) {
        self.session = None;
        self.contents.writer_ended();
    }

    /// The session, which is begun anew if there is none.
    async fn ready(&mut self) -> Result<&mut Session, Failure> {
        let mut in_use_since: Option<Instant> = None;
        while self.session.is_none() {
            if self.is_gone || self.queue.is_closed() {
                return Err(Failure::Gone);
            }
            match Session::begin(&self.file).await {
                Ok(session) => {
                    let version = session.writer.version();
                    if version != self.version && !(self.is_in_doubt && version == self.version.next()) {
                        tracing::error!("{} of the pool was written by another session meanwhile", self.file.path);
                        self.is_gone = true;
                        continue;
                    }
                    (self.committed, self.version) = (session.writer.size(), version);
                    self.is_in_doubt = false;
                    self.session = Some(session);
                }
                Err(Lost::InUse) if in_use_since.get_or_insert_with(Instant::now).elapsed() < FORMER => {
                    sleep(AGAIN).await;
                }
                Err(Lost::InUse) => self.is_gone = true,
                Err(Lost::Pool(Error::SessionEnded(_) | Error::Managers(_) | Error::Timeout(..))) => {
                    sleep(AGAIN).await;
                }
                Err(Lost::Pool(error)) => {
                    tracing::error!("{} of the pool can be used no more: {error}", self.file.path);
                    self.is_gone = true;
                }
            }
        }
        self.session.as_mut().ok_or(Failure::Gone)
    }
}

/// The chunk that has a byte, and where.
fn place(offset: u64) -> (u64, usize) {
    (offset / GRAIN, (offset % GRAIN) as usize)
}
