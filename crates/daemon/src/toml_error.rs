//! Errors in TOML files, for people: see [`surgetank_model::toml_error`]. Here files are read.

use std::io;
use std::path::Path;

pub use surgetank_model::toml_error::{ConfigError, Source, nearest};

/// Reads a file that is to be parsed.
///
/// # Errors
/// If it cannot be read; with a place, if it is not UTF-8.
pub fn read(file: &Path) -> Result<Source, ConfigError> {
    let bytes = std::fs::read(file).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::IsADirectory => "cannot be read: it is a directory; name a file in it".to_owned(),
            _ => format!("cannot be read: {error}; check the path and its permissions"),
        };
        ConfigError { file: file.to_owned(), place: None, message: remedy }
    })?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source { file: file.to_owned(), text }),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..at]).into_owned();
            let source = Source { file: file.to_owned(), text: before };
            Err(source.at(Some(at..at), "it is no text in UTF-8, and so no TOML: name a TOML file"))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_and_no_file_is_told_as_that() {
        let directory = tempfile::tempdir().unwrap();
        let told = |path: &Path| read(path).unwrap_err().to_string();
        assert!(told(directory.path()).ends_with(": cannot be read: it is a directory; name a file in it"));
        assert!(told(&directory.path().join("missing")).contains("check the path and its permissions"));
        let file = directory.path().join("binary");
        std::fs::write(&file, b"a = 1\nb = \xff\xfe").unwrap();
        assert!(
            told(&file).ends_with(":2:5: it is no text in UTF-8, and so no TOML: name a TOML file"),
            "{}",
            told(&file)
        );
    }
}
