//! Files that commands read: scenarios, catalogs, points, traces.

use std::path::Path;

use surgetank_model::toml_error::Source;
use surgetank_report::Failure;
use surgetank_trace::TraceError;

/// Reads a file that is to be parsed.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read(file: &Path) -> Result<Source, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::Invalid(format!("{}: cannot be read: {error}; check the path and its permissions", file.display()))
    })?;
    Ok(Source { file: file.to_owned(), text })
}

/// Why a trace cannot be read.
#[must_use]
pub fn unreadable(error: TraceError) -> Failure {
    match error {
        TraceError::Invalid(text) => Failure::Invalid(text),
        TraceError::Failed(text) => Failure::Failed(text),
    }
}
