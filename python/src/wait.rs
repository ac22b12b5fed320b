//! Waits for the pool: without the interpreter's lock, and with an eye on signals.
//!
//! Ctrl-C ends the wait, not what was asked for: a request that was sent may take place, and a writer stays whole, since nothing is dropped
//! in the middle of a commit. Who waits for the same file next waits for that first.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch};

use crate::errors::Error;

/// How often a wait looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Threads that carry out what is asked of one session.
pub struct Threads {
    runtime: Option<Runtime>,
    /// Changes of files that are under way, also those for which nobody waits any more.
    under_way: watch::Sender<usize>,
}

/// A change of a file that is under way: threads stay for it, whoever drops the file.
pub struct UnderWay(Arc<Threads>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

impl Threads {
    /// Starts them.
    pub fn start() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("pool").enable_all().build();
        let failed = |error: std::io::Error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::System(errno, format!("the threads of the pool's client cannot be started: {error}"))
        };
        let runtime = Some(runtime.map_err(failed)?);
        Ok(Self { runtime, under_way: watch::Sender::new(0) })
    }

    /// How they are asked.
    pub fn handle(&self) -> Result<&Handle, Error> {
        self.runtime.as_ref().map(Runtime::handle).ok_or(Error::Closed)
    }

    /// A change of a file begins. It ends when this is dropped.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.send_modify(|count| *count += 1);
        UnderWay(Arc::clone(self))
    }

    /// Waits until no change is under way, for so long.
    pub fn quiet(&self, longest: Duration) -> impl Future<Output = ()> + Send + 'static {
        let mut under_way = self.under_way.subscribe();
        async move {
            // What takes longer is cut off by the end of the session, as it would be without this wait.
            let _ = tokio::time::timeout(longest, under_way.wait_for(|count| *count == 0)).await;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Who drops it has the interpreter's lock.
            runtime.shutdown_background();
        }
    }
}

/// Something whose threads and connections are those of the process that made it. A fork has neither: it does not touch it, not even to
/// free it.
pub struct OfProcess<T> {
    process: u32,
    inner: Option<T>,
}

impl<T> OfProcess<T> {
    pub fn new(inner: T) -> Self {
        Self { process: std::process::id(), inner: Some(inner) }
    }

    pub fn get(&self) -> Result<&T, Error> {
        self.inner.as_ref().filter(|_| self.is_here()).ok_or(Error::Forked)
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            mem::forget(self.inner.take());
        }
    }
}

/// Has something done, and waits for it.
pub fn done<T: Send + 'static>(
    py: Python<'_>,
    handle: &Handle,
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> PyResult<T> {
    done_or(py, handle, future, async |_| ())
}

/// The same; `unclaimed`: what becomes of it if it is done when nobody waits any more.
pub fn done_or<T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
    py: Python<'_>,
    handle: &Handle,
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
    unclaimed: impl FnOnce(T) -> F + Send + 'static,
) -> PyResult<T> {
    let (tell, mut told) = oneshot::channel();
    // Whoever notices that nobody claims it.
    let unclaimed = Arc::new(Mutex::new(Some(unclaimed)));
    let take = |unclaimed: &Mutex<Option<_>>| unclaimed.lock().unwrap_or_else(PoisonError::into_inner).take();
    let of_task = Arc::clone(&unclaimed);
    handle.spawn(async move {
        if let Err(Ok(left)) = tell.send(future.await)
            && let Some(unclaimed) = take(&of_task)
        {
            unclaimed(left).await;
        }
    });
    loop {
        // The timer is the runtime's: it is made where it is waited for.
        match py.detach(|| handle.block_on(async { tokio::time::timeout(LOOK, &mut told).await })) {
            Ok(answer) => return Ok(answer.map_err(|_| Error::Lost)??),
            Err(_) => {
                if let Err(interrupted) = py.check_signals() {
                    // The answer may have come since.
                    told.close();
                    if let (Ok(Ok(left)), Some(unclaimed)) = (told.try_recv(), take(&unclaimed)) {
                        handle.spawn(unclaimed(left));
                    }
                    return Err(interrupted);
                }
            }
        }
    }
}
