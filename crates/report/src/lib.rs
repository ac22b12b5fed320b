//! What passes between a command and people: its answer, how it fails, how they stop it.
//!
//! - [`output`]: answers to stdout, notes to stderr, files written whole; [`Failure`]: one sentence and an exit status;
//! - [`number`]: numbers with their units; [`Table`]: one table as text, Markdown or HTML;
//! - [`chart`]: pictures as SVG; [`Page`]: a page that fetches nothing from elsewhere;
//! - [`run`]: an application's run in the three modes, and its report;
//! - [`progress`]: bars on a terminal; [`Interrupt`]: the signals that ask a command to stop.

pub mod chart;
pub mod failure;
pub mod interrupt;
pub mod number;
pub mod output;
pub mod page;
pub mod progress;
pub mod run;
pub mod table;

pub use failure::{Doing, Failure};
pub use interrupt::Interrupt;
pub use page::Page;
pub use table::Table;
