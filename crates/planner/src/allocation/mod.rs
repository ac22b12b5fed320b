//! `allocate`: shares of two levels of cache for the applications of a file, so that every SLO holds.
//!
//! - [`AllocationFile`]: the file, checked; the names in it are a contract;
//! - [`Scheme`]: how shares are chosen, and what each scheme does for a problem;
//! - [`Allocation`]: the answer, whose names are a contract as well; [`PreviousPlan`] reads it back;
//! - [`Placement`]: the answer of a file with `demands_only`.

mod answer;
mod demands;
mod file;
mod previous;
mod scheme;

pub use answer::{Allocation, AppShare, Infeasible, LevelName, MoreCache, RelaxedSlo, SchemeResult, ServerShare};
pub use demands::{Placed, Placement, Unplaced};
pub use file::{AllocationFile, Measured};
pub use previous::PreviousPlan;
pub use scheme::Scheme;
