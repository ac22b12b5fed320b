//! What a run will take and cost, before anything is rented. Pure: files come in as text, answers go out as values.
//!
//! - [`scenario`]: the file of `predict`, `recommend` and `simulate`, parsed and checked.
//!
//! Formulas are those of Nicolae, Riteau, Keahey, "Towards Transparent Throughput Elasticity for IaaS Cloud Storage"
//! (the journal article), sections III-C and III-D, with 1 GB = 1024 MB.

pub mod scenario;
