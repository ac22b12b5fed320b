//! Who carries out the kernel's requests.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::PoolFilesystem;
use crate::tree::Tree;

impl PoolFilesystem {
    /// What need not wait is answered by this thread, without waking another one.
    pub(super) fn answer<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<Tree>) -> F) {
        let _entered = self.runtime.enter();
        let mut work = Box::pin(work(Arc::clone(&self.tree)));
        let poll = || work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match std::panic::catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => drop(self.runtime.spawn(work)),
            // As in a task of the runtime: who asked gets EIO from what is dropped, and the file system goes on.
            Err(_) => tracing::error!("a request of the kernel has failed by a fault of this program"),
        }
    }

    /// The same for what may close files at the target, which may be stuck.
    pub(super) fn answer_apart<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<Tree>) -> F) {
        self.runtime.spawn(work(Arc::clone(&self.tree)));
    }
}
