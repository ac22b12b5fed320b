//! Who carries out the kernel's requests, and how they are answered.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};

use super::PoolFilesystem;
use crate::signals;
use crate::tree::Tree;

/// How long the kernel believes names and attributes.
pub(super) const LIVE: Duration = Duration::from_secs(1);
/// How often it is looked whether whoever waits for an answer has been killed.
const LOOK: Duration = Duration::from_secs(1);

/// A reply of the kernel's interface.
pub(super) trait Reply: Send + 'static {
    fn error(self, errno: Errno);
}

macro_rules! replies {
    ($($reply:ty),*) => {
        $(impl Reply for $reply {
            fn error(self, errno: Errno) {
                <$reply>::error(self, errno);
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// The answer to a request, which is given once: when it is carried out, or before that to a program that has been killed, so that it ends.
/// The request is carried out in any case.
pub(super) struct Answer<R>(Arc<Mutex<Option<R>>>);

impl<R: Reply> Answer<R> {
    /// `None`: it has been given.
    fn take(&self) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn error(&self, errno: Errno) {
        if let Some(reply) = self.take() {
            reply.error(errno);
        }
    }

    pub(super) fn with<T>(&self, result: Result<T, Errno>, give: impl FnOnce(R, T)) {
        match (self.take(), result) {
            (Some(reply), Ok(found)) => give(reply, found),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, _) => {}
        }
    }
}

impl Answer<ReplyEntry> {
    pub(super) fn node(&self, tree: &Tree, result: Result<FileAttr, Errno>) {
        self.with(result, |reply, attributes| {
            tree.numbers.given(&attributes);
            reply.entry(&LIVE, &attributes, Generation(0));
        });
    }
}

impl Answer<ReplyAttr> {
    pub(super) fn node(&self, tree: &Tree, result: Result<FileAttr, Errno>) {
        self.with(result, |reply, attributes| {
            tree.numbers.told(&attributes);
            reply.attr(&LIVE, &attributes);
        });
    }
}

impl Answer<ReplyEmpty> {
    pub(super) fn done(&self, result: Result<(), Errno>) {
        self.with(result, |reply, ()| reply.ok());
    }
}

impl PoolFilesystem {
    /// What need not wait is answered by this thread, without waking another one.
    pub(super) fn answer<R: Reply, F: Future<Output = ()> + Send + 'static>(
        &self,
        request: &Request,
        reply: R,
        work: impl FnOnce(Arc<Tree>, Answer<R>) -> F,
    ) {
        self.carry_out(Some(request.pid()), reply, work);
    }

    /// The same for what must not take place after its program has ended, such as a change of names: that waits, though it was killed.
    pub(super) fn answer_when_done<R: Reply, F: Future<Output = ()> + Send + 'static>(
        &self,
        reply: R,
        work: impl FnOnce(Arc<Tree>, Answer<R>) -> F,
    ) {
        self.carry_out(None, reply, work);
    }

    fn carry_out<R: Reply, F: Future<Output = ()> + Send + 'static>(
        &self,
        asks: Option<u32>,
        reply: R,
        work: impl FnOnce(Arc<Tree>, Answer<R>) -> F,
    ) {
        let _entered = self.runtime.enter();
        let answer = Answer(Arc::new(Mutex::new(Some(reply))));
        let mut work = Box::pin(work(Arc::clone(&self.tree), Answer(Arc::clone(&answer.0))));
        let poll = || work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match std::panic::catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => drop(self.runtime.spawn(async move {
                if let Some(thread) = asks {
                    tokio::select! {
                        biased;
                        () = &mut work => return,
                        () = killed(thread) => answer.error(Errno::EINTR),
                    }
                }
                work.await;
            })),
            // As in a task of the runtime: who asked gets EIO from what is dropped, and the file system goes on.
            Err(_) => tracing::error!("a request of the kernel has failed by a fault of this program"),
        }
    }

    /// The same for what nobody waits for, and what may close files at the target, which may be stuck.
    pub(super) fn answer_apart<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<Tree>) -> F) {
        self.runtime.spawn(work(Arc::clone(&self.tree)));
    }
}

async fn killed(thread: u32) {
    loop {
        tokio::time::sleep(LOOK).await;
        if signals::is_killed(thread) {
            return;
        }
    }
}
