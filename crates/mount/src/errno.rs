//! What programs are told.

use fuser::Errno;
use surgetank_pool::client::Error;
use surgetank_pool_core::meta::operation::Refusal;

/// The error of a system call for one of the pool.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::Refused(_, refusal) => refused(refusal),
        Error::Path(..) => Errno::EINVAL,
        Error::NoRoom { .. } | Error::StoreFull(..) => Errno::ENOSPC,
        Error::NotAllowed(_) => Errno::EACCES,
        Error::Address(_)
        | Error::Managers(_)
        | Error::Declined(_)
        | Error::SessionEnded(_)
        | Error::Unreadable { .. }
        | Error::NotDrained(..)
        | Error::Timeout(..) => Errno::EIO,
    }
}

fn refused(refusal: &Refusal) -> Errno {
    match refusal {
        Refusal::NotFound => Errno::ENOENT,
        Refusal::Exists => Errno::EEXIST,
        Refusal::NotADirectory => Errno::ENOTDIR,
        Refusal::IsADirectory => Errno::EISDIR,
        Refusal::NotEmpty => Errno::ENOTEMPTY,
        Refusal::IntoItself => Errno::EINVAL,
        Refusal::InUse => Errno::EBUSY,
        Refusal::TooManyLinks => Errno::EMLINK,
        Refusal::NotAllowed => Errno::EPERM,
        Refusal::NotTheWriter
        | Refusal::Named
        | Refusal::Version(_)
        | Refusal::Moved
        | Refusal::Benefactors(_)
        | Refusal::NotThePublisher
        | Refusal::NotTheWarden
        | Refusal::NotDrained => Errno::EIO,
    }
}

/// The same for a node that the kernel knows by its number: what is not there any more is stale.
pub(crate) fn stale(error: &Error) -> Errno {
    match error {
        Error::Refused(_, Refusal::NotFound) => Errno::ESTALE,
        error => errno(error),
    }
}

/// How the log says it.
pub(crate) fn sentence(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.into())
}
