//! Files that are read and written.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use surgetank_pool::chunks::CHUNK;
use surgetank_pool::client::{self, PoolClient};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::errors::Error;
use crate::wait::{OfProcess, Threads, UnderWay, done};

/// Chunks that one read fetches at a time.
const AHEAD: usize = 8;

/// Where a file's bytes are read.
#[derive(Clone)]
pub enum Source {
    /// In the pool, or at the target as far as they have left it.
    Pool(Box<client::Reader>),
    /// At the target, which alone has the file.
    Target(Arc<File>, u64),
}

impl Source {
    fn size(&self) -> u64 {
        match self {
            Self::Pool(reader) => reader.size(),
            Self::Target(_, size) => *size,
        }
    }

    /// Bytes within a chunk.
    async fn part(mut self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        match &mut self {
            Self::Pool(reader) => Ok(reader.read_at(offset, length).await?),
            Self::Target(file, _) => {
                let file = Arc::clone(file);
                let read = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; length];
                    file.read_exact_at(&mut bytes, offset).map(|()| bytes)
                });
                let failed = |error: std::io::Error| {
                    let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
                    Error::System(errno, format!("the file at the target cannot be read: {error}"))
                };
                read.await.map_err(|_| Error::Lost)?.map_err(failed)
            }
        }
    }

    /// Bytes of several chunks, fewer only at the end of the file.
    async fn parts(self, offset: u64, length: usize) -> Result<Vec<Vec<u8>>, Error> {
        let end = self.size().min(offset.saturating_add(length as u64));
        let (mut at, mut under_way, mut read) = (offset, VecDeque::new(), Vec::new());
        while at < end || !under_way.is_empty() {
            if at < end && under_way.len() < AHEAD {
                let next = end.min(at - at % CHUNK + CHUNK);
                let length = usize::try_from(next - at).unwrap_or(usize::MAX);
                under_way.push_back(tokio::spawn(self.clone().part(at, length)));
                at = next;
            } else if let Some(part) = under_way.pop_front() {
                read.push(part.await.map_err(|_| Error::Lost)??);
            }
        }
        Ok(read)
    }
}

/// What an open file needs for as long as it is open, whatever becomes of the client that has opened it.
pub struct Opened {
    pub threads: Arc<Threads>,
    /// It renews the session. It goes after the threads' last task for the file.
    pub session: Arc<PoolClient>,
}

/// A file that is read, as it was committed when it was opened.
#[pyclass(frozen, module = "surgetank._native")]
pub struct Reader(OfProcess<(Opened, Source)>);

impl Reader {
    pub fn new(opened: Opened, source: Source) -> Self {
        Self(OfProcess::new((opened, source)))
    }
}

#[pymethods]
impl Reader {
    /// Bytes of the file.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.0.get()?.1.size())
    }

    /// Reads bytes, fewer only at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (opened, source) = self.0.get()?;
        let parts = done(py, opened.threads.handle()?, source.clone().parts(offset, length))?;
        let total = parts.iter().map(Vec::len).sum();
        PyBytes::new_with(py, total, |whole| {
            let mut rest = whole;
            for part in &parts {
                let (here, behind) = rest.split_at_mut(part.len());
                here.copy_from_slice(part);
                rest = behind;
            }
            Ok(())
        })
    }
}

/// What a writer shares with what it has asked for.
struct Written {
    /// `None`: it is closed.
    writer: Mutex<Option<client::Writer>>,
    inode: u64,
    /// Bytes of the file, with what is not committed.
    size: AtomicU64,
    /// Something is not committed.
    is_dirty: AtomicBool,
}

impl Written {
    /// What it is after a call, however that ended.
    fn look(&self, writer: &client::Writer) {
        self.size.store(writer.size(), Ordering::Relaxed);
        self.is_dirty.store(!writer.is_committed(), Ordering::Relaxed);
    }
}

/// By what a file is changed, what is changed, and what stays until that is done.
type Change<'a> = (&'a Handle, Arc<Written>, (Arc<PoolClient>, UnderWay));

/// A file that is written.
#[pyclass(frozen, module = "surgetank._native")]
pub struct Writer(OfProcess<(Opened, Arc<Written>)>);

impl Writer {
    pub fn new(opened: Opened, writer: client::Writer) -> Self {
        let (size, is_dirty) = (AtomicU64::new(writer.size()), AtomicBool::new(!writer.is_committed()));
        let inode = writer.inode().0;
        let written = Written { writer: Mutex::new(Some(writer)), inode, size, is_dirty };
        Self(OfProcess::new((opened, Arc::new(written))))
    }

    /// What a change of the file needs: the session outlasts it, and does not end before.
    fn parts(&self) -> Result<Change<'_>, Error> {
        let (opened, written) = self.0.get()?;
        let under_way = (Arc::clone(&opened.session), opened.threads.begin());
        Ok((opened.threads.handle()?, Arc::clone(written), under_way))
    }
}

#[pymethods]
impl Writer {
    /// Bytes of the file, with what is not committed.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.0.get()?.1.size.load(Ordering::Relaxed))
    }

    /// Its number in the pool.
    #[getter]
    fn inode(&self) -> PyResult<u64> {
        Ok(self.0.get()?.1.inode)
    }

    /// Whether something is not committed.
    #[getter]
    fn is_dirty(&self) -> PyResult<bool> {
        Ok(self.0.get()?.1.is_dirty.load(Ordering::Relaxed))
    }

    /// Writes bytes anywhere; a gap behind the end is zeros.
    fn write_at(&self, py: Python<'_>, offset: u64, data: PyBackedBytes) -> PyResult<()> {
        let (handle, written, under_way) = self.parts()?;
        // They stay the interpreter's, and are not copied.
        let data = Bytes::from_owner(data);
        written.is_dirty.store(true, Ordering::Relaxed);
        done(py, handle, async move {
            let _until_done = under_way;
            let mut guard = written.writer.lock().await;
            let writer = guard.as_mut().ok_or(Error::Closed)?;
            let done = writer.write_bytes_at(offset, &data).await;
            written.look(writer);
            Ok(done?)
        })
    }

    /// Commits: from now on every session reads it, and as many benefactors may die as the mount's durability says.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, written, under_way) = self.parts()?;
        done(py, handle, async move {
            let _until_done = under_way;
            let mut guard = written.writer.lock().await;
            let writer = guard.as_mut().ok_or(Error::Closed)?;
            let done = writer.sync().await;
            written.look(writer);
            Ok(done?)
        })
    }

    /// Reads bytes of the file as it is here; fewer only at its end, and at the end of a chunk.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (handle, written, under_way) = self.parts()?;
        let read = done(py, handle, async move {
            let _until_done = under_way;
            let mut guard = written.writer.lock().await;
            let writer = guard.as_mut().ok_or(Error::Closed)?;
            Ok(writer.read_at(offset, length).await?)
        })?;
        Ok(PyBytes::new(py, &read))
    }

    /// Cuts the file off, or extends it with zeros.
    fn set_size(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let (handle, written, under_way) = self.parts()?;
        done(py, handle, async move {
            let _until_done = under_way;
            let mut guard = written.writer.lock().await;
            let writer = guard.as_mut().ok_or(Error::Closed)?;
            let done = writer.set_size(size).await;
            written.look(writer);
            Ok(done?)
        })
    }

    /// Commits and closes: the target is to have it. If that fails, what was not committed is not in the file.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, written, under_way) = self.parts()?;
        done(py, handle, async move {
            let _until_done = under_way;
            let writer = written.writer.lock().await.take().ok_or(Error::Closed)?;
            let done = writer.close().await;
            written.is_dirty.store(false, Ordering::Relaxed);
            Ok(done?)
        })
    }

    /// Closes the file without what is not committed.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let (handle, written, under_way) = self.parts()?;
        done(py, handle, async move {
            let _until_done = under_way;
            let writer = written.writer.lock().await.take().ok_or(Error::Closed)?;
            written.is_dirty.store(false, Ordering::Relaxed);
            Ok(writer.abandon().await?)
        })
    }
}
