//! The quick demos on this machine, whole, and what they leave: nothing. With root, FUSE and loop devices they run on file systems;
//! the others are skipped without, that of arrays runs over NBD.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

mod array;
mod elastic;
mod place;
mod pool;
