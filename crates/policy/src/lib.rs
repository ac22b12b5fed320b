//! Controllers: when to boost, how big, when to drain and detach. Pure: fed with observations and outcomes, polled
//! for steps.

pub mod step;

pub use step::{Outcome, Refusal, Step, StepId};
