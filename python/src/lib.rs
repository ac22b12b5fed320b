//! `surgetank._native`: sessions and files of a staging pool, for the package `surgetank`.
//!
//! Every call that asks the pool waits without the interpreter's lock and looks for signals meanwhile ([`wait`]). What is here knows paths,
//! bytes and errors of the pool; how Python names and buffers them is the package's.

mod client;
mod errors;
mod files;
mod options;
mod wait;

use pyo3::prelude::*;

/// The staging pool's client library.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::client::{Client, Stat};
    #[pymodule_export]
    use crate::files::{Reader, Writer};
}
