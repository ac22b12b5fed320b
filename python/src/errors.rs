//! What Python raises for what the pool says.

use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;
use surgetank_pool::client;
use surgetank_pool_core::meta::operation::Refusal;

/// Why a call has failed.
#[derive(Debug)]
pub enum Error {
    /// The pool's word.
    Pool(client::Error),
    /// An option makes no sense.
    Option(String),
    /// No pool answers.
    NoPool(String),
    /// This process has no threads for it, or a file of this machine cannot be used.
    System(Errno, String),
    /// Another process has made it, of which this one is a fork.
    Forked,
    /// It was closed.
    Closed,
    /// Of several answers, none came: a defect of this module.
    Lost,
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Self::Pool(error)
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Pool(error) => of_pool(&error),
            Error::Option(why) => PyValueError::new_err(why),
            Error::NoPool(why) => PyConnectionError::new_err(why),
            Error::System(errno, why) => os(errno, why, None),
            Error::Forked => os(
                Errno::BADF,
                "this process is a fork of the one that opened the file: open it again".to_owned(),
                None,
            ),
            Error::Closed => PyValueError::new_err("I/O operation on closed file."),
            Error::Lost => os(Errno::IO, "the call has ended without an answer".to_owned(), None),
        }
    }
}

/// `OSError` becomes the subclass of its number: `FileNotFoundError`, `PermissionError`, `TimeoutError` and so on.
fn os(errno: Errno, why: String, path: Option<String>) -> PyErr {
    match path {
        Some(path) => PyOSError::new_err((errno.raw_os_error(), why, path)),
        None => PyOSError::new_err((errno.raw_os_error(), why)),
    }
}

fn of_pool(error: &client::Error) -> PyErr {
    use client::Error as Of;
    let errno = match error {
        Of::Refused(path, refusal) => return os(client::errno(refusal), told(refusal), Some(path.clone())),
        Of::Path(path, why) => return os(Errno::INVAL, why.clone(), Some(path.clone())),
        Of::Unreadable { path, offset, why } => {
            let why = format!("bytes from {offset} on cannot be read: {why}");
            return os(Errno::IO, why, Some(path.clone()));
        }
        Of::NoRoom { path, why, waited } => {
            let why = format!("{why} (waited {waited:?})");
            return os(Errno::NOSPC, why, Some(path.clone()));
        }
        Of::StoreFull(path, why) => return os(Errno::NOSPC, why.clone(), Some(path.clone())),
        Of::Address(_) => return PyValueError::new_err(error.to_string()),
        Of::NotAllowed(_) => Errno::ACCESS,
        Of::Managers(_) | Of::QuotaUnknown(..) | Of::Timeout(..) => Errno::TIMEDOUT,
        Of::Declined(_) | Of::SessionEnded(_) | Of::NotDrained(..) => Errno::IO,
    };
    os(errno, error.to_string(), None)
}

fn told(refusal: &Refusal) -> String {
    match refusal {
        Refusal::InUse => "the file is open for writing in this process already: close it there first".to_owned(),
        refusal => refusal.to_string(),
    }
}
