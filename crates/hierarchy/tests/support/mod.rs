//! Runs that a seed decides, for the tests and for the planted bugs.
#![allow(dead_code, reason = "each test uses some")]

pub mod caches;
pub mod cases;
pub mod ratios;

/// A failure in words, unless it holds.
pub fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(says()) }
}
