//! Waits for the pool: without the interpreter's lock, and with an eye on signals.
//!
//! Ctrl-C ends the wait, not what was asked for: a request that was sent may take place, and a writer stays whole, since nothing is dropped
//! in the middle of a commit. Who waits for the same file next waits for that first.

use std::mem;
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::errors::Error;

/// How often a wait looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Threads that carry out what is asked of one session.
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts them.
    pub fn start() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("pool").enable_all().build();
        let failed = |error: std::io::Error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::System(errno, format!("the threads of the pool's client cannot be started: {error}"))
        };
        runtime.map(|runtime| Self(Some(runtime))).map_err(failed)
    }

    /// How they are asked.
    pub fn handle(&self) -> Result<&Handle, Error> {
        self.0.as_ref().map(Runtime::handle).ok_or(Error::Closed)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
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
    handle.spawn(async move {
        if let Err(Ok(left)) = tell.send(future.await) {
            unclaimed(left).await;
        }
    });
    loop {
        // The timer is the runtime's: it is made where it is waited for.
        match py.detach(|| handle.block_on(async { tokio::time::timeout(LOOK, &mut told).await })) {
            Ok(answer) => return Ok(answer.map_err(|_| Error::Lost)??),
            Err(_) => py.check_signals()?,
        }
    }
}
