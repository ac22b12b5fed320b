//! What a run will take and cost, before anything is rented. Pure: files come in as text, answers go out as values.
//!
//! - [`Mode`]: the three ways to run an application that every answer compares;
//! - [`scenario`]: the file of `predict`, `recommend` and `simulate`, parsed and checked;
//! - [`cost`]: AGBs and money behind one interface;
//! - [`fluid`]: one burst by the fluid model;
//! - [`calibration`], [`points`]: measured points, what lies between them, and their files;
//! - [`predict`], [`recommend`]: completion time and cost of the three modes, and the cache size to take;
//! - [`price`]: every way to rent a capacity;
//! - [`whatif`]: the options for a recorded load;
//! - [`stripe`]: caching volumes in stripes, and the planner's choice of them;
//! - [`economy`]: what a month of repeated bursts costs, static and elastic;
//! - [`allocation`]: the file of `allocate`, its answer, and every scheme beside the best one;
//! - [`provision`]: the nodes of a staging pool for a target, the cheapest that suffice;
//! - [`credits`], [`rotation`], [`interval`]: closed forms, one at a time.
//!
//! Formulas are those of NRK15 (`docs/REFERENCES.md`), sections III-C and III-D, with 1 GB = 1024 MB.

pub mod allocation;
pub mod calibration;
pub mod cost;
pub mod credits;
pub mod economy;
pub mod fluid;
pub mod interval;
mod mode;
pub mod points;
pub mod predict;
pub mod price;
pub mod provision;
pub mod recommend;
pub mod rotation;
pub mod scenario;
pub mod stripe;
pub mod whatif;

pub use mode::Mode;
