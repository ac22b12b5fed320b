//! What programs are told, in numbers of system calls.

use rustix::io::Errno;
use surgetank_pool_core::meta::operation::Refusal;

/// The number for why a change is refused, as a file system has it.
#[must_use]
pub const fn errno(refusal: &Refusal) -> Errno {
    match refusal {
        Refusal::NotFound => Errno::NOENT,
        Refusal::Exists => Errno::EXIST,
        Refusal::NotADirectory => Errno::NOTDIR,
        Refusal::IsADirectory => Errno::ISDIR,
        Refusal::NotEmpty => Errno::NOTEMPTY,
        Refusal::IntoItself => Errno::INVAL,
        Refusal::InUse => Errno::BUSY,
        Refusal::TooManyLinks => Errno::MLINK,
        Refusal::NotAllowed => Errno::PERM,
        Refusal::OverQuota(_) => Errno::DQUOT,
        Refusal::NotTheWriter
        | Refusal::Named
        | Refusal::Version(_)
        | Refusal::Moved
        | Refusal::Benefactors(_)
        | Refusal::NotThePublisher
        | Refusal::NotTheWarden
        | Refusal::NotDrained => Errno::IO,
    }
}
