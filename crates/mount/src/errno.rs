//! What programs are told.

use fuser::Errno;
use surgetank_pool::client::{self, Error};
use surgetank_pool_core::meta::operation::Refusal;

/// The error of a system call for one of the pool.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::Refused(_, refusal) => Errno::from_i32(client::errno(refusal).raw_os_error()),
        Error::Path(..) => Errno::EINVAL,
        Error::NoRoom { .. } | Error::StoreFull(..) => Errno::ENOSPC,
        Error::NotAllowed(_) => Errno::EACCES,
        Error::Address(_)
        | Error::Managers(_)
        | Error::Declined(_)
        | Error::QuotaUnknown(..)
        | Error::SessionEnded(_)
        | Error::Unreadable { .. }
        | Error::NotDrained(..)
        | Error::Timeout(..) => Errno::EIO,
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
