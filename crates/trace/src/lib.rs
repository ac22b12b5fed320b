//! Block traces: what was read and written where, when, as other tools have recorded it.
//!
//! A [`Reader`] opens a file, decompresses it on the fly, and gives its requests one by one to a closure that the parsers
//! are compiled together with. Broken lines are counted, or end it (`strict`). [`Keys`] makes cache keys of requests,
//! [`Series`] bytes per interval, also from reports of iostat and sar; [`JobLog`] makes those of what a batch system's jobs
//! would write.

mod error;
mod format;
mod jobs;
mod keys;
mod loads;
mod look;
mod parse;
mod reader;
mod request;
mod series;
mod source;

pub use error::TraceError;
pub use format::Format;
pub use jobs::{Checkpoints, Job, JobLog, Lacking};
pub use keys::{Gathered, Keys, Only};
pub use parse::{Broken, Parser, Tally};
pub use reader::{Options, Reader};
pub use request::{Access, Request};
pub use series::{Sample, Series};
