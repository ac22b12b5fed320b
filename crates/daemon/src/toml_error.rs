//! Errors in TOML files, for people: see [`surgetank_model::toml_error`]. Here files are read.

use std::path::Path;

pub use surgetank_model::toml_error::{ConfigError, Source, nearest};

/// Reads a file that is to be parsed.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read(file: &Path) -> Result<Source, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
        file: file.to_owned(),
        place: None,
        message: format!("cannot be read: {error}; check the path and its permissions"),
    })?;
    Ok(Source { file: file.to_owned(), text })
}

/// Makes one mistake after another in a good file (what, replaced by what) and looks for what the error must say.
#[cfg(test)]
pub fn each_mistake_is_told<T: std::fmt::Debug>(
    good: &str,
    load: fn(&str) -> Result<T, String>,
    mistakes: &[(&str, &str, &str)],
) {
    for (from, to, expected) in mistakes {
        assert!(good.contains(from), "{from}");
        let message = load(&good.replace(from, to)).unwrap_err();
        assert!(message.contains(expected), "{message}\n expected {expected}");
    }
}
