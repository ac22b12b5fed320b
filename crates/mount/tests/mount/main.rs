//! The pool as a mounted file system.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod fixture;
mod killed;
mod links;
mod locks;
mod posix;
mod quotas;
mod shared;
mod sparse;
mod tools;
mod union;
mod workload;
