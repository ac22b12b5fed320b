//! Daemons in the test's own process: one program, as each costs a link of the whole daemon.

#[path = "../common/mod.rs"]
mod common;

mod boosts_that_share;
mod disks;
mod documents;
mod fairness;
mod hanging;
mod losses;
mod lying;
mod outages;
mod providers;
mod release;
mod second_level;
mod serve;
mod sharing;
mod stops;
mod striped;
mod trouble;
