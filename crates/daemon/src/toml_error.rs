//! Errors in TOML files, for people: file, line and column, what is wrong, why, and how to mend it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// What is wrong with a file. One sentence with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line and column, counted from 1; `None` when the whole file is meant (it cannot be read).
    pub place: Option<(usize, usize)>,
    /// What is wrong and the mend.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ConfigError {}

/// A file's text, so that errors found later can still point into it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name, for messages.
    pub file: PathBuf,
    /// What it says.
    pub text: String,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not UTF-8.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            file: file.to_owned(),
            place: None,
            message: format!("cannot be read: {error}; check the path and its permissions"),
        })?;
        Ok(Self { file: file.to_owned(), text })
    }

    /// Reads the file's values.
    ///
    /// # Errors
    /// If the text is not TOML, or not of this shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.at(error.span(), mend(error.message())))
    }

    /// An error at a span of bytes of the text.
    #[must_use]
    pub fn at(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let place = span.map(|span| {
            // Spans of the parser begin at characters; what does not is shown at the file's beginning.
            let before = self.text.get(..span.start).unwrap_or_default();
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
        });
        ConfigError { file: self.file.clone(), place, message: message.into() }
    }
}

/// Rewrites the parser's message where it does not help enough: an unknown name is answered with the nearest known.
fn mend(message: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    for (what, kind) in [("unknown field `", "setting"), ("unknown variant `", "value")] {
        let Some(rest) = message.strip_prefix(what) else { continue };
        let Some((name, expected)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return match nearest(name, known.iter().copied()) {
            Some(nearest) => {
                format!("unknown {kind} \"{name}\": did you mean \"{nearest}\"? Known here: {}", known.join(", "))
            }
            None => format!("unknown {kind} \"{name}\": known here: {}", known.join(", ")),
        };
    }
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the setting \"{name}\" is missing here: add it");
    }
    message
}

/// The known name nearest to what was written, if it is near at all.
#[must_use]
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.map(|name| (distance(written, name), name)).min()?;
    (distance <= name.len().div_ceil(2).min(4)).then_some(name)
}

/// Edit distance (Levenshtein), by the row.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(128).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the errors are looked at")]
    struct Shape {
        backing: String,
        size: surgetank_model::Bytes,
    }

    fn error(text: &str) -> String {
        let source = Source { file: "x.toml".into(), text: text.into() };
        source.parse::<Shape>().unwrap_err().to_string()
    }

    #[test]
    fn errors_point_at_the_place_and_name_the_mend() {
        assert_eq!(
            error("backing = \"a\"\n  bakcing = 1\nsize = \"1 GiB\""),
            "x.toml:2:3: unknown setting \"bakcing\": did you mean \"backing\"? Known here: backing, size"
        );
        assert!(error("backing = \"a\"\nsize = 5").starts_with("x.toml:2:8: 5 has no unit"));
        assert!(error("backing = \"a\"").contains("\"size\" is missing"));
        assert!(error("backing = ").starts_with("x.toml:1:"));
        assert!(error("ä = \"ü\"").starts_with("x.toml:1:1: "));
    }

    #[test]
    fn nearest_is_near() {
        assert_eq!(nearest("indle", ["idle", "drain"].into_iter()), Some("idle"));
        assert_eq!(nearest("zzzzzzzz", ["idle", "drain"].into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
