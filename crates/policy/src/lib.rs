//! Controllers: when to boost, how big, when to drain and detach. Pure: fed with observations and outcomes, polled
//! for steps.
//!
//! - [`step`]: the contract with the driver (the daemon's reconciler or the simulator);
//! - [`elastic`]: the controller of one elastic device;
//! - [`preset`]: the policies by name, each a preset of that controller;
//! - [`sizing`]: how large the next caching volume is;
//! - [`bursts`]: how much bursts write; [`worth`]: what a boost saves and costs;
//! - [`forecast`]: when the next burst comes; [`series`]: what comes next in a series, by several experts;
//! - [`budget`]: what was rented, and what may still be;
//! - [`backoff`]: when to try again;
//! - [`rotation`]: when members of an array are replaced, before their burst credits end;
//! - [`stripe`]: over how many volumes a boost is striped;
//! - [`fair`]: which client of a device is served next, and how much at a time;
//! - [`file`]: the `[policy]` section of configuration files.
//!
//! Absent on purpose: any provider call, any clock, any byte of data.

pub mod backoff;
pub mod budget;
pub mod bursts;
pub mod elastic;
pub mod fair;
pub mod file;
pub mod forecast;
pub mod planted;
pub mod preset;
pub mod rotation;
pub mod series;
pub mod sizing;
pub mod step;
pub mod stripe;
pub mod value;
pub mod worth;

pub use elastic::{
    BoostRecord, BurstHint, Cause, Config, Controller, Headroom, HintRefused, Learned, Phase, Prediction, ResumeAt,
    Status, Steady, sizes_held,
};
pub use preset::Preset;
pub use step::{Refusal, Step, StepId, StepOutcome};
pub use value::{Prices, ValueOfTime};
